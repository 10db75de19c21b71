# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpd-bridge: right answers when everybody uses the same JSON-RPC ids, and the time of a call beside other bridges."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from typing import TYPE_CHECKING, Any

import httpx2

from bench.load import compare
from bench.servers import ECHO, put_server
from tests.rig import Rig

if TYPE_CHECKING:
    from bench.figures import Report

ROUNDS = 250
CLIENTS = 8
SAME_ID = 4
HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


class Session:
    """One MCP session of revision 2025-11-25 with the server ``echo``."""

    def __init__(self, http: httpx2.AsyncClient, url: str) -> None:
        self._http = http
        self._url = url
        self._headers = dict(HEADERS)

    async def open(self) -> None:
        """Do the handshake."""
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        reply = await self._post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        self._headers |= {"Mcp-Session-Id": reply.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-11-25"}
        await self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def echo(self, message_id: int, text: str) -> bool:
        """Call the tool; whether the answer is the one to this call."""
        params = {"name": "echo", "arguments": {"text": text}}
        reply = await self._post({"jsonrpc": "2.0", "id": message_id, "method": "tools/call", "params": params})
        body = reply.json()
        return bool(body["id"] == message_id and body["result"]["content"][0]["text"] == text)

    async def _post(self, message: dict[str, Any]) -> httpx2.Response:
        reply = await self._http.post(self._url, json=message, headers=self._headers)
        reply.raise_for_status()
        return reply


def measure(report: Report) -> None:
    """Call one server in many ways, then compare with other bridges."""
    with Rig() as rig:
        put_server(rig.installed, "echo", {"server.py": ECHO})
        rig.start_daemon()
        rig.start_bridge()
        asyncio.run(same_ids(rig, report))
    compare.measure(report)


async def same_ids(rig: Rig, report: Report) -> None:
    """One session with four calls in flight under one id, then eight clients with the same ids."""
    texts = map(str, itertools.count())
    limits = httpx2.Limits(max_connections=64)
    async with httpx2.AsyncClient(
        headers={"Authorization": f"Bearer {rig.token}"}, timeout=30, limits=limits, trust_env=False
    ) as http:
        first = Session(http, f"{rig.url}/mcp/echo")
        await first.open()
        right = [
            answer
            for _ in range(ROUNDS)
            for answer in await asyncio.gather(*(first.echo(7, next(texts)) for _ in range(SAME_ID)))
        ]
        report.add(
            "wrong answers, 4 calls in flight under one id",
            right.count(False),
            0,
            "",
            f"{len(right):,} calls, 1 session",
        )
        sessions = [Session(http, f"{rig.url}/mcp/echo") for _ in range(CLIENTS)]
        await asyncio.gather(*(session.open() for session in sessions))
        right = [
            answer
            for number in range(ROUNDS)
            for answer in await asyncio.gather(*(session.echo(number, next(texts)) for session in sessions))
        ]
        report.add("wrong answers, 8 clients with the same ids", right.count(False), 0, "", f"{len(right):,} calls")
        times = []
        for _ in range(500):
            began = time.perf_counter()
            await first.echo(1, "x")
            times.append(time.perf_counter() - began)
    report.add(
        "a call over the bridge", statistics.median(times) * 1e3, 10, "ms", "with the client's own time (httpx2)"
    )
