# SPDX-License-Identifier: LGPL-2.1-or-later
"""Running a program that reads what somebody wrote: for so long and no longer, in so much memory and no more."""

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

SECONDS: Final = 2
"""Of a processor."""
PATIENCE: Final = 4.0
"""Seconds, where others use the processor, too."""
MEMORY: Final = 512 << 20
"""Bytes. The parser of Python takes up to 1,300 times the size of a source for a moment."""
OUTPUT: Final = 1 << 20
"""Bytes. A shell repeats the line that it does not understand."""
_CHUNK: Final = 64 * 1024


def run(command: Sequence[str], data: bytes) -> tuple[int, bytes]:
    """What the program *command* makes of *data*, which is its standard input: how it ended, and all that it wrote.

    A parser that recurses too deeply ends by ``-SIGSEGV``. Raises :class:`~mcpd.errors.LimitExceeded` for a program
    that takes more than it may, and OSError if it cannot be started. It is gone when this returns.
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
            # It waits for what it is to read, so that it is bound before it begins.
            _bind(process.pid, resource.RLIMIT_CORE, 0)
            _bind(process.pid, resource.RLIMIT_CPU, SECONDS)
            _bind(process.pid, resource.RLIMIT_AS, MEMORY)
            _bind(process.pid, resource.RLIMIT_FSIZE, OUTPUT)
            _feed(process, data)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        ended = process.wait()
        if ended < 0 and ended != -signal.SIGSEGV:
            raise exhausted()
        output.seek(0)
        return ended, output.read()


def exhausted() -> LimitExceeded:
    """What is to be said of a script with which a program took more than it may."""
    return LimitExceeded("the script takes too long to read")


def _bind(pid: int, what: int, most: int) -> None:
    hard = resource.prlimit(pid, what)[1]
    limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.prlimit(pid, what, (limit, limit))


def _feed(process: subprocess.Popen[bytes], data: bytes) -> None:
    """Give *process* what it is to read, and wait for its end."""
    assert process.stdin is not None  # noqa: S101 -- for the type checker: it was asked for
    deadline = time.monotonic() + PATIENCE
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
                except BrokenPipeError:  # It knows enough.
                    rest = rest[:0]
                if not rest:
                    poll.unregister(given)
                    process.stdin.close()
    finally:
        os.close(end)
    raise exhausted()
