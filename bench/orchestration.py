# SPDX-License-Identifier: LGPL-2.1-or-later
"""Signed configurations: what the tools of ``mcp-orchestration`` take, one at a time and a hundred at once."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

from bench.load.wire import Wrong
from bench.scripts import Pipe
from bench.servers import put_many
from mcpd.bus.client import connect
from tests.rig import Rig

if TYPE_CHECKING:
    from bench.figures import Report

SERVER = "mcp-orchestration"
INSTALLED = 30
TOGETHER = 100
ROUNDS = 5
CALLS = 200
DATA = Path(__file__).parents[1] / "data/share/servers"
WHO = {"client_id": "claude-desktop", "profile_id": "default"}
LIMITS = {"get_config": 300.0, "list_clients": 200.0, "list_profiles": 200.0, "diff_config": 200.0}
"""Milliseconds, 95 of 100 calls."""
WARM = {"get_config": 20.0, "validate_config": 100.0}
"""The same of calls one after the other, where it is another."""


def measure(report: Report) -> None:
    """All of it, on a machine of its own: over the server's own pipe and through the bridge."""
    with Rig() as rig:
        os.environ.update(rig.environ)
        shutil.copytree(DATA / SERVER, rig.home / "system/usr/share/mcp/servers" / SERVER)
        rig.installed.mkdir(parents=True)
        put_many(rig.installed, INSTALLED)
        rig.start_daemon()
        rig.start_bridge()
        asyncio.run(_pipe(report))
        asyncio.run(_bridge(rig, report))


async def _pipe(report: Report) -> None:
    async with connect(system=False) as bus:
        _, ends = await bus.spawn(SERVER)
        with closing(Pipe(ends[0], ends[1])) as pipe:
            pipe.open()
            _measure(pipe, report)


def _measure(pipe: Pipe, report: Report) -> None:
    artifact = _content(pipe.ask("tools/call", {"name": "publish_config", "arguments": WHO}))["artifact_id"]
    calls = _calls(artifact)
    for name, arguments in calls.items():
        spent = []
        for _ in range(CALLS):
            began = time.perf_counter()
            _content(pipe.ask("tools/call", {"name": name, "arguments": arguments}))
            spent.append(time.perf_counter() - began)
        how = f"{CALLS} calls one after the other, confined, over its own pipe, {INSTALLED} servers installed"
        report.add(f"{name}, p95", _p95(spent), WARM.get(name, 200.0), "ms", how)
    for name, limit in LIMITS.items():
        spent = [each for _ in range(ROUNDS) for each in _together(pipe, name, calls[name])]
        how = f"{ROUNDS} times {TOGETHER} calls sent at once, each until its own answer"
        report.add(f"{name}, {TOGETHER} at once, p95", _p95(spent), limit, "ms", how)


def _together(pipe: Pipe, name: str, arguments: dict[str, Any]) -> list[float]:
    """How long each of many calls takes that are sent before the first is answered."""
    sent: dict[int, float] = {}
    for identity in range(TOGETHER):
        sent[identity] = time.perf_counter()
        pipe.tell("tools/call", {"name": name, "arguments": arguments}, identity)
    spent = []
    while sent:
        message = pipe.next()
        if (identity := message.get("id")) is not None:
            _content(message["result"])
            spent.append(time.perf_counter() - sent.pop(identity))
    return spent


async def _bridge(rig: Rig, report: Report) -> None:
    headers = {"Authorization": f"Bearer {rig.token}", "Accept": "application/json, text/event-stream"}
    limits = httpx2.Limits(max_connections=TOGETHER, max_keepalive_connections=TOGETHER)
    async with httpx2.AsyncClient(headers=headers, limits=limits, timeout=60) as http:

        async def ask(name: str, arguments: dict[str, Any]) -> float:
            params = {"name": name, "arguments": arguments}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            began = time.perf_counter()
            reply = await http.post(f"{rig.url}/mcp/{SERVER}", json=body)
            spent = time.perf_counter() - began
            _content(reply.json()["result"])
            return spent

        await asyncio.gather(*(ask("get_config", WHO) for _ in range(TOGETHER)))
        spent = [
            each
            for _ in range(ROUNDS)
            for each in await asyncio.gather(*(ask("get_config", WHO) for _ in range(TOGETHER)))
        ]
        how = f"{ROUNDS} times {TOGETHER} connections of one client, whose own time is in it"
        report.add(f"get_config, {TOGETHER} at once over the bridge, p95", _p95(spent), 300, "ms", how)


def _calls(artifact: str) -> dict[str, dict[str, Any]]:
    return {
        "get_config": WHO,
        "list_clients": {},
        "list_profiles": {"client_id": WHO["client_id"]},
        "diff_config": {**WHO, "local_artifact_id": artifact},
        "validate_config": WHO,
    }


def _content(result: dict[str, Any]) -> dict[str, Any]:
    if result.get("isError"):
        raise Wrong(json.dumps(result))
    found: dict[str, Any] = result["structuredContent"]
    return found


def _p95(spent: list[float]) -> float:
    return statistics.quantiles(spent, n=100)[94] * 1e3
