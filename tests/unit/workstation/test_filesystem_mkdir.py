# SPDX-License-Identifier: LGPL-2.1-or-later
"""filesystem_mkdir."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mcpd.errors import InvalidArgument, NotAuthorized, NotFound
from mcpd.servers.workstation.filesystem.writing import MKDIR

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.workstation.bench import Workbench

pytestmark = pytest.mark.process


def names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


async def test_a_directory_and_those_above_it(bench: Workbench) -> None:
    answer = await bench.call(MKDIR, path="a/b/c")
    assert (bench.root / "a/b/c").is_dir()
    assert answer.result.model_dump() == {
        "path": str(bench.root / "a/b/c"),
        "created": True,
        "directories": [str(bench.root / each) for each in ("a", "a/b", "a/b/c")],
    }


@pytest.mark.parametrize("path", ["a", ".", "link", "link/."])
@pytest.mark.parametrize("parents", [False, True])
async def test_one_that_is_there_is_no_error(bench: Workbench, path: str, parents: bool) -> None:
    (bench.root / "a").mkdir()
    (bench.root / "link").symlink_to("a")
    answer = await bench.call(MKDIR, path=path, parents=parents)
    assert not answer.result.created
    assert answer.result.directories == []


async def test_without_parents_a_missing_one_is_an_error(bench: Workbench) -> None:
    with pytest.raises(NotFound):
        await bench.call(MKDIR, path="a/b", parents=False)
    assert not names(bench.root)
    await bench.call(MKDIR, path="a", parents=False)
    await bench.call(MKDIR, path="a/b", parents=False)
    assert (bench.root / "a/b").is_dir()


async def test_something_else_is_in_the_way(bench: Workbench) -> None:
    (bench.root / "file").touch()
    (bench.root / "dangling").symlink_to("missing")
    for path in ("file", "file/a", "file/a/b"):
        with pytest.raises(InvalidArgument):
            await bench.call(MKDIR, path=path)
    for path in ("dangling", "dangling/a"):
        with pytest.raises(NotFound):
            await bench.call(MKDIR, path=path)
    assert not (bench.root / "missing").exists()


async def test_nothing_is_made_outside(bench: Workbench) -> None:
    (bench.root / "out").symlink_to(bench.outside)
    for path in ("out/a", "out/a/b", str(bench.outside / "a"), "out"):
        with pytest.raises(NotAuthorized):
            await bench.call(MKDIR, path=path)


async def test_no_git_directory_is_made(bench: Workbench) -> None:
    for path in (".git", ".git/hooks", "a/.Git/b", "git~1"):
        with pytest.raises(NotAuthorized, match="git"):
            await bench.call(MKDIR, path=path)


async def test_a_deep_one(bench: Workbench) -> None:
    path = "/".join(["d"] * 200)
    assert len((await bench.call(MKDIR, path=path)).result.directories) == 200
