# SPDX-License-Identifier: LGPL-2.1-or-later
"""Arguments of calls: options, configuration values, and data passed through file descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
from collections.abc import Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

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
Options: TypeAlias = Mapping[str, Any]
"""An ``a{sv}`` with its variants unwrapped."""
_NAMES: Final[Mapping[type, str]] = {
    str: "a string", int: "a number", bool: "true or false", dict: "a dictionary", list: "a list of strings",
}  # fmt: skip


def option(options: Options, key: str, kind: type[T], default: T) -> T:
    """Return the option *key*, or *default* if it is not given.

    Raises :class:`~mcpd.errors.InvalidArgument` if the option is not of type *kind*.
    """
    value = options.get(key, default)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidArgument(f"option {key!r} must be {_NAMES[kind]}")
    return value


def flag(options: Options, key: str) -> bool | None:
    """Return the boolean option *key*, ``None`` if it is not given."""
    return option(options, key, bool, default=False) if key in options else None


def install_options(options: Options) -> InstallOptions:
    """Check the types of *options*, and return them as the options of an installation."""
    from mcpd.install.options import InstallOptions  # installing is not needed to start

    return InstallOptions(
        consent=option(options, "consent", bool, default=False),
        config=config_values(option(options, "config", dict, {})),
        version=option(options, "version", str, ""),
        source=option(options, "source", str, ""),
        dry_run=option(options, "dry-run", bool, default=False),
        reinstall=option(options, "reinstall", bool, default=False),
        check=not option(options, "no-check", bool, default=False),
    )


MAX_SECRET: Final = 64 * 1024
"""Maximum size of one secret in bytes."""


def config_values(changes: Options) -> dict[str, JsonValue]:
    """Return *changes*, unwrapped from an ``a{sv}``, as JSON values.

    Raises :class:`~mcpd.errors.InvalidArgument`, which names the key, for bytes and file descriptors.
    """
    return {key: _value(key, value) for key, value in changes.items()}


def _value(key: str, value: object) -> JsonValue:
    if isinstance(value, Mapping):
        return {str(inner): _value(f"{key}.{inner}", item) for inner, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_value(key, item) for item in value]
    if isinstance(value, Handle) or not isinstance(value, (bool, int, float, str)):
        raise InvalidArgument(f"{key}: a value must be a string, number, boolean, list or dictionary")
    return value


async def read_secret(call: Call, index: int, key: str) -> str | None:
    """Return the secret read from file descriptor *index* of *call*; ``None`` if it is empty.

    Raises the errors of :func:`~mcpd.bus.arguments.read_all`, and :class:`~mcpd.errors.InvalidArgument` unless it is
    UTF-8.
    """
    data = await read_all(call.fds.get(index), MAX_SECRET, f"the value of {key!r}", READ_TIMEOUT)
    try:
        return data.decode() or None
    except UnicodeDecodeError:
        raise InvalidArgument(f"the value of {key!r} is not UTF-8") from None


READ_TIMEOUT: Final = 10.0
"""Seconds within which a secret or a manifest must have arrived."""
_CHUNK_SIZE: Final = 65536
_SPLICE_NONBLOCK: Final = 2
_RETRY_ERRORS: Final = frozenset({errno.EAGAIN, errno.EINTR})


async def read_all(fd: int, limit: int, what: str, timeout: float) -> bytes:  # noqa: ASYNC109
    """Return everything up to the end of *fd*, at most *limit* bytes within *timeout* seconds.

    *what* names the data in messages. Accepts pipes, unix stream sockets and memfds (read from their beginning), but
    not files, whose file system may never answer. Raises :class:`~mcpd.errors.InvalidArgument`,
    :class:`~mcpd.errors.LimitExceeded` and :class:`~mcpd.errors.TimedOut`.
    """
    data = bytearray()
    async with _read_within(fd, limit, what, timeout) as chunks:
        async for chunk in chunks:
            data += chunk
    return bytes(data)


async def save_all(fd: int, path: Path, limit: int, what: str, timeout: float) -> str:  # noqa: ASYNC109
    """Write everything up to the end of *fd* to the new file *path*; return its sha256 in hexadecimal.

    Accepts and raises the same as :func:`read_all`. Errors of writing (:class:`~mcpd.errors.NoSpace`) name *path*.
    After an error, the file does not exist.
    """
    async with new_file(path) as file:
        async with _read_within(fd, limit, what, timeout) as chunks:
            async for chunk in chunks:
                await file.write(chunk)
        return await file.finish()


@contextlib.asynccontextmanager
async def _read_within(fd: int, limit: int, what: str, seconds: float) -> AsyncGenerator[AsyncGenerator[bytes]]:
    """Yield the contents of *fd* as chunks, which the ``async with`` block has to read within *seconds*."""
    try:
        async with asyncio.timeout(seconds), aclosing(_chunks(fd, limit, what)) as chunks:
            yield chunks
    except TimeoutError:
        raise TimedOut(f"{what}: no end of file within {seconds:.0f} s; close the writing end") from None


async def _chunks(fd: int, limit: int, what: str) -> AsyncGenerator[bytes]:
    """Yield the contents of *fd* in chunks; more than *limit* bytes raise :class:`~mcpd.errors.LimitExceeded`."""
    try:
        mode, total = os.fstat(fd).st_mode, 0
        chunks = _memfd_chunks(fd, what) if stat.S_ISREG(mode) else _stream_chunks(fd, mode, what)
        async with aclosing(chunks):
            async for chunk in chunks:
                total += len(chunk)
                if total > limit:
                    raise LimitExceeded(f"{what} is longer than {limit} bytes")
                yield chunk
    except OSError as error:
        raise from_oserror(error, f"reading {what}") from error


async def _memfd_chunks(fd: int, what: str) -> AsyncGenerator[bytes]:
    own = os.memfd_create("probe")
    try:
        # All memfds are on one internal file system. Seals would prove nothing: files on a tmpfs have them too.
        if os.fstat(fd).st_dev != os.fstat(own).st_dev:
            raise InvalidArgument(f"{what}: pass a pipe or a memfd, not a file")
    finally:
        os.close(own)
    at = 0
    while chunk := os.pread(fd, _CHUNK_SIZE, at):
        at += len(chunk)
        yield chunk


async def _stream_chunks(fd: int, mode: int, what: str) -> AsyncGenerator[bytes]:
    """Yield the contents of *fd* without setting O_NONBLOCK: the client shares the flags of *fd* and could clear it."""
    with contextlib.ExitStack() as stack:
        take: Callable[[], bytes]
        if stat.S_ISFIFO(mode):
            source, sink = os.pipe()
            stack.callback(os.close, source)
            stack.callback(os.close, sink)

            def take() -> bytes:
                moved = os.splice(fd, sink, _CHUNK_SIZE, flags=_SPLICE_NONBLOCK)
                return os.read(source, moved) if moved else b""
        elif stat.S_ISSOCK(mode):
            # splice() blocks on sockets, whatever its flags are.
            peer = stack.enter_context(socket.socket(fileno=os.dup(fd)))
            if (peer.family, peer.type) != (socket.AF_UNIX, socket.SOCK_STREAM):
                raise InvalidArgument(f"{what}: not a Unix stream socket; pass a pipe or a memfd")

            def take() -> bytes:
                return peer.recv(_CHUNK_SIZE, socket.MSG_DONTWAIT)
        else:
            raise InvalidArgument(f"{what}: pass a pipe or a memfd")
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(fd, ready.set)
        stack.callback(loop.remove_reader, fd)
        while True:
            try:
                chunk = take()
            except OSError as error:
                if error.errno not in _RETRY_ERRORS:
                    raise
                ready.clear()
                await ready.wait()
                continue
            if not chunk:
                return
            yield chunk
