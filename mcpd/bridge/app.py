# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ASGI application: routes, and what HTTP demands of a request (design §8 "Routes", "Status")."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from mcpd.bridge import jsonrpc, security
from mcpd.bridge.exchange import Exchange
from mcpd.bridge.handshake import Handshake, Post
from mcpd.bridge.routing import server_of
from mcpd.bridge.streams import reply, stream
from mcpd.errors import InvalidRequest, LimitExceeded, McpdError, NotFound, TimedOut, TooLarge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, MutableMapping

    from mcpd.bridge.budget import Holding
    from mcpd.bridge.connection import Connection
    from mcpd.bridge.exchange import Headers
    from mcpd.bridge.seat import Parts
    from mcpd.bridge.security import Gate, Peer

    Event = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Event]]
    Send = Callable[[Event], Awaitable[None]]
    HeaderMap = Mapping[bytes, bytes]

BODY_TIMEOUT: Final = 30.0
"""Seconds in which a whole body must come."""
_METHODS: Final = "GET, POST, DELETE, OPTIONS"


class Refused(Exception):
    """A request that HTTP itself turns away, with *status* and a JSON-RPC error as its body."""

    def __init__(self, status: int, text: str, headers: Headers = ()) -> None:
        super().__init__(text)
        self.status = status
        self.fault = InvalidRequest(text)
        self.headers = headers


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
                raise _not_allowed(method, "GET, HEAD")
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
        post = Post(
            server,
            self._gate.identify(headers, connection.peer),
            headers.get(b"mcp-session-id", b"").decode("latin-1"),
            headers.get(b"mcp-protocol-version", b"").decode("latin-1"),
        )
        if method == "POST":
            await self._post(post, receive, send, headers, cors, connection)
        elif method == "GET":
            await self._get(post, send, headers, cors, connection)
        elif method == "DELETE":
            self.handshake.delete(post)
            await reply(send, 204, b"", cors)
        else:
            raise _not_allowed(method, _METHODS)

    async def _token(self, method: str, peer: Peer, send: Send) -> None:
        """Tell a user of the unix socket the token that TCP clients of that user need, a new one for POST."""
        if method not in {"GET", "POST"} or peer.uid is None:
            raise _not_allowed(method, "GET, POST")
        caller = self._gate.identify({}, peer)
        token = await asyncio.to_thread(self._gate.admission.own_token, caller.uid, renew=method == "POST")
        await reply(send, 200, jsonrpc.encode({"token": token}), ((b"cache-control", b"no-store"),))

    async def _post(
        self, post: Post, receive: Receive, send: Send, headers: HeaderMap, cors: Headers, connection: Connection
    ) -> None:
        exchange = _exchange_for(headers)
        exchange.charge(self._parts.budget, post.caller, connection.transport.abort)
        if not await self._hand_on(post, receive, headers, exchange, connection):
            return
        try:
            await exchange.wait()
            if exchange.gone:
                return
            if exchange.streaming:
                await stream(send, exchange, (*cors, *exchange.headers), connection)
            else:
                await reply(send, exchange.status, exchange.body, (*cors, *exchange.headers))
        finally:
            connection.until_read(exchange)

    async def _hand_on(
        self, post: Post, receive: Receive, headers: HeaderMap, exchange: Exchange, connection: Connection
    ) -> bool:
        """Read the body, which nobody keeps afterwards; false if the client left in the middle of it."""
        try:
            body = await self._body(post, receive, headers, connection)
            if body is None:
                return False
            connection.waiting = exchange
            self.handshake.post(post, body, exchange)
        finally:
            post.release()
        return True

    async def _get(self, post: Post, send: Send, headers: HeaderMap, cors: Headers, connection: Connection) -> None:
        if "text/event-stream" not in _accepted(headers.get(b"accept", b"")):
            raise Refused(406, "GET opens the event stream of a session: send 'Accept: text/event-stream'")
        session = self.handshake.session_for_stream(post)
        queue = connection.waiting = session.open_stream()
        queue.charge(self._parts.budget, post.caller, connection.transport.abort)
        try:
            await stream(send, queue, (*cors, *session.headers), connection)
        finally:
            session.close_stream(queue)
            connection.until_read(queue)

    async def _body(self, post: Post, receive: Receive, headers: HeaderMap, connection: Connection) -> bytes | None:
        """The body, counted in *post*, or ``None`` if the client left in the middle of it."""
        limit = self._parts.options.max_body
        length = headers.get(b"content-length")
        if length is not None and int(length) > limit:
            raise _too_large(limit)
        if connection.has_whole_body:
            body: bytes = (await receive()).get("body", b"")
        else:
            cuts: list[LimitExceeded] = []
            try:
                async with asyncio.timeout(BODY_TIMEOUT) as deadline:

                    def cut(fault: LimitExceeded) -> None:
                        if not cuts:
                            cuts.append(fault)
                            deadline.reschedule(0)

                    post.held = self._parts.budget.holding(post.caller, cut)
                    body = await _pieces(receive, limit, post.held)
                post.held.cut = _too_late
            except TimeoutError:
                if cuts:
                    raise cuts[0] from None
                raise TimedOut(f"the body did not come within {BODY_TIMEOUT:g} s") from None
            except ConnectionError:
                return None
        if len(body) > limit:
            raise _too_large(limit)
        return body


def _too_late(_fault: LimitExceeded) -> None:
    """A whole body is handed on in a moment, so there is nothing to cut."""


async def _pieces(receive: Receive, limit: int, held: Holding) -> bytes:
    """A body that comes in pieces, kept in *held*, up to a little over *limit*.

    Raises ConnectionError if the client leaves, and :class:`~mcpd.errors.LimitExceeded` if there is no room.
    """
    parts: list[bytes] = []
    size, more = 0, True
    while more and size <= limit:
        piece = await receive()
        if piece["type"] == "http.disconnect":
            raise ConnectionResetError
        parts.append(piece["body"])
        size += len(parts[-1])
        if not held.hold(size):
            raise held.fault()
        more = piece.get("more_body", False)
    return b"".join(parts)


def _not_allowed(method: str, allowed: str) -> Refused:
    return Refused(405, f"{method} is not allowed here, use {allowed}", ((b"allow", allowed.encode()),))


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit} bytes, see bridge.max_body")


def _exchange_for(headers: HeaderMap) -> Exchange:
    """An exchange for what the client sends and accepts. Raises :class:`Refused` with 415 or 406."""
    kind = headers.get(b"content-type", b"")
    if kind != b"application/json" and kind.split(b";")[0].strip().lower() != b"application/json":
        raise Refused(415, "send JSON-RPC with 'Content-Type: application/json'")
    accept = headers.get(b"accept", b"")
    if accept == b"application/json, text/event-stream":
        return Exchange(takes_json=True, takes_events=True)
    accepted = _accepted(accept)
    anything = not accept.strip() or "*/*" in accepted
    takes_json = anything or "application/json" in accepted or "application/*" in accepted
    takes_events = "text/event-stream" in accepted or "text/*" in accepted
    if not takes_json and not takes_events:
        raise Refused(406, "accept application/json, or text/event-stream, or better both")
    return Exchange(takes_json=takes_json, takes_events=takes_events)


def _accepted(accept: bytes) -> frozenset[str]:
    """The media ranges of an Accept header, without those that ``q=0`` rules out."""
    ranges = set()
    for part in accept.decode("latin-1").lower().split(","):
        name, _, parameters = part.partition(";")
        quality = next((p.strip()[2:] for p in parameters.split(";") if p.strip().startswith("q=")), "1")
        if quality.strip("0.") or not quality.startswith("0"):
            ranges.add(name.strip())
    return frozenset(ranges)
