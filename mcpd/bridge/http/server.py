# SPDX-License-Identifier: LGPL-2.1-or-later
"""The application on its listeners, until it is told to stop or has been idle for long enough."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from uvicorn.server import ServerState

from mcpd.bridge.http.app import Application
from mcpd.bridge.http.connection import KEEP_ALIVE, Connection, ServerConnection
from mcpd.bridge.http.listeners import CallsSocket, LineSocket, Room, connection_limit
from mcpd.bridge.http.tls import TlsServer
from mcpd.bridge.stdio.front import StdioFront
from mcpd.errors import McpdError
from mcpd.notify import notify, reloading, watchdog_interval

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mcpd.bridge.http.endpoint import Endpoint
    from mcpd.bridge.http.gate import Gate
    from mcpd.bridge.http.tls import Certificate
    from mcpd.bridge.parts import Parts

FLUSH_TIMEOUT: Final = 2.0
"""Seconds for clients to read their last replies when the bridge stops."""
FLUSH_LOOK: Final = 0.01
"""Seconds between checks whether they have done so."""
_KEEP_FILE: Final[dict[str, Any]] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""The socket's file stays when a server closes: others made it, or it is opened again."""
LONGEST_LOOK: Final = 15.0
"""Maximum number of seconds between checks whether the bridge is idle."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Service:
    """Interaction of a bridge with its service manager. Times are in seconds."""

    ready: Callable[[], None]
    """Called when the bridge accepts clients."""
    reload: Callable[[Service], None] | None = None
    """Applies new settings at SIGHUP; raises :class:`~mcpd.errors.McpdError` if they cannot be used."""
    idle_exit: float = 0
    """Seconds without a connection, session or process until it exits; 0: never. Its sockets must be held elsewhere."""


class Front:
    """The listeners of a bridge and their connections; a uid may have one of *parts* of all places."""

    def __init__(
        self,
        app: Application,
        endpoint: Endpoint,
        listeners: Sequence[socket.socket],
        parts: int,
        certificate: Certificate | None,
    ) -> None:
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
        self._config = config
        self._endpoint = endpoint
        self._listeners = list(listeners)
        self._certificate = certificate
        self._servers: list[asyncio.Server | TlsServer] = []
        limit = connection_limit()
        self._rooms = {is_unix: Room(limit, max(limit // parts, 1)) for is_unix in (True, False)}
        self.state = ServerState()
        self.stdio: Callable[[], asyncio.BaseProtocol] | None = None
        """Returns the protocol of a connection that uses the stdio transport."""

    @property
    def unix_room(self) -> Room:
        """The places for connections on Unix sockets."""
        return self._rooms[True]

    @property
    def seen(self) -> int:
        """Number of attempts to connect."""
        return sum(room.entered for room in self._rooms.values())

    async def open(self) -> None:
        """Accept connections."""
        for listener in self._listeners:
            await self._accept(listener)

    async def listen(self, listener: socket.socket) -> None:
        """Accept connections on *listener* as well."""
        self._listeners.append(listener)
        await self._accept(listener)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        is_unix = listener.family == socket.AF_UNIX
        start: Callable[..., Awaitable[asyncio.Server]] = loop.create_server
        if is_unix:
            start = partial(loop.create_unix_server, **_KEEP_FILE)
        room = self._rooms[is_unix]
        connection = partial(Connection, self._config, self.state, {}, loop, room, self._endpoint)
        make: Callable[[], asyncio.BaseProtocol] = connection
        if isinstance(listener, LineSocket) and self.stdio is not None:
            make = self.stdio
        elif isinstance(listener, CallsSocket):
            make = partial(ServerConnection, self._config, self.state, {}, loop, room, self._endpoint)
        elif not is_unix and self._certificate is not None:
            made = TlsServer(partial(connection, has_place=True), listener.dup(), self._certificate.context, room)
            self._servers.append(made)
            return
        # Its own copy, as it closes that with itself.
        self._servers.append(await start(make, sock=listener.dup()))

    def close(self) -> None:
        """Stop accepting connections; new ones wait in the backlogs of the sockets."""
        while self._servers:
            self._servers.pop().close()

    async def close_if_unused(self) -> bool:
        """Close and return True, or stay open and return False if a client has just connected."""
        before = self.seen
        self.close()
        for _ in range(3):
            # What was accepted already shows up in the next rounds of the loop.
            await asyncio.sleep(0)
        if self.seen == before and not self.state.connections:
            return True
        await self.open()
        return False

    async def end_connections(self) -> None:
        """Give clients time to read their answers, then close their connections."""
        for connection in list(self.state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_TIMEOUT):
                while self.state.tasks or self.state.connections:  # noqa: ASYNC110 -- both belong to uvicorn
                    await asyncio.sleep(FLUSH_LOOK)
        for connection in list(self.state.connections):
            connection.transport.abort()
        for task in list(self.state.tasks):
            task.cancel()
        # Let the transports close before the loop does.
        await asyncio.sleep(0)


async def serve(parts: Parts, gate: Gate, listeners: Sequence[socket.socket], service: Service) -> None:
    """Serve until SIGTERM or SIGINT, or until the bridge is idle; then end all sessions and servers."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if service.reload is not None:
        loop.add_signal_handler(signal.SIGHUP, _reload, service)
    app = Application(parts, gate)
    front = Front(app, app.endpoint, listeners, gate.admission.parts, parts.site.certificate)
    parts.site.listen = front.listen
    parts.metrics.sessions = app.handshake.sessions.holders
    parts.metrics.connections = lambda: len(front.state.connections)
    parts.metrics.buffered = lambda: parts.budget.held
    front.stdio = StdioFront(parts, gate, app.endpoint, app.handshake, front.unix_room, front.state.connections)
    await front.open()
    helpers = [loop.create_task(_heartbeat(front, app)), loop.create_task(_until_unused(front, app, service, stop))]
    try:
        notify("READY=1")
        service.ready()
        await stop.wait()
    finally:
        notify("STOPPING=1", "STATUS=Ending sessions and their servers")
        for helper in helpers:
            helper.cancel()
        front.close()
        app.endpoint.modern.close()
        ending = loop.create_task(app.handshake.sessions.close())
        # Answers are given at once, to be read while the servers end.
        await front.end_connections()
        await ending
        await parts.source.close()
        await parts.watch.close()
        for fault in await asyncio.gather(*helpers, return_exceptions=True):
            if isinstance(fault, Exception):
                log.error("internal error in the bridge", exc_info=fault)


def _reload(service: Service) -> None:
    reloading()
    try:
        if service.reload is not None:
            service.reload(service)
    except McpdError as error:
        log.warning("the settings were not changed: %s", error.message)
    else:
        log.info("reloaded the settings")
    notify("READY=1")


async def _heartbeat(front: Front, app: Application) -> None:
    """Report to the service manager that the loop runs, and its status."""
    interval = watchdog_interval()
    told = ""
    while True:
        status = f"STATUS={len(app.handshake.sessions)} sessions, {len(front.state.connections)} connections"
        if status != told:
            told = status
            notify(status)
        if interval is not None:
            notify("WATCHDOG=1")
        await asyncio.sleep(min(interval or LONGEST_LOOK, LONGEST_LOOK))


async def _until_unused(front: Front, app: Application, service: Service, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    since, seen = loop.time(), front.seen
    while True:
        limit = service.idle_exit
        await asyncio.sleep(min(limit / 4 or LONGEST_LOOK, LONGEST_LOOK))
        if not limit or front.state.connections or not app.handshake.sessions.idle or app.in_use or front.seen != seen:
            since, seen = loop.time(), front.seen
        elif loop.time() - since >= limit and await front.close_if_unused():
            log.info("exiting after %g s without use", limit)
            stop.set()
            return
