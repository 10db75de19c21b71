# SPDX-License-Identifier: LGPL-2.1-or-later
"""The reply side of ``stdio.sock``: exchanges whose answers are lines of a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from mcpd.bridge import jsonrpc
from mcpd.bridge.eras import META_VERSION
from mcpd.bridge.exchange import Exchange
from mcpd.bridge.jsonrpc import Raw
from mcpd.errors import InvalidRequest, McpdError

if TYPE_CHECKING:
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.exchange import Headers
    from mcpd.bridge.handshake.session import Session
    from mcpd.bridge.jsonrpc import Message

MODERN: Final = META_VERSION.encode()


class Client(Protocol):
    """The connection behind a line."""

    caller: Caller

    def send(self, message: bytes) -> bool:
        """Send *message*, which is no answer; false if the client does not read."""

    def send_needed(self, message: bytes) -> None:
        """Send *message*. A client that does not read what it asks for is cut off."""

    def done(self, line: Line) -> None:
        """All of *line* was answered."""

    def opened(self, session: Session) -> None:
        """A message opened *session*."""

    def opened_again(self, fault: Raw | None) -> None:
        """Another session was opened in the place of one that ended, or *fault* says why not."""

    def session_ended(self, outlet: Outlet) -> None:
        """The session of *outlet* has ended."""


class Line(Exchange):
    """Where the answers to one message go, and what its server says meanwhile: to the connection, as lines."""

    __slots__ = ("_client", "identity", "is_modern", "is_stream")

    def __init__(
        self, client: Client, *, identity: bytes = b"", is_modern: bool = False, is_stream: bool = False
    ) -> None:
        super().__init__(takes_json=True, takes_events=True)
        self.streaming = True
        self.identity = identity
        self.is_modern = is_modern
        self.is_stream = is_stream
        """It is answered only when it is cancelled."""
        self.caller = client.caller
        self._client = client

    def opened(self, session: Session) -> None:
        """It opened *session*."""
        self._client.opened(session)

    def push(self, message: bytes) -> bool:
        """Send *message*, unless the client does not read."""
        return not self.ended and self._client.send(message)

    def answer(self, response: bytes) -> None:
        """Send one of the expected responses."""
        if not self.ended:
            self._client.send_needed(response)
            self._one_less()

    def cancelled(self, identity: bytes) -> None:
        """Nothing is said of what the client cancelled."""
        self._one_less()

    def refuse(self, fault: McpdError, identity: bytes = b"", headers: Headers = ()) -> None:
        """Send *fault* as the response."""
        self.answer(jsonrpc.failure(identity, fault))

    def accept(self) -> None:
        """Nothing is to be answered."""
        self.reply(202, b"")

    def reply(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """Send *body* as the response to the whole message."""
        self._expected = 1
        if body:
            self.answer(body)
        else:
            self._one_less()

    def end(self) -> None:
        """Nothing more comes."""
        super().end()
        self._client.done(self)

    def _one_less(self) -> None:
        self._expected -= 1
        if self._expected <= 0 and not self.ended:
            self.end()


class Outlet(Line):
    """Where goes what a session says that belongs to no message of its client."""

    def end(self) -> None:
        """The session has ended."""
        super().end()
        self._client.session_ended(self)


class Again(Line):
    """Opens another session in the place of one that ended unused, which its client need not know."""

    def answer(self, response: bytes) -> None:
        """Take the InitializeResult, or why there is none."""
        if not self.ended:
            self._one_less()
            self._client.opened_again(jsonrpc.members(Raw(response)).get("error"))


# ---------------------------------------------------------------------------------------- what came


class Hello(msgspec.Struct):
    """The first line."""

    server: str
    environment: dict[str, str] = {}
    """Variables of the client for a process that is its own."""


def hello(line: bytes) -> Hello:
    """Parse the first line. Raises :class:`~mcpd.errors.InvalidRequest`."""
    try:
        return msgspec.json.decode(line, type=Hello)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise no_server() from None


def no_server() -> InvalidRequest:
    """The error of a client that does not name its server."""
    return InvalidRequest('the first line names the server: {"server": ID}')


def modern(line: bytes) -> tuple[str, bytes, bool]:
    """The revision that a request says it is of, its id, and whether its answer is a stream; empty if it says none."""
    message = _message(line)
    meta = jsonrpc.members(jsonrpc.members(message.get("params")).get("_meta"))
    is_stream = jsonrpc.method_of(message) == "subscriptions/listen"
    return jsonrpc.text(meta.get(META_VERSION)), id_of(line), is_stream


def cancelled(line: bytes) -> bytes:
    """The id of the request that *line* cancels; empty if it cancels none."""
    message = _message(line)
    if jsonrpc.method_of(message) != "notifications/cancelled":
        return b""
    return bytes(jsonrpc.members(message.get("params")).get("requestId", b""))


def is_initialize(line: bytes) -> bool:
    """Return True if *line* opens a session."""
    return b"initialize" in line and jsonrpc.method_of(_message(line)) == "initialize"


def id_of(line: bytes) -> bytes:
    """The id of a request; empty if it has none."""
    return bytes(_message(line).get("id", b""))


def _message(line: bytes) -> Message:
    try:
        found = jsonrpc.parse_body(line)
    except McpdError:
        return {}
    return found if isinstance(found, dict) else {}
