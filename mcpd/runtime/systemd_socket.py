# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpd-exec`` behind a socket unit of the system's service manager (design §6, launcher 1)."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Final

from mcpd.errors import SpawnFailed
from mcpd.runtime.launch import Leash, NobodysKeeper

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mcpd.runtime.launch import LaunchSpec

SPAWN_SOCKET: Final = "spawn.sock"
BUILD_SOCKET: Final = "build.sock"
CONNECT_TIMEOUT: Final = 10.0
"""Seconds until the service manager must take the connection; it needs none but with a full backlog."""
SERVER_USER: Final = "mcp-server"
BUILD_USER: Final = "mcpd"
RETRY: Final = 0.01
"""Seconds between two attempts then."""


class SystemdSocketLauncher:
    """Connects to a socket unit, which starts an instance of its service, a unit of its own, for each connection.

    mcpd needs no privilege for that: what may be started, and as whom, stands in the unit's file.
    """

    name = "systemd-socket"

    def __init__(self, path: Path, user: str) -> None:
        self.path = path
        """The unit's socket."""
        self.user = user
        """Whom the unit starts things as."""

    async def launch(self, spec: LaunchSpec, fds: Mapping[int, int]) -> Leash:
        """See :meth:`mcpd.runtime.launch.Launcher.launch`."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await self._connect(sock)
        except TimeoutError:
            sock.close()
            raise SpawnFailed(
                f"{spec.id}: the service manager took no connection to {self.path} for {CONNECT_TIMEOUT:.0f} s;"
                f" see: systemctl status {self._unit}"
            ) from None
        except OSError as error:
            sock.close()
            raise SpawnFailed(
                f"{spec.id}: {self.path} cannot be connected to ({error.strerror}); see: systemctl status {self._unit}"
            ) from error
        except BaseException:
            sock.close()
            raise
        return await Leash.start(sock, spec, fds, NobodysKeeper())

    async def _connect(self, sock: socket.socket) -> None:
        """A unix socket with a full backlog says EAGAIN, which no event tells the end of."""
        while True:
            try:
                sock.connect(str(self.path))
            except BlockingIOError:
                await asyncio.sleep(RETRY)
            else:
                return

    @property
    def _unit(self) -> str:
        return f"mcpd-{self.path.stem}.socket"
