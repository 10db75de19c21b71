# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pools by themselves: who gets which process when."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from mcpd.bridge import jsonrpc
from mcpd.bridge.budget import Budget
from mcpd.bridge.handshake.greeting import POOL_GREETING, greeting
from mcpd.bridge.upstream.audience import Audience, News
from mcpd.bridge.upstream.call import Call
from mcpd.bridge.upstream.child import InFlight
from mcpd.errors import HeldBack, LimitExceeded, NotAuthorized
from tests.bridge.bridge_harness import text_of
from tests.bridge.pool_world import ASKING, ME, OTHER, Client, Sink, asked, eventually, send, world

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mcpd.bridge.callers import Caller
    from mcpd.bridge.jsonrpc import Message
    from mcpd.bridge.upstream.commands import Process
    from mcpd.bridge.upstream.pool import Pool
    from mcpd.errors import McpdError
    from tests.bridge.pool_world import World


# ---------------------------------------------------------------------------------------- processes


async def test_many_first_calls_start_one_process(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    async with world("--starts", str(starts)) as made:
        pool = await made.open()
        sinks = [send(pool, "pid") for _ in range(20)]
        assert len({text_of(await sink.future) for sink in sinks}) == 1
        assert len(starts.read_text().split()) == 1


async def test_at_most_four_processes_ask_at_once_and_further_calls_wait() -> None:
    async with world() as made:
        pool = await made.open(ASKING)
        clients = [Client(f"client {number}", silent=True) for number in range(6)]
        sinks = [send(pool, "ask", client, method="elicitation/create") for client in clients]
        await eventually(lambda: sum(len(client.asked) for client in clients) == 4)
        assert pool.processes == len(made.parts.process_counts) == 4
        assert [len(client.asked) for client in clients] == [1, 1, 1, 1, 0, 0]
        for client in clients:
            await eventually(partial(getattr, client, "asked"))
            client.answer()
        answers = [asked(await sink.future) for sink in sinks]
        assert [said for _, said in answers] == [client.name for client in clients]
        assert len({pid for pid, _ in answers}) == 4


async def test_a_caller_who_leaves_the_queue_is_removed_from_it() -> None:
    async with world() as made:
        pool = await made.open(ASKING)
        busy = [Client("busy", silent=True) for _ in range(4)]
        sinks = [send(pool, "ask", client, method="elicitation/create") for client in busy]
        await eventually(lambda: all(client.asked for client in busy))
        gone, cancelled, waiting = (send(pool, "echo", Client("w"), str(n), text=f"{n}") for n in range(3))
        pool.abandon(gone)
        pool.cancel(cancelled, b'"1"', jsonrpc.notification("notifications/cancelled"))
        assert cancelled.was_cancelled
        busy[2].answer()
        assert text_of(await waiting.future) == "2"
        assert not gone.future.done()
        for client in busy:
            if client.asked:
                client.answer()
        await asyncio.gather(*(sink.future for sink in sinks))


async def test_the_queue_is_bounded_in_number() -> None:
    async with world() as made:
        pool = await made.open(ASKING)
        sinks = [send(pool, "hang", Client("w")) for _ in range(4 + 256 + 1)]
        with pytest.raises(LimitExceeded, match="256 calls wait"):
            await sinks[-1].future
        for sink in sinks[:-1]:
            pool.abandon(sink)
        assert text_of(await send(pool, "echo", Client("w"), text="there is room").future) == "there is room"


async def test_the_queue_is_counted_in_the_budget() -> None:
    async with world() as made:
        made.parts.budget.total = 1_000_000
        pool = await made.open(ASKING)
        for _ in range(4):
            send(pool, "hang", Client("w"))
        await eventually(lambda: pool.processes == 4)
        kept = send(pool, "echo", Client("w"), text="x" * 600_000)
        assert made.parts.budget.held > 600_000
        with pytest.raises(LimitExceeded, match="max_buffered"):
            await send(pool, "echo", Client("w"), text="x" * 600_000).future
        pool.abandon(kept)
        await eventually(lambda: not made.parts.budget.held)


async def test_a_process_that_was_cancelled_does_not_serve_the_next_call() -> None:
    async with world() as made:
        pool = await made.open(ASKING)
        client = Client("first")
        before = text_of(await send(pool, "pid", client).future)
        sink = send(pool, "hang", client, "h")
        pool.cancel(client, b'"h"', jsonrpc.notification("notifications/cancelled", b'{"requestId":"h"}'))
        assert sink.was_cancelled
        assert text_of(await send(pool, "pid", Client("second")).future) != before


async def test_what_is_said_in_the_course_of_a_call_that_was_given_up_reaches_no_other() -> None:
    async with world() as made:
        pool = await made.open()
        await send(pool, "pid").future
        gone = send(pool, "log", level="error", text="not for others", delay=0.2)
        pool.abandon(gone)
        during = send(pool, "echo", text="during", delay=0.6)
        assert text_of(await during.future) == "during"
        assert during.pushed == []
        after = send(pool, "log", level="error", text="mine")
        await after.future
        assert [message["params"]["data"] for message in after.pushed] == ["mine"]


async def test_a_crash_fails_the_calls_in_flight_and_the_next_one_starts_it_again() -> None:
    async with world() as made:
        pool = await made.open()
        hanging = send(pool, "hang")
        before = text_of(await send(pool, "pid").future)
        assert "error" in await send(pool, "crash").future
        assert "ended before it answered" in (await hanging.future)["error"]["message"]
        assert text_of(await send(pool, "pid").future) != before


async def test_an_idle_process_is_stopped_but_never_in_mid_call() -> None:
    async with world(idle_timeout=0.3) as made:
        pool = await made.open()
        assert text_of(await send(pool, "echo", text="late", delay=1).future) == "late"
        assert pool.processes == 1
        await eventually(lambda: made.pools.idle)
        assert made.pools.find("p", ME, POOL_GREETING) is None or not pool.processes


async def test_the_processes_of_a_caller_are_limited() -> None:
    async with world(max_children=1) as made:
        await send(await made.open(), "pid").future
        with pytest.raises(LimitExceeded, match="max_children"):
            await send(await made.open(ASKING), "pid", Client("c")).future
        assert "result" in await send(await made.open(caller=OTHER), "pid", caller=OTHER).future


async def test_calls_wait_for_a_process_where_no_further_one_may_start() -> None:
    async with world(max_children=1) as made:
        pool = await made.open(ASKING)
        sinks = [send(pool, "pid", Client("c")) for _ in range(5)]
        assert len({text_of(await sink.future) for sink in sinks}) == 1


async def test_pools_without_processes_are_limited_too() -> None:
    async with world(max_children=2) as made:
        for number in range(100):
            await made.open(greeting("2025-11-25", b'{"experimental":{"%d":{}}}' % number))
        for number in range(8):
            (await made.open(greeting("2025-11-25", b'{"x":{"%d":{}}}' % number))).join(Client("m"))
        with pytest.raises(LimitExceeded, match="kinds of processes"):
            await made.open(greeting("2025-11-25", b'{"x":{"one":{}}}'))


# ---------------------------------------------------------------------------------------- all callers


async def test_a_process_of_all_serves_only_those_who_may_use_it() -> None:
    async with world() as made:
        made.source.info = replace(made.source.info, sharing="all")
        pool = await made.open()
        with pytest.raises(NotAuthorized):
            await made.open(caller=OTHER)
        assert made.pools.find("p", OTHER, POOL_GREETING) is None
        made.source.admitted.add(OTHER)
        assert await made.open(caller=OTHER) is pool is made.pools.find("p", OTHER, POOL_GREETING)


async def shared(made: World) -> Pool:
    """The pool of a server that ME and OTHER share, whose processes may ask."""
    made.source.info = replace(made.source.info, sharing="all")
    made.source.admitted = {ME, OTHER}
    return await made.open(ASKING)


async def test_a_caller_is_served_however_many_calls_of_another_wait() -> None:
    async with world() as made:
        pool = await shared(made)
        sinks = [send(pool, "hang", Client("mine")) for _ in range(4 + 256)]
        for _ in range(3):
            others = send(pool, "echo", Client("other"), caller=OTHER, text="served")
            assert text_of(await others.future) == "served"
        await eventually(lambda: pool.processes == 5)
        with pytest.raises(LimitExceeded, match="256 calls wait"):
            await send(pool, "hang", Client("mine")).future
        for sink in sinks:
            pool.abandon(sink)


async def test_a_caller_who_has_all_its_processes_keeps_no_other_from_those_that_may_ask() -> None:
    async with world(max_children=2) as made:
        pool = await shared(made)
        mine = [send(pool, "hang", Client("mine")) for _ in range(2)]
        await eventually(lambda: pool.processes == 2)
        others = send(pool, "echo", Client("other"), caller=OTHER, text="served")
        assert text_of(await others.future) == "served"
        for sink in mine:
            pool.abandon(sink)


async def test_a_caller_who_has_all_its_processes_keeps_no_other_from_one_of_all() -> None:
    async with world(max_children=1) as made:
        asking = await shared(made)
        pool = await made.open()
        mine = send(asking, "hang", Client("mine"))
        await eventually(lambda: asking.processes == 1)
        with pytest.raises(LimitExceeded, match="max_children"):
            await send(pool, "echo", text="no").future
        assert text_of(await send(pool, "echo", caller=OTHER, text="served").future) == "served"
        assert text_of(await send(pool, "echo", text="shared").future) == "shared"
        asking.abandon(mine)


def refuse_me(made: World, fault: type[McpdError], monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Have no process started for ME, which is known after the event that is returned."""
    start, waits = made.source.start, asyncio.Event()

    async def start_for(server: str, caller: Caller, environment: Mapping[str, str]) -> Process:
        if caller == ME:
            await waits.wait()
            raise fault("not for you")
        return await start(server, caller, environment)

    monkeypatch.setattr(made.source, "start", start_for)
    return waits


@pytest.mark.parametrize("fault", [LimitExceeded, HeldBack, NotAuthorized])
async def test_what_a_server_speaks_is_found_out_for_another_if_not_for_one(
    fault: type[McpdError], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world() as made:
        await shared(made)
        waits = refuse_me(made, fault, monkeypatch)
        mine, others = (asyncio.ensure_future(made.pools.eras(made.source.info, each)) for each in (ME, OTHER))
        await eventually(lambda: len(made.parts.process_counts))
        waits.set()
        with pytest.raises(fault):
            await mine
        assert await others == (True, False)


@pytest.mark.parametrize("fault", [LimitExceeded, HeldBack, NotAuthorized])
async def test_a_process_that_one_caller_may_not_start_is_started_for_another_who_waits_for_it(
    fault: type[McpdError], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world() as made:
        await shared(made)
        pool = await made.open()
        waits = refuse_me(made, fault, monkeypatch)
        mine = send(pool, "pid")
        others = send(pool, "echo", caller=OTHER, text="served")
        ready = asyncio.ensure_future(pool.ready(OTHER))
        await eventually(lambda: len(made.parts.process_counts) == 1)
        waits.set()
        with pytest.raises(fault):
            await mine.future
        assert text_of(await others.future) == "served"
        await ready


async def test_callers_take_turns_where_calls_of_several_wait() -> None:
    async with world() as made:
        pool = await shared(made)
        mine = [send(pool, "hang", Client("mine")) for _ in range(4)]
        others = send(pool, "hang", Client("other"), caller=OTHER)
        await eventually(lambda: pool.processes == 5)
        waiting = [send(pool, "hang", Client("mine")) for _ in range(10)]
        served = send(pool, "echo", Client("other"), caller=OTHER, text="served")
        pool.abandon(mine[0])
        assert text_of(await served.future) == "served"
        for sink in (*mine, *waiting, others):
            pool.abandon(sink)


# ---------------------------------------------------------------------------------------- calls in flight


async def test_calls_in_flight_are_counted_in_the_budget() -> None:
    async with world() as made:
        budget = made.parts.budget
        budget.total = 4 << 20
        pool = await made.open()
        await send(pool, "pid").future
        sinks = []
        for _ in range(10):
            sinks.append(send(pool, "hang", text="x" * 1_000_000))
            assert budget.held <= budget.total
            # The server reads everything, and answers nothing of it.
            await send(pool, "pid").future
        refused = [sink.future.exception() for sink in sinks if sink.future.done()]
        assert len(refused) == 7
        assert all(isinstance(fault, LimitExceeded) and "bridge.max_buffered" in fault.message for fault in refused)
        assert budget.held > 3_000_000
        for sink in sinks:
            pool.abandon(sink)
        await eventually(lambda: not budget.held)
        assert text_of(await send(pool, "echo", text="y" * 1_000_000).future) == "y" * 1_000_000
        await eventually(lambda: not budget.held)


async def test_calls_of_a_shared_process_are_counted_for_those_who_make_them() -> None:
    async with world() as made:
        made.parts.budget = Budget(4 << 20, shares=2)
        await shared(made)
        pool = await made.open()
        await send(pool, "pid").future
        mine: list[Sink] = []
        for size in (500_000, 50_000):
            while not mine or not mine[-1].future.done():
                mine.append(send(pool, "hang", text="x" * size))
                # The server reads everything, and answers nothing of it.
                await send(pool, "pid", caller=OTHER).future
            assert isinstance(mine.pop().future.exception(), LimitExceeded)
        for _ in range(3):
            others = send(pool, "echo", caller=OTHER, text="x" * 100_000)
            assert len(text_of(await others.future)) == 100_000
        for sink in mine:
            pool.abandon(sink)


async def test_small_calls_are_counted_together() -> None:
    async with world() as made:
        pool = await made.open()
        await send(pool, "pid").future
        sinks = [send(pool, "hang", text="x" * 2000) for _ in range(100)]
        # The server reads everything.
        await send(pool, "pid").future
        assert made.parts.budget.held >= 200_000
        for sink in sinks:
            pool.abandon(sink)
        await eventually(lambda: not made.parts.budget.held)


async def test_the_largest_calls_in_flight_make_room_for_others() -> None:
    async with world() as made:
        budget = made.parts.budget
        budget.total = 4 << 20
        pool = await made.open()
        large = []
        for _ in range(3):
            large.append(send(pool, "hang", text="x" * 900_000))
            await send(pool, "pid").future
        small = send(pool, "hang", text="small")
        await send(pool, "pid").future
        rival = budget.holding(ME, lambda _fault: None)
        assert rival.hold(2_000_000)
        answers = [await sink.future for sink in large]
        assert all("bridge.max_buffered" in answer["error"]["message"] for answer in answers)
        assert not small.future.done()
        rival.close()
        pool.abandon(small)
        await eventually(lambda: not budget.held)


# ---------------------------------------------------------------------------------------- what members hear


class Hearer:
    """A member that writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def pool_notification(self, method: str, message: Message) -> None:
        self.heard.append(jsonrpc.text(jsonrpc.members(message.get("params")).get("uri")) or method)


def audience(*, one_caller: bool = True) -> Audience:
    async def ask(_method: str, _params: dict[str, str]) -> None:
        """The server accepts everything."""

    return Audience(ask, lambda _method, _params: None, one_caller=one_caller, server="s")


def said(uri: str) -> tuple[str, Message]:
    method = "notifications/resources/updated"
    return method, jsonrpc.notification(method, jsonrpc.encode({"uri": uri}))


async def test_what_is_told_many_times_is_heard_once_in_a_while() -> None:
    members, heard = [Hearer() for _ in range(100)], audience()
    for member in members:
        heard.join(member)
    await heard.subscribe(members[0], "a:b")
    changed = "notifications/tools/list_changed"
    for _ in range(1000):
        heard.hear(changed, jsonrpc.notification(changed))
        heard.hear(*said("a:b"))
    assert [len(member.heard) for member in members] == [2] + 99 * [1]
    await eventually(lambda: members[0].heard.count("a:b") == 2)
    await asyncio.sleep(0.2)
    assert sorted(members[0].heard) == ["a:b", "a:b", changed, changed]
    assert all(member.heard == [changed, changed] for member in members[1:])
    heard.hear(changed, jsonrpc.notification(changed))
    assert members[1].heard == 3 * [changed]


async def test_what_cannot_wait_is_dropped_when_too_many_would_hear_it() -> None:
    members, heard = [Hearer() for _ in range(100)], audience()
    for member in members:
        heard.join(member)
    for _ in range(1000):
        heard.hear("notifications/x", jsonrpc.notification("notifications/x"))
    assert len(members[0].heard) == 20


async def test_news_that_is_long_waits_without_what_came_with_it() -> None:
    member, heard = Hearer(), audience()
    heard.join(member)
    kept: list[Message] = []
    member.pool_notification = lambda method, message: kept.append(message)  # type: ignore[method-assign]
    for method in ("notifications/tools/list_changed", "notifications/x/list_changed"):
        for size in (10, 100_000):
            heard.hear(method, jsonrpc.notification(method, jsonrpc.encode({"_meta": {"x": "y" * size}})))
    await eventually(lambda: len(kept) == 4)
    assert sorted(len(jsonrpc.encode(message)) > 100 for message in kept) == [False, False, False, True]


async def test_a_stream_beside_a_call_leaves_to_it_what_is_said() -> None:
    flight = InFlight(Budget(1 << 20), ME, lambda _caller, _fault: None)
    stream, other = (Call(Sink(), b"1", "m", None, b"", 0.0, timeout, None) for timeout in (math.inf, 30.0))
    flight.add(b"1", stream)
    flight.add(b"2", other)
    assert flight.only is other
    assert flight.give_up(b"1") is stream
    assert flight.only is other
    assert flight.give_up(b"2") is other
    flight.add(b"3", other)
    assert flight.only is None
    flight.take(b"2")
    assert flight.only is other


async def test_a_call_that_was_given_up_is_not_forgotten_for_others() -> None:
    for shared in (False, True):
        flight = InFlight(Budget(1 << 20), ME, lambda _caller, _fault: None, shared=shared)
        for number in range(1100):
            flight.add(b"%d" % number, Call(Sink(), b"1", "m", None, b"", 0.0, 30.0, None))
            flight.give_up(b"%d" % number)
        for number in range(1, 1100):
            flight.take(b"%d" % number)
        flight.add(b"x", Call(Sink(), b"1", "m", None, b"", 0.0, 30.0, None))
        assert flight.only is None


async def test_what_is_about_all_is_told_however_much_else_is_told() -> None:
    told: list[str] = []

    def spread(key: tuple[str, str], _message: Message) -> int:
        told.append(key[1])
        return 1

    news = News(spread, "s")
    for number in range(5000):
        news.tell(("updated", f"u{number}"), {})
    news.tell(("list_changed", ""), {})
    await eventually(lambda: "" in told)
    assert len(told) < 5000


async def test_only_who_is_of_one_caller_hears_of_the_parts_of_a_resource() -> None:
    for one_caller in (True, False):
        member, heard = Hearer(), audience(one_caller=one_caller)
        heard.join(member)
        for uri in ("file://", "file:///home/", "f"):
            await heard.subscribe(member, uri)
        heard.hear(*said("file:///home/other/secret"))
        heard.hear(*said("f"))
        assert member.heard == (["file:///home/other/secret", "f"] if one_caller else ["f"])
