# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpd ends when it has nothing to do, and no call is lost by that."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from mcpd.bus.client import Client, Handle
from mcpd.bus.connection import Connection
from mcpd.bus.idle import Activity, IdleExit
from mcpd.bus.names import BUS_NAME
from mcpd.paths import Scope
from tests.bus.harness import PATIENCE, Machine, connected, start_bus
from tests.bus.inside import serving
from tests.bus.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from tests.bus.inside import Serving
    from tests.fd_keeper import FdKeeper

LIMIT = 0.05


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_the_wait_starts_anew_with_everything_that_happens() -> None:
    clock = Clock()
    activity = Activity(clock)
    clock.now += 10
    assert activity.remaining(300) == 290
    activity.begin()
    assert (activity.remaining(300), activity.calls) == (None, 1)
    clock.now += 1000
    activity.end()
    assert (activity.remaining(300), activity.calls, activity.total_calls) == (300, 0, 1)
    clock.now += 299
    activity.touch()
    assert activity.remaining(300) == 300
    clock.now += 301
    assert activity.remaining(300) == 0
    assert activity.remaining(0) is None


class Duty:
    """Work that is there as long as the test says."""

    def __init__(self) -> None:
        self.is_busy = False
        self.is_unfinished = False

    def busy(self) -> bool:
        return self.is_busy

    def unfinished(self) -> bool:
        return self.is_unfinished


@pytest.fixture
def supervisor(short_tmp: Path) -> Supervisor:
    return Supervisor(short_tmp)


@pytest_asyncio.fixture
async def machine(short_tmp: Path, supervisor: Supervisor) -> AsyncIterator[Machine]:
    """A machine whose bus starts mcpd through the supervisor, once that is opened."""
    bus = start_bus(short_tmp, services=supervisor.services)
    made = Machine(bus, short_tmp)
    made.install("x", where=made.paths.user.installed, configurableProperties=[{"key": "token", "sensitive": True}])
    yield made
    await made.stop()
    bus.stop()


@pytest_asyncio.fixture
async def client(machine: Machine) -> AsyncIterator[Client]:
    async with connected(machine.bus) as connection:
        yield Client(connection, system=False)


@pytest_asyncio.fixture
async def running(machine: Machine) -> AsyncIterator[Serving]:
    async with serving(machine, scope=Scope.USER, uids={}, only_uid=os.getuid()) as parts:
        yield parts


@pytest.fixture
def keeper(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> Iterator[FdKeeper]:
    with supervisor.keeper as made:
        monkeypatch.setenv("NOTIFY_SOCKET", made.address)
        yield made


@asynccontextmanager
async def leaving(running: Serving, duty: Duty, limit: Callable[[], float] = lambda: LIMIT) -> AsyncIterator[Any]:
    idle = IdleExit(running.connection, running.service.activity, duty, limit)
    task = asyncio.create_task(idle.run())
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def owner(client: Client) -> bool:
    return bool(await client.connection.call_bus("NameHasOwner", "s", BUS_NAME))


def on_release(monkeypatch: pytest.MonkeyPatch, action: Callable[[], Awaitable[None]]) -> None:
    """Have *action* done after mcpd has decided to leave, and before the bus hears of it; once."""
    call_bus = Connection.call_bus
    done = False

    async def wrapped(self: Connection, member: str, *args: Any) -> Any:
        nonlocal done
        if member == "ReleaseName" and not done:
            done = True
            await action()
        return await call_bus(self, member, *args)

    monkeypatch.setattr(Connection, "call_bus", wrapped)


async def said(keeper: FdKeeper, key: str) -> list[str]:
    keeper.read()
    return [message[key] for message in keeper.said if key in message]


async def test_with_nothing_to_do_the_name_is_given_up(
    running: Serving, client: Client, keeper: FdKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: list[str] = []

    async def look() -> None:
        before.extend(await said(keeper, "STOPPING"))

    on_release(monkeypatch, look)
    async with leaving(running, Duty()) as task:
        await asyncio.wait_for(task, PATIENCE)
        assert not await owner(client)
    # A service manager that hears of it too late takes an activation for fulfilled.
    assert before == ["1"]


async def test_work_keeps_mcpd(running: Serving, client: Client, keeper: FdKeeper) -> None:
    duty = Duty()
    duty.is_busy = True
    async with leaving(running, duty) as task:
        await asyncio.wait([task], timeout=5 * LIMIT)
        assert not task.done()
        assert await owner(client)
        duty.is_busy = False
        running.service.activity.touch()
        await asyncio.wait_for(task, PATIENCE)


async def test_zero_means_never_until_it_is_changed(running: Serving, client: Client, keeper: FdKeeper) -> None:
    limit = 0.0
    async with leaving(running, Duty(), lambda: limit) as task:
        await asyncio.wait([task], timeout=5 * LIMIT)
        assert not task.done()
        limit = LIMIT
        running.service.activity.touch()
        await asyncio.wait_for(task, PATIENCE)


@pytest.mark.parametrize("missing", ["manager", "activation"])
async def test_without_anybody_to_start_it_again_mcpd_stays(
    running: Serving,
    client: Client,
    keeper: FdKeeper,
    supervisor: Supervisor,
    monkeypatch: pytest.MonkeyPatch,
    missing: str,
) -> None:
    if missing == "manager":
        monkeypatch.delenv("NOTIFY_SOCKET")
    else:
        (supervisor.services / f"{BUS_NAME}.service").unlink()
        await client.connection.call_bus("ReloadConfig")
    async with leaving(running, Duty()) as task:
        await asyncio.wait([task], timeout=5 * LIMIT)
        assert not task.done()
        assert await owner(client)
    assert await said(keeper, "STOPPING") == []


async def test_a_call_of_the_last_moment_is_answered(
    running: Serving, client: Client, keeper: FdKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[asyncio.Task[Any]] = []

    async def call() -> None:
        calls.extend(asyncio.create_task(client.manager.call("ListServers", "a{sv}", [{}])) for _ in range(50))
        # Once the bus answers this, it has passed on what came before it.
        await asyncio.sleep(0)
        await owner(client)

    on_release(monkeypatch, call)
    async with leaving(running, Duty()) as task:
        await asyncio.wait_for(task, PATIENCE)
        assert running.service.activity.calls == 0
        assert [len(await call) for call in calls] == [1] * 50
        assert not await owner(client)


async def test_a_long_call_of_the_last_moment_is_finished_under_the_name(
    running: Serving, client: Client, keeper: FdKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    calls: list[asyncio.Task[Any]] = []

    async def call() -> None:
        arguments = ["x", "token", Handle(0), {}]
        calls.append(asyncio.create_task(client.manager.call("SetSecret", "ssha{sv}", arguments, fds=[read])))
        # Once the bus answers this, it has passed on what came before it.
        await asyncio.sleep(0)
        await owner(client)

    on_release(monkeypatch, call)
    async with leaving(running, Duty()) as task:
        async with asyncio.timeout(PATIENCE):
            while not await said(keeper, "EXTEND_TIMEOUT_USEC"):
                await asyncio.sleep(0.02)
        assert await owner(client)
        assert len(await client.manager.call("ListServers", "a{sv}", [{}])) == 1
        assert not task.done()
        os.write(write, b"secret")
        os.close(write)
        os.close(read)
        await asyncio.wait_for(task, PATIENCE)
        await calls[0]
        assert not await owner(client)
    assert running.core.store.config("x").secrets_set == ["token"]


async def test_a_job_of_the_last_moment_is_finished_under_the_name(
    running: Serving, client: Client, keeper: FdKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    duty = Duty()

    async def begin() -> None:
        duty.is_unfinished = True

    on_release(monkeypatch, begin)
    async with leaving(running, duty) as task:
        async with asyncio.timeout(PATIENCE):
            while not await said(keeper, "EXTEND_TIMEOUT_USEC"):
                await asyncio.sleep(0.02)
        assert await owner(client)
        assert not task.done()
        duty.is_unfinished = False
        running.service.activity.touch()
        await asyncio.wait_for(task, PATIENCE)
        assert not await owner(client)


async def test_no_call_is_lost_over_many_ends(machine: Machine, supervisor: Supervisor) -> None:
    machine.settings |= {"MCPD_DAEMON_IDLE_EXIT": str(LIMIT), "MCPD_RUNTIME_SANDBOX": "off"}
    machine.install("cat")
    (machine.root / "run").mkdir(mode=0o700)
    await supervisor.open(machine.environ)
    ends = 6

    async def hammer(seed: int) -> int:
        chance = random.Random(seed)
        count = 0
        async with connected(machine.bus) as connection:
            client = Client(connection, system=False)
            while len(supervisor.statuses) < ends:
                if chance.random() < 0.8:
                    assert len(await client.manager.call("ListServers", "a{sv}", [{}])) == 1
                else:
                    _, pipes = await client.spawn("cat")
                    os.write(pipes[0], b"word")
                    assert await asyncio.to_thread(os.read, pipes[1], 10) == b"word"
                    for fd in pipes.values():
                        os.close(fd)
                count += 1
                # Around the moment in which mcpd leaves.
                await asyncio.sleep(chance.choice([0, chance.uniform(0.9, 1.2) * LIMIT]))
        return count

    try:
        async with asyncio.timeout(10 * PATIENCE):
            counts = await asyncio.gather(*(hammer(seed) for seed in range(2)))
    finally:
        await supervisor.close()
    assert min(counts) >= ends
    assert set(supervisor.statuses) == {0}
    assert "Traceback" not in supervisor.log()
