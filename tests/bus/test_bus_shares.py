# SPDX-License-Identifier: LGPL-2.1-or-later
"""One user's calls, prompts and descriptors leave enough of mcpd and of polkit to the others."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.bus.authorization import PROMPTS, PROMPTS_PER_USER, FairSemaphore, Polkit, Quotas
from mcpd.bus.caller import Call, Caller
from mcpd.bus.client import Client, variant
from mcpd.bus.dispatcher import BYTES_PER_USER, CALLS_PER_USER, FDS_PER_USER, MAX_CALL, MAX_CALL_FDS
from mcpd.bus.transport import Fds
from mcpd.errors import HeldBack, InvalidConfig, LimitExceeded, McpdError, NotAuthorized
from mcpd.paths import Scope
from mcpd.runtime.sessions import FREE_CRASHES
from tests.bus.harness import PATIENCE, Machine, connected
from tests.bus.inside import served
from tests.bus.polkit_mock import SOMEBODY, TEMPLATE, Mock, polkitd

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable

CONFIGURE = "org.mcpd.mcp1.configure"
SPAWN = "org.mcpd.mcp1.spawn"
BRIDGE = SOMEBODY + 500
SET_CONFIG = ("SetConfig", "sa{sv}a{sv}", ["x", {"level": "high"}, {}])


class Town:
    """A system instance with polkit and clients of any user."""

    def __init__(self, machine: Machine, uids: dict[str, int], stack: AsyncExitStack) -> None:
        self.mock: Mock
        self._machine, self._uids, self._stack = machine, uids, stack
        self.calls: list[asyncio.Task[Any]] = []

    async def client(self, uid: int, *, interactive: bool = False) -> Client:
        connection = await self._stack.enter_async_context(connected(self._machine.bus))
        self._uids[connection.unique_name] = uid
        return Client(connection, system=True, interactive=interactive)

    def begin(self, calls: Iterable[Coroutine[Any, Any, Any]]) -> list[asyncio.Task[Any]]:
        """Let *calls* wait for their answers."""
        begun = [asyncio.create_task(call) for call in calls]
        self.calls += begun
        return begun


@pytest.fixture
async def town(machine: Machine) -> AsyncIterator[Town]:
    installed = machine.paths.system.installed
    machine.install("x", where=installed, scope="system", configurableProperties=[{"key": "level"}])
    machine.install("s", where=installed, scope="system", runtime={"runAs": "system"})
    machine.install("all", where=installed, scope="system", runtime={"runAs": "system", "sharing": "all"})
    uids: dict[str, int] = {}
    async with AsyncExitStack() as stack:
        made = Town(machine, uids, stack)
        own = await stack.enter_async_context(connected(machine.bus))
        await stack.enter_async_context(served(machine, scope=Scope.SYSTEM, uids=uids, bridge_uid=BRIDGE))
        made.mock = await stack.enter_async_context(polkitd(machine, own, TEMPLATE))
        yield made
        for call in made.calls:
            call.cancel()
        await asyncio.gather(*made.calls, return_exceptions=True)


async def refusal(calls: list[asyncio.Task[Any]]) -> McpdError:
    """How the first of *calls* to end was refused, the others waiting."""
    done, _ = await asyncio.wait(calls, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    assert done
    error = done.pop().exception()
    assert isinstance(error, McpdError)
    return error


async def test_open_prompts_are_few_and_cost_only_their_user_further_prompts(town: Town) -> None:
    await town.mock.answer(CONFIGURE, "prompt")
    await town.mock.answer(SPAWN, "yes")
    one, again = [await town.client(SOMEBODY, interactive=True) for _ in range(2)]
    waiting = town.begin(
        client.manager.call(*SET_CONFIG) for client in (one, again) for _ in range(PROMPTS_PER_USER // 2)
    )
    await town.mock.waiting(PROMPTS_PER_USER)
    for client in (one, again, await town.client(SOMEBODY, interactive=True)):
        with pytest.raises(LimitExceeded, match="a prompt is already open for uid"):
            await client.manager.call(*SET_CONFIG, timeout=PATIENCE)
    _, ends = await one.spawn("x")
    for fd in ends.values():
        os.close(fd)
    town.begin([(await town.client(SOMEBODY + 1, interactive=True)).manager.call(*SET_CONFIG)])
    await town.mock.waiting(PROMPTS_PER_USER + 1)
    await town.mock.call("Release")
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    town.begin([one.manager.call(*SET_CONFIG)])
    await town.mock.waiting(PROMPTS_PER_USER + 1)


async def test_prompts_of_many_users_leave_root_its_own_and_others_what_needs_none(town: Town) -> None:
    await town.mock.answer(CONFIGURE, "prompt")
    await town.mock.answer(SPAWN, "yes")
    for number in range(PROMPTS // PROMPTS_PER_USER):
        client = await town.client(SOMEBODY + number, interactive=True)
        town.begin(client.manager.call(*SET_CONFIG) for _ in range(PROMPTS_PER_USER))
    await town.mock.waiting(PROMPTS)
    late = await town.client(SOMEBODY + 100, interactive=True)
    with pytest.raises(LimitExceeded, match=f"{PROMPTS} prompts are open"):
        await late.manager.call(*SET_CONFIG, timeout=PATIENCE)
    _, ends = await late.spawn("x")
    for fd in ends.values():
        os.close(fd)
    town.begin([(await town.client(0, interactive=True)).manager.call(*SET_CONFIG)])
    await town.mock.waiting(PROMPTS + 1)


async def test_a_prompt_that_nobody_answers_ends(town: Town, machine: Machine) -> None:
    await town.mock.answer(CONFIGURE, "prompt")
    async with connected(machine.bus) as connection:
        polkit = Polkit(connection, prompt_timeout=0.2)
        caller = Caller(connection.unique_name, SOMEBODY, 1)
        call = Call(caller, True, Fds(), Fds())
        for _ in range(PROMPTS_PER_USER + 1):
            with pytest.raises(NotAuthorized, match=rf"{CONFIGURE}: the authentication prompt timed out after"):
                await asyncio.wait_for(polkit.check(call, "configure", {}), PATIENCE)
            await town.mock.waiting(0)
        asked = [args[4] for args in await town.mock.calls() if args[3]]
        assert [args[0] for args in await town.mock.calls("CancelCheckAuthorization")] == asked


async def test_a_flood_of_checks_delays_only_its_user(town: Town) -> None:
    flooder = await town.client(SOMEBODY)
    await town.mock.answer(CONFIGURE, "yes")
    await town.mock.answer(CONFIGURE, "hang", flooder.connection.unique_name)
    flood = town.begin(flooder.manager.call(*SET_CONFIG) for _ in range(CALLS_PER_USER))
    await town.mock.waiting(4)
    for uid in (SOMEBODY + 1, 0):
        await (await town.client(uid)).manager.call(*SET_CONFIG, timeout=PATIENCE)
    assert await town.mock.call("Waiting") == 4
    assert not any(call.done() for call in flood)
    for _ in flood:
        await town.mock.waiting(min(4, sum(not call.done() for call in flood)))
        before = sum(call.done() for call in flood)
        await town.mock.call("Release")
        while sum(call.done() for call in flood) == before:
            await asyncio.wait([call for call in flood if not call.done()], return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*flood)


async def test_more_than_the_bus_lets_polkit_be_asked_stops_nobody_else(town: Town) -> None:
    clients = [await town.client(SOMEBODY + number % 2, interactive=True) for number in range(4)]
    for client in clients:
        await town.mock.answer(CONFIGURE, "prompt", client.connection.unique_name)
    await town.mock.answer(CONFIGURE, "yes")
    flood = town.begin(client.manager.call(*SET_CONFIG) for client in clients for _ in range(60))
    refused, _ = await asyncio.wait(flood, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    await town.mock.waiting(2 * PROMPTS_PER_USER)
    for uid in (0, SOMEBODY + 7):
        await (await town.client(uid, interactive=True)).manager.call(*SET_CONFIG, timeout=PATIENCE)
    assert refused
    assert all(isinstance(call.exception(), LimitExceeded) for call in refused)


async def test_calls_and_descriptors_are_counted_for_all_connections_of_a_user(town: Town) -> None:
    clients = [await town.client(SOMEBODY) for _ in range(3)]
    for client in clients:
        await town.mock.answer(CONFIGURE, "hang", client.connection.unique_name)
        await town.mock.answer("org.mcpd.mcp1.install-untrusted", "hang", client.connection.unique_name)
    read, write = os.pipe()
    few, many = (FDS_PER_USER // MAX_CALL_FDS) // 2, CALLS_PER_USER - FDS_PER_USER // MAX_CALL_FDS

    def with_descriptors(client: Client) -> Coroutine[Any, Any, Any]:
        return client.manager.call("InstallManifest", "ha{sv}", [0, {}], fds=[read] * MAX_CALL_FDS)

    town.begin(with_descriptors(client) for client in clients[:2] for _ in range(few))
    await town.mock.waiting(4)
    await clients[1].manager.call("ListServers", "a{sv}", [{}])
    assert "too many file descriptors" in (await refusal(town.begin([with_descriptors(clients[2])]))).message
    one_too_many = town.begin(clients[number % 3].manager.call(*SET_CONFIG) for number in range(many + 1))
    assert f"uid {SOMEBODY} has too many unanswered calls" in (await refusal(one_too_many)).message
    await town.mock.answer(CONFIGURE, "yes")
    for uid in (0, BRIDGE, SOMEBODY + 1):
        other = await town.client(uid)
        await other.manager.call(*SET_CONFIG)
        with pytest.raises(NotAuthorized):
            await with_descriptors(other)
    os.close(read)
    os.close(write)


async def test_large_calls_of_a_user_that_wait_for_answers_are_few(town: Town) -> None:
    await town.mock.answer(CONFIGURE, "hang")
    clients = [await town.client(SOMEBODY) for _ in range(2)]
    large = ("SetConfig", "sa{sv}a{sv}", ["x", {"level": "x" * (MAX_CALL - 1024)}, {}])
    most = BYTES_PER_USER // MAX_CALL
    town.begin(clients[number % 2].manager.call(*large) for number in range(most))
    await town.mock.waiting(most)
    fault = await refusal(town.begin(client.manager.call(*large) for client in clients))
    assert isinstance(fault, LimitExceeded)
    assert f"uid {SOMEBODY} has too many bytes in unanswered calls" in fault.message
    await clients[0].manager.call("ListServers", "a{sv}", [{}])
    await town.mock.answer(CONFIGURE, "yes")
    for uid in (0, BRIDGE, SOMEBODY + 1):
        with pytest.raises(InvalidConfig):
            await (await town.client(uid)).manager.call(*large)


async def test_the_bridge_has_checks_of_its_own_and_shares_them_between_its_users(town: Town) -> None:
    await town.mock.answer(CONFIGURE, "hang")
    for number in range(10):
        client = await town.client(SOMEBODY + number)
        town.begin(client.manager.call(*SET_CONFIG) for _ in range(5))
    await town.mock.waiting(32)
    bridge = await town.client(BRIDGE)
    await town.mock.answer(SPAWN, "hang")
    town.begin(bridge.spawn("s", options={"caller-uid": variant(1, "u")}) for _ in range(6))
    await town.mock.waiting(36)
    await town.mock.answer(SPAWN, "yes")
    _, ends = await bridge.spawn("s", options={"caller-uid": variant(0, "u")})
    for fd in ends.values():
        os.close(fd)


async def crash(client: Client, server: str) -> None:
    """Have *server*, which is cat, end by not reading its answers, while its input stays open."""
    _, ends = await client.spawn(server)
    os.close(ends[1])
    async with asyncio.timeout(PATIENCE):
        while await client.manager.call("ListSessions"):
            # Again and again: the bus may be about to close its copy of the other end.
            with suppress(BrokenPipeError):
                os.write(ends[0], b"x\n")
            await asyncio.sleep(0.01)
    os.close(ends[0])


async def test_crashes_that_a_user_causes_hold_a_server_back_from_that_user_only(town: Town) -> None:
    await town.mock.answer(SPAWN, "yes")
    one, other, bridge = await town.client(SOMEBODY), await town.client(SOMEBODY + 1), await town.client(BRIDGE)
    for _ in range(FREE_CRASHES + 1):
        await crash(one, "s")
    with pytest.raises(HeldBack):
        await one.spawn("s")
    for client, uid in ((other, None), (bridge, 0), (bridge, 1)):
        options = {} if uid is None else {"caller-uid": variant(uid, "u")}
        _, ends = await client.spawn("s", options=options)
        for fd in ends.values():
            os.close(fd)


async def test_crashes_that_a_user_causes_leave_what_all_share_though_it_is_started_for_that_user(town: Town) -> None:
    await town.mock.answer(SPAWN, "yes")
    root = await town.client(0)
    for _ in range(FREE_CRASHES + 1):
        await crash(root, "all")
    _, ends = await (await town.client(BRIDGE)).spawn("all", options={"caller-uid": variant(0, "u")})
    for fd in ends.values():
        os.close(fd)


async def test_a_polkit_that_does_not_decide_stops_everybody_but_root(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    await town.mock.answer(CONFIGURE, "overloaded")
    root, somebody = await town.client(0), await town.client(SOMEBODY)
    for _ in range(3):
        with pytest.raises(LimitExceeded, match=f"{CONFIGURE}: polkit is overloaded"):
            await somebody.manager.call(*SET_CONFIG)
        await root.manager.call(*SET_CONFIG)
    said = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert len(said) == 1
    assert not said[0].exc_info
    await town.mock.answer(CONFIGURE, "no")
    with pytest.raises(NotAuthorized, match="not allowed"):
        await root.manager.call(*SET_CONFIG)


@asynccontextmanager
async def turn(semaphore: FairSemaphore, uid: int) -> AsyncIterator[None]:
    await semaphore.acquire(uid)
    try:
        yield
    finally:
        semaphore.release(uid)


async def test_users_take_turns_and_who_gives_up_waiting_is_skipped() -> None:
    semaphore, order, leave = FairSemaphore(2, 1), [], asyncio.Event()

    async def visit(uid: int, name: str) -> None:
        async with turn(semaphore, uid):
            order.append(name)
            await leave.wait()

    visits = [asyncio.create_task(visit(uid, f"{uid}{letter}")) for uid, letter in ((1, "a"), (1, "b"), (1, "c"))]
    visits += [asyncio.create_task(visit(2, "2a")), asyncio.create_task(visit(3, "3a"))]
    for _ in range(5):
        await asyncio.sleep(0)
    assert order == ["1a", "2a"]
    visits[1].cancel()
    await asyncio.wait([visits[1]])
    leave.set()
    await asyncio.gather(*visits, return_exceptions=True)
    assert order in (["1a", "2a", "3a", "1c"], ["1a", "2a", "1c", "3a"])
    async with turn(semaphore, 4), turn(semaphore, 5):
        pass


def test_a_reserve_is_neither_used_up_by_the_others_nor_limitless() -> None:
    quotas = Quotas(2, 3, {0: 2})
    assert [quotas.acquire(uid) for uid in (1, 1, 1, 2, 2, 0, 0, 0)] == [
        True,
        True,
        False,
        True,
        False,
        True,
        True,
        False,
    ]
    quotas.release(1)
    assert [quotas.acquire(uid) for uid in (2, 3)] == [True, False]
    assert [quotas.held(uid) for uid in (0, 1, 2, 3)] == [2, 1, 2, 0]
