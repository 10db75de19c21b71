# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reading the arguments of calls: option dictionaries, configuration values, and what is passed in a descriptor."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
from collections.abc import Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mcpd.bus.codec import Handle
from mcpd.catalog.fetch import new_file
from mcpd.errors import InvalidArgument, LimitExceeded, TimedOut, from_oserror

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from mcpd.bus.caller import Call
    from mcpd.install.options import InstallOptions
    from mcpd.model import JsonValue

T = TypeVar("T")
_NAMES: Final[Mapping[type, str]] = {
    str: "a string", int: "a number", bool: "true or false", dict: "a dictionary", list: "a list of strings",
}  # fmt: skip


def option(options: Mapping[str, Any], key: str, kind: type[T], default: T) -> T:
    """The option *key*. Raises :class:`~mcpd.errors.InvalidArgument` for one that is no *kind*."""
    value = options.get(key, default)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidArgument(f"option {key!r} is {_NAMES[kind]}")
    return value


def flag(options: Mapping[str, Any], key: str) -> bool | None:
    """The option *key*, true or false; None if it is not given."""
    return option(options, key, bool, default=False) if key in options else None


def install_options(options: Mapping[str, Any]) -> InstallOptions:
    """What the caller says about an installation."""
    from mcpd.install.options import InstallOptions  # noqa: PLC0415 -- installing is not needed to start

    return InstallOptions(
        consent=option(options, "consent", bool, default=False),
        config=values(option(options, "config", dict, {})),
        version=option(options, "version", str, ""),
        source=option(options, "source", str, ""),
        dry_run=option(options, "dry-run", bool, default=False),
        reinstall=option(options, "reinstall", bool, default=False),
        check=not option(options, "no-check", bool, default=False),
    )


MAX_SECRET: Final = 64 * 1024
"""Bytes of one secret."""


def values(changes: Mapping[str, Any]) -> dict[str, JsonValue]:
    """*changes*, as unwrapped from an ``a{sv}``, if they are values that JSON has.

    Raises :class:`~mcpd.errors.InvalidArgument` naming the key for bytes and file descriptors.
    """
    return {key: _value(key, value) for key, value in changes.items()}


def _value(key: str, value: object) -> JsonValue:
    if isinstance(value, Mapping):
        return {str(inner): _value(f"{key}.{inner}", item) for inner, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_value(key, item) for item in value]
    if isinstance(value, Handle) or not isinstance(value, (bool, int, float, str)):
        raise InvalidArgument(f"{key}: a value is a string, number, boolean, list or dictionary")
    return value


async def secret(call: Call, index: int, key: str) -> str | None:
    """The secret in file descriptor *index* of *call*, ``None`` if it is empty.

    Raises what :func:`~mcpd.bus.arguments.read_all` raises, and :class:`~mcpd.errors.InvalidArgument` unless it is
    UTF-8.
    """
    data = await read_all(call.fds.get(index), MAX_SECRET, f"the value of {key!r}", READ_TIMEOUT)
    try:
        return data.decode() or None
    except UnicodeDecodeError:
        raise InvalidArgument(f"the value of {key!r} is not UTF-8") from None


READ_TIMEOUT: Final = 10.0
"""Seconds in which a secret or a manifest must have arrived."""
_CHUNK: Final = 65536
_SPLICE_NONBLOCK: Final = 2
_AGAIN: Final = frozenset({errno.EAGAIN, errno.EINTR})


async def read_all(fd: int, limit: int, what: str, timeout: float) -> bytes:  # noqa: ASYNC109
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
