# SPDX-License-Identifier: LGPL-2.1-or-later
"""The modern era by itself, on real processes: how long and how many calls wait for their clients, and what is kept."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.bridge.budget import Budget
from mcpd.bridge.callers import Caller
from mcpd.bridge.exchange import Exchange
from mcpd.bridge.http.post import Post
from mcpd.bridge.modern import Modern, run, seal
from mcpd.bridge.modern.seal import Seal
from mcpd.bridge.parts import Options, Parts
from mcpd.bridge.tasks import Tasks
from mcpd.bridge.upstream import pool
from mcpd.bridge.upstream.commands import CommandSource, from_arguments
from mcpd.bridge.upstream.pool import Pools
from mcpd.errors import InvalidArgument
from tests.bridge.bridge_harness import events
from tests.bridge.modern_client import FORMS, MODERN, SUBSCRIPTION, call, command, envelope, headers_for, request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ME, OTHER = Caller(1), Caller(2)
ANSWER = {"action": "accept", "content": {"answer": 42}}


class World:
    """The era on servers of the handshake era."""

    def __init__(self, wire: Path, budget: Budget) -> None:
        self.wire = wire
        self.budget = budget
        self.parts = Parts(
            CommandSource(from_arguments([f"s={command('handshake', wire=wire)}"])), Options(), Tasks(), budget
        )
        self.pools = Pools(self.parts)
        self.modern = Modern(self.parts, self.pools)

    def start(self, message: dict[str, Any], caller: Caller = ME) -> Exchange:
        """Post *message*; the reply comes to what is returned."""
        exchange = Exchange(takes_json=True, takes_events=True)
        exchange.charge(self.budget, caller, exchange.hang_up)
        sent = {name.lower().encode(): value.encode() for name, value in headers_for(message).items()}
        self.modern.post(Post("s", caller, "", MODERN, sent), json.dumps(message).encode(), exchange)
        return exchange

    async def ask(self, message: dict[str, Any], caller: Caller = ME) -> Any:
        """The whole answer to *message*."""
        exchange = self.start(message, caller)
        await until(lambda: exchange.ended)
        exchange.release()
        return json.loads(exchange.body)

    def received(self, method: str) -> list[Any]:
        lines = [json.loads(line) for line in self.wire.read_bytes().splitlines()] if self.wire.exists() else []
        return [line for line in lines if line.get("method") == method]


async def until(condition: Any) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def world(wire: Path, budget: Budget | None = None) -> AsyncIterator[World]:
    """A world that ends without anything left of it."""
    made = World(wire, budget or Budget())
    try:
        yield made
    finally:
        made.modern.close()
        await made.pools.close()
        await made.parts.tasks.close()
        assert not len(made.parts.process_counts)
        assert made.budget.held == 0


def asking(identity: object = 1, more: Any = None, **arguments: Any) -> dict[str, Any]:
    return call("ask", identity, envelope(FORMS), more, **{"method": "elicitation/create", **arguments})


def back(first: Any) -> dict[str, Any]:
    result = first["result"]
    assert result["resultType"] == "input_required", first
    answers = dict.fromkeys(result["inputRequests"], ANSWER)
    return {"requestState": result["requestState"], "inputResponses": answers}


@pytest.fixture
def wire(tmp_path: Path) -> Path:
    return tmp_path / "wire"


async def test_calls_that_wait_are_bounded_for_each_caller(wire: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MOST_SUSPENDED", 2)
    async with world(wire) as here:
        firsts = [await here.ask(asking(number)) for number in range(2)]
        error = (await here.ask(asking(3)))["error"]
        assert (error["code"], "2 calls wait" in error["message"]) == (-32005, True)
        assert "result" in await here.ask(asking(4), OTHER)
        assert "result" in await here.ask(asking(5, back(firsts[0])))
        assert (await here.ask(asking(6)))["result"]["resultType"] == "input_required"


async def test_a_call_whose_client_does_not_come_back_is_given_up(wire: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "LIFETIME", 0.2)
    async with world(wire) as here:
        first = await here.ask(asking())
        await until(lambda: here.received("notifications/cancelled"))
        error = (await here.ask(asking(2, back(first))))["error"]
        assert (error["code"], "expired" in error["message"]) == (-32602, True)


async def test_calls_that_wait_do_not_keep_others_from_the_server(wire: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pool, run):
        monkeypatch.setattr(module, "MOST_PROCESSES", 1)
    monkeypatch.setattr(run, "MOST_AWAY", 0)
    monkeypatch.setattr("mcpd.bridge.modern.profile.MOST_AWAY", 0)
    monkeypatch.setattr(run, "PATIENCE", 0.3)
    async with world(wire) as here:
        first = await here.ask(asking())
        assert "result" in await here.ask(call("echo", 2, envelope(FORMS), text="x"))
        error = (await here.ask(asking(3, back(first))))["error"]
        assert "others needed the server" in error["message"]


async def test_calls_that_wait_have_processes_beside_the_usual_ones(
    wire: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "MOST_PROCESSES", 1)
    async with world(wire) as here:
        firsts = [await here.ask(asking(number)) for number in range(3)]
        assert "result" in await here.ask(call("echo", 9, envelope(FORMS), text="x"))
        for number, first in enumerate(firsts):
            assert "result" in await here.ask(asking(10 + number, back(first)))


async def test_what_waits_is_counted(wire: Path) -> None:
    async with world(wire, Budget(1 << 20)) as here:
        sizes = (450_000, 200_000)
        large = [await here.ask(asking(size, text="x" * size)) for size in sizes]
        assert 650_000 < here.budget.held < 750_000
        # What is larger than all that waits finds no room; what is smaller gets that of the largest.
        error = (await here.ask(asking(3, text="y" * 600_000)))["error"]
        assert (error["code"], "bridge.max_buffered" in error["message"]) == (-32005, True)
        assert "result" in await here.ask(call("echo", 4, envelope(FORMS), text="y" * 190_000))
        error = (await here.ask(asking(5, back(large[0]), text="x" * 450_000)))["error"]
        assert (error["code"], "bridge.max_buffered" in error["message"]) == (-32005, True)
        assert "result" in await here.ask(asking(6, back(large[1]), text="x" * 200_000))
        assert here.budget.held == 0


async def test_a_stream_ends_when_its_server_changes(wire: Path) -> None:
    async with world(wire) as here:
        exchange = here.start(request("subscriptions/listen", 4, notifications={"toolsListChanged": True}))
        await until(lambda: exchange.streaming)
        here.pools.renew("s", None)
        assert exchange.ended
        acknowledged, last = events(exchange.take().decode())
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        assert last == {"jsonrpc": "2.0", "id": 4, "result": {"resultType": "complete", "_meta": {SUBSCRIPTION: 4}}}


async def test_a_call_that_waits_outlives_a_change_of_its_server(wire: Path) -> None:
    async with world(wire) as here:
        first = await here.ask(asking())
        here.pools.renew("s", None)
        assert json.loads((await here.ask(asking(2, back(first))))["result"]["content"][0]["text"]) == {
            "result": ANSWER
        }


def test_a_state_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    one, request_digest = Seal(), seal.digest("tools/call", {})
    state = one.close(b"x", ME, "s", request_digest)
    assert one.open(state, ME, "s", request_digest) == b"x"
    for caller, server, of in ((OTHER, "s", request_digest), (ME, "t", request_digest), (ME, "s", b"")):
        with pytest.raises(InvalidArgument):
            one.open(state, caller, server, of)
    with pytest.raises(InvalidArgument):
        Seal().open(state, ME, "s", request_digest)
    monkeypatch.setattr(seal, "LIFETIME", -2)
    with pytest.raises(InvalidArgument):
        one.open(one.close(b"x", ME, "s", request_digest), ME, "s", request_digest)
