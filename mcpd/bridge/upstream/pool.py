# SPDX-License-Identifier: LGPL-2.1-or-later
"""Processes that several clients use at once."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from mcpd.bridge import jsonrpc
from mcpd.bridge.handshake.greeting import may_ask
from mcpd.bridge.upstream.audience import Audience, Member, ServerError
from mcpd.bridge.upstream.call import Answer
from mcpd.bridge.upstream.desk import Desk, Turn
from mcpd.bridge.upstream.queue import Queue
from mcpd.errors import LimitExceeded, ServiceUnavailable

if TYPE_CHECKING:
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.jsonrpc import Message
    from mcpd.bridge.parts import Parts
    from mcpd.bridge.upstream.call import Peer, Shape, Sink
    from mcpd.bridge.upstream.catalog import Shelf
    from mcpd.bridge.upstream.child import Child
    from mcpd.bridge.upstream.source import ServerInfo
    from mcpd.errors import McpdError

MOST_PROCESSES: Final = 4
"""Processes of a pool whose servers may ask their clients."""
MOST_WAITING: Final = 256
"""Calls of a caller that may wait for one of them."""


class PoolKey(NamedTuple):
    """The properties that clients must have in common to share processes."""

    server: str
    state: str
    """:attr:`ServerInfo.state`."""
    caller: Caller | None
    """``None`` if its callers share it, too."""
    greeting: bytes
    """:func:`greeting` for the handshake era, empty for a process of the modern one."""


class Pool:
    """Processes of one :class:`PoolKey`: none until a call needs one, started again after the last one died.

    A greeting that declares ``elicitation``, ``sampling`` or ``roots`` lets a server ask its client, and stdio does
    not tell in the course of which call. Then a process carries one call at a time, there are up to four of them, and
    further calls wait. Where several callers share them, a caller without a process gets a further one, so that nobody
    keeps others from being served. Otherwise one process carries all. The processes count for *caller* or, if several
    callers share the pool, each for the caller whose request started it. Made by
    :class:`~mcpd.bridge.upstream.pools.Pools`.
    """

    def __init__(self, key: PoolKey, info: ServerInfo, caller: Caller, parts: Parts, shelf: Shelf) -> None:
        self.key = key
        self.info = info
        self.result = shelf.result if shelf.confirmed else b""
        """The InitializeResult as the server wrote it; empty until it is known, and for the modern era. May be known
        (from the catalog) without a process."""
        self.closed = False
        """It takes no calls any more: its server changed, or is gone. Open another one."""
        self.is_asking = bool(key.greeting) and may_ask(key.greeting)
        self.away = 0
        """How many of its calls wait for clients that have to come back with answers; these keep further processes."""
        self._caller = caller
        self._parts = parts
        self._shelf = shelf
        self._loop = asyncio.get_running_loop()
        self._first = Desk(self, info, caller, parts, key.greeting, shelf)
        self._desks = [self._first]
        self._queue: Queue[Turn] = Queue(info.id, caller, parts)
        self._audience = Audience(self._ask, self._tell, one_caller=key.caller is not None, server=info.id)

    @property
    def caller(self) -> Caller:
        """The caller for whom the pool counts."""
        return self._caller

    # ------------------------------------------------------------------------------------ calls

    def request(
        self,
        owner: Peer | None,
        sink: Sink,
        identity: bytes,
        method: str,
        message: Message,
        *,
        timeout: float = 0.0,
        shape: Shape | None = None,
    ) -> None:
        """Send a request; a process is started for it if need be. Always answers or refuses at *sink* in the end.

        *owner* is who is told and asked by the server in the course of this call; its ``child_ended`` is called when
        nothing that it was asked needs an answer any more: the process has ended or, where it carries one call at a
        time, the call has. With ``None`` the server's requests are refused with -32601 and its notifications go to
        *sink*, where they can only belong to this call. On a modern process a notification with a ``subscriptionId``
        goes to the owner (or sink) of that request, with the id that *identity* was. *shape* edits the response after
        the policy of the server did. *timeout* in seconds, 0 for the server's.
        """
        if not self.is_asking:
            self._first.seat.request(sink, identity, method, message, owner=owner, timeout=timeout, shape=shape)
            return
        turn = Turn(sink, identity, method, message, owner, timeout, shape)
        if self.closed:
            self._queue.refuse(turn, self._gone())
        elif (not self._queue or self._is_due(turn)) and (desk := self._free_desk(turn)) is not None:
            desk.serve(turn)
        elif self._waiting(turn) >= MOST_WAITING:
            fault = LimitExceeded(f"{MOST_WAITING} calls wait for server {self.info.id} already")
            self._queue.refuse(turn, fault)
        else:
            self._queue.add(turn)

    def abandon(self, whose: Sink | Peer, fault: McpdError | None = None) -> None:
        """Forget what *whose* (a sink or an owner) asked for, and tell the server.

        Nothing more comes to a sink, beside *fault* if it is given.
        """
        self._queue.abandon(whose, fault)
        for desk in self._desks:
            turn_on = desk.turn
            if turn_on is None:
                desk.seat.abandon(whose, fault)
            elif turn_on.is_of(whose):
                turn_on.desk = None
                desk.seat.abandon(turn_on, fault)
                desk.finish(spoilt=True)

    def is_calling(self, owner: Peer) -> bool:
        """Return True if a call that concerns *owner* is in flight, or waits."""
        return self._queue.concerns(owner) or any(desk.seat.is_calling(owner) for desk in self._desks)

    def cancel(self, whose: Sink | Peer, identity: bytes, message: Message) -> None:
        """Cancel the call with the client's id *identity* that has *whose* as sink or owner, if there is just one.

        *message* is the ``notifications/cancelled``; its ``requestId`` is replaced.
        """
        if not self.is_asking:
            self._first.seat.cancel(whose, identity, message)
            return
        on = [desk.turn for desk in self._desks if desk.turn is not None]
        found = [turn for turn in on if turn.identity == identity and turn.is_of(whose)]
        found += self._queue.called(whose, identity)
        if len(found) != 1:
            return
        turn = found[0]
        if turn.desk is not None:
            turn.desk.seat.cancel(turn, identity, message)
        else:
            self._queue.cancel(turn)

    def _free_desk(self, turn: Turn) -> Desk | None:
        """A process that carries no call: the one that knows the owner of *turn*, or that runs, or a further one."""
        free, owner = [desk for desk in self._desks if desk.turn is None], turn.owner
        if free and self._may_have(turn):
            return max(free, key=lambda desk: (owner is not None and desk.last is owner, desk.seat.child is not None))
        limit, payer = self._parts.options.max_children, turn.caller or self._caller
        may_be = len(self._desks) < MOST_PROCESSES + self.away or self._is_due(turn)
        if not free and may_be and self._parts.census.has_room(payer, limit):
            desk = Desk(self, self.info, payer, self._parts, self.key.greeting, self._shelf)
            self._desks.append(desk)
            return desk
        return None

    def _may_have(self, turn: Turn) -> bool:
        """Return whether *turn* may have a free process; those beyond the usual number are for callers without one."""
        busy = sum(desk.turn is not None for desk in self._desks)
        return self.key.caller is not None or busy < MOST_PROCESSES + self.away or self._is_due(turn)

    def _is_due(self, turn: Turn) -> bool:
        """Return whether the caller of *turn* shares the processes with others and has none now."""
        return self.key.caller is None and not any(
            desk.turn is not None and desk.turn.caller == turn.caller for desk in self._desks
        )

    def _waiting(self, turn: Turn) -> int:
        """Return how many calls of the caller of *turn* wait."""
        if self.key.caller is not None:
            return len(self._queue)
        return sum(each.caller == turn.caller for each in self._queue)

    def _first_waiting(self) -> Turn:
        """Return the oldest waiting call; where callers share, that of the caller with the fewest processes."""
        if self.key.caller is not None:
            return next(iter(self._queue))
        busy = Counter(desk.turn.caller for desk in self._desks if desk.turn is not None)
        return min(self._queue, key=lambda turn: busy[turn.caller])

    def turned(self, desk: Desk) -> None:
        """See :class:`~mcpd.bridge.upstream.desk.Floor`."""
        if self._queue:
            # From the loop, or each that is refused would be one deeper in the stack.
            self._loop.call_soon(self._next, desk)

    def _next(self, desk: Desk) -> None:
        if self._queue and desk.turn is None and desk in self._desks and self._may_have(turn := self._first_waiting()):
            self._queue.remove(turn)
            desk.serve(turn)

    # ------------------------------------------------------------------------------------ members

    def join(self, member: Member) -> None:
        """Let *member* hear what belongs to no call. The pool stays, if perhaps without process, until all left."""
        self._audience.join(member)

    def leave(self, member: Member) -> None:
        """The opposite, which also ends the subscriptions of *member*."""
        self._audience.leave(member)

    def subscriptions(self, member: Member) -> set[str]:
        """Return the subscriptions of *member*."""
        return self._audience.subscriptions(member)

    async def subscribe(self, member: Member, uri: str) -> None:
        """Let *member*, which joined, hear of updates of *uri*.

        Raises :class:`~mcpd.errors.LimitExceeded`, or the server's error as :class:`~.audience.ServerError`.
        """
        await self._audience.subscribe(member, uri)

    async def unsubscribe(self, member: Member, uri: str) -> None:
        """The opposite. Raises the server's error as :class:`~mcpd.bridge.upstream.audience.ServerError`."""
        await self._audience.unsubscribe(member, uri)

    async def log_level(self, member: Member, level: str) -> None:
        """Let *member*, which joined, hear log messages from *level* on; the server is told the most verbose of all.

        Raises :class:`~mcpd.errors.InvalidArgument`, or the server's error as
        :class:`~mcpd.bridge.upstream.audience.ServerError`.
        """
        await self._audience.log_level(member, level)

    def heard(self, child: Child, owner: Peer | None, method: str, message: Message) -> None:
        """See :class:`~mcpd.bridge.upstream.desk.Floor`."""
        if owner is None:
            self._audience.hear(method, message)
        elif self._audience.wants(owner, method, message):
            owner.server_notification(child, method, message)

    def started(self, desk: Desk, child: Child) -> None:
        """See :class:`~mcpd.bridge.upstream.desk.Floor`."""
        self.result = desk.seat.result
        for method, params in self._audience.wishes():
            if desk is self._first or method == "logging/setLevel":
                _send(child, Answer(), method, params)

    def _tell(self, method: str, params: dict[str, str]) -> None:
        for desk in self._desks:
            if desk.seat.child is not None:
                _send(desk.seat.child, Answer(), method, params)

    async def _ask(self, method: str, params: dict[str, str]) -> None:
        response = await self.ask(method, jsonrpc.encode(params))
        if "error" in response:
            raise ServerError(response["error"])

    # ------------------------------------------------------------------------------------ the processes

    async def ready(self, caller: Caller) -> None:
        """Wait until :attr:`result` is known; start a process for *caller* if necessary.

        Raises the :class:`~mcpd.errors.McpdError` of a failed start.
        """
        if self.closed:
            raise self._gone()
        if not self.result:
            await self._first.seat.fill(caller)

    async def ask(self, method: str, params: bytes, timeout: float = 0.0) -> Message:  # noqa: ASYNC109 -- the call's own
        """Send a request of the bridge itself and return the response, which may be an error.

        A process is started if need be. Raises the McpdError that tells why it cannot.
        """
        await self._first.seat.fill()
        child = self._first.seat.child
        answer = Answer()
        if child is None or not child.request(
            answer, b"0", method, jsonrpc.request(b"0", method, params), timeout=timeout
        ):
            raise ServiceUnavailable(f"server {self.info.id} ended: try again")
        return await answer.future

    @property
    def is_needed(self) -> bool:
        """Somebody uses it, or a process of it is still there."""
        return bool(self._audience) or not all(desk.seat.empty for desk in self._desks)

    @property
    def processes(self) -> int:
        """Number of its processes that accept calls."""
        return sum(desk.seat.child is not None for desk in self._desks)

    @property
    def idle_timeout(self) -> float:
        """Seconds without a call after which its processes are of no use."""
        return self._first.seat.idle_timeout

    def due(self, now: float) -> float:
        """When its processes will have been unused for long enough, as things stand."""
        if self._queue or self._audience.is_waiting:
            return now + self.idle_timeout
        dues = [due for desk in self._desks if (due := desk.seat.due(now)) != math.inf]
        if dues:
            return max(dues)
        return math.inf if self._audience else max(desk.seat.used for desk in self._desks) + self.idle_timeout

    def rest(self) -> None:
        """Stop its processes, which the next call starts again."""
        for desk in self._desks:
            desk.seat.rest()
        self._desks = [self._first]

    def retire(self, *, changed: bool = False) -> None:
        """Take no more calls; the processes end when those in flight have. Its server has *changed*, or is gone."""
        self.closed = True
        self._audience.end(changed=changed)
        self._queue.close(self._gone())
        for desk in self._desks:
            desk.seat.retire(self._gone())

    async def close(self, reason: str) -> None:
        """Stop it for good; calls in flight fail with *reason*."""
        self.closed = True
        self._audience.end()
        self._queue.close(ServiceUnavailable(reason))
        for desk in self._desks:
            await desk.seat.close(reason)

    def _gone(self) -> ServiceUnavailable:
        return ServiceUnavailable(f"server {self.info.id} has changed or is gone: try again")


def _send(child: Child, sink: Answer, method: str, params: dict[str, str]) -> bool:
    return child.request(sink, b"0", method, jsonrpc.request(b"0", method, jsonrpc.encode(params)))
