# SPDX-License-Identifier: LGPL-2.1-or-later
"""The protocols of the service manager: sd_notify(3), sd_watchdog_enabled(3), sd_listen_fds(3) and its FD store."""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

FIRST_PASSED_FD: Final = 3
"""SD_LISTEN_FDS_START."""
UNNAMED: Final = "unknown"
"""The name of passed descriptors that have none."""
MAX_NAME: Final = 255
_TIMEOUT: Final = 5.0
"""Seconds that a message waits for room. The service manager has room unless hundreds of messages wait for it."""

log = logging.getLogger(__name__)


def notify(*lines: str, fds: Sequence[int] = ()) -> bool:
    """Send *lines*, such as ``READY=1``, and copies of *fds* to the service manager.

    False if there is none, or it does not take the message within 5 s. Each line stays one line, whatever is in its
    value.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    if address[0] not in "/@":
        log.warning("NOTIFY_SOCKET is not the address of a unix socket: %r", address)
        return False
    message = "\n".join(" ".join(line.splitlines()) for line in lines).encode(errors="replace")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(_TIMEOUT)
            sock.connect("\0" + address[1:] if address[0] == "@" else address)
            socket.send_fds(sock, [message], fds)
    except OSError as error:
        log.warning("The service manager does not take messages at NOTIFY_SOCKET: %s", error)
        return False
    return True


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
