# SPDX-License-Identifier: LGPL-2.1-or-later
"""A request on its way, where its answer goes, and who is asked by its server."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from mcpd.bridge import jsonrpc
from mcpd.bridge.observe.watch import Outcome
from mcpd.bridge.tasks import fault_of
from mcpd.errors import McpdError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.bridge.callers import Caller
    from mcpd.bridge.jsonrpc import Message, Raw
    from mcpd.bridge.observe.watch import Watch
    from mcpd.bridge.upstream.child import Child

LONGEST_CALL: Final = 7200.0
"""Seconds after which a call ends however much progress its server reports."""


class Sink(Protocol):
    """Where the answer to a call goes."""

    @property
    def caller(self) -> Caller | None:
        """The caller; ``None`` for the bridge itself."""

    @property
    def request_id(self) -> str:
        """The id of the HTTP request that the call came in; empty for one of the bridge itself."""

    def answer(self, response: bytes) -> None:
        """Take the response, with the caller's id."""

    def refuse(self, fault: McpdError, identity: bytes = b"") -> None:
        """Take *fault* instead of a response, because no server saw the request."""

    def push(self, message: bytes) -> bool:
        """Take a message that belongs to the call; false if it cannot."""

    def cancelled(self, identity: bytes) -> None:
        """Learn that no response will come, because the caller cancelled."""


Shape: TypeAlias = "Callable[[Message], None]"
"""Edits the members of a response in place."""


def both(first: Shape | None, second: Shape | None) -> Shape | None:
    """One after the other."""
    if first is None or second is None:
        return first or second

    def in_turn(message: Message) -> None:
        first(message)
        second(message)

    return in_turn


class Peer(Protocol):
    """The side that a server talks to by itself."""

    def server_request(self, child: Child, method: str, message: Message) -> None:
        """Answer, or have answered, the server's request through :meth:`Child.reply`."""

    def server_notification(self, child: Child, method: str, message: Message) -> None:
        """Take a notification other than progress."""

    def child_ended(self, child: Child) -> None:
        """Nothing that *child* asked needs an answer any more. May be called again."""


class Host(Peer, Protocol):
    """The peer whose process it is."""

    def child_retired(self, child: Child) -> None:
        """Send no more calls to *child*, which may still have some to answer and, for these, something to ask."""


class Call:
    """A request on its way. *shape* edits its response before it is given to *sink*; *owner* is whom it concerns.

    :meth:`respond` and :meth:`fail` are the boundary between those who share a server: what goes wrong with a shape or
    a sink is logged, fails this call at most, and is never raised to where the answers of others are on their way.
    """

    __slots__ = ("id", "method", "owner", "params", "shape", "sink", "size", "started", "timeout", "token", "touched")

    def __init__(  # noqa: PLR0913, PLR0917 -- made in one place, for every call
        self,
        sink: Sink,
        identity: bytes,
        method: str,
        params: Raw | None,
        token: bytes,
        now: float,
        timeout: float,
        shape: Shape | None,
        owner: Peer | None = None,
    ) -> None:
        self.sink = sink
        self.size = 0
        """Bytes of the line that the server got."""
        self.id = identity
        self.method = method
        self.params = params
        """As the client sent them."""
        self.token = token
        self.started = self.touched = now
        self.timeout = timeout
        self.shape = shape
        self.owner = owner
        """Who is told and asked by the server in the course of it, where several share the server."""

    @property
    def due(self) -> float:
        """When it times out, as things stand; a subscription, which has no time-out, never does."""
        return math.inf if self.timeout == math.inf else min(self.touched + self.timeout, self.started + LONGEST_CALL)

    def respond(self, message: Message, server: str, watch: Watch) -> None:
        """Give the response *message* of *server*, edited by the shape, to the sink."""
        response = b""
        try:
            if self.shape is not None:
                self.shape(message)
            response = jsonrpc.response_line(message, self.id)
            watch.ended(server, self, Outcome.ERROR if "error" in message else Outcome.RESULT, response)
            self.sink.answer(response)
        except Exception as error:  # noqa: BLE001 -- logged by fault_of
            fault = fault_of(error, server, self.sink.request_id)
            if not response:
                self.fail(fault, Outcome.BROKEN, server, watch)

    def fail(self, fault: McpdError, outcome: Outcome, server: str, watch: Watch) -> None:
        """Give *fault* to the sink, as *server* will not answer."""
        try:
            watch.ended(server, self, outcome, b"")
            self.sink.answer(jsonrpc.failure(self.id, fault))
        except Exception as error:  # noqa: BLE001 -- logged by fault_of
            fault_of(error, server, self.sink.request_id)


class Answer:
    """The sink of a call that the bridge itself makes."""

    caller: Caller | None = None
    request_id = ""

    def __init__(self) -> None:
        self.future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def answer(self, response: bytes) -> None:
        """Take the response."""
        if not self.future.done():
            self.future.set_result(jsonrpc.parse_line(response)[0])

    def refuse(self, fault: McpdError, identity: bytes = b"") -> None:
        """Take the fault as a response."""
        self.answer(jsonrpc.failure(identity, fault))

    def push(self, message: bytes) -> bool:
        """Take nothing else."""
        return False

    def cancelled(self, identity: bytes) -> None:
        """Take it as a response."""
        self.answer(jsonrpc.failure(identity, McpdError("cancelled")))
