# SPDX-License-Identifier: LGPL-2.1-or-later
"""The interface Server, and the objects of all installed servers, which are kept in step with the store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcpd.bus.names import ROOT, SERVER, server_path
from mcpd.bus.records import PROPERTIES, installed_record
from mcpd.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.bus.codec import Variant
    from mcpd.bus.core import Core
    from mcpd.bus.object_manager import Objects
    from mcpd.bus.records import Record
    from mcpd.install.updates import Update
    from mcpd.store import InstalledServer


@dataclass(slots=True)
class ServerObject:
    """An installed server on the bus."""

    server: InstalledServer
    update: Update | None
    record: Record
    interface: str = SERVER

    def properties(self) -> Mapping[str, Variant]:
        """Return all properties of the interface."""
        return self.record.properties()


class Servers:
    """The installed servers as of the last scan. Call :meth:`sync` before listing them."""

    def __init__(self, core: Core, objects: Objects) -> None:
        self._core = core
        self._objects = objects
        self._known: dict[str, ServerObject] = {}
        self._synced = False

    def __len__(self) -> int:
        return len(self._known)

    async def scan(self) -> tuple[int, int]:
        """Have the store scan the mcps map and the script servers, in a thread; see :meth:`mcpd.store.Store.edits`.

        Raises :class:`~mcpd.errors.McpdError`.
        """
        return await asyncio.to_thread(self._core.store.edits)

    def sync(self) -> list[Record]:
        """Read the store, signal the differences, and return all records sorted by id.

        The mcps map and the script servers are those of the last :meth:`scan`.
        """
        updates = self._core.updates
        found = {server.id: server for server in self._core.store.list(edits=False)}
        gone = [known for known in self._known if known not in found]
        for server_id in gone:
            del self._known[server_id]
            self._objects.remove(server_path(server_id))
        changed = [self._update(server, updates.get(server_id)) for server_id, server in found.items()]
        # The first call only records the state, so it signals no change.
        if self._synced and (gone or any(changed)):
            self._objects.emit(ROOT, "CatalogChanged")
        self._synced = True
        return [self._known[server_id].record for server_id in found]

    def get(self, server_id: str) -> ServerObject:
        """Return the server *server_id*, up to date. Raises :class:`~mcpd.errors.NotFound`."""
        self.sync()
        if server_id not in self._known:
            raise NotFound(f"no server {server_id!r} is installed; 'mcpctl list' lists the installed servers")
        return self._known[server_id]

    def installed(self) -> Mapping[str, InstalledServer]:
        """Return the servers as the store has them, by id, as of the last :meth:`sync`."""
        return {server_id: known.server for server_id, known in self._known.items()}

    def _update(self, server: InstalledServer, update: Update | None) -> bool:
        """Update the object of *server*; return whether anything about the server changed."""
        known = self._known.get(server.id)
        sandboxed = self._core.settings.runtime.sandbox == "on"
        # The store returns the same object as long as nothing about a server has changed.
        if (
            known is not None
            and known.server is server
            and (known.update, known.record.values["sandboxed"]) == (update, sandboxed)
        ):
            return False
        record = installed_record(server, update=update, sandboxed=sandboxed)
        if known is None:
            self._known[server.id] = added = ServerObject(server, update, record)
            self._objects.add(server_path(server.id), added)
            return True
        before, known.record = known.record.values, record
        known.server, known.update = server, update
        self._objects.changed(server_path(server.id), _changed_properties(before, record.values), urgent=True)
        return True


def _changed_properties(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [declared.name for key, declared in PROPERTIES.items() if before.get(key) != after.get(key)]
