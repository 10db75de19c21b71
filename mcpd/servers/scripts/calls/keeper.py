# SPDX-License-Identifier: LGPL-2.1-or-later
"""The keeper: a process for each worker that supervises it, passes on its output, and ends its process tree.

It is the subreaper of all processes that the worker starts, and leaves none of them behind. It ends when the worker
has ended, when a limit is exceeded, when its channel is closed (the call was cancelled, or the server died), and when
the zygote dies.

Its last frame is ``{"stopped": why, "code": N, "tail": text}``. ``why`` is ``time``, ``output``, ``processes``,
``zygote``, ``start`` (it could not be started; ``tail`` is the reason) or empty; ``code`` is the worker's exit code
(negative: the signal that killed it, null: it could not be killed), ``tail`` the end of its stderr. A function's result
is sent as soon as it is complete, and its processes are ended afterwards; the channel is closed when none of them are
left.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from mcpd.servers import tree
from mcpd.servers.scripts.calls import confine, frames
from mcpd.servers.scripts.calls.lines import Lines

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

WATCH_CLOSELY: Final = 0.01
"""Seconds between two counts of the processes if there are many."""
PROGRESS_EVERY: Final = 0.05
"""Seconds between two reports of progress."""
_PROGRESS_LINE: Final = 4096
_TAIL: Final = 4096
_CHUNK: Final = 1 << 16
_LAST_WORDS: Final = 10.0
"""Seconds for the server to read the result."""


def refusal(error: OSError) -> bytes:
    """Return the only frame of a call that cannot be started because of *error*."""
    last = {"stopped": "start", "code": None, "tail": error.strerror or str(error)}
    return frames.frame(frames.END, json.dumps(last).encode())


@dataclass(frozen=True, slots=True)
class Ends:
    """The worker's ends of its pipes, and the control socket of one that becomes a zygote, else -1."""

    task: int
    out: int
    err: int
    result: int
    progress: int
    control: int


class Keeper:
    """Supervises one worker: the forked process calls *work*; *control* is the control socket of a stem, else -1."""

    def __init__(self, channel: socket.socket, work: Callable[[Ends], NoReturn], control: int) -> None:
        self._channel = channel
        self._shell = False
        """True if the worker's stdout is the result."""
        self._stem = control >= 0
        self._frames = frames.Frames((1 << 32) - 1)
        self._unsent = bytearray()
        self._untold = bytearray()
        """The part of the task that the worker has not read yet."""
        self._stopped = ""
        self._over = self._answered = False
        self._deadline = math.inf
        self._watch = self._watch_at = math.inf
        self._processes = self._most = 0
        self._log = Lines(self._say_line)
        self._err_log = Lines(self._say_line, self._log)
        self._tail = bytearray()
        self._result, self._stdout, self._steps = bytearray(), bytearray(), bytearray()
        self._printed = 0
        self._progress: tuple[float, float | None, str] | None = None
        self._reached = -math.inf
        self._progress_at = -math.inf
        self._poll = select.poll()
        tree.prctl(tree.PR_SET_CHILD_SUBREAPER, 1)
        self._scoped = confine.keep_to_own()
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        pipes = [os.pipe() for _ in range(5)]
        self._task = pipes[0][1]
        readers = [pipe[0] for pipe in pipes[1:]]
        out, err, result, progress = (pipe[1] for pipe in pipes[1:])
        ends = Ends(pipes[0][0], out, err, result, progress, control)
        self._worker = os.fork()
        if self._worker == 0:
            work(ends)
        for fd in (ends.task, ends.out, ends.err, ends.result, ends.progress, control):
            if fd >= 0:
                os.close(fd)
        self._pidfd = os.pidfd_open(self._worker)
        takers = (self._take_out, self._take_err, self._take_result, self._take_progress)
        self._takers = dict(zip(readers, takers, strict=True))
        for fd in (self._task, *readers):
            os.set_blocking(fd, False)
        channel.setblocking(False)
        for fd in (channel.fileno(), self._pidfd, self._wake, *readers):
            self._poll.register(fd, select.POLLIN)

    def run(self) -> None:
        """Supervise the worker until it has ended or must end; then end the rest and send the last frame."""
        while not self._over:
            self._serve(dict(self._poll.poll(self._timeout())))
            self._look()
        if self._answered:
            # All output of the worker is in its pipes, which hold no more than is read at once.
            for fd in tuple(self._takers):
                self._drain(fd)
        if self._answered and not self._stopped:
            self._say_last(0)
            tree.end_all(scoped=self._scoped)
        else:
            code = tree.end_all(scoped=self._scoped).get(self._worker)
            self._drain_all()
            self._say_last(code)
        with suppress(OSError):
            self._channel.settimeout(_LAST_WORDS)
            self._channel.sendall(self._unsent)

    def _serve(self, ready: dict[int, int]) -> None:
        """Handle the events on the descriptors in *ready*."""
        if ready.pop(self._wake, 0):
            self._stop("zygote")
        if ready.pop(self._pidfd, 0):
            self._over = True
        if channel := ready.pop(self._channel.fileno(), 0):
            self._serve_channel(channel)
        if ready.pop(self._task, 0):
            self._feed()
        for fd in ready:
            self._drain(fd)

    def _timeout(self) -> float | None:
        due = self._progress_at + PROGRESS_EVERY if self._progress else math.inf
        at = min(self._deadline, self._watch_at, due)
        return None if at == math.inf else max(0.0, at - time.monotonic()) * 1000 + 1

    def _look(self) -> None:
        """Do what is due at this time."""
        now = time.monotonic()
        if self._progress and now >= self._progress_at + PROGRESS_EVERY:
            self._say_progress(now)
        if now >= self._watch_at:
            if self._stem:
                self._end_strays()
            count = len(tree.descendants_of(os.getpid(), self._processes))
            if count > self._processes:
                self._stop("processes")
            self._watch_at = time.monotonic() + (self._watch if count * 4 < self._processes else WATCH_CLOSELY)
        if now >= self._deadline:
            self._stop("time")

    def _end_strays(self) -> None:
        """End the processes left by a killed keeper below the stem."""
        for child in tree.children_of(os.getpid()):
            if child != self._worker:
                tree.kill_below(child)
                tree.send(child, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(child, os.WNOHANG)

    def _stop(self, why: str) -> None:
        self._stopped = self._stopped or why
        self._over = True

    # Data from the server.

    def _serve_channel(self, events: int) -> None:
        if events & select.POLLOUT:
            self._send(b"")
        if events & ~select.POLLOUT:
            try:
                data = self._channel.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._over = True
            for kind, payload in self._frames.feed(data):
                if kind == frames.JOB:
                    self._begin(json.loads(payload))
                elif kind == frames.TASK:
                    self._untold += frames.frame(kind, payload)
                    self._poll.register(self._task, select.POLLOUT)

    def _begin(self, job: dict[str, float]) -> None:
        """Set the limits of the call."""
        now = time.monotonic()
        self._deadline = now + job["seconds"] if job["seconds"] else math.inf
        self._processes, self._most = int(job["processes"]), int(job["output"])
        self._shell = bool(job["shell"])
        self._watch = job["watch"]
        self._watch_at = now + self._watch

    def _feed(self) -> None:
        """Write more of the task to the worker."""
        try:
            del self._untold[: os.write(self._task, self._untold)]
        except BlockingIOError:
            return
        except OSError:
            self._untold.clear()  # The worker has closed it, or ended.
        if not self._untold:
            self._poll.unregister(self._task)
            os.close(self._task)

    # Data from the worker.

    def _drain(self, fd: int) -> bool:
        """Read what is available; return False if there is nothing now, or at the end."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        if data:
            self._takers[fd](data)
        else:
            self._poll.unregister(fd)
            os.close(fd)
            taker = self._takers.pop(fd)
            if taker == self._take_result and self._result and not self._shell and not self._stem:
                self._answered = self._over = True
        return bool(data)

    def _drain_all(self) -> None:
        """Read everything that is left, after all writers have ended."""
        for fd in tuple(self._takers):
            while fd in self._takers and self._drain(fd):
                pass

    def _prints(self, data: bytes) -> bool:
        """Count *data*; return True if it is still within the limit."""
        self._printed += len(data)
        if self._printed > self._most and not self._stem:
            self._stop("output")
            return False
        return True

    def _take_out(self, data: bytes) -> None:
        if self._prints(data):
            if self._shell:
                self._stdout += data
            else:
                self._log.feed(data)

    def _take_err(self, data: bytes) -> None:
        self._tail += data
        del self._tail[:-_TAIL]
        if self._prints(data):
            self._err_log.feed(data)

    def _take_result(self, data: bytes) -> None:
        if len(self._result) + len(data) > self._most:
            self._stop("output")
        else:
            self._result += data

    def _take_progress(self, data: bytes) -> None:
        self._steps += data
        *lines, rest = bytes(self._steps).split(b"\n")
        self._steps = bytearray(rest[:_PROGRESS_LINE])
        for line in lines:
            self._step(line.decode(errors="replace"))

    def _step(self, line: str) -> None:
        """Parse ``CURRENT [TOTAL [MESSAGE]]``; a total of ``-`` is unknown; other lines are ignored."""
        words = line.split(maxsplit=2)
        try:
            current = float(words[0])
            total = float(words[1]) if len(words) > 1 and words[1] != "-" else None
        except (ValueError, IndexError):
            return
        last = self._progress[0] if self._progress else self._reached
        if last < current < math.inf and (total is None or math.isfinite(total)):
            self._progress = current, total, words[2][:1000] if len(words) > 2 else ""

    # Data to the server.

    def _say_line(self, line: bytes) -> None:
        self._send(frames.frame(frames.LOG, line))

    def _say_progress(self, now: float) -> None:
        if self._progress:
            self._reached, self._progress_at = self._progress[0], now
            self._send(frames.frame(frames.PROGRESS, json.dumps(self._progress).encode()))
            self._progress = None

    def _send(self, data: bytes) -> None:
        """Send without blocking; the rest follows as soon as the server reads."""
        self._unsent += data
        try:
            while self._unsent:
                del self._unsent[: self._channel.send(self._unsent)]
        except BlockingIOError:
            self._poll.modify(self._channel, select.POLLIN | select.POLLOUT)
        except OSError:
            self._over = True
        else:
            self._poll.modify(self._channel, select.POLLIN)

    def _say_last(self, code: int | None) -> None:
        self._log.end()
        self._err_log.end()
        self._say_progress(0.0)
        last = {"stopped": self._stopped, "code": code, "tail": bytes(self._tail).decode(errors="replace")}
        if not self._stopped:
            self._unsent += frames.frame(frames.RESULT, bytes(self._result))
            self._unsent += frames.frame(frames.OUTPUT, bytes(self._stdout))
        self._send(frames.frame(frames.END, json.dumps(last).encode()))
