# SPDX-License-Identifier: LGPL-2.1-or-later
"""Notifications about changed resources: in the handshake era to subscribers, later to listening clients."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourcesListChanged, ResourceUpdated
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from mcpd.errors import LimitExceeded
from mcpd.servers.notices import connection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from mcp.server.context import ServerRequestContext

    Context = ServerRequestContext[Any, Any]

MOST_SUBSCRIPTIONS: Final = 4096
"""Maximum number of subscriptions of a client of the handshake era."""
LONGEST: Final = 4096
"""Maximum length of a URI in characters."""
PATIENCE: Final = 5.0
"""Seconds that a subscriber waits for the first scan."""
_GREETINGS: Final = frozenset({"initialize", "server/discover", "ping"})
_LISTENER: Final = "org.mcpd/changes"


class Changes:
    """Parameter of :func:`~mcpd.servers.sdk.make_server` for a server whose resources change while it runs."""

    def __init__(self) -> None:
        self._bus = InMemorySubscriptionBus()
        self._listeners: set[_Listener] = set()
        self._listen = ListenHandler(self._bus)
        self.ready = asyncio.Event()
        """To be set when changes are noticed from then on, as subscribers must be notified of all later ones."""
        self.wanted = asyncio.Event()
        """Set after the first subscription, listening client, or response other than the greeting."""

    async def publish(self, uris: Iterable[str], *, listing: bool = False) -> None:
        """Notify clients that the resources *uris* have changed, and with *listing* that the list has."""
        changed = list(uris)
        for listener in list(self._listeners):
            listener.take(changed, listing=listing)
        if listing:
            await self._bus.publish(ResourcesListChanged())
        for uri in changed:
            await self._bus.publish(ResourceUpdated(uri))

    async def listen(self, ctx: Context, params: types.SubscriptionsListenRequestParams) -> Any:
        """Handle ``subscriptions/listen``, from revision 2026-07-28 on."""
        await self._until_ready()
        return await self._listen(ctx, params)

    async def subscribe(self, ctx: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        """Handle ``resources/subscribe``. Raises :class:`~mcpd.errors.LimitExceeded`."""
        if len(params.uri) > LONGEST:
            raise LimitExceeded(f"a URI of {len(params.uri)} characters is none of a resource; {LONGEST} are the most")
        uris = self._listener(ctx).uris
        if len(uris) >= MOST_SUBSCRIPTIONS:
            raise LimitExceeded(f"{MOST_SUBSCRIPTIONS} resources are subscribed to; unsubscribe from some of them")
        uris.add(params.uri)
        await self._until_ready()
        return types.EmptyResult()

    async def unsubscribe(self, ctx: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        """Handle ``resources/unsubscribe``."""
        self._listener(ctx).uris.discard(params.uri)
        return types.EmptyResult()

    async def notice(self, ctx: Context, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        """Detect the first response, and clients of the handshake era, which are sent list changes; a middleware."""
        result = await call_next(ctx)
        if ctx.request_id is not None and ctx.method not in _GREETINGS:
            self.wanted.set()
        if ctx.method == "notifications/initialized" and ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
            self._listener(ctx)
        return result

    async def _until_ready(self) -> None:
        self.wanted.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self.ready.wait()

    def _listener(self, ctx: Context) -> _Listener:
        there = connection(ctx)
        found: _Listener | None = there.state.get(_LISTENER)
        if found is None:
            found = there.state[_LISTENER] = _Listener(there)
            self._listeners.add(found)
            there.exit_stack.push_async_callback(found.close)
            there.exit_stack.callback(self._listeners.discard, found)
        return found


class _Listener:
    """A client of the handshake era. A slow one delays no others, and is notified only once of repeated changes."""

    def __init__(self, there: Any) -> None:
        self.uris: set[str] = set()
        self._connection = there
        self._listing = False
        self._changed: dict[str, None] = {}
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._send())

    def take(self, changed: Iterable[str], *, listing: bool) -> None:
        """Queue the notifications for this client."""
        self._listing |= listing
        self._changed |= dict.fromkeys(uri for uri in changed if uri in self.uris)
        self._news.set()

    async def close(self) -> None:
        """Stop sending, as the client has gone."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _send(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            if self._listing:
                self._listing = False
                await self._connection.send_resource_list_changed()
            while self._changed:
                uri = next(iter(self._changed))
                del self._changed[uri]
                await self._connection.send_resource_updated(uri)
