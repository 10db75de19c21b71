# SPDX-License-Identifier: LGPL-2.1-or-later
"""Renewal after a server has changed: end outdated processes, and notify clients of changed lists.

What a client knows of a server is what its session's :class:`~mcpd.bridge.handshake.session.Kind` says: the
InitializeResult that it got, and the state of which it was told last. So a session is told whenever the present state
is another one, whether or not there is a process or a pool of the one before: after a server that was broken or
disabled is in order again, there is neither.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from mcpd.bridge.upstream.catalog import announced
from mcpd.errors import Disabled, InvalidConfig, McpdError, NotFound, NotSupported, SystemInstanceOnly

if TYPE_CHECKING:
    from mcpd.bridge.handshake.session import Kind
    from mcpd.bridge.handshake.sessions import Sessions
    from mcpd.bridge.parts import Parts
    from mcpd.bridge.upstream.pools import Pools
    from mcpd.bridge.upstream.source import ServerInfo

log = logging.getLogger(__name__)

TOLD_AT_ONCE: Final = 200
"""Sessions that are told before others have their turn."""
_OUT_OF_USE: Final = (NotFound, Disabled, NotSupported, SystemInstanceOnly, InvalidConfig)
"""Why a server that was in use cannot be used any more, however often one asks."""


def renewed(kind: Kind, info: ServerInfo | None) -> Kind:
    """*kind* now that its server is as *info* says, ``None`` if it is not to be used; itself if that is nothing new."""
    if info is None:
        return kind if kind.is_gone else replace(kind, is_gone=True)
    if kind.is_gone or not kind.info.is_same(info):
        return replace(kind, info=info, is_gone=False)
    return kind


def news(before: Kind, after: Kind) -> list[str]:
    """By which notifications clients are told that *before* has become *after*.

    Nothing of a server that is gone: there is no other list to ask for.
    """
    if after.is_gone or (not before.is_gone and after.info.is_same(before.info)):
        return []
    return announced(after.result, before.info.policy, after.info.policy)


class _Change(NamedTuple):
    """What becomes of all sessions of the kind *before*."""

    before: Kind
    after: Kind
    methods: list[str]


class Renewal:
    """Has the sessions of *table*, and the *pools*, go with the changes of their servers."""

    def __init__(self, parts: Parts, table: Sessions, pools: Pools) -> None:
        self._parts = parts
        self._table = table
        self._pools = pools
        self._closing = False
        self._refreshing = False
        self._stale = False
        parts.source.listen(self._changed)

    def close(self) -> None:
        """Look at nothing any more."""
        self._closing = True

    def _changed(self) -> None:
        """What is known of servers may have changed."""
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
        """Have the processes of *server* end that are of another state than it is now, and tell their clients."""
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
            if session.seat is not None:
                shelf = self._table.shelf(session, info) if info is not None else None
                session.seat.renew(change.after.info, shelf)
            # Who never asked for anything knows no list that could have changed, and listens to nothing.
            if change.methods and session.is_known:
                told.append((session, change.methods))
        for count, (session, methods) in enumerate(told, 1):
            if self._table.has(session):
                session.tell(methods)
            if count % TOLD_AT_ONCE == 0:
                await asyncio.sleep(0)
