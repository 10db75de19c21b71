# SPDX-License-Identifier: LGPL-2.1-or-later
"""Standard streams: replacements for closed ones, and pipes for system servers."""

from __future__ import annotations

import os
import select
import sys
import threading
from typing import TYPE_CHECKING, Final

from mcpd.runtime.exec.wire import unsuitable

if TYPE_CHECKING:
    from collections.abc import Mapping

CLOSED: Final[set[int]] = set()
"""The descriptors among 0, 1 and 2 that were closed when mcpctl started."""


def fill_closed() -> None:
    """Open ``/dev/null`` for closed standard streams, so that no socket gets their numbers."""
    for fd, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            CLOSED.add(os.open(os.devnull, mode))
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, "r")
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w")


class Relay:
    """Pipes, each served by a thread, between our standard streams and a server that accepts only pipes."""

    def __init__(self, streams: Mapping[int, int]) -> None:
        """*streams* maps the server's descriptors 0, 1 and 2 to our own, which stay open."""
        self._pipes = {number: os.pipe() for number in streams}
        self._streams = streams
        self._writers: list[threading.Thread] = []

    @staticmethod
    def needed(streams: Mapping[int, int]) -> bool:
        """Return whether the system instance would refuse *streams*, such as a terminal, a file or a Node.js socket."""
        return any(unsuitable(fd, pipes=True) for fd in streams.values())

    @property
    def fds(self) -> dict[int, int]:
        """The server's ends of the pipes."""
        return {number: ends[number != 0] for number, ends in self._pipes.items()}

    def start(self) -> None:
        """Start the threads, and close our copies of the server's ends."""
        for fd in self.fds.values():
            os.close(fd)
        for number, (read, write) in self._pipes.items():
            ours = self._streams[number]
            source, target = (ours, write) if number == 0 else (read, ours)
            thread = threading.Thread(target=_carry, args=(source, target, write if number == 0 else read), daemon=True)
            thread.start()
            if number != 0:
                self._writers.append(thread)

    def drain(self) -> None:
        """Wait until all output of the ended server is written."""
        for thread in self._writers:
            thread.join()

    def cancel(self) -> None:
        """Close all pipes of a server that was not started."""
        for ends in self._pipes.values():
            for fd in ends:
                os.close(fd)


def _carry(source: int, target: int, ours: int) -> None:
    try:
        while data := os.read(_ready(source, select.POLLIN), 1 << 16):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(_ready(target, select.POLLOUT), rest) :]
    except OSError:
        pass  # One side is gone; closing our end lets the other side notice.
    finally:
        os.close(ours)


def _ready(fd: int, event: int) -> int:
    """Wait until *fd* is ready for *event* and return it; another process may have made the stream non-blocking."""
    poll = select.poll()
    poll.register(fd, event)
    poll.poll()
    return fd
