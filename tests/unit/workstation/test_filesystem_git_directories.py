# SPDX-License-Identifier: LGPL-2.1-or-later
"""No git directory is made of files that the tools write, move or delete, in whatever order."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import Busy, McpdError, NotAuthorized, NotFound
from mcpd.servers.workstation import jail
from mcpd.servers.workstation.filesystem.moving import DELETE, MOVE
from mcpd.servers.workstation.filesystem.writing import EDIT, MKDIR, WRITE
from tests.unit.workstation.bench import Workbench
from tests.unit.workstation.git_directories import HEAD, WORKTREE, config, runs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    Step = Callable[[Workbench], Awaitable[object]]

pytestmark = pytest.mark.process

ELSEWHERE = {
    "elsewhere/objects/x": "",
    "elsewhere/refs/x": "",
    "elsewhere/config": "CONFIG",
    "d/commondir": "../elsewhere\n",
    "d/config.worktree": WORKTREE,
    "d/HEAD": HEAD,
}
"""A git directory whose objects, refs and configuration are elsewhere."""
WHOLE = {"d/objects/x": "", "d/refs/x": "", "d/config": "CONFIG", "d/HEAD": HEAD}
"""One that has them."""

in_any_order = pytest.mark.parametrize(
    "order",
    [
        order
        for files in (ELSEWHERE, WHOLE)
        for order in itertools.permutations(path for path in files if path.startswith("d/"))
    ],
    ids=lambda order: "-".join(path.split("/")[1] for path in order),
)


def files_of(order: Sequence[str]) -> dict[str, str]:
    return ELSEWHERE if "d/commondir" in order else WHOLE


def content(bench: Workbench, text: str) -> str:
    return config(bench.directory) if text == "CONFIG" else text


def write(path: str, text: str) -> Step:
    return lambda bench: bench.call(WRITE, path=path, content=content(bench, text), create_parents=True)


def move(source: str, destination: str) -> Step:
    return lambda bench: bench.call(MOVE, source=source, destination=destination)


def delete(path: str) -> Step:
    return lambda bench: bench.call(DELETE, path=path)


async def taken(bench: Workbench, steps: Sequence[Step]) -> int:
    """Take *steps*, and return how many were refused because of git."""
    refused = 0
    for step in steps:
        try:
            await step(bench)
        except NotAuthorized as fault:
            refused += "belongs to git; use the git tools" in fault.message
        except NotFound:
            # Nothing was made that could be moved.
            continue
    return refused


def put(bench: Workbench, path: str, text: str) -> None:
    made = bench.root / path
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text(content(bench, text))


@pytest.mark.parametrize("files", [ELSEWHERE, WHOLE], ids=["elsewhere", "whole"])
def test_such_a_directory_would_run_a_command(bench: Workbench, files: dict[str, str]) -> None:
    for path, text in files.items():
        put(bench, path, text)
    assert runs(bench.directory, below=bench.root)


@in_any_order
async def test_none_is_written_in_any_order(bench: Workbench, order: Sequence[str]) -> None:
    files = files_of(order)
    others = [write(path, files[path]) for path in files if path not in order]
    assert await taken(bench, others) == 0
    assert await taken(bench, [write(path, files[path]) for path in order]) >= 1
    assert not runs(bench.directory, below=bench.root)


@in_any_order
async def test_none_is_moved_together(bench: Workbench, order: Sequence[str]) -> None:
    put(bench, "d/file", "")
    for path, text in files_of(order).items():
        name = path.split("/")[1]
        put(bench, f"{name}_/{path[2:]}" if path in order else path, text)
    names = [path.split("/")[1] for path in order]
    assert await taken(bench, [move(f"{name}_/{name}", f"d/{name}") for name in names]) >= 1
    assert not runs(bench.directory, below=bench.root)


STEPS: dict[str, Step] = {
    **{f"write {path}": write(path, text) for path, text in {**ELSEWHERE, **WHOLE}.items()},
    **{f"write parts/{path[2:]}": write(f"parts/{path[2:]}", WHOLE[path]) for path in WHOLE if path != "d/HEAD"},
    "write other/HEAD": write("other/HEAD", HEAD),
    "write other/commondir": write("other/commondir", "../elsewhere\n"),
    "move other/HEAD": move("other/HEAD", "d/HEAD"),
    "move parts/objects": move("parts/objects", "d/objects"),
    "move parts/refs": move("parts/refs", "d/refs"),
    "move other/HEAD to parts": move("other/HEAD", "parts/HEAD"),
    "move other/commondir": move("other/commondir", "parts/commondir"),
    "move parts": move("parts", "other/objects"),
    "move d": move("d", "other/refs"),
    "delete d/HEAD": delete("d/HEAD"),
    "delete other/HEAD": delete("other/HEAD"),
    "delete d/commondir": delete("d/commondir"),
    "delete parts/objects": delete("parts/objects"),
    "delete d/refs": delete("d/refs"),
    "delete d/config": delete("d/config"),
    "delete parts/config": delete("parts/config"),
}


@given(st.permutations(sorted(STEPS)))
def test_none_comes_of_all_steps_in_any_order(tmp_path: Path, names: list[str]) -> None:
    with Workbench(Path(tempfile.mkdtemp(dir=tmp_path))) as bench:

        async def take() -> None:
            for name in names:
                # Some steps have nothing to work on, or something in the way.
                with suppress(McpdError):
                    await STEPS[name](bench)

        asyncio.run(take())
        assert not runs(bench.directory, below=bench.root)


async def test_none_is_made_in_the_trash(bench: Workbench) -> None:
    for number, (path, text) in enumerate(WHOLE.items()):
        put(bench, f"{number}/{path}", text)
        name = path.split("/")[1]
        answer = await bench.call(DELETE, path=f"{number}/d/{name}")
        assert Path(answer.result.model_dump()["trashed_to"]).exists()
    assert not runs(bench.directory, below=bench.root)


@pytest.mark.parametrize("name", ["commondir", "config.worktree", "HEAD", "config", "new", "deep/file"])
async def test_what_is_in_one_is_neither_written_edited_nor_deleted(bench: Workbench, name: str) -> None:
    for path, text in ELSEWHERE.items():
        put(bench, path, text)
    put(bench, "d/deep/file", "old")
    put(bench, "file", "old")
    path = f"d/{name}"
    edits = [{"old_text": "old", "new_text": "new"}]
    assert (
        await taken(
            bench,
            [
                write(path, "CONFIG"),
                lambda bench: bench.call(EDIT, path=path, edits=edits),
                lambda bench: bench.call(MKDIR, path=path),
                move(path, "gone"),
                lambda bench: bench.call(MOVE, source="file", destination=path, overwrite=True),
                delete(path),
            ],
        )
        == 6
    )


@pytest.mark.parametrize("last", ["HEAD", "head", "Head", "HEAD.", "HE\u200cAD", "ＨＥＡＤ", "HEAD::$DATA"])
async def test_names_count_that_some_file_system_takes_for_the_same(bench: Workbench, last: str) -> None:
    put(bench, "d/commondir", "../elsewhere\n")
    assert await taken(bench, [write(f"d/{last}", HEAD)]) == 1


async def test_names_are_harmless_that_complete_nothing(bench: Workbench) -> None:
    steps = [
        *(write(f"docs/{name}", "x") for name in ("HEAD", "objects/x", "file", "config", "config.worktree")),
        *(write(f"other/{name}", "x") for name in ("commondir", "objects/x", "refs/x", "config")),
        lambda bench: bench.call(EDIT, path="docs/HEAD", edits=[{"old_text": "x", "new_text": "y"}]),
        move("docs/HEAD", "docs/head"),
        delete("docs/head"),
        write("docs/refs/x", "x"),
    ]
    assert await taken(bench, steps) == 0


def test_parts_are_added_one_after_the_other(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jail, "_PATIENCE", 0.0)
    for name in ("d/objects/x", "d/refs/x"):
        put(bench, name, "")
    parent = bench.jail.parent
    with parent(bench.jail.place("HEAD")), parent(bench.jail.place("d/file")):
        for name in ("commondir", "d/HEAD"):
            with pytest.raises(Busy, match="try again"), parent(bench.jail.place(name)):
                pass


HOLDING = """
import sys
from pathlib import Path
from mcpd.servers.workstation.roots import Roots
from mcpd.servers.workstation.settings import Settings
root, home, state = map(Path, sys.argv[1:])
jail = Roots(Settings(roots=(root,), toolchains=(), home=home, state=state)).jail
with jail.parent(jail.place("HEAD")):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_parts_are_added_one_after_the_other_by_servers_with_the_same_state(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jail, "_PATIENCE", 0.0)
    put(bench, "d/refs/x", "")
    settings = bench.settings
    command = (sys.executable, "-c", HOLDING, *map(str, (bench.root, settings.home, settings.state)))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(Busy, match="try again"), bench.jail.parent(bench.jail.place("d/HEAD")):
            pass
        other.communicate()
    with bench.jail.parent(bench.jail.place("d/HEAD")):
        pass
