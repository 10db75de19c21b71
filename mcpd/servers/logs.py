# SPDX-License-Identifier: LGPL-2.1-or-later
"""Logging to stderr by a thread, so that a full pipe that nobody reads blocks nothing else."""

from __future__ import annotations

import logging
import logging.handlers
import os
import queue
import threading
from typing import Final

MOST_LINES: Final = 10_000
"""Maximum number of queued lines; further ones are dropped and counted."""
PATIENCE: Final = 2.0
"""Time limit in seconds for writing the last lines."""
_STDERR: Final = 2


class Log(logging.handlers.QueueHandler):
    """A log handler that never blocks.

    A thread writes the lines to the descriptor *fd* of *program*.
    """

    def __init__(self, program: str, fd: int = _STDERR, most: int = MOST_LINES) -> None:
        self._lines: queue.Queue[logging.LogRecord | None] = queue.Queue(most)
        super().__init__(self._lines)
        self._program = program
        self._fd = fd
        self._left_out = 0
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue *record*, or count it if the queue is full."""
        try:
            self._lines.put_nowait(record)
        except queue.Full:
            self._left_out += 1

    def end(self, seconds: float = PATIENCE) -> bool:
        """Write the queued lines, for at most *seconds*; return True if all were written."""
        try:
            self._lines.put(None, timeout=seconds)
        except queue.Full:
            return False
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _write_all(self) -> None:
        while (record := self._lines.get()) is not None:
            self._write(str(record.msg))
            # A line that is counted between these statements is reported the next time.
            count, self._left_out = self._left_out, 0
            if count:
                self._write(f"{self._program}: {count} lines are left out, as they came faster than they were read")

    def _write(self, line: str) -> None:
        data = memoryview(line.encode(errors="backslashreplace") + b"\n")
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            """Nobody reads stderr, so this error cannot be reported."""
