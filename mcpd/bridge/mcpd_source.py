# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers that mcpd runs: asked for over D-Bus, received as file descriptors (design §4 ``Spawn``)."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from mcpd.bridge.upstream import Ends, ServerInfo
from mcpd.bus.client import connect
from mcpd.errors import Disabled, McpdError, NotFound, ServiceUnavailable, UnknownObject

if TYPE_CHECKING:
    from mcpd.bus.client import Client

log = logging.getLogger(__name__)


async def warn_if_unreachable() -> None:
    """Log a warning if the user's mcpd does not answer. It may be started at any later time."""
    try:
        async with connect(system=False) as client:
            await client.manager.properties()
    except McpdError as error:
        log.warning("mcpd cannot be reached, and requests fail until it can: %s", error.message)


class McpdServer:
    """A session of mcpd."""

    def __init__(self, client: Client, path: str, ends: Ends) -> None:
        self._client = client
        self._path = path
        self._ends = ends

    def take(self) -> tuple[int, int]:
        """Our ends of its stdin and stdout."""
        return self._ends.take()

    async def stop(self, *, died: bool = False) -> None:
        """Have mcpd stop it. A session that has ended, or a mcpd that is gone, is no fault."""
        self._ends.close()
        try:
            await self._client.session(self._path).call("Stop", "a{sv}", [{}])
        except (UnknownObject, ServiceUnavailable) as error:
            log.debug("stopping %s: %s", self._path, error.message)
        except McpdError as error:
            log.warning("%s was not stopped: %s", self._path, error.message)


class McpdSource:
    """The servers of mcpd's instance on the session bus, or with *system* on the system bus."""

    def __init__(self, *, system: bool) -> None:
        self._system = system
        self._lock = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._client: Client | None = None
        self._lost: asyncio.Future[Exception | None] | None = None

    async def describe(self, server: str) -> ServerInfo:
        """What mcpd tells about *server*."""
        client = await self._connected()
        try:
            keys, _path = await client.manager.call("GetServer", "s", [server])
        except NotFound:
            raise NotFound(f"no server {server!r} is installed; see: mcpctl list") from None
        if keys.get("state") == "disabled":
            raise Disabled(f"server {server} is disabled")
        return ServerInfo(server, _seconds(keys, "call-timeout"), _seconds(keys, "idle-timeout"))

    async def start(self, server: str) -> McpdServer:
        """Have mcpd start *server*."""
        client = await self._connected()
        path, fds = await client.spawn(server)
        return McpdServer(client, path, Ends(fds[0], fds[1]))

    async def close(self) -> None:
        """Leave the bus; mcpd then ends what this bridge may have left behind."""
        self._client = None
        await self._stack.aclose()
        if self._lost is not None:
            await self._lost

    async def _connected(self) -> Client:
        """The connection, made anew after the bus went away."""
        async with self._lock:
            if self._lost is not None and self._lost.done():
                await self.close()
            if self._client is None:
                self._client = await self._stack.enter_async_context(connect(system=self._system))
                self._lost = asyncio.ensure_future(self._client.connection.wait_lost())
            return self._client


def _seconds(keys: dict[str, Any], key: str) -> float | None:
    value = keys.get(key)
    return float(value) if isinstance(value, int | float) and value > 0 else None
