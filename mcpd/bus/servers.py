# SPDX-License-Identifier: LGPL-2.1-or-later
"""The interface Server, and the listing of all installed servers, kept in step with the store."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcpd.bus.names import ROOT, SERVER, server_path
from mcpd.bus.records import PROPERTIES, Record, installed_record
from mcpd.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.bus.core import Core
    from mcpd.bus.objects import Objects
    from mcpd.bus.wire import Variant
    from mcpd.install.newer import Update
    from mcpd.store import InstalledServer

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ServerObject:
    """An installed server on the bus."""

    server: InstalledServer
    update: Update | None
    record: Record
    interface: str = SERVER

    def properties(self) -> Mapping[str, Variant]:
        """Every property of the interface."""
        return self.record.properties()


class Servers:
    """The installed servers as last seen. Whoever lists them brings the objects up to date first."""

    def __init__(self, core: Core, objects: Objects) -> None:
        self._core = core
        self._objects = objects
        self._known: dict[str, ServerObject] = {}
        self._looked = False

    def __len__(self) -> int:
        return len(self._known)

    async def looked(self) -> tuple[int, int]:
        """Have the store look at what anybody may edit, in a thread, as new scripts are read; see its ``edits``.

        Raises :class:`~mcpd.errors.McpdError`.
        """
        return await asyncio.to_thread(self._core.store.edits)

    def sync(self) -> list[Record]:
        """Read the store, signal what is different, and return all records sorted by id.

        Of what anybody may edit it is what :meth:`looked` saw last.
        """
        newer = self._core.newer
        found = {server.id: server for server in self._core.store.list(edits=False)}
        gone = [known for known in self._known if known not in found]
        for server_id in gone:
            del self._known[server_id]
            self._objects.remove(server_path(server_id))
        changed = [self._update(server, newer.get(server_id)) for server_id, server in found.items()]
        # What is there when the first look is taken is no change.
        if self._looked and (gone or any(changed)):
            self._objects.emit(ROOT, "CatalogChanged")
        self._looked = True
        return [self._known[server_id].record for server_id in found]

    def get(self, server_id: str) -> ServerObject:
        """The server *server_id*, up to date. Raises :class:`~mcpd.errors.NotFound`."""
        self.sync()
        if server_id not in self._known:
            raise NotFound(f"no server {server_id!r} is installed; 'mcpctl list' names those that are")
        return self._known[server_id]

    def installed(self) -> Mapping[str, InstalledServer]:
        """The servers as the store has them, by id, as of the last look."""
        return {server_id: known.server for server_id, known in self._known.items()}

    def _update(self, server: InstalledServer, update: Update | None) -> bool:
        """Whether anything about it is otherwise than before, or a process of it may be another one."""
        known = self._known.get(server.id)
        sandboxed = self._core.settings.runtime.sandbox == "on"
        # The store gives the same object as long as nothing about a server has changed.
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
        self._objects.changed(server_path(server.id), _different(before, record.values), urgent=True)
        return True


def _different(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [name for key, name in PROPERTIES.items() if before.get(key) != after.get(key)]
