# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a worker may use and touch: resource limits, signals to its own only (landlock(7)), nothing else of other
processes (seccomp(2)), no writing at all.
"""

from __future__ import annotations

import math
import os
import resource
from contextlib import suppress
from typing import Final

from mcpd.servers import landlock, seccomp

FILE_SIZE: Final = 1 << 30
"""Bytes of the longest file that a call can write."""
OPEN_FILES: Final = 256
"""Descriptors of a process. What it has in the pipes and sockets behind them is nobody's memory."""


class Unavailable(Exception):
    """The kernel cannot confine a call as it has to be."""


def limit(memory: int, tasks: int) -> None:
    """Limit this process and all below it to *memory* bytes of data each, and the user to *tasks* processes."""
    for what, most in (
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_NPROC, tasks),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, FILE_SIZE),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
    ):
        _lower(what, most, most)


def limit_time(seconds: float) -> None:
    """Limit this process to *seconds* on the processor, and one more."""
    soft = math.ceil(seconds) + 1
    _lower(resource.RLIMIT_CPU, soft, soft + 1)


def _lower(what: int, soft: int, hard: int) -> None:
    """Set a limit, or keep a lower one that is there."""
    _, most = resource.getrlimit(what)
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(what, (soft, hard))


def keep_to_own() -> bool:
    """Let this process signal and trace only itself and what it starts.

    False if that does not hold, as it cannot before Linux 6.12.
    """
    if landlock.version() < 6:
        return False
    try:
        landlock.restrict(landlock.Rules(signals=True))
    except OSError:
        return False
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        pass
    return False


def leave_others_alone() -> None:
    """Let this process, for good, change limits, priority and memory of none but itself, and leave no System V memory.

    Where seccomp cannot be had, nothing is done.
    """
    with suppress(OSError, KeyError):
        seccomp.install(read_only=False)


def forbid_writing() -> bool:
    """Take from this process, for good, all ways to change a file, its metadata included, and to use the network.

    What :func:`keep_to_own` says. Raises :class:`Unavailable` where seccomp cannot be had.
    """
    scoped = keep_to_own()
    try:
        seccomp.install(read_only=True)
    except (OSError, KeyError) as error:
        raise Unavailable(f"seccomp, which is not to be had here ({os.uname().machine}): {error}") from None
    return scoped
