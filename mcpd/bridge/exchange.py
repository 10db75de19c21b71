# SPDX-License-Identifier: LGPL-2.1-or-later
"""The reply side of HTTP: one POST and its answers, and the GET stream of a session.

Both are filled by plain calls from the event loop and emptied by whatever speaks HTTP (the ASGI application, or a
short-cut in the protocol class), so that the path of a call needs no task and no queue object of its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from mcpd.bridge import jsonrpc
from mcpd.bridge.budget import COUNTED_FROM
from mcpd.bridge.observe.trace import new_request_id
from mcpd.errors import Cancelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.bridge.budget import Budget, Holding
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.handshake.resume import Streams, Track
    from mcpd.bridge.handshake.session import Session
    from mcpd.errors import McpdError

QUEUE_LIMIT: Final = 1 << 20
"""Bytes of messages, beside answers, that wait for one slow client before further ones are dropped."""

Headers = tuple[tuple[bytes, bytes], ...]

RETRY_AFTER: Final[Headers] = ((b"retry-after", b"10"),)
"""Seconds after which what was refused for want of room may be tried again."""


def event(message: bytes) -> bytes:
    """*message* as a server-sent event."""
    if b"\r" in message or b"\n" in message:
        message = message.replace(b"\r", b" ").replace(b"\n", b" ")
    return b"event: message\ndata: %b\n\n" % message


class EventQueue:
    """Server-sent events on their way to a client that may be slow."""

    # Defaults of the class: most exchanges end before they need a value of their own for any of these.
    caller: Caller | None = None
    """The client's owner."""
    ended = False
    gone = False
    """The client hung up."""
    track: Track | None = None
    """What keeps the stream for a client that comes back, if anything does."""
    _size = 0
    _sending = 0
    _budget: Budget | None = None
    _abort: Callable[[], None] | None = None
    _held: Holding | None = None
    _waiter: asyncio.Future[None] | None = None
    _request_id = ""

    def __init__(self) -> None:
        self._events: list[bytes] = []

    def charge(self, budget: Budget, caller: Caller, abort: Callable[[], None]) -> None:
        """Count what waits as of *caller*, whose client *abort* cuts off."""
        self._budget, self.caller, self._abort = budget, caller, abort

    @property
    def request_id(self) -> str:
        """The id of the HTTP request, in the log and the audit trail. Most are never asked for theirs."""
        if not self._request_id:
            self._request_id = new_request_id()
        return self._request_id

    @request_id.setter
    def request_id(self, given: str) -> None:
        self._request_id = given

    @property
    def counted(self) -> bool:
        """True if so much waits for the client that it is counted."""
        return self._held is not None and self._held.size > 0

    def sent(self) -> None:
        """The client has read all that was taken."""
        self._sending = 0
        if self._held is not None:
            self._held.hold(self._size)
        if self.track is not None:
            self.track.read()

    def release(self) -> None:
        """Nothing waits any more."""
        if self._held is not None:
            self._held.close()

    def push(self, message: bytes) -> bool:
        """Queue *message*; false if the stream has ended or too much waits already."""
        if not self.takes(message):
            return False
        self._add(message)
        return True

    def takes(self, message: bytes) -> bool:
        """Return True if there is room for *message*, which is not an answer, and count it."""
        return not self.ended and self._size <= QUEUE_LIMIT and self._fits(message)

    def fitting(self, response: bytes) -> bytes:
        """*response*, counted, or an error in its place if there is no room for it."""
        if self._fits(response) or self._held is None:
            return response
        identity = bytes(jsonrpc.members(jsonrpc.Raw(response)).get("id", b""))
        return jsonrpc.failure(identity, self._held.fault())

    def put(self, text: bytes) -> None:
        """Queue *text* of the stream, for which there is room."""
        self._events.append(text)
        self._size += len(text)
        self._wake()

    def put_all(self, texts: list[bytes]) -> None:
        """Queue *texts*; raises :class:`~mcpd.errors.LimitExceeded` if there is no room for them."""
        whole = b"".join(texts)
        if not self._fits(whole) and self._held is not None:
            raise self._held.fault()
        if whole:
            self.put(whole)

    def end(self) -> None:
        """Nothing more comes."""
        self.ended = True
        self._wake()

    def hang_up(self) -> None:
        """The client is gone: whatever still comes is dropped, or kept for its return by the track."""
        self.gone = True
        self._events.clear()
        self.release()
        self.end()
        if self.track is not None:
            self.track.leave(self)

    async def wait(self) -> None:
        """Return when there is something to take, or the end."""
        if not self._events and not self.ended:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def take(self) -> bytes:
        """All events that wait, as one piece of the stream."""
        taken = b"".join(self._events)
        self._events.clear()
        self._sending += self._size
        self._size = 0
        return taken

    def _fits(self, message: bytes) -> bool:
        size = self._size + self._sending + len(message)
        if self._held is None:
            if size <= COUNTED_FROM or self._budget is None or self.caller is None:
                return True
            self._held = self._budget.holding(self.caller, self._cut)
        return self._held.hold(size)

    def _cut(self, _fault: McpdError) -> None:
        # What the client does not read cannot be replaced by an error that it would read.
        if self._abort is not None:
            self._abort()

    def _add(self, message: bytes) -> None:
        self.put(event(message))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Exchange(EventQueue):
    """One POST: how it will be answered, and then the answer.

    It becomes a JSON reply if nothing but its answers came (and the client takes JSON), else a stream of events.
    *takes_json* and *takes_events* are what the client accepts.
    """

    streaming = False
    status = 0
    """The HTTP status once the whole reply is there."""
    body = b""
    headers: Headers = ()
    """Beyond those every reply has."""
    on_gone: Callable[[], None] | None = None
    on_reply: Callable[[Exchange], None] | None = None
    """Called once the whole reply is there, or it has become a stream."""
    streams: Streams | None = None
    """Those of the session it belongs to, which keep its stream, if it becomes one, for a client that comes back.
    Then a client that is gone does not end the call."""
    _expected = 1
    _batch = False

    def __init__(self, *, takes_json: bool, takes_events: bool) -> None:
        self._events = []
        self._answers: list[bytes] = []
        self.takes_json = takes_json
        self.takes_events = takes_events

    def opened(self, session: Session) -> None:
        """It opened *session*."""
        self.headers = session.headers

    def expect_batch(self, requests: int) -> None:
        """The POST is a batch with that many requests."""
        self._batch = True
        self._expected = requests

    def answer(self, response: bytes) -> None:
        """One of the expected responses."""
        self._expected -= 1
        if not self._batch and self.takes_json and not self.streaming and len(response) <= COUNTED_FROM:
            # This is what nearly every answer is like.
            if not self.status:
                self.status, self.body, self.ended = 200, response, True
                if self.on_reply is not None:
                    self.on_reply(self)
            return
        if self.gone or self.streaming:
            self._stream_answer(response)
            if self._expected <= 0:
                self._finish()
            return
        if not self._fits(response):
            response = self.fitting(response)
        self._answers.append(response)
        self._size += len(response)
        if self._expected <= 0:
            self._complete()

    def _stream_answer(self, response: bytes) -> None:
        if self.track is not None:
            self.track.answer(response)
        elif not self.ended:
            self._add(self.fitting(response))

    def cancelled(self, identity: bytes) -> None:
        """One of the expected responses will never come, because the client cancelled it."""
        if not self.takes_events:
            self.answer(jsonrpc.failure(identity, Cancelled("the client cancelled the request")))
            return
        self._expected -= 1
        if self._expected <= 0:
            self._complete()

    def push(self, message: bytes) -> bool:
        """Queue a message that comes before the answer; false if the client takes no events, or too much waits."""
        if not self.takes_events or self.status:
            return False
        if not self.streaming and not self.ended:
            self._stream()
        return super().push(message) if self.track is None else self.track.push(message)

    def refuse(self, fault: McpdError, identity: bytes = b"", headers: Headers = ()) -> None:
        """Fail the whole POST: *fault* as HTTP status and JSON-RPC error."""
        if not self._batch and not self.streaming:
            if not headers and fault.http_status in {429, 503}:
                headers = RETRY_AFTER
            self.reply(fault.http_status, jsonrpc.failure(identity, fault), headers)
        else:
            self.answer(jsonrpc.failure(identity, fault))

    def accept(self) -> None:
        """There were no requests in it: 202."""
        self.reply(202, b"")

    def reply(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """The whole HTTP reply."""
        if self.status or self.streaming:
            return
        self.status = status
        self.body = body
        self.headers += headers
        self.ended = True
        if self.on_reply is not None:
            self.on_reply(self)

    def hang_up(self) -> None:
        """The client is gone: whatever still comes is dropped."""
        super().hang_up()
        self._answers.clear()
        self.body = b""
        if self.on_gone is not None:
            self.on_gone()

    def _stream(self) -> None:
        self.streaming = True
        self._size = 0
        if self.streams is not None and not self.gone:
            self.track = self.streams.open(self)
        for response in self._answers:
            self._stream_answer(response)
        self._answers.clear()
        if self.on_reply is not None:
            self.on_reply(self)

    def _finish(self) -> None:
        """All answers were given to the stream."""
        if self.track is not None:
            self.track.end()
        else:
            self.end()

    def _complete(self) -> None:
        if self.streaming:
            self._finish()
        elif not self._answers or not self.takes_json:
            self._stream()
            self._finish()
        elif self._batch:
            self.reply(200, b"[" + b",".join(self._answers) + b"]")
        else:
            self.reply(200, self._answers[0])
