# SPDX-License-Identifier: LGPL-2.1-or-later
"""One POST and its reply, served by plain calls: what uvicorn's cycle is for ASGI, without a task of its own.

The protocol class treats both alike, so that requests of both kinds can follow each other on one connection, also
before the first was answered.

Clients send the same headers again and again, and only the length of the body differs. A head that is, byte for byte,
what came over the same connection before is not parsed again.
"""

from __future__ import annotations

import re
from dataclasses import replace
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from mcpd.bridge import jsonrpc
from mcpd.bridge.budget import COUNTED_FROM
from mcpd.bridge.http.gate import challenge
from mcpd.bridge.http.request import stream
from mcpd.bridge.http.routing import Refused
from mcpd.bridge.observe.trace import REQUEST_ID, new_request_id
from mcpd.bridge.tasks import fault_of
from mcpd.errors import McpdError, TimedOut

if TYPE_CHECKING:
    import asyncio
    from collections.abc import MutableMapping

    from mcpd.bridge.exchange import Exchange, Headers
    from mcpd.bridge.http.connection import Connection
    from mcpd.bridge.http.endpoint import Endpoint, Head
    from mcpd.bridge.http.post import Post

LONGEST: Final = 8192
"""Bytes of a head that is kept for a connection."""
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,9})(?=\r\n)", re.IGNORECASE)
_DIGITS: Final = 10
BODY_TIMEOUT: Final = 30.0
"""Seconds in which a whole body must come."""
_STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus
}
_OK: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
_JOINED: Final = 65536
"""Bytes of a body up to which it is copied behind its head."""


class KnownHead:
    """The *head* of a POST to *server*: the bytes *before* the digits of its Content-Length, and those *after* it."""

    __slots__ = ("_after", "_before", "head", "link", "server")

    def __init__(self, before: bytes, after: bytes, head: Head, server: str, link: str) -> None:
        self._before = before
        self._after = after
        self.head = head
        self.server = server
        self.link = link

    def body(self, data: bytes) -> bytes | None:
        """Return the body of the request *data*; ``None`` if that is not exactly one whole request with this head."""
        if not data.startswith(self._before):
            return None
        start = len(self._before)
        end = data.find(b"\r", start, start + _DIGITS)
        if end < 0 or not data.startswith(self._after, end):
            return None
        digits = data[start:end]
        body = end + len(self._after)
        return data[body:] if digits.isdigit() and int(digits) == len(data) - body else None


def learn(data: bytes, size: int, head: Head, server: str, link: str) -> KnownHead | None:
    """Return the known head of *data*, one whole request with a body of *size* bytes, which was parsed and admitted.

    Return None if it is too long, or not unambiguous.
    """
    start = len(data) - size
    found = list(_LENGTH.finditer(data, 0, start)) if start <= LONGEST else []
    if len(found) != 1 or data.find(b"\r\n\r\n") + 4 != start or int(found[0].group(1)) != size:
        return None
    return KnownHead(data[: found[0].start(1)], data[found[0].end(1) : start], head, server, link)


class _Unheard:
    """What uvicorn sets for those who wait in a task."""

    @staticmethod
    def set() -> None:
        """Nobody waits."""


class Cycle:
    """A POST to the endpoint of *server*, which came over *connection*."""

    message_event: Final = _Unheard
    # Defaults of the class: most requests never have a value of their own for most of these.
    disconnected = False
    response_started = False
    response_complete = False
    more_body = True
    is_begun = False
    status = 0
    cors: Headers = ()
    keep_alive = True
    is_chunkable = True
    """Its client can read a stream without knowing its length."""
    repeated: frozenset[bytes] = frozenset()
    """Headers that are there more than once."""
    exchange: Exchange | None = None
    body = b""
    _post: Post | None = None
    _parts: list[bytes] | None = None
    _size = 0
    _timer: asyncio.TimerHandle | None = None
    _chunked = False

    raw_headers: dict[bytes, bytes]
    """With names as they were sent; only of a request whose head was parsed."""

    def __init__(self, connection: Connection, endpoint: Endpoint, server: str, link: str) -> None:
        self.connection = connection
        self.server = server
        self.link = link
        self.since = monotonic()
        self._endpoint = endpoint

    # ------------------------------------------------------------------------------------ the request

    def parsed(self) -> None:
        """Its head was parsed, and is what the connection has now."""
        connection, parser = self.connection, self.connection.parser
        self.raw_headers = connection.raw_headers
        self.repeated = connection.repeated
        self.keep_alive = parser.should_keep_alive() and not parser.should_upgrade()
        self.is_chunkable = parser.get_http_version() != "1.0"

    def serve(self, head: Head, body: bytes) -> None:
        """The whole request is there, with a *head* that was let in before, and nothing stands before it."""
        self.is_begun = True
        self.more_body = False
        self.body = body
        self._size = len(body)
        try:
            self._post, self.exchange = self._endpoint.let_in(self, head, len(body))
        except (Refused, McpdError) as fault:
            self._refuse(fault)
        else:
            self._hand_on()

    def learn(self, data: bytes) -> KnownHead | None:
        """What to know of *data* if it was this request, no more and no less, and others of it can be served alike."""
        head = self.connection.head
        if self._post is None or head is None or self.more_body or not (self.keep_alive and self.is_chunkable):
            return None
        if self.repeated or head.repeated or b"expect" in head.headers:
            return None
        return learn(data, self._size, head, self.server, self.link)

    def keep_headers(self) -> None:
        """Other requests come before this one begins."""
        self.raw_headers = self.raw_headers.copy()

    async def run_asgi(self, _app: object) -> None:
        """Begin, after those before it on the same connection were answered."""
        self.begin()
        if self.more_body:
            self.wait_for_body()

    def begin(self) -> None:
        """Nothing stands before it any more."""
        self.is_begun = True
        try:
            self._post, self.exchange = self._endpoint.admit(self)
            if self._size > self._endpoint.max_body:
                raise self._endpoint.too_large()
        except (Refused, McpdError) as fault:
            self._refuse(fault)
            return
        if not self.more_body:
            self._hand_on()
        elif self._post.headers.get(b"expect", b"").lower() == b"100-continue":
            self.connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def take(self, piece: bytes) -> None:
        """A piece of the body came."""
        if self.response_complete:
            return
        if not self._size:
            self.body = piece
            self._size = len(piece)
            return
        if self._parts is None:
            self._parts = [self.body]
        self._parts.append(piece)
        self._size += len(piece)
        if not self.is_begun:
            # Uvicorn reads no more, as the body of the request before is not waited for either.
            return
        if self._size > self._endpoint.max_body:
            self._refuse(self._endpoint.too_large())
        elif self._post is not None:
            held = self._post.held
            if held is None:
                # A post of its own, as others of the same connection may be the same to all.
                held = self._endpoint.limit(self._post, self._refuse)
                self._post = replace(self._post, held=held)
            if not held.hold(self._size):
                self._refuse(held.fault())

    def wait_for_body(self) -> None:
        """All that has come was taken, and it is not the whole."""
        if self.is_begun and self._timer is None and not self.response_complete:
            self._timer = self.connection.loop.call_later(BODY_TIMEOUT, self._too_slow)

    def complete(self) -> None:
        """The whole body is there."""
        self.more_body = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.is_begun and not self.response_complete:
            self._hand_on()

    def _hand_on(self) -> None:
        post, exchange = self._post, self.exchange
        if post is None or exchange is None or self.disconnected:
            return
        if self._size > self._endpoint.parts.options.max_body:
            self._refuse(self._endpoint.too_large())
            return
        body = self.body if self._parts is None else b"".join(self._parts)
        self.body, self._parts = b"", None
        self.connection.waiting = exchange
        exchange.on_reply = self._reply
        # The boundary: the parser would take what is raised here for the client's fault.
        try:
            self._endpoint.post(post, body, exchange)
        except Exception as error:  # noqa: BLE001 -- logged by fault_of
            exchange.refuse(fault_of(error, post.server, exchange.request_id))
        finally:
            if post.held is not None:
                post.release()

    def _too_slow(self) -> None:
        self._refuse(TimedOut(f"the body did not come within {BODY_TIMEOUT:g} s"))

    def hang_up(self) -> None:
        """The connection is gone."""
        self.disconnected = True
        self._forget()
        if self.exchange is not None:
            # It refers to this, and may be there for as long as its call takes.
            self.exchange.on_reply = None

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.body, self._parts = b"", None
        if self._post is not None:
            self._post.release()

    # ------------------------------------------------------------------------------------ the reply

    def _refuse(self, fault: Refused | McpdError) -> None:
        if self.response_started:
            return
        self._forget()
        if isinstance(fault, Refused):
            self._write(fault.status, jsonrpc.failure(b"", fault.fault), (*self.cors, *fault.headers))
        else:
            headers = (*self.cors, *challenge(fault))
            self._write(fault.http_status, jsonrpc.failure(b"", fault), headers)

    def _reply(self, exchange: Exchange) -> None:
        """The reply is there, or its first event."""
        if self.disconnected or self.connection.transport.is_closing():
            # A connection that broke is told to be lost a little later, and writing to it raises until then.
            return
        if exchange.streaming:
            task = self.connection.loop.create_task(self._stream(exchange))
            self.connection.tasks.add(task)
            task.add_done_callback(self.connection.tasks.discard)
        else:
            self._write(exchange.status, exchange.body, exchange.headers + self.cors)
            if len(exchange.body) > COUNTED_FROM:
                self.connection.until_read(exchange)

    def _write(self, status: int, body: bytes, headers: Headers) -> None:
        transport = self.connection.transport
        self.response_started = True
        self.status = status
        if status >= 400:
            headers = self._named(headers)
        if status == 200:
            head = _OK % len(body)
        elif body:
            head = b"%bcontent-type: application/json\r\ncontent-length: %d\r\n" % (_STATUS_LINES[status], len(body))
        else:
            head = _STATUS_LINES[status] + b"content-length: 0\r\n"
        for name, value in headers:
            head += b"%b: %b\r\n" % (name, value)
        head += b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        if len(body) <= _JOINED:
            transport.write(head + body)
        else:
            transport.writelines((head, body))
        self._end()

    def _named(self, headers: Headers) -> Headers:
        """*headers* with the id of the request, by which the log and the audit trail call it."""
        if any(name == REQUEST_ID for name, _ in headers):
            return headers
        name = new_request_id() if self.exchange is None else self.exchange.request_id
        return (*headers, (REQUEST_ID, name.encode()))

    def _end(self) -> None:
        self.response_complete = True
        self._endpoint.watch.http("mcp", self.status, monotonic() - self.since)
        self.connection.waiting = None
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            # What refers to each other is freed late only, and a large body with it.
            exchange.on_reply = exchange.on_gone = None
        if not self.keep_alive:
            self.connection.transport.close()
        self.connection.on_response_complete()

    async def _stream(self, exchange: Exchange) -> None:
        try:
            await stream(self._send, exchange, (*self.cors, *exchange.headers), self.connection)
        finally:
            self.connection.until_read(exchange)

    async def _send(self, event: MutableMapping[str, Any]) -> None:
        """Send a part of a stream, as an ASGI server does."""
        connection = self.connection
        if connection.flow.write_paused and not self.disconnected:
            await connection.flow.drain()
        if self.disconnected or self.response_complete or connection.transport.is_closing():
            return
        if event["type"] == "http.response.start":
            self._start_stream(event["status"], event["headers"])
            return
        piece = event["body"]
        if piece:
            connection.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece)
        if not event.get("more_body", False):
            if self._chunked:
                connection.transport.write(b"0\r\n\r\n")
            self._end()

    def _start_stream(self, status: int, headers: Headers) -> None:
        self.response_started = True
        self.status = status
        if not self.is_chunkable:
            self.keep_alive = False
        lines = [_STATUS_LINES[status], *(b"%b: %b\r\n" % header for header in headers)]
        self._chunked = self.keep_alive
        # Without chunks the end of the connection is that of the stream.
        lines.append(b"transfer-encoding: chunked\r\n\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        self.connection.transport.write(b"".join(lines))
