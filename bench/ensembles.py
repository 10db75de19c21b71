# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ensembles: what the engine takes for each agent, and what lists take with many ensembles and runs; confined."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.load.wire import Wrong
from bench.scripts import Pipe
from mcpd.bus.client import connect
from tests.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.figures import Report

SERVER: Final = "llm-orc"
DATA: Final = Path(__file__).parents[1] / "data/share"
AGENTS: Final = 1000
ENSEMBLES: Final = 500
ARTIFACTS: Final = 10_000
RUNS: Final = 10
LISTS: Final = 100
SPLIT: Final = f"""\
import json, sys
json.dump({{"success": True, "data": list(range({AGENTS}))}}, sys.stdout)
"""
FAN_OUT: Final = """\
name: fan-out
max_concurrent: 64
agents:
  - {name: split, script: scripts/split.py}
  - {name: each, model: m, provider: mock, depends_on: [split], fan_out: true}
"""


def measure(report: Report) -> None:
    """All of it, on a machine of its own, over the server's own pipe."""
    with Rig() as rig:
        os.environ.update(rig.environ)
        vendor = rig.home / "system/usr/share/mcp"
        shutil.copytree(DATA / "servers" / SERVER, vendor / "servers" / SERVER)
        shutil.copytree(DATA / "ensembles", vendor / "ensembles")
        _project(rig.home / "few", 1, 0)
        _project(rig.home / "many", ENSEMBLES, ARTIFACTS)
        rig.start_daemon()
        asyncio.run(_measure(rig, report))


def _project(root: Path, ensembles: int, artifacts: int) -> None:
    """A project with so many ensembles, and runs of them."""
    base = root / ".llm-orc"
    for name in ("ensembles", "scripts", "artifacts"):
        (base / name).mkdir(parents=True)
    (base / "scripts/split.py").write_text(SPLIT)
    (base / "ensembles/fan-out.yaml").write_text(FAN_OUT)
    for number in range(1, ensembles):
        text = FAN_OUT.replace("fan-out", f"ensemble{number}") + f"description: ensemble number {number}\n"
        (base / f"ensembles/ensemble{number}.yaml").write_text(text)
    for number in range(artifacts):
        directory = base / f"artifacts/ensemble{number % ensembles}/20260101-{number // 1000:06}-{number % 1000:03}"
        directory.mkdir(parents=True)
        run = {
            "ensemble": f"ensemble{number % ensembles}",
            "status": "completed",
            "input": "x",
            "results": {"split": {"response": "[]", "status": "success"}},
            "metadata": {"started_at": 1.0, "completed_at": 2.0, "duration": "1.00s", "agents_used": 1},
        }
        (directory / "execution.json").write_text(json.dumps(run))


async def _measure(rig: Rig, report: Report) -> None:
    async with connect(system=False) as bus:
        await bus.manager.call("SetConfig", "sa{sv}a{sv}", [SERVER, {"projects": [str(rig.home / "few")]}, {}])
        session, ends = await bus.spawn(SERVER)
        process = (await bus.session(session).properties())["Pid"]
        with closing(Pipe(ends[0], ends[1])) as pipe:
            pipe.open()
            _runs(pipe, process, report)
        await bus.manager.call("SetConfig", "sa{sv}a{sv}", [SERVER, {"projects": [str(rig.home / "many")]}, {}])
        for what in ("the first process that sees them", "the next"):
            _, ends = await bus.spawn(SERVER)
            with closing(Pipe(ends[0], ends[1])) as pipe:
                pipe.open()
                first = _taken(lambda: pipe.ask("resources/list", {})) * 1e3
                spent = [_taken(lambda: pipe.ask("resources/list", {})) for _ in range(LISTS)]
                p95 = statistics.quantiles(spent, n=100)[94] * 1e3
                how = f"{ENSEMBLES} ensembles, {ARTIFACTS} runs, {what}"
                report.add("resources/list, p95 of llm-orc", p95, 50, "ms", f"{LISTS} one after the other; {how}")
                if what == "the next":
                    report.add("resources/list of llm-orc, the first of a process", first, 50, "ms", how)


def _runs(pipe: Pipe, process: int, report: Report) -> None:
    """Fan out over a thousand agents, again and again, in what the session's *process* has started."""
    arguments = {"ensemble_name": "fan-out", "input": "go"}
    spent, sizes = [], []
    for _ in range(RUNS):
        began = time.perf_counter()
        result = pipe.ask("tools/call", {"name": "invoke", "arguments": arguments})
        spent.append(time.perf_counter() - began)
        if result.get("isError"):
            raise Wrong(str(result)[:2000])
        sizes.append(_memory(process))
    how = f"{RUNS} runs of a script and {AGENTS} instances of a mock model, confined, artifacts and all"
    report.add(f"a fan-out over {AGENTS} agents, the slowest", max(spent), 5, "s", how)
    report.add("the engine, per agent", statistics.median(spent) / AGENTS * 1e3, 2, "ms", how)
    grown = sizes[-1] - sizes[2]
    report.add("what its memory grows by in the last runs", grown, 16, "MiB", f"{how}; {sizes[-1]:.0f} MiB in all")


def _memory(process: int) -> float:
    """MiB of the server: of *process* and what it has started, a sandbox and keepers among that, the largest."""
    return max(map(_resident, _started(process))) / 1024


def _started(process: int) -> Iterator[int]:
    """*process* and all below it."""
    yield process
    for task in Path(f"/proc/{process}/task").iterdir():
        with suppress(OSError):
            for child in (task / "children").read_text().split():
                yield from _started(int(child))


def _resident(process: int) -> int:
    """KiB of *process* in memory, none if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    return 0


def _taken(call: Any) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
