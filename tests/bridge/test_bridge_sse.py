# SPDX-License-Identifier: LGPL-2.1-or-later
"""The HTTP+SSE transport of 2024-11-05."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import mcp_types as types
import pytest
from mcp import ClientSession
from mcp.client.sse import sse_client

from mcpd.bridge.handshake.sse import MOST_LINKS, MOST_WAITING
from tests.bridge.bridge_harness import (
    COMMAND,
    PATIENCE,
    Frame,
    call,
    descendants,
    eventually,
    frames,
    initialize,
    text_of,
)
from tests.bridge.test_bridge_service import SHARED, Program, ask_as, needs_root, passed, post, start  # noqa: F401 -- fixtures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.bridge.bridge_harness import Bridge

INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
PING = {"jsonrpc": "2.0", "id": "p", "method": "ping"}


@dataclass
class Link:
    """A client of 2024-11-05, which has seen the first event."""

    http: httpx2.Client
    endpoint: str
    stream: Iterator[Frame]

    def post(self, message: object) -> httpx2.Response:
        content = message if isinstance(message, bytes) else json.dumps(message).encode()
        return self.http.post(self.endpoint, content=content, headers={"Content-Type": "application/json"})

    def next(self) -> Any:
        """The next message on the stream."""
        return next(each for each in self.stream if each.event == "message").message

    def ask(self, message: object) -> Any:
        """Post *message*, which is acknowledged, and return what comes next."""
        reply = self.post(message)
        assert (reply.status_code, reply.content) == (202, b"")
        return self.next()

    def open(self, capabilities: object = None) -> Any:
        found = self.ask(initialize("i", "2024-11-05", capabilities))
        assert self.post(INITIALIZED).status_code == 202
        return found


@contextlib.contextmanager
def link(bridge: Bridge, server: str = "s") -> Iterator[Link]:
    http = bridge.http()
    with http.stream("GET", f"/mcp/{server}/sse", headers={"Accept": "text/event-stream"}) as reply:
        assert reply.status_code == 200, reply.read()
        stream = frames(reply)
        yield Link(http, next(stream).data, stream)


# ---------------------------------------------------------------------------------------- the stream


def test_T9_4_the_stream_begins_with_where_to_post(bridge: Bridge) -> None:
    with bridge.http().stream("GET", "/mcp/s/sse") as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"] == "text/event-stream"
        assert "no-cache" in reply.headers["cache-control"]
        assert reply.headers["connection"] == "keep-alive"
        first = next(frames(reply))
    assert first.event == "endpoint"
    assert re.fullmatch(r"/mcp/s\?sse=[\w-]{32}", first.data)


def test_answers_come_on_the_stream(bridge: Bridge) -> None:
    with link(bridge) as client:
        opened = client.open()
        assert (opened["id"], opened["result"]["protocolVersion"]) == ("i", "2024-11-05")
        assert text_of(client.ask(call("echo", text="über den Strom"))) == "über den Strom"
        assert client.ask({"jsonrpc": "2.0", "id": 9, "method": "no/such"})["error"]["code"] == -32601


def test_without_the_query_the_reply_is_direct(bridge: Bridge) -> None:
    with link(bridge) as client:
        client.open()
        reply = bridge.client().post(call("echo", "direct", text="x"))
        assert (reply.status_code, reply.json()["id"]) == (200, "direct")
        assert client.ask(PING)["id"] == "p"


def test_requests_before_initialize_are_answered_on_the_stream(bridge: Bridge) -> None:
    with link(bridge) as client:
        assert client.ask({"jsonrpc": "2.0", "id": "l", "method": "tools/list"})["id"] == "l"


def test_a_second_initialize_repeats_the_result(bridge: Bridge) -> None:
    with link(bridge) as client:
        first, second = client.open(), client.ask(initialize("again"))
    assert (second["id"], second["result"]) == ("again", first["result"])


def test_a_batch_is_answered_by_an_event_each(bridge: Bridge) -> None:
    with link(bridge) as client:
        client.open()
        found = [client.ask([call("echo", 1, text="a"), call("echo", 2, text="b"), INITIALIZED]), client.next()]
    assert sorted(each["id"] for each in found) == [1, 2]


def test_events_of_this_transport_have_no_ids(bridge: Bridge) -> None:
    with link(bridge) as client:
        client.post(initialize())
        assert next(client.stream).id == ""


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"{", -32700), (b"[]", -32600), (b'{"id":null,"jsonrpc":"2.0","method":"ping"}', -32600), (b"7", -32600)],
)
def test_a_post_that_cannot_be_understood_is_refused_by_http(bridge: Bridge, body: bytes, code: int) -> None:
    with link(bridge) as client:
        reply = client.post(body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, code)
        assert client.ask(PING)["id"] == "p"


def test_so_many_requests_may_wait_for_their_answers(bridge: Bridge) -> None:
    with link(bridge) as client:
        client.open()
        client.ask(call("deaf"))
        assert client.post([{**PING, "id": number} for number in range(MOST_WAITING)]).status_code == 202
        reply = client.post(PING)
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, -32005)


def test_an_unserved_revision_is_refused_by_http(bridge: Bridge) -> None:
    with link(bridge) as client:
        headers = {"MCP-Protocol-Version": "1999-01-01"}
        assert client.http.post(client.endpoint, json=PING, headers=headers).status_code == 400


# ---------------------------------------------------------------------------------------- the server's own messages


def test_progress_and_changes_come_on_the_stream(bridge: Bridge) -> None:
    with link(bridge) as client:
        client.open()
        client.post(call("progress", 1, {"progressToken": "mine"}, steps=2))
        found = [client.next() for _ in range(3)]
        assert [each.get("method", each.get("id")) for each in found] == ["notifications/progress"] * 2 + [1]
        assert found[0]["params"]["progressToken"] == "mine"
        client.post(call("change", 2))
        found = [client.next() for _ in range(2)]
        assert found[0]["method"] == "notifications/tools/list_changed"


@pytest.mark.parametrize("method", ["sampling/createMessage", "elicitation/create", "roots/list"])
def test_a_servers_question_comes_on_the_stream_and_its_answer_goes_back(bridge: Bridge, method: str) -> None:
    with link(bridge) as client:
        client.open({"sampling": {}, "elicitation": {}, "roots": {}})
        question = client.ask(call("ask", "q", method=method))
        assert question["method"] == method
        last = client.ask({"jsonrpc": "2.0", "id": question["id"], "result": {"given": 1}})
        assert (last["id"], text_of(last)) == ("q", '{"result": {"given": 1}}')


def test_a_call_can_be_cancelled(bridge: Bridge) -> None:
    with link(bridge) as client:
        client.open()
        client.post(call("hang", "h"))
        client.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "h"}})
        assert client.ask(PING)["id"] == "p"


def test_two_links_do_not_mix(bridge: Bridge) -> None:
    with link(bridge) as one, link(bridge) as other:
        one.open()
        other.open()
        one.post(call("echo", 1, text="one"))
        other.post(call("echo", 1, text="other"))
        assert (text_of(one.next()), text_of(other.next())) == ("one", "other")


# ---------------------------------------------------------------------------------------- whose it is, and its end


def test_an_unknown_stream_and_that_of_another_server_are_404(alone: Callable[..., Bridge]) -> None:
    bridge = alone("--server", f"t={COMMAND}")
    with link(bridge) as client:
        for path in ("/mcp/s?sse=nonsense", client.endpoint + "x", client.endpoint.replace("/mcp/s", "/mcp/t")):
            reply = client.http.post(path, json=PING)
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, -32602), path
        ended = client.endpoint
        assert client.ask(PING)["id"] == "p"
    http = bridge.http()
    eventually(lambda: http.post(ended, json=PING).status_code == 404, "the stream's end is noticed")


@needs_root
def test_the_stream_of_another_caller_is_404(start: Callable[..., Program]) -> None:  # noqa: F811
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        path = Path(place) / "bridge.sock"
        start(*SHARED, str(path), f"{place}/tokens", COMMAND).hear("READY=1")
        transport = httpx2.HTTPTransport(uds=str(path))
        with (
            httpx2.Client(transport=transport, base_url="http://localhost", timeout=PATIENCE) as http,
            http.stream("GET", "/mcp/s/sse") as reply,
        ):
            client = Link(http, next(stream := frames(reply)).data, stream)
            method, _, body, headers = post(PING)
            assert ask_as(2001, path, (method, client.endpoint, body, headers))[0][0] == 404
            assert client.ask(PING)["id"] == "p"


def test_a_caller_has_so_many_streams_and_no_more(bridge: Bridge) -> None:
    def opened() -> tuple[socket.socket, bytes]:
        connection = socket.create_connection(("127.0.0.1", httpx2.URL(bridge.url).port or 0), timeout=PATIENCE)
        connection.sendall(b"GET /mcp/s/sse HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
        return connection, connection.recv(65536)

    with contextlib.ExitStack() as stack:
        for _ in range(MOST_LINKS):
            connection, said = opened()
            stack.enter_context(connection)
            assert said.startswith(b"HTTP/1.1 200 ")
        connection, said = opened()
        stack.enter_context(connection)
        assert said.startswith(b"HTTP/1.1 429 ")

    def again() -> bool:
        connection, said = opened()
        connection.close()
        return said.startswith(b"HTTP/1.1 200 ")

    eventually(again, "those that have ended do not count")


def test_unknown_servers_and_other_methods_are_refused(bridge: Bridge) -> None:
    http = bridge.http()
    assert http.get("/mcp/nobody/sse").status_code == 404
    assert http.get("/mcp/sse").status_code == 404
    # New clients try this first, and take it for a sign of the old transport.
    reply = http.post("/mcp/s/sse", json=initialize())
    assert reply.status_code == 405
    assert "GET" in reply.headers["allow"]


def test_with_the_stream_its_session_its_process_and_its_calls_end(
    alone: Callable[..., Bridge], tmp_path: Path
) -> None:
    wire = tmp_path / "wire"
    bridge = alone("--server", f"wired={COMMAND} --wire {wire}")
    with link(bridge, "wired") as client:
        client.open()
        client.post(call("hang", "h"))
        eventually(lambda: '"hang"' in wire.read_text(), "the call arrives")
        assert descendants(bridge.pid)
    eventually(lambda: not descendants(bridge.pid), "the process is stopped")
    assert "internal error" not in bridge.said()


def test_with_the_stream_calls_without_a_session_are_cancelled(alone: Callable[..., Bridge], tmp_path: Path) -> None:
    wire = tmp_path / "wire"
    with link(alone("--server", f"wired={COMMAND} --wire {wire}"), "wired") as client:
        client.post(call("hang", "h"))
        eventually(lambda: wire.exists() and '"hang"' in wire.read_text(), "the call arrives")
    eventually(lambda: "notifications/cancelled" in wire.read_text(), "the server is told")


def test_a_stream_that_ends_while_its_session_opens_leaves_nothing(alone: Callable[..., Bridge]) -> None:
    bridge = alone("--server", f"slow=sh -c 'sleep 0.5; exec {COMMAND}'")
    with link(bridge, "slow") as client:
        assert client.post(initialize()).status_code == 202
    with link(bridge, "slow") as client:
        client.post({"jsonrpc": "2.0", "id": "l", "method": "tools/list"})
    with link(bridge) as client:
        client.open()
    eventually(lambda: len(descendants(bridge.pid)) <= 1, "no session stays")
    assert "internal error" not in bridge.said()


def test_a_quiet_stream_outlives_its_idle_process(alone: Callable[..., Bridge]) -> None:
    bridge = alone("--idle-timeout", "0.5")
    with link(bridge) as client:
        client.open()
        first = client.ask(call("pid"))
        eventually(lambda: not descendants(bridge.pid), "the process is stopped, as nobody uses it")
        again = client.ask(call("pid"))
        assert text_of(again) != text_of(first)


def test_nothing_is_left_of_many_streams(alone: Callable[..., Bridge]) -> None:
    bridge = alone("--max-sessions", "40")

    def use() -> None:
        with link(bridge) as client:
            client.open()
            client.ask(call("echo", text="x"))
            client.post(call("hang"))
        client.http.close()

    use()
    eventually(lambda: not descendants(bridge.pid), "the first is gone")
    fds = bridge.fds()
    threads = [threading.Thread(target=use) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    eventually(lambda: not descendants(bridge.pid), "all processes are stopped")
    eventually(lambda: bridge.fds() <= fds, "all descriptors are closed")
    assert "internal error" not in bridge.said()


def test_at_the_bridges_end_its_streams_end(alone: Callable[..., Bridge]) -> None:
    bridge = alone()
    with link(bridge) as client:
        client.open()
        pids = descendants(bridge.pid)
        assert bridge.stop() == 0
        with contextlib.suppress(httpx2.TransportError):
            assert list(client.stream) == []
    assert pids


# ---------------------------------------------------------------------------------------- the official client


async def test_the_official_client_over_sse(bridge: Bridge) -> None:
    seen: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async def on_elicitation(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"to": params.message})

    async def on_sampling(context: Any, params: Any) -> types.CreateMessageResult:
        content = types.TextContent(type="text", text="sampled")
        return types.CreateMessageResult(role="assistant", content=content, model="none")

    async with (
        asyncio.timeout(PATIENCE),
        sse_client(f"{bridge.url}/mcp/s/sse") as streams,
        ClientSession(
            streams[0], streams[1], elicitation_callback=on_elicitation, sampling_callback=on_sampling
        ) as client,
    ):
        await client.initialize()
        assert "echo" in [tool.name for tool in (await client.list_tools()).tools]
        texts = [f"grüße {number}" for number in range(20)]
        results: list[Any] = await asyncio.gather(*(client.call_tool("echo", {"text": each}) for each in texts))
        assert [each.content[0].text for each in results] == texts
        result: Any = await client.call_tool("progress", {"steps": 3}, progress_callback=on_progress)
        assert (result.content[0].text, seen) == ("done", [0, 1, 2])
        params: dict[str, Any] = {"message": "sure?", "requestedSchema": {"type": "object", "properties": {}}}
        result = await client.call_tool("ask", {"method": "elicitation/create", "params": params})
        assert '"to": "sure?"' in result.content[0].text
        params = {"messages": [], "maxTokens": 1}
        result = await client.call_tool("ask", {"method": "sampling/createMessage", "params": params})
        assert "sampled" in result.content[0].text


async def test_the_official_client_over_sse_with_a_token(start_bridge: Callable[..., Bridge], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("tok")
    token.chmod(0o600)
    bridge = start_bridge("--listen", "127.0.0.1:0", "--token-file", str(token), "--server", f"s={COMMAND}")
    assert bridge.http().get("/mcp/s/sse").status_code == 401
    async with (
        asyncio.timeout(PATIENCE),
        sse_client(f"{bridge.url}/mcp/s/sse", headers={"Authorization": "Bearer tok"}) as streams,
        ClientSession(*streams) as client,
    ):
        await client.initialize()
        result: Any = await client.call_tool("echo", {"text": "in"})
        assert result.content[0].text == "in"
