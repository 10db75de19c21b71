# SPDX-License-Identifier: LGPL-2.1-or-later
"""What goes wrong for one of those who share a process costs the others nothing, and no call goes unrecorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mcpd.bridge import jsonrpc
from mcpd.bridge.handshake.greeting import greeting
from mcpd.bridge.observe.watch import Nobody, Outcome
from mcpd.errors import Disabled, McpdError, ServiceUnavailable
from tests.bridge.bridge_harness import call, text_of
from tests.bridge.pool_world import ASKING, Client, Sink, eventually, send, world

if TYPE_CHECKING:
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.jsonrpc import Raw
    from mcpd.bridge.upstream.call import Call
    from mcpd.bridge.upstream.pool import Pool

CANCEL = jsonrpc.notification("notifications/cancelled")


def broken(*_: Any, **__: Any) -> None:
    raise RuntimeError("secret")


class BrokenSink(Sink):
    """Takes no answer."""

    answer = broken


class BrokenClient(Client):
    """Can be told and asked nothing."""

    server_request = broken
    server_notification = broken


def request(pool: Pool, sink: Sink, owner: Client | None = None, shape: Any = None, **arguments: object) -> Sink:
    message = {key: jsonrpc.Raw(jsonrpc.encode(value)) for key, value in call("together", 1, **arguments).items()}
    pool.request(owner, sink, b"1", "tools/call", message, shape=shape)
    return sink


# ---------------------------------------------------------------------------------------- what goes wrong


async def test_a_response_that_cannot_be_edited_fails_its_own_call_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as made:
        pool = await made.open()
        sinks = [request(pool, Sink(), count=3, text=f"{n}", shape=broken if n == 1 else None) for n in range(3)]
        answers = [await sink.future for sink in sinks]
        assert [text_of(answer) for answer in (answers[0], answers[2])] == ["0", "2"]
        assert (answers[1]["id"], answers[1]["error"]["code"]) == (1, -32603)
        assert "secret" not in answers[1]["error"]["message"]
        assert caplog.text.count("RuntimeError: secret") == 1


async def test_an_answer_that_nobody_takes_costs_others_nothing() -> None:
    async with world() as made:
        pool = await made.open()
        first, _, last = (request(pool, kind(), count=3, text="x") for kind in (Sink, BrokenSink, Sink))
        assert text_of(await first.future) == text_of(await last.future) == "x"


async def test_calls_that_end_with_their_server_end_each_for_itself() -> None:
    async with world() as made:
        pool = await made.open()
        first, _, last = (request(pool, kind(), count=4, text="x") for kind in (Sink, BrokenSink, Sink))
        await send(pool, "crash").future
        for sink in (first, last):
            assert "ended before it answered" in (await sink.future)["error"]["message"]


async def test_what_a_client_cannot_be_told_costs_no_answer() -> None:
    async with world() as made:
        pool = await made.open(ASKING)
        sink = request(pool, Sink(), BrokenClient("b"), count=1, text="x")
        assert text_of(await sink.future) == "x"
        asked = send(pool, "ask", BrokenClient("b"), method="elicitation/create")
        assert '"code": -32603' in text_of(await asked.future), "the server does not wait for an answer"


async def test_a_request_that_cannot_be_refused_costs_others_nothing() -> None:
    async with world("--no-such-option") as made:
        pool = await made.open()
        bad, good = Sink(), Sink()
        bad.refuse = broken  # type: ignore[method-assign]
        request(pool, bad, count=1, text="x")
        request(pool, good, count=1, text="x")
        with pytest.raises(McpdError, match="ended while it started"):
            await good.future


# ---------------------------------------------------------------------------------------- what is recorded


class Recorder(Nobody):
    """Takes down how calls end."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def ended(self, server: str, call: Call, outcome: Outcome, response: bytes) -> None:
        if call.sink.caller is not None:
            self.seen.append((call.id.decode(), outcome.value))

    def refused(
        self, caller: Caller | None, server: str, method: str, params: Raw | None, reason: str, request: str = ""
    ) -> None:
        self.seen.append((method, reason))


@pytest.mark.parametrize("own", [greeting("2025-11-25", b"{}"), ASKING])
async def test_calls_that_end_before_a_process_has_started_are_recorded(own: bytes) -> None:
    async with world() as made:
        made.parts.watch = recorder = Recorder()
        pool = await made.open(own)
        names = ("gone", "cancelled", "told")
        gone, cancelled, told = (send(pool, "echo", Client("c"), name, text="x" * 100_000) for name in names)
        assert made.parts.budget.held
        pool.abandon(gone)
        pool.cancel(cancelled, b'"cancelled"', CANCEL)
        pool.abandon(told, ServiceUnavailable("over"))
        assert recorder.seen == [(f'"{name}"', "cancelled") for name in names]
        assert not made.parts.budget.held
        assert not gone.future.done()
        assert cancelled.was_cancelled
        assert (await told.future)["error"]["message"] == "over"


async def test_calls_that_end_in_the_queue_for_a_process_are_recorded() -> None:
    async with world() as made:
        made.parts.watch = recorder = Recorder()
        pool = await made.open(ASKING)
        hanging = [send(pool, "hang", Client("c"), f"h{number}") for number in range(4)]
        await eventually(lambda: pool.processes == 4)
        gone, cancelled = (send(pool, "echo", Client("c"), name, text="x") for name in ("gone", "cancelled"))
        pool.abandon(gone)
        pool.cancel(cancelled, b'"cancelled"', CANCEL)
        assert recorder.seen == [('"gone"', "cancelled"), ('"cancelled"', "cancelled")]
        for sink in hanging:
            pool.abandon(sink)
        pool.retire()
        with pytest.raises(ServiceUnavailable):
            await send(pool, "echo", Client("c"), text="x").future
        assert recorder.seen[-1] == ("tools/call", "ServiceUnknown")


async def test_a_call_of_a_session_whose_server_is_disabled_is_recorded() -> None:
    async with world(sharing="caller") as made:
        session = await made.initialize()
        made.parts.watch = recorder = Recorder()
        made.source.fault = Disabled("server p is disabled")
        made.source.listener()
        await eventually(lambda: not len(made.parts.process_counts))
        with pytest.raises(Disabled):
            await send(session, "pid").future
        assert recorder.seen == [("tools/call", "Disabled")]


# ---------------------------------------------------------------------------------------- subscriptions


async def test_an_update_before_the_answer_to_a_subscription_is_heard() -> None:
    async with world() as made:
        pool = await made.open()
        member, other = Client("member"), Client("other")
        for each in (member, other):
            pool.join(each)
        await pool.subscribe(member, "early:x")
        assert member.heard == ["notifications/resources/updated"]
        assert not other.heard


@pytest.mark.parametrize(
    ("subscribed", "updated", "hears"),
    [
        ("file:///x", "file:///x", True),
        ("file:///x", "file:///x/y", True),
        ("file:///x/", "file:///x/y", True),
        ("file:///x", "file:///x#y", True),
        ("file:///x", "file:///xy", False),
        ("file:///x/y", "file:///x", False),
    ],
)
async def test_updates_of_parts_are_heard_and_of_nothing_else(subscribed: str, updated: str, hears: bool) -> None:
    async with world() as made:
        pool = await made.open()
        member = Client("member")
        pool.join(member)
        await pool.subscribe(member, subscribed)
        await send(pool, "update", uri=updated).future
        assert bool(member.heard) == hears
