# SPDX-License-Identifier: LGPL-2.1-or-later
"""Telling the service manager how far we are (sd_notify(3))."""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger(__name__)


def notify(*lines: str) -> None:
    """Send *lines*, such as ``READY=1``, to the service manager; without one, do nothing."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto("\n".join(lines).encode(), address)
    except OSError as error:
        log.warning("The service manager does not listen at NOTIFY_SOCKET: %s", error)
