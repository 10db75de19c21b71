# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpd-remote`` and Streamable HTTP: what the SDK's server and a scripted one see and get."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers.remote_harness import (
    INITIALIZED,
    MODERN,
    Asked,
    answer,
    call,
    far_server,
    handshake,
    initialize,
    remote,
    request,
    scripted,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers.remote_harness import FarServer


@pytest.fixture(scope="module")
def far() -> Iterator[FarServer]:
    with far_server("streamable-http") as server:
        yield server


def transport(far: FarServer) -> dict[str, Any]:
    return {"type": "streamable-http", "url": far.url}


@pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18", "2025-11-25"])
async def test_a_handshake_with_the_sdk(far: FarServer, tmp_path: Path, version: str) -> None:
    async with remote(tmp_path, transport(far)) as client:
        greeted = await client.ask(initialize("hello", version))
        assert (greeted["id"], greeted["result"]["protocolVersion"]) == ("hello", version)
        await client.send(INITIALIZED)
        tools = await client.ask(request("tools/list", 2))
        assert {tool["name"] for tool in tools["result"]["tools"]} == {"echo", "count", "sleep"}
        assert text_of(await client.ask(call("echo", 3, text="grüß Gott"))) == "grüß Gott"
        assert await client.end() == 0


async def test_a_conversation_of_2026_07_28_with_the_sdk(far: FarServer, tmp_path: Path) -> None:
    async with remote(tmp_path, transport(far)) as client:
        found = await client.ask(request("server/discover", 1, _meta=MODERN))
        assert "2026-07-28" in found["result"]["supportedVersions"]
        assert text_of(await client.ask(call("echo", 2, meta=MODERN, text="ä\n"))) == "ä\n"
        assert "error" in await client.ask(request("no/such/method", 3, _meta=MODERN))


async def test_progress_comes_before_the_answer(far: FarServer, tmp_path: Path) -> None:
    async with remote(tmp_path, transport(far)) as client:
        await client.greet()
        await client.send(call("count", 7, meta={"progressToken": "mine"}, to=3))
        heard = [await client.receive() for _ in range(4)]
        assert [(m["method"], m["params"]["progressToken"]) for m in heard[:3]] == [
            ("notifications/progress", "mine")
        ] * 3
        assert text_of(heard[3]) == "counted to 3"


async def test_two_hundred_calls_at_once_get_each_its_own_answer(far: FarServer, tmp_path: Path) -> None:
    # The SDK's server takes 1 and "1" for the same and forgets one of both, if both are in flight.
    identities: list[object] = [*range(100), *(f"{number:#x}" for number in range(100))]
    async with remote(tmp_path, transport(far)) as client:
        await client.greet()
        await client.send(*(call("echo", identity, text=f"{identity!r}") for identity in identities))
        heard = [await client.receive() for _ in identities]
        assert sorted(text_of(message) for message in heard) == sorted(map(repr, identities))
        assert all(repr(message["id"]) == text_of(message) for message in heard)


@pytest.mark.parametrize("meta", [None, MODERN])
async def test_a_cancelled_call_ends_at_the_server(far: FarServer, tmp_path: Path, meta: object) -> None:
    async with remote(tmp_path, transport(far)) as client:
        if meta is None:
            await client.greet()
        await client.send(call("sleep", 5, meta=meta, seconds=60))
        assert text_of(await client.ask(call("echo", 6, meta=meta, text="meanwhile"))) == "meanwhile"
        params = {"requestId": 5} | ({"_meta": meta} if meta else {})
        await client.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        assert await asyncio.to_thread(far.says) == "cancelled"
        found = await client.ask(call("echo", 8, meta=meta, text="on"))
        if found["id"] == 5:
            # Its answer may have been on its way already.
            found = await client.receive()
        assert found["id"] == 8


async def test_what_the_client_asked_before_the_end_of_stdin_is_answered(far: FarServer, tmp_path: Path) -> None:
    async with remote(tmp_path, transport(far)) as client:
        await client.send(initialize(), INITIALIZED, call("echo", 1, text="last"))
        ending = asyncio.create_task(client.end())
        assert [(await client.receive())["id"] for _ in range(2)] == [0, 1]
        assert await ending == 0


async def test_every_message_has_the_headers_of_its_session(tmp_path: Path) -> None:
    async def respond(asked: Asked) -> None:
        await asked.json(answer(asked.message["id"], {}))

    headers = {"X-Team": "blue", "Authorization": "Bearer {config.KEY}"}
    async with (
        scripted(handshake(respond, "the session")) as bad,
        scripted(handshake(respond, "s-42")) as server,
        remote(tmp_path, {**server.transport, "headers": headers}, config={"KEY": "abc"}) as client,
    ):
        await client.greet()
        await client.ask(request("ping"))
        await server.until("GET")
        assert await client.end() == 0
        assert (await server.until("DELETE")).headers["mcp-session-id"] == "s-42"
        first, *later = server.asked
        assert "mcp-session-id" not in first.headers
        for asked in later:
            assert asked.headers["mcp-session-id"] == "s-42"
            assert asked.headers["mcp-protocol-version"] == "2025-11-25"
        for asked in server.asked:
            assert (asked.headers["x-team"], asked.headers["authorization"]) == ("blue", "Bearer abc")
        # A session id is what can travel in a header, nothing else.
        (tmp_path / "bad").mkdir()
        async with remote(tmp_path / "bad", bad.transport) as other:
            assert "session id" in (await other.ask(initialize()))["error"]["message"]


async def test_the_headers_of_2026_07_28_repeat_the_body(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "deep": {"type": "object", "properties": {"flag": {"type": "boolean", "x-mcp-header": "Flag"}}},
            "other": {"type": "string"},
        },
    }

    async def respond(asked: Asked) -> None:
        message = asked.message
        if message["method"] == "tools/list":
            page = {"tools": [{"name": "höhe", "inputSchema": schema}]}
            await asked.json(answer(message["id"], page))
        elif "mcp-param-region" not in asked.headers and message["method"] == "tools/call":
            error = {"code": -32020, "message": "header mismatch"}
            await asked.reply(
                400, json.dumps({"jsonrpc": "2.0", "id": None, "error": error}), Content_Type="application/json"
            )
        else:
            await asked.json(answer(message["id"], {}))

    async with scripted(respond) as server, remote(tmp_path, server.transport) as client:
        found = await client.ask(call("höhe", 1, meta=MODERN, region=" südlich", deep={"flag": True}, other="x"))
        assert found == answer(1, {})
        assert [asked.message["method"] for asked in server.asked] == ["tools/call", "tools/list", "tools/call"]
        headers = server.asked[-1].headers
        assert headers["mcp-protocol-version"] == "2026-07-28"
        assert headers["mcp-method"] == "tools/call"
        assert headers["mcp-name"] == "=?base64?aMO2aGU=?="
        assert headers["mcp-param-region"] == "=?base64?IHPDvGRsaWNo?="
        assert headers["mcp-param-flag"] == "true"
        assert "mcp-session-id" not in headers
        # An unknown header is asked for once, then the server's refusal stands.
        refused = await client.ask(call("other", 2, meta=MODERN))
        assert (refused["id"], refused["error"]["code"]) == (2, -32020)
        await client.ask(request("resources/read", 3, _meta=MODERN, uri="file:///x"))
        assert server.asked[-1].headers["mcp-name"] == "file:///x"


async def test_members_that_nobody_knows_pass_both_ways(tmp_path: Path) -> None:
    odd = b'{"jsonrpc":"2.0","id":1.0,"method":"x/y","params":{"n":12345678901234567890,"f":1.50},"more":{"a":[null]}}'
    reply = '{"jsonrpc":"2.0",\r\n "id":1.0, "error":{"code":7,"message":"m","extra":1e3},\n"beside":"\\ud800"}'

    async def respond(asked: Asked) -> None:
        await asked.reply(200, reply, Content_Type="application/json; charset=utf-8")

    async with scripted(handshake(respond)) as server, remote(tmp_path, server.transport) as client:
        await client.greet()
        await client.send(odd)
        line = await client.line()
        assert line == reply.replace("\r", " ").replace("\n", " ").encode() + b"\n"
        assert odd in [asked.body for asked in server.asked]


async def test_a_batch_is_taken_apart(tmp_path: Path) -> None:
    async def respond(asked: Asked) -> None:
        await asked.json([answer(asked.message["id"], {"n": asked.message["id"]})])

    async with scripted(handshake(respond)) as server, remote(tmp_path, server.transport) as client:
        await client.greet()
        await client.send(json.dumps([request("ping", 1), request("ping", 2)]).encode())
        assert sorted([(await client.receive())["id"] for _ in range(2)]) == [1, 2]


async def test_a_lost_session_is_begun_anew(tmp_path: Path) -> None:
    sessions = iter(["first", "second", "", "third"])
    valid: list[str] = []

    async def respond(asked: Asked) -> None:
        message = asked.message if asked.method == "POST" else {}
        if message.get("method") == "initialize":
            valid[:] = [next(sessions)]
            assert "mcp-session-id" not in asked.headers
            if not valid[0]:
                await asked.reply(503)
                return
            result = {"protocolVersion": "2025-06-18", "capabilities": {}}
            await asked.json(answer(message["id"], result), Mcp_Session_Id=valid[0])
        elif asked.method == "GET":
            await asked.reply(405)
        elif asked.headers.get("mcp-session-id") not in valid:
            await asked.reply(404)
        elif "id" in message:
            await asked.json(answer(message["id"], {"session": valid[0]}))
        else:
            await asked.reply(202)

    async with scripted(respond) as server, remote(tmp_path, server.transport) as client:
        await client.greet()
        assert (await client.ask(request("ping", 1)))["result"] == {"session": "first"}
        valid.clear()
        await client.send(request("ping", 2), request("ping", 3))
        heard = [await client.receive() for _ in range(2)]
        assert sorted(message["id"] for message in heard) == [2, 3]
        assert {message["result"]["session"] for message in heard} == {"second"}
        valid.clear()
        failed = await client.ask(request("ping", 4))
        assert (failed["id"], "HTTP 503" in failed["error"]["message"]) == (4, True)
        assert (await client.ask(request("ping", 5)))["result"] == {"session": "third"}
        methods = [asked.message["method"] for asked in server.asked if asked.method == "POST"]
        assert methods.count("initialize") == 4
        assert methods.count("notifications/initialized") == 3


async def test_the_servers_own_messages_come_again_after_a_dropped_stream(tmp_path: Path) -> None:
    async def respond(asked: Asked) -> None:
        await asked.reply(202)

    async def stream(asked: Asked) -> None:
        if asked.method != "GET":
            await handshake(respond)(asked)
            return
        number = int(asked.headers.get("last-event-id", "0")) + 1
        if number == 2 and sum(one.method == "GET" for one in server.asked) == 2:
            await asked.reply(503)
            return
        await asked.events()
        await asked.event({"jsonrpc": "2.0", "method": "notifications/n", "params": {"n": number}}, id=number, retry=1)
        if number == 3:
            await asked.gone()

    async with scripted(stream) as server, remote(tmp_path, server.transport) as client:
        await client.greet()
        heard = [await client.receive() for _ in range(3)]
        assert [message["params"]["n"] for message in heard] == [1, 2, 3]
        assert [one.headers.get("last-event-id") for one in server.asked if one.method == "GET"] == [
            None, "1", "1", "2",
        ]  # fmt: skip


async def test_an_interrupted_answer_is_taken_up_again(tmp_path: Path) -> None:
    async def respond(asked: Asked) -> None:
        await asked.events()
        if asked.method == "POST":
            await asked.event({"jsonrpc": "2.0", "method": "notifications/n"}, id="a-1", retry=1)
        else:
            assert asked.headers["last-event-id"] == "a-1"
            await asked.event(answer(9, {"done": True}), id="a-2")

    async with scripted(handshake(respond)) as server, remote(tmp_path, server.transport) as client:
        await client.greet()
        await client.send(request("x", 9))
        assert (await client.receive())["method"] == "notifications/n"
        assert await client.receive() == answer(9, {"done": True})


async def test_what_the_server_asks_is_answered_by_the_client(tmp_path: Path) -> None:
    answered = asyncio.Event()
    replies: list[Any] = []

    async def respond(asked: Asked) -> None:
        if "result" in asked.message:
            replies.append(asked.message)
            await asked.reply(202)
            answered.set()
            return
        await asked.events()
        await asked.event(request("sampling/createMessage", "srv-1"))
        await answered.wait()
        await asked.event(answer(asked.message["id"], {"said": replies[0]["result"]["text"]}))

    async with scripted(handshake(respond)) as server, remote(tmp_path, server.transport) as client:
        await client.greet()
        asked = await client.ask(request("x", 1))
        assert (asked["method"], asked["id"]) == ("sampling/createMessage", "srv-1")
        assert await client.ask(answer("srv-1", {"text": "hm"})) == answer(1, {"said": "hm"})
