# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reading what a client passes in a file descriptor, without ever waiting inside a system call for it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import socket
import stat
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidArgument, LimitExceeded, TimedOut, from_oserror

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
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
    with _explained(what, timeout):
        async with asyncio.timeout(timeout), aclosing(_pieces(fd, limit, what)) as pieces:
            async for piece in pieces:
                data += piece
    return bytes(data)


async def save_all(fd: int, path: Path, limit: int, what: str, timeout: float) -> str:  # noqa: ASYNC109
    """Write everything up to the end of *fd* to the new file *path*; returns its sha256 in hexadecimal.

    Takes and raises what :func:`read_all` does, and :class:`~mcpd.errors.NoSpace`; then there is no file.
    """
    digest = hashlib.sha256()
    with _explained(what, timeout), contextlib.ExitStack() as unless_done:
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        unless_done.callback(path.unlink)
        with open(target, "wb") as file:  # noqa: ASYNC230, PTH123 - a descriptor
            async with asyncio.timeout(timeout), aclosing(_pieces(fd, limit, what)) as pieces:
                async for piece in pieces:
                    digest.update(piece)
                    await asyncio.to_thread(file.write, piece)
        unless_done.pop_all()
    return digest.hexdigest()


@contextlib.contextmanager
def _explained(what: str, seconds: float) -> Generator[None]:
    try:
        yield
    except TimeoutError:
        raise TimedOut(f"{what}: its end did not arrive within {seconds:.0f} s; close the writing end") from None
    except OSError as error:
        raise from_oserror(error, f"reading {what}") from error


async def _pieces(fd: int, limit: int, what: str) -> AsyncGenerator[bytes]:
    """What *fd* holds, piece by piece; more than *limit* bytes are refused."""
    mode, total = os.fstat(fd).st_mode, 0
    pieces = _of_memfd(fd, what) if stat.S_ISREG(mode) else _of_stream(fd, mode, what)
    async with aclosing(pieces):
        async for piece in pieces:
            total += len(piece)
            if total > limit:
                raise LimitExceeded(f"{what} is longer than {limit} bytes")
            yield piece


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
