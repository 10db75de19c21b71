# SPDX-License-Identifier: LGPL-2.1-or-later
"""HTTP requests other than POSTs to servers, as the ASGI application sees them, and the replies to them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import parse_qs

from mcpd.bridge.http.routing import accepted
from mcpd.bridge.observe.trace import REQUEST_ID, given_request_id, new_request_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from mcpd.bridge.exchange import EventQueue, Headers
    from mcpd.bridge.http.connection import Connection

    Event = MutableMapping[str, Any]
    Send = Callable[[Event], Awaitable[None]]
    from collections.abc import Awaitable, Callable, Mapping, MutableMapping
    from types import MethodType

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from mcpd.bridge.http.gate import Peer

    Receive = Callable[[], Awaitable[Event]]

SLOWEST_READ: Final = 75.0
"""Seconds that a client may leave a piece of a stream unread."""
_JSON: Final = (b"content-type", b"application/json")
_EVENTS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
_KEEPALIVE: Final = b": keepalive\n\n"


async def reply(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """Send a whole reply; a body is JSON."""
    if body:
        headers = (_JSON, (b"content-length", b"%d" % len(body)), *headers)
    elif status != 204:
        headers = ((b"content-length", b"0"), *headers)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def stream(send: Send, queue: EventQueue, headers: Headers, connection: Connection) -> None:
    """Send what comes into *queue* until it ends or the client goes away, and a comment where nothing comes."""
    await send({"type": "http.response.start", "status": 200, "headers": (*_EVENTS, *headers)})
    try:
        while True:
            piece = queue.take()
            if piece:
                async with asyncio.timeout(SLOWEST_READ):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    if queue.counted:
                        del piece
                        await connection.flow.drain()
                queue.sent()
            elif queue.ended:
                break
            else:
                await _next(send, queue, connection.keepalive)
    except TimeoutError:
        connection.transport.abort()
        return
    await send({"type": "http.response.body", "body": b""})


async def _next(send: Send, queue: EventQueue, keepalive: float) -> None:
    try:
        async with asyncio.timeout(keepalive):
            await queue.wait()
    except TimeoutError:
        async with asyncio.timeout(SLOWEST_READ):
            await send({"type": "http.response.body", "body": _KEEPALIVE, "more_body": True})


def _while_connected(send: Send, connection: Connection) -> Send:
    """*send*, which drops what is for a connection that broke: writing to it raises until it is told to be lost."""
    cycle = cast("RequestResponseCycle", cast("MethodType", send).__self__)

    async def send_on(event: Event) -> None:
        if connection.flow.write_paused and not connection.transport.is_closing():
            # Here, as the connection may break meanwhile.
            await connection.flow.drain()
        cycle.disconnected = cycle.disconnected or connection.transport.is_closing()
        await send(event)

    return send_on


@dataclass(slots=True)
class Request:
    """A request and its connection."""

    scope: Event
    send: Send
    headers: Mapping[bytes, bytes]
    connection: Connection
    cors: Headers = ()
    """What the reply needs so that the page that asked can read it."""
    status: int = 0
    """The status that it was replied to with."""
    accepts: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.send = _while_connected(self.send, self.connection)
        self.accepts = accepted(self.headers.get(b"accept", b""))

    @property
    def method(self) -> str:
        """Its method."""
        return str(self.scope["method"])

    @property
    def path(self) -> str:
        """Its path, decoded."""
        return str(self.scope["path"])

    @property
    def peer(self) -> Peer:
        """Who is at the other end."""
        return self.connection.peer

    @property
    def reads(self) -> bool:
        """True if it changes nothing."""
        return self.method in {"GET", "HEAD"}

    @property
    def wants_page(self) -> bool:
        """True if a person reads the reply."""
        return "text/html" in self.accepts

    @property
    def takes_page(self) -> bool:
        """True if a page will do."""
        return not self.headers.get(b"accept", b"").strip() or bool(self.accepts & {"text/html", "text/*", "*/*"})

    def argument(self, name: str) -> str:
        """The first value of *name* in its query, empty if there is none."""
        query: bytes = self.scope["query_string"]
        return parse_qs(query.decode("latin-1")).get(name, [""])[0]

    async def reply(self, status: int, body: bytes = b"", headers: Headers = ()) -> None:
        """Reply with JSON, or with nothing."""
        self.status = status
        if status >= 400:
            name = given_request_id(self.headers) or new_request_id()
            headers = (*headers, (REQUEST_ID, name.encode()))
        await reply(self.send, status, body, (*headers, *self.cors))

    async def reply_as(self, status: int, body: bytes, headers: Headers) -> None:
        """Reply with *body*, whose kind *headers* tell. It is for the bridge's own pages, so none other may read it."""
        self.status = status
        length = (b"content-length", b"%d" % len(body))
        await self.send({"type": "http.response.start", "status": status, "headers": (length, *headers)})
        await self.send({"type": "http.response.body", "body": body})
