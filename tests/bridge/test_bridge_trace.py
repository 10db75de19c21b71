# SPDX-License-Identifier: LGPL-2.1-or-later
"""The client's trace goes on to the server (W3C Trace Context, MCP "_meta"), and requests have ids."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.bridge import jsonrpc
from mcpd.bridge.observe import trace
from tests.bridge.bridge_harness import COMMAND, Bridge, call, eventually, initialize

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%b}'


def traced(params: bytes | None, headers: dict[bytes, bytes]) -> object:
    message = jsonrpc.parse_body(CALL % params if params is not None else b'{"jsonrpc":"2.0","id":1,"method":"x"}')
    assert isinstance(message, dict)
    return json.loads(jsonrpc.encode(trace.with_trace(message, headers))).get("params")


def test_the_three_headers_become_keys_of_meta() -> None:
    headers = {b"traceparent": PARENT, b"tracestate": b"a=1, b@c=2", b"baggage": b"user=x%20y;p=1;q , k=v"}
    expected = {"traceparent": PARENT.decode(), "tracestate": "a=1, b@c=2", "baggage": "user=x%20y;p=1;q , k=v"}
    assert traced(b'{"name":"t","arguments":{"a":1}}', headers) == {
        "name": "t",
        "arguments": {"a": 1},
        "_meta": expected,
    }
    assert traced(None, headers) == {"_meta": expected}
    with_meta = traced(b'{"_meta":{"progressToken":7,"tracestate":"own=1"}}', headers)
    assert with_meta == {"_meta": {"progressToken": 7, **expected, "tracestate": "own=1"}}


def test_what_the_client_put_into_the_message_is_left_alone() -> None:
    own = b'{"_meta":{"traceparent":"00-11111111111111111111111111111111-2222222222222222-00"}}'
    headers = {b"traceparent": PARENT, b"tracestate": b"a=1", b"baggage": b"a=1"}
    assert traced(own, headers) == json.loads(own)
    assert traced(b'{"_meta":7}', headers) == {"_meta": 7}


@pytest.mark.parametrize(
    "parent",
    [
        b"", b"00", PARENT.upper(), PARENT + b"-x", PARENT[:-1], PARENT + b"0",
        b"ff" + PARENT[2:], PARENT[:3] + b"0" * 32 + PARENT[35:],
        PARENT[:36] + b"0" * 16 + PARENT[52:], PARENT.replace(b"-", b"_"), PARENT[:-2] + b"zz", PARENT + b"\n",
        b"01" + PARENT[2:] + b"-" + b"x" * 300, PARENT + b'","x":"',
    ],
)  # fmt: skip
def test_a_parent_that_is_none_is_dropped_with_the_rest(parent: bytes) -> None:
    if parent.strip() == PARENT:
        parent += b"x"
    assert trace.trace_of({b"traceparent": parent, b"tracestate": b"a=1", b"baggage": b"a=1"}) == {}


def test_later_versions_are_passed_on() -> None:
    later = b"01" + PARENT[2:]
    for parent in (later, later + b"-more"):
        assert trace.trace_of({b"traceparent": parent}) == {"traceparent": parent}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"tracestate", b"A=1"), (b"tracestate", b"a"), (b"tracestate", b"a=1,,=2"), (b"tracestate", b"a=b=c"),
        (b"tracestate", b"a=\xff"), (b"tracestate", b"a=" + b"x" * 300), (b"tracestate", b",".join([b"a=1"] * 33)),
        (b"tracestate", b"a=1," * 200), (b"baggage", b"k"), (b"baggage", b"k=v w"), (b"baggage", b"k=\"v\""),
        (b"baggage", b"k=\\"), (b"baggage", b"k=v;=p"), (b"baggage", b"k=" + b"x" * 8200), (b"baggage", b"\xff=1"),
        (b"baggage", b",".join([b"k=v"] * 65)), (b"baggage", b",,"), (b"tracestate", b""),
    ],
)  # fmt: skip
def test_a_list_that_is_not_valid_is_dropped_alone(name: bytes, value: bytes) -> None:
    assert trace.trace_of({b"traceparent": PARENT, name: value}) == {"traceparent": PARENT}


@given(st.binary(max_size=100), st.binary(max_size=100), st.binary(max_size=100))
def test_nothing_from_a_header_leaves_its_string(parent: bytes, state: bytes, baggage: bytes) -> None:
    found = trace.trace_of({b"traceparent": parent, b"tracestate": state, b"baggage": baggage})
    assert set(found) <= {"traceparent", "tracestate", "baggage"}
    ok = trace.trace_of({b"traceparent": PARENT, b"tracestate": state, b"baggage": baggage})
    assert all(re.fullmatch(rb"[ \t!-~]+", value) for value in ok.values())


@pytest.mark.parametrize("value", [b"", b" ", b"a b", b"-a", b"a\n", b'"', b"x" * 129, b"\xe4"])
def test_an_odd_request_id_is_not_taken(value: bytes) -> None:
    assert trace.given_request_id({b"x-request-id": value}) == ""


def test_requests_get_ids_of_their_own() -> None:
    assert trace.given_request_id({b"x-request-id": b"0190-Ab.c_d~e:f/g+h=@i"}) == "0190-Ab.c_d~e:f/g+h=@i"
    assert len({trace.new_request_id() for _ in range(1000)}) == 1000


# ---------------------------------------------------------------------------------------- over a real socket


@pytest.fixture
def wire(tmp_path: Path) -> Path:
    return tmp_path / "wire"


@pytest.fixture
def wired(alone: Callable[..., Bridge], wire: Path) -> Bridge:
    return alone("--server", f"w={COMMAND} --wire {wire}", "--call-timeout", "1")


def calls(wire: Path) -> list[dict[str, dict[str, object]]]:
    messages = [json.loads(line) for line in wire.read_bytes().splitlines()]
    return [message["params"] for message in messages if message["method"] == "tools/call"]


def test_the_server_sees_the_clients_trace(wired: Bridge, wire: Path) -> None:
    client = wired.client("w").open()
    client.post(call("echo", text="a"), traceparent=PARENT.decode(), tracestate="v=1", baggage="k=v")
    client.post(call("echo", text="b"), traceparent="00-nonsense")
    client.post(call("echo", text="c"))
    batch = wired.client("w")
    batch.post([call("echo", 1, text="d"), call("echo", 2, text="e")], traceparent=PARENT.decode())
    first, *plain, fourth, fifth = calls(wire)
    expected = {"traceparent": PARENT.decode(), "tracestate": "v=1", "baggage": "k=v"}
    assert first["_meta"].items() >= expected.items()
    assert first["arguments"] == {"text": "a"}
    assert not any(expected.keys() & params["_meta"].keys() for params in plain)
    assert all(params["_meta"]["traceparent"] == PARENT.decode() for params in (fourth, fifth))


def test_an_error_has_the_id_that_the_log_names(wired: Bridge) -> None:
    client = wired.client("w").open()
    reply = client.post(call("hang"), X_Request_Id="find-me")
    assert reply.headers["x-request-id"] == "find-me"
    eventually(lambda: "find-me" in wired.said(), "the log names the request")
    assert "server w: calls that timed out: 1" in wired.said()
    own = [wired.client(name).post(initialize()).headers["x-request-id"] for name in ("missing", "missing")]
    assert len(set(own)) == 2
    assert wired.http().get("/nothing").headers["x-request-id"]


def test_pages_of_this_machine_may_send_and_read_them(bridge: Bridge) -> None:
    headers = {
        "Origin": "http://localhost:3000",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "traceparent, tracestate, baggage, x-request-id",
    }
    reply = bridge.http().options("/mcp/s", headers=headers)
    allowed = reply.headers["access-control-allow-headers"].lower()
    assert all(name in allowed for name in ("traceparent", "tracestate", "baggage", "x-request-id"))
    answer = bridge.client().post(initialize(), Origin="http://localhost:3000")
    assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
