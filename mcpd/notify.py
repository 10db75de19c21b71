# SPDX-License-Identifier: LGPL-2.1-or-later
"""Talking with the service manager: sd_notify(3), sd_watchdog_enabled(3), sd_listen_fds(3) and its FD store.

Nothing here holds the event loop up. A datagram that the service manager has no room for waits and is sent
again, in order, with a copy of its file descriptors: a descriptor meant for the FD store is not lost.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

FIRST_PASSED_FD: Final = 3
"""SD_LISTEN_FDS_START."""
UNNAMED: Final = "unknown"
"""The name of passed descriptors that have none."""
MAX_NAME: Final = 255
_HEARTBEAT: Final = b"WATCHDOG=1"
_AGAIN: Final = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS})
"""No room now: the queue is full, or too many descriptors of ours are on their way."""
_RETRY: Final = 0.05
"""Seconds between two attempts to send what waits."""
_PATIENCE: Final = 5.0
"""Seconds that a call outside an event loop waits for room."""

log = logging.getLogger(__name__)


def notify(*lines: str, fds: Sequence[int] = ()) -> bool:
    """Send *lines*, such as ``READY=1``, and copies of *fds* to the service manager.

    False if there is none, or it does not take the message. Each line stays one line, whatever is in its value.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    if address[0] not in "/@":
        log.warning("NOTIFY_SOCKET is not the address of a unix socket: %r", address)
        return False
    message = "\n".join(" ".join(line.splitlines()) for line in lines).encode(errors="replace")
    return _OUTBOX.send("\0" + address[1:] if address[0] == "@" else address, message, fds)


def reloading() -> bool:
    """Say that the configuration is being read again; ``READY=1`` must follow."""
    return notify("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")


def store_fd(name: str, fd: int) -> bool:
    """Let the service manager keep a copy of *fd* under *name*, for the process after this one.

    It lets go of it when :func:`remove_fd` is called or the service is stopped for good, and not when the other end
    hangs up: what that end said last is still to be read. Raises :class:`ValueError` for a *name* that the service
    manager would silently replace by another.
    """
    return notify("FDSTORE=1", f"FDNAME={_checked(name)}", "FDPOLL=0", fds=[fd])


def remove_fd(name: str) -> bool:
    """Let the service manager close what it keeps under *name*. Raises :class:`ValueError` as :func:`store_fd`."""
    return notify("FDSTOREREMOVE=1", f"FDNAME={_checked(name)}")


def watchdog_interval() -> float | None:
    """Seconds between two ``WATCHDOG=1``: half of what the service manager waits. None if it does not watch us."""
    text = os.environ.get("WATCHDOG_USEC")
    if not text or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    if not _is_number(text) or int(text) == 0:
        log.warning("WATCHDOG_USEC is not a number above 0: %r", text)
        return None
    return int(text) / 2_000_000


def passed_fds() -> dict[str, list[int]]:
    """The descriptors that the service manager passed to this process, by name; the caller owns them.

    Empty if it passed none. They are not inheritable, and the variables that told of them are gone afterwards, so
    that no child takes them for its own and a second call finds nothing.
    """
    pid, count, names = (os.environ.pop(f"LISTEN_{name}", "") for name in ("PID", "FDS", "FDNAMES"))
    if not count or pid != str(os.getpid()):
        return {}
    if not _is_number(count):
        log.warning("LISTEN_FDS is not a number: %r", count)
        return {}
    fds = range(FIRST_PASSED_FD, FIRST_PASSED_FD + int(count))
    labels = names.split(":")
    if len(labels) != len(fds):
        labels = [UNNAMED] * len(fds)
    found: dict[str, list[int]] = {}
    for fd, label in zip(fds, labels, strict=True):
        os.set_inheritable(fd, False)
        found.setdefault(label or UNNAMED, []).append(fd)
    return found


def _checked(name: str) -> str:
    if not 0 < len(name) <= MAX_NAME or not name.isascii() or not name.isprintable() or ":" in name:
        raise ValueError(f"{name!r} cannot name a stored descriptor: 1 to {MAX_NAME} ASCII characters, no colon")
    return name


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A message that there was no room for, with descriptors of its own."""

    address: str
    message: bytes
    fds: tuple[int, ...]

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


@dataclass(slots=True)
class _Outbox:
    """Sends in order, and keeps what there is no room for."""

    _waiting: deque[_Waiting] = field(default_factory=deque)
    _timer: asyncio.TimerHandle | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    def send(self, address: str, message: bytes, fds: Sequence[int]) -> bool:
        """Send now or as soon as there is room; False if it can never be sent."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return self._send_patiently(address, message, fds)
        if self._waiting:
            self._flush()
        if self._waiting:
            if message != _HEARTBEAT or all(item.message != _HEARTBEAT for item in self._waiting):
                self._keep(address, message, fds)
        else:
            error = _send(address, message, fds, 0)
            if error is None or error.errno not in _AGAIN:
                return _tell(error)
            self._keep(address, message, fds)
        self._schedule(loop)
        return True

    def _send_patiently(self, address: str, message: bytes, fds: Sequence[int]) -> bool:
        """Where no event loop can send it later: wait for room."""
        while self._waiting:
            item = self._waiting.popleft()
            _tell(_send(item.address, item.message, item.fds, _PATIENCE))
            item.close()
        return _tell(_send(address, message, fds, _PATIENCE))

    def _keep(self, address: str, message: bytes, fds: Sequence[int]) -> None:
        self._waiting.append(_Waiting(address, message, tuple(os.dup(fd) for fd in fds)))

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        """Try again soon; a timer of a loop that ended meanwhile does not count."""
        if self._timer is None or self._loop is not loop:
            self._loop = loop
            self._timer = loop.call_later(_RETRY, self._try_again, loop)

    def _try_again(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        self._flush()
        if self._waiting:
            self._schedule(loop)

    def _flush(self) -> None:
        while self._waiting:
            item = self._waiting[0]
            error = _send(item.address, item.message, item.fds, 0)
            if error is not None and error.errno in _AGAIN:
                return
            _tell(error)
            self._waiting.popleft().close()


_OUTBOX: Final = _Outbox()


def _send(address: str, message: bytes, fds: Sequence[int], patience: float) -> OSError | None:
    """Send once, waiting for room up to *patience* seconds; the error, if it failed."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(patience)
            sock.connect(address)
            if fds:
                socket.send_fds(sock, [message], list(fds))
            else:
                sock.send(message)
    except TimeoutError as error:
        return OSError(errno.ETIMEDOUT, str(error))
    except OSError as error:
        return error
    return None


def _tell(error: OSError | None) -> bool:
    if error is not None:
        log.warning("The service manager does not take messages at NOTIFY_SOCKET: %s", error)
    return error is None
