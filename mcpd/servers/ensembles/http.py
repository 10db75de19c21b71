# SPDX-License-Identifier: LGPL-2.1-or-later
"""Streamable HTTP on this machine, for inspecting the server. The SDK checks the headers Host and Origin.

Running ensembles means running their scripts, so other users of the machine are refused.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from mcpd.errors import from_oserror
from mcpd.servers.ensembles.directories import SERVER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

HOST: Final = "127.0.0.1"
LAST_ANSWERS: Final = 5
"""Seconds to finish pending answers on shutdown."""
_CONNECTIONS: Final = Path("/proc/net/tcp")

log = logging.getLogger(SERVER)


async def serve(app: Any, port: int, close: Callable[[], Awaitable[None]]) -> None:
    """Serve *app*, the SDK's for :data:`HOST`, on *port*, 0 for a free one, until SIGTERM or SIGINT; then call *close*.

    Raises McpdError if the port cannot be bound.
    """
    try:
        listening = socket.create_server((HOST, port))
    except OSError as error:
        raise from_oserror(error, f"listening on {HOST}:{port}") from error
    config = uvicorn.Config(
        _SameUser(app),
        log_config=None,
        access_log=False,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=LAST_ANSWERS,
    )
    web = _Server(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, web.end)
    try:
        with listening:
            log.info("http://%s:%d/mcp", *listening.getsockname())
            await web.serve([listening])
    finally:
        await close()


class _Server(uvicorn.Server):
    """A uvicorn server that does not handle signals."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def end(self) -> None:
        """Make the server end."""
        self.should_exit = True


class _SameUser:
    """Passes requests from processes of this user, or of root, to *app*."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or await asyncio.to_thread(_owner, scope) in {os.geteuid(), 0}:
            await self._app(scope, receive, send)
            return
        log.warning("a request was refused: it is not certain that it is from this user")
        await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"another user's server\n"})


def _owner(scope: Any) -> int | None:
    """Return the uid of the peer of the connection in *scope*, or None if it cannot be determined.

    A socket that its process has closed has no inode, and the kernel reports root as its owner.
    """
    peer, own = (_as_kernel_says(*scope[each]) for each in ("client", "server"))
    for line in _CONNECTIONS.read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == [peer, own]:
            return int(fields[7]) if fields[9] != "0" else None
    return None


def _as_kernel_says(host: str, port: int) -> str:
    """Return the address in the format of ``/proc/net/tcp``: the IPv4 address as a number in native byte order."""
    number = int.from_bytes(ip_address(host).packed, sys.byteorder)
    return f"{number:08X}:{port:04X}"
