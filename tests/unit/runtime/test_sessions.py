# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import (
    Disabled,
    HeldBack,
    InvalidArgument,
    InvalidManifest,
    LimitExceeded,
    McpdError,
    NotFound,
    NotStdio,
    SpawnFailed,
    SystemInstanceOnly,
)
from mcpd.paths import Scope
from mcpd.runtime.launchers import SystemdUserLauncher, properties, unit_name
from mcpd.runtime.sessions import LONG_ENOUGH, LONGEST_DELAY, Backoff, Owner, SessionEvent
from tests.sandbox.world import OWNER, Client, open_descriptors, talk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.runtime.sessions import Session, Sessions
    from tests.sandbox.world import World

pytestmark = pytest.mark.process

WAIT = "import sys; sys.stdin.read()"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def start(sessions: Sessions, client: Client, server_id: str = "server", name: str = ":1.1") -> Session:
    return await sessions.spawn(server_id, client.fds, owner=Owner(1000, name))


async def test_session_is_known_while_it_runs(world: World) -> None:
    world.install("server", WAIT)
    sessions, client, events = world.sessions(), Client(), []
    unsubscribe = sessions.subscribe(lambda event: events.append((event.kind, event.session.number)))
    session = await start(sessions, client)
    assert sessions.list() == [session]
    assert sessions.get(session.number) is session
    assert (session.state, session.server_id, session.owner.name) == ("running", "server", ":1.1")
    ended = await sessions.stop(session.number)
    assert ended.code == 143
    await sessions.close()
    assert session.state == "exited"
    assert sessions.list() == []
    with pytest.raises(NotFound):
        sessions.get(session.number)
    with pytest.raises(NotFound):
        await sessions.stop(session.number)
    assert events == [("started", 1), ("exited", 1)]
    unsubscribe()
    client.close()


async def test_session_that_ends_by_itself_tells_its_stderr(world: World) -> None:
    world.install("server", "import sys; print('why', file=sys.stderr); sys.exit(5)")
    _, ended, session = await talk(world.sessions(), "server")
    assert (ended.code, ended.stderr_tail) == (5, "why\n")
    async with asyncio.timeout(120):
        while session.exit is None:
            await asyncio.sleep(0)
    assert session.stderr_tail() == "why\n"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"disabled": True}, Disabled),
        ({"runtime": {"runAs": "system"}}, SystemInstanceOnly),
        ({"transports": [{"type": "carrier-pigeon"}]}, NotStdio),
        ({"transports": [{"type": "stdio", "command": "absent"}]}, SpawnFailed),
    ],
)
async def test_server_that_may_not_start_is_refused(
    world: World, fields: dict[str, Any], error: type[McpdError]
) -> None:
    world.install("server", WAIT, **fields)
    sessions = world.sessions()
    with pytest.raises(error, match=r"server|absent"):
        await talk(sessions, "server")
    assert sessions.list() == []


async def test_run_as_system_starts_in_the_system_scope(world: World) -> None:
    world.install("server", "print('ran')", scope=Scope.SYSTEM, runtime={"runAs": "system"})
    assert (await talk(world.sessions(scope=Scope.SYSTEM), "server"))[0] == b"ran\n"


async def test_unknown_and_broken_servers_and_descriptors_are_refused(world: World) -> None:
    world.install("server", WAIT)
    sessions = world.sessions()
    with pytest.raises(NotFound):
        await talk(sessions, "absent")
    with pytest.raises(InvalidArgument, match="0, 1 and 2"):
        await sessions.spawn("server", {3: 0}, owner=OWNER)
    broken, launch = world.servers["server"]
    world.servers["server"] = (type(broken)(**{**_fields(broken), "manifest": None, "problem": "not JSON"}), launch)
    with pytest.raises(InvalidManifest, match="not JSON"):
        await talk(sessions, "server")


def _fields(server: object) -> dict[str, Any]:
    return {name: getattr(server, name) for name in server.__slots__}  # type: ignore[attr-defined]


async def test_limit_counts_sessions_that_are_starting(world: World) -> None:
    world.install("server", WAIT)
    sessions, clients = world.sessions(max_sessions=3), [Client() for _ in range(5)]
    outcomes = await asyncio.gather(*(start(sessions, client) for client in clients), return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, LimitExceeded)]
    assert len(refused) == 2
    assert "max_sessions" in refused[0].message
    assert len(sessions.list()) == 3
    await sessions.close()
    for client in clients:
        client.close()


async def outcomes(sessions: Sessions, client: Client, *owners: Owner) -> list[str]:
    """For each of *owners* in turn nothing, or why no server was started for it."""
    found = []
    for owner in owners:
        try:
            await sessions.spawn("server", client.fds, owner=owner)
        except LimitExceeded as error:
            found.append(error.message)
        else:
            found.append("")
    return found


async def test_each_user_has_a_share_and_root_and_mcpd_a_reserve(world: World) -> None:
    world.install("server", WAIT, scope=Scope.SYSTEM)
    sessions, client = world.sessions(scope=Scope.SYSTEM, max_sessions=8), Client()
    one, again, check = Owner(1000, ":1.1"), Owner(1000, ":1.2"), Owner(1000, "mcpd.install", is_mcpd=True)
    told = await outcomes(sessions, client, check, one, again, again)
    assert told[:3] == ["", "", ""]
    assert re.search(r"uid 1000 has reached the limit of 2 running servers.*runtime\.max_sessions_per_user", told[3])
    others = [Owner(1000 + number // 2, ":1.3") for number in range(2, 6)]
    told = await outcomes(sessions, client, *others, Owner(2000, ":1.4"), Owner(0, ":1.5"), Owner(0, ":1.5"), check)
    assert told[:4] == [""] * 4
    assert re.search(r"runtime\.max_sessions, of 8: the rest are reserved for root", told[4])
    assert told[5] == ""
    assert all("runtime.max_sessions)" in refusal for refusal in told[6:])
    await sessions.stop(sessions.list()[0].number)
    await asyncio.sleep(0)
    assert await outcomes(sessions, client, Owner(2000, ":1.4"), check) == [told[4], ""]
    await sessions.close()
    client.close()


async def test_the_share_is_a_setting_and_a_user_instance_has_none(world: World) -> None:
    world.install("server", WAIT, scope=Scope.SYSTEM)
    client, owner = Client(), Owner(1000, ":1.1")
    shared = world.sessions(scope=Scope.SYSTEM, max_sessions=8, max_sessions_per_user=3)
    assert [bool(text) for text in await outcomes(shared, client, *[owner] * 4)] == [False, False, False, True]
    await shared.close()
    world.install("server", WAIT)
    own = world.sessions(max_sessions=8, max_sessions_per_user=3)
    assert await outcomes(own, client, *[owner] * 8) == [""] * 8
    await own.close()
    client.close()


async def test_client_that_vanishes_loses_its_sessions_only(world: World) -> None:
    world.install("server", WAIT)
    sessions, clients = world.sessions(), [Client() for _ in range(3)]
    first = await start(sessions, clients[0], name=":1.7")
    other = await start(sessions, clients[1], name=":1.8")
    starting = asyncio.create_task(start(sessions, clients[2], name=":1.7"))
    await asyncio.sleep(0)
    await sessions.stop_owner(":1.7")
    late = await starting
    await late.wait()
    assert first.state == "exited"
    assert sessions.list() == [other]
    await sessions.close()
    for client in clients:
        client.close()


async def test_changed_server_is_stopped_everywhere(world: World) -> None:
    world.install("server", WAIT)
    world.install("other", WAIT)
    sessions, clients = world.sessions(), [Client() for _ in range(3)]
    for client in clients[:2]:
        await start(sessions, client)
    other = await start(sessions, clients[2], "other")
    await sessions.stop_server("server")
    assert sessions.list() == [other]
    await sessions.close()
    for client in clients:
        client.close()


async def test_close_ends_all_and_starts_no_more(world: World) -> None:
    world.install("server", WAIT)
    sessions, clients = world.sessions(), [Client() for _ in range(4)]
    for client in clients[:2]:
        await start(sessions, client)
    starting = asyncio.create_task(start(sessions, clients[2]))
    await asyncio.sleep(0)
    await sessions.close()
    assert sessions.list() == []
    with pytest.raises(SpawnFailed, match="stopping"):
        await starting
    with pytest.raises(SpawnFailed, match="stopping"):
        await start(sessions, clients[3])
    for client in clients:
        client.close()


async def test_what_is_starting_when_mcpd_is_replaced_is_given_up(world: World) -> None:
    world.install("server", WAIT)
    sessions, clients = world.sessions(), [Client() for _ in range(2)]
    left = await start(sessions, clients[0])
    starting = asyncio.create_task(start(sessions, clients[1]))
    await asyncio.sleep(0)
    held = os.dup(left.leash.fileno())
    await sessions.detach()
    assert starting.done()
    with pytest.raises(SpawnFailed, match="stopping"):
        await starting
    assert sessions.list() == [left]
    assert Path(f"/proc/{left.pid}").exists()
    os.close(held)
    for client in clients:
        client.close()


async def test_failing_listener_leaves_the_session_watched(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.install("server", WAIT)
    sessions, client = world.sessions(), Client()

    def fail(event: SessionEvent) -> None:
        raise ValueError(event.kind)

    sessions.subscribe(fail)
    session = await start(sessions, client)
    await sessions.stop(session.number)
    await sessions.close()
    assert session.state == "exited"
    assert caplog.text.count("a listener failed") == 2
    client.close()


async def crash(sessions: Sessions, code: int = 1) -> None:
    """Let the server end by itself while its client still holds on."""
    client = Client()
    session = await start(sessions, client)
    await session.wait()
    while sessions.list():
        await asyncio.sleep(0)
    client.close()


async def test_crashing_server_is_held_back_longer_and_longer(world: World) -> None:
    clock = Clock()
    world.install("server", "import sys; sys.exit(9)")
    sessions = world.sessions(backoff=Backoff(clock))
    for _ in range(3):
        await crash(sessions)
    with pytest.raises(
        HeldBack, match=r"3 times in a row \(last exit status 9\) and is held back for 1 s.*mcpctl logs"
    ):
        await crash(sessions)
    clock.now += 1
    await crash(sessions)
    with pytest.raises(HeldBack, match="for 2 s"):
        await crash(sessions)
    sessions.forget_crashes("server")
    await crash(sessions)


async def test_client_that_hangs_up_or_stops_is_no_crash(world: World) -> None:
    clock = Clock()
    world.install("server", "import sys; sys.stdin.read(); sys.exit(1)")
    sessions = world.sessions(backoff=Backoff(clock))
    for number in range(6):
        client = Client()
        session = await start(sessions, client)
        client.started()
        if number % 2:
            await sessions.stop(session.number)
        else:
            os.close(client.write_end)
            client.write_end = -1
            await session.wait()
        client.close()
    await sessions.close()


def test_backoff_grows_to_its_cap_and_forgets() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    for _ in range(40):
        backoff.crashed("s", OWNER, 1, lived=0.1)
    with pytest.raises(HeldBack, match=f"for {LONGEST_DELAY:.0f} s"):
        backoff.check("s", OWNER)
    backoff.check("another", OWNER)
    backoff.crashed("s", OWNER, 1, lived=LONG_ENOUGH)
    clock.now += LONGEST_DELAY
    backoff.crashed("s", OWNER, 1, lived=0.1)
    backoff.check("s", OWNER)
    backoff.forget("never seen")
    backoff.forget("never seen", OWNER)


class FakeManager:
    """Starts what systemd would start, the way it would."""

    def __init__(self) -> None:
        self.units: dict[str, subprocess.Popen[bytes]] = {}
        self.refuse = False

    async def start_transient(self, name: str, given: Mapping[str, tuple[str, Any]], fd: int) -> None:
        if self.refuse:
            raise McpdError("Unit already exists")
        ((path, argv, ignore_failure),) = given["ExecStart"][1]
        assert (path, ignore_failure) == (argv[0], False)
        self.units[name] = await asyncio.to_thread(subprocess.Popen, argv, stdin=fd, stdout=subprocess.DEVNULL)


async def test_transient_unit_runs_the_server(world: World) -> None:
    manager = FakeManager()
    world.install("my.server", "import sys; print(sys.stdin.readline())")
    sessions, client = world.sessions(launcher=SystemdUserLauncher(manager)), Client()
    session = await start(sessions, client, "my.server")
    client.started()
    os.write(client.write_end, b"hello\n")
    assert await client.read() == b"hello\n\n"
    assert (await session.wait()).code == 0
    ((name, process),) = manager.units.items()
    assert name.startswith("mcp-my.server-")
    assert name.endswith(".service")
    assert await asyncio.to_thread(process.wait) == 0
    await sessions.close()
    client.close()


async def test_unit_that_cannot_be_started_is_a_spawn_failure(world: World) -> None:
    manager = FakeManager()
    manager.refuse = True
    world.install("server", WAIT)
    before = open_descriptors()
    with pytest.raises(
        SpawnFailed, match=r"server: the user's service manager did not start mcp-server-.*already exists"
    ):
        await talk(world.sessions(launcher=SystemdUserLauncher(manager)), "server")
    assert open_descriptors() == before


def test_unit_properties_hold_nothing_private() -> None:
    given = properties("build:x")
    assert {name: value for name, (_, value) in given.items()} | {"ExecStart": 0} == {
        "Description": "MCP server build:x",
        "Type": "exec",
        "CollectMode": "inactive-or-failed",
        "ExecStart": 0,
        "KillMode": "mixed",
        "TimeoutStopUSec": 5_000_000,
        "Slice": "app-mcp.slice",
        "UMask": 0o077,
        "StandardOutput": "null",
        "StandardError": "journal",
        "SuccessExitStatus": ([1], []),
        "LimitCORE": 0,
        "OOMPolicy": "kill",
        "TasksMax": 1024,
        "MemoryMax": 8 << 30,
        "MemorySwapMax": 2 << 30,
    }
    assert unit_name("build:x").startswith("mcp-build_x-")
    assert unit_name("a") != unit_name("a")
    commands: Any = given["ExecStart"][1]
    assert sys.executable in commands[0][1]
