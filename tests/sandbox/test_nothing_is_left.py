# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whatever a server does, and however mcpd ends, nothing of it is left."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import McpdError
from mcpd.runtime.exec.proc import PR_SET_CHILD_SUBREAPER
from tests.sandbox.world import OWNER, Client, open_descriptors, talk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mcpd.runtime.sessions import Session, Sessions
    from tests.sandbox.world import World

ESCAPEES = """
import os, signal, sys, time
def away():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            for fd in (0, 1, 2): os.close(fd)
            time.sleep(600)
        os._exit(0)
    os.wait()
for _ in range(20): away()
print("up", flush=True)
"""
BOMB = """
import os, sys, time
for _ in range(300):
    if os.fork() == 0:
        if os.fork() == 0: time.sleep(600)
        os._exit(0)
print("up", flush=True)
sys.stdin.read()
"""
DEAF = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while True: time.sleep(600)
"""
POLITE = """
import os, signal, time
def end(*_):
    os.write(1, b"bye\\n")
    os._exit(7)
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
time.sleep(600)
"""


def below(pid: int) -> set[int]:
    """The living descendants of *pid*."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, pending = set(), [pid]
    while pending:
        new = children.get(pending.pop(), [])
        found |= set(new)
        pending += new
    return found


async def gone(pids: set[int]) -> None:
    """Await that none of *pids* runs any more."""
    async with asyncio.timeout(120):
        for pid in pids:
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            ended = asyncio.Event()
            asyncio.get_running_loop().add_reader(fd, ended.set)
            await ended.wait()
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)


@pytest.fixture(params=["on", "off"])
def sandbox(request: pytest.FixtureRequest) -> str:
    return request.param


async def test_processes_that_ran_away_die_with_the_server(world: World, sandbox: str) -> None:
    world.install("runaway", ESCAPEES)
    sessions = world.sessions(sandbox=sandbox)
    output, ended, session = await talk(sessions, "runaway")
    assert (output, ended.code) == (b"up\n", 0)
    assert below(os.getpid()) == set()
    assert not Path(f"/proc/{session.pid}").exists()


async def _up(world: World, sandbox: str, program: str) -> tuple[Client, Sessions, Session]:
    world.install("server", program)
    sessions, client = world.sessions(sandbox=sandbox), Client()
    session = await sessions.spawn("server", client.fds, owner=OWNER)
    client.started()
    assert await asyncio.to_thread(os.read, client.read_end, 3) == b"up\n"
    return client, sessions, session


async def test_fork_bomb_is_stopped(world: World, sandbox: str) -> None:
    client, sessions, session = await _up(world, sandbox, BOMB)
    assert len(below(os.getpid())) > 100
    ended = await sessions.stop(session.number)
    assert ended.code == 143
    assert below(os.getpid()) == set()
    client.close()


async def test_server_that_ignores_sigterm_is_killed(world: World, sandbox: str) -> None:
    client, sessions, session = await _up(world, sandbox, DEAF)
    assert (await sessions.stop(session.number)).code == 137
    assert below(os.getpid()) == set()
    client.close()


async def test_stop_is_sigterm_to_the_program_itself(world: World, sandbox: str) -> None:
    client, sessions, session = await _up(world, sandbox, POLITE)
    stopped = await asyncio.gather(*(session.leash.stop() for _ in range(3)))
    assert [ended.code for ended in stopped] == [7, 7, 7]
    assert await client.read() == b"bye\n"
    client.close()
    await sessions.close()


async def test_mcpd_killed_takes_its_servers_with_it(world: World, sandbox: str) -> None:
    """SIGKILL for mcpd ends the leash, which ends mcpd-exec, which ends the tree."""
    world.install("server", BOMB)
    ready, said = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(_serve(world, sandbox, said))
        finally:
            os._exit(1)
    os.close(said)
    assert await asyncio.to_thread(os.read, ready, 3) == b"up\n"
    os.close(ready)
    tree = below(child)
    assert len(tree) > 100
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    await gone(tree)
    assert below(os.getpid()) == set()


async def _serve(world: World, sandbox: str, said: int) -> None:
    read, _write = os.pipe()
    await world.sessions(sandbox=sandbox).spawn("server", {0: read, 1: said}, owner=OWNER)
    await asyncio.sleep(600)


async def test_mcpd_exec_killed_takes_the_sandbox_with_it(world: World) -> None:
    client, sessions, session = await _up(world, "on", BOMB)
    tree = below(os.getpid())
    (mcpd_exec,) = (int(pid) for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())
    os.kill(mcpd_exec, signal.SIGKILL)
    assert (await session.wait()).code == 137
    await gone(tree)
    client.close()
    await sessions.close()


async def test_300_spawns_leak_no_process_and_no_descriptor(world: World) -> None:
    world.install("good", "import sys; sys.stdin.read()")
    world.install("bad", "import sys; sys.exit(3)")
    world.install("absent", transports=[{"type": "stdio", "command": "no-such-program"}])
    world.install("unsandboxable", permissions=[f"filesystem:rw:{world.root}/missing"])
    sessions = world.sessions()

    async def once(number: int) -> str:
        server_id = ("good", "bad", "absent", "unsandboxable", "good", "good")[number % 6]
        client = Client(stderr=number % 2 == 0)
        try:
            session = await sessions.spawn(server_id, client.fds, owner=OWNER)
            client.started()
            if number % 3 == 0:
                await sessions.stop(session.number)
            else:
                os.close(client.write_end)
                client.write_end = os.open(os.devnull, os.O_WRONLY)
                await session.wait()
        except McpdError as error:
            return type(error).__name__
        finally:
            client.close()
        return "ended"

    await once(0)
    before = open_descriptors()
    outcomes: list[str] = []
    for start in range(0, 300, 6):
        outcomes += await asyncio.gather(*(once(number) for number in range(start, start + 6)))
    assert outcomes.count("ended") >= 150
    assert outcomes.count("SpawnFailed") == 100
    await sessions.close()
    assert sessions.list() == []
    assert open_descriptors() == before
    assert below(os.getpid()) == set()
    zombies = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    assert zombies == []


@pytest.fixture
def orphanage() -> Iterator[Callable[[], str]]:
    """Whatever nobody reaps comes to this process; gives the pids of its children."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield lambda: Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


async def test_no_zombie_of_ours_is_left_to_init(world: World, orphanage: Callable[[], str]) -> None:
    """Containers often have no init that reaps, so mcpd-exec does."""
    world.install("runaway", ESCAPEES)
    sessions = world.sessions()
    for _ in range(3):
        await talk(sessions, "runaway")
    await sessions.close()
    assert orphanage() == ""


async def test_start_cancelled_at_any_moment_leaves_nothing(world: World, orphanage: Callable[[], str]) -> None:
    """bubblewrap's child waits for ever if bubblewrap is killed before it has tied the two together."""
    world.install("server", POLITE)
    sessions, client = world.sessions(), Client()
    for moment in range(60):
        starting = asyncio.create_task(sessions.spawn("server", client.fds, owner=OWNER))
        await asyncio.wait([starting], timeout=moment / 2000)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
    await sessions.close()
    client.started()
    await client.read()
    client.close()
    async with asyncio.timeout(120):
        while orphanage():
            await asyncio.sleep(0)
