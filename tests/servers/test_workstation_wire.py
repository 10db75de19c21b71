# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcp-workstation`` and clients that send what the SDK's does not, or read nothing."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers.workstation_harness import Desk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"roots": {}},
}
BIG = 4 * 1024 * 1024


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A root with a small and a big file."""
    made = Desk(tmp_path)
    (made.root / "file").write_text("file contents here")
    (made.root / "big").write_text("x" * BIG)
    return made


class Wire:
    """The program's stdin and stdout."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid, self._in, self._out = process.pid, process.stdin, process.stdout

    async def send(self, **message: Any) -> None:
        """Send one message."""
        self._in.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        await self._in.drain()

    async def call(self, number: int, name: str, arguments: dict[str, Any], **params: Any) -> None:
        """Send the call of a tool."""
        await self.send(id=number, method="tools/call", params={"name": name, "arguments": arguments, **params})

    async def receive(self) -> dict[str, Any]:
        """The next message."""
        found: dict[str, Any] = json.loads(await self._out.readline())
        return found

    async def answered(self, number: int) -> int:
        """How many of the next *number* messages hold a result."""
        found = 0
        for _ in range(number):
            found += b'"result":' in (await self._out.readline())
        return found

    async def opened(self) -> None:
        """Have it as clients before 2026-07-28 do."""
        about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        await self.send(id=0, method="initialize", params=about)
        await self.receive()
        await self.send(method="notifications/initialized")


@asynccontextmanager
async def started(desk: Desk, *arguments: str) -> AsyncIterator[Wire]:
    """The program, ended afterwards."""
    process = await asyncio.create_subprocess_exec(
        desk.command().command, *desk.command(*arguments).args, stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, env=desk.environ, limit=16 * 1024 * 1024,
    )  # fmt: skip
    try:
        yield Wire(process)
    finally:
        process.kill()
        await process.communicate()


@pytest.mark.parametrize("answer", [{}, {"roots": 5}, {"roots": [{"name": "x"}]}, {"uris": []}, [], None, 5])
async def test_an_answer_that_is_no_list_of_roots(desk: Desk, answer: Any) -> None:
    async with started(desk) as wire:
        await wire.call(1, "filesystem_read", {"path": "file"}, inputResponses={"roots": answer}, _meta=MODERN)
        error = (await wire.receive())["error"]
    assert error["code"] == -32602
    assert error["message"].startswith("Invalid params: inputResponses.roots: ")
    assert error["message"].endswith("; it is the result of roots/list")


async def test_others_are_answered_while_large_arguments_are_refused(desk: Desk) -> None:
    async with started(desk) as wire:
        await wire.opened()
        await wire.call(1, "filesystem_edit", {"path": "file", "edits": [0] * 2_500_000})
        await wire.call(2, "filesystem_read", {"path": "file"})
        found = {each["id"]: each for each in [await wire.receive(), await wire.receive()]}
    assert found[1]["error"]["code"] == -32602
    assert found[1]["error"]["message"].endswith('does not fit {"maxItems": 200}')
    assert found[2]["result"]["structuredContent"]["text"] == "file contents here"


async def test_answers_that_nobody_reads_are_not_made(desk: Desk) -> None:
    calls = 100
    async with started(desk, "--rate", "1000") as wire:
        await wire.opened()
        for number in range(calls):
            await wire.call(number, "filesystem_read", {"path": "big", "max_bytes": 2 * BIG})
        done = 0
        # Until no more calls end: they do so one after the other as long as there is room.
        while (now := len(desk.audit) if (desk.state / "audit.jsonl").exists() else 0) > done or not now:
            done = now
            await asyncio.sleep(1)
        assert done < calls / 2
        assert await wire.answered(calls) == calls
    assert [line["ok"] for line in desk.audit] == [True] * calls


SERVING = """
import gc
from mcpd.servers import sdk
from mcpd.servers.workstation import server

async def serve(*_, **__):
    print(gc.get_freeze_count() > 10_000)
    return 0

sdk.serve = serve
server.main(["--state", "~/state"])
"""


async def test_what_was_imported_is_not_gone_through_again(desk: Desk) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVING, stdout=asyncio.subprocess.PIPE, cwd=desk.directory, env=desk.environ
    )
    said, _ = await process.communicate()
    assert said.decode() == "True\n"
