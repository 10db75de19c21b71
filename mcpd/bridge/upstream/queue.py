# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests that wait for a process, and how those end that no process gets."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar

from mcpd.bridge.observe.watch import Outcome
from mcpd.bridge.tasks import fault_of
from mcpd.bridge.upstream.call import Call

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.bridge.callers import Caller
    from mcpd.bridge.jsonrpc import Message
    from mcpd.bridge.observe.watch import Watch
    from mcpd.bridge.parts import Parts
    from mcpd.bridge.upstream.call import Peer, Shape, Sink
    from mcpd.errors import McpdError


class Waiting:
    """A request that no process has got yet."""

    __slots__ = ("identity", "message", "method", "owner", "shape", "sink", "size", "timeout")

    def __init__(
        self,
        sink: Sink,
        identity: bytes,
        method: str,
        message: Message,
        owner: Peer | None,
        timeout: float,
        shape: Shape | None,
    ) -> None:
        self.sink = sink
        self.identity = identity
        self.method = method
        self.message = message
        self.owner = owner
        self.timeout = timeout
        self.shape = shape
        self.size = sum(len(memoryview(raw)) for raw in message.values())
        """Bytes that it takes while it waits."""

    def is_of(self, whose: Sink | Peer) -> bool:
        """Return True if *whose* is where its answer goes, or whom it concerns."""
        return whose is self.sink or whose is self.owner


W = TypeVar("W", bound=Waiting)


class Queue(Generic[W]):
    """The requests that wait for a process of *server*, the oldest first; *caller* pays for the memory."""

    def __init__(self, server: str, caller: Caller, parts: Parts) -> None:
        self._server = server
        self._watch = parts.watch
        self._budget = parts.budget
        self._waiting: dict[W, None] = {}
        self._size = 0
        self._held = parts.budget.holding(caller, self.refuse_all)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[W]:
        return iter(list(self._waiting))

    def charge(self, caller: Caller) -> None:
        """Count requests that wait from now on for *caller*; none may be waiting."""
        self._held.close()
        self._held = self._budget.holding(caller, self.refuse_all)

    def add(self, request: W) -> bool:
        """Have *request* wait; false if there is no room for it, upon which it was refused."""
        if not self._held.hold(self._size + request.size):
            self.refuse(request, self._held.fault())
            return False
        self._size += request.size
        self._waiting[request] = None
        return True

    def remove(self, request: W) -> None:
        """*request* waits no longer."""
        del self._waiting[request]
        self._size -= request.size
        self._held.hold(self._size)

    def take_all(self) -> list[W]:
        """All of them, which wait no longer."""
        taken = list(self._waiting)
        self._waiting.clear()
        self._size = 0
        self._held.hold(0)
        return taken

    def concerns(self, owner: Peer) -> bool:
        """Return True if one of them concerns *owner*."""
        return any(request.owner is owner for request in self._waiting)

    def called(self, whose: Sink | Peer, identity: bytes) -> list[W]:
        """Those of *whose* that have the client's id *identity*."""
        return [request for request in self._waiting if request.identity == identity and request.is_of(whose)]

    def cancel(self, request: W) -> None:
        """The client cancelled *request*."""
        self.remove(request)
        self._watch.ended(self._server, _call_of(request), Outcome.CANCELLED, b"")
        request.sink.cancelled(request.identity)

    def abandon(self, whose: Sink | Peer, fault: McpdError | None) -> None:
        """Forget those of *whose*; *fault* is their answer, if there is to be one."""
        for request in [request for request in self._waiting if request.is_of(whose)]:
            self.remove(request)
            if fault is None:
                self._watch.ended(self._server, _call_of(request), Outcome.CANCELLED, b"")
            else:
                _call_of(request).fail(fault, Outcome.CANCELLED, self._server, self._watch)

    def refuse(self, request: W, fault: McpdError) -> None:
        """No process gets *request*, which does not wait any more, because of *fault*."""
        turn_away(
            request.sink,
            request.identity,
            request.method,
            request.message,
            fault,
            server=self._server,
            watch=self._watch,
        )

    def refuse_all(self, fault: McpdError) -> None:
        """Refuse all that wait."""
        for request in self.take_all():
            self.refuse(request, fault)

    def close(self, fault: McpdError) -> None:
        """Refuse all, and let none wait any more."""
        self.refuse_all(fault)
        self._held.close()


def _call_of(request: Waiting) -> Call:
    """*request* as the watch sees it; no time has passed, as that counts from when a server gets it."""
    return Call(
        request.sink, request.identity, request.method, request.message.get("params"), b"", monotonic(), 0.0, None
    )


def turn_away(
    sink: Sink, identity: bytes, method: str, message: Message, fault: McpdError, *, server: str, watch: Watch
) -> None:
    """Refuse the request *message* with *fault*, as no process of *server* gets it.

    As with a :class:`~mcpd.bridge.upstream.call.Call`, nothing that goes wrong at *sink* is raised.
    """
    try:
        watch.refused(sink.caller, server, method, message.get("params"), fault.word, sink.request_id)
        sink.refuse(fault, identity)
    except Exception as error:  # noqa: BLE001 -- logged by fault_of
        fault_of(error, server, sink.request_id)
