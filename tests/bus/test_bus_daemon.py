# SPDX-License-Identifier: LGPL-2.1-or-later
"""The program mcpd from its start to its end, and what it asks of systemd."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mcpd import errors
from mcpd.bus import codec
from mcpd.bus.connection import Connection
from mcpd.bus.names import SESSION
from mcpd.bus.systemd import MANAGER, MANAGER_PATH, SYSTEMD, TransientUnits, unit_manager
from tests.bus.harness import PATIENCE, connected, next_signal

if TYPE_CHECKING:
    from mcpd.bus.client import Client
    from mcpd.bus.transport import Frame
    from tests.bus.harness import Machine


async def ended(daemon: Any) -> int:
    async with asyncio.timeout(PATIENCE):
        return int(await daemon.process.wait())


async def test_a_lost_bus_ends_mcpd_with_an_error(machine: Machine) -> None:
    daemon = await machine.serve()
    machine.bus.stop()
    assert await ended(daemon) == 1
    assert "mcpd: the connection to the message bus was lost" in daemon.log()
    assert "Traceback" not in daemon.log()


async def test_there_is_one_mcpd_on_a_bus(machine: Machine) -> None:
    first = await machine.serve()
    second = await machine.start()
    assert await ended(second) == 1
    assert "mcpd: the name org.mcpd.Mcp1 is taken" in second.log()
    assert first.process.returncode is None


async def test_without_a_bus_there_is_no_mcpd(machine: Machine) -> None:
    machine.bus.stop()
    daemon = await machine.start()
    assert await ended(daemon) == 1
    assert "cannot connect to the message bus" in daemon.log()


@pytest.mark.parametrize(
    "answer",
    [b"", b"REJECTED\r\n", b"NONSENSE\r\n", b"\xff\r\n", b"x" * 5000, b"OK 1\r\n", b"OK 1\r\nAGREE_UNIX_FD\r\n"],
    ids=["ends", "rejects", "unknown", "no-text", "long", "ends-later", "ends-at-hello"],
)
async def test_a_bus_that_does_not_authenticate_is_refused_and_its_socket_closed(
    short_tmp: Path, answer: bytes
) -> None:
    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            for line in answer.splitlines(keepends=True):
                peer.recv(4096)
                peer.send(line)
            peer.shutdown(socket.SHUT_WR)
            peer.settimeout(60)
            with suppress(ConnectionResetError):
                while peer.recv(4096):
                    pass

    path = short_tmp / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        serving = asyncio.create_task(asyncio.to_thread(serve))
        with pytest.raises(errors.ServiceUnavailable, match="cannot connect to the message bus"):
            await Connection.open(f"unix:path={path}")
        await serving


async def test_with_wrong_settings_nothing_is_started_until_they_are_mended(machine: Machine, client: Client) -> None:
    file = machine.root / "home/.config/mcp/mcpd.toml"
    file.parent.mkdir(parents=True)
    file.write_text("[runtime]\nsandbocks = 'on'\n")
    machine.install("x")
    daemon = await machine.serve()
    told = r"x was not started: .*/mcp/mcpd\.toml: runtime\.sandbocks: unknown setting"
    with pytest.raises(errors.InvalidConfig, match=told):
        await client.spawn("x")
    assert [server["id"] for server in await client.manager.call("ListServers", "a{sv}", [{}])] == ["x"]
    assert "sandbox" not in (await client.manager.properties())["Features"]
    file.write_text("")
    daemon.process.send_signal(signal.SIGHUP)
    async with asyncio.timeout(PATIENCE):
        while "sandbox" not in (await client.manager.properties())["Features"]:
            await asyncio.sleep(0.01)
    _, ends = await client.spawn("x")
    for fd in ends.values():
        os.close(fd)
    assert await daemon.stop() == 0
    assert "Traceback" not in daemon.log()


async def test_the_environment_cannot_take_the_sandbox_of_the_system_away(machine: Machine, client: Client) -> None:
    machine.settings["MCPD_RUNTIME_SANDBOX"] = "off"
    daemon = await machine.serve("--system")
    async with asyncio.timeout(PATIENCE):
        while "No server will be started with the launcher plain: MCPD_RUNTIME_SANDBOX=off: " not in daemon.log():
            await client.manager.call("ListServers", "a{sv}", [{}])
    assert "sandbox" not in (await client.manager.properties())["Features"]


async def test_the_system_instance_serves_the_system_scope(machine: Machine, client: Client) -> None:
    daemon = await machine.serve("--system")
    assert (await client.manager.properties())["Scope"] == "system"
    assert await daemon.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_mcpd_and_its_servers(machine: Machine, client: Client, number: signal.Signals) -> None:
    machine.install("x")
    machine.settings["MCPD_RUNTIME_SANDBOX"] = "off"
    daemon = await machine.serve()
    async with client.signals(interface=SESSION) as signals:
        path, ends = await client.spawn("x")
        pid = (await client.session(path).properties())["Pid"]
        daemon.process.send_signal(number)
        assert (await next_signal(signals, "Exited")).path == path
    assert await ended(daemon) == 0
    assert not Path(f"/proc/{pid}").exists()
    assert "Traceback" not in daemon.log()
    for fd in ends.values():
        os.close(fd)


async def test_a_reload_takes_new_settings_and_keeps_old_ones_over_broken_ones(
    machine: Machine, client: Client
) -> None:
    file = machine.root / "home/.config/mcp/mcpd.toml"
    file.parent.mkdir(parents=True)
    machine.install("x")
    daemon = await machine.serve()

    async def reload(text: str, said: str) -> None:
        file.write_text(text)
        before = daemon.log().count(said)
        daemon.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(PATIENCE):
            while daemon.log().count(said) == before:
                await client.manager.call("ListServers", "a{sv}", [{}])

    async def sandboxed() -> bool:
        (server,) = await client.manager.call("ListServers", "a{sv}", [{}])
        return bool(server["sandboxed"])

    assert "sandbox" in (await client.manager.properties())["Features"]
    assert await sandboxed()
    await reload("[runtime]\nsandbox = 'off'\n", "Reloaded the settings")
    assert "sandbox" not in (await client.manager.properties())["Features"]
    assert not await sandboxed()
    await reload("[runtime\n", "Keeping the previous settings")
    assert "sandbox" not in (await client.manager.properties())["Features"]
    assert await daemon.stop() == 0


async def test_the_service_manager_hears_of_the_start_and_the_end(machine: Machine) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(machine.root / "notify"))
        sock.settimeout(PATIENCE)
        machine.settings["NOTIFY_SOCKET"] = str(machine.root / "notify")
        machine.install("x")
        daemon = await machine.serve()
        ready = b"READY=1\nSTATUS=1 server installed, 0 sessions, 0 jobs"
        assert await asyncio.to_thread(sock.recv, 100) == ready
        assert await daemon.stop() == 0
        while (said := await asyncio.to_thread(sock.recv, 100)) != b"STOPPING=1":
            assert said.startswith(b"STATUS=")


class FakeSystemd:
    """Takes the calls of the launcher and lets the test decide how the job ends."""

    def __init__(self, connection: Connection, result: str) -> None:
        self._connection = connection
        self._result = result
        self.started: list[list[Any]] = []
        self.stdin: list[bytes] = []
        connection.serve(self._on_call)

    def _on_call(self, frame: Frame) -> None:
        with frame.fds:
            if frame.member != "StartTransientUnit":
                self._connection.reply(frame)
                return
            name, _, properties, _ = frame.values()
            self.started.append(frame.values())
            index = dict(properties)["StandardInputFileDescriptor"]
            self.stdin.append(os.read(frame.fds.get(index), 100))
            if self._result == "refused":
                self._connection.reply_error(frame, "org.freedesktop.systemd1.UnitExists", f"{name} exists")
                return
            # The signal may well come before the reply.
            self._connection.emit(MANAGER_PATH, MANAGER, "JobRemoved", "uoss", [1, "/job/1", name, self._result])
            self._connection.reply(frame, "o", codec.marshal("o", ["/job/1"]))


@pytest.mark.parametrize("result", ["done", "failed", "refused"])
async def test_a_transient_unit_is_started_with_its_stdin(machine: Machine, result: str) -> None:
    read, write = os.pipe()
    os.write(write, b"leash")
    async with connected(machine.bus) as theirs, connected(machine.bus) as ours:
        assert await unit_manager(ours) is None
        assert await theirs.request_name(SYSTEMD)
        systemd = FakeSystemd(theirs, result)
        units = await unit_manager(ours)
        assert isinstance(units, TransientUnits)
        properties = {"Type": ("s", "exec"), "ExecStart": ("a(sasb)", [("/bin/cat", ["cat"], False)])}
        if result == "done":
            await units.start_transient("mcp-x-1.service", properties, read)
        else:
            with pytest.raises(errors.McpdError, match="failed" if result == "failed" else "exists"):
                await units.start_transient("mcp-x-1.service", properties, read)
    ((name, mode, described, aux),) = systemd.started
    assert (name, mode, aux) == ("mcp-x-1.service", "fail", [])
    assert ("ExecStart", [("/bin/cat", ["cat"], False)]) in described
    assert systemd.stdin == [b"leash"]
    os.close(read)
    os.close(write)


async def test_a_service_manager_on_its_way_to_the_bus_is_waited_for(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine.root / "run/systemd").mkdir(parents=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(machine.root / "run"))
    with socket.socket(socket.AF_UNIX) as private:
        private.bind(str(machine.root / "run/systemd/private"))
        async with connected(machine.bus) as theirs, connected(machine.bus) as ours:
            looking = asyncio.create_task(unit_manager(ours))
            await asyncio.wait([looking], timeout=0.3)
            assert not looking.done()
            FakeSystemd(theirs, "done")
            assert await theirs.request_name(SYSTEMD)
            assert isinstance(await looking, TransientUnits)
