# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reading what a client passes in a file descriptor, without ever waiting inside a system call for it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from mcpd.catalog.newfile import new_file
from mcpd.errors import InvalidArgument, LimitExceeded, TimedOut, from_oserror

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

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
    data = bytearray()
    async with _arriving(fd, limit, what, timeout) as pieces:
        async for piece in pieces:
            data += piece
    return bytes(data)


async def save_all(fd: int, path: Path, limit: int, what: str, timeout: float) -> str:  # noqa: ASYNC109
    """Write everything up to the end of *fd* to the new file *path*; returns its sha256 in hexadecimal.

    Takes and raises what :func:`read_all` does, and what writing may raise (:class:`~mcpd.errors.NoSpace`), which names
    *path*; then there is no file.
    """
    async with new_file(path) as file:
        async with _arriving(fd, limit, what, timeout) as pieces:
            async for piece in pieces:
                await file.write(piece)
        return await file.finish()


@contextlib.asynccontextmanager
async def _arriving(fd: int, limit: int, what: str, seconds: float) -> AsyncGenerator[AsyncGenerator[bytes]]:
    """What *fd* holds, piece by piece, for a block that has to be done with it within *seconds*."""
    try:
        async with asyncio.timeout(seconds), aclosing(_pieces(fd, limit, what)) as pieces:
            yield pieces
    except TimeoutError:
        raise TimedOut(f"{what}: its end did not arrive within {seconds:.0f} s; close the writing end") from None


async def _pieces(fd: int, limit: int, what: str) -> AsyncGenerator[bytes]:
    """What *fd* holds, piece by piece; more than *limit* bytes are refused."""
    try:
        mode, total = os.fstat(fd).st_mode, 0
        pieces = _of_memfd(fd, what) if stat.S_ISREG(mode) else _of_stream(fd, mode, what)
        async with aclosing(pieces):
            async for piece in pieces:
                total += len(piece)
                if total > limit:
                    raise LimitExceeded(f"{what} is longer than {limit} bytes")
                yield piece
    except OSError as error:
        raise from_oserror(error, f"reading {what}") from error


async def _of_memfd(fd: int, what: str) -> AsyncGenerator[bytes]:
    own = os.memfd_create("probe")
    try:
        # All memfds are on one file system of the kernel. That they have seals is no sign: so have files on a tmpfs.
        if os.fstat(fd).st_dev != os.fstat(own).st_dev:
            raise InvalidArgument(f"{what}: pass a pipe or a memfd, not a file")
    finally:
        os.close(own)
    at = 0
    while piece := os.pread(fd, _CHUNK, at):
        at += len(piece)
        yield piece


async def _of_stream(fd: int, mode: int, what: str) -> AsyncGenerator[bytes]:
    """Read without O_NONBLOCK: on *fd* it would be the client's to clear again."""
    with contextlib.ExitStack() as stack:
        take: Callable[[], bytes]
        if stat.S_ISFIFO(mode):
            source, sink = os.pipe()
            stack.callback(os.close, source)
            stack.callback(os.close, sink)

            def take() -> bytes:
                moved = os.splice(fd, sink, _CHUNK, flags=_SPLICE_NONBLOCK)
                return os.read(source, moved) if moved else b""
        elif stat.S_ISSOCK(mode):
            # splice() waits for sockets whatever its flags say.
            peer = stack.enter_context(socket.socket(fileno=os.dup(fd)))
            if (peer.family, peer.type) != (socket.AF_UNIX, socket.SOCK_STREAM):
                raise InvalidArgument(f"{what}: of sockets only a unix stream will do; pass a pipe or a memfd")

            def take() -> bytes:
                return peer.recv(_CHUNK, socket.MSG_DONTWAIT)
        else:
            raise InvalidArgument(f"{what}: pass a pipe or a memfd")
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(fd, ready.set)
        stack.callback(loop.remove_reader, fd)
        while True:
            try:
                piece = take()
            except OSError as error:
                if error.errno not in _AGAIN:
                    raise
                ready.clear()
                await ready.wait()
                continue
            if not piece:
                return
            yield piece
