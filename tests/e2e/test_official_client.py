# SPDX-License-Identifier: LGPL-2.1-or-later
"""The official SDK client in handshake mode against an installed server, over every transport."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.mcp_results import first_text
from tests.rig import BIN, PATIENCE

if TYPE_CHECKING:
    from tests.rig import Rig

SERVER = "com.example.echo"


async def check(client: Client) -> None:
    """Negotiate, list and call."""
    async with client:
        assert client.protocol_version == "2025-11-25"
        assert [tool.name for tool in (await client.list_tools()).tools] == ["echo"]
        result = await client.call_tool("echo", {"text": "grüß Gott"})
        assert first_text(result) == "grüß Gott"


async def test_over_mcpctl_run(installed: Rig) -> None:
    command = StdioServerParameters(
        command=str(BIN / "mcpctl"), args=["--user", "run", SERVER], env=installed.environ
    )  # fmt: skip
    await check(Client(command, mode="legacy"))


async def test_over_http_with_the_token(installed: Rig) -> None:
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {installed.token}"}, timeout=PATIENCE) as http:
        await check(Client(streamable_http_client(f"{installed.url}/mcp/{SERVER}", http_client=http), mode="legacy"))


async def test_over_the_unix_socket(installed: Rig) -> None:
    transport = httpx2.AsyncHTTPTransport(uds=os.fspath(installed.socket))
    async with httpx2.AsyncClient(transport=transport, timeout=PATIENCE) as http:
        await check(Client(streamable_http_client(f"http://localhost/mcp/{SERVER}", http_client=http), mode="legacy"))


async def test_without_the_token_nothing_is_served(installed: Rig) -> None:
    async with httpx2.AsyncClient(timeout=PATIENCE) as http:
        reply = await http.post(f"{installed.url}/mcp/{SERVER}", json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
    assert reply.status_code == 401
