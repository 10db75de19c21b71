# SPDX-License-Identifier: LGPL-2.1-or-later
"""One HTTP request beside POSTs to servers, as the ASGI application sees it, and how it is replied to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs

from mcpd.bridge.http.routing import accepted
from mcpd.bridge.http.streams import reply
from mcpd.bridge.observe.trace import REQUEST_ID, given_request_id, new_request_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, MutableMapping
    from types import MethodType

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from mcpd.bridge.exchange import Headers
    from mcpd.bridge.http.connection import Connection
    from mcpd.bridge.http.gate import Peer

    Event = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Event]]
    Send = Callable[[Event], Awaitable[None]]


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
