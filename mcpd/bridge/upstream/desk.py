# SPDX-License-Identifier: LGPL-2.1-or-later
"""One process of a pool: whose call is on, and to whom goes what it says by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mcpd.bridge import jsonrpc
from mcpd.bridge.eras import META_SUBSCRIPTION
from mcpd.bridge.jsonrpc import Message, Raw
from mcpd.bridge.upstream.queue import Waiting
from mcpd.bridge.upstream.seat import Seat
from mcpd.errors import UnknownMethod

if TYPE_CHECKING:
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.parts import Parts
    from mcpd.bridge.upstream.call import Peer
    from mcpd.bridge.upstream.catalog import Shelf
    from mcpd.bridge.upstream.child import Child
    from mcpd.bridge.upstream.source import ServerInfo
    from mcpd.errors import McpdError


class Floor(Protocol):
    """The pool that a desk stands in."""

    is_asking: bool
    """Its servers may ask their clients, so a process carries one call at a time."""

    def turned(self, desk: Desk) -> None:
        """The call of *desk* is over."""

    def heard(self, child: Child, owner: Peer | None, method: str, message: Message) -> None:
        """The process said something that no call asked for; *owner* is whom all its calls concern, if it is one."""

    def started(self, desk: Desk, child: Child) -> None:
        """*child* takes calls from now on."""


@runtime_checkable
class Declaring(Protocol):
    """An owner of calls that has to know what its client would have had to declare."""

    def undeclared(self, method: str, message: Message) -> None:
        """The server asked *method* in the course of its call, and was refused as nothing was declared."""


class Turn(Waiting):
    """A call that has a process to itself, or waits for one. It is the sink of that call."""

    desk: Desk | None = None

    @property
    def caller(self) -> Caller | None:
        """See :class:`~mcpd.bridge.upstream.call.Sink`."""
        return self.sink.caller

    @property
    def request_id(self) -> str:
        """See :class:`~mcpd.bridge.upstream.call.Sink`."""
        return self.sink.request_id

    def answer(self, response: bytes) -> None:
        """See :class:`~mcpd.bridge.upstream.call.Sink`."""
        self._over()
        self.sink.answer(response)

    def refuse(self, fault: McpdError, identity: bytes = b"") -> None:
        """See :class:`~mcpd.bridge.upstream.call.Sink`."""
        self._over()
        self.sink.refuse(fault, identity)

    def push(self, message: bytes) -> bool:
        """See :class:`~mcpd.bridge.upstream.call.Sink`."""
        return self.sink.push(message)

    def cancelled(self, identity: bytes) -> None:
        """See :class:`~mcpd.bridge.upstream.call.Sink`."""
        self._over(spoilt=True)
        self.sink.cancelled(identity)

    def _over(self, *, spoilt: bool = False) -> None:
        desk, self.desk = self.desk, None
        if desk is not None:
            desk.finish(spoilt=spoilt)


class Desk:
    """The seat of one process of a pool, and the peer of whatever takes it."""

    def __init__(
        self, floor: Floor, info: ServerInfo, caller: Caller, parts: Parts, greeting: bytes, shelf: Shelf
    ) -> None:
        self._floor = floor
        self._is_modern = not greeting
        self.seat = Seat(info, caller, parts, self, greeting, shelf, self._started)
        self.turn: Turn | None = None
        """The call that it carries, if it carries one at a time."""
        self.last: Peer | None = None
        """Whom the last one concerned."""
        self._retired: Child | None = None
        """The process that took no more calls last, and may still carry this one."""

    def serve(self, turn: Turn) -> None:
        """Carry the call *turn*, and no other until it is over."""
        self.turn, turn.desk = turn, self
        self.last = turn.owner
        message, turn.message = turn.message, {}
        self.seat.request(
            turn, turn.identity, turn.method, message, owner=turn.owner, timeout=turn.timeout, shape=turn.shape
        )

    def finish(self, *, spoilt: bool) -> None:
        """The call is over. A process that may still work at it, as it was cancelled, is *spoilt* for others."""
        turn, self.turn = self.turn, None
        child = self.seat.child
        if turn is not None and turn.owner is not None:
            for each in (child, self._retired):
                if each is not None:
                    turn.owner.child_ended(each)
        if spoilt and child is not None:
            # What it asks from now on could not be told from what it asks in the course of the next call.
            # One that only starts has not seen the call.
            self.seat.rest()
        self._floor.turned(self)

    # ------------------------------------------------------------------------------------ from the server

    def server_request(self, child: Child, method: str, message: Message) -> None:
        """Answer ``ping``; pass on what belongs to the one call in flight; refuse everything else."""
        original = bytes(message["id"])
        owner = self.turn.owner if self.turn is not None and self.seat.child in {child, None} else None
        if method == "ping":
            child.reply(original, {"jsonrpc": Raw(b'"2.0"'), "result": Raw(b"{}")})
        elif owner is not None:
            self.seat.spoil()
            owner.server_request(child, method, message)
        else:
            child.reply_error(
                original, UnknownMethod.jsonrpc_code, "there is no client to ask: no capability was declared"
            )
            call = child.calls.only
            sole: object = call.owner if call is not None else None
            if isinstance(sole, Declaring):
                sole.undeclared(method, message)

    def server_notification(self, child: Child, method: str, message: Message) -> None:
        """Pass on what belongs to a call, and let the members hear the rest."""
        if self._is_modern and self._of_subscription(child, method, message):
            return
        self.seat.changed(method)
        if method == "notifications/cancelled":
            if self.turn is not None and self.turn.owner is not None:
                self.turn.owner.server_notification(child, method, message)
        elif method.endswith("/list_changed") or method == "notifications/resources/updated":
            self._floor.heard(child, None, method, message)
        else:
            self._tell(child, method, message)

    def child_retired(self, child: Child) -> None:
        """The next call starts another process."""
        self.seat.vacate(child)
        self._retired = child

    def child_ended(self, child: Child) -> None:
        """See :class:`~mcpd.bridge.upstream.call.Peer`."""
        turn = self.turn
        if turn is not None and turn.owner is not None:
            turn.owner.child_ended(child)
        if self._retired is child:
            self._retired = None

    def _tell(self, child: Child, method: str, message: Message) -> None:
        """Pass on what a server says in the course of a call, where it can be only one client's."""
        call = child.calls.only
        if call is not None and call.owner is None:
            call.sink.push(jsonrpc.encode(message))
        else:
            self._floor.heard(child, child.calls.owner, method, message)

    def _of_subscription(self, child: Child, method: str, message: Message) -> bool:
        """Pass on what the modern era tells the listener of a subscription, under the id that this one knows."""
        params = jsonrpc.members(message.get("params"))
        meta = jsonrpc.members(params.get("_meta"))
        is_end = method == "notifications/cancelled"
        own = params.get("requestId") if is_end else meta.get(META_SUBSCRIPTION)
        call = child.calls.get(bytes(own).strip(b'"')) if own is not None else None
        if call is None:
            return False
        self.seat.changed(method)
        if not is_end:
            meta[META_SUBSCRIPTION] = Raw(call.id)
            message = jsonrpc.with_param(message, "_meta", jsonrpc.encode(meta))
        if call.owner is not None:
            call.owner.server_notification(child, method, message)
        else:
            call.sink.push(jsonrpc.encode(message))
        return True

    def _started(self, child: Child) -> None:
        self._floor.started(self, child)
