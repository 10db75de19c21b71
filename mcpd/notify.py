# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service manager's protocols: sd_notify(3), sd_watchdog_enabled(3), sd_listen_fds(3) and the FD store."""

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
"""The name of passed descriptors without a name."""
MAX_NAME: Final = 255
_TIMEOUT: Final = 5.0
"""Seconds to wait for room in the socket, which is full only if hundreds of messages are queued."""

log = logging.getLogger(__name__)


def notify(*lines: str, fds: Sequence[int] = ()) -> bool:
    """Send *lines*, such as ``READY=1``, and copies of *fds* to the service manager.

    Returns False if no service manager is known, or if it does not accept the message within 5 s. Line breaks within a
    line are replaced with spaces.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    if address[0] not in "/@":
        log.warning("NOTIFY_SOCKET is not the address of a Unix socket: %r", address)
        return False
    message = "\n".join(" ".join(line.splitlines()) for line in lines).encode(errors="replace")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(_TIMEOUT)
            sock.connect("\0" + address[1:] if address[0] == "@" else address)
            socket.send_fds(sock, [message], fds)
    except OSError as error:
        log.warning("The service manager does not accept messages at NOTIFY_SOCKET: %s", error)
        return False
    return True


def reloading() -> bool:
    """Report that the configuration is being reloaded; ``READY=1`` must follow."""
    return notify("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")


def store_fd(name: str, fd: int) -> bool:
    """Store a copy of *fd* as *name* in the service manager's FD store, for the next process of this service.

    The copy is closed by :func:`remove_fd`, or when the service stops for good, but not when the other end hangs up,
    because its last data must still be read. Raises :class:`ValueError` for a *name* that the service manager would
    silently replace.
    """
    return notify("FDSTORE=1", f"FDNAME={_check_name(name)}", "FDPOLL=0", fds=[fd])


def remove_fd(name: str) -> bool:
    """Remove the descriptor *name* from the FD store. Raises :class:`ValueError` like :func:`store_fd`."""
    return notify("FDSTOREREMOVE=1", f"FDNAME={_check_name(name)}")


def watchdog_interval() -> float | None:
    """Return the seconds between ``WATCHDOG=1`` messages, half of the watchdog timeout; None if there is no timeout."""
    text = os.environ.get("WATCHDOG_USEC")
    if not text or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    if not _is_number(text) or int(text) == 0:
        log.warning("WATCHDOG_USEC is not a number above 0: %r", text)
        return None
    return int(text) / 2_000_000


def passed_fds() -> dict[str, list[int]]:
    """Return the descriptors that the service manager passed to this process, by name; the caller owns them.

    They are not inheritable, and the environment variables about them are removed, so that no child process uses them
    by mistake and a second call returns nothing.
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


def _check_name(name: str) -> str:
    if not 0 < len(name) <= MAX_NAME or not name.isascii() or not name.isprintable() or ":" in name:
        raise ValueError(f"{name!r} cannot name a stored descriptor: 1 to {MAX_NAME} ASCII characters, no colon")
    return name


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20
