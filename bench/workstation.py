# SPDX-License-Identifier: LGPL-2.1-or-later
"""The workstation: what its list and its typical calls take, confined, in a project of a thousand files."""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx2

from bench.load.wire import Wrong
from bench.scripts import Pipe
from mcpd.bus.client import connect
from tests.rig import Rig

if TYPE_CHECKING:
    from bench.figures import Report

SERVER: Final = "workstation"
DATA: Final = Path(__file__).parents[1] / "data/share/servers"
FILES: Final = 1000
LISTS: Final = 100
READS: Final = 500
CALLS: Final = 20
READ: Final = {"path": "small"}
TYPICAL: Final[dict[str, dict[str, Any]]] = {
    "filesystem_list": {"path": "."},
    "filesystem_search": {"pattern": "needle"},
    "filesystem_write": {"path": "written", "content": "x" * 1024},
    "filesystem_edit": {"path": "edited", "edits": [{"old_text": "old", "new_text": "old"}], "dry_run": True},
    "git_status": {"path": "."},
    "git_log": {"path": "."},
    "ci_detect": {"path": "."},
    "ci_test": {"path": "."},
}
"""Calls with their arguments; each may take five seconds."""


def measure(report: Report) -> None:
    """All of it, on a machine of its own: over the server's own pipe and through the bridge."""
    with Rig() as rig:
        os.environ.update(rig.environ)
        shutil.copytree(DATA / SERVER, rig.home / "system/usr/share/mcp/servers" / SERVER)
        _project(rig.home / "project")
        rig.start_daemon()
        rig.start_bridge()
        asyncio.run(_measure(rig, report))


def _project(root: Path) -> None:
    """A repository with a Makefile and many files, of which a few hold what is looked for."""
    for number in range(FILES):
        path = root / f"part{number % 20}" / f"file{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"line of file {number}\n" * 50 + ("a needle\n" if number % 100 == 0 else ""))
    (root / "small").write_text("x" * 1024)
    (root / "edited").write_text("something old\n")
    (root / "Makefile").write_text("test:\n\t@echo fine\n")
    git = ["git", "-C", str(root), "-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "All of it"]):
        subprocess.run([*git, *arguments], check=True)


async def _measure(rig: Rig, report: Report) -> None:
    async with connect(system=False) as bus:
        values: dict[str, Any] = {"roots": [str(rig.home / "project")], "rate": 10_000}
        # Root's sandbox allows no user namespaces, without which commands do not run beside a repository.
        values |= {"commands_write_git": True} if os.getuid() == 0 else {}
        await bus.manager.call("SetConfig", "sa{sv}a{sv}", [SERVER, values, {}])
        _, ends = await bus.spawn(SERVER)
        with closing(Pipe(ends[0], ends[1])) as pipe:
            pipe.open()
            _over_the_pipe(pipe, report)
    await _over_the_bridge(rig, report)


def _over_the_pipe(pipe: Pipe, report: Report) -> None:
    how = "one after the other, confined, over its own pipe"
    spent = [_taken(lambda: pipe.ask("tools/list", {})) for _ in range(LISTS)]
    report.add(f"tools/list, p95 of {SERVER}", _p95(spent), 100, "ms", f"{LISTS} {how}")
    spent = [_taken(lambda: _call(pipe, "filesystem_read", READ)) for _ in range(READS)]
    report.add("filesystem_read of 1 KiB, median", statistics.median(spent) * 1e3, 3, "ms", f"{READS} {how}")
    for name, arguments in TYPICAL.items():
        spent = [_taken(lambda: _call(pipe, name, arguments)) for _ in range(CALLS)]  # noqa: B023 - called at once
        report.add(f"{name}, p95", _p95(spent), 5000, "ms", f"{CALLS} {how}, {FILES} files")


async def _over_the_bridge(rig: Rig, report: Report) -> None:
    headers = {"Authorization": f"Bearer {rig.token}", "Accept": "application/json, text/event-stream"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:

        async def ask(method: str, params: dict[str, Any]) -> float:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            began = time.perf_counter()
            reply = await http.post(f"{rig.url}/mcp/{SERVER}", json=body)
            spent = time.perf_counter() - began
            if "result" not in reply.json():
                raise Wrong(reply.text)
            return spent

        read = {"name": "filesystem_read", "arguments": READ}
        await ask("tools/call", read)
        how = "one after the other"
        spent = [await ask("tools/list", {}) for _ in range(LISTS)]
        report.add(
            f"tools/list over the bridge, p95 of {SERVER}", _p95(spent), 100, "ms", f"{LISTS} one after the other"
        )
        spent = [await ask("tools/call", read) for _ in range(READS)]
        median = statistics.median(spent) * 1e3
        report.add("filesystem_read of 1 KiB over the bridge, median", median, 5, "ms", f"{READS} {how}")


def _call(pipe: Pipe, name: str, arguments: dict[str, Any]) -> None:
    result = pipe.ask("tools/call", {"name": name, "arguments": arguments})
    if result.get("isError"):
        raise Wrong(str(result))


def _taken(call: Any) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _p95(spent: list[float]) -> float:
    return statistics.quantiles(spent, n=100)[94] * 1e3
