# SPDX-License-Identifier: LGPL-2.1-or-later
"""All pools of a bridge, and what is known of the servers behind them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from mcpd.bridge import eras, jsonrpc
from mcpd.bridge.handshake.greeting import CLIENT, POOL_GREETING
from mcpd.bridge.tasks import fault_of
from mcpd.bridge.upstream.catalog import Catalog
from mcpd.bridge.upstream.census import Sweeper
from mcpd.bridge.upstream.pool import Pool, PoolKey
from mcpd.bridge.upstream.seat import OF_PAYER
from mcpd.bridge.upstream.terms import START_TIMEOUT
from mcpd.errors import HeldBack, LimitExceeded, McpdError, ServiceUnavailable, SpawnFailed, TimedOut

if TYPE_CHECKING:
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.parts import Parts
    from mcpd.bridge.upstream.source import ServerInfo

log = logging.getLogger(__name__)

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
            shelf = self.catalog.shelf(info.id, info.state, greeting)
            found = Pool(key, info, caller, self._parts, shelf)
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
        pool = Pool(key, info, caller, self._parts, self.catalog.shelf(info.id, info.state, b""))
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
