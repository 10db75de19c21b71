# SPDX-License-Identifier: LGPL-2.1-or-later
"""All sessions of the handshake era: which of them have a process of their own, and when they end."""

from __future__ import annotations

import asyncio
import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mcpd.bridge import allocator, eras, jsonrpc
from mcpd.bridge.handshake.greeting import MOST_GREETING, greeting
from mcpd.bridge.handshake.session import Kind, Renewal, Session, version_of
from mcpd.bridge.tasks import fault_of
from mcpd.bridge.upstream.catalog import is_plain, replay
from mcpd.bridge.upstream.counts import Sweeper
from mcpd.bridge.upstream.slot import ProcessSlot, turn_away
from mcpd.errors import LimitExceeded, McpdError, NotFound, ServiceUnavailable, UnsupportedRevision

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mcpd.bridge.callers import Caller
    from mcpd.bridge.jsonrpc import Message
    from mcpd.bridge.parts import Parts
    from mcpd.bridge.upstream.call import Sink
    from mcpd.bridge.upstream.catalog import CachedCatalog
    from mcpd.bridge.upstream.pool import Pool, Pools
    from mcpd.bridge.upstream.source import ServerInfo

log = logging.getLogger(__name__)

MOST_SESSIONS: Final = 10_000
"""Sessions of one caller, with and without a process of their own."""
MANY_SESSIONS: Final = 1000
"""After so many at once, memory is given back when few are left."""
MOST_OF_ITS_OWN: Final = 4096
"""Bytes of ``initialize`` params that a session without a process keeps, if no other has the same."""


class Sessions:
    """All sessions of this bridge."""

    def __init__(self, parts: Parts, pools: Pools) -> None:
        self.parts = parts
        self.now = asyncio.get_running_loop().time
        self._pools = pools
        self._sessions: dict[str, Session] = {}
        self._per_caller: dict[Caller, int] = {}
        self._with_slot: dict[Caller, int] = {}
        self._sweeper = Sweeper(self._all, Session.due, self._expire)
        self._last: Kind | None = None
        self._encoded: tuple[Message, bytes] = ({}, b"")
        self._most = 0
        """How many there were at once since memory was given back."""
        self._closing = False
        self._renewal = Renewal(parts, self, pools)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def idle(self) -> bool:
        """True if there are no sessions or processes, and none is starting or ending."""
        return not self._sessions and self._pools.idle and not self.parts.tasks

    def get(self, session_id: str, server: str, caller: Caller) -> Session:
        """The session; raises :class:`~mcpd.errors.NotFound` also for one of another caller or server."""
        session = self._sessions.get(session_id)
        if session is None or (kind := session.kind).info.id != server or kind.caller != caller:
            raise NotFound("unknown or ended session: send initialize without Mcp-Session-Id to open one")
        return session

    def encoded(self, message: Message) -> bytes:
        """*message* as JSON, which one after the other of many sessions gets."""
        if self._encoded[0] is not message:
            encoded = jsonrpc.encode(message)
            if len(encoded) > MOST_OF_ITS_OWN:
                return encoded
            self._encoded = message, encoded
        return self._encoded[1]

    def has(self, session: Session) -> bool:
        """Return True if *session* has not ended."""
        return session.id in self._sessions

    def servers(self) -> set[str]:
        """The servers that there are sessions with."""
        return {session.kind.info.id for session in self._sessions.values()}

    def of(self, server: str) -> list[Session]:
        """All sessions with *server*."""
        return [session for session in self._sessions.values() if session.kind.info.id == server]

    def holders(self) -> list[tuple[Caller, str]]:
        """Caller and server of every session."""
        return [(session.caller, session.server) for session in self._sessions.values()]

    def count(self, server: str, caller: Caller) -> tuple[int, int]:
        """Return the number of sessions of *caller* with *server*, and of the processes that *caller* can use."""
        own = [each for each in self._sessions.values() if each.server == server and each.caller == caller]
        running = sum(each.slot is not None and each.slot.child is not None for each in own)
        return len(own), running + self._pools.count(server, caller)

    def idle_timeout(self, info: ServerInfo) -> float:
        """Seconds after which an unused session with the server *info* ends."""
        return info.idle_timeout or self.parts.options.idle_timeout

    # ------------------------------------------------------------------------------------ opening

    def ready(
        self, server: str, caller: Caller, params: bytes, environment: Mapping[str, str] | None
    ) -> Session | None:
        """A session for the ``initialize`` *params*, if its answer is known already; else ``None``.

        What is known holds for no other *environment* than that of the bridge.

        Raises :class:`~mcpd.errors.LimitExceeded` if *caller* has too many, and what :meth:`open` raises.
        """
        info = self.parts.source.known(server)
        if info is None or environment:
            return None
        if self._is_shared(info):
            own = _pool_greeting(params)
            pool = self._pools.find(server, caller, own)
            return self._add(info, caller, own, pool.result, pool) if pool is not None and pool.result else None
        key = _canonical(params)
        cached = self._pools.catalog.known(info.id, info.state, key) if key else None
        if cached is None:
            return None
        # Its own process is greeted with what this client said, however alike the first one was.
        if params == cached.greeting:
            params = cached.greeting
        elif len(params) > MOST_OF_ITS_OWN:
            return None
        return self._add(info, caller, params, cached.result)

    async def open(
        self, server: str, caller: Caller, params: bytes, environment: Mapping[str, str] | None
    ) -> Session | Message:
        """A session for the ``initialize`` *params*, or the error with which the server answered them.

        *environment* is for a process of its own.

        Raises :class:`~mcpd.errors.LimitExceeded`, :class:`~mcpd.errors.UnsupportedRevision` for a server of the
        modern era only, and the :class:`~mcpd.errors.McpdError` that tells why the server cannot be used.
        """
        info = await self.parts.source.describe(server)
        if self._pools.is_modern_only(info):
            wanted = jsonrpc.text(jsonrpc.members(jsonrpc.Raw(params)).get("protocolVersion"))[:40]
            raise UnsupportedRevision(
                f"server {server} speaks only revisions without initialize", [eras.MODERN], wanted
            )
        if self._is_shared(info):
            own = _pool_greeting(params)
            pool = await self._pools.open(info, caller, own)
            await pool.ready(caller)
            return self._add(info, caller, own, pool.result, pool)
        session = self._add(info, caller, params)
        session.life.environment = environment
        try:
            response = await self._slot(session, info).open(params)
            if "result" in response:
                session.greeted(bytes(response["result"]), info)
                return session
        except BaseException:
            self.end(session, "it could not be opened")
            raise
        self.end(session, "initialize failed")
        return response

    def _is_shared(self, info: ServerInfo) -> bool:
        return (info.sharing or self.parts.options.sharing) != "session"

    def _add(
        self, info: ServerInfo, caller: Caller, params: bytes, result: bytes = b"", pool: Pool | None = None
    ) -> Session:
        if self._closing:
            raise ServiceUnavailable("the bridge stops")
        if self._per_caller.get(caller, 0) >= MOST_SESSIONS:
            raise LimitExceeded(f"{MOST_SESSIONS} sessions are open, the limit for one caller: end some with DELETE")
        kind = Kind(self, info, caller, params, pool, result, version_of(result) if result else "")
        # Most are opened by clients that are alike.
        if kind != self._last:
            self._last = kind
        session = Session(self._last)
        self._sessions[session.id] = session
        self._most = max(self._most, len(self._sessions))
        _count(self._per_caller, caller, 1)
        self._sweeper.expect(self.idle_timeout(info))
        return session

    # ------------------------------------------------------------------------------------ processes

    def place(self, session: Session, sink: Sink, identity: bytes, method: str, message: Message) -> None:
        """Serve a request of *session*, which has no process yet, or none that takes calls any more."""
        info = self.parts.source.known(session.server)
        if info is None or session.kind.pool is not None:
            self.parts.tasks.spawn(self._place(session, sink, identity, method, message))
            return
        try:
            self._serve_alone(session, info, sink, identity, method, message)
        except McpdError as fault:
            self._refuse(session, sink, identity, method, message, fault)

    async def _place(self, session: Session, sink: Sink, identity: bytes, method: str, message: Message) -> None:
        # The boundary: whatever went wrong, the client waits for an answer.
        try:
            info = await self.parts.source.describe(session.server)
            if session.kind.pool is None:
                self._serve_alone(session, info, sink, identity, method, message)
            else:
                await self._move(session, info)
                session.request(sink, identity, method, message)
        except Exception as error:  # noqa: BLE001 -- logged by fault_of
            fault = fault_of(error, session.server, sink.request_id)
            self._refuse(session, sink, identity, method, message, fault)

    async def _move(self, session: Session, info: ServerInfo) -> None:
        """Have *session* be a member of the pool that now serves its kind."""
        pool = await self._pools.open(info, session.caller, session.kind.params)
        self._check_open(session)
        if session.kind.pool is not pool:
            await session.move(info, pool)
            self._check_open(session)

    def _refuse(
        self, session: Session, sink: Sink, identity: bytes, method: str, message: Message, fault: McpdError
    ) -> None:
        turn_away(sink, identity, method, message, fault, server=session.server, watch=self.parts.watch)

    def _serve_alone(
        self, session: Session, info: ServerInfo, sink: Sink, identity: bytes, method: str, message: Message
    ) -> None:
        """Serve it with a process of the session's own, unless the answer is known without."""
        self._check_open(session)
        if session.slot is None:
            key = _canonical(session.kind.params)
            cached = self._pools.catalog.known(info.id, info.state, key) if key else None
            if cached is not None and replay(cached, self.parts, info.id, sink, identity, method, message):
                return
            self._slot(session, info)
        session.request(sink, identity, method, message)

    def _check_open(self, session: Session) -> None:
        if session.id not in self._sessions:
            raise NotFound(f"the session with server {session.server} has ended")

    def _slot(self, session: Session, info: ServerInfo) -> ProcessSlot:
        limit = self.parts.options.max_sessions
        if self._with_slot.get(session.caller, 0) >= limit:
            raise LimitExceeded(
                f"{limit} sessions with a process of their own are open, the limit for one caller: end some with "
                "DELETE, or raise bridge.max_sessions (--max-sessions)"
            )
        cached, environment = self.cached(session, info), session.life.environment
        slot = ProcessSlot(
            info, session.caller, self.parts, session, session.kind.params, cached, environment=environment
        )
        session.use_slot(info, slot)
        _count(self._with_slot, session.caller, 1)
        self._sweeper.expect(self.idle_timeout(info))
        return slot

    def cached(self, session: Session, info: ServerInfo) -> CachedCatalog | None:
        """Return the cached catalog of *info* for *session*; None if its processes report something to it alone."""
        key = b"" if session.life.environment else _canonical(session.kind.params)
        return self._pools.catalog.cached(info.id, info.state, key) if key else None

    # ------------------------------------------------------------------------------------ their end

    def _all(self) -> Iterable[Session]:
        return self._sessions.values()

    def _expire(self, session: Session) -> None:
        if session.slot is not None and session.streams.link is not None:
            # Its client is there, and would not open another one.
            session.slot.rest()
        else:
            self.end(session, "it was idle")

    def end(self, session: Session, reason: str) -> None:
        """Remove *session* and stop its process, if it has one, in the background."""
        if self._sessions.pop(session.id, None) is None:
            return
        if not self._sessions:
            # A dictionary that was large once stays so.
            self._sessions = {}
            self._last = None
        if self._most >= MANY_SESSIONS and len(self._sessions) <= self._most // 8:
            self._most = 0
            # Soon, as who ends them looks at a list of all.
            asyncio.get_running_loop().call_later(1.0, allocator.give_back)
        _count(self._per_caller, session.caller, -1)
        if session.slot is not None:
            _count(self._with_slot, session.caller, -1)
        log.debug("session with server %s ended: %s", session.server, reason)
        session.forget(reason)
        if session.slot is not None:
            self.parts.tasks.spawn(session.slot.close(session.farewell(reason)))

    async def close(self) -> None:
        """End everything, and open nothing any more."""
        self._closing = True
        self._renewal.close()
        self._sweeper.close()
        for session in list(self._sessions.values()):
            self.end(session, "the bridge stops")
        await self._pools.close()
        await self.parts.tasks.close()


def _count(counts: dict[Caller, int], caller: Caller, more: int) -> None:
    left = counts.get(caller, 0) + more
    if left:
        counts[caller] = left
    else:
        del counts[caller]


def _pool_greeting(params: bytes) -> bytes:
    """How a process is greeted that serves clients with the ``initialize`` *params*."""
    members = jsonrpc.members(jsonrpc.Raw(params))
    revision = jsonrpc.text(members.get("protocolVersion"))[:64]
    return greeting(revision or eras.LATEST_HANDSHAKE, bytes(members.get("capabilities", b"{}")))


def _canonical(params: bytes) -> bytes:
    """The ``initialize`` *params* as they are compared; empty if what they are answered with is for nobody else."""
    return _compared(params) if len(params) <= MOST_GREETING else b""


@lru_cache(maxsize=64)
def _compared(params: bytes) -> bytes:
    if not is_plain(jsonrpc.Raw(params)):
        return b""
    try:
        found = msgspec.json.decode(params, type=dict[str, Any])
        found.pop("_meta", None)
        return msgspec.json.encode(found, order="deterministic")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        return b""
