# SPDX-License-Identifier: LGPL-2.1-or-later
"""The HTTP+SSE transport of 2024-11-05: one stream carries all that a server says, POSTs are acknowledged.

A GET of ``/mcp/{server}/sse`` opens a link; its first event tells where to POST. What is posted there is served as any
other POST of the handshake era, with the link in the place of the HTTP reply. A link is one client, so it has at most
one session, which ends with it.
"""

from __future__ import annotations

import secrets
from collections import Counter
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from mcpd.bridge import jsonrpc
from mcpd.bridge.exchange import EventQueue, Exchange, event
from mcpd.bridge.http.request import stream
from mcpd.errors import LimitExceeded, NotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from mcpd.bridge.callers import Caller
    from mcpd.bridge.exchange import Headers
    from mcpd.bridge.handshake.serve import Handshake
    from mcpd.bridge.handshake.session import Session
    from mcpd.bridge.http.connection import Connection
    from mcpd.bridge.http.post import Post
    from mcpd.bridge.parts import Parts
    from mcpd.errors import McpdError

    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MOST_WAITING: Final = 1000
"""Requests of one client that may be unanswered."""
MOST_LINKS: Final = 256
"""Streams that one caller may have open."""
_KEEP_ALIVE: Final = ((b"connection", b"keep-alive"),)


class Link(EventQueue):
    """One client's stream, which answers all of its POSTs."""

    def __init__(self, server: str, handshake: Handshake) -> None:
        super().__init__()
        self.id = secrets.token_urlsafe(24)
        self.server = server
        self.session: Session | None = None
        self.posted: set[Posted] = set()
        """The POSTs that were not answered altogether."""
        self._handshake = handshake
        self.put(b"event: endpoint\ndata: /mcp/%b?sse=%b\n\n" % (quote(server, safe="").encode(), self.id.encode()))

    def post(self, post: Post, body: bytes, exchange: Exchange) -> None:
        """Serve one POST: *exchange* is told whether it was understood, the answers come on the stream.

        Raises :class:`~mcpd.errors.LimitExceeded` if too many were not answered yet, as no connection waits for them.
        """
        if sum(each.expected for each in self.posted) >= MOST_WAITING:
            raise LimitExceeded(
                f"{MOST_WAITING} requests of this stream are unanswered: wait for answers, or cancel some"
            )
        post.session_id = "" if self.session is None else self.session.id
        posted = Posted(self, exchange)
        self.posted.add(posted)
        self._handshake.post(post, body, posted)
        posted.acknowledge()

    def opened(self, session: Session) -> None:
        """A POST opened *session*."""
        if self.session is not None:
            self._handshake.sessions.end(self.session, "its client opened another one")
        self.session = session
        session.streams.link = self

    def answer(self, response: bytes) -> None:
        """Send *response*. A client that does not read what it asks for is cut off."""
        if self.ended:
            return
        if not self._fits(response) and self._held is not None:
            self._cut(self._held.fault())
        else:
            self.put(event(response))

    def close(self) -> None:
        """The stream has ended, and all that hangs on it."""
        self.gone = self.ended = True
        for posted in tuple(self.posted):
            posted.hang_up()
        self.posted.clear()
        if self.session is not None:
            self._handshake.sessions.end(self.session, "its client closed the stream")


class Posted(Exchange):
    """One POST of *link*, which came as *exchange*: the answers go to the stream."""

    def __init__(self, link: Link, exchange: Exchange) -> None:
        super().__init__(takes_json=False, takes_events=True)
        self.streaming = True
        self.caller = link.caller
        self.request_id = exchange.request_id
        self._link = link
        self._exchange: Exchange | None = exchange

    @property
    def expected(self) -> int:
        """Number of missing answers."""
        return self._expected

    def acknowledge(self) -> None:
        """It was understood, unless it was refused before."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.accept()

    def opened(self, session: Session) -> None:
        """It opened *session*."""
        self._link.opened(session)

    def push(self, message: bytes) -> bool:
        """Send a message that comes before the answer."""
        return not self.ended and self._link.push(message)

    def answer(self, response: bytes) -> None:
        """Send one of the expected responses."""
        if not self.ended:
            self._link.answer(response)
            self._one_less()

    def cancelled(self, identity: bytes) -> None:
        """Nothing is said of what the client cancelled."""
        self._one_less()

    def accept(self) -> None:
        """There were no requests in it."""
        self.end()

    def refuse(self, fault: McpdError, identity: bytes = b"", headers: Headers = ()) -> None:
        """Refuse the request *identity* on the stream, and a POST in which none can be told by HTTP."""
        if identity in {b"", b"null"}:
            self.reply(fault.http_status, jsonrpc.failure(identity, fault), headers)
        else:
            self.answer(jsonrpc.failure(identity, fault))

    def reply(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """Reply to the whole POST, by HTTP as long as it was not acknowledged."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.reply(status, body, headers)
        elif not self.ended:
            self._link.answer(body)
        self.end()

    def end(self) -> None:
        """All was answered."""
        self.ended = True
        self._link.posted.discard(self)

    def _one_less(self) -> None:
        self._expected -= 1
        if self._expected <= 0:
            self.end()


class Links:
    """All links of this bridge."""

    def __init__(self, parts: Parts, handshake: Handshake) -> None:
        self._parts = parts
        self._handshake = handshake
        self._links: dict[str, Link] = {}
        self._per_caller: Counter[Caller] = Counter()

    def find(self, link_id: str, server: str, caller: Caller) -> Link:
        """The link; raises :class:`~mcpd.errors.NotFound` also for one of another caller or server."""
        link = self._links.get(link_id)
        if link is None or link.server != server or link.caller != caller:
            raise NotFound(f"unknown or closed stream: GET /mcp/{server}/sse opens one")
        return link

    async def serve(self, server: str, caller: Caller, send: Send, headers: Headers, connection: Connection) -> None:
        """Serve a GET of *caller* until its client goes away or its session ends.

        Raises :class:`~mcpd.errors.LimitExceeded`, and what
        :meth:`~mcpd.bridge.upstream.source.ServerSource.describe` raises for *server*.
        """
        if self._per_caller[caller] >= MOST_LINKS:
            raise LimitExceeded(f"{MOST_LINKS} streams are open, the limit for one caller: close some")
        self._per_caller[caller] += 1
        try:
            await self._serve(server, caller, send, headers, connection)
        finally:
            self._per_caller[caller] -= 1
            if not self._per_caller[caller]:
                del self._per_caller[caller]

    async def _serve(self, server: str, caller: Caller, send: Send, headers: Headers, connection: Connection) -> None:
        link = Link(server, self._handshake)
        link.charge(self._parts.budget, caller, connection.transport.abort)
        # Before anything is waited for, or nobody would tell that the client is gone.
        connection.waiting = link
        await self._parts.source.describe(server)
        self._links[link.id] = link
        try:
            await stream(send, link, (*headers, *_KEEP_ALIVE), connection)
        finally:
            del self._links[link.id]
            link.close()
            connection.until_read(link)
