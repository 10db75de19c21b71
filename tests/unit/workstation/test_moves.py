# SPDX-License-Identifier: LGPL-2.1-or-later
"""Directories and symlinks stay where they are while commands work in the roots."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import Busy, McpdError, TimedOut
from mcpd.servers.workstation.filesystem.moving import DELETE, MOVE
from mcpd.servers.workstation.tools import TOOLS
from tests.unit.workstation.git_parts import MadeRepository

if TYPE_CHECKING:
    from mcpd.servers.workstation.tool import Tool
    from tests.unit.workstation.bench import Workbench

pytestmark = pytest.mark.process

NAMED = {tool.name: tool for tool in TOOLS}
WORKING = [name for name in NAMED if name.startswith(("git_", "ci_"))]


@pytest.mark.parametrize("kept", ["group/p", "link"])
@pytest.mark.parametrize(("tool", "arguments"), [(MOVE, {"destination": "y"}), (DELETE, {})], ids=["move", "delete"])
async def test_a_directory_or_symlink_stays_where_it_is_while_a_build_runs(
    bench: Workbench, tool: Tool, arguments: dict[str, Any], kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build would find the repository where it is not read-only for it, and git would write through the symlink."""
    monkeypatch.setattr("mcpd.servers.workstation.moves.PATIENCE", 0.1)
    MadeRepository.make(bench.root / "group/p").commit(files={"f": "1"})
    source = "source" if tool is MOVE else "path"
    (bench.root / "link").symlink_to("group/p/.git")
    (bench.root / "file").write_text("")
    (bench.root / "b").mkdir()
    (bench.root / "b/Makefile").write_text("all:\n\ttouch started\n\twhile [ ! -e go ]; do sleep 0.05; done\n")
    build = asyncio.create_task(bench.call(NAMED["ci_build"], path="b"))
    while not (bench.root / "b/started").exists():
        assert not build.done()
        await asyncio.sleep(0.01)
    with pytest.raises(Busy, match=r"is not a file, and stays where it is while"):
        await bench.call(tool, **{source: kept, **arguments})
    assert (bench.root / kept).is_dir()
    await bench.call(tool, **{source: "file", **arguments})
    assert not (bench.root / "file").exists()
    (bench.root / "y").unlink(missing_ok=True)
    (bench.root / "b/go").touch()
    await build
    await bench.call(tool, **{source: kept, **arguments})
    assert not os.path.lexists(bench.root / kept)


async def test_a_lock_that_cannot_be_opened_is_named(bench: Workbench) -> None:
    (bench.settings.state / "moves.lock").mkdir()
    with pytest.raises(McpdError, match=r"moves\.lock"):
        await NAMED["git_status"].run(bench.new_call(), None)


@pytest.mark.parametrize("name", WORKING)
async def test_git_and_builds_wait_until_a_directory_has_been_moved(bench: Workbench, name: str) -> None:
    with (bench.settings.state / "moves.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        call = bench.new_call(seconds=0.2)
        began = time.monotonic()
        with pytest.raises(TimedOut):
            await NAMED[name].run(call, None)
        assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("git_checkout", {"revision": "other"}),
        ("git_stash", {"action": "push"}),
        ("git_stash", {"action": "apply"}),
        ("git_stash", {"action": "pop"}),
    ],
    ids=["checkout", "push", "apply", "pop"],
)
async def test_git_writes_no_files_while_a_build_runs(
    bench: Workbench, name: str, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build could exchange a directory for a symlink to .git/hooks, through which git would write."""
    monkeypatch.setattr("mcpd.servers.workstation.moves.PATIENCE", 0.1)
    made = MadeRepository.make(bench.root / "p")
    made.commit(files={"f": "1"})
    made.git("branch", "other")
    made.write("f", "2")
    if arguments.get("action") in {"apply", "pop"}:
        made.git("stash")
    (bench.root / "b").mkdir()
    (bench.root / "b/Makefile").write_text("all:\n\ttouch started\n\twhile [ ! -e go ]; do sleep 0.05; done\n")
    build = asyncio.create_task(bench.call(NAMED["ci_build"], path="b"))
    while not (bench.root / "b/started").exists():
        assert not build.done()
        await asyncio.sleep(0.01)
    before = made.git("rev-parse", "--symbolic-full-name", "HEAD"), made.git("stash", "list"), made.status()
    await bench.call(NAMED["git_status"], path="p")
    with pytest.raises(Busy, match="a command of a ci tool runs"):
        await bench.call(NAMED[name], path="p", **arguments)
    assert (made.git("rev-parse", "--symbolic-full-name", "HEAD"), made.git("stash", "list"), made.status()) == before
    (bench.root / "b/go").touch()
    await build
    await bench.call(NAMED[name], path="p", **arguments)
    after = made.git("rev-parse", "--symbolic-full-name", "HEAD"), made.git("stash", "list"), made.status()
    assert after != before


@pytest.mark.parametrize("name", [name for name in WORKING if name.startswith("ci_")])
async def test_builds_wait_until_git_has_written_its_files(bench: Workbench, name: str) -> None:
    with (bench.settings.state / "builds.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        began = time.monotonic()
        with pytest.raises(TimedOut):
            await NAMED[name].run(bench.new_call(seconds=0.2), None)
        assert time.monotonic() - began >= 0.2
