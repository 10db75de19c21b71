# SPDX-License-Identifier: LGPL-2.1-or-later
"""Running a program on untrusted input with limits on time, memory and output."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from mcpd.errors import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Sequence

CPU_SECONDS: Final = 2
"""Limit on CPU time in seconds."""
WALL_SECONDS: Final = 4.0
"""Limit on elapsed time in seconds; above the CPU limit, since other processes use the processor too."""
MEMORY: Final = 512 << 20
"""Limit on the address space in bytes. Python's parser briefly takes up to 1,300 times the size of the source."""
OUTPUT: Final = 1 << 20
"""Limit on the output in bytes; a shell's error message repeats the rejected line, however long it is."""
_CHUNK: Final = 64 * 1024


def run(command: Sequence[str], data: bytes) -> tuple[int, bytes]:
    """Run *command* with *data* as its standard input; return its exit status and its output.

    The status is ``-SIGSEGV`` for a parser that recursed too deeply. Raises :class:`~mcpd.errors.LimitExceeded` if the
    program exceeds a limit, and OSError if it cannot be started. The program has ended when this function returns.
    """
    with (
        open(os.memfd_create("output", os.MFD_CLOEXEC), "rb") as output,  # noqa: PTH123 - a descriptor
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            env={"LC_ALL": "C"},
            start_new_session=True,
            bufsize=0,
        ) as process,
    ):
        try:
            # The program waits for its input, so the limits are in place before it begins.
            _set_limit(process.pid, resource.RLIMIT_CORE, 0)
            _set_limit(process.pid, resource.RLIMIT_CPU, CPU_SECONDS)
            _set_limit(process.pid, resource.RLIMIT_AS, MEMORY)
            _set_limit(process.pid, resource.RLIMIT_FSIZE, OUTPUT)
            _feed(process, data)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        ended = process.wait()
        if ended < 0 and ended != -signal.SIGSEGV:
            raise limit_exceeded()
        output.seek(0)
        return ended, output.read()


def limit_exceeded() -> LimitExceeded:
    """Return the error for a script whose inspection exceeded a limit."""
    return LimitExceeded("reading the script takes too long")


def _set_limit(pid: int, what: int, most: int) -> None:
    hard = resource.prlimit(pid, what)[1]
    limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.prlimit(pid, what, (limit, limit))


def _feed(process: subprocess.Popen[bytes], data: bytes) -> None:
    """Write *data* to *process*, and wait until it ends."""
    assert process.stdin is not None  # noqa: S101 -- for the type checker: it was asked for
    deadline = time.monotonic() + WALL_SECONDS
    rest = memoryview(data)
    end = os.pidfd_open(process.pid)
    try:
        given = process.stdin.fileno()
        os.set_blocking(given, False)
        poll = select.poll()
        poll.register(end, select.POLLIN)
        poll.register(given, select.POLLOUT)
        while (left := deadline - time.monotonic()) > 0:
            ready = {descriptor for descriptor, _ in poll.poll(left * 1000)}
            if end in ready:
                return
            if given in ready:
                try:
                    rest = rest[os.write(given, rest[:_CHUNK]) :]
                except BrokenPipeError:  # The program stopped reading.
                    rest = rest[:0]
                if not rest:
                    poll.unregister(given)
                    process.stdin.close()
    finally:
        os.close(end)
    raise limit_exceeded()
