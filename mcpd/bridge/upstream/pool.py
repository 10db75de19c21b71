# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pools: processes that several clients use at once, and their routing."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, runtime_checkable

from mcpd.bridge import eras, jsonrpc
from mcpd.bridge.eras import META_SUBSCRIPTION
from mcpd.bridge.handshake.greeting import CLIENT, POOL_GREETING, may_ask
from mcpd.bridge.jsonrpc import Message, Raw
from mcpd.bridge.tasks import fault_of
from mcpd.bridge.upstream.audience import Audience, Member, ServerError
from mcpd.bridge.upstream.call import Answer
from mcpd.bridge.upstream.catalog import Catalog
from mcpd.bridge.upstream.counts import START_TIMEOUT, Sweeper
from mcpd.bridge.upstream.slot import OF_PAYER, ProcessSlot, Queue, Waiting
from mcpd.errors import HeldBack, LimitExceeded, McpdError, ServiceUnavailable, SpawnFailed, TimedOut, UnknownMethod

if TYPE_CHECKING:
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.parts import Parts
    from mcpd.bridge.upstream.call import Peer, Shape, Sink
    from mcpd.bridge.upstream.catalog import CachedCatalog
    from mcpd.bridge.upstream.child import Child
    from mcpd.bridge.upstream.source import ServerInfo

log = logging.getLogger(__name__)

MOST_PROCESSES: Final = 4
"""Processes of a pool whose server may ask its clients."""
MOST_WAITING: Final = 256
"""Calls of a caller that may wait for a process of such a pool."""
POOLS_PER_PROCESS: Final = 4
"""Pools, most of them without a process, that a caller may have for each process that it may have."""
ADMITTED_FOR: Final = 300.0
"""Seconds for which a caller may use a process of all, before it is asked again whether it may."""
PROBE_TIMEOUT: Final = 5.0
"""Seconds in which a server answers ``server/discover`` if it knows it."""
_ENVELOPE: Final = jsonrpc.encode({
    "_meta": {
        eras.META_VERSION: eras.MODERN,
        eras.META_CLIENT: CLIENT,
        eras.META_CAPABILITIES: {},
    }
})  # fmt: skip


class PoolCallbacks(Protocol):
    """Callbacks of a pool for its processes."""

    is_asking: bool
    """Its server may ask its clients, so a process carries one call at a time."""

    def turned(self, pooled: PooledProcess) -> None:
        """The call of the process *pooled* is over."""

    def heard(self, child: Child, owner: Peer | None, method: str, message: Message) -> None:
        """The process said something that no call asked for; *owner* is whom all its calls concern, if it is one."""

    def started(self, pooled: PooledProcess, child: Child) -> None:
        """*child* takes calls from now on."""


@runtime_checkable
class Declaring(Protocol):
    """An owner of calls that has to know what its client would have had to declare."""

    def undeclared(self, method: str, message: Message) -> None:
        """The server asked *method* in the course of its call, and was refused as nothing was declared."""


class Turn(Waiting):
    """A call that has a process to itself, or waits for one. It is the sink of that call."""

    pooled: PooledProcess | None = None

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
        pooled, self.pooled = self.pooled, None
        if pooled is not None:
            pooled.finish(spoilt=spoilt)


class PooledProcess:
    """One process of a pool; routes its own messages to the client whose call is active, or to the pool's members."""

    def __init__(
        self,
        callbacks: PoolCallbacks,
        info: ServerInfo,
        caller: Caller,
        parts: Parts,
        greeting: bytes,
        cached: CachedCatalog,
    ) -> None:
        self._callbacks = callbacks
        self._is_modern = not greeting
        self.slot = ProcessSlot(info, caller, parts, self, greeting, cached, self._started)
        self.turn: Turn | None = None
        """The call that it carries, if it carries one at a time."""
        self.last: Peer | None = None
        """Whom the last one concerned."""
        self._retired: Child | None = None
        """The process that took no more calls last, and may still carry this one."""

    def serve(self, turn: Turn) -> None:
        """Carry the call *turn*, and no other until it is over."""
        self.turn, turn.pooled = turn, self
        self.last = turn.owner
        message, turn.message = turn.message, {}
        self.slot.request(
            turn, turn.identity, turn.method, message, owner=turn.owner, timeout=turn.timeout, shape=turn.shape
        )

    def finish(self, *, spoilt: bool) -> None:
        """The call is over. A process that may still work at it, as it was cancelled, is *spoilt* for others."""
        turn, self.turn = self.turn, None
        child = self.slot.child
        if turn is not None and turn.owner is not None:
            for each in (child, self._retired):
                if each is not None:
                    turn.owner.child_ended(each)
        if spoilt and child is not None:
            # What it asks from now on could not be told from what it asks in the course of the next call.
            # One that only starts has not seen the call.
            self.slot.rest()
        self._callbacks.turned(self)

    # ------------------------------------------------------------------------------------ from the server

    def server_request(self, child: Child, method: str, message: Message) -> None:
        """Answer ``ping``; pass on what belongs to the one call in flight; refuse everything else."""
        original = bytes(message["id"])
        owner = self.turn.owner if self.turn is not None and self.slot.child in {child, None} else None
        if method == "ping":
            child.reply(original, {"jsonrpc": Raw(b'"2.0"'), "result": Raw(b"{}")})
        elif owner is not None:
            self.slot.spoil()
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
        self.slot.changed(method)
        if method == "notifications/cancelled":
            if self.turn is not None and self.turn.owner is not None:
                self.turn.owner.server_notification(child, method, message)
        elif method.endswith("/list_changed") or method == "notifications/resources/updated":
            self._callbacks.heard(child, None, method, message)
        else:
            self._tell(child, method, message)

    def child_retired(self, child: Child) -> None:
        """The next call starts another process."""
        self.slot.vacate(child)
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
            self._callbacks.heard(child, child.calls.owner, method, message)

    def _of_subscription(self, child: Child, method: str, message: Message) -> bool:
        """Pass on what the modern era tells the listener of a subscription, under the id that this one knows."""
        params = jsonrpc.members(message.get("params"))
        meta = jsonrpc.members(params.get("_meta"))
        is_end = method == "notifications/cancelled"
        own = params.get("requestId") if is_end else meta.get(META_SUBSCRIPTION)
        call = child.calls.get(bytes(own).strip(b'"')) if own is not None else None
        if call is None:
            return False
        self.slot.changed(method)
        if not is_end:
            meta[META_SUBSCRIPTION] = Raw(call.id)
            message = jsonrpc.with_param(message, "_meta", jsonrpc.encode(meta))
        if call.owner is not None:
            call.owner.server_notification(child, method, message)
        else:
            call.sink.push(jsonrpc.encode(message))
        return True

    def _started(self, child: Child) -> None:
        self._callbacks.started(self, child)


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
    :class:`Pools`.
    """

    def __init__(self, key: PoolKey, info: ServerInfo, caller: Caller, parts: Parts, cached: CachedCatalog) -> None:
        self.key = key
        self.info = info
        self.result = cached.result if cached.confirmed else b""
        """The InitializeResult as the server wrote it; empty until it is known, and for the modern era. May be known
        (from the catalog) without a process."""
        self.closed = False
        """It takes no calls any more: its server changed, or is gone. Open another one."""
        self.is_asking = bool(key.greeting) and may_ask(key.greeting)
        self.away = 0
        """How many of its calls wait for clients that have to come back with answers; these keep further processes."""
        self._caller = caller
        self._parts = parts
        self._cached = cached
        self._loop = asyncio.get_running_loop()
        self._first = PooledProcess(self, info, caller, parts, key.greeting, cached)
        self._processes = [self._first]
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
            self._first.slot.request(sink, identity, method, message, owner=owner, timeout=timeout, shape=shape)
            return
        turn = Turn(sink, identity, method, message, owner, timeout, shape)
        if self.closed:
            self._queue.refuse(turn, self._gone())
        elif (not self._queue or self._is_due(turn)) and (pooled := self._free_process(turn)) is not None:
            pooled.serve(turn)
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
        for pooled in self._processes:
            turn = pooled.turn
            if turn is None:
                pooled.slot.abandon(whose, fault)
            elif turn.is_of(whose):
                turn.pooled = None
                pooled.slot.abandon(turn, fault)
                pooled.finish(spoilt=True)

    def is_calling(self, owner: Peer) -> bool:
        """Return True if a call that concerns *owner* is in flight, or waits."""
        return self._queue.concerns(owner) or any(pooled.slot.is_calling(owner) for pooled in self._processes)

    def cancel(self, whose: Sink | Peer, identity: bytes, message: Message) -> None:
        """Cancel the call with the client's id *identity* that has *whose* as sink or owner, if there is just one.

        *message* is the ``notifications/cancelled``; its ``requestId`` is replaced.
        """
        if not self.is_asking:
            self._first.slot.cancel(whose, identity, message)
            return
        on = [pooled.turn for pooled in self._processes if pooled.turn is not None]
        found = [turn for turn in on if turn.identity == identity and turn.is_of(whose)]
        found += self._queue.called(whose, identity)
        if len(found) != 1:
            return
        turn = found[0]
        if turn.pooled is not None:
            turn.pooled.slot.cancel(turn, identity, message)
        else:
            self._queue.cancel(turn)

    def _free_process(self, turn: Turn) -> PooledProcess | None:
        """Return a process without a call for *turn*: the owner's last one, else a running one, else a new one."""
        free, owner = [pooled for pooled in self._processes if pooled.turn is None], turn.owner
        if free and self._may_have(turn):
            return max(
                free, key=lambda pooled: (owner is not None and pooled.last is owner, pooled.slot.child is not None)
            )
        limit, payer = self._parts.options.max_children, turn.caller or self._caller
        may_be = len(self._processes) < MOST_PROCESSES + self.away or self._is_due(turn)
        if not free and may_be and self._parts.process_counts.has_room(payer, limit):
            pooled = PooledProcess(self, self.info, payer, self._parts, self.key.greeting, self._cached)
            self._processes.append(pooled)
            return pooled
        return None

    def _may_have(self, turn: Turn) -> bool:
        """Return whether *turn* may have a free process; those beyond the usual number are for callers without one."""
        busy = sum(pooled.turn is not None for pooled in self._processes)
        return self.key.caller is not None or busy < MOST_PROCESSES + self.away or self._is_due(turn)

    def _is_due(self, turn: Turn) -> bool:
        """Return whether the caller of *turn* shares the processes with others and has none now."""
        return self.key.caller is None and not any(
            pooled.turn is not None and pooled.turn.caller == turn.caller for pooled in self._processes
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
        busy = Counter(pooled.turn.caller for pooled in self._processes if pooled.turn is not None)
        return min(self._queue, key=lambda turn: busy[turn.caller])

    def turned(self, pooled: PooledProcess) -> None:
        """See :class:`PoolCallbacks`."""
        if self._queue:
            # From the loop, or each that is refused would be one deeper in the stack.
            self._loop.call_soon(self._next, pooled)

    def _next(self, pooled: PooledProcess) -> None:
        if (
            self._queue
            and pooled.turn is None
            and pooled in self._processes
            and self._may_have(turn := self._first_waiting())
        ):
            self._queue.remove(turn)
            pooled.serve(turn)

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
        """See :class:`PoolCallbacks`."""
        if owner is None:
            self._audience.hear(method, message)
        elif self._audience.wants(owner, method, message):
            owner.server_notification(child, method, message)

    def started(self, pooled: PooledProcess, child: Child) -> None:
        """See :class:`PoolCallbacks`."""
        self.result = pooled.slot.result
        for method, params in self._audience.wishes():
            if pooled is self._first or method == "logging/setLevel":
                _send(child, Answer(), method, params)

    def _tell(self, method: str, params: dict[str, str]) -> None:
        for pooled in self._processes:
            if pooled.slot.child is not None:
                _send(pooled.slot.child, Answer(), method, params)

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
            await self._first.slot.fill(caller)

    async def ask(self, method: str, params: bytes, timeout: float = 0.0) -> Message:  # noqa: ASYNC109 -- the call's own
        """Send a request of the bridge itself and return the response, which may be an error.

        A process is started if need be. Raises the McpdError that tells why it cannot.
        """
        await self._first.slot.fill()
        child = self._first.slot.child
        answer = Answer()
        if child is None or not child.request(
            answer, b"0", method, jsonrpc.request(b"0", method, params), timeout=timeout
        ):
            raise ServiceUnavailable(f"server {self.info.id} ended: try again")
        return await answer.future

    @property
    def is_needed(self) -> bool:
        """Somebody uses it, or a process of it is still there."""
        return bool(self._audience) or not all(pooled.slot.empty for pooled in self._processes)

    @property
    def processes(self) -> int:
        """Number of its processes that accept calls."""
        return sum(pooled.slot.child is not None for pooled in self._processes)

    @property
    def idle_timeout(self) -> float:
        """Seconds without a call after which its processes are of no use."""
        return self._first.slot.idle_timeout

    def due(self, now: float) -> float:
        """When its processes will have been unused for long enough, as things stand."""
        if self._queue or self._audience.is_waiting:
            return now + self.idle_timeout
        dues = [due for pooled in self._processes if (due := pooled.slot.due(now)) != math.inf]
        if dues:
            return max(dues)
        return math.inf if self._audience else max(pooled.slot.used for pooled in self._processes) + self.idle_timeout

    def rest(self) -> None:
        """Stop its processes, which the next call starts again."""
        for pooled in self._processes:
            pooled.slot.rest()
        self._processes = [self._first]

    def retire(self, *, changed: bool = False) -> None:
        """Take no more calls; the processes end when those in flight have. Its server has *changed*, or is gone."""
        self.closed = True
        self._audience.end(changed=changed)
        self._queue.close(self._gone())
        for pooled in self._processes:
            pooled.slot.retire(self._gone())

    async def close(self, reason: str) -> None:
        """Stop it for good; calls in flight fail with *reason*."""
        self.closed = True
        self._audience.end()
        self._queue.close(ServiceUnavailable(reason))
        for pooled in self._processes:
            await pooled.slot.close(reason)

    def _gone(self) -> ServiceUnavailable:
        return ServiceUnavailable(f"server {self.info.id} has changed or is gone: try again")


def _send(child: Child, sink: Answer, method: str, params: dict[str, str]) -> bool:
    return child.request(sink, b"0", method, jsonrpc.request(b"0", method, jsonrpc.encode(params)))


class Pools:
    """All pools of a bridge."""

    def __init__(self, parts: Parts) -> None:
        self.catalog = Catalog()
        self._parts = parts
        self._pools: dict[tuple[str, str, Caller | None, bytes], Pool] = {}
        """By their :class:`PoolKey`."""
        self._per_caller: dict[Caller, int] = {}
        self._retired: set[Pool] = set()
        self._admitted: dict[tuple[PoolKey, Caller], float] = {}
        self._eras: dict[tuple[str, str], tuple[bool, bool]] = {}
        self._probes: dict[tuple[str, str], tuple[Caller, asyncio.Future[tuple[bool, bool]]]] = {}
        self._sweeper = Sweeper(self._all, Pool.due, self._expire)
        self._closing = False

    @property
    def idle(self) -> bool:
        """True if no pool has a process or a member."""
        return not any(pool.is_needed for pool in self._all())

    def find(self, server: str, caller: Caller, greeting: bytes) -> Pool | None:
        """The pool that is there already and that *caller* may use, by plain look-ups: for the path of a call."""
        info = self._parts.source.known(server)
        if info is None:
            return None
        if info.sharing != "all":
            # A tuple equals the key of the same members, and is made in a quarter of the time.
            return self._pools.get((server, info.state, caller, greeting))
        key = PoolKey(server, info.state, None, greeting)
        return self._pools.get(key) if self._is_admitted(key, caller) else None

    async def open(self, info: ServerInfo, caller: Caller, greeting: bytes) -> Pool:
        """The pool, made now if need be. No process is started yet.

        Raises :class:`~mcpd.errors.NotAuthorized` if *caller* may not use it,
        :class:`~mcpd.errors.LimitExceeded` if it has too many, :class:`~mcpd.errors.ServiceUnavailable`.
        """
        key = PoolKey(info.id, info.state, None if info.sharing == "all" else caller, greeting)
        if key.caller is None and not self._is_admitted(key, caller):
            await self._parts.source.authorize(info.id, caller)
            now = asyncio.get_running_loop().time()
            self._admitted = {each: until for each, until in self._admitted.items() if until > now}
            self._admitted[key, caller] = now + ADMITTED_FOR
        if self._closing:
            raise ServiceUnavailable("the bridge stops")
        found = self._pools.get(key)
        if found is None:
            self._make_room(caller)
            cached = self.catalog.cached(info.id, info.state, greeting)
            found = Pool(key, info, caller, self._parts, cached)
            self._add(found)
        return found

    async def eras(self, info: ServerInfo, caller: Caller) -> tuple[bool, bool]:
        """Whether the server speaks the handshake and the modern era: as *info* says, else found out once.

        That takes fresh processes, started for *caller*. A server that did not say whether it speaks the modern era
        is taken for one that does not, and asked again the next time. Raises the :class:`~mcpd.errors.McpdError` that
        tells why it speaks none, or cannot be started.
        """
        if info.handshake is not None and info.modern is not None:
            return info.handshake, info.modern
        key = (info.id, info.state)
        while key not in self._eras:
            if key not in self._probes:
                self._probes[key] = caller, asyncio.get_running_loop().create_future()
                self._parts.tasks.spawn(self._probe(info, caller, self._probes[key][1]))
            payer, found = self._probes[key]
            try:
                return await asyncio.shield(found)
            except OF_PAYER:
                if payer == caller:
                    raise
        return self._eras[key]

    def is_modern_only(self, info: ServerInfo) -> bool:
        """Return True if the server is known not to speak the handshake era."""
        if info.handshake is not None:
            return not info.handshake
        found = self._eras.get((info.id, info.state))
        return found is not None and not found[0]

    # ------------------------------------------------------------------------------------ their end

    def count(self, server: str, caller: Caller) -> int:
        """Return the number of processes of *server* in the pools that *caller* may use."""
        return sum(
            pool.processes
            for pool in self._pools.values()
            if pool.key.server == server and pool.key.caller in {caller, None}
        )

    def servers(self) -> set[str]:
        """The servers that there are pools of."""
        return {pool.key.server for pool in self._pools.values()}

    def renew(self, server: str, info: ServerInfo | None) -> None:
        """*server* is now as *info* says, ``None`` if it is not to be used any more."""
        state = None if info is None else info.state
        self.catalog.keep_only(server, state)
        self._eras = {key: found for key, found in self._eras.items() if key[0] != server or key[1] == state}
        for pool in [pool for pool in self._pools.values() if pool.key.server == server]:
            if info is None or not pool.info.is_same(info):
                self._remove(pool)
                pool.retire(changed=info is not None)
                self._retired.add(pool)
                self._sweeper.expect(1.0)

    async def close(self) -> None:
        """End all for good."""
        self._closing = True
        self._sweeper.close()
        for pool in self._all():
            self._parts.tasks.spawn(pool.close("the bridge stops"))
        self._pools.clear()
        self._retired.clear()

    def _all(self) -> list[Pool]:
        return [*self._pools.values(), *self._retired]

    def _is_admitted(self, key: PoolKey, caller: Caller) -> bool:
        until = self._admitted.get((key, caller))
        return until is not None and until > asyncio.get_running_loop().time()

    def _make_room(self, caller: Caller) -> None:
        limit = POOLS_PER_PROCESS * self._parts.options.max_children
        if self._per_caller.get(caller, 0) < limit:
            return
        for pool in [pool for pool in self._pools.values() if pool.caller == caller and not pool.is_needed]:
            self._remove(pool)
        if self._per_caller.get(caller, 0) >= limit:
            raise LimitExceeded(
                f"{limit} kinds of processes are in use, the limit for one caller: declare the same capabilities and "
                "revision in all sessions, or raise bridge.max_children (--max-children)"
            )

    def _expire(self, pool: Pool) -> None:
        """Stop the processes of *pool*, or forget it if it has none."""
        if pool.is_needed and pool not in self._retired:
            pool.rest()
            self._sweeper.expect(pool.idle_timeout)
        elif pool.key in self._pools:
            self._remove(pool)
        if not pool.is_needed:
            self._retired.discard(pool)

    def _add(self, pool: Pool) -> None:
        self._pools[pool.key] = pool
        self._per_caller[pool.caller] = self._per_caller.get(pool.caller, 0) + 1
        self._sweeper.expect(pool.idle_timeout)

    def _remove(self, pool: Pool) -> None:
        del self._pools[pool.key]
        pool.closed = True
        left = self._per_caller[pool.caller] - 1
        if left:
            self._per_caller[pool.caller] = left
        else:
            del self._per_caller[pool.caller]

    # ------------------------------------------------------------------------------------ which eras

    async def _probe(self, info: ServerInfo, caller: Caller, found: asyncio.Future[tuple[bool, bool]]) -> None:
        key = (info.id, info.state)
        try:
            modern, fault = await asyncio.gather(self._discover(info, caller), self._greet(info, caller))
            if fault is not None and not modern:
                found.set_exception(fault)
            else:
                speaks = fault is None, bool(modern)
                if modern is not None and not isinstance(fault, HeldBack):
                    self._eras[key] = speaks
                found.set_result(speaks)
        # The boundary: whatever went wrong, those who wait have to know it.
        except Exception as error:  # noqa: BLE001 -- logged by fault_of
            found.set_exception(fault_of(error))
        del self._probes[key]
        # Those who wait may all have gone.
        found.exception()

    async def _discover(self, info: ServerInfo, caller: Caller) -> bool | None:
        """Whether a process of the modern era answers, which then goes on as that of a pool; ``None`` for silence."""
        key = PoolKey(info.id, info.state, None if info.sharing == "all" else caller, b"")
        pool = Pool(key, info, caller, self._parts, self.catalog.cached(info.id, info.state, b""))
        speaks = None
        try:
            await pool.ready(caller)
            async with asyncio.timeout(PROBE_TIMEOUT):
                response = await pool.ask("server/discover", _ENVELOPE, START_TIMEOUT)
            versions = jsonrpc.elements(jsonrpc.members(response.get("result")).get("supportedVersions"))
            speaks = eras.MODERN in map(jsonrpc.text, versions)
        except (SpawnFailed, TimedOut, ServiceUnavailable, TimeoutError) as error:
            log.info("server %s did not say whether it speaks revision %s: %s", info.id, eras.MODERN, error)
        if speaks and not self._closing and key not in self._pools:
            self._add(pool)
        else:
            self._parts.tasks.spawn(pool.close("it was started to find out what it speaks"))
        return speaks

    async def _greet(self, info: ServerInfo, caller: Caller) -> McpdError | None:
        """Why a process of the handshake era cannot be greeted."""
        pool = await self.open(info, caller, POOL_GREETING)
        try:
            await pool.ready(caller)
        except SpawnFailed as fault:
            return fault
        return None
