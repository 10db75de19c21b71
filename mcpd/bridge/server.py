# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs the application on its listeners until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from functools import partial
from typing import TYPE_CHECKING, Final

import uvicorn
from uvicorn.server import ServerState

from mcpd.bridge.app import Application
from mcpd.bridge.connection import KEEP_ALIVE, Connection
from mcpd.bridge.room import Room, connection_limit
from mcpd.notify import notify

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mcpd.bridge.seat import Parts
    from mcpd.bridge.security import Gate

FLUSH_TIMEOUT: Final = 2.0
"""Seconds in which clients may read their last replies when the bridge stops."""


async def serve(parts: Parts, gate: Gate, listeners: Sequence[socket.socket], ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, then end every session and server. *ready* is called when clients may come."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    app = Application(parts, gate)
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE,
    )
    # What it says of broken requests would let anybody who can connect fill the log.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    config.load()
    state = ServerState()

    limit = connection_limit()
    rooms = {is_unix: Room(limit) for is_unix in (True, False)}
    servers = []
    for listener in listeners:
        listener.setblocking(False)
        is_unix = listener.family == socket.AF_UNIX
        start = loop.create_unix_server if is_unix else loop.create_server
        servers.append(await start(partial(Connection, config, state, {}, loop, rooms[is_unix]), sock=listener))
    try:
        notify("READY=1")
        ready()
        await stop.wait()
        notify("STOPPING=1")
    finally:
        for server in servers:
            server.close()
        await app.handshake.sessions.close()
        await parts.source.close()
        await _close_connections(state)


async def _close_connections(state: ServerState) -> None:
    for connection in list(state.connections):
        connection.shutdown()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FLUSH_TIMEOUT):
            while state.tasks:
                await asyncio.wait(state.tasks)
    for connection in list(state.connections):
        connection.transport.abort()
    for task in list(state.tasks):
        task.cancel()
    # Let the transports close before the loop does.
    await asyncio.sleep(0)
