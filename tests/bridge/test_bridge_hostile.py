# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a server writes costs its own callers at most."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from bridge_harness import FIXTURE, Bridge, call, text_of

from mcpd.bridge import jsonrpc
from mcpd.bridge.upstream.pipes import LINES_AT_ONCE, LineReader
from mcpd.errors import InvalidRequest, ParseError

if TYPE_CHECKING:
    from collections.abc import Callable

COMMAND = f"{sys.executable} {FIXTURE.with_name('hostile_server.py')}"


@pytest.fixture
def hostile(alone: Callable[..., Bridge]) -> Bridge:
    return alone("--server", f"h={COMMAND}")


def test_a_server_that_writes_only_junk_is_stopped(hostile: Bridge) -> None:
    answer = hostile.client("h").open().ask(call("junk"))
    assert "no JSON-RPC" in answer["error"]["message"]
    assert "10000 lines in a row were broken" in hostile.said()
    assert hostile.client().open().ask(call("echo", text="still here"))


def test_broken_lines_between_good_ones_stop_nobody(hostile: Bridge) -> None:
    client = hostile.client("h").open()
    for _ in range(3):
        assert text_of(client.ask(call("batch"))) == "written"
        assert text_of(client.ask(call("surrogate"))) == "written"
    assert "is not JSON" in hostile.said()


def test_a_server_has_few_open_requests_to_its_client(hostile: Bridge) -> None:
    client = hostile.client("h").open(capabilities={"sampling": {}})
    assert text_of(client.ask(call("ask"), Accept="application/json")) == "36"


def test_a_request_of_a_server_with_a_huge_id_goes_nowhere(hostile: Bridge) -> None:
    client = hostile.client("h").open(capabilities={"sampling": {}})
    assert text_of(client.ask(call("ask_long"), Accept="application/json")) == "0"
    assert "longer than 1024 bytes" in hostile.said()


def test_many_lines_are_taken_in_turns() -> None:
    lines: list[bytes] = []
    reader = LineReader(lines.append, lambda *_ends: None, 100)
    assert not reader.feed(b"1\n" * (2 * LINES_AT_ONCE) + b"rest")
    assert len(lines) == LINES_AT_ONCE
    assert reader.go_on()
    assert len(lines) == 2 * LINES_AT_ONCE
    assert reader.feed(b"!\n")
    assert lines[-1] == b"rest!"


def test_only_short_lines_are_repaired_or_batches() -> None:
    half = b'{"jsonrpc":"2.0","method":"m","params":{"a":"\\ud83d"},"x":"%b"}'
    assert jsonrpc.parse_line(half % b"x")[0]["method"] == jsonrpc.Raw(b'"m"')
    for line in (
        b'{"jsonrpc":"2.0","\\ud83d":"%b"}' % (b"x" * jsonrpc.MAX_COSTLY),
        b"[" + b"{}," * jsonrpc.MAX_BATCH + b"{}]",
        b"[{}" + b" " * jsonrpc.MAX_COSTLY + b"]",
    ):
        with pytest.raises(ParseError):
            jsonrpc.parse_line(line)


def test_what_is_kept_of_a_message_does_not_keep_the_rest_of_its_body() -> None:
    ping = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"b"}%b}'
    single = ping % (b" " * 100_000)
    message = jsonrpc.parse_body(single)
    assert isinstance(message, dict)
    assert message["params"] == jsonrpc.Raw(b'{"a":"b"}')
    assert sys.getrefcount(single) == 2
    batch = b"[%b,%b,%b]" % (ping % b"", single, ping % (b',"x":"%b"' % (b"x" * 100_000)))
    members = jsonrpc.parse_body(batch)
    assert sys.getrefcount(batch) == 2
    assert isinstance(members, list)
    assert len(members) == 3
    raw = jsonrpc.Raw(single)
    member = jsonrpc.parse_member(raw)
    del raw
    assert member["params"] == jsonrpc.Raw(b'{"a":"b"}')
    assert sys.getrefcount(single) == 2


def test_only_short_lines_are_repaired() -> None:
    half = b'{"jsonrpc":"2.0","method":"m","params":{"a":"\\ud83d","b":"%b"}}'
    assert jsonrpc.parse_line(half % (b"x" * 60_000))[0]["method"] == jsonrpc.Raw(b'"m"')
    with pytest.raises(ParseError):
        jsonrpc.parse_line(half % (b"x" * 70_000))


@pytest.mark.parametrize("more", ["result", "error"])
def test_a_request_that_is_also_a_response_is_refused(more: str) -> None:
    message = jsonrpc.parse_body(b'{"jsonrpc":"2.0","id":5,"method":"ping","%b":{}}' % more.encode())
    assert isinstance(message, dict)
    with pytest.raises(InvalidRequest):
        jsonrpc.classify(message)
