# SPDX-License-Identifier: LGPL-2.1-or-later
"""How much is kept of streams for clients that may come back."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest

from mcpd.bridge.budget import Budget
from mcpd.bridge.callers import Caller
from mcpd.bridge.exchange import EventQueue
from mcpd.bridge.handshake.resume import KEPT_BYTES, KEPT_EVENTS, MOST_UNSENT, Streams
from mcpd.errors import InvalidRequest, LimitExceeded

ME = Caller(1)


def read(queue: EventQueue) -> list[Any]:
    """What waits in *queue*, read by its client."""
    found = [json.loads(line[6:]) for line in queue.take().decode().splitlines() if line.startswith("data: ")]
    queue.sent()
    return found


def opened(streams: Streams) -> EventQueue:
    queue = EventQueue()
    queue.charge(streams._budget, ME, lambda: None)
    queue.track = streams.open(queue)
    return queue


def resumed(streams: Streams, last_event_id: bytes) -> EventQueue:
    queue = EventQueue()
    queue.charge(streams._budget, ME, lambda: None)
    streams.listen(queue, last_event_id)
    return queue


def test_while_nobody_listens_so_much_is_kept_and_the_answer_always() -> None:
    streams = Streams(Budget(), ME)
    queue = opened(streams)
    track = queue.track
    assert track is not None
    first = streams.id_of(track, 0)
    queue.hang_up()
    taken = [track.push(b"%d" % number) for number in range(2 * MOST_UNSENT)]
    assert taken == [True] * MOST_UNSENT + [False] * MOST_UNSENT
    assert track.push(b'"needed"', needed=True)
    track.answer(b'"answer"')
    track.end()
    back = resumed(streams, first)
    assert read(back)[-3:] == [MOST_UNSENT - 1, "needed", "answer"]
    assert back.ended


def test_what_waits_is_not_driven_out_by_what_was_sent() -> None:
    streams = Streams(Budget(), ME)
    away, busy = opened(streams), opened(streams)
    assert away.track is not None
    first = streams.id_of(away.track, 0)
    away.hang_up()
    away.track.answer(b'"waiting"')
    away.track.end()
    assert busy.track is not None
    for _ in range(3 * KEPT_EVENTS):
        assert busy.track.push(b"1")
        read(busy)
    assert read(resumed(streams, first)) == ["waiting"]


def test_what_is_kept_is_counted_for_the_caller_and_given_back() -> None:
    budget = Budget(64 << 20)
    streams = Streams(budget, ME)
    queue = opened(streams)
    assert queue.track is not None
    for _ in range(100):
        queue.track.answer(b'"%b"' % (b"x" * 100_000))
        read(queue)
    assert KEPT_BYTES / 2 < budget.held <= KEPT_BYTES
    streams.close()
    assert budget.held == 0


def test_a_large_answer_is_kept_until_it_was_read() -> None:
    budget = Budget(64 << 20)
    streams = Streams(budget, ME)
    queue = opened(streams)
    assert queue.track is not None
    first = streams.id_of(queue.track, 0)
    large = b'"%b"' % (b"x" * 3 * KEPT_BYTES)
    queue.hang_up()
    queue.track.answer(large)
    queue.track.end()
    back = resumed(streams, first)
    back.hang_up()
    back = resumed(streams, first)
    assert read(back) == [json.loads(large)]
    back.release()
    assert budget.held == 0
    with pytest.raises(InvalidRequest, match="too old"):
        resumed(streams, first)


def test_an_answer_for_which_there_is_no_memory_becomes_an_error() -> None:
    streams = Streams(Budget(1 << 20), ME)
    queue = opened(streams)
    assert queue.track is not None
    first = streams.id_of(queue.track, 0)
    queue.hang_up()
    queue.track.answer(b'{"jsonrpc":"2.0","id":"big","result":"%b"}' % (b"x" * (2 << 20)))
    queue.track.end()
    (found,) = read(resumed(streams, first))
    assert (found["id"], found["error"]["code"]) == ("big", LimitExceeded.jsonrpc_code)


def test_memory_that_others_need_is_given_up() -> None:
    budget = Budget(1 << 20)
    streams = Streams(budget, ME)
    queue = opened(streams)
    assert queue.track is not None
    first = streams.id_of(queue.track, 0)
    queue.track.answer(b'"%b"' % (b"x" * 600_000))
    queue.track.end()
    read(queue)
    other = budget.holding(ME, lambda _fault: None)
    assert other.hold(500_000)
    assert budget.held == 500_000
    with pytest.raises(InvalidRequest, match="too old"):
        resumed(streams, first)


def test_what_many_sessions_keep_is_counted() -> None:
    budget = Budget()
    crowd = [Streams(budget, ME) for _ in range(100)]
    for streams in crowd:
        for _ in range(50):
            streams.push(b'"%b"' % (b"x" * 1000), needed=True)
    assert budget.held > 100 * 50_000
    for streams in crowd:
        streams.close()
    assert not budget.held


def test_closed_streams_are_freed_without_the_collector() -> None:
    streams = Streams(Budget(), ME)
    streams.push(b"1")
    streams.close()
    assert not streams.push(b"2")
    gc.collect()
    gc.disable()
    try:
        del streams
        assert gc.collect() == 0
    finally:
        gc.enable()
