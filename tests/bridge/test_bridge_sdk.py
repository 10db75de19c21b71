# SPDX-License-Identifier: LGPL-2.1-or-later
"""The official client against the bridge."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx2
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.bridge.bridge_harness import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.bridge.bridge_harness import Bridge


def text(result: Any) -> str:
    return str(result.content[0].text)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_T8_1_T8_2_a_whole_session(bridge: Bridge, mode: Any) -> None:
    async with Client(f"{bridge.url}/mcp/s", mode=mode) as client:
        assert client.protocol_version == ("2026-07-28" if mode == "auto" else "2025-11-25")
        assert "echo" in [tool.name for tool in (await client.list_tools()).tools]
        texts = [f"grüße {number}" for number in range(20)]
        results = await asyncio.gather(*(client.call_tool("echo", {"text": each}) for each in texts))
        assert [text(result) for result in results] == texts


async def test_T8_1_progress_and_elicitation(bridge: Bridge) -> None:
    seen: list[float] = []
    asked: list[str] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async def on_elicitation(context: Any, params: Any) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"answer": 42})

    async def on_sampling(context: Any, params: Any) -> types.CreateMessageResult:
        content = types.TextContent(type="text", text="sampled")
        return types.CreateMessageResult(role="assistant", content=content, model="none")

    async with Client(
        f"{bridge.url}/mcp/s", mode="legacy", elicitation_callback=on_elicitation, sampling_callback=on_sampling
    ) as client:
        result = await client.call_tool("progress", {"steps": 3}, progress_callback=on_progress)
        assert (text(result), seen) == ("done", [0, 1, 2])
        params: dict[str, Any] = {"message": "sure?", "requestedSchema": {"type": "object", "properties": {}}}
        result = await client.call_tool("ask", {"method": "elicitation/create", "params": params})
        assert '"answer": 42' in text(result)
        assert asked == ["sure?"]
        params = {"messages": [], "maxTokens": 1}
        result = await client.call_tool("ask", {"method": "sampling/createMessage", "params": params})
        assert "sampled" in text(result)


async def test_clients_with_sessions_of_their_own_do_not_mix(bridge: Bridge) -> None:
    async def one(name: str) -> None:
        async with Client(f"{bridge.url}/mcp/s", mode="legacy") as client:
            for number in range(15):
                assert text(await client.call_tool("echo", {"text": f"{name}{number}"})) == f"{name}{number}"

    await asyncio.gather(*(one(f"client{n}-") for n in range(6)))


async def test_the_official_client_with_a_token(start_bridge: Callable[..., Bridge], tmp_path: Path) -> None:
    from tests.bridge.bridge_harness import COMMAND

    token = tmp_path / "token"
    token.write_text("tok")
    token.chmod(0o600)
    bridge = start_bridge("--listen", "127.0.0.1:0", "--token-file", str(token), "--server", f"s={COMMAND}")
    async with (
        httpx2.AsyncClient(headers={"Authorization": "Bearer tok"}, trust_env=False, timeout=PATIENCE) as http,
        Client(streamable_http_client(f"{bridge.url}/mcp/s", http_client=http), mode="legacy") as client,
    ):
        assert text(await client.call_tool("echo", {"text": "in"})) == "in"
