# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpd under systemd from its start to its end, and the servers that outlive it."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from mcpd.journal import SESSION_ENDED, SESSION_STARTED
from tests.system.instance import Client, Instance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.system.machine import Machine

HAMMER = """
import asyncio, os, random, sys
from contextlib import AsyncExitStack
from mcpd.bus.client import connect

async def call(client, server, chance):
    if chance.random() < 0.8:
        await client.manager.call("ListServers", "a{sv}", [{}])
        return
    _, pipes = await client.spawn(server)
    os.write(pipes[0], b"word")
    assert await asyncio.to_thread(os.read, pipes[1], 10) == b"word"
    for fd in pipes.values():
        os.close(fd)

async def main():
    system, server, rounds = sys.argv[1] == "system", sys.argv[2], int(sys.argv[3])
    chance = random.Random(1)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(system)) for _ in range(3)]
        for _ in range(rounds):
            await asyncio.gather(*(call(client, server, chance) for client in clients))
            await asyncio.sleep(chance.choice([chance.uniform(0.018, 0.03), chance.uniform(0.1, 0.3)]))

asyncio.run(main())
"""
"""Calls from three sides around the moments in which mcpd leaves; with pauses long enough that it does."""
STUBBORN = "trap '' TERM; echo ready; while :; do sleep 1; done"


@pytest.fixture
def servers(machine: Machine) -> Iterator[None]:
    """``lifetime-cat`` repeats what it hears, ``lifetime-stubborn`` does not end when asked to."""
    commands = {"lifetime-cat": ["/usr/bin/cat"], "lifetime-stubborn": ["/bin/sh", "-c", STUBBORN]}
    for server_id, (command, *args) in commands.items():
        directory = f"/usr/share/mcp/servers/{server_id}"
        manifest = {
            "id": server_id,
            "name": server_id,
            "summary": "A server of the tests",
            "version": "1.0",
            "scope": "system",
            "installDir": directory,
            "transports": [{"type": "stdio", "command": command, "args": args}],
        }
        machine.write(f"{directory}/manifest.json", json.dumps(manifest))
    yield
    machine.run("rm", "-r", *(f"/usr/share/mcp/servers/{server_id}" for server_id in commands))


@pytest.fixture(params=["system", "user"])
def instance(machine: Machine, servers: None, request: pytest.FixtureRequest) -> Iterator[Instance]:
    made = Instance(machine, request.param)
    made.start_alone()
    yield made
    made.systemctl("stop", "mcpd")


@pytest.fixture
def system(machine: Machine, servers: None) -> Iterator[Instance]:
    made = Instance(machine, "system")
    made.start_alone()
    yield made
    made.systemctl("stop", "mcpd")


@pytest.fixture
def client() -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def start(instance: Instance, server: str = "lifetime-cat", count: int = 1) -> Client:
        made.append(Client(instance, server, count))
        return made[-1]

    yield start
    for one in made:
        one.leave()


def test_servers_outlive_a_killed_mcpd(instance: Instance, client: Callable[..., Client]) -> None:
    holder = client(instance, count=3)
    assert instance.show("NFileDescriptorStore") == "3"
    instance.kill()
    assert instance.sessions() == holder.paths()
    assert [holder.do("talk", which) for which in range(3)] == ["word"] * 3
    instance.kill()
    assert [holder.do("talk", which) for which in range(3)] == ["word"] * 3
    instance.call(holder.sessions[0]["path"], "Stop", "a{sv}", "0")
    assert holder.do("hear", 0) == ""
    assert instance.sessions().keys() == {session["path"] for session in holder.sessions[1:]}
    assert client(instance).sessions[0]["path"] not in holder.paths()
    assert holder.do("end", 1) == ""
    unit = holder.sessions[2]["Unit"]
    assert instance.show("ActiveState", unit) == "active"
    holder.leave()
    instance.machine.wait_until(lambda: instance.show("ActiveState", unit) == "inactive", f"{unit} is gone")


def test_what_ends_while_nobody_looks_is_noticed(instance: Instance, client: Callable[..., Client]) -> None:
    stays, leaves = client(instance, count=2), client(instance, "lifetime-stubborn")
    instance.signal(signal.SIGSTOP)
    assert stays.do("end", 0) == ""
    leaves.leave()
    instance.kill()
    path = stays.sessions[1]["path"]
    instance.machine.wait_until(lambda: instance.sessions().keys() == {path}, "only one session is left")
    assert instance.show("NFileDescriptorStore") == "1"
    assert stays.do("talk", 1) == "word"
    stays.leave()
    instance.forgets_all()


def test_an_owner_who_leaves_later_is_noticed(instance: Instance, client: Callable[..., Client]) -> None:
    holder = client(instance, "lifetime-stubborn")
    instance.kill()
    assert instance.sessions() == holder.paths()
    holder.leave()
    instance.forgets_all()


def test_a_stop_ends_every_server_in_time(instance: Instance, client: Callable[..., Client]) -> None:
    holder = client(instance, "lifetime-stubborn", 4)
    assert [holder.do("hear", which) for which in range(4)] == ["ready\n"] * 4
    options = ["--user"] if instance.scope == "user" else []
    instance.machine.run("timeout", "5", "systemctl", *options, "stop", "mcpd", user=instance.user)
    for session in holder.sessions:
        assert instance.machine.run("test", "-e", f"/proc/{session['Pid']}", check=False).returncode == 1
    assert instance.show("Result") == "success"
    assert instance.records == []


def test_servers_outlive_a_restart_of_mcpd(instance: Instance, client: Callable[..., Client]) -> None:
    holder = client(instance, count=2)
    before = instance.pid
    instance.systemctl("restart", "mcpd")
    assert instance.pid != before
    assert instance.sessions() == holder.paths()
    assert holder.do("talk", 0) == "word"
    instance.systemctl("try-restart", "mcpd")
    assert holder.do("talk", 1) == "word"
    assert holder.do("end", 0) == ""
    holder.leave()
    instance.forgets_all()


def test_run_tells_how_a_server_ended_that_outlived_its_mcpd(system: Instance) -> None:
    pipe = subprocess.PIPE
    client = system.machine.popen("mcpctl", "run", "lifetime-cat", stdin=pipe, stdout=pipe, stderr=pipe)
    assert client.stdin
    assert client.stdout
    client.stdin.write(b"one\n")
    client.stdin.flush()
    assert client.stdout.readline() == b"one\n"
    system.systemctl("restart", "mcpd")
    out, err = client.communicate(b"two\n", 30)
    assert (client.returncode, out, err) == (0, b"two\n", b"")


def test_a_stuck_mcpd_is_replaced_and_its_servers_stay(system: Instance, client: Callable[..., Client]) -> None:
    with system.settings("[Service]\nWatchdogSec=2\n"):
        holder = client(system)
        before = system.pid
        system.signal(signal.SIGSTOP)
        system.machine.wait_until(lambda: system.pid not in {0, before}, "the watchdog has replaced mcpd")
        assert system.sessions() == holder.paths()
        assert holder.do("talk", 0) == "word"
        holder.leave()


def test_mcpd_feeds_its_watchdog(system: Instance) -> None:
    with system.settings("[Service]\nWatchdogSec=1\n"):
        system.start()
        before = system.pid
        first = system.show("WatchdogTimestampMonotonic")
        changed = [first]

        def fed() -> bool:
            if (now := system.show("WatchdogTimestampMonotonic")) != changed[-1]:
                changed.append(now)
            return len(changed) > 4

        system.machine.wait_until(fed, "the watchdog was fed more often than it barks")
        assert system.pid == before


def test_idle_ends_lose_no_call_and_no_socket(instance: Instance) -> None:
    machine = instance.machine
    runtime = "/run/mcp" if instance.scope == "system" else f"/run/user/{machine.uid('alice')}/mcp"
    limits = "[Unit]\nStartLimitIntervalSec=0\n[Service]\nEnvironment=MCPD_DAEMON_IDLE_EXIT=0.02\n"
    with instance.settings(limits):
        sockets = ("find", runtime, "-type", "s", "-printf", "%p %i %M %u:%g\\n")
        before = machine.run(*sockets).stdout
        assert "/bridge.sock " in before
        since = machine.run("date", "+%s").stdout.strip()
        machine.run(
            "/usr/bin/python3", "-c", HAMMER, instance.scope, "lifetime-cat", "30", user=instance.user, timeout=150
        )
        ended = machine.run("journalctl", "-q", "-o", "cat", f"--since=@{since}", f"_UID={_uid(instance)}").stdout
        assert ended.count("mcpd is idle and exiting") > 3
        machine.wait_until(lambda: instance.show("ActiveState") == "inactive", "mcpd has ended")
        assert machine.run(*sockets).stdout == before
        assert instance.show("NFileDescriptorStore") == "0"


def _uid(instance: Instance) -> int:
    return instance.machine.uid("mcpd" if instance.scope == "system" else "alice")


def test_mcpd_stays_while_a_server_runs(system: Instance, client: Callable[..., Client]) -> None:
    with system.settings("[Service]\nEnvironment=MCPD_DAEMON_IDLE_EXIT=0.1\n"):
        holder = client(system)
        before = system.pid
        # Ten times as long as it would take without a session.
        system.machine.run("sleep", "1")
        assert system.pid == before
        holder.leave()
        system.machine.wait_until(lambda: system.pid == 0, "mcpd has ended")


def test_a_reload_takes_settings_and_keeps_them_over_broken_ones(system: Instance) -> None:
    try:
        system.machine.write("/etc/mcp/mcpd.toml", "[runtime]\nmax_sessions = 'many'\n")
        system.systemctl("reload", "mcpd")
        assert "/etc/mcp/mcpd.toml: runtime.max_sessions" in system.show("StatusText")
        assert system.show("ActiveState") == "active"
        said = [entry["MESSAGE"] for entry in system.machine.journal("_SYSTEMD_UNIT=mcpd.service", "PRIORITY=4")]
        assert any("Keeping the previous settings" in line and "runtime.max_sessions" in line for line in said)
        system.machine.write("/etc/mcp/mcpd.toml", "[runtime]\nmax_sessions = 3\n")
        system.systemctl("reload", "mcpd")
        system.machine.wait_until(lambda: "mcpd.toml" not in system.show("StatusText"), "all is well again")
    finally:
        system.machine.run("rm", "/etc/mcp/mcpd.toml")
        system.systemctl("reload", "mcpd")


def test_the_status_counts(system: Instance, client: Callable[..., Client]) -> None:
    client(system, count=2)
    system.machine.wait_until(lambda: "2 sessions, 0 jobs" in system.show("StatusText"), "the sessions are told")


def test_the_log_level_is_changed_by_root_alone(system: Instance) -> None:
    assert system.systemctl("service-log-level", "mcpd") == "info"
    system.systemctl("service-log-level", "mcpd", "debug")
    assert system.systemctl("service-log-level", "mcpd") == "debug"
    refused = system.machine.run(
        "busctl", "set-property", "org.mcpd.Mcp1", "/org/freedesktop/LogControl1", "org.freedesktop.LogControl1",
        "LogLevel", "s", "err", user="alice", check=False,
    )  # fmt: skip
    assert refused.returncode != 0
    assert system.systemctl("service-log-level", "mcpd") == "debug"
    system.systemctl("service-log-level", "mcpd", "info")


def test_the_journal_knows_whose_server_started_and_ended(system: Instance, client: Callable[..., Client]) -> None:
    holder = client(system)
    session = holder.sessions[0]
    assert holder.do("end", 0) == ""
    system.forgets_all()
    matches = ("_SYSTEMD_UNIT=mcpd.service", f"SESSION_UNIT={session['Unit']}")
    (started,) = system.machine.journal(f"MESSAGE_ID={SESSION_STARTED}", *matches)
    (ended,) = system.machine.journal(f"MESSAGE_ID={SESSION_ENDED}", *matches)
    for entry in (started, ended):
        assert (entry["MCP_SERVER_ID"], entry["CALLER_UID"]) == ("lifetime-cat", "0")
        assert entry["MCP_SESSION"] == session["path"].rpartition("/")[2]
    assert ended["EXIT_STATUS"] == "0"
