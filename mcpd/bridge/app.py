# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ASGI application: routes, and what HTTP demands of a request (design §8 "Routes", "Status")."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from mcpd.bridge import jsonrpc, security
from mcpd.bridge.handshake import Handshake
from mcpd.bridge.negotiation import Refused, accepted, not_allowed
from mcpd.bridge.routing import server_of
from mcpd.bridge.streams import reply, stream
from mcpd.errors import McpdError, NotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, MutableMapping

    from mcpd.bridge.connection import Connection
    from mcpd.bridge.exchange import Headers
    from mcpd.bridge.seat import Parts
    from mcpd.bridge.security import Gate, Peer
    from mcpd.bridge.sessions import Session

    Event = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Event]]
    Send = Callable[[Event], Awaitable[None]]
    HeaderMap = Mapping[bytes, bytes]

_METHODS: Final = "GET, POST, DELETE, OPTIONS"


class Application:
    """Serves HTTP requests, as an ASGI 3 application."""

    def __init__(self, parts: Parts, gate: Gate) -> None:
        self._parts = parts
        self._gate = gate
        self.handshake = Handshake(parts)

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers = dict(scope["headers"])
        connection: Connection = scope["state"]["connection"]
        cors: Headers = ()
        try:
            self._check(headers, connection)
            origin = headers.get(b"origin")
            if origin is not None:
                cors = self._gate.check_origin(origin)
            await self._route(scope, receive, send, headers, cors)
        except Refused as refusal:
            await reply(send, refusal.status, jsonrpc.failure(b"", refusal.fault), (*cors, *refusal.headers))
        except McpdError as fault:
            extra = security.challenge(fault)
            await reply(send, fault.http_status, jsonrpc.failure(b"", fault), (*cors, *extra))
        finally:
            connection.waiting = None

    def _check(self, headers: HeaderMap, connection: Connection) -> None:
        if not self._gate.check_host(headers, connection.peer):
            host = headers.get(b"host", b"").decode("latin-1")[:200]
            raise Refused(421, f"this bridge does not answer for the host {host!r}")
        if b"upgrade" in headers.get(b"connection", b"").lower():
            raise Refused(400, "this bridge speaks plain HTTP/1.1: leave out 'Connection: Upgrade'")

    async def _route(self, scope: Event, receive: Receive, send: Send, headers: HeaderMap, cors: Headers) -> None:
        method, path = scope["method"], scope["path"]
        if path == "/health":
            if method not in {"GET", "HEAD"}:
                raise not_allowed(method, "GET, HEAD")
            await reply(send, 200, b'{"status":"ok"}', cors)
            return
        connection: Connection = scope["state"]["connection"]
        if path == "/token" and connection.peer.uid is not None:
            await self._token(method, connection.peer, send)
            return
        server = server_of(path)
        if not server:
            raise NotFound("there is nothing at this path: servers are at /mcp/NAME")
        if method == "OPTIONS":
            await reply(send, 204, b"", security.preflight(headers, cors))
            return
        caller = self._gate.identify(headers, connection.peer)
        if method in {"GET", "DELETE"}:
            session = self.handshake.session(server, headers.get(b"mcp-session-id", b"").decode("latin-1"), caller)
        if method == "GET":
            await self._get(session, send, headers, cors, connection)
        elif method == "DELETE":
            self.handshake.delete(session)
            await reply(send, 204, b"", cors)
        else:
            raise not_allowed(method, _METHODS)

    async def _token(self, method: str, peer: Peer, send: Send) -> None:
        """Tell a user of the unix socket the token that TCP clients of that user need, a new one for POST."""
        if method not in {"GET", "POST"} or peer.uid is None:
            raise not_allowed(method, "GET, POST")
        caller = self._gate.identify({}, peer)
        token = await asyncio.to_thread(self._gate.admission.own_token, caller.uid, renew=method == "POST")
        await reply(send, 200, jsonrpc.encode({"token": token}), ((b"cache-control", b"no-store"),))

    async def _get(
        self, session: Session, send: Send, headers: HeaderMap, cors: Headers, connection: Connection
    ) -> None:
        if "text/event-stream" not in accepted(headers.get(b"accept", b"")):
            raise Refused(406, "GET opens the event stream of a session: send 'Accept: text/event-stream'")
        queue = EventQueue()
        queue.charge(self._parts.budget, session.caller, connection.transport.abort)
        session.streams.listen(queue, headers.get(b"last-event-id", b""))
        connection.waiting = queue
        try:
            await stream(send, queue, (*cors, *session.headers), connection)
        finally:
            connection.until_read(queue)
