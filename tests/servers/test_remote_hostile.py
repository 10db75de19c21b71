# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpd-remote`` and remote servers that are down, broken or hostile: an error for the request, and it goes on."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers.remote_harness import (
    MODERN,
    PATIENCE,
    Asked,
    answer,
    call,
    handshake,
    remote,
    request,
    scripted,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.remote_harness import Client

SECRET = "s3cr3t-value"
JSON = "application/json"


async def fault(client: Client, identity: object = 1, method: str = "x") -> str:
    """What the error says that answers a request; it never holds the secret."""
    found = await client.ask(request(method, identity))
    assert found["id"] == identity
    assert found["error"]["code"] in {-32603, -32000}
    assert SECRET not in json.dumps(found)
    return str(found["error"]["message"])


async def still_works(client: Client) -> None:
    assert (await client.ask(request("works", "later")))["result"] == {"fine": True}


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


async def respond(asked: Asked) -> None:  # noqa: PLR0912, C901 - one line for each way to misbehave
    message = asked.message if asked.method == "POST" else {}
    identity, method = message.get("id"), message.get("method")
    if method == "works":
        await asked.json(answer(identity, {"fine": True}))
    elif method == "500":
        await asked.reply(500, "<h1>oops</h1>", Content_Type="text/html")
    elif method == "500 with an error":
        body = {"jsonrpc": "2.0", "id": None, "error": {"code": -32603, "message": "theirs", "data": [1]}}
        await asked.reply(500, json.dumps(body), Content_Type=JSON)
    elif method == "no JSON":
        await asked.reply(200, b"\xff\xfe nonsense", Content_Type=JSON)
    elif method == "no message":
        await asked.json({"hello": "world"})
    elif method == "NaN":
        await asked.reply(200, '{"jsonrpc":"2.0","id":1,"result":NaN}', Content_Type=JSON)
    elif method == "deep":
        await asked.reply(200, "[" * 200_000, Content_Type=JSON)
    elif method == "another id":
        await asked.json(answer("somebody else's", {}))
    elif method == "html":
        await asked.reply(200, "<h1>Welcome</h1>", Content_Type="text/html")
    elif method == "nothing":
        await asked.reply(202)
    elif method == "no HTTP":
        await asked.write(b"SSH-2.0-OpenSSH_9.9\r\n")
    elif method == "cut":
        await asked.write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n{")
    elif method == "events cut":
        await asked.events()
        await asked.event({"jsonrpc": "2.0", "method": "notifications/n"})
    elif method == "events garbage":
        await asked.events()
        await asked.write("data: {nonsense\n\n")
    elif method == "gzip":
        await asked.reply(200, gzip.compress(b" " * 10**6), Content_Type=JSON, Content_Encoding="gzip")
    elif method == "huge":
        await asked.write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
        for _ in range(70):
            await asked.write(b" " * 2**20)
    elif method == "huge event":
        await asked.events()
        await asked.write("data: ")
        for _ in range(70):
            await asked.write(b"x" * 2**20)
    elif method == "loop":
        await asked.reply(307, Location="/mcp")
    elif method == "moved":
        await asked.reply(301, Location="/elsewhere")


WAYS = {
    "500": "HTTP 500",
    "no JSON": "no message",
    "no message": "no message",
    "NaN": "NaN",
    "deep": "no message",
    "another id": "another request",
    "html": "text/html",
    "nothing": "HTTP 202",
    "no HTTP": "cannot be reached",
    "cut": "cannot be reached",
    "events garbage": "no message",
    "gzip": "compressed",
    "huge": "over 67108864 bytes",
    "huge event": "67108864",
    "loop": "redirects more than",
    "moved": "drop the message",
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_broken_answer_is_an_error_for_its_request_only(tmp_path: Path, way: str) -> None:
    key = {"key": "X-Key", "sensitive": True, "target": "header"}
    async with (
        scripted(handshake(respond)) as server,
        remote(tmp_path, server.transport, configurableProperties=[key], config={"X-Key": SECRET}) as client,
    ):
        await client.greet()
        said = await fault(client, 1, way)
        assert WAYS[way] in said
        assert server.transport["url"] in said
        await still_works(client)
        assert SECRET not in client.log.read_text()


async def test_an_answer_that_breaks_off_is_an_error(tmp_path: Path) -> None:
    async with scripted(handshake(respond)) as server, remote(tmp_path, server.transport) as client:
        await client.greet()
        await client.send(request("events cut", 4))
        assert (await client.receive())["method"] == "notifications/n"
        found = await client.receive()
        assert (found["id"], "before the answer" in found["error"]["message"]) == (4, True)
        await still_works(client)


async def test_an_error_in_the_body_of_a_refusal_is_the_answer(tmp_path: Path) -> None:
    async with scripted(handshake(respond)) as server, remote(tmp_path, server.transport) as client:
        await client.greet()
        found = await client.ask(request("500 with an error", 3))
        assert found == {"jsonrpc": "2.0", "id": 3, "error": {"code": -32603, "message": "theirs", "data": [1]}}


async def test_a_server_that_hangs_holds_up_nothing_else(tmp_path: Path) -> None:
    ended: list[object] = []
    one_ended = asyncio.Event()

    async def hang(asked: Asked) -> None:
        if asked.method == "POST" and asked.message.get("method", "").endswith("hang"):
            await asked.gone()
            ended.append(asked.message.get("id"))
            one_ended.set()
        else:
            await respond(asked)

    async with scripted(handshake(hang)) as server, remote(tmp_path, server.transport) as client:
        await client.greet()
        await client.send(
            request("hang", 1), {"jsonrpc": "2.0", "method": "notifications/hang"}, request("hang", 2, _meta=MODERN)
        )
        await still_works(client)
        # Cancelling one of 2026-07-28 closes its connection.
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2, "_meta": MODERN}}
        await client.send(cancelled)
        async with asyncio.timeout(PATIENCE):
            await one_ended.wait()
        assert ended == [2]
        client.process.terminate()
        assert await client.process.wait() == 0
        await server.until("DELETE")


@pytest.mark.parametrize("transport", ["streamable-http", "sse", "websocket"])
async def test_a_server_that_is_down_is_asked_again_each_time(tmp_path: Path, transport: str) -> None:
    scheme, name = ("ws", "wsUrl") if transport == "websocket" else ("http", "url")
    url = f"{scheme}://127.0.0.1:{closed_port()}/mcp?key={SECRET}"
    async with remote(tmp_path, {"type": transport, name: url}) as client:
        for identity in (1, 2):
            said = await fault(client, identity, "initialize")
            assert said.startswith(url.partition("?")[0] + " cannot be reached: ")
        assert await client.end() == 0


async def test_a_name_that_is_none_is_an_error(tmp_path: Path) -> None:
    transport = {"type": "streamable-http", "url": "https://no-such-host.invalid/mcp"}
    async with remote(tmp_path, transport) as client:
        assert "no-such-host.invalid" in await fault(client)


@pytest.mark.parametrize("transport", ["streamable-http", "sse", "websocket"])
@pytest.mark.parametrize("way", ["307", "endpoint"])
async def test_headers_go_to_no_other_server(tmp_path: Path, transport: str, way: str) -> None:
    async def thief(asked: Asked) -> None:
        await asked.json(answer(0, {}))

    async with scripted(thief) as other:

        async def mislead(asked: Asked) -> None:
            if way == "307":
                origin = other.origin.replace("http", "ws") if transport == "websocket" else other.origin
                await asked.reply(307, Location=f"{origin}/mcp")
            else:
                await asked.events()
                await asked.write(f"event: endpoint\ndata: {other.origin}/messages\n\n")

        async with scripted(mislead) as server:
            url = f"{server.origin}/mcp"
            found = {"url": url} if transport != "websocket" else {"wsUrl": url.replace("http", "ws")}
            headers = {"Authorization": f"Bearer {SECRET}", "X-Api-Key": SECRET}
            async with remote(tmp_path, {"type": transport, "headers": headers, **found}) as client:
                said = await fault(client, 0, "initialize")
        assert other.asked == []
        if transport != "websocket" and (transport == "sse" or way == "307"):
            assert "another server" in said


async def test_a_redirect_within_the_server_is_followed(tmp_path: Path) -> None:
    async def move(asked: Asked) -> None:
        if asked.path == "/mcp":
            await asked.reply(308, Location="/mcp/")
        else:
            await handshake(respond)(asked)

    async with scripted(move) as server, remote(tmp_path, server.transport) as client:
        await client.greet()
        await still_works(client)


KEY = {"key": "TOKEN", "sensitive": True, "target": "header"}


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        ({"configurableProperties": [KEY]}, "mcpctl secret set far TOKEN"),
        ({"configurableProperties": [KEY], "config": {"TOKEN": SECRET}}, "mcpctl secret set far TOKEN"),
        ({"configurableProperties": [KEY | {"sensitive": False}]}, "mcpctl config set far TOKEN"),
        ({}, "target 'header'"),
    ],
)
@pytest.mark.parametrize("kind", ["streamable-http", "sse", "websocket"])
async def test_refused_credentials_name_what_to_set(
    tmp_path: Path, kind: str, manifest: dict[str, Any], says: str
) -> None:
    async def refuse(asked: Asked) -> None:
        body = {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": "who?"}}
        await asked.reply(401, json.dumps(body), WWW_Authenticate="Bearer", Content_Type=JSON)

    async with scripted(refuse) as server:
        url = f"{server.origin}/mcp"
        found = {"url": url} if kind != "websocket" else {"wsUrl": url.replace("http", "ws")}
        async with remote(tmp_path, {"type": kind, **found}, **manifest) as client:
            said = await fault(client, 1, "initialize")
            assert says in said
            assert "401" in said


async def test_lines_that_are_no_messages_are_refused_and_skipped(tmp_path: Path) -> None:
    async with scripted(handshake(respond)) as server, remote(tmp_path, server.transport) as client:
        await client.greet()
        ids = [b'{"jsonrpc":"2.0","result":{},"id":%b}' % (b"[" * depth + b"]" * depth) for depth in (1, 900, 960, 990)]
        for line in (b"nonsense", b"[1]", b'{"jsonrpc":"2.0"}', b"\xff\xfe", b"[" * 200_000, *ids):
            await client.send(line)
            assert (await client.receive())["error"]["code"] == -32700
        await client.send(b"x" * (64 * 2**20 + 1))
        assert (await client.receive())["error"]["code"] == -32600
        await client.send(b"", b"  ", request("works", 5))
        assert (await client.receive())["id"] == 5


async def test_a_message_of_many_megabytes_passes(tmp_path: Path) -> None:
    async def repeat(asked: Asked) -> None:
        message = asked.message
        text = message["params"]["arguments"]["text"]
        if message["id"] == 1:
            await asked.json(answer(1, {"content": [{"type": "text", "text": text}]}))
        else:
            await asked.events()
            await asked.event(answer(2, {"content": [{"type": "text", "text": text}]}))

    async with scripted(handshake(repeat)) as server, remote(tmp_path, server.transport) as client:
        await client.greet()
        text = "ä" * 8_000_000
        for identity in (1, 2):
            found = await client.ask(call("echo", identity, text=text))
            assert found["result"]["content"][0]["text"] == text


@pytest.mark.parametrize(
    ("transport", "manifest", "says"),
    [
        ({"type": "sse", "url": "ftp://example.org/"}, {}, "begins with http:// or https://"),
        ({"type": "websocket", "wsUrl": "https://example.org/"}, {}, "begins with ws:// or wss://"),
        ({"type": "stdio", "command": "x"}, {}, "none of its transports"),
        ({"type": "sse", "url": "http://x/{config.ROOM}"}, {}, "ROOM"),
        ({"type": "sse", "url": "http://x/", "headers": {"Host": "y"}}, {}, "'Host'"),
        ({"type": "sse", "url": "http://x/", "headers": {"A b": "y"}}, {}, "'A b'"),
        ({"type": "sse", "url": "http://x/", "headers": ["A"]}, {}, "headers"),
        ({"type": "sse", "url": "http://x/", "headers": {"A": "{config.K}"}}, {"config": {"K": "a\r\nB: c"}}, "'A'"),
    ],
)
async def test_a_manifest_that_cannot_be_used_ends_it_with_the_reason(
    tmp_path: Path, transport: dict[str, Any], manifest: dict[str, Any], says: str
) -> None:
    async with remote(tmp_path, transport, **manifest) as client:
        assert await client.process.wait() != 0
        assert says in client.log.read_text()
