# SPDX-License-Identifier: LGPL-2.1-or-later
"""Messages on the bus socket: framing, headers, file descriptors, and a send queue for a full socket."""

from __future__ import annotations

import array
import os
import socket
import struct
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from mcpd.bus import codec
from mcpd.errors import InvalidArgument

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence

NO_REPLY_EXPECTED: Final = 1
NO_AUTOSTART: Final = 2
ALLOW_INTERACTIVE: Final = 4

MAX_MESSAGE: Final = 128 * 1024 * 1024
"""Maximum size of a message in bytes; the limit of the D-Bus specification."""
_MAX_FDS: Final = 253
"""Maximum number of file descriptors that the kernel passes with one message (SCM_MAX_FD)."""
_CHUNK_SIZE: Final = 64 * 1024
_FIELDS: Final = ("", "path", "interface", "member", "error_name", "reply_serial", "destination", "sender", "signature")


class Kind(IntEnum):
    """The message types."""

    CALL = 1
    RETURN = 2
    ERROR = 3
    SIGNAL = 4


@dataclass(slots=True)
class Frame:
    """A received message with its body not yet decoded. The receiver owns :attr:`fds`."""

    kind: int
    flags: int
    serial: int
    little: bool
    body: bytes | None
    """``None`` if the body was longer than the connection accepts."""
    fds: Fds
    path: str = ""
    interface: str = ""
    member: str = ""
    error_name: str = ""
    reply_serial: int = 0
    destination: str = ""
    sender: str = ""
    signature: str = ""

    def values(self) -> list[Any]:
        """Return the decoded body. Raises :class:`~mcpd.bus.codec.WireError`."""
        if self.body is None:
            raise codec.WireError("the message is too long")
        return codec.unmarshal(self.signature, self.body, little=self.little)


def encode(
    kind: Kind,
    serial: int,
    fields: Sequence[tuple[int, codec.Variant]],
    body: bytes = b"",
    flags: int = 0,
) -> bytes:
    """Return the bytes of a message with the header *fields*."""
    head = codec.marshal("yyyyuua(yv)", (ord("l"), kind, flags, 1, len(body), serial, fields))
    return head + bytes(-len(head) % 8) + body


class FrameReader:
    """Splits the byte stream of a non-blocking socket into :class:`Frame` objects."""

    def __init__(self, sock: socket.socket, max_message: int) -> None:
        self._sock = sock
        self._max = max_message
        self._fds = Fds()
        self._data = bytearray()
        self._total = 16
        self._seen = 0

    def read(self) -> Frame | None:
        """Return the next message, ``None`` if it has not fully arrived yet.

        Raises :class:`EOFError` and :class:`OSError` when the connection is lost, and
        :class:`~mcpd.bus.codec.WireError` for a message without a usable header, which is dropped.
        """
        while self._seen < self._total:
            if not self._receive(min(self._total - self._seen, 1024 * 1024)):
                return None
            if self._seen == 16 == self._total:
                self._total = self._length()
        data, fds = bytes(self._data), self._fds
        oversized = self._total > self._max
        self._data, self._fds, self._total, self._seen = bytearray(), Fds(), 16, 0
        try:
            return _decode(data, fds, oversized=oversized)
        except BaseException:
            fds.close()
            raise

    def close(self) -> None:
        """Close the descriptors of a message that did not fully arrive."""
        self._fds.close()

    def _receive(self, count: int) -> bool:
        try:
            data, ancillary, _, _ = self._sock.recvmsg(count, socket.CMSG_SPACE(_MAX_FDS * 4), socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return False
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                received = array.array("i")
                received.frombytes(content[: len(content) - len(content) % received.itemsize])
                for fd in received:
                    self._fds.add(fd)
        if not data:
            raise EOFError("the message bus closed the connection")
        self._seen += len(data)
        # Only the header of a message that is too long is used.
        self._data += data if self._total <= self._max else data[: max(0, _CHUNK_SIZE - len(self._data))]
        return True

    def _length(self) -> int:
        order = "<" if self._data[0] == ord("l") else ">"
        body, _, header = struct.unpack_from(order + "III", self._data, 4)
        total = 16 + header + -header % 8 + body
        if total > MAX_MESSAGE or self._data[0] not in b"lB" or self._data[3] != 1:
            raise EOFError("the peer does not speak the D-Bus protocol")
        return int(total)


def _decode(data: bytes, fds: Fds, *, oversized: bool) -> Frame:
    little = data[0] == ord("l")
    fields, end = codec.read_at("a(yv)", data, 12, little=little)
    (serial,) = struct.unpack_from("<I" if little else ">I", data, 8)
    known = {_FIELDS[code]: value for code, value in fields if 0 < code < len(_FIELDS)}
    body = None if oversized else data[end + -end % 8 :]
    return Frame(kind=data[1], flags=data[2], serial=serial, little=little, body=body, fds=fds, **known)


class _Pending(NamedTuple):
    data: bytes
    fds: Fds


@dataclass(slots=True)
class Writer:
    """Send queue of a non-blocking socket. Owns duplicates of the descriptors that it has to send."""

    loop: asyncio.AbstractEventLoop
    sock: socket.socket
    on_error: Callable[[Exception], None]
    queued: int = 0
    """Bytes that wait to be sent."""
    _queue: deque[_Pending] = field(default_factory=deque)
    _offset: int = 0
    _registered: bool = False
    _waiters: list[asyncio.Future[None]] = field(default_factory=list)

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Queue a message with duplicates of *fds*. Raises :class:`OSError` if they cannot be duplicated."""
        own = Fds()
        try:
            for fd in fds:
                own.add(os.dup(fd))
        except OSError:
            own.close()
            raise
        self._queue.append(_Pending(data, own))
        self.queued += len(data)
        if not self._registered:
            self._registered = True
            self.loop.add_writer(self.sock.fileno(), self._flush)

    async def drain(self) -> None:
        """Wait until everything queued so far is sent, or the connection is lost."""
        if self._queue:
            waiter = self.loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def close(self) -> None:
        """Drop the queue and close its descriptors."""
        for pending in self._queue:
            pending.fds.close()
        self._queue.clear()
        self.queued = 0
        self._on_empty()

    def _flush(self) -> None:
        try:
            while self._queue:
                self._write()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.on_error(error)
            return
        self._on_empty()

    def _write(self) -> None:
        """Send as much as the socket takes of the first message, or of consecutive ones without descriptors."""
        first = self._queue[0]
        if len(first.fds):
            numbers = array.array("i", [first.fds.get(index) for index in range(len(first.fds))])
            self._sent(self.sock.sendmsg([first.data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)]))
            # The kernel has the descriptors now; the rest of this message is sent without them.
            first.fds.close()
            return
        batch = [memoryview(first.data)[self._offset :]]
        size = len(batch[0])
        for pending in list(self._queue)[1:64] if len(self._queue) > 1 and size < _CHUNK_SIZE else ():
            if len(pending.fds) or size > _CHUNK_SIZE:
                break
            batch.append(memoryview(pending.data))
            size += len(pending.data)
        self._sent(self.sock.sendmsg(batch))

    def _sent(self, count: int) -> None:
        self.queued -= count
        self._offset += count
        while self._queue and self._offset >= len(self._queue[0].data):
            self._offset -= len(self._queue.popleft().data)

    def _on_empty(self) -> None:
        if self._registered:
            self._registered = False
            self.loop.remove_writer(self.sock.fileno())
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()


class Fds:
    """Owns file descriptors until they are taken; leaving the ``with`` block closes the rest.

    Descriptors of a message are addressed by an index that the sender chose: it is checked, and never used as a
    descriptor number.
    """

    __slots__ = ("_open",)

    def __init__(self, fds: Iterable[int] = ()) -> None:
        self._open: list[int | None] = list(fds)

    def __len__(self) -> int:
        return len(self._open)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, fd: int) -> int:
        """Take ownership of *fd*; return its index."""
        self._open.append(fd)
        return len(self._open) - 1

    def get(self, index: int) -> int:
        """Return the descriptor at *index*, which stays owned by this object.

        Raises :class:`~mcpd.errors.InvalidArgument` if there is none, or if it was taken already.
        """
        fd = self._open[index] if 0 <= index < len(self._open) else None
        if fd is None:
            raise InvalidArgument(
                f"no file descriptor {index}: the message has {len(self._open)}, and each can be used only once"
            )
        return fd

    def take(self, index: int) -> int:
        """Return the descriptor at *index*; the caller owns it from now on. Raises like :meth:`get`."""
        fd = self.get(index)
        self._open[index] = None
        return fd

    def close(self) -> None:
        """Close all descriptors that were not taken."""
        while self._open:
            fd = self._open.pop()
            if fd is not None:
                os.close(fd)
