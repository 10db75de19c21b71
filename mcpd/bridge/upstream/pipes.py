# SPDX-License-Identifier: LGPL-2.1-or-later
"""Both ends of a server's stdio on the event loop: lines in linear time, writes that never block."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

from mcpd.bridge.budget import COUNTED_FROM

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.bridge.budget import Holding

log = logging.getLogger(__name__)

READ_SIZE: Final = 65536
"""Larger reads make the allocator map and unmap memory each time, which costs more than the read."""
LARGE_READ: Final = 1 << 18
"""Bytes of those after one that was full."""
READS_AT_ONCE: Final = 4
"""Reads before other connections get their turn."""
LINES_AT_ONCE: Final = 500
"""Lines of one read before other connections get their turn."""
CHATTER_AT_ONCE: Final = 250
"""Unsolicited messages that a server may send in :data:`CHATTER_PAUSE` before it is read more slowly."""
CHATTER_PAUSE: Final = 0.1
"""Seconds."""
PIPE_SIZE: Final = 1 << 20
"""Bytes that a pipe of a server with large messages holds."""
PIECES_AT_ONCE: Final = 256
"""Messages that one system call sends."""
KEPT_OF_OVERSIZED: Final = 256
"""Bytes of the beginning and of the end of a line that is too long."""
BACKLOG_LIMIT: Final = 64 << 20
"""Bytes that may wait for a server which does not read."""


class Chatter:
    """Pauses in reading servers that send many unsolicited messages.

    The more of these servers there are, the longer the pauses, so that together they leave most of the loop to calls.
    """

    def __init__(self) -> None:
        self._quiet: dict[int, float] = {}
        """When the pause of each of them ends."""

    def pause(self, who: int, began: float, now: float) -> float:
        """Return the seconds of a pause for the server *who*, which sent :data:`CHATTER_AT_ONCE` since *began*."""
        self._quiet = {each: until for each, until in self._quiet.items() if until > now and each != who}
        until = began + CHATTER_PAUSE * (1 + len(self._quiet))
        if until <= now:
            return 0.0
        self._quiet[who] = until
        return until - now


class LineReader:
    """Splits what it is fed into lines. Each byte is looked at and copied a constant number of times.

    A line longer than *limit* bytes (without its line break) is dropped; *on_oversized* then gets its beginning and
    its end, *on_line* every other line that is not empty. The beginning of a line is kept in *held*.
    """

    __slots__ = ("_closed", "_head", "_held", "_limit", "_on_line", "_on_oversized", "_parts", "_rest", "_size")

    def __init__(
        self,
        on_line: Callable[[bytes], None],
        on_oversized: Callable[[bytes, bytes], None],
        limit: int,
        held: Holding | None = None,
    ) -> None:
        self._on_line = on_line
        self._on_oversized = on_oversized
        self._limit = limit
        self._held = held
        self._closed = False
        self._parts: list[bytes] = []
        self._size = 0
        self._head: bytes | None = None
        self._rest = b""

    def feed(self, data: bytes) -> bool:
        """Take the next bytes of the stream. False if there are too many lines in it for one turn.

        Then :meth:`go_on` is to be called until it is true, before anything else is fed.
        """
        end = data.find(b"\n")
        if end == len(data) - 1 and not self._parts and end <= self._limit and self._head is None:
            if end > 0:
                self._on_line(data)
            return True
        start = lines = 0
        while end >= 0:
            if lines == LINES_AT_ONCE:
                self._rest = data[start:]
                return False
            self._finish(data[start:end])
            lines += 1
            start = end + 1
            end = data.find(b"\n", start)
        if start < len(data):
            self._keep(data[start:] if start else data)
        return True

    def go_on(self) -> bool:
        """Go on with what was left of the last bytes fed; true when nothing is."""
        rest, self._rest = self._rest, b""
        return not rest or self.feed(rest)

    def close(self) -> None:
        """Forget the line that has begun; none begins any more."""
        self._closed = True
        self._parts = []
        self._rest = b""
        if self._held is not None:
            self._held.close()

    def _keep(self, data: bytes) -> None:
        if self._closed:
            return
        self._size += len(data)
        self._parts.append(data)
        if self._size > self._limit:
            whole = b"".join(self._parts)
            if self._head is None:
                self._head = whole[:KEPT_OF_OVERSIZED]
            self._parts = [whole[-KEPT_OF_OVERSIZED:]]
        if self._held is not None and (self._size > COUNTED_FROM or self._held.size):
            kept = self._size if self._head is None else len(self._parts[0])
            if not self._held.hold(kept):
                self._held.cut(self._held.fault())

    def _finish(self, data: bytes) -> None:
        if self._parts or len(data) > self._limit:
            self._keep(data)
            data = b"".join(self._parts)
        head, self._head = self._head, None
        self._parts = []
        self._size = 0
        if self._held is not None and self._held.size:
            self._held.hold(0)
        if head is not None:
            self._on_oversized(head, data[-KEPT_OF_OVERSIZED:])
        elif data:
            self._on_line(data)


class Pipe:
    """The bridge's ends of a server's stdin and stdout; owns both descriptors.

    *reader* gets what the server wrote, *on_closed* is called once when it closed its stdout or either end broke. What
    the server does not take is kept in *held*.
    """

    def __init__(
        self,
        stdin: int,
        stdout: int,
        reader: LineReader,
        on_closed: Callable[[], None],
        held: Holding | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._held = held
        self._stdin = stdin
        self._stdout = stdout
        self._reader = reader
        self._on_closed: Callable[[], None] | None = on_closed
        self._backlog: deque[memoryview] = deque()
        self._drained: list[Callable[[], None]] = []
        self._widened: set[int] = set()
        self._pause = 0.0
        self.backlog = 0
        """Bytes the server has not taken yet."""
        for fd in (stdin, stdout):
            os.set_blocking(fd, False)
        self._loop.add_reader(stdout, self._readable)

    def write(self, data: bytes) -> bool:
        """Send *data*; what the server does not take now is sent when it does. False if the server is gone."""
        if self._stdin < 0:
            return False
        sent = 0
        if not self._backlog:
            try:
                sent = os.write(self._stdin, data)
            except BlockingIOError:
                pass
            except OSError as error:
                self._broken(error)
                return False
            if sent == len(data):
                self._count()
                return True
            self._widen(self._stdin)
            self._loop.add_writer(self._stdin, self._writable)
        self._backlog.append(memoryview(data)[sent:])
        self.backlog += len(data) - sent
        return True

    def write_soon(self, data: bytes) -> bool:
        """As :meth:`write`, but together with what else is sent in this turn of the loop.

        Under load the calls of many clients are ready in one turn, and waking the server costs more than all the rest.
        """
        if self._stdin < 0:
            return False
        if not self._backlog:
            self._loop.call_soon(self._flush)
        self._backlog.append(memoryview(data))
        self.backlog += len(data)
        return True

    def has_room(self, size: int) -> bool:
        """Return True if *size* bytes may be written, even if they have to wait; the caller then writes them."""
        if self.backlog > BACKLOG_LIMIT:
            return False
        size += self.backlog
        return size <= COUNTED_FROM or self._held is None or self._held.hold(size)

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call *callback* once the server has taken everything, or is gone."""
        if self._backlog:
            self._drained.append(callback)
        else:
            callback()

    def pause(self, seconds: float) -> None:
        """Read nothing for *seconds*, after the lines of this turn."""
        self._pause = max(self._pause, seconds)

    def close_stdin(self) -> None:
        """Tell the server that nothing more comes."""
        if self._stdin >= 0:
            self._loop.remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = -1
        self._backlog.clear()
        self.backlog = 0
        if self._held is not None:
            self._held.close()
        self._tell_drained()

    def close(self) -> None:
        """Close both ends without calling *on_closed*."""
        self._on_closed = None
        self.close_stdin()
        self._reader.close()
        if self._stdout >= 0:
            self._loop.remove_reader(self._stdout)
            os.close(self._stdout)
            self._stdout = -1

    def _readable(self) -> None:
        size = READ_SIZE
        for _ in range(READS_AT_ONCE):
            try:
                data = os.read(self._stdout, size)
            except BlockingIOError:
                return
            except OSError as error:
                self._broken(error)
                return
            if not data:
                self._ended()
                return
            if not self._reader.feed(data) or self._pause:
                if self._stdout >= 0:
                    self._loop.remove_reader(self._stdout)
                self._go_on_later()
                return
            if len(data) < size or self._stdout < 0:
                return
            if size == READ_SIZE:
                self._widen(self._stdout)
                size = LARGE_READ

    def _widen(self, pipe: int) -> None:
        """Let *pipe* hold more, as large messages come: each side then wakes the other less often."""
        if pipe not in self._widened:
            self._widened.add(pipe)
            # What is no pipe cannot, nor a pipe beyond what its user may have in all (/proc/sys/fs/pipe-*).
            with contextlib.suppress(OSError):
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_SIZE)

    def _go_on(self) -> None:
        if self._stdout < 0:
            return
        if not self._reader.go_on() or self._pause:
            self._go_on_later()
        elif self._stdout >= 0:
            self._loop.add_reader(self._stdout, self._readable)

    def _go_on_later(self) -> None:
        pause, self._pause = self._pause, 0.0
        if pause:
            self._loop.call_later(pause, self._go_on)
        else:
            self._loop.call_soon(self._go_on)

    def _flush(self) -> None:
        if not self._drain() and self._stdin >= 0:
            self._loop.add_writer(self._stdin, self._writable)

    def _writable(self) -> None:
        if self._drain():
            self._loop.remove_writer(self._stdin)
            self._tell_drained()

    def _drain(self) -> bool:
        """Send what waits; false if the server does not take it all, or is gone."""
        while self._backlog:
            try:
                sent = os.writev(self._stdin, list(islice(self._backlog, PIECES_AT_ONCE)))
            except BlockingIOError:
                return False
            except OSError as error:
                self._broken(error)
                return False
            self.backlog -= sent
            self._count()
            while self._backlog and sent >= len(self._backlog[0]):
                sent -= len(self._backlog.popleft())
            if sent:
                self._backlog[0] = self._backlog[0][sent:]
        return True

    def _count(self) -> None:
        if self._held is not None and self._held.size > self.backlog:
            self._held.hold(self.backlog)

    def _tell_drained(self) -> None:
        waiting, self._drained = self._drained, []
        for callback in waiting:
            # From the loop, which keeps what goes wrong in one from the others.
            self._loop.call_soon(callback)

    def _broken(self, error: OSError) -> None:
        log.debug("stdio of a server broke: %s", error)
        self._ended()

    def _ended(self) -> None:
        on_closed = self._on_closed
        self.close()
        if on_closed is not None:
            # From the loop, so that no writer finds its server gone in the middle of its own work.
            self._loop.call_soon(on_closed)
