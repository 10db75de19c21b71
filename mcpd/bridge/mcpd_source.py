# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers that mcpd runs: asked for over D-Bus, received as file descriptors (design §4 ``Spawn``)."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from mcpd.bridge.upstream import Ends, ServerInfo
from mcpd.bus.client import connect, variant
from mcpd.errors import (
    Disabled,
    McpdError,
    NotAuthorized,
    NotFound,
    NotSupported,
    ServiceUnavailable,
    SystemInstanceOnly,
    UnknownObject,
)

if TYPE_CHECKING:
    from mcpd.bridge.callers import Caller
    from mcpd.bus.client import Client

log = logging.getLogger(__name__)


STOP_TIMEOUT: Final = 4.0
"""Seconds in which mcpd ends a server, with what it takes to kill one."""


async def warn_if_unreachable(*, system: bool) -> None:
    """Log a warning if mcpd does not answer. It may be started at any later time."""
    try:
        async with connect(system=system) as client:
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
            await self._client.session(self._path).call("Stop", "a{sv}", [{}], timeout=STOP_TIMEOUT)
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
        runs_as_system = keys.get("run-as") == "system"
        if runs_as_system and not self._system:
            raise SystemInstanceOnly(
                f"server {server} is run by the system: call it through the system's bridge, at /run/mcp/bridge.sock"
            )
        if self._system and not runs_as_system:
            raise NotSupported(
                f"server {server} runs as the user who calls it, which the system's bridge cannot do: "
                "call it through your own, at $XDG_RUNTIME_DIR/mcp/bridge.sock "
                "(systemctl --user enable --now mcpd-bridge.socket)"
            )
        return ServerInfo(server, _seconds(keys, "call-timeout"), _seconds(keys, "idle-timeout"))

    async def start(self, server: str, caller: Caller) -> McpdServer:
        """Have mcpd start *server*, the system's for *caller* and if polkit agrees."""
        client = await self._connected()
        options = {"caller-uid": variant(caller.uid, "u")} if self._system else {}
        try:
            path, fds = await client.spawn(server, options=options)
        except NotAuthorized as error:
            raise NotAuthorized(
                f"uid {caller.uid} may not start server {server}: members of the group mcp may, and whom an "
                f"administrator allows it in polkit's rules ({error.message})"
            ) from error
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
