# SPDX-License-Identifier: LGPL-2.1-or-later
"""Confinement of workers: resource limits, no signals to other processes (landlock(7)), no other effects on them
(seccomp(2)), and optionally no writing.
"""

from __future__ import annotations

import math
import os
import resource
from contextlib import suppress
from typing import Final

from mcpd.servers import landlock, seccomp

FILE_SIZE: Final = 1 << 30
"""Maximum size of a file that a call can write, in bytes."""
OPEN_FILES: Final = 256
"""Maximum number of open files of a process. It also limits the data in pipes and sockets."""


class Unavailable(Exception):
    """The kernel cannot confine a call as required."""


def limit(memory: int, tasks: int) -> None:
    """Limit this process and those below it to *memory* bytes of data each, and the user to *tasks* processes."""
    for what, most in (
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_NPROC, tasks),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, FILE_SIZE),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
    ):
        _lower(what, most, most)


def limit_time(seconds: float) -> None:
    """Limit this process to *seconds* of processor time, rounded up, plus one."""
    soft = math.ceil(seconds) + 1
    _lower(resource.RLIMIT_CPU, soft, soft + 1)


def _lower(what: int, soft: int, hard: int) -> None:
    """Set a limit, unless a lower one is set already."""
    _, most = resource.getrlimit(what)
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(what, (soft, hard))


def keep_to_own() -> bool:
    """Let this process signal and trace only itself and the processes it starts.

    Return False if the kernel does not enforce that, which requires Linux 6.12.
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
    """Permanently prevent this process from changing other processes, and from leaving System V memory behind.

    Without seccomp nothing is done.
    """
    with suppress(OSError, KeyError):
        seccomp.install(read_only=False)


def forbid_writing() -> bool:
    """Permanently prevent this process from changing any file, including metadata, and from using the network.

    Returns what :func:`keep_to_own` does. Raises :class:`Unavailable` without seccomp.
    """
    scoped = keep_to_own()
    try:
        seccomp.install(read_only=True)
    except (OSError, KeyError) as error:
        raise Unavailable(f"seccomp, which is not to be had here ({os.uname().machine}): {error}") from None
    return scoped
