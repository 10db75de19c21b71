# SPDX-License-Identifier: LGPL-2.1-or-later
"""A request on its way, where its answer goes, and who is asked by its server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, TypeAlias

from mcpd.bridge import jsonrpc
from mcpd.errors import McpdError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.bridge.callers import Caller
    from mcpd.bridge.child import Child
    from mcpd.bridge.jsonrpc import Message, Raw


class Sink(Protocol):
    """Where the answer to a call goes."""

    caller: Caller | None
    """Who made the call; ``None`` for the bridge itself."""

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


class Peer(Protocol):
    """The side a server talks to by itself: a session, or nobody in the pool."""

    def server_request(self, child: Child, method: str, message: Message) -> None:
        """Answer, or have answered, the server's request through :meth:`Child.reply`."""

    def server_notification(self, child: Child, method: str, message: Message) -> None:
        """Take a notification other than progress."""

    def child_ended(self, child: Child) -> None:
        """Send no more calls to *child*: it is gone, or about to be stopped."""


class Call:
    """A request on its way. *shape* edits its response before it is given to *sink*."""

    __slots__ = ("id", "method", "params", "shape", "sink", "started", "timeout", "token", "touched")

    def __init__(
        self,
        sink: Sink,
        identity: bytes,
        method: str,
        params: Raw | None,
        token: bytes,
        now: float,
        timeout: float,
        shape: Shape | None,
    ) -> None:
        self.sink = sink
        self.id = identity
        self.method = method
        self.params = params
        """As the client sent them."""
        self.token = token
        self.started = self.touched = now
        self.timeout = timeout
        self.shape = shape


class Answer:
    """The sink of a call that the bridge itself makes."""

    caller: Caller | None = None

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
