# SPDX-License-Identifier: LGPL-2.1-or-later
"""The official client in revision 2026-07-28 against the bridge."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import mcp_types as types
import pytest
from mcp import Client, MCPError

from tests.bridge.bridge_harness import bridges
from tests.bridge.modern_client import MODERN, command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bridge.bridge_harness import Bridge


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    servers = [f"{name}={command(*name.split('-'))}" for name in ("handshake", "modern", "handshake-modern")]
    arguments = [part for server in servers for part in ("--server", server)]
    with bridges(tmp_path_factory) as start:
        yield start("--listen", "127.0.0.1:0", "--auth", "none", *arguments)


@pytest.fixture(params=["handshake", "modern", "handshake-modern"])
def url(bridge: Bridge, request: pytest.FixtureRequest) -> str:
    return f"{bridge.url}/mcp/{request.param}"


def text(result: Any) -> str:
    return str(result.content[0].text)


@pytest.mark.parametrize("mode", ["auto", MODERN])
async def test_T8_1_T8_2_a_whole_session(url: str, mode: Any) -> None:
    async with Client(url, mode=mode) as client:
        assert client.protocol_version == MODERN
        assert "echo" in [tool.name for tool in (await client.list_tools()).tools]
        texts = [f"grüße {number}" for number in range(20)]
        results = await asyncio.gather(*(client.call_tool("echo", {"text": each}) for each in texts))
        assert [text(result) for result in results] == texts


async def test_T8_1_headers_of_arguments(url: str) -> None:
    async with Client(url, mode=MODERN) as client:
        await client.list_tools(cursor="2")
        arguments = {"region": "Hello, 世界", "count": -7, "deep": {"sure": True}}
        result = await client.call_tool("headed", arguments)
        assert result.structured_content is not None
        assert result.structured_content["arguments"] == arguments


async def test_T8_1_progress_and_questions(url: str) -> None:
    seen: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async def on_elicitation(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"answer": 42})

    async def on_sampling(context: Any, params: Any) -> types.CreateMessageResult:
        content = types.TextContent(type="text", text="sampled")
        return types.CreateMessageResult(role="assistant", content=content, model="none")

    callbacks: dict[str, Any] = {"elicitation_callback": on_elicitation, "sampling_callback": on_sampling}
    async with Client(url, mode=MODERN, **callbacks) as client:
        result = await client.call_tool("progress", {"steps": 3}, progress_callback=on_progress)
        assert (text(result), seen) == ("done", [0, 1, 2])
        assert '"answer": 42' in text(await client.call_tool("ask", {"method": "elicitation/create"}))
        params = {"messages": [], "maxTokens": 1}
        result = await client.call_tool("ask", {"method": "sampling/createMessage", "params": params})
        assert "sampled" in text(result)


async def test_T8_1_what_the_client_did_not_declare(bridge: Bridge) -> None:
    async with Client(f"{bridge.url}/mcp/handshake", mode=MODERN) as client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool("ask", {"method": "elicitation/create"})
        assert caught.value.code == -32021


async def test_T8_1_changes_are_heard(url: str) -> None:
    async with Client(url, mode=MODERN) as client, client.listen(tools_list_changed=True) as events:
        await client.call_tool("change", {})
        async for event in events:
            assert type(event).__name__ == "ToolsListChanged"
            break
