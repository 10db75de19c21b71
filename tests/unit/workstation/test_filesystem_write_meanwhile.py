# SPDX-License-Identifier: LGPL-2.1-or-later
"""filesystem_write while others change the same files, or call off what they asked for."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import hashlib
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import pytest

from mcpd.errors import Busy, Cancelled, McpdError
from mcpd.servers.workstation.filesystem import atomic
from mcpd.servers.workstation.filesystem.writing import WRITE
from tests.unit.workstation.bench import Workbench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mcpd.servers.workstation.call import Call

    Rename: TypeAlias = Callable[[int, str, int, str], None]

pytestmark = pytest.mark.process


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path, roots=2) as made:
        before = made.fingerprint()
        yield made
        assert made.fingerprint() == before


def names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


async def test_a_call_that_was_cancelled_leaves_the_old_content_and_nothing_else(bench: Workbench) -> None:
    (bench.root / "a").write_text("old")
    for append in (False, True):
        call = bench.new_call()
        call.end()
        with pytest.raises(Cancelled):
            await bench.call(WRITE, call=call, path="a", content="new", append=append)
    assert (bench.root / "a").read_text() == "old"
    assert names(bench.root) == ["a"]


async def test_a_new_file_has_no_other_name_while_it_is_written(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So nothing is left of it if this process is killed."""
    try:
        os.close(os.open(bench.root, os.O_TMPFILE | os.O_WRONLY))
    except OSError:
        pytest.skip("this file system has no files without a name")
    seen: list[list[str]] = []
    call = bench.new_call()
    monkeypatch.setattr(call, "check", lambda: seen.append(names(bench.root)))
    await bench.call(WRITE, call=call, path="a", content="new")
    assert seen
    assert not any(seen)
    assert names(bench.root) == ["a"]


@pytest.mark.parametrize("fault", [errno.EOPNOTSUPP, errno.EISDIR])
async def test_where_there_are_no_files_without_a_name_it_is_written_beside(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, fault: int
) -> None:
    opened = os.open

    def refusing(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(fault, os.strerror(fault))
        return opened(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refusing)
    await bench.call(WRITE, path="a", content="new")
    assert names(bench.root) == ["a"]
    assert (bench.root / "a").read_text() == "new"


async def test_nor_where_they_get_no_name_later(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: object, **_more: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refusing)
    await bench.call(WRITE, path="a", content="new", executable=True)
    assert names(bench.root) == ["a"]
    assert (bench.root / "a").stat().st_mode & 0o111


@pytest.mark.parametrize("before", [None, "old"])
async def test_what_others_wrote_meanwhile_is_not_replaced(bench: Workbench, before: str | None) -> None:
    path = bench.root / "a"
    if before is not None:
        path.write_text(before)
    call = bench.new_call()

    def race() -> None:
        with atomic.target(call, call.jail.place("a")) as found:
            path.write_text("theirs, and longer")
            atomic.put(call, found, b"ours")

    with pytest.raises(Busy):
        await call.in_thread(race)
    assert path.read_text() == "theirs, and longer"
    assert names(bench.root) == ["a"]


async def test_nothing_is_appended_to_what_others_wrote_after_its_digest(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bench.root / "a"
    path.write_text("old")
    check_digest = atomic.check_digest

    def race(call: Call, found: atomic.Target, expected: str) -> None:
        check_digest(call, found, expected)
        path.write_text("theirs, and longer")

    monkeypatch.setattr(atomic, "check_digest", race)
    with pytest.raises(Busy):
        await bench.call(
            WRITE, path="a", content="ours", append=True, expected_sha256=hashlib.sha256(b"old").hexdigest()
        )
    assert path.read_text() == "theirs, and longer"


async def test_who_puts_links_in_the_way_meanwhile_gains_nothing(bench: Workbench) -> None:
    (bench.root / "d").mkdir()
    (bench.root / "link").symlink_to(bench.outside)
    over = threading.Event()

    def attack() -> None:
        exchange = 2
        libc = ctypes.CDLL(None)
        here, there = os.fsencode(bench.root / "d"), os.fsencode(bench.root / "link")
        while not over.is_set():
            assert libc.renameat2(-100, here, -100, there, exchange) == 0

    attacker = threading.Thread(target=attack)
    attacker.start()
    written = 0
    try:
        for number in range(100):
            with suppress(McpdError):
                path = ("d/secret", "d/new/deep/secret")[number % 2]
                await bench.call(WRITE, path=path, content="x", create_parents=True, append=number % 3 == 0)
                written += 1
    finally:
        over.set()
        attacker.join()
    assert names(bench.outside) == ["secret"]
    assert written


async def test_two_at_once_leave_one_of_both(bench: Workbench) -> None:
    contents = [letter * 100_000 for letter in "abcd"]
    answers = await asyncio.gather(
        *(bench.call(WRITE, path="a", content=content) for content in contents), return_exceptions=True
    )
    assert all(isinstance(answer, Busy) or not isinstance(answer, BaseException) for answer in answers)
    assert (bench.root / "a").read_text() in contents
    assert names(bench.root) == ["a"]


@pytest.mark.parametrize("rename", [atomic.rename_new, atomic.rename_new_portably, atomic.rename_reserved])
@pytest.mark.parametrize("kind", ["file", "directory", "symlink"])
async def test_a_rename_replaces_nothing(bench: Workbench, kind: str, rename: Rename) -> None:
    for name in ("a", "b"):
        path = bench.root / name
        if kind == "symlink":
            path.symlink_to("x")
        elif kind == "directory":
            path.mkdir()
        else:
            path.touch()
    fd = os.open(bench.root, os.O_PATH)
    try:
        with pytest.raises(FileExistsError):
            rename(fd, "a", fd, "b")
        with pytest.raises(OSError):  # noqa: PT011 - which one is the kernel's choice
            rename(fd, "missing", fd, "d")
        rename(fd, "a", fd, "c")
    finally:
        os.close(fd)
    assert names(bench.root) == ["b", "c"]
