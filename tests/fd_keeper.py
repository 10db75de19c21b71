# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service manager's end of NOTIFY_SOCKET: what it was told, and the descriptors that it keeps."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path


class FdKeeper:
    """Reads what is sent when asked to, and keeps descriptors as systemd does with ``FDPOLL=0``."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self.kept: dict[str, list[int]] = {}
        self.said: list[dict[str, str]] = []
        """Every message but those about descriptors."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(self.address)
        self.sock.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.read()
        self.release()
        self.sock.close()

    def read(self) -> None:
        """Take in everything that was sent."""
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.sock, 4096, 16)
            except BlockingIOError:
                return
            message = dict(line.split("=", 1) for line in data.decode().splitlines())
            if "FDSTORE" in message:
                assert message["FDPOLL"] == "0"
                self.kept.setdefault(message["FDNAME"], []).extend(fds)
            elif "FDSTOREREMOVE" in message:
                for fd in self.kept.pop(message["FDNAME"], []):
                    os.close(fd)
            else:
                assert not fds
                self.said.append(message)

    def names(self) -> list[str]:
        """The names under which descriptors are kept."""
        self.read()
        return sorted(self.kept)

    def passed(self) -> dict[str, list[int]]:
        """Copies of what is kept, as the next process gets them."""
        self.read()
        return {name: [os.dup(fd) for fd in fds] for name, fds in self.kept.items()}

    def release(self) -> None:
        """Close everything that is kept, as at the end of a service."""
        for fds in self.kept.values():
            for fd in fds:
                os.close(fd)
        self.kept.clear()
