# SPDX-License-Identifier: LGPL-2.1-or-later
"""Agents that are tools of installed servers: what is asked of the bridge, and what becomes of its answer."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from mcpd import paths
from mcpd.errors import LimitExceeded, McpdError, NotAuthorized, ServiceUnavailable
from mcpd.servers.ensembles.agents.tool_calls import ServerTools
from mcpd.servers.ensembles.engine.types import MAX_RESPONSE
from mcpd.servers.others import Others

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Bridge:
    """Answers every call with *result*, or what else there is to say."""

    def __init__(self, **said: Any) -> None:
        self.said = said
        self.heads: list[str] = []
        self.asked: list[dict[str, Any]] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next(int(line.split(":")[1]) for line in head.splitlines() if line.startswith("content-length"))
        self.heads.append(head)
        self.asked.append(json.loads(await reader.readexactly(length)))
        body = json.dumps({"jsonrpc": "2.0", "id": 1, **self.said}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n")
        writer.write(b"content-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    @asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[dict[str, str]]:
        """Be there at *path*; the variables of a server that may call others."""
        async with await asyncio.start_unix_server(self.answer, path):
            yield {"MCPD_SOCKET": str(path), "MCPD_SOCKET_TOKEN": "sesame"}


async def said(tmp_path: Path, **answer: Any) -> str:
    """The response to a call that the bridge answers like that."""
    async with Bridge(**answer).listening(tmp_path / "b.sock") as environ:
        return await ServerTools(Others("llm-orc", 30, environ)).call("far", "look", {"at": 1})


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


IMAGE = {"type": "image", "data": "AAAA", "mimeType": "image/png"}


@pytest.mark.parametrize(
    ("result", "response"),
    [
        ({"structuredContent": {"a": "ü"}, "content": [text("same")]}, '{"a": "ü"}'),
        ({"content": [text("one"), text("two")]}, "one\ntwo"),
        ({"content": []}, ""),
        ({}, ""),
        ({"content": [text("one"), IMAGE]}, json.dumps([text("one"), IMAGE])),
        ({"content": [text("half \ud800")]}, "half ?"),
    ],
    ids=["structured", "texts", "empty", "nothing", "image", "surrogate"],
)
async def test_the_result_is_the_response(tmp_path: Path, result: dict[str, Any], response: str) -> None:
    assert await said(tmp_path, result=result) == response


async def test_the_request_says_who_asks_what_and_through_how_many(tmp_path: Path) -> None:
    bridge = Bridge(result={"content": []})
    async with bridge.listening(tmp_path / "b.sock") as environ:
        await ServerTools(Others("llm-orc", 30, environ), hops=3).call("far", "look", {"at": 1})
    (asked,), (head,) = bridge.asked, bridge.heads
    assert head.startswith("post /mcp/far ")
    assert "authorization: bearer sesame" in head
    params = asked["params"]
    assert (asked["method"], params["name"], params["arguments"]) == ("tools/call", "look", {"at": 1})
    assert params["_meta"]["org.mcpd/hops"] == 3


async def test_a_failure_has_the_servers_own_words(tmp_path: Path) -> None:
    with pytest.raises(McpdError, match=r"tool look of server far: no luck") as caught:
        await said(tmp_path, result={"isError": True, "content": [text("no luck")]})
    assert caught.value.data == {"server": "far", "tool": "look"}
    with pytest.raises(McpdError, match="no such tool"):
        await said(tmp_path, error={"code": -32602, "message": "no such tool"})
    with pytest.raises(McpdError, match="asks its user"):
        await said(tmp_path, result={"resultType": "input_required", "inputRequests": {}})


@pytest.mark.parametrize("title", ["Internal error", "Invalid params", "Method not found"])
async def test_it_has_no_title_of_a_code(tmp_path: Path, title: str) -> None:
    with pytest.raises(McpdError) as caught:
        await said(tmp_path, error={"code": -32603, "message": f"{title}: {title}: it is full"})
    assert caught.value.message == f"tool look of server far: {title}: it is full"
    with pytest.raises(McpdError) as caught:
        await said(tmp_path, result={"isError": True, "content": [text(f"so: {title}: it is full")]})
    assert caught.value.message == f"tool look of server far: so: {title}: it is full"


async def test_an_answer_without_measure_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LimitExceeded, match="more than 4 MiB"):
        await said(tmp_path, result={"content": [text("x" * (MAX_RESPONSE + 1))]})


async def test_numbers_that_are_none_are_refused(tmp_path: Path) -> None:
    body = b'{"jsonrpc": "2.0", "id": 1, "result": {"structuredContent": {"a": 1e999}}}'

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        await writer.drain()
        writer.close()

    path = tmp_path / "b.sock"
    async with await asyncio.start_unix_server(answer, path):
        environ = {"MCPD_SOCKET": str(path), "MCPD_SOCKET_TOKEN": "sesame"}
        with pytest.raises(McpdError, match="cannot be written as JSON"):
            await ServerTools(Others("llm-orc", 30, environ)).call("far", "look", {})


async def test_without_the_permission_the_error_says_where_to_grant_it() -> None:
    others = Others("llm-orc", 30, {}, grant='"permissions" of its manifest')
    with pytest.raises(NotAuthorized, match=r'permission mcp:far, in "permissions" of its manifest'):
        await ServerTools(others).call("far", "look", {})


async def test_alone_it_calls_through_the_users_own_bridge_as_the_user(tmp_path: Path) -> None:
    bridge = Bridge(result={"content": [text("hello")]})
    path = tmp_path / "bridge.sock"
    async with bridge.listening(path):
        assert await ServerTools(Others("llm-orc", 30, {}, bridge=path)).call("far", "look", {}) == "hello"
    assert "authorization" not in bridge.heads[0]
    path.unlink(missing_ok=True)
    with pytest.raises(ServiceUnavailable, match=r"bridge\.sock: .*systemctl --user start mcpd-bridge\.socket"):
        await ServerTools(Others("llm-orc", 30, {}, bridge=path)).call("far", "look", {})


async def test_many_calls_at_once(tmp_path: Path) -> None:
    async with Bridge(result={"content": [text("one")]}).listening(tmp_path / "b.sock") as environ:
        tools = ServerTools(Others("llm-orc", 60, environ))
        assert await asyncio.gather(*(tools.call("far", "look", {}) for _ in range(20))) == ["one"] * 20


async def test_the_servers_are_known_where_they_can_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await ServerTools(Others("llm-orc", 30, {})).servers() is None
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "MCP_ROOT"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    vendor = tmp_path / "vendor"
    monkeypatch.setenv("MCP_VENDOR_DIR", str(vendor))
    (vendor / "com.example.far").mkdir(parents=True)
    manifest = {"id": "com.example.far", "version": "1", "transport": {"type": "stdio", "command": "far"}}
    (vendor / "com.example.far/manifest.json").write_text(json.dumps(manifest))
    tools = ServerTools(Others("llm-orc", 30, {}), paths=paths.from_environment())
    assert await tools.servers() == ["com.example.far"]


async def test_of_what_a_server_says_of_a_failure_the_beginning_is_told(tmp_path: Path) -> None:
    for answer in (
        {"error": {"code": 1, "message": "x" * 9000}},
        {"result": {"isError": True, "content": [text("x" * 9000)]}},
    ):
        with pytest.raises(McpdError) as caught:
            await said(tmp_path, **answer)
        assert caught.value.message == f"tool look of server far: {'x' * 2000}"
