# SPDX-License-Identifier: LGPL-2.1-or-later
"""The descendants of this process: finding and ending them."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import time
from contextlib import suppress
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_SET_SECCOMP: Final = 22
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PATIENCE: Final = 5.0
"""Seconds for processes to die of SIGKILL; one that waits for a device may take long."""


def prctl(option: int, value: int, data: ctypes.Array[ctypes.c_char] | None = None) -> None:
    """Call prctl(2). Raises OSError."""
    if _LIBC.prctl(option, ctypes.c_ulong(value), data, ctypes.c_ulong(0), ctypes.c_ulong(0)):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {option}: {os.strerror(number)}")


def children_of(pid: int) -> list[int]:
    """Return the children of all threads of *pid*; empty if it does not exist."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 -- called in a loop against a fork bomb
            fd = os.open(f"/proc/{pid}/task/{thread}/children", os.O_RDONLY)
            try:
                while data := os.read(fd, 1 << 16):
                    found += map(int, data.split())
            finally:
                os.close(fd)
    return found


def descendants_of(pid: int, enough: float = math.inf) -> list[int]:
    """Return all descendants of *pid*, or a few more than *enough*, including ended ones that were not reaped."""
    found: list[int] = []
    todo = [pid]
    while todo and len(found) <= enough:
        below = children_of(todo.pop())
        found += below
        todo += below
    return found


def send(pid: int, number: signal.Signals) -> None:
    """Send the signal *number* to *pid*, if it exists and that is permitted."""
    with suppress(OSError):
        os.kill(pid, number)


def kill_below(pid: int) -> bool:
    """Send SIGKILL to all descendants of *pid*; return True if there were any.

    First whole groups at once, which forking does not escape; then the remaining ones, stopped before.
    """
    stopped: set[int] = set()
    for group in _groups(descendants_of(pid)):
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    while new := [found for found in descendants_of(pid) if found not in stopped]:
        for found in new:
            send(found, signal.SIGSTOP)
        stopped.update(new)
    for found in stopped:
        send(found, signal.SIGKILL)
    return bool(stopped)


def _groups(pids: list[int]) -> set[int]:
    """Return the process groups of *pids*, except this process's own."""
    found = set()
    for pid in pids:
        with suppress(OSError):
            found.add(os.getpgid(pid))
    return found - {os.getpgid(0)}


def end_all(*, scoped: bool = False) -> dict[int, int]:
    """Kill and reap all descendants of this process, a subreaper; return the exit codes of the children.

    *scoped* must be the result of :func:`.confine.keep_to_own`: signals of this process then reach only descendants,
    and the kernel kills all of them at once, so that none can escape by forking.
    """
    codes: dict[int, int] = {}
    give_up = time.monotonic() + _PATIENCE
    with suppress(ChildProcessError):
        while time.monotonic() < give_up:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid:
                codes[pid] = os.waitstatus_to_exitcode(status)
            else:
                if scoped:
                    send(-1, signal.SIGKILL)
                else:
                    kill_below(os.getpid())
                time.sleep(0.001)
    return codes
