# SPDX-License-Identifier: LGPL-2.1-or-later
"""One session of the handshake era, and its renewal after the server has changed.

What a client knows of a server is in the :class:`Kind` of its session: the InitializeResult that it got, and the state
of which it was notified last. So a session is notified whenever the present state is another one, whether or not there
is a process or a pool of the one before: after a server that was broken or disabled works again, there is neither.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from mcpd.bridge import jsonrpc
from mcpd.bridge.budget import COUNTED_FROM
from mcpd.bridge.handshake.greeting import MOST_GREETING
from mcpd.bridge.handshake.resume import PRIMED_FROM, Streams
from mcpd.bridge.jsonrpc import Message, Raw
from mcpd.bridge.tasks import fault_of
from mcpd.bridge.upstream.audience import ServerError
from mcpd.bridge.upstream.catalog import CHANGES, announced
from mcpd.errors import (
    Disabled,
    InvalidConfig,
    InvalidRequest,
    LimitExceeded,
    McpdError,
    NotFound,
    NotSupported,
    ServiceUnavailable,
    SystemInstanceOnly,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mcpd.bridge.budget import Holding
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.exchange import Headers
    from mcpd.bridge.handshake.sessions import Sessions
    from mcpd.bridge.parts import Parts
    from mcpd.bridge.upstream.call import Sink
    from mcpd.bridge.upstream.child import Child
    from mcpd.bridge.upstream.pool import Pool, Pools
    from mcpd.bridge.upstream.slot import ProcessSlot
    from mcpd.bridge.upstream.source import ServerInfo

log = logging.getLogger(__name__)

TOLD_AT_ONCE: Final = 200
"""Sessions that are notified before other work gets its turn."""
_OUT_OF_USE: Final = (NotFound, Disabled, NotSupported, SystemInstanceOnly, InvalidConfig)
"""Errors by which a server that was in use is permanently unusable."""
MOST_ASKED: Final = 64
"""Requests of one server to its client that may be unanswered."""
_OF_MEMBER: Final = frozenset({"resources/subscribe", "resources/unsubscribe", "logging/setLevel"})
"""Requests that change what a session hears, which its process cannot know if it has several."""
_CANCELLED: Final = frozenset({"requestId"})
_CHANGED: Final = {method: jsonrpc.encode(jsonrpc.notification(method)) for method in CHANGES}
"""The notifications that lists have changed, which many sessions get."""


def renewed(kind: Kind, info: ServerInfo | None) -> Kind:
    """Return *kind* updated with *info* (``None``: the server is not to be used), or itself if nothing has changed."""
    if info is None:
        return kind if kind.is_gone else replace(kind, is_gone=True)
    if kind.is_gone or not kind.info.is_same(info):
        return replace(kind, info=info, is_gone=False)
    return kind


def news(before: Kind, after: Kind) -> list[str]:
    """Return the notifications to send to clients when *before* has become *after*.

    There are none if the server is gone, because there is no new list to request.
    """
    if after.is_gone or (not before.is_gone and after.info.is_same(before.info)):
        return []
    return announced(after.result, before.info.policy, after.info.policy)


class _Change(NamedTuple):
    """The change of all sessions of the kind *before*, and the notifications to send to them."""

    before: Kind
    after: Kind
    methods: list[str]


class Renewal:
    """Updates the sessions of *table*, and the *pools*, when their servers change."""

    def __init__(self, parts: Parts, table: Sessions, pools: Pools) -> None:
        self._parts = parts
        self._table = table
        self._pools = pools
        self._closing = False
        self._refreshing = False
        self._stale = False
        parts.source.listen(self._changed)

    def close(self) -> None:
        """Stop updating."""
        self._closing = True

    def _changed(self) -> None:
        """Check all servers in use, as the information about them may have changed."""
        self._stale = True
        if not self._refreshing and not self._closing:
            self._refreshing = True
            self._parts.tasks.spawn(self._refresh())

    async def _refresh(self) -> None:
        try:
            while self._stale and not self._closing:
                self._stale = False
                for server in self._table.servers() | self._pools.servers():
                    await self._renew(server)
        finally:
            self._refreshing = False

    async def _renew(self, server: str) -> None:
        """End the processes of *server* that have an outdated state, and notify their clients."""
        try:
            info = await self._parts.source.describe(server)
        except _OUT_OF_USE:
            info = None
        except McpdError as fault:
            log.info("server %s: could not check whether it has changed: %s", server, fault.message)
            return
        self._pools.renew(server, info)
        await self._renew_sessions(server, info)

    async def _renew_sessions(self, server: str, info: ServerInfo | None) -> None:
        # There may be thousands, most of them of few kinds, and they go on having these in common.
        changes: dict[int, _Change] = {}
        told = []
        for session in self._table.of(server):
            kind = session.kind
            change = changes.get(id(kind))
            if change is None:
                after = renewed(kind, info)
                change = changes[id(kind)] = _Change(kind, after, news(kind, after))
            if change.after is kind:
                continue
            session.kind = change.after
            if session.slot is not None:
                cached = self._table.cached(session, info) if info is not None else None
                session.slot.renew(change.after.info, cached)
            # Who never asked for anything knows no list that could have changed, and listens to nothing.
            if change.methods and session.is_known:
                told.append((session, change.methods))
        for count, (session, methods) in enumerate(told, 1):
            if self._table.has(session):
                session.tell(methods)
            if count % TOLD_AT_ONCE == 0:
                await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class Kind:
    """Properties that sessions have in common if they were opened in the same way."""

    table: Sessions
    info: ServerInfo
    """As of which clients were told last."""
    caller: Caller
    params: bytes
    """Those of ``initialize``; of a member of a pool, those with which its processes were greeted."""
    pool: Pool | None = None
    """The pool whose processes it uses; None if it has a slot of its own."""
    result: bytes = b""
    """The InitializeResult, as the server wrote it."""
    version: str = ""
    """The negotiated protocol revision."""
    is_gone: bool = False
    """The server was not to be used when it was last looked at; :attr:`info` is from before that."""


class _Life:
    """State of a session from its client's first request on."""

    __slots__ = ("asked", "environment", "headers", "held", "is_deaf", "number", "slot", "streams", "was_busy")

    def __init__(self, session_id: str, kind: Kind) -> None:
        self.headers: Headers = ((b"mcp-session-id", session_id.encode()),)
        self.streams = Streams(kind.table.parts.budget, kind.caller)
        self.streams.primes = kind.version >= PRIMED_FROM
        self.slot: ProcessSlot | None = None
        self.environment: Mapping[str, str] | None = None
        self.held: Holding | None = None
        self.asked: dict[bytes, tuple[Child, bytes]] = {}
        self.is_deaf = False
        self.was_busy = False
        self.number = 0


class Session:
    """One client's handshake with one server.

    It has a slot, with a process of its own in it, once it needs one; or it is a member of a pool and has none. There
    may be thousands of sessions whose clients only looked in, so that of those nothing more is kept than that they are.
    """

    __slots__ = ("_life", "id", "kind", "used")

    def __init__(self, kind: Kind) -> None:
        self.id = secrets.token_urlsafe(24)
        self.kind = kind
        self.used = kind.table.now()
        """The time of its last request that did not go to a slot."""
        self._life: _Life | None = None

    @property
    def life(self) -> _Life:
        """Its streams, process and so on."""
        life = self._life
        if life is None:
            life = self._life = _Life(self.id, self.kind)
            if self.kind.pool is not None:
                self.kind.pool.join(self)
        return life

    @property
    def server(self) -> str:
        """The id of its server."""
        return self.kind.info.id

    @property
    def caller(self) -> Caller:
        """The owner."""
        return self.kind.caller

    @property
    def version(self) -> str:
        """The negotiated protocol revision."""
        return self.kind.version

    @property
    def result(self) -> bytes:
        """The InitializeResult, as the server wrote it."""
        return self.kind.result

    @property
    def headers(self) -> Headers:
        """Of every reply to its client."""
        return self._life.headers if self._life is not None else ((b"mcp-session-id", self.id.encode()),)

    @property
    def streams(self) -> Streams:
        """Its streams of events."""
        return self.life.streams

    @property
    def slot(self) -> ProcessSlot | None:
        """The place of its own process, once it needs one."""
        return self._life.slot if self._life is not None else None

    @property
    def is_known(self) -> bool:
        """True if its client has asked for anything yet, or listens."""
        return self._life is not None

    def greeted(self, result: bytes, info: ServerInfo) -> None:
        """Remember what the server, then as *info* says, answered to ``initialize``; LimitExceeded if that is too much.

        Its client is told if the server has changed since.
        """
        size = len(self.kind.params) + len(result)
        if size > COUNTED_FROM:
            life = self.life
            life.held = self.kind.table.parts.budget.holding(
                self.caller, lambda fault: self.kind.table.end(self, fault.message)
            )
            if not life.held.hold(size):
                raise life.held.fault()
        self.kind = replace(self.kind, result=result, version=version_of(result))
        self.streams.primes = self.version >= PRIMED_FROM
        self.tell(news(replace(self.kind, info=info), self.kind))

    def due(self, now: float) -> float:
        """When it will have been idle for long enough, as things stand; to be busy at a look counts as use."""
        kind, life, used = self.kind, self._life, self.used
        idle = kind.table.idle_timeout(kind.info)
        if life is None:
            return used + idle
        if life.slot is not None:
            due = life.slot.due(now)
            if due < math.inf:
                return due
            used = max(used, life.slot.used)
        if used + idle > now:
            return used + idle
        is_busy = life.streams.is_heard or (kind.pool is not None and kind.pool.is_calling(self))
        if is_busy or life.was_busy:
            # What it was busy with may have ended just now.
            life.was_busy = is_busy
            self.used = now
        return self.used + idle

    # ------------------------------------------------------------------------------------ from the client

    def request(self, sink: Sink, identity: bytes, method: str, message: Message) -> None:
        """Send a request to the server; its answer goes to *sink*."""
        life = self._life or self.life
        if life.slot is not None:
            life.slot.request(sink, identity, method, message, owner=self)
            return
        kind = self.kind
        self.used = kind.table.now()
        pool = kind.pool
        if pool is None or pool.closed:
            kind.table.place(self, sink, identity, method, message)
        elif method in _OF_MEMBER:
            kind.table.parts.tasks.spawn(self._wish(pool, sink, identity, method, message))
        else:
            pool.request(self, sink, identity, method, message)

    def notify(self, method: str, message: Message, then: Callable[[], None]) -> None:
        """A notification of the client; *then* is called when it may be acknowledged.

        Raises :class:`~mcpd.errors.InvalidRequest` for a cancellation that some servers take for that of another call.
        """
        if method == "notifications/cancelled":
            params = jsonrpc.members(message.get("params"))
            jsonrpc.refuse_alike(params, _CANCELLED)
            wanted = bytes(params.get("requestId", b""))
            if self.slot is not None:
                self.slot.cancel(self, wanted, message)
            elif self.kind.pool is not None:
                self.kind.pool.cancel(self, wanted, message)
            then()
        elif self.slot is not None:
            self.slot.notify(message, then)
        else:
            # Nothing that one of its clients says by itself concerns a process of several.
            self.used = self.kind.table.now()
            then()

    def reply(self, identity: bytes, message: Message) -> None:
        """The client's response to a request that its server made."""
        asked = self.life.asked.pop(identity, None)
        if asked is None:
            log.debug("server %s: response to the unknown request %r of its own", self.server, identity[:40])
        else:
            child, original = asked
            child.reply(original, message)

    def unheard(self) -> None:
        """Its client, which listened to a stream, was cut off or has left: it has some time to come back."""
        self.used = self.kind.table.now()

    def deafen(self) -> None:
        """Its client answers nothing any more: what it was asked is answered for it."""
        life = self.life
        life.is_deaf = True
        asked, life.asked = life.asked, {}
        for child, original in asked.values():
            child.reply_error(original, InvalidRequest.jsonrpc_code, "the client has gone silent")

    def farewell(self, reason: str) -> str:
        """What those are told whose calls end with the session."""
        return f"the session with server {self.server} ended: {reason}"

    def forget(self, reason: str) -> None:
        """End it all, beside the process that it may have."""
        life = self._life
        if life is None:
            return
        life.streams.close()
        life.asked.clear()
        if life.held is not None:
            life.held.close()
        if self.kind.pool is not None:
            self.kind.pool.abandon(self, ServiceUnavailable(self.farewell(reason)))
            self.kind.pool.leave(self)

    async def move(self, info: ServerInfo, pool: Pool) -> None:
        """Be a member of *pool*, as the one before takes no calls any more."""
        self._renew(info)
        before = self.kind.pool
        self.kind = replace(self.kind, pool=pool)
        pool.join(self)
        for uri in before.subscriptions(self) if before is not None else ():
            try:
                await pool.subscribe(self, uri)
            except McpdError as fault:
                log.info("server %s: a subscription was lost: %s", self.server, fault.message)
        if before is not None:
            before.leave(self)

    def use_slot(self, info: ServerInfo, slot: ProcessSlot) -> None:
        """Use a process of its own, in *slot*."""
        self._renew(info)
        self.life.slot = slot

    def _renew(self, info: ServerInfo) -> None:
        """Go with a change of the server of which it hears by itself first."""
        before, self.kind = self.kind, renewed(self.kind, info)
        self.tell(news(before, self.kind))

    async def _wish(self, pool: Pool, sink: Sink, identity: bytes, method: str, message: Message) -> None:
        params = jsonrpc.members(message.get("params"))
        try:
            if method == "logging/setLevel":
                await pool.log_level(self, jsonrpc.text(params.get("level")))
            else:
                change = pool.subscribe if method == "resources/subscribe" else pool.unsubscribe
                await change(self, jsonrpc.text(params.get("uri")))
            response = jsonrpc.result(identity, b"{}")
        except ServerError as answered:
            response = jsonrpc.encode({"jsonrpc": "2.0", "id": Raw(identity), "error": Raw(answered.raw)})
        # The boundary: whatever went wrong, the client waits for an answer.
        except Exception as error:  # noqa: BLE001 -- logged by fault_of
            response = jsonrpc.failure(identity, fault_of(error))
        sink.answer(response)

    # ------------------------------------------------------------------------------------ from the server

    def server_request(self, child: Child, method: str, message: Message) -> None:
        """Pass a request of the server on, under an id of the bridge."""
        original = bytes(message["id"])
        if method == "ping":
            child.reply(original, {"jsonrpc": Raw(b'"2.0"'), "result": Raw(b"{}")})
            return
        life = self.life
        if life.slot is not None:
            life.slot.spoil()
        if life.is_deaf:
            child.reply_error(original, InvalidRequest.jsonrpc_code, "the client has gone silent")
            return
        if len(life.asked) >= MOST_ASKED:
            child.reply_error(original, LimitExceeded.jsonrpc_code, "too many requests to the client are unanswered")
            return
        life.number += 1
        own = b"%d" % life.number
        life.asked[own] = (child, original)
        if not self._deliver(child, jsonrpc.encode({**message, "id": Raw(own)}), of_call=True):
            del life.asked[own]
            child.reply_error(original, InvalidRequest.jsonrpc_code, "the client takes no more messages")

    def server_notification(self, child: Child, method: str, message: Message) -> None:
        """Pass a notification on: what belongs to a call to its stream, changes to the session's."""
        if method == "notifications/cancelled":
            original = bytes(jsonrpc.members(message.get("params")).get("requestId", b""))
            asked = self.life.asked
            own = next((own for own, of in asked.items() if of == (child, original)), None)
            if own is None:
                return
            del asked[own]
            child.asks.discard(original)
            message = jsonrpc.with_param(message, "requestId", own)
        if self.slot is not None:
            self.slot.changed(method)
        of_call = not method.startswith(("notifications/tools/", "notifications/prompts/", "notifications/resources/"))
        self._deliver(child, jsonrpc.encode(message), of_call=of_call)

    def pool_notification(self, method: str, message: Message) -> None:
        """Pass on what a process of several says in no client's call."""
        self._deliver(None, self.kind.table.encoded(message), of_call=False)

    def tell(self, methods: Iterable[str]) -> None:
        """Tell that lists changed, as no process can that ends before it or comes after it.

        A client that does not listen now is told when it does, like one that was cut off.
        """
        for method in methods:
            self._deliver(None, _CHANGED[method], of_call=False)

    def child_retired(self, child: Child) -> None:
        """The next call starts another process."""
        if self.slot is not None:
            self.slot.vacate(child)

    def child_ended(self, child: Child) -> None:
        """See :class:`~mcpd.bridge.upstream.call.Peer`."""
        life = self.life
        if life.asked:
            life.asked = {own: asked for own, asked in life.asked.items() if asked[0] is not child}

    def _deliver(self, child: Child | None, message: bytes, *, of_call: bool) -> bool:
        """Send *message* where it can go. stdio does not tell its call, so the newest one that listens gets it."""
        if not of_call and self.streams.is_heard and self.streams.push(message):
            return True
        if child is not None:
            for call in reversed(child.calls.values()):
                if call.owner is self and call.sink.push(message):
                    return True
        return self.streams.push(message, needed=not of_call)


def version_of(result: bytes) -> str:
    """The revision that an InitializeResult names."""
    # Those that are large must not stay in memory for this.
    return _version_of(result) if len(result) <= MOST_GREETING else _version_of.__wrapped__(result)


@lru_cache(maxsize=64)
def _version_of(result: bytes) -> str:
    return jsonrpc.text(jsonrpc.members(Raw(result)).get("protocolVersion"))
