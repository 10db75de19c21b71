# SPDX-License-Identifier: LGPL-2.1-or-later
"""The server's side of the channels to a call and to the zygote."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from mcpd.servers import tree
from mcpd.servers.scripts.calls import frames, lines
from mcpd.servers.scripts.calls.job import PythonJob, ShellJob
from mcpd.servers.scripts.calls.outcome import Report

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.servers.scripts.calls.job import Limits

    Progress = Callable[[float, float | None, str], None]

_CHUNK: Final = 1 << 18
WATCH: Final = 0.05
_ENDING: Final = 5.0
"""Seconds for the zygote to end everything by itself."""


class Broken(Exception):
    """Error: the zygote, or a keeper, has ended or does not work properly."""


class NoRoom(Broken):
    """Error: the server has too many open files for another call; its zygote is not affected."""


class Silent(Broken):
    """Error: a keeper has ended without a message, so its zygote may be broken."""


def _pair() -> tuple[socket.socket, socket.socket]:
    try:
        return socket.socketpair()
    except OSError as error:
        raise NoRoom(f"the server has no room for it: {error.strerror}") from error


class Control:
    """The control socket of a zygote, which gets one end of a channel and forks a keeper for it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(False)

    def channel(self) -> socket.socket:
        """Return the channel of a new keeper; raises :class:`Broken`."""
        return self._wish(frames.START)

    def stem(self) -> tuple[socket.socket, Control]:
        """Return the channel of the keeper of a new zygote that imports the script, and that zygote.

        Raises :class:`Broken`.
        """
        control, inner = _pair()
        with inner:
            try:
                return self._wish(frames.STEM, inner), Control(control)
            except Broken:
                control.close()
                raise

    def _wish(self, wish: bytes, *more: socket.socket) -> socket.socket:
        """Send *wish* with the other end of a new channel, and *more*, to the zygote; return our end.

        The socket buffers far more requests than there can be; if it is full, the zygote hangs.
        """
        ours, theirs = _pair()
        with theirs:
            try:
                socket.send_fds(self.sock, [wish], [fd.fileno() for fd in (theirs, *more)])
            except OSError as error:
                ours.close()
                raise Broken("its zygote is not there any more, or takes no more calls") from error
        ours.setblocking(False)
        return ours

    def close(self) -> None:
        """Let the zygote end."""
        self.sock.close()


class Zygote(Control):
    """The process of a zygote."""

    def __init__(self, sock: socket.socket, process: asyncio.subprocess.Process) -> None:
        super().__init__(sock)
        self._process = process
        self.calls = 0
        """Number of its calls that have not ended."""
        self.retired = False
        """True if it gets no more calls, and ends after the last one."""

    @classmethod
    async def start(cls, path: str, kind: str, source: str, digest: str = "") -> Zygote:
        """Start a zygote for the script; raises :class:`Broken`."""
        ours, theirs = _pair()
        module = "mcpd.servers.scripts.calls.zygote"
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-B", "-X", "utf8", "-m", module),
                    stdin=theirs.fileno(),
                    stdout=asyncio.subprocess.DEVNULL,
                )
            except BaseException as error:
                ours.close()
                if isinstance(error, OSError):
                    raise Broken(f"its zygote cannot be started: {error.strerror or error}") from error
                raise
        self = cls(ours, process)
        script = json.dumps({"path": path, "kind": kind, "source": source, "digest": digest}).encode()
        try:
            await asyncio.get_running_loop().sock_sendall(ours, frames.frame(frames.TASK, script))
        except OSError:
            pass  # It has ended already, which the first call will notice.
        except BaseException:
            await self.kill()
            raise
        return self

    @property
    def alive(self) -> bool:
        """True if it can be asked for keepers."""
        return self._process.returncode is None

    async def end(self) -> None:
        """End it and everything below it."""
        self.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_ENDING):
                await self._process.wait()
        await self.kill()

    async def kill(self) -> None:
        """Kill it and everything below it at once, even if it is prevented from ending."""
        if self._process.returncode is None:
            tree.kill_below(self._process.pid)
            tree.send(self._process.pid, signal.SIGKILL)
        self.close()
        await self._process.wait()


async def drain(sock: socket.socket) -> None:
    """Tell a keeper that its call is abandoned, and wait until all of its processes have ended."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        while await asyncio.get_running_loop().sock_recv(sock, _CHUNK):
            pass


def is_open(sock: socket.socket) -> bool:
    """Return True if there is still a keeper at the other end of a channel on which nothing was sent yet."""
    try:
        return bool(sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True
    except OSError:
        return False


def job_frames(job: PythonJob | ShellJob, limits: Limits) -> bytes:
    """Return the frames that start *job*."""
    bounds = asdict(limits)
    task: dict[str, Any] = {"limits": bounds}
    if isinstance(job, PythonJob):
        task |= {
            "function": job.function,
            "arguments": job.arguments,
            "positional": job.positional,
            "source": job.source,
            "path": job.path,
            "context": job.context,
            "read_only": job.read_only,
        }
    else:
        task |= {"words": job.words, "environment": job.environment, "stdin": base64.b64encode(job.stdin).decode()}
    return begin(bounds, shell=isinstance(job, ShellJob)) + frames.frame(frames.TASK, json.dumps(task).encode())


def stem_frames(limits: Limits) -> bytes:
    """Return the frames that start the import in advance; the server watches its time limit."""
    bounds = asdict(limits) | {"seconds": 0}
    return begin(bounds) + frames.frame(frames.TASK, json.dumps({"limits": bounds, "stem": True}).encode())


def begin(bounds: dict[str, float], watch: float = WATCH, *, shell: bool = False) -> bytes:
    """Return the frame with the limits that a keeper enforces, counting the processes every *watch* seconds."""
    return frames.frame(frames.JOB, json.dumps(bounds | {"watch": watch, "shell": shell}).encode())


async def exchange(
    sock: socket.socket, data: bytes, output: int, log: Callable[[str], None], on_progress: Progress | None
) -> Report:
    """Send *data* to a keeper and return its report; *output* limits the size of the result.

    Raises :class:`Broken`, and :class:`Silent` if it sends nothing at all.
    """
    loop = asyncio.get_running_loop()
    sending = loop.create_task(loop.sock_sendall(sock, data))
    cut = frames.Frames(max(output, lines.MOST_BYTES) + 4096)
    report, room = Report(), lines.MOST + 1
    gone: type[Broken] = Silent
    try:
        while not report.last:
            received = await loop.sock_recv(sock, _CHUNK)
            if not received:
                raise gone("the process that watched it was killed")
            gone = Broken
            for kind, payload in cut.feed(received):
                if kind == frames.LOG and room:
                    room -= 1
                    log(payload.decode(errors="replace"))
                else:
                    _take(report, kind, payload, on_progress)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise gone("the process that watched it was killed") from error
    finally:
        sending.cancel()
        await asyncio.wait([sending])
        if not sending.cancelled():
            sending.exception()  # If nobody reads, nobody answers either.
    return report


def _take(report: Report, kind: bytes, payload: bytes, on_progress: Progress | None) -> None:
    if kind == frames.RESULT:
        report.result = payload
    elif kind == frames.OUTPUT:
        report.output = payload
    elif kind == frames.PROGRESS and on_progress:
        current, total, message = json.loads(payload)
        on_progress(float(current), None if total is None else float(total), str(message))
    elif kind == frames.END:
        last = json.loads(payload)
        report.last = {"stopped": last["stopped"], "code": last["code"], "tail": str(last["tail"])}
