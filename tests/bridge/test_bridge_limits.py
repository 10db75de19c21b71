# SPDX-License-Identifier: LGPL-2.1-or-later
"""The token bucket of each caller and server, and what a client sees of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.bridge.callers import Caller
from mcpd.bridge.observe import limits
from mcpd.bridge.observe.limits import RateLimiter
from tests.bridge.bridge_harness import Bridge, call, initialize

if TYPE_CHECKING:
    from collections.abc import Callable

ALICE, BOB = Caller(1000), Caller(1001)
SECOND = 1_000_000_000


class Clock:
    """Nanoseconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 123 * SECOND

    def __call__(self) -> int:
        return self.now


class Bucket:
    """The definition: *burst* tokens, of which *rate* come back a second; counted in nanoseconds of one token."""

    def __init__(self, rate: int, burst: int, now: int) -> None:
        self.interval = SECOND // rate
        self.burst = burst * self.interval
        self.level, self.at = self.burst, now

    def take(self, now: int) -> bool:
        self.level = min(self.burst, self.level + now - self.at)
        self.at = now
        if self.level < self.interval:
            return False
        self.level -= self.interval
        return True


rates = st.sampled_from([1, 2, 5, 10, 100, 1000])
waits = st.lists(st.one_of(st.just(0), st.integers(0, 3 * SECOND), st.integers(0, SECOND // 500)), max_size=60)


@given(rates, st.integers(1, 20), waits)
def test_it_does_what_a_token_bucket_does(rate: int, burst: int, waits: list[int]) -> None:
    clock = Clock()
    limiter = RateLimiter(rate, burst, clock)
    bucket = Bucket(rate, burst, clock.now)
    for wait in waits:
        clock.now += wait
        assert (limiter.take(ALICE, "s") == 0.0) == bucket.take(clock.now)


@given(rates, st.integers(1, 20), st.integers(0, 50))
def test_the_seconds_it_tells_are_those_until_the_next_call_goes_through(rate: int, burst: int, more: int) -> None:
    clock = Clock()
    limiter = RateLimiter(rate, burst, clock)
    for _ in range(burst + more):
        wait = limiter.take(ALICE, "s")
        if wait:
            clock.now += round(wait * SECOND) - 1
            assert 0 < limiter.take(ALICE, "s") <= 2e-9
            clock.now += 1
            assert limiter.take(ALICE, "s") == 0.0


@given(rates, st.integers(1, 20), waits)
def test_never_more_goes_through_than_burst_and_rate_allow(rate: int, burst: int, waits: list[int]) -> None:
    clock = Clock()
    limiter = RateLimiter(rate, burst, clock)
    start, passed = clock.now, 0
    for wait in waits:
        clock.now += wait
        passed += limiter.take(ALICE, "s") == 0.0
        assert passed <= burst + (clock.now - start) * rate / SECOND


def test_each_caller_has_a_bucket_for_each_server() -> None:
    limiter = RateLimiter(1, 1, Clock())
    pairs = [(ALICE, "s"), (ALICE, "t"), (BOB, "s"), (Caller(1000, "by-server"), "s")]
    assert [limiter.take(*pair) for pair in pairs] == [0.0] * 4
    assert all(limiter.take(*pair) > 0 for pair in pairs)


def test_new_limits_count_from_the_next_call() -> None:
    clock = Clock()
    limiter = RateLimiter(1, 2, clock)
    assert [limiter.take(ALICE, "s") == 0.0 for _ in range(3)] == [True, True, False]
    limiter.replace(1000, 5)
    assert limiter.take(ALICE, "s") > 0
    clock.now += 2 * SECOND
    assert [limiter.take(ALICE, "s") == 0.0 for _ in range(6)] == [True] * 5 + [False]


def test_full_buckets_are_forgotten() -> None:
    clock = Clock()
    limiter = RateLimiter(1000, 10, clock)
    for number in range(100_000):
        clock.now += SECOND // 1000
        assert limiter.take(Caller(number), "s") == 0.0
    assert len(limiter) <= 2000


def test_the_emptiest_buckets_are_kept_when_there_are_too_many() -> None:
    clock = Clock()
    limiter = RateLimiter(0.001, 2, clock)
    assert [limiter.take(ALICE, "s") == 0.0 for _ in range(3)] == [True, True, False]
    for number in range(limits.MOST_BUCKETS + 10):
        limiter.take(BOB, str(number))
    assert len(limiter) < limits.MOST_BUCKETS
    assert limiter.take(ALICE, "s") > 0


# ---------------------------------------------------------------------------------------- over a real socket


@pytest.fixture
def limited(alone: Callable[..., Bridge]) -> Bridge:
    return alone("--rate", "1", "--burst", "5")


def test_who_calls_too_often_is_told_when_to_come_back(limited: Bridge) -> None:
    client = limited.client()
    replies = [client.post(call("echo", number)) for number in range(20)]
    statuses = [reply.status_code for reply in replies]
    assert statuses[:5] == [200] * 5
    assert 429 in statuses
    refused = next(reply for reply in replies if reply.status_code == 429)
    assert 1 <= int(refused.headers["retry-after"]) <= 5
    assert refused.json()["error"]["code"] == -32005
    assert refused.headers["x-request-id"]
    time.sleep(int(refused.headers["retry-after"]))
    assert client.post(call("echo")).status_code == 200


def test_other_servers_are_not_limited_by_the_calls_of_one(alone: Callable[..., Bridge]) -> None:
    from tests.bridge.bridge_harness import COMMAND

    bridge = alone("--rate", "0.01", "--burst", "3", "--server", f"t={COMMAND}")
    for _ in range(2):
        assert [bridge.client("s").post(initialize()).status_code for _ in range(4)][-1] == 429
    assert bridge.client("t").post(initialize()).status_code == 200
