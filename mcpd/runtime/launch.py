# SPDX-License-Identifier: LGPL-2.1-or-later
"""Start of one confined process tree, and its leash (docs/launch-protocol.md).

A :class:`Launcher` starts ``mcpd-exec`` with one end of a unix socket as its fd 0; the other end is the
:class:`Leash`. Launchers differ only in how ``mcpd-exec`` is started; the protocol on the leash is the same.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from mcpd.errors import ERROR_PREFIX, LimitExceeded, McpdError, SpawnFailed, from_dbus
from mcpd.runtime.exec.wire import MANIFEST_PATH

if TYPE_CHECKING:
    from collections.abc import Mapping

PROTOCOL_VERSION: Final = 1
MAX_LINE: Final = 1024 * 1024
"""Maximum length of a launch line in bytes, including its newline."""
MAX_REPLY: Final = 1024 * 1024
STOP_GRACE: Final = 3.0
"""Seconds between SIGTERM and SIGKILL, which ``mcpd-exec`` sends."""
START_TIMEOUT: Final = 30.0
"""Seconds in which ``mcpd-exec`` must answer; building a sandbox takes milliseconds."""
KILLED: Final = 137
UNCONFINED_MANIFEST: Final = MANIFEST_PATH
"""Path of the private manifest without a sandbox: an inherited descriptor, so that it is never written to a disk."""

log = logging.getLogger(__name__)


class MountKind(StrEnum):
    """The kinds of :class:`Mount`, named as in bubblewrap."""

    RO_BIND = "ro-bind"
    BIND = "bind"
    DEV_BIND = "dev-bind"
    TMPFS = "tmpfs"
    DIR = "dir"
    SYMLINK = "symlink"
    FILE = "file"
    """A small read-only file whose text is :attr:`Mount.source`."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One step in building the file system of a sandbox; steps are applied in order."""

    kind: MountKind
    target: str
    """Absolute path inside the sandbox."""
    source: str = ""
    """For binds the resolved path on the host, for ``symlink`` its target, for ``file`` the text."""

    def to_json(self) -> list[str]:
        """Return the mount in the format of the launch line."""
        return [self.kind.value, self.target, self.source]


@dataclass(frozen=True, slots=True)
class Overlay:
    """The private merged ``manifest.json``; its content is passed in a memfd, never in the launch line."""

    path: str
    """Absolute path inside the sandbox, of a file that exists or can be created in a directory of the sandbox.

    Without a sandbox it is :data:`UNCONFINED_MANIFEST`.
    """
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Bus:
    """The session bus, accessed through a filtering proxy."""

    rules: tuple[str, ...]
    """``talk:NAME`` for all interfaces of NAME, ``call:NAME`` only for the interface with the same name."""
    address: str
    """Address of the bus that the proxy connects to."""
    proxy: str
    """Path on the host where the proxy listens."""
    socket: str
    """Path of the proxy's socket inside the sandbox."""


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """The resolved specification of one process for ``mcpd-exec``.

    ``env`` may hold secrets (``target = "env"``), so a spec is never logged.
    """

    id: str
    """Server id (used as a journal field), or ``build:<id>`` for a step of an installation."""
    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str] = field(repr=False)
    mounts: tuple[Mount, ...]
    network: bool
    manifest: Overlay | None
    confined: bool = True
    """False only with the setting ``sandbox = "off"``."""
    bus: Bus | None = None
    confines: bool = False
    """True for a bundled server that runs and confines programs itself. Unlike other servers, it may use openat2(2),
    whose mode the system call filter cannot see, user namespaces and mounts."""

    def to_line(self, fds: tuple[int, ...]) -> bytes:
        """Return the launch line; *fds* are the numbers that the passed descriptors get in the server.

        Raises :class:`~mcpd.errors.LimitExceeded` for a line over 1 MiB.
        """
        line: dict[str, Any] = {
            "v": PROTOCOL_VERSION,
            "id": self.id,
            "argv": self.argv,
            "cwd": self.cwd,
            "env": self.env,
            "permissions": [
                *(["network"] if self.network else []),
                *(["confines"] if self.confines else []),
                *(f"session-bus:{rule}" for rule in (self.bus.rules if self.bus else ())),
            ],
            "fds": fds,
            "mounts": [mount.to_json() for mount in self.mounts],
            "manifest": self.manifest.path if self.manifest else None,
            "confined": self.confined,
        }
        if self.bus:
            line["bus"] = {"address": self.bus.address, "proxy": self.bus.proxy, "socket": self.bus.socket}
        data = json.dumps(line, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
        if len(data) > MAX_LINE:
            raise LimitExceeded(
                f"{self.id}: arguments, environment and mounts take {len(data)} bytes, more than {MAX_LINE};"
                " shorten the configuration values or the environment"
            )
        return data


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a process tree."""

    code: int
    """Exit status of the program, 128 + n if it was ended by signal n."""
    stderr_tail: str
    """The last 64 KiB of the program's stderr; empty if the caller passed fd 2."""
    hangup: bool = False
    """True if the program's stdin was a pipe that the client had closed when the program ended."""


class Launcher(Protocol):
    """Starts process trees."""

    @property
    def name(self) -> str:
        """The launcher's name in the settings, for example ``plain``."""

    async def launch(self, spec: LaunchSpec, fds: Mapping[int, int]) -> Leash:
        """Start *spec* and return once the program has been executed.

        *fds* maps descriptors of the server (0, 1 and optionally 2) to ours, which the caller closes. A missing 0 or 1
        is ``/dev/null``; without 2 stderr goes to the journal and into :attr:`Exit.stderr_tail`.

        Raises :class:`~mcpd.errors.SpawnFailed`, its subclass :class:`~mcpd.errors.SandboxUnavailable`, or
        :class:`~mcpd.errors.LimitExceeded` for a launch line over 1 MiB.
        """


class _Replies(asyncio.Protocol):
    """Parses the lines of ``mcpd-exec`` and sets the futures ``started`` and ``ended``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.started: asyncio.Future[dict[str, Any]] = loop.create_future()
        # If the waiting task was cancelled, nobody retrieves the exception; that is not an error.
        self.started.add_done_callback(lambda started: started.cancelled() or started.exception())
        self.ended: asyncio.Future[Exit] = loop.create_future()
        self.transport: asyncio.Transport | None = None
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - always true for a stream socket
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = bytearray(rest)
        for line in lines:
            self._line(bytes(line))
        if len(self._buffer) > MAX_REPLY and self.transport:
            self.transport.abort()

    def _line(self, line: bytes) -> None:
        try:
            answer = json.loads(line)
        except ValueError:
            log.warning("mcpd-exec wrote something that is not JSON (%d bytes)", len(line))
            return
        if "error" in answer and not self.started.done():
            error = answer["error"]
            self.started.set_exception(from_dbus(ERROR_PREFIX + error["name"], error["message"]))
        elif "started" in answer and not self.started.done():
            self.started.set_result(answer["started"])
        elif "exit" in answer and not self.ended.done():
            self.ended.set_result(Exit(int(answer["exit"]), str(answer["stderr-tail"]), bool(answer["hangup"])))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.started.done():
            self.started.set_exception(SpawnFailed("mcpd-exec exited before it started anything; see the journal"))
        if not self.ended.done():
            self.ended.set_result(Exit(KILLED, ""))


class ExecProcess(Protocol):
    """The supervision of an ``mcpd-exec`` process behind a leash."""

    def kill(self) -> None:
        """Kill an ``mcpd-exec`` that does not respond."""

    async def gone(self) -> None:
        """Wait until the ``mcpd-exec`` process has ended."""


class ForeignProcess:
    """An ``mcpd-exec`` that is not our child: it ends with the leash, and the service manager reaps it."""

    def kill(self) -> None:
        """Do nothing."""

    async def gone(self) -> None:
        """Return immediately: the service manager waits for the process."""


class Leash:
    """A started process tree. It ends when the last copy of the leash is closed; other processes may have copies."""

    def __init__(self, answers: _Replies, process: ExecProcess) -> None:
        self._answers = answers
        self._process = process
        self.pid = 0
        """The server's process id on the host."""
        self.unit = ""
        """The server's systemd unit; empty without systemd."""

    @classmethod
    async def start(cls, sock: socket.socket, spec: LaunchSpec, fds: Mapping[int, int], process: ExecProcess) -> Leash:
        """Send *spec* and *fds* to the ``mcpd-exec`` behind *sock*, and wait for its answer; takes over *sock*.

        A start that fails or is cancelled leaves nothing behind. Raises the same errors as :meth:`Launcher.launch`.
        """
        loop = asyncio.get_running_loop()
        try:
            line = spec.to_line(tuple(fds))
            sent = _send_with_fds(sock, line, spec, tuple(fds.values()))
            sock.setblocking(False)
            answers = _Replies(loop)
            transport, _ = await loop.create_unix_connection(lambda: answers, sock=sock)
        except BaseException:
            # mcpd-exec sees the end of its leash and cleans up, which it could not do if it were killed.
            sock.close()
            await process.gone()
            raise
        leash = cls(answers, process)
        try:
            transport.write(line[sent:])
            async with asyncio.timeout(START_TIMEOUT):
                started = await asyncio.shield(answers.started)
        except TimeoutError:
            leash.abort()
            raise SpawnFailed(f"{spec.id}: mcpd-exec did not answer within {START_TIMEOUT:.0f} s") from None
        except McpdError:
            # mcpd-exec ends after it has reported the error.
            await process.gone()
            raise
        except BaseException:
            await leash.stop()
            raise
        leash.pid, leash.unit = int(started["pid"]), str(started["unit"])
        return leash

    @classmethod
    async def adopt(cls, sock: socket.socket, pid: int, unit: str) -> Leash:
        """Take over the leash *sock* of a tree that an earlier process of this instance started.

        Data received in the meantime is read now. Raises :class:`OSError` if the leash cannot be used; the caller then
        closes *sock*.
        """
        answers = _Replies(asyncio.get_running_loop())
        answers.started.set_result({"pid": pid, "unit": unit})
        sock.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: answers, sock=sock)
        leash = cls(answers, ForeignProcess())
        leash.pid, leash.unit = pid, unit
        return leash

    def fileno(self) -> int:
        """Return the leash's descriptor, to be stored by the service manager; -1 once the tree has ended."""
        transport = self._answers.transport
        sock = transport.get_extra_info("socket") if transport else None
        return int(sock.fileno()) if sock is not None else -1

    async def wait(self) -> Exit:
        """Wait until no process of the tree is left, and return how the tree ended; may be awaited several times."""
        ended = await asyncio.shield(self._answers.ended)
        await self._process.gone()
        return ended

    async def stop(self) -> Exit:
        """End the tree with SIGTERM, and with SIGKILL after 3 s. Does nothing if it has ended."""
        self.close()
        try:
            async with asyncio.timeout(STOP_GRACE * 3):
                return await self.wait()
        except TimeoutError:
            log.warning("mcpd-exec of process %d is not responding; killing it", self.pid)
            self.abort()
            return await self.wait()

    def close(self) -> None:
        """Start ending the tree, without waiting."""
        transport = self._answers.transport
        if transport is not None and not transport.is_closing():
            transport.write_eof()

    def abort(self) -> None:
        """Kill ``mcpd-exec`` itself, which also ends the tree."""
        self._process.kill()
        self.close()
        self.release()

    def release(self) -> None:
        """Close our copy of the leash without ending the tree, if the service manager or another process has a copy."""
        if self._answers.transport is not None:
            self._answers.transport.abort()


def _send_with_fds(sock: socket.socket, line: bytes, spec: LaunchSpec, fds: tuple[int, ...]) -> int:
    """Send the beginning of *line* with *fds* and the manifest's memfd; return the number of bytes sent."""
    passed, memfd = list(fds), -1
    try:
        if spec.manifest is not None:
            memfd = memory_file("manifest.json", spec.manifest.data)
            passed.append(memfd)
        # The descriptors are sent with a part that fits any socket buffer; the transport sends the rest.
        return socket.send_fds(sock, [line[:4096]], passed) if passed else 0
    except OSError as error:
        raise SpawnFailed(f"{spec.id}: cannot connect to mcpd-exec: {error.strerror}") from error
    finally:
        if memfd >= 0:
            os.close(memfd)


def memory_file(name: str, data: bytes) -> int:
    """Return a memfd that contains *data*, at position 0; the caller closes it."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd
