# SPDX-License-Identifier: LGPL-2.1-or-later
"""The interface Manager: what is installed, how it is configured, and starting servers.

Its other methods are in :mod:`mcpd.bus.catalogue` and :mod:`mcpd.bus.changes`.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from mcpd.bus import configuration
from mcpd.bus.dispatcher import Row
from mcpd.bus.names import MANAGER, server_path, session_path
from mcpd.bus.options import option
from mcpd.bus.records import details, matcher, plain
from mcpd.bus.sessions import SessionObject
from mcpd.bus.shares import Turns
from mcpd.bus.users import look_up
from mcpd.bus.wire import Variant
from mcpd.catalog.listing import text
from mcpd.errors import (
    InvalidArgument,
    NeedsBridge,
    NotAuthorized,
    NotFound,
    NotSupported,
    ServiceUnavailable,
    SpawnFailed,
)
from mcpd.paths import Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mcpd.bus.caller import Call
    from mcpd.bus.core import Core
    from mcpd.bus.servers import Servers
    from mcpd.bus.wire import Raw

_ICONS, _ICONS_EACH = 16, 8
"""Icons that are fetched at once, and those of one user."""
_STDIO: Final = frozenset({0, 1, 2})
_ONE_CALL: Final = frozenset({"busctl", "dbus-send", "gdbus"})
"""Programs that leave the bus as soon as one call is answered."""
_NO_UID: Final = 2**32 - 1
"""What stands for "no user" where a uid goes."""


@dataclass(slots=True)
class Manager:
    """The object at the root."""

    core: Core
    servers: Servers
    catalog_changed: Callable[[], None]
    sources_changed: Callable[[], None]
    bridge_uid: int | None
    """The user of the system bridge, the only one that may name a caller of its own."""
    interface: str = MANAGER
    icons: Turns = field(default_factory=lambda: Turns(_ICONS, _ICONS_EACH))
    """Who fetches icons: anybody may, from servers that registries name and that may be slow."""

    def properties(self) -> Mapping[str, Variant]:
        """Every property of the interface."""
        return {
            "Version": Variant("s", self.core.version),
            "Scope": Variant("s", str(self.core.scope)),
            "Features": Variant("as", self.core.features()),
        }

    # --- reading ---

    async def list_servers(self, _call: Call, wanted: Mapping[str, Any]) -> list[Raw]:
        """``ListServers``."""
        await self.servers.looked()
        records = self.servers.sync()
        if not wanted:
            return [record.raw for record in records]
        matches = matcher(wanted)
        return [record.raw for record in records if matches(record.values)]

    async def get_server(self, _call: Call, server_id: str) -> tuple[dict[str, Variant], str]:
        """``GetServer``."""
        await self.servers.looked()
        found = self.servers.get(server_id)
        known = found.record.variants() | details(found.server)
        with suppress(NotFound):  # removed since
            tools = await asyncio.to_thread(self.core.store.tools, server_id)
            known |= {} if tools is None else {"tools": Variant("u", len(tools))}
        return known, server_path(server_id)

    async def get_manifest_path(self, _call: Call, server_id: str) -> str:
        """``GetManifestPath``."""
        return str(await asyncio.to_thread(self.core.store.manifest_path, server_id))

    async def get_tools(self, _call: Call, server_id: str) -> str:
        """``GetTools``."""
        tools = await asyncio.to_thread(self.core.store.tools, server_id)
        if tools is None:
            raise NotFound(f"server {server_id} was never asked for its tools; 'mcpctl tools {server_id}' asks it")
        return json.dumps(tools)

    async def get_config(self, _call: Call, server_id: str) -> tuple[dict[str, Variant], list[str]]:
        """``GetConfig``."""
        found = await asyncio.to_thread(self.core.store.config, server_id)
        return plain(found.values), [text(key) for key in found.secrets_set]

    def installed_ids(self) -> frozenset[str]:
        """Ids of the installed servers as of the last look, without those of scripts."""
        return frozenset(one.id for one in self.servers.installed().values() if one.script is None)

    def list_sessions(self, call: Call) -> list[dict[str, Variant]]:
        """``ListSessions``; other users' only for root."""
        sessions = self.core.sessions
        return [
            SessionObject(session, sessions).listed()
            for session in sessions.list()
            if call.uid in (0, session.owner.uid) or call.sender == session.owner.name
        ]

    # --- changing ---

    async def set_config(
        self, _call: Call, server_id: str, changes: Mapping[str, Any], options: Mapping[str, Any]
    ) -> None:
        """``SetConfig``."""
        unset = dict.fromkeys(option(options, "unset", list, []))
        await asyncio.to_thread(self.core.store.set_config, server_id, {**configuration.values(changes), **unset})
        self._configured(server_id)

    async def set_secret(self, call: Call, server_id: str, key: str, value: int, _options: Mapping[str, Any]) -> None:
        """``SetSecret``."""
        secret = await configuration.secret(call, value, key)
        await asyncio.to_thread(self.core.store.set_secret, server_id, key, secret)
        self._configured(server_id)

    def _configured(self, server_id: str) -> None:
        """Crashes with other values say nothing about these."""
        self.core.sessions.forgive(server_id)
        self.servers.sync()

    # --- running ---

    async def spawn(
        self, call: Call, server_id: str, fds: Mapping[int, int], flags: int, options: Mapping[str, Any]
    ) -> tuple[str, dict[int, int]]:
        """``Spawn``."""
        if flags:
            raise InvalidArgument(f"Spawn: there are no flags yet, {flags:#x} was given")
        owner_uid = self._owner_uid(call, options)
        await self._check_direct(call, server_id, fds, options)
        environment = option(options, "environment", dict, {}) if self.core.scope is Scope.USER else {}
        if not all(isinstance(part, str) for pair in environment.items() for part in pair):
            raise InvalidArgument("Spawn: environment is a dictionary of strings")
        if option(options, "check", bool, default=False):
            return "/", {}
        if (program := call.caller.program()) in _ONE_CALL:
            raise SpawnFailed(
                f"{server_id}: {program} leaves the message bus once Spawn is answered, and the server ends with its"
                f" client; use a client that stays on the bus, or 'mcpctl run {server_id}'"
            )
        given, ends = _stdio(call, fds)
        session = await self.core.spawn(server_id, given, owner_uid, call.sender, environment)
        if call.caller.gone.is_set():
            # It left before its session was known to be its own.
            await self.core.sessions.stop(session.number)
            raise ServiceUnavailable(f"{call.sender} has left the message bus")
        return session_path(session.number), ends

    async def _check_direct(
        self, call: Call, server_id: str, fds: Mapping[int, int], options: Mapping[str, Any]
    ) -> None:
        """Refuse with :class:`~mcpd.errors.NeedsBridge` a start in which nothing would stand where something has to.

        What an administrator took away from a server of the system, nobody gets by talking to it without the bridge.
        """
        is_direct = option(options, "direct", bool, default=False)
        is_system = self.core.scope is Scope.SYSTEM
        if not is_direct and (not is_system or call.uid in {0, self.bridge_uid}):
            return
        await self.servers.looked()
        server = self.servers.get(server_id).server
        if server.manifest is None or (server.manifest.runtime.run_as == "system" and not is_system):
            return
        if server.entry.policy:
            raise NeedsBridge(f"server {server_id} is used through the bridge: the mcps map changes what it offers")
        if is_direct and fds and server.manifest.runtime.sharing != "session":
            raise NeedsBridge(f"server {server_id} is used through the bridge: its process is shared")

    def _owner_uid(self, call: Call, options: Mapping[str, Any]) -> int:
        if "caller-uid" not in options:
            return call.uid
        if call.uid != self.bridge_uid:
            raise NotAuthorized("Spawn: only the system bridge may start a server for another user (caller-uid)")
        uid = option(options, "caller-uid", int, call.uid)
        if not 0 <= uid < _NO_UID:
            raise InvalidArgument(f"option 'caller-uid': {uid} is no user")
        return uid

    def spawn_action(self, _call: Call, *_args: object) -> str | None:
        """A user's own servers need no authorization."""
        return None if self.core.scope is Scope.USER else "spawn"

    async def spawn_details(
        self, call: Call, server_id: str, _fds: object, _flags: object, options: Mapping[str, Any]
    ) -> dict[str, str]:
        """What is asked about a start. Of the bridge, it is whether the one it serves may have this server."""
        found = {"id": text(server_id)}
        if "caller-uid" not in options:
            return found
        uid = self._owner_uid(call, options)
        await self.servers.looked()
        if self.servers.get(server_id).record.values.get("run-as") != "system":
            raise NotSupported(f"server {server_id} runs as the user who calls it: the system's bridge cannot start it")
        user = await asyncio.to_thread(look_up, uid)
        groups = f" {' '.join(map(text, user.groups))} "
        return {**found, "caller-uid": str(uid), "caller-user": text(user.name), "caller-groups": groups}


def _stdio(call: Call, fds: Mapping[int, int]) -> tuple[dict[int, int], dict[int, int]]:
    """The descriptors for the server, and the indices of those that go back to the caller."""
    if fds:
        if not {0, 1} <= fds.keys() <= _STDIO:
            raise InvalidArgument(f"Spawn: give file descriptors 0, 1 and perhaps 2, or none; not {sorted(fds)}")
        return {number: call.fds.get(index) for number, index in fds.items()}, {}
    server_in, client_in = os.pipe()
    client_out, server_out = os.pipe()
    # The server's ends are in the container of what came in, which is closed when the call ends.
    call.fds.add(server_in)
    call.fds.add(server_out)
    return {0: server_in, 1: server_out}, {0: call.ends.add(client_in), 1: call.ends.add(client_out)}


def _key_details(_target: Manager, _call: Call, server_id: str, key: Any, *_args: object) -> dict[str, str]:
    return {"id": text(server_id), "keys": text(key if isinstance(key, str) else list(key))}


METHODS: Final = {
    (MANAGER, "ListServers"): Row(Manager.list_servers, changes=False),
    (MANAGER, "GetServer"): Row(Manager.get_server, changes=False),
    (MANAGER, "GetManifestPath"): Row(Manager.get_manifest_path, changes=False),
    (MANAGER, "GetTools"): Row(Manager.get_tools, changes=False),
    (MANAGER, "GetConfig"): Row(Manager.get_config, changes=False),
    (MANAGER, "ListSessions"): Row(Manager.list_sessions, changes=False),
    (MANAGER, "SetConfig"): Row(Manager.set_config, "configure", _key_details, changes=True),
    (MANAGER, "SetSecret"): Row(Manager.set_secret, "set-secret", _key_details, changes=True),
    (MANAGER, "Spawn"): Row(Manager.spawn, Manager.spawn_action, Manager.spawn_details, changes=False),
}
