# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a server writes costs its own callers at most."""

from __future__ import annotations

import heapq
import sys
import time
from typing import TYPE_CHECKING

import pytest

from mcpd.bridge import jsonrpc
from mcpd.bridge.upstream.pipes import CHATTER_AT_ONCE, CHATTER_PAUSE, LINES_AT_ONCE, Chatter, LineReader
from mcpd.errors import InvalidRequest, ParseError
from tests.bridge.bridge_harness import FIXTURE, Bridge, call, text_of
from tests.bridge.pool_world import send, world

if TYPE_CHECKING:
    from collections.abc import Callable

COMMAND = f"{sys.executable} {FIXTURE.with_name('hostile_server.py')}"


@pytest.fixture
def hostile(alone: Callable[..., Bridge]) -> Bridge:
    return alone("--server", f"h={COMMAND}")


def test_a_server_that_writes_only_junk_is_stopped(hostile: Bridge) -> None:
    answer = hostile.client("h").open().ask(call("junk"))
    assert "something other than JSON-RPC" in answer["error"]["message"]
    assert "it sent 10000 invalid lines in a row" in hostile.said()
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


@pytest.mark.parametrize("servers", [1, 8, 100])
def test_many_servers_that_chatter_are_read_little_more_than_one(servers: int) -> None:
    chatter, seconds = Chatter(), 60.0
    wakes = [(0.0, 0.0, who) for who in range(servers)]
    said = 0
    while wakes[0][0] < seconds:
        # As fast as it is read, a server has said all that it may at once.
        now, began, who = heapq.heappop(wakes)
        said += CHATTER_AT_ONCE
        pause = chatter.pause(who, began, now)
        heapq.heappush(wakes, (now + pause, now + pause, who))
    assert said <= CHATTER_AT_ONCE * (seconds / CHATTER_PAUSE * 1.1 + servers)


def test_a_server_that_says_little_is_read_at_once() -> None:
    chatter = Chatter()
    assert chatter.pause(1, 0.0, CHATTER_PAUSE) == 0
    assert chatter.pause(1, 0.0, CHATTER_PAUSE / 2) == CHATTER_PAUSE / 2


async def test_a_server_that_chatters_is_read_more_slowly_and_loses_nothing() -> None:
    async with world() as made:
        pool = await made.open()
        await send(pool, "pid").future
        began = time.monotonic()
        assert text_of(await send(pool, "chatter", count=10 * CHATTER_AT_ONCE).future) == "enough"
        # The first come at once, and so may the last, with the answer behind them.
        assert time.monotonic() - began >= 5 * CHATTER_PAUSE


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
