# SPDX-License-Identifier: LGPL-2.1-or-later
"""The processes below us: who they are, and how they end."""

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
"""Seconds for processes to die of SIGKILL; one that is in the middle of a device's work takes its time."""


def prctl(option: int, value: int, data: ctypes.Array[ctypes.c_char] | None = None) -> None:
    """prctl(2)."""
    if _LIBC.prctl(option, ctypes.c_ulong(value), data, ctypes.c_ulong(0), ctypes.c_ulong(0)):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {option}: {os.strerror(number)}")


def children_of(pid: int) -> list[int]:
    """The children of all threads of *pid*; none if it is not there."""
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
    """All processes below *pid*, or a few more than *enough*; the ended ones that nobody has reaped are among them."""
    found: list[int] = []
    todo = [pid]
    while todo and len(found) <= enough:
        below = children_of(todo.pop())
        found += below
        todo += below
    return found


def send(pid: int, number: signal.Signals) -> None:
    """Signal *number* for *pid*, if it is still there and ours."""
    with suppress(OSError):
        os.kill(pid, number)


def kill_below(pid: int) -> bool:
    """SIGKILL for all below *pid*; whether there was any.

    Whole groups at once, which none can fork away from; then those with groups of their own, stopped first.
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
    """The process groups of *pids*, but for our own."""
    found = set()
    for pid in pids:
        with suppress(OSError):
            found.add(os.getpgid(pid))
    return found - {os.getpgid(0)}


def end_all(*, scoped: bool = False) -> dict[int, int]:
    """Kill and reap all that is below us, a subreaper; the exit codes of the children.

    With *scoped*, which has to be what :func:`.confine.keep_to_own` said, no signal of ours reaches anybody else. Then
    the kernel kills all of them at once, and none can fork away, however many there are.
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
