# SPDX-License-Identifier: LGPL-2.1-or-later
"""Starting one confined process tree and holding it by a leash (docs/launch-protocol.md).

A :class:`Launcher` starts ``mcpd-exec`` with one end of a unix socket as its fd 0; the other end is the
:class:`Leash`. Launchers differ only in who starts ``mcpd-exec``; what travels over the leash is the same.
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
"""Bytes of a launch line, its newline included."""
MAX_REPLY: Final = 1024 * 1024
STOP_GRACE: Final = 3.0
"""Seconds between SIGTERM and SIGKILL; ``mcpd-exec`` counts them."""
START_TIMEOUT: Final = 30.0
"""Seconds in which ``mcpd-exec`` must answer; building a sandbox takes milliseconds."""
KILLED: Final = 137
UNCONFINED_MANIFEST: Final = MANIFEST_PATH
"""Where a program without a sandbox finds its private manifest: in a descriptor that it inherits, on no disk."""

log = logging.getLogger(__name__)


class MountKind(StrEnum):
    """What :class:`Mount` does, in the words of bubblewrap."""

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
    """One step in building the file system of a sandbox; steps are taken in order."""

    kind: MountKind
    target: str
    """Absolute path inside."""
    source: str = ""
    """For the binds: the host's path, symlinks resolved; for ``symlink`` what it points at; for ``file`` its text."""

    def to_json(self) -> list[str]:
        """The mount as the launch line carries it."""
        return [self.kind.value, self.target, self.source]


@dataclass(frozen=True, slots=True)
class Overlay:
    """The private merged ``manifest.json``; its bytes travel in a memfd, never in the line."""

    path: str
    """Absolute path inside the sandbox, of a file that exists there or can be made in a directory of its own.

    Without a sandbox it is :data:`UNCONFINED_MANIFEST`.
    """
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Bus:
    """The session bus, as a filtering proxy shows it."""

    rules: tuple[str, ...]
    """``talk:NAME`` for all interfaces of NAME, ``call:NAME`` for the interface of the same name only."""
    address: str
    """The bus that the proxy connects to."""
    proxy: str
    """Path on the host where the proxy listens."""
    socket: str
    """Path inside the sandbox where it is reached."""


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """Everything ``mcpd-exec`` needs to know about one process, already resolved.

    ``env`` may hold secrets (``target = "env"``), so a spec is never logged.
    """

    id: str
    """Server id (it becomes a journal field), or ``build:<id>`` for a step of an installation."""
    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str] = field(repr=False)
    mounts: tuple[Mount, ...]
    network: bool
    manifest: Overlay | None
    confined: bool = True
    """False only by the setting ``sandbox = "off"``."""
    bus: Bus | None = None
    confines: bool = False
    """Whether it is a bundled server that runs and confines programs itself, for which it needs what others do not get:
    openat2(2), whose mode no filter sees, user namespaces and mounts."""

    def to_line(self, fds: tuple[int, ...]) -> bytes:
        """The launch line; *fds* are the numbers that the passed descriptors get in the server.

        Raises :class:`~mcpd.errors.LimitExceeded` over 1 MiB.
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
                f"{self.id}: arguments, environment and mounts take {len(data)} bytes, at most {MAX_LINE} are possible;"
                " shorten the configuration values or the environment"
            )
        return data


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process tree ended."""

    code: int
    """Exit status of the program, 128 + n if signal n ended it."""
    stderr_tail: str
    """The last 64 KiB of its stderr; empty if the caller took fd 2 itself."""
    hangup: bool = False
    """The client had let go of the program's stdin, a pipe, when the program ended."""


class Launcher(Protocol):
    """Starts process trees."""

    @property
    def name(self) -> str:
        """``plain`` or ``systemd-user``, as the settings call it."""

    async def launch(self, spec: LaunchSpec, fds: Mapping[int, int]) -> Leash:
        """Start *spec* and return once the program really runs.

        *fds* maps the server's descriptor (0, 1, optionally 2) to one of ours, which stays the caller's to close.
        A missing 0 or 1 is ``/dev/null``; without 2 stderr goes to the journal and into :attr:`Exit.stderr_tail`.

        Raises :class:`~mcpd.errors.SpawnFailed`, its subclass :class:`~mcpd.errors.SandboxUnavailable`, or
        :class:`~mcpd.errors.LimitExceeded` for a launch line over 1 MiB.
        """


class _Answers(asyncio.Protocol):
    """Reads the lines of ``mcpd-exec`` and turns them into two futures."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.started: asyncio.Future[dict[str, Any]] = loop.create_future()
        # Whoever waited may have been cancelled; the error is then nobody's, and no fault.
        self.started.add_done_callback(lambda started: started.cancelled() or started.exception())
        self.ended: asyncio.Future[Exit] = loop.create_future()
        self.transport: asyncio.Transport | None = None
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - what a stream socket gives
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
            self.started.set_exception(SpawnFailed("mcpd-exec ended before it started anything; see the journal"))
        if not self.ended.done():
            self.ended.set_result(Exit(KILLED, ""))


class Keeper(Protocol):
    """Who holds the ``mcpd-exec`` process behind a leash."""

    def kill(self) -> None:
        """End an ``mcpd-exec`` that does not react."""

    async def gone(self) -> None:
        """Await that the process itself, which has said its last word, is no more."""


class NobodysKeeper:
    """For an ``mcpd-exec`` that is no child of ours: it ends with the leash, and the service manager sees to it."""

    def kill(self) -> None:
        """Nothing we could do."""

    async def gone(self) -> None:
        """Nothing we could wait for."""


class Leash:
    """One started process tree. It ends when the last copy of the leash is closed, which this process may hold."""

    def __init__(self, answers: _Answers, keeper: Keeper) -> None:
        self._answers = answers
        self._keeper = keeper
        self.pid = 0
        """The server's process id on the host."""
        self.unit = ""
        """Its systemd unit; empty without systemd."""

    @classmethod
    async def start(cls, sock: socket.socket, spec: LaunchSpec, fds: Mapping[int, int], keeper: Keeper) -> Leash:
        """Send *spec* and *fds* to the ``mcpd-exec`` behind *sock*, which this takes over, and await its answer.

        Nothing is left of a start that fails or is cancelled. Errors as :meth:`Launcher.launch`.
        """
        loop = asyncio.get_running_loop()
        try:
            line = spec.to_line(tuple(fds))
            sent = _send_with_fds(sock, line, spec, tuple(fds.values()))
            sock.setblocking(False)
            answers = _Answers(loop)
            transport, _ = await loop.create_unix_connection(lambda: answers, sock=sock)
        except BaseException:
            # mcpd-exec sees the end of its leash and cleans up, which it could not if it were killed.
            sock.close()
            await keeper.gone()
            raise
        leash = cls(answers, keeper)
        try:
            transport.write(line[sent:])
            async with asyncio.timeout(START_TIMEOUT):
                started = await asyncio.shield(answers.started)
        except TimeoutError:
            leash.abort()
            raise SpawnFailed(f"{spec.id}: mcpd-exec did not answer within {START_TIMEOUT:.0f} s") from None
        except McpdError:
            # mcpd-exec ends with its refusal.
            await keeper.gone()
            raise
        except BaseException:
            await leash.stop()
            raise
        leash.pid, leash.unit = int(started["pid"]), str(started["unit"])
        return leash

    @classmethod
    async def adopt(cls, sock: socket.socket, pid: int, unit: str) -> Leash:
        """Take over the leash *sock* of a tree that an earlier process of this instance started.

        What came over it meanwhile is read now. Raises :class:`OSError` if it cannot be used; *sock* is the
        caller's then.
        """
        answers = _Answers(asyncio.get_running_loop())
        answers.started.set_result({"pid": pid, "unit": unit})
        sock.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: answers, sock=sock)
        leash = cls(answers, NobodysKeeper())
        leash.pid, leash.unit = pid, unit
        return leash

    def fileno(self) -> int:
        """The leash's descriptor, for the service manager to keep; -1 once the tree has ended."""
        transport = self._answers.transport
        sock = transport.get_extra_info("socket") if transport else None
        return int(sock.fileno()) if sock is not None else -1

    async def wait(self) -> Exit:
        """How the tree ended, once nothing of it is left; may be awaited by many."""
        ended = await asyncio.shield(self._answers.ended)
        await self._keeper.gone()
        return ended

    async def stop(self) -> Exit:
        """End the tree: SIGTERM, SIGKILL after 3 s. Again or afterwards it changes nothing."""
        self.close()
        try:
            async with asyncio.timeout(STOP_GRACE * 3):
                return await self.wait()
        except TimeoutError:
            log.warning("mcpd-exec of process %d does not react and is killed", self.pid)
            self.abort()
            return await self.wait()

    def close(self) -> None:
        """Begin to end the tree, without waiting for it."""
        transport = self._answers.transport
        if transport is not None and not transport.is_closing():
            transport.write_eof()

    def abort(self) -> None:
        """Kill ``mcpd-exec`` itself, which takes the tree with it."""
        self._keeper.kill()
        self.close()
        self.let_go()

    def let_go(self) -> None:
        """Forget the tree without ending it: whoever else holds the leash, as the service manager may, keeps it."""
        if self._answers.transport is not None:
            self._answers.transport.abort()


def _send_with_fds(sock: socket.socket, line: bytes, spec: LaunchSpec, fds: tuple[int, ...]) -> int:
    """Send the beginning of *line* with *fds* and the manifest's memfd; returns how many bytes went."""
    passed, memfd = list(fds), -1
    try:
        if spec.manifest is not None:
            memfd = memory_file("manifest.json", spec.manifest.data)
            passed.append(memfd)
        # One piece that fits any socket buffer carries the descriptors; the transport sends the rest.
        return socket.send_fds(sock, [line[:4096]], passed) if passed else 0
    except OSError as error:
        raise SpawnFailed(f"{spec.id}: mcpd-exec cannot be reached: {error.strerror}") from error
    finally:
        if memfd >= 0:
            os.close(memfd)


def memory_file(name: str, data: bytes) -> int:
    """A descriptor, the caller's to close, from which *data* can be read."""
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
