# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests whose head was parsed before mean what the parser says they mean, and nothing is served out of turn."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httptools
import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.server import ServerState

from mcpd.bridge.exchange import Exchange
from mcpd.bridge.http import cycle
from mcpd.bridge.http.connection import Connection
from mcpd.bridge.http.cycle import KnownHead, learn
from mcpd.bridge.http.endpoint import Head
from mcpd.bridge.http.post import Post
from tests.bridge.bridge_harness import Bridge, call, text_of
from tests.bridge.fuzzing import connect, exchange

BODY = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
HEADERS = [b"Host: localhost", b"Content-Type: application/json", b"Accept: application/json, text/event-stream"]


def request(length: bytes, at: int, body: bytes = BODY) -> bytes:
    headers = HEADERS.copy()
    headers.insert(at, length)
    return b"\r\n".join((b"POST /mcp/s HTTP/1.1", *headers, b"", body))


class Parsed:
    """What the parser makes of some bytes: whole requests only."""

    def __init__(self, data: bytes) -> None:
        self.whole: list[tuple[bytes, list[tuple[bytes, bytes]], bytes]] = []
        self._now: tuple[list[bytes], list[tuple[bytes, bytes]], list[bytes]] = ([], [], [])
        self.fault = False
        try:
            httptools.HttpRequestParser(self).feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.fault = True

    def on_message_begin(self) -> None:
        self._now = ([], [], [])

    def on_url(self, url: bytes) -> None:
        self._now[0].append(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._now[1].append((name, value))

    def on_body(self, body: bytes) -> None:
        self._now[2].append(body)

    def on_message_complete(self) -> None:
        url, headers, body = self._now
        self.whole.append((b"".join(url), headers, b"".join(body)))


def known(at: int) -> KnownHead:
    head = Head({}, {}, "", "", 0, ())
    found = learn(request(b"Content-Length: %d" % len(BODY), at), len(BODY), head, "s", "")
    assert found is not None
    return found


LENGTHS = st.one_of(
    st.integers(0, 60).map(lambda n: b"%d" % n),
    st.sampled_from([b"+40", b"040", b"0x28", b" 40", b"40 ", b"40, 40", b"4_0", b"", b"-1", b"\xb2", b"9" * 30]),
)


@given(
    at=st.integers(0, 3),
    length=LENGTHS,
    body=st.binary(max_size=60),
    cut=st.integers(0, 12),
    more=st.binary(max_size=9),
)
def test_what_is_taken_without_parsing_is_what_the_parser_takes(
    at: int, length: bytes, body: bytes, cut: int, more: bytes
) -> None:
    data = request(b"Content-Length: " + length, at, body)
    data = data[: len(data) - cut] + more
    found = known(at).body(data)
    if found is not None:
        parsed = Parsed(data)
        assert not parsed.fault
        assert [(url, body) for url, _, body in parsed.whole] == [(b"/mcp/s", found)]
        other = Parsed(request(b"Content-Length: %d" % len(BODY), at)).whole[0][1]
        assert [header for header in parsed.whole[0][1] if header[0] != b"Content-Length"] == [
            header for header in other if header[0] != b"Content-Length"
        ]


@pytest.mark.parametrize("at", range(4))
def test_a_head_is_known_with_any_length(at: int) -> None:
    for body in (b"", b"x", b"y" * 12345):
        assert known(at).body(request(b"Content-Length: %d" % len(body), at, body)) == body


@pytest.mark.parametrize(
    "data",
    [
        request(b"Content-Length: 40\r\nContent-Length: 40", 1),
        request(b"X: a\r\nContent-Length: 41", 1),
        request(b"Transfer-Encoding: chunked", 1),
        request(b"Content-Length: 40", 1) + b"GET",
    ],
)
def test_what_is_more_than_one_plain_request_is_not_learned(data: bytes) -> None:
    assert learn(data, len(BODY), Head({}, {}, "", "", 0, ()), "s", "") is None


def test_the_same_head_again_and_again_is_answered_as_ever(bridge: Bridge) -> None:
    client = bridge.client("s").open()
    session = b"Mcp-Session-Id: %b" % client.headers["Mcp-Session-Id"].encode()

    def post(identity: int, text: str, *extra: bytes) -> bytes:
        body = json.dumps(call("echo", identity, text=text)).encode()
        return request(b"\r\n".join((session, *extra, b"Content-Length: %d" % len(body))), 2, body)

    with connect(bridge) as connection:
        for number in range(5):
            (reply,) = exchange(connection, [post(number, "x" * number)], 1)
            assert text_of(json.loads(reply.body)) == "x" * number
        whole = post(7, "in pieces")
        for cut in (1, 20, len(whole) - 60, len(whole) - 1):
            (reply,) = exchange(connection, [whole[:cut], whole[cut:]], 1)
            assert text_of(json.loads(reply.body)) == "in pieces"
        replies = exchange(connection, [post(8, "a") + post(9, "b") + post(10, "c")], 3)
        assert [text_of(json.loads(reply.body)) for reply in replies] == ["a", "b", "c"]
        (reply,) = exchange(connection, [post(11, "last", b"Connection: close")], 1)
        assert reply.headers[b"connection"] == b"close"
        assert connection.recv(1) == b""


class Transport:
    """Takes what is written."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def get_extra_info(self, name: str) -> Any:
        return self if name == "socket" else None

    family = 0

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    getpeername = getsockname

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


async def nothing(_scope: object, _receive: object, _send: object) -> None:
    """An application that is never asked."""


class Slow:
    """An endpoint that answers when it is told to."""

    max_body = 1000
    keepalive = 30

    def __init__(self) -> None:
        self.parts = self.options = self.watch = self
        self.exchanges: list[Exchange] = []

    def admit(self, _cycle: object) -> tuple[Any, Exchange]:
        return Post("s", None, "", "", {}), Exchange(takes_json=True, takes_events=False)  # type: ignore[arg-type]

    def post(self, _post: object, _body: bytes, exchange: Exchange) -> None:
        self.exchanges.append(exchange)

    def http(self, *_: object) -> None: ...


async def test_a_request_in_the_pipeline_is_not_refused_before_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycle, "BODY_TIMEOUT", 0.05)
    config = uvicorn.Config(nothing, ws="none", lifespan="off", interface="asgi3", log_config=None, access_log=False)
    config.load()
    endpoint, transport = Slow(), Transport()
    loop = asyncio.get_running_loop()
    connection = Connection(config, ServerState(), {}, loop, None, endpoint)  # type: ignore[arg-type]
    connection.connection_made(transport)  # type: ignore[arg-type]
    length = b"Content-Length: %d" % len(BODY)
    connection.data_received(request(length, 1) + request(length, 1)[:-9])
    await asyncio.sleep(0.2)
    assert transport.written == b""
    endpoint.exchanges[0].reply(200, b"the first")
    await asyncio.sleep(0)
    assert transport.written.endswith(b"the first")
    while b"HTTP/1.1 504" not in transport.written:
        await asyncio.sleep(0.01)
    connection.connection_lost(None)


def test_what_is_no_http_is_not_refused_in_the_place_of_another_reply(bridge: Bridge) -> None:
    body = json.dumps(call("echo", 1, text="late", delay=0.5)).encode()
    slow = request(b"Content-Length: %d" % len(body), 1, body)
    with connect(bridge) as connection:
        assert exchange(connection, [slow + b"GET / HTTP/1.1\n\x00\n\n"], 1) == []
    with connect(bridge) as connection:
        assert [reply.status for reply in exchange(connection, [b"GET\x00 / HTTP/1.1\r\n\r\n"], 1)] == [400]
