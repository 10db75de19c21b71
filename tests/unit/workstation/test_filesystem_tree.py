# SPDX-License-Identifier: LGPL-2.1-or-later
"""``filesystem_tree``: the drawing and the entries, within depth, globs and limits, of trees of all shapes."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import Cancelled, InvalidArgument, NotAuthorized
from mcpd.servers.workstation.filesystem.entries import MAX_TEXT
from mcpd.servers.workstation.filesystem.listing import TREE
from tests.unit.workstation.bench import Workbench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path) as made:
        yield made


def plant(root: Path, *paths: str) -> None:
    for path in paths:
        place = root / path
        if path.endswith("/"):
            place.mkdir(parents=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(path)


def chain(root: Path, name: str, depth: int, leaves: int = 0) -> None:
    """*depth* directories called *name*, one in the other, and files in the last."""
    with ExitStack() as stack:
        fd = os.open(root, os.O_RDONLY)
        stack.callback(os.close, fd)
        for _ in range(depth):
            os.mkdir(name, dir_fd=fd)
            fd = os.open(name, os.O_RDONLY, dir_fd=fd)
            stack.callback(os.close, fd)
        for number in range(leaves):
            os.close(os.open(f"{number:05}", os.O_CREAT | os.O_WRONLY, dir_fd=fd))


async def test_a_tree_is_drawn(bench: Workbench) -> None:
    plant(bench.root, "src/a.py", "src/lib/b.py", "src/lib/deep/c/d.py", "README", "z/")
    plant(bench.root, ".git/config", "node_modules/x/y", ".hidden")
    (bench.root / "link").symlink_to("src\n")
    os.mkfifo(bench.root / "pipe")
    answer = await bench.call(TREE)
    assert answer.content[0]["text"].split("\n") == [
        str(bench.root),
        "├── README",
        "├── link -> src\\n",
        "├── pipe [pipe]",
        "├── src/",
        "│   ├── a.py",
        "│   └── lib/",
        "│       ├── b.py",
        "│       └── deep/",
        "└── z/",
    ]
    result = answer.result
    assert [(entry.path, entry.type, entry.size) for entry in result.entries] == [
        ("README", "file", 6),
        ("link", "symlink", None),
        ("pipe", "pipe", None),
        ("src", "directory", None),
        ("src/a.py", "file", 8),
        ("src/lib", "directory", None),
        ("src/lib/b.py", "file", 12),
        ("src/lib/deep", "directory", None),
        ("z", "directory", None),
    ]
    assert (result.directories, result.files, result.others) == (4, 3, 2)
    assert (result.hidden, result.excluded, result.truncated) == (1, 2, False)


async def test_exclude_replaces_what_is_left_out_and_hidden_shows_more(bench: Workbench) -> None:
    plant(bench.root, ".git/config", "target/x", ".hidden", "a.pyc", "a.py")
    result = (await bench.call(TREE, hidden=True, exclude=["*.pyc"])).result
    assert [entry.path for entry in result.entries] == [".git", ".git/config", ".hidden", "a.py", "target", "target/x"]
    result = (await bench.call(TREE, hidden=True)).result
    assert [entry.path for entry in result.entries] == [".hidden", "a.py", "a.pyc"]


@pytest.mark.parametrize("depth", [1, 2, 5, 32])
async def test_depth_is_how_many_levels_there_are(bench: Workbench, depth: int) -> None:
    chain(bench.root, "d", 40)
    result = (await bench.call(TREE, depth=depth)).result
    assert [entry.path for entry in result.entries] == ["/".join("d" * level) for level in range(1, depth + 1)]
    assert not result.truncated


async def test_a_path_longer_than_the_kernel_takes_is_gone_down_all_the_same(bench: Workbench) -> None:
    chain(bench.root, "n" * 255, 40)
    try:
        result = (await bench.call(TREE, depth=32)).result
        assert [len(entry.path) for entry in result.entries] == [256 * level - 1 for level in range(1, 33)]
        assert {entry.error for entry in result.entries} == {None}
    finally:
        # Too deep for what tidies up after pytest, which goes by paths.
        shutil.rmtree("n" * 255, dir_fd=(fd := os.open(bench.root, os.O_RDONLY)))
        os.close(fd)


async def test_the_text_of_a_deep_tree_is_bounded(bench: Workbench) -> None:
    name = "n" * 255
    chain(bench.root, name, 30, leaves=2000)
    fd = os.open(bench.root, os.O_RDONLY)
    try:
        result = (await bench.call(TREE, depth=32, limit=20_000)).result
        assert sum(len(entry.path) for entry in result.entries) <= MAX_TEXT
        assert result.truncated
        assert len(result.entries) > 400
    finally:
        shutil.rmtree(name, dir_fd=fd)
        os.close(fd)


async def test_the_limit_leaves_out_what_lies_deepest_and_last(bench: Workbench) -> None:
    plant(bench.root, *(f"a/{number}" for number in range(6)), "b", "c")
    answer = await bench.call(TREE, limit=5)
    assert answer.content[0]["text"].split("\n")[1:] == [
        "├── a/",
        "│   ├── 0",
        "│   ├── 1",
        "│   └── … 4 more",
        "├── b",
        "└── c",
    ]
    assert answer.result.truncated
    answer = await bench.call(TREE, limit=2)
    assert answer.content[0]["text"].split("\n")[1:] == ["├── a/", "├── b", "└── … 1 more"]
    assert not (await bench.call(TREE, limit=9)).result.truncated
    assert (await bench.call(TREE, limit=8)).result.truncated


async def test_who_sees_only_the_text_sees_that_it_is_cut(bench: Workbench) -> None:
    plant(bench.root, "a/b", "c/d")
    assert len((await bench.call(TREE)).content) == 1
    for limit in (1, 2, 3):
        answer = await bench.call(TREE, limit=limit)
        assert answer.result.truncated
        assert answer.content[-1]["text"].startswith("[cut: there is more")


async def test_a_directory_with_very_many_entries_is_drawn_in_part(bench: Workbench) -> None:
    fd = os.open(bench.root, os.O_RDONLY)
    try:
        os.mkfifo("000000", dir_fd=fd)
        for number in range(1, 5000):
            os.link("000000", f"{number:06}", src_dir_fd=fd, dst_dir_fd=fd)
    finally:
        os.close(fd)
    answer = await bench.call(TREE, limit=2)
    assert answer.content[0]["text"].split("\n")[1:] == ["├── 000000 [pipe]", "├── 000001 [pipe]", "└── … 4998 more"]


async def test_no_symlink_is_followed(bench: Workbench) -> None:
    before = bench.fingerprint()
    plant(bench.root, "d/a")
    (bench.root / "d/loop").symlink_to(".")
    (bench.root / "d/up").symlink_to("..")
    (bench.root / "out").symlink_to("../outside")
    answer = await bench.call(TREE, depth=32)
    assert [entry.path for entry in answer.result.entries] == ["d", "d/a", "d/loop", "d/up", "out"]
    with pytest.raises(NotAuthorized):
        await bench.call(TREE, path="out")
    assert bench.fingerprint() == before


async def test_a_directory_that_becomes_a_symlink_does_not_lead_out(bench: Workbench) -> None:
    plant(bench.root, "d/e/inside")
    stop = asyncio.Event()

    async def swap() -> None:
        while not stop.is_set():
            (bench.root / "d/e").rename(bench.root / "d/.e")
            (bench.root / "d/e").symlink_to("../../outside")
            await asyncio.sleep(0)
            (bench.root / "d/e").unlink()
            (bench.root / "d/.e").rename(bench.root / "d/e")
            await asyncio.sleep(0)

    swapping = asyncio.create_task(swap())
    for _ in range(100):
        answer = await bench.call(TREE)
        assert "secret" not in answer.content[0]["text"]
        assert {entry.path for entry in answer.result.entries} <= {"d", "d/e", "d/e/inside"}
    stop.set()
    await swapping


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
async def test_a_directory_that_cannot_be_read_is_said_to_be_so(bench: Workbench) -> None:
    plant(bench.root, "a/x", "b/y")
    (bench.root / "a").chmod(0)
    try:
        answer = await bench.call(TREE)
    finally:
        (bench.root / "a").chmod(0o700)
    assert answer.content[0]["text"].split("\n")[1:] == ["├── a/ [Permission denied]", "└── b/", "    └── y"]


async def test_names_that_are_hard_to_show_are_escaped(bench: Workbench) -> None:
    (bench.root / os.fsdecode(b"a\nb\x1b[2J\xff")).touch()
    answer = await bench.call(TREE)
    assert answer.content[0]["text"].split("\n")[1:] == ["└── a\\nb\\x1b[2J\ufffd"]
    assert answer.result.entries[0].path == "a\nb\x1b[2J\ufffd"


@given(globs=st.lists(st.text(st.sampled_from("ab*?[]!-^\\&~|.{}\n"), max_size=12), max_size=5))
async def test_any_text_is_a_glob(bench: Workbench, globs: list[str]) -> None:
    (bench.root / "a").mkdir(exist_ok=True)
    result = (await bench.call(TREE, exclude=globs)).result
    assert len(result.entries) + result.excluded == 1


@pytest.mark.parametrize(
    "arguments", [{"depth": 0}, {"depth": 33}, {"limit": 0}, {"limit": 20_001}, {"exclude": ["a" * 256]}, {"path": "f"}]
)
async def test_arguments_that_are_refused(bench: Workbench, arguments: dict[str, Any]) -> None:
    plant(bench.root, "f")
    with pytest.raises(InvalidArgument):
        await bench.call(TREE, **arguments)


async def test_progress_grows_with_each_directory(bench: Workbench) -> None:
    plant(bench.root, "a/x/", "b/y/", "c/")
    said: list[tuple[float, str]] = []
    await bench.call(TREE, call=bench.new_call(progress=lambda done, _, message: said.append((done, message))))
    await asyncio.sleep(0)
    assert said == [(1, "a"), (2, "b"), (3, "c"), (4, "a/x"), (5, "b/y")]


async def test_a_call_that_nobody_waits_for_ends(bench: Workbench) -> None:
    plant(bench.root, "a/b")
    call = bench.new_call()
    call.end()
    with pytest.raises(Cancelled):
        await bench.call(TREE, call=call)
