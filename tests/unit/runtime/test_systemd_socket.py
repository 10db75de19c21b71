# SPDX-License-Identifier: LGPL-2.1-or-later
"""The launcher for socket units, with a stand-in for the service manager that starts the real mcpd-exec."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import socket
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import NotSupported, SpawnFailed
from mcpd.paths import Scope
from mcpd.runtime import launchers, mounts
from mcpd.runtime.launch import LaunchSpec
from mcpd.runtime.launchers import SystemdSocketLauncher, exec_command, launchers_for
from mcpd.settings import RuntimeSettings, Settings
from tests.sandbox.world import PYTHON, Client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.sandbox.world import World

pytestmark = pytest.mark.process

BASE = tuple(mounts.base(network=False, home="/tmp", runtime_dir="/run/user/0", system=False))
ME = pwd.getpwuid(os.getuid()).pw_name


def spec(program: str) -> LaunchSpec:
    argv = (PYTHON, "-IS", "-c", program)
    return LaunchSpec("test", argv, "/tmp", {"PATH": "/usr/bin:/bin"}, BASE, network=False, manifest=None)


class SocketUnit:
    """A socket unit with Accept=yes: starts one mcpd-exec per connection, which is its fd 0."""

    def __init__(self, path: Path, user: str, environment: dict[str, str]) -> None:
        self._user = user
        self._environment = {"PATH": os.defpath, **environment}
        self.pids: list[int] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            command = (*exec_command(), self._user)
            actions = [
                (os.POSIX_SPAWN_DUP2, connection.fileno(), 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            ]
            self.pids.append(os.posix_spawn(command[0], command, self._environment, file_actions=actions))
            connection.close()

    def close(self) -> list[int]:
        """Stop, await what was started, and return its exit statuses."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in self.pids]
        self.pids.clear()
        return statuses


@contextmanager
def unit(path: Path, user: str = ME, **environment: str) -> Iterator[SocketUnit]:
    made = SocketUnit(path, user, environment)
    try:
        yield made
    except BaseException:
        for pid in made.pids:
            os.kill(pid, signal.SIGKILL)
        raise
    finally:
        made.close()


async def test_server_behind_a_socket_unit_runs_confined(tmp_path: Path) -> None:
    client = Client()
    with unit(tmp_path / "spawn.sock"):
        launcher = SystemdSocketLauncher(tmp_path / "spawn.sock", ME)
        leash = await launcher.launch(spec("import os; print(os.path.exists('/home'), input())"), client.fds)
        client.started()
        os.write(client.write_end, b"said\n")
        assert await client.read() == b"False said\n"
        assert (await leash.wait()).code == 0
    client.close()


async def test_stopping_ends_the_server_and_mcpd_exec(tmp_path: Path) -> None:
    client = Client()
    with unit(tmp_path / "spawn.sock") as started:
        leash = await SystemdSocketLauncher(tmp_path / "spawn.sock", ME).launch(spec("input()"), client.fds)
        ended = await leash.stop()
        assert ended.code == 143
        assert started.close() == [0]
        assert not Path(f"/proc/{leash.pid}").exists()
    client.close()


async def test_service_manager_is_told_what_runs(tmp_path: Path) -> None:
    client = Client()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(120)
        with unit(tmp_path / "spawn.sock", NOTIFY_SOCKET=str(tmp_path / "notify")):
            leash = await SystemdSocketLauncher(tmp_path / "spawn.sock", ME).launch(spec("input()"), client.fds)
            told = await asyncio.to_thread(manager.recv, 4096)
            assert told == f"STATUS=test, process {leash.pid}".encode()
            await leash.stop()
    client.close()


async def test_somebody_elses_leash_is_refused(tmp_path: Path) -> None:
    with unit(tmp_path / "spawn.sock", user="nobody" if ME != "nobody" else "root") as refusing:
        with pytest.raises(SpawnFailed, match=f"held by uid {os.getuid()}, but only mcpd"):
            await SystemdSocketLauncher(tmp_path / "spawn.sock", ME).launch(spec("input()"), {})
        assert refusing.close() == [1]


async def test_unknown_user_is_refused(tmp_path: Path) -> None:
    with unit(tmp_path / "spawn.sock", user="no-such-user"), pytest.raises(SpawnFailed, match="the user no-such-user"):
        await SystemdSocketLauncher(tmp_path / "spawn.sock", ME).launch(spec("input()"), {})


async def test_missing_socket_names_the_unit_to_look_at(tmp_path: Path) -> None:
    launcher = SystemdSocketLauncher(tmp_path / "spawn.sock", ME)
    with pytest.raises(SpawnFailed, match=r"No such file.*systemctl status mcpd-spawn\.socket"):
        await launcher.launch(spec("input()"), {})


async def test_service_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "build.sock"))
        listener.listen()
        launching = asyncio.create_task(SystemdSocketLauncher(tmp_path / "build.sock", ME).launch(spec("1"), {}))
        connection, _ = await asyncio.to_thread(listener.accept)
        connection.close()
        with pytest.raises(SpawnFailed):
            await launching


@contextmanager
def full(path: Path) -> Iterator[tuple[socket.socket, list[socket.socket]]]:
    """A socket that takes no connection any more, and the ones it has."""
    waiting: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        while True:
            waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            try:
                waiting[-1].connect(str(path))
            except BlockingIOError:
                break
        yield listener, waiting
        for one in waiting:
            one.close()


async def test_busy_service_manager_is_waited_for(tmp_path: Path) -> None:
    with full(tmp_path / "spawn.sock") as (listener, waiting):
        launching = asyncio.create_task(SystemdSocketLauncher(tmp_path / "spawn.sock", ME).launch(spec("1"), {}))
        await asyncio.sleep(0.05)
        assert not launching.done()
        for _ in waiting[1:]:
            listener.accept()[0].close()
        connection, _ = await asyncio.to_thread(listener.accept)
        assert (await asyncio.to_thread(connection.recv, 6)) == b'{"v":1'
        connection.close()
        with pytest.raises(SpawnFailed):
            await launching


async def test_service_manager_that_takes_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "CONNECT_TIMEOUT", 0.1)
    with full(tmp_path / "spawn.sock"), pytest.raises(SpawnFailed, match="did not accept the connection"):
        await SystemdSocketLauncher(tmp_path / "spawn.sock", ME).launch(spec("1"), {})


class Units:
    async def start_transient(self, name: str, properties: object, fd: int) -> None:
        raise NotImplementedError


def chosen(world: World, scope: Scope, launcher: str = "auto", units: Units | None = None) -> list[str]:
    settings = Settings(runtime=RuntimeSettings.model_validate({"launcher": launcher}))
    both = launchers_for(settings, scope, world.paths, units)
    return [
        f"{one.name} {one.path.name}" if isinstance(one, SystemdSocketLauncher) else one.name
        for one in (both.servers, both.builds)
    ]


async def test_launchers_are_chosen_by_the_settings(world: World) -> None:
    sockets = ["systemd-socket spawn.sock", "systemd-socket build.sock"]
    assert chosen(world, Scope.USER) == ["plain"] * 2
    assert chosen(world, Scope.USER, units=Units()) == ["systemd-user"] * 2
    assert chosen(world, Scope.USER, "plain", Units()) == ["plain"] * 2
    assert chosen(world, Scope.SYSTEM) == ["plain"] * 2
    assert chosen(world, Scope.SYSTEM, "systemd-socket") == sockets
    runtime = world.paths.system.runtime
    runtime.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(runtime / "spawn.sock"))
        assert chosen(world, Scope.SYSTEM) == sockets
        assert chosen(world, Scope.SYSTEM, "plain") == ["plain"] * 2
        assert chosen(world, Scope.USER) == ["plain"] * 2


@pytest.mark.parametrize("launcher", ["systemd-user", "systemd-socket"])
async def test_launcher_that_is_not_there_is_an_error(world: World, launcher: str) -> None:
    with pytest.raises(NotSupported, match=f'launcher = "{launcher}"'):
        chosen(world, Scope.USER, launcher)
