# SPDX-License-Identifier: LGPL-2.1-or-later
"""Start a server for this process, or connect to one through the bridge, and wait for its end."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import threading
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from mcpd.bus.client import connect, variant
from mcpd.bus.connection import Match
from mcpd.bus.names import BUS_NAME, DBUS, DBUS_PATH, SESSION
from mcpd.cli.session import asking
from mcpd.cli.streams import Relay
from mcpd.errors import (
    McpdError,
    NeedsBridge,
    NotFound,
    ServiceUnavailable,
    SystemInstanceOnly,
    UnknownObject,
    from_dbus,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator, Mapping

    from mcpd.bus.client import Client, Remote, Signal

CHUNK: Final = 64 * 1024
MAX_ANSWER: Final = 64 * 1024
"""Maximum bytes of the line with which the bridge answers."""
ANSWER_TIMEOUT: Final = 60.0
"""Seconds for the bridge to answer; it and mcpd may have to be started first."""
_ABSENT: Final = frozenset({errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR})


def connect_bridge(server_id: str, environment: Mapping[str, str], *, system: bool) -> socket.socket:
    """Connect to *server_id* through the user's bridge, or the *system*'s; the connection works like its stdio.

    The *environment* is used only for a process that is not shared. Raises :class:`~mcpd.errors.ServiceUnavailable` if
    the bridge cannot be reached, and the :class:`~mcpd.errors.McpdError` with which it refuses the connection.
    """
    # Few servers need it, and platformdirs costs mcpctl its start-up time.
    from mcpd.bridge.places import places
    from mcpd.paths import from_environment

    known = from_environment()
    path = places(known.system if system else known.user).stdio
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(ANSWER_TIMEOUT)
        connection.connect(str(path))
        hello: dict[str, object] = {"server": server_id}
        if environment and not system:
            hello["environment"] = dict(environment)
        connection.sendall(json.dumps(hello).encode() + b"\n")
        _check(_line(connection), server_id)
        connection.settimeout(None)
    except OSError as error:
        connection.close()
        raise ServiceUnavailable(_unreachable(server_id, str(path), error, system=system)) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _line(connection: socket.socket) -> bytes:
    """Read exactly one line and no further, because all later data comes from the server."""
    line = bytearray()
    while not line.endswith(b"\n") and len(line) < MAX_ANSWER:
        byte = connection.recv(1)
        if not byte:
            break
        line += byte
    return bytes(line)


def _check(line: bytes, server_id: str) -> None:
    try:
        answer = json.loads(line)
        if answer.get("ok") is True:
            return
        fault = answer["error"]
        error = from_dbus(str(fault["name"]), str(fault["message"]))
    except (ValueError, AttributeError, KeyError, TypeError):
        error = ServiceUnavailable(f"the bridge closed the connection to server {server_id}; see its log")
    raise error


def _unreachable(server_id: str, path: str, error: OSError, *, system: bool) -> str:
    start = "systemctl start mcpd-bridge.socket" if system else "systemctl --user start mcpd-bridge.socket"
    plain = "mcpd-bridge --system" if system else "mcpd-bridge --user"
    why = (
        f"server {server_id} is used through the bridge, because its entry in the mcps map changes what it offers or "
        f"its process is shared, but the bridge cannot be reached at {path}: {error.strerror or error}"
    )
    if error.errno in _ABSENT:
        return f"{why}. Start it with '{start}', or without systemd with '{plain}'"
    if isinstance(error, PermissionError):
        return f"{why}. Only members of the group mcp may use it" if system else why
    return why


def join(connection: socket.socket) -> int:
    """Copy data between our standard streams and *connection* until the server's side ends; return the exit status.

    Signals end this process, and the closed connection makes the bridge end the server's process if it is not shared.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    # One thread for each direction: the streams are shared with other processes and must not be made non-blocking.
    threading.Thread(target=_forward_stdin, args=(connection,), daemon=True).start()
    with connection:
        while data := _read(connection):
            _write_all(1, data)
    return 0


def _read(connection: socket.socket) -> bytes:
    try:
        return connection.recv(CHUNK)
    except ConnectionError:
        raise McpdError("the connection to the bridge was lost; see its log") from None


def _forward_stdin(connection: socket.socket) -> None:
    try:
        while data := os.read(0, CHUNK):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        # The other direction reports the error.
        return


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


_EXIT_UNKNOWN: Final = 1
"""Exit status for a server whose own status is unknown."""
_EXIT_TIMEOUT: Final = 2.0
"""Seconds for a restarted mcpd to report the exit status of a server."""


class UseBridge(Exception):
    """Raised if the server has to be used through the bridge: the *system*'s, or the user's."""

    def __init__(self, *, system: bool) -> None:
        super().__init__()
        self.system = system


class Spawned:
    """A server started for this process."""

    def __init__(
        self,
        bus: Client,
        session: Remote,
        ends: dict[int, int],
        signals: asyncio.Queue[Signal],
        relay: Relay | None = None,
    ) -> None:
        self.session = session
        self.ends = ends
        """Our ends of the server's pipes, if mcpd created them: its stdin at 0, its stdout at 1."""
        self.relay = relay
        """Copies data between our descriptors and the server, if it does not accept them directly."""
        self._bus = bus
        self._signals = signals

    async def wait(self) -> int:
        """Wait for the end of the server; return its exit status, or 128 plus the number of the signal that ended it.

        Raises :class:`~mcpd.errors.ServiceUnavailable` if the bus is lost. If only mcpd leaves the bus, the server may
        continue to run, so this waits for its process.
        """
        lost = asyncio.ensure_future(self._mcpd_lost())
        exited = asyncio.ensure_future(self._exited())
        pidfd = await self._pidfd()
        try:
            await asyncio.wait([lost, exited], return_when=asyncio.FIRST_COMPLETED)
            if exited.done():
                return exited.result()
            lost.result()
            if pidfd is not None:
                gone = asyncio.ensure_future(_readable(pidfd))
                await asyncio.wait([gone, exited], return_when=asyncio.FIRST_COMPLETED)
                gone.cancel()
                # A restarted mcpd that has taken over the server reports its exit status.
                await asyncio.wait([exited], timeout=_EXIT_TIMEOUT)
            return exited.result() if exited.done() else _EXIT_UNKNOWN
        finally:
            lost.cancel()
            exited.cancel()
            if pidfd is not None:
                os.close(pidfd)

    async def stop(self) -> None:
        """Ask mcpd to stop the server; do nothing if it has ended already."""
        with suppress(UnknownObject):
            await self.session.call("Stop", "a{sv}", [{}])

    async def _exited(self) -> int:
        while True:
            signal = await self._signals.get()
            if signal.path == self.session.path:
                _result, code = signal.args
                return int(code)

    async def _mcpd_lost(self) -> None:
        """Wait until mcpd leaves the bus; raise :class:`~mcpd.errors.ServiceUnavailable` if the bus is lost."""
        left = asyncio.Event()
        match = Match(DBUS, DBUS_PATH, DBUS, "NameOwnerChanged", BUS_NAME)
        unsubscribe = await self._bus.connection.subscribe(match, lambda signal: left.set() if signal.args[1] else None)
        bus_lost = asyncio.ensure_future(self._bus.connection.wait_lost())
        mcpd_left = asyncio.ensure_future(left.wait())
        try:
            await asyncio.wait([bus_lost, mcpd_left], return_when=asyncio.FIRST_COMPLETED)
            if bus_lost.done():
                raise ServiceUnavailable("the connection to the message bus was lost, so the server was stopped")
        finally:
            unsubscribe()
            bus_lost.cancel()
            mcpd_left.cancel()

    async def _pidfd(self) -> int | None:
        try:
            return os.pidfd_open((await self.session.properties())["Pid"])
        except (McpdError, OSError):
            return None  # ended already, or hidden from us


@asynccontextmanager
async def spawned(
    args: argparse.Namespace, server_id: str, fds: Mapping[int, int], environment: Mapping[str, str] | None = None
) -> AsyncIterator[Spawned]:
    """Start *server_id* with *fds* as its descriptors 0, 1 and 2, or with pipes if *fds* is empty.

    If only the system instance may start the server, use that one. Only the user instance gets the *environment*.
    Leaving the block disconnects, so that mcpd stops the server. Raises :class:`UseBridge` if the server is used
    through the bridge.
    """
    async with AsyncExitStack() as stack:
        try:
            server = await _spawn(stack, args, server_id, fds, environment, system=args.system)
        except SystemInstanceOnly:
            if args.system:
                raise
            server = await _spawn(stack, args, server_id, fds, environment, system=True)
        yield server


async def _spawn(
    stack: AsyncExitStack,
    args: argparse.Namespace,
    server_id: str,
    fds: Mapping[int, int],
    environment: Mapping[str, str] | None,
    *,
    system: bool,
) -> Spawned:
    bus = await stack.enter_async_context(connect(system, interactive=args.interactive))
    signals = await stack.enter_async_context(bus.signals(interface=SESSION, member="Exited"))
    options: dict[str, object] = (
        {"environment": variant(environment, "a{ss}")} if environment is not None and not system else {}
    )
    options["direct"] = variant(True, "b")
    relay = Relay(fds) if system and Relay.needed(fds) else None
    try:
        with asking(args, system=system):  # not longer, as the server may get the terminal
            try:
                path, ends = await bus.spawn(server_id, relay.fds if relay else fds, options)
            except NeedsBridge:
                if system or _has_bridge() or await _is_narrowed(bus, server_id):
                    raise UseBridge(system=system) from None
                del options["direct"]
                path, ends = await bus.spawn(server_id, fds, options)
    except BaseException as error:
        if relay:
            relay.cancel()
        if isinstance(error, NotFound):
            from mcpd.cli.suggestions import with_suggestion

            raise await with_suggestion(bus, args, error) from None
        raise
    if relay:
        relay.start()
    return Spawned(bus, bus.session(path), ends, signals, relay)


def _has_bridge() -> bool:
    """Return whether the user's bridge is available to share the processes of servers."""
    from mcpd.paths import STDIO_SOCKET, from_environment  # rarely needed

    return (from_environment().user.runtime / STDIO_SOCKET).exists()


async def _is_narrowed(bus: Client, server_id: str) -> bool:
    """Return whether the mcps map changes what a server offers, which only the bridge applies."""
    server, _ = await bus.manager.call("GetServer", "s", [server_id])
    return "policy" in server


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(fd, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(fd)
