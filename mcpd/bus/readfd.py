# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reading what a client passes in a file descriptor, without ever waiting inside a system call for it."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import stat
from typing import Final

from mcpd.errors import InvalidArgument, LimitExceeded, TimedOut, from_oserror

READ_TIMEOUT: Final = 10.0
"""Seconds in which everything must have arrived."""
_SPLICE_NONBLOCK: Final = 2


async def read_all(fd: int, limit: int, what: str, timeout: float = READ_TIMEOUT) -> bytes:  # noqa: ASYNC109
    """Everything up to the end of *fd*, at most *limit* bytes in *timeout* seconds; *what* is for messages.

    Takes pipes, sockets and memfds (those from their beginning). Not files: their file system may be one that
    never answers. Raises :class:`~mcpd.errors.InvalidArgument`, :class:`~mcpd.errors.LimitExceeded` and
    :class:`~mcpd.errors.TimedOut`.
    """
    mode = os.fstat(fd).st_mode
    try:
        if stat.S_ISREG(mode):
            data = _read_memfd(fd, limit, what)
        elif stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            async with asyncio.timeout(timeout):
                data = await _read_stream(fd, limit)
        else:
            raise InvalidArgument(f"{what}: pass a pipe or a memfd")
    except TimeoutError:
        raise TimedOut(f"{what}: its end did not arrive within {timeout:.0f} s; close the writing end") from None
    except OSError as error:
        raise from_oserror(error, f"reading {what}") from error
    if len(data) > limit:
        raise LimitExceeded(f"{what} is longer than {limit} bytes")
    return data


def _read_memfd(fd: int, limit: int, what: str) -> bytes:
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        raise InvalidArgument(f"{what}: pass a pipe or a memfd, not a file") from None
    return os.pread(fd, limit + 1, 0)


async def _read_stream(fd: int, limit: int) -> bytes:
    """Read through a pipe of our own: O_NONBLOCK on *fd* would be the client's to clear again."""
    loop = asyncio.get_running_loop()
    data = bytearray()
    ready = asyncio.Event()
    source, sink = os.pipe()
    loop.add_reader(fd, ready.set)
    try:
        while len(data) <= limit:
            try:
                count = os.splice(fd, sink, min(65536, limit + 1 - len(data)), flags=_SPLICE_NONBLOCK)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EINTR):
                    raise
                ready.clear()
                await ready.wait()
                continue
            if count == 0:
                break
            data += os.read(source, count)
        return bytes(data)
    finally:
        loop.remove_reader(fd)
        os.close(source)
        os.close(sink)
