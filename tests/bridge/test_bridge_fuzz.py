# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whatever bytes clients send, and however: no answer is ever wrong, and neighbours are served."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.bridge.bridge_harness import Bridge, text_of
from tests.bridge.facility import COMMAND, request, tool
from tests.bridge.fuzzing import Neighbour, Reply, abort, connect, exchange, is_response, nonce, pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HEAD = b"POST /mcp/s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
MODERN = b"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\n"
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


@pytest.fixture(scope="module")
def neighbour(fuzzed_bridge: Callable[..., Bridge]) -> Iterator[Neighbour]:
    found = Neighbour(fuzzed_bridge(f"--server=s={COMMAND}"), "message")
    data, check = Asked("modern call", (), b"").build("")
    with connect(found.bridge) as connection:
        assert check(exchange(connection, [data], 1)[0])
    # What serves modern clients stays too.
    found.remember()
    yield found
    found.check_the_rest()


# ---------------------------------------------------------------------------------------- streams of requests


@dataclass(frozen=True)
class Asked:
    """A request of a known kind: what is sent, and what has to come back."""

    kind: str
    chunks: tuple[int, ...]
    extra: bytes

    def build(self, session: str) -> tuple[bytes, Callable[[Reply], bool]]:
        text = nonce()
        good = json.dumps(tool("echo", text, message=text)).encode()
        note = b'{"jsonrpc":"2.0","method":"notifications/x"}'
        mine = b"Mcp-Session-Id: " + session.encode() + b"\r\n"
        modern = json.dumps(
            request("tools/call", text, name="echo", arguments={"message": text}, _meta=ENVELOPE)
        ).encode()
        found: dict[str, tuple[bytes, bytes, Callable[[Reply], bool]]] = {
            "call": (HEAD, good, lambda reply: answers(reply, text)),
            "call in a session": (HEAD + mine, good, lambda reply: answers(reply, text)),
            "notification": (HEAD + mine, note, lambda reply: (reply.status, reply.body) == (202, b"")),
            "batch": (HEAD, b"[%b,%b]" % (good, note), lambda reply: answers(reply, text, batch=True)),
            "no JSON": (HEAD, good[:-1], lambda reply: fails(reply, 400, -32700)),
            "no request": (HEAD, b"[1]", lambda reply: b"-32600" in reply.body),
            "another type": (HEAD.replace(b"/json", b"/xml"), good, lambda reply: reply.status == 415),
            "no such server": (HEAD.replace(b"/s ", b"/t "), good, lambda reply: fails(reply, 404, -32602)),
            "no such session": (HEAD + mine[:-3] + b"\r\n", good, lambda reply: reply.status == 404),
            "modern call": (HEAD + MODERN + b"Mcp-Name: echo\r\n", modern, lambda reply: answers(reply, text)),
            "modern mismatch": (
                HEAD + MODERN + b"Mcp-Name: greet\r\n",
                modern,
                lambda reply: fails(reply, 400, -32020),
            ),
            "health": (b"GET /health HTTP/1.1\r\nHost: localhost\r\n", b"", lambda reply: b"ok" in reply.body),
            "method": (HEAD.replace(b"POST", b"PATCH"), good, lambda reply: reply.status == 405),
        }
        head, body, check = found[self.kind]
        return head + self.extra + framed(body, self.chunks), check


def framed(body: bytes, chunks: tuple[int, ...]) -> bytes:
    if not chunks:
        return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    parts = [b"%x\r\n%b\r\n" % (len(part), part) for part in pieces(body, chunks) if part]
    return b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(parts) + b"0\r\n\r\n"


def answers(reply: Reply, text: str, *, batch: bool = False) -> bool:
    found = json.loads(reply.body)
    message = found[0] if batch and len(found) == 1 else found
    return reply.status == 200 and is_response(message, text) and text_of(message) == text


def fails(reply: Reply, status: int, code: int) -> bool:
    return reply.status == status and json.loads(reply.body)["error"]["code"] == code


KINDS = ["call", "call in a session", "notification", "batch", "no JSON", "no request", "another type",
         "modern call", "modern mismatch", "no such server", "no such session", "health", "method"]  # fmt: skip
NAMES = st.text("abcxyzABC-0123456789", min_size=1, max_size=12).map(lambda name: b"x-" + name.encode())
VALUES = st.binary(max_size=60).map(lambda value: bytes(byte for byte in value if byte >= 32 and byte != 127))
EXTRA = st.lists(st.tuples(NAMES, VALUES).map(lambda pair: b"%b: %b\r\n" % pair), max_size=3).map(b"".join)
CUTS = st.lists(st.integers(0, 100_000), max_size=12)
ASKED = st.builds(
    Asked,
    st.sampled_from(KINDS) | st.just("call"),
    st.just(()) | st.lists(st.integers(0, 500), min_size=1, max_size=5).map(tuple),
    EXTRA,
)


@given(asked=st.lists(ASKED, min_size=1, max_size=8), cuts=CUTS)
def test_pipelined_requests_are_answered_in_order_however_they_are_cut(
    neighbour: Neighbour, asked: list[Asked], cuts: list[int]
) -> None:
    built = [each.build(neighbour.clients[0].headers["Mcp-Session-Id"]) for each in asked]
    with connect(neighbour.bridge) as connection:
        replies = exchange(connection, pieces(b"".join(data for data, _ in built), cuts), len(built))
    assert [check(reply) for (_, check), reply in zip(built, replies, strict=True)] == [True] * len(built)
    neighbour.check()


@pytest.mark.parametrize("chunks", [(), (1, 2, 3)])
def test_a_request_may_come_byte_by_byte(neighbour: Neighbour, chunks: tuple[int, ...]) -> None:
    built = [Asked(kind, chunks, b"").build(neighbour.clients[0].headers["Mcp-Session-Id"]) for kind in KINDS]
    data = b"".join(data for data, _ in built)
    with connect(neighbour.bridge) as connection:
        replies = exchange(connection, [data[at : at + 1] for at in range(len(data))], len(built))
    assert [check(reply) for (_, check), reply in zip(built, replies, strict=True)] == [True] * len(built)


def test_a_thousand_pipelined_calls_are_answered_in_order(neighbour: Neighbour) -> None:
    built = [Asked("call", (), b"").build("") for _ in range(1000)]
    with connect(neighbour.bridge) as connection:
        replies = exchange(connection, [b"".join(data for data, _ in built)], len(built))
    assert [check(reply) for (_, check), reply in zip(built, replies, strict=True)] == [True] * len(built)
    neighbour.check()


@given(
    asked=st.lists(ASKED, min_size=1, max_size=5),
    cuts=CUTS,
    end=st.integers(0, 100_000),
    how=st.sampled_from(["reset", "close", "half"]),
)
def test_clients_may_vanish_at_any_byte(
    neighbour: Neighbour, asked: list[Asked], cuts: list[int], end: int, how: str
) -> None:
    built = [each.build(neighbour.clients[0].headers["Mcp-Session-Id"]) for each in asked]
    data = b"".join(data for data, _ in built)
    parts = pieces(data[: end % len(data)], cuts)
    connection = connect(neighbour.bridge)
    if how == "half":
        # What is still answered is answered right.
        for part in parts:
            connection.sendall(part)
        connection.shutdown(socket.SHUT_WR)
        replies = exchange(connection, [], len(built))
        assert all(check(reply) for (_, check), reply in zip(built, replies, strict=False))
        connection.close()
    else:
        exchange(connection, parts, 0)
        (abort if how == "reset" else socket.socket.close)(connection)
    neighbour.check()


# ---------------------------------------------------------------------------------------- bodies


def refuse(name: str) -> Any:
    raise ValueError(name)


def understood(body: bytes) -> Any:
    """What another reader of JSON makes of *body*; raises ValueError where it makes nothing of it."""
    return json.loads(body.decode(), parse_constant=refuse)


def post(neighbour: Neighbour, body: bytes, headers: bytes = b"") -> Reply:
    with connect(neighbour.bridge) as connection:
        (reply,) = exchange(connection, [HEAD + headers + framed(body, ())], 1)
    return reply


PARTS = (
    b'" { } [ ] , : \\ \\u0041 \\ud83d \\x 0 1e5 - . / null tru NaN "id":7, "method":"ping", \x00 \xff \x7f \x1f '
    b"\xc3\xa9 \xed\xa0\x80 \xef\xbb\xbf \xc0\x80"
).split(b" ")
EDITS = st.tuples(
    st.sampled_from(["replace", "insert", "delete"]),
    st.integers(0, 1000),
    st.sampled_from([*PARTS, b" ", b"\r\n", b"\t"]) | st.binary(min_size=1, max_size=3),
)
IDENTITIES = st.integers(-(2**53), 2**53) | st.text('abc"\\é🐎\x00', max_size=8)


def edited(body: bytes, edits: list[tuple[str, int, bytes]]) -> bytes:
    for how, where, what in edits:
        at = where % (len(body) + 1)
        body = body[:at] + (b"" if how == "delete" else what) + body[at + (0 if how == "insert" else len(what)) :]
    return body


@given(identity=IDENTITIES, edits=st.lists(EDITS, max_size=3))
@example(identity=1, edits=[("insert", 1, b'"id":7,')])
def test_what_the_bridge_reads_is_what_the_server_reads(
    neighbour: Neighbour, identity: object, edits: list[tuple[str, int, bytes]]
) -> None:
    text = nonce()
    message = tool("echo", identity, message=text)
    body = edited(json.dumps(message, ensure_ascii=False).encode(), edits)
    reply = post(neighbour, body)
    try:
        meant = understood(body)
    except ValueError:
        assert fails(reply, 400, -32700), (body, reply)
        return
    if b"\\ud" in body.lower() and reply.status == 400:
        # Half a surrogate pair stands for no text at all.
        return
    if reply.status == 202:
        assert isinstance(meant, dict)
        assert "id" not in meant or "method" not in meant
        return
    answer = json.loads(reply.body)
    if reply.status == 200 and "result" in answer:
        assert is_response(answer, meant["id"]), (body, reply)
        failed = "isError" in answer["result"] and answer["result"]["isError"]
        said = None if meant["method"] == "ping" or failed else meant["params"]["arguments"]["message"]
        assert said is None or text_of(answer) == said, (body, reply)
    else:
        assert answer["error"]["code"] in {-32600, -32601, -32602}, (body, reply)
    if meant == message:
        assert reply.status == 200
        assert text_of(answer) == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=30,
)


@given(value=JSON, ascii_only=st.booleans(), indent=st.sampled_from([None, 0, 3]))
def test_any_value_goes_there_and_back(neighbour: Neighbour, value: Any, ascii_only: bool, indent: int | None) -> None:
    try:
        body = json.dumps(tool("reflect", "r", value=value), ensure_ascii=ascii_only, indent=indent).encode()
    except UnicodeEncodeError:
        return
    reply = post(neighbour, body)
    if b"\\ud" in body.lower() and reply.status == 400:
        return
    # As text, since 1 and 1.0 and True are equal here.
    assert repr(json.loads(reply.body)["result"]["structuredContent"]["value"]) == repr(value)


# ---------------------------------------------------------------------------------------- headers

NAMED = (
    b"Accept Content-Type Mcp-Session-Id MCP-Protocol-Version Mcp-Method Mcp-Name Mcp-Param-X Origin Last-Event-ID "
    b"traceparent Authorization Host Connection Expect Accept-Encoding Content-Encoding Cookie Upgrade X-Forwarded-For"
).split()
LIKELY = (
    b"application/json|text/event-stream|*/*|2026-07-28|2025-11-25|2024-11-05|tools/call|echo|null|http://localhost|"
    b"localhost|100-continue|close|gzip|=?base64?ZWNobw==?=|upgrade|h2c|websocket|\xff|;q=|,,,||"
    b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
).split(b"|")


@given(
    headers=st.lists(st.tuples(st.sampled_from(NAMED), st.sampled_from(LIKELY) | VALUES), max_size=4),
    verb=st.sampled_from([b"POST", b"POST", b"POST", b"GET", b"DELETE", b"OPTIONS", b"HEAD", b"PUT"]),
    path=st.sampled_from(b"/mcp/s /mcp/s /mcp/s /mcp /mcp/meta/s /mcp/s/sse /health /mcp/s?sse=x".split()),
)
def test_no_header_is_the_bridges_fault(
    neighbour: Neighbour, headers: list[tuple[bytes, bytes]], verb: bytes, path: bytes
) -> None:
    text = nonce()
    lines = b"".join(b"%b: %b\r\n" % pair for pair in headers)
    body = json.dumps(tool("echo", text, message=text)).encode() if verb == b"POST" else b""
    data = b"%b %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%b%b" % (
        verb,
        path,
        lines,
        framed(body, ()),
    )
    with connect(neighbour.bridge) as connection:
        connection.sendall(data)
        head = connection.recv(65536)
    status = int(head.split(b" ", 2)[1])
    assert status < 500, (data, head)
    if b'"result"' in head and path == b"/mcp/s" and verb == b"POST":
        assert text.encode() in head
    neighbour.check()


def test_lists_too_come_right_after_all_that(neighbour: Neighbour) -> None:
    names = [each["name"] for each in neighbour.clients[0].ask(request("tools/list"))["result"]["tools"]]
    assert names == ["echo", "greet", "fail", "picture"]
