# SPDX-License-Identifier: LGPL-2.1-or-later
"""``filesystem_search`` while others rename what it searches."""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from mcpd.errors import Busy
from mcpd.servers.workstation.filesystem.ripgrep import Sources
from mcpd.servers.workstation.jail import Jail
from tests.unit.workstation.bench import Workbench
from tests.unit.workstation.searches import ENGINES, fill, search, use

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mcpd.servers.workstation.jail import Place

pytestmark = pytest.mark.process

FILES: Final = 30
ROUNDS: Final = 6
EXCHANGE: Final = 2


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path) as made:
        yield made


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    use(name, bench, monkeypatch)
    return name


@contextmanager
def swapped(bench: Workbench, ours: str, theirs: str) -> Iterator[None]:
    """Files that hold *ours* change places all the time with hard links to files outside that hold *theirs*."""
    for number in range(FILES):
        (bench.root / f"f{number}").write_text(ours)
        (bench.outside / f"s{number}").write_text(theirs)
        (bench.root / f"l{number}").hardlink_to(bench.outside / f"s{number}")
    over = threading.Event()

    def attack() -> None:
        libc = ctypes.CDLL(None)
        fd = os.open(bench.root, os.O_RDONLY)
        while not over.is_set():
            for number in range(FILES):
                assert libc.renameat2(fd, b"f%d" % number, fd, b"l%d" % number, EXCHANGE) == 0
        os.close(fd)

    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        yield
    finally:
        over.set()
        attacker.join()


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("multiline", [False, True])
async def test_who_swaps_files_for_hard_links_is_told_nothing(bench: Workbench, multiline: bool) -> None:
    with swapped(bench, "harmless\n", "for nobody\n"):
        for _ in range(ROUNDS):
            result = await search(bench, "nobody", multiline=multiline, max_results=1)
            assert (result.matches, result.files, result.truncated) == ([], 0, False)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("multiline", [False, True])
async def test_nor_of_the_lines_around_a_match_in_both(bench: Workbench, multiline: bool) -> None:
    with swapped(bench, "same\nours\n", "same\nfor nobody\n"):
        for _ in range(ROUNDS):
            result = await search(bench, "same", multiline=multiline, context=1)
            assert all(each.text == "same" and each.after in (["ours"], []) for each in result.matches)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"one\r\ntwo\xff\n", b"one\r\ntwo\xff\n"),
        (b"\xef\xbb\xbfone\n", b"one\n"),
        ("\ufeffä€\n".encode("utf-16-le"), "ä€\n".encode()),
        ("\ufeffä€\n".encode("utf-16-be"), "ä€\n".encode()),
    ],
)
async def test_only_what_a_file_has_is_believed(bench: Workbench, data: bytes, text: bytes) -> None:
    fill(bench.root, {"a": data})
    with Sources(bench.new_call(), bench.jail.place(".")) as sources:
        assert sources.begin("a")
        for start in range(len(text)):
            assert sources.has(start, text[start:])
            assert not sources.has(start, text[start:] + b"x")
            assert not sources.has(start, bytes([text[start] ^ 1]))
        (bench.root / "link").hardlink_to(bench.root / "a")
        (bench.root / "out").symlink_to(bench.outside / "secret")
        for name in ("a", "link", "out", "none"):
            assert not sources.begin(name)
            assert not sources.has(0, text)


@pytest.mark.parametrize("new", ["root2", "rootold", "other"])
async def test_nothing_else_is_searched_if_the_root_is_renamed_in_this_moment(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, new: str
) -> None:
    fill(bench.root, {"a/old/x": "word\n", "2/a/old/x": "word\n", "old/a/old/x": "word\n"})
    opened = Jail.opened

    @contextmanager
    def renamed(jail: Jail, place: Place, flags: int = os.O_PATH, *, links: bool = True) -> Iterator[int]:
        if bench.root.exists():
            bench.root.rename(bench.directory / new)
        with opened(jail, place, flags, links=links) as fd:
            yield fd

    monkeypatch.setattr(Jail, "opened", renamed)
    with pytest.raises(Busy):
        await search(bench, "word", path="a")
