# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers that mcpd runs: requested over D-Bus, received as file descriptors, with a cache of mcpd's answers."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from mcpd.bridge import jsonrpc
from mcpd.bridge.jsonrpc import Raw
from mcpd.bridge.upstream import policy
from mcpd.bridge.upstream.source import Ends, Listed, ServerInfo
from mcpd.bus.client import connect, variant
from mcpd.bus.connection import Match
from mcpd.bus.names import BUS_NAME, DBUS, DBUS_PATH, MANAGER, ROOT
from mcpd.errors import (
    Disabled,
    McpdError,
    NotAuthorized,
    NotFound,
    NotSupported,
    ServiceUnavailable,
    SystemInstanceOnly,
    TimedOut,
    UnknownObject,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from mcpd.bridge.callers import Caller
    from mcpd.bus.client import Client, Signal

log = logging.getLogger(__name__)

FRESH: Final = 5.0
"""Seconds after which mcpd is asked again, beside requests: it hears of files that were edited when it is asked."""
MOST_KNOWN: Final = 1000
STOP_TIMEOUT: Final = 4.0
"""Seconds in which mcpd ends a server, with what it takes to kill one."""


class Known:
    """The last descriptions of servers, from *ask*. Listeners are called when one of them may hold no longer."""

    def __init__(self, ask: Callable[[str], Awaitable[ServerInfo]]) -> None:
        self._ask = ask
        self._infos: dict[str, tuple[ServerInfo, float]] = {}
        self._listeners: list[Callable[[], None]] = []
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._epoch = 0

    def listen(self, listener: Callable[[], None]) -> None:
        """Call *listener* whenever what was known may hold no longer."""
        self._listeners.append(listener)

    def get(self, server: str) -> ServerInfo | None:
        """Return what is known about *server*."""
        found = self._infos.get(server)
        if found is None:
            return None
        info, until = found
        if asyncio.get_running_loop().time() > until and server not in self._asking:
            self._asking[server] = asyncio.ensure_future(self._again(server))
        return info

    async def ask(self, server: str) -> ServerInfo:
        """Ask for *server*, and know it then. Raises what asking raises."""
        epoch = self._epoch
        try:
            info = await self._ask(server)
        except (ServiceUnavailable, TimedOut):
            raise
        except McpdError:
            self._learn(server, None)
            raise
        # What has changed meanwhile may have changed since it was read.
        if epoch == self._epoch:
            self._learn(server, info)
        return info

    def changed(self) -> None:
        """Nothing is certain any more."""
        self._epoch += 1
        self._infos.clear()
        for listener in self._listeners:
            listener()

    async def close(self) -> None:
        """Ask nothing any more."""
        for task in self._asking.values():
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    def _learn(self, server: str, info: ServerInfo | None) -> None:
        before = self._infos.pop(server, None)
        if before is not None and (info is None or not before[0].is_same(info)):
            self.changed()
        if info is not None:
            while len(self._infos) >= MOST_KNOWN:
                del self._infos[next(iter(self._infos))]
            self._infos[server] = info, asyncio.get_running_loop().time() + FRESH

    async def _again(self, server: str) -> None:
        try:
            await self.ask(server)
        except McpdError as fault:
            log.debug("server %s: %s", server, fault.message)
        finally:
            del self._asking[server]


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
        self._known = Known(self._ask)
        self._lost: asyncio.Future[Exception | None] | None = None

    async def describe(self, server: str) -> ServerInfo:
        """Return mcpd's description of *server*, which is cached until it changes."""
        return self._known.get(server) or await self._known.ask(server)

    async def _ask(self, server: str) -> ServerInfo:
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
        sharing = keys.get("sharing", "")
        protocols = keys.get("protocols")
        return ServerInfo(
            server,
            _seconds(keys, "call-timeout"),
            _seconds(keys, "idle-timeout"),
            # What is shared by all is started by one of them, which only mcpd's own user can do for others.
            sharing="caller" if sharing == "all" and not self._system else sharing or None,
            state=keys.get("digest", ""),
            handshake=None if protocols is None else "handshake" in protocols,
            modern=None if protocols is None else "modern" in protocols,
            policy=policy.load(keys.get("policy", "")),
        )

    def known(self, server: str) -> ServerInfo | None:
        """See :class:`~mcpd.bridge.upstream.source.ServerSource`."""
        return self._known.get(server)

    def listen(self, listener: Callable[[], None]) -> None:
        """See :class:`~mcpd.bridge.upstream.source.ServerSource`."""
        self._known.listen(listener)

    async def authorize(self, server: str, caller: Caller) -> None:
        """See :class:`~mcpd.bridge.upstream.source.ServerSource`. mcpd asks polkit, as it does for a start."""
        client = await self._connected()
        options = {"caller-uid": variant(caller.uid, "u"), "check": True}
        with _explained(server, caller):
            await client.spawn(server, options=options)

    async def listing(self) -> list[Listed]:
        """Those that this bridge may serve: what runs as its user, or for the system's, what runs for everybody."""
        client = await self._connected()
        found: list[dict[str, Any]] = await client.manager.call("ListServers", "a{sv}", [{}])
        return [
            Listed(
                keys["id"],
                **{key: keys.get(key, "") for key in ("name", "summary", "description", "version", "state", "problem")},
                homepage=keys.get("homepage", ""),
                permissions=tuple(keys.get("permissions", ())),
                sandboxed=keys.get("sandboxed"),
            )
            for keys in found
            if (keys.get("run-as") == "system") == self._system
        ]

    async def tools(self, server: str) -> list[Raw]:
        """See :class:`~mcpd.bridge.upstream.source.ServerSource`."""
        client = await self._connected()
        try:
            text: str = await client.manager.call("GetTools", "s", [server])
        except NotFound:
            return []
        return jsonrpc.elements(Raw(text.encode()))

    async def start(self, server: str, caller: Caller, environment: Mapping[str, str]) -> McpdServer:
        """Have mcpd start *server*, the system's for *caller* and if polkit agrees."""
        client = await self._connected()
        options: dict[str, object] = {"environment": variant(environment, "a{ss}")} if environment else {}
        if self._system:
            options = {"caller-uid": variant(caller.uid, "u")}
        with _explained(server, caller):
            path, fds = await client.spawn(server, options=options)
        return McpdServer(client, path, Ends(fds[0], fds[1]))

    async def close(self) -> None:
        """Leave the bus; mcpd then ends what this bridge may have left behind."""
        await self._known.close()
        await self._leave()

    async def _leave(self) -> None:
        self._client = None
        await self._stack.aclose()
        if self._lost is not None:
            await self._lost

    async def _connected(self) -> Client:
        """The connection, made anew after the bus went away."""
        async with self._lock:
            if self._lost is not None and self._lost.done():
                await self._leave()
            if self._client is None:
                client = await self._stack.enter_async_context(connect(system=self._system))
                self._lost = asyncio.ensure_future(client.connection.wait_lost())
                self._lost.add_done_callback(lambda _: self._known.changed())
                try:
                    await client.subscribe(
                        lambda _: self._known.changed(), path=ROOT, interface=MANAGER, member="CatalogChanged"
                    )
                    owner = Match(DBUS, DBUS_PATH, DBUS, "NameOwnerChanged", BUS_NAME)
                    await client.connection.subscribe(owner, self._on_owner)
                except BaseException:
                    await self._leave()
                    raise
                self._client = client
            return self._client

    def _on_owner(self, signal: Signal) -> None:
        """Another mcpd may see what the one before it has not told. That one has gone is no reason to start one."""
        if signal.args[2]:
            self._known.changed()


@contextmanager
def _explained(server: str, caller: Caller) -> Iterator[None]:
    try:
        yield
    except NotAuthorized as error:
        raise NotAuthorized(
            f"uid {caller.uid} may not start server {server}: members of the group mcp may, and whom an administrator "
            f"allows it in polkit's rules ({error.message})"
        ) from error


def _seconds(keys: dict[str, Any], key: str) -> float | None:
    value = keys.get(key)
    return float(value) if isinstance(value, int | float) and value > 0 else None
