# SPDX-License-Identifier: LGPL-2.1-or-later
"""Launchers: ``mcpd-exec`` as a child process, behind a socket unit, or as a transient unit of ``systemd --user``."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from mcpd.errors import McpdError, NotSupported, SpawnFailed
from mcpd.paths import Scope
from mcpd.runtime.launch import STOP_GRACE, ForeignProcess, Leash

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.paths import Paths
    from mcpd.runtime.launch import Launcher, LaunchSpec
    from mcpd.settings import Settings

EXEC_FILE: Final = Path(__file__).parent / "exec" / "mcpd_exec.py"


def exec_command() -> tuple[str, ...]:
    """Return the command line of ``mcpd-exec``."""
    return (sys.executable or "/usr/bin/python3", "-IS", str(EXEC_FILE))


class PlainLauncher:
    """Runs ``mcpd-exec`` as a child in its own session; the tree ends with this process, which holds the leash."""

    name = "plain"

    async def launch(self, spec: LaunchSpec, fds: Mapping[int, int]) -> Leash:
        """See :meth:`mcpd.runtime.launch.Launcher.launch`."""
        ours, theirs = socket.socketpair()
        try:
            child = _Child(theirs.fileno())
        except OSError as error:
            ours.close()
            raise SpawnFailed(f"{spec.id}: mcpd-exec cannot be started: {error.strerror}") from error
        finally:
            theirs.close()
        return await Leash.start(ours, spec, fds, child)


class _Child:
    """An ``mcpd-exec`` child process, reaped through a pidfd."""

    def __init__(self, leash: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._gone = asyncio.Event()
        command = exec_command()
        self._pid = os.posix_spawn(
            command[0],
            command,
            {"PATH": os.defpath, "LANG": "C.UTF-8"},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, leash, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD),
        )
        try:
            self._pidfd = os.pidfd_open(self._pid)
        except OSError:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            raise
        self._loop.add_reader(self._pidfd, self._reap)

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        os.waitpid(self._pid, 0)
        self._gone.set()

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        if self._pidfd >= 0:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def gone(self) -> None:
        """Wait until the process has been reaped."""
        await self._gone.wait()


SPAWN_SOCKET: Final = "spawn.sock"
BUILD_SOCKET: Final = "build.sock"
CONNECT_TIMEOUT: Final = 10.0
"""Seconds for the service manager to accept the connection; it takes time only if the backlog is full."""
SERVER_USER: Final = "mcp-server"
BUILD_USER: Final = "mcpd"
RETRY: Final = 0.01
"""Seconds between two attempts to connect."""


class SystemdSocketLauncher:
    """Connects to a socket unit, which starts an instance of its service for each connection.

    mcpd needs no privileges for that: the unit file determines what is started, and as which user.
    """

    name = "systemd-socket"

    def __init__(self, path: Path, user: str) -> None:
        self.path = path
        """Path of the unit's socket."""
        self.user = user
        """The user that the unit starts programs as."""

    async def launch(self, spec: LaunchSpec, fds: Mapping[int, int]) -> Leash:
        """See :meth:`mcpd.runtime.launch.Launcher.launch`."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await self._connect(sock)
        except TimeoutError:
            sock.close()
            raise SpawnFailed(
                f"{spec.id}: the service manager did not accept the connection to {self.path} within"
                f" {CONNECT_TIMEOUT:.0f} s; see: systemctl status {self._unit}"
            ) from None
        except OSError as error:
            sock.close()
            raise SpawnFailed(
                f"{spec.id}: cannot connect to {self.path} ({error.strerror}); see: systemctl status {self._unit}"
            ) from error
        except BaseException:
            sock.close()
            raise
        return await Leash.start(sock, spec, fds, ForeignProcess())

    async def _connect(self, sock: socket.socket) -> None:
        """Connect; retry after EAGAIN, as no event signals that the backlog has room again."""
        while True:
            try:
                sock.connect(str(self.path))
            except BlockingIOError:
                await asyncio.sleep(RETRY)
            else:
                return

    @property
    def _unit(self) -> str:
        return f"mcpd-{self.path.stem}.socket"


if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.runtime.launch import LaunchSpec

    Property: TypeAlias = (
        "str | bool | int | list[str] | list[tuple[str, list[str], bool]] | tuple[list[int], list[int]]"
    )

GIB: Final = 1 << 30
SLICE: Final = "app-mcp.slice"
"""Slice of all transient units; below ``app.slice``, as recommended for programs that are not session services."""


class UnitManager(Protocol):
    """The user's service manager; the bus layer implements it with ``StartTransientUnit``."""

    async def start_transient(self, name: str, properties: Mapping[str, tuple[str, Property]], fd: int) -> None:
        """Start the unit *name* and return when its job is done.

        *properties* maps each name to its D-Bus signature and value. *fd* is passed as the property
        ``StandardInputFileDescriptor`` (signature ``h``); the caller closes it.

        Raises :class:`~mcpd.errors.McpdError` if the manager refuses or is not available.
        """


class SystemdUserLauncher:
    """Starts every server in its own transient unit and cgroup, which the service manager cleans up."""

    name = "systemd-user"

    def __init__(self, units: UnitManager) -> None:
        self._units = units

    async def launch(self, spec: LaunchSpec, fds: Mapping[int, int]) -> Leash:
        """See :meth:`mcpd.runtime.launch.Launcher.launch`."""
        name = unit_name(spec.id)
        ours, theirs = socket.socketpair()
        try:
            await self._units.start_transient(name, properties(spec.id), theirs.fileno())
        except McpdError as error:
            ours.close()
            raise SpawnFailed(f"{spec.id}: the user's service manager did not start {name}: {error.message}") from error
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return await Leash.start(ours, spec, fds, ForeignProcess())


def unit_name(spec_id: str) -> str:
    """Return a unique unit name that contains the server's id."""
    safe = "".join(c if c.isalnum() or c in "._" else "_" for c in spec_id)
    return f"mcp-{safe}-{secrets.token_hex(4)}.service"


def properties(spec_id: str) -> dict[str, tuple[str, Property]]:
    """Return the unit's properties for ``StartTransientUnit``.

    They contain no environment and no credentials, since every user can read them.
    """
    command = list(exec_command())
    build = spec_id.startswith("build:")
    return {
        "Description": ("s", f"MCP server {spec_id}"),
        "Type": ("s", "exec"),
        "CollectMode": ("s", "inactive-or-failed"),
        "ExecStart": ("a(sasb)", [(command[0], command, False)]),
        # Status 1 is a launch error, which mcpd-exec has already reported to mcpd.
        "SuccessExitStatus": ("(aiai)", ([1], [])),
        "LimitCORE": ("t", 0),
        # mcpd-exec stops its tree itself; processes still left a little later are killed.
        "KillMode": ("s", "mixed"),
        "TimeoutStopUSec": ("t", int((STOP_GRACE + 2) * 1_000_000)),
        "Slice": ("s", SLICE),
        "UMask": ("u", 0o077),
        # Pass only stdin as a descriptor: with more of them, stderr would go to stdout.
        "StandardOutput": ("s", "null"),
        "StandardError": ("s", "journal"),
        "OOMPolicy": ("s", "kill"),
        # The same limits as in mcpd-spawn@.service and mcpd-build@.service.
        "TasksMax": ("t", 1024 if build else 512),
        "MemoryMax": ("t", (8 if build else 4) * GIB),
        "MemorySwapMax": ("t", (2 if build else 1) * GIB),
    }


@dataclass(frozen=True, slots=True)
class Launchers:
    """The launchers of servers and of the commands of installations."""

    servers: Launcher
    builds: Launcher


def launchers_for(settings: Settings, scope: Scope, paths: Paths, units: UnitManager | None = None) -> Launchers:
    """Return the launchers of *settings* for the instance of *scope*.

    ``auto`` selects the system's socket units if their sockets exist, or the user's service manager *units*, else plain
    child processes.

    Raises :class:`~mcpd.errors.NotSupported` if the configured launcher is not available.
    """
    wanted = settings.runtime.launcher
    spawn, build = (paths.layout(scope).runtime / name for name in (SPAWN_SOCKET, BUILD_SOCKET))
    if scope is Scope.SYSTEM and (wanted == "systemd-socket" or (wanted == "auto" and spawn.is_socket())):
        return Launchers(SystemdSocketLauncher(spawn, SERVER_USER), SystemdSocketLauncher(build, BUILD_USER))
    if units is not None and wanted in {"auto", "systemd-user"}:
        one: Launcher = SystemdUserLauncher(units)
    elif wanted == "systemd-user":
        raise NotSupported('launcher = "systemd-user", but systemd --user is not on the session bus; use "auto"')
    elif wanted == "systemd-socket":
        raise NotSupported('launcher = "systemd-socket" is for the system\'s mcpd only; use "auto"')
    else:
        one = PlainLauncher()
    return Launchers(one, one)
