# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reading what a client passes in a file descriptor, without ever waiting inside a system call for it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidArgument, LimitExceeded, TimedOut, from_oserror

if TYPE_CHECKING:
    from collections.abc import Callable

READ_TIMEOUT: Final = 10.0
"""Seconds in which everything must have arrived."""
_CHUNK: Final = 65536
_SPLICE_NONBLOCK: Final = 2
_AGAIN: Final = frozenset({errno.EAGAIN, errno.EINTR})


async def read_all(fd: int, limit: int, what: str, timeout: float = READ_TIMEOUT) -> bytes:  # noqa: ASYNC109
    """Everything up to the end of *fd*, at most *limit* bytes in *timeout* seconds; *what* is for messages.

    Takes pipes, unix stream sockets and memfds (those from their beginning). Not files: their file system may be one
    that never answers. Raises :class:`~mcpd.errors.InvalidArgument`, :class:`~mcpd.errors.LimitExceeded` and
    :class:`~mcpd.errors.TimedOut`.
    """
    mode = os.fstat(fd).st_mode
    try:
        if stat.S_ISREG(mode):
            data = _read_memfd(fd, limit, what)
        else:
            async with asyncio.timeout(timeout):
                data = await _read_stream(fd, mode, limit, what)
    except TimeoutError:
        raise TimedOut(f"{what}: its end did not arrive within {timeout:.0f} s; close the writing end") from None
    except OSError as error:
        raise from_oserror(error, f"reading {what}") from error
    if len(data) > limit:
        raise LimitExceeded(f"{what} is longer than {limit} bytes")
    return data


def _read_memfd(fd: int, limit: int, what: str) -> bytes:
    own = os.memfd_create("probe")
    try:
        # All memfds are on one file system of the kernel. That they have seals is no sign: so have files on a tmpfs.
        if os.fstat(fd).st_dev != os.fstat(own).st_dev:
            raise InvalidArgument(f"{what}: pass a pipe or a memfd, not a file")
    finally:
        os.close(own)
    return os.pread(fd, limit + 1, 0)


async def _read_stream(fd: int, mode: int, limit: int, what: str) -> bytes:
    """Read without O_NONBLOCK: on *fd* it would be the client's to clear again."""
    with contextlib.ExitStack() as stack:
        take: Callable[[int], bytes]
        if stat.S_ISFIFO(mode):
            source, sink = os.pipe()
            stack.callback(os.close, source)
            stack.callback(os.close, sink)

            def take(count: int) -> bytes:
                moved = os.splice(fd, sink, count, flags=_SPLICE_NONBLOCK)
                return os.read(source, moved) if moved else b""
        elif stat.S_ISSOCK(mode):
            # splice() waits for sockets whatever its flags say.
            peer = stack.enter_context(socket.socket(fileno=os.dup(fd)))
            if (peer.family, peer.type) != (socket.AF_UNIX, socket.SOCK_STREAM):
                raise InvalidArgument(f"{what}: of sockets only a unix stream will do; pass a pipe or a memfd")

            def take(count: int) -> bytes:
                return peer.recv(count, socket.MSG_DONTWAIT)
        else:
            raise InvalidArgument(f"{what}: pass a pipe or a memfd")
        return await _collect(fd, take, limit)


async def _collect(fd: int, take: Callable[[int], bytes], limit: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = bytearray()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        while len(data) <= limit:
            try:
                piece = take(min(_CHUNK, limit + 1 - len(data)))
            except OSError as error:
                if error.errno not in _AGAIN:
                    raise
                ready.clear()
                await ready.wait()
                continue
            if not piece:
                break
            data += piece
        return bytes(data)
    finally:
        loop.remove_reader(fd)
