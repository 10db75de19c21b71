# SPDX-License-Identifier: LGPL-2.1-or-later
"""The processes of a command, also those that have left their parents: all of them end with it."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from mcpd.servers import tree

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

_PATIENCE: Final = 5.0
"""Seconds for processes to die of SIGKILL."""
_ENVIRONMENT: Final = 1 << 20


class Strays:
    """The commands that run, by the number of their first process, each with its mark.

    A process whose parent has gone becomes ours, if this process is a subreaper. Whose it was its environment tells;
    one that has no mark, or that of a command which has ended, ends with the next.
    """

    def __init__(self, *, adopts: bool) -> None:
        """*adopts* is whether this process is a subreaper, all of whose children are commands or what they left."""
        self._adopts = adopts
        self._marks: dict[int, bytes] = {}
        self._lock = threading.Lock()

    def start(self, start: Callable[[], subprocess.Popen[bytes]], mark: str) -> subprocess.Popen[bytes]:
        """Have *start* start a command that has *mark* in its environment."""
        # Before it is known, somebody else's end would take it for a stray.
        with self._lock:
            process = start()
            self._marks[process.pid] = mark.encode()
        return process

    def end(self, pid: int) -> None:
        """Kill all of the command *pid*, which is not reaped here, and reap what else is ours of it."""
        give_up = time.monotonic() + _PATIENCE
        while time.monotonic() < give_up:
            # What is not reaped keeps its number, so the group is still the command's.
            with suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
            if not tree.kill_below(pid) and not self._end_strays(pid):
                break
            time.sleep(0.001)
        with self._lock:
            del self._marks[pid]

    def _end_strays(self, pid: int) -> bool:
        """End our children that are no commands nor left by another than *pid*; whether there were any."""
        if not self._adopts:
            return False
        found = False
        with self._lock:
            others = [mark for one, mark in self._marks.items() if one != pid]
            for child in tree.children_of(os.getpid()):
                if child in self._marks or any(mark in _environment(child) for mark in others):
                    continue
                found = True
                tree.kill_below(child)
                tree.send(child, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(child, os.WNOHANG)
        return found


def _environment(pid: int) -> bytes:
    try:
        fd = os.open(f"/proc/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _ENVIRONMENT)
    except OSError:
        return b""
    finally:
        os.close(fd)
