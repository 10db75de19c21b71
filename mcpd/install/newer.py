# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which of the installed servers have an update, and what it is."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from mcpd.errors import McpdError, NotFound
from mcpd.install.updates import is_from, is_made_from, is_update

if TYPE_CHECKING:
    from collections.abc import Collection

    from mcpd.catalog import Catalog, CatalogEntry
    from mcpd.install.revisions import Revisions
    from mcpd.store import InstalledServer, Store

log = logging.getLogger(__name__)


class Update(NamedTuple):
    """What a registry has newer."""

    version: str
    """With the commit where a branch has moved on. It may be that which is installed, as the same version can have
    other content, and is empty where the registry names none."""
    registry: str
    """Its URL."""


class Newer:
    """Compares what is installed with what registries offer, and with where branches are. Its methods read the disk."""

    def __init__(self, store: Store, catalog: Catalog, revisions: Revisions) -> None:
        self._store = store
        self._catalog = catalog
        self._revisions = revisions

    def updates(self) -> dict[str, Update]:
        """What is newer for each server of this layer that has an update, by id."""
        found: dict[str, Update] = {}
        for offer in self.find():
            with suppress(NotFound):  # removed since
                server = self._store.get(offer.entry.id)
                commit = self._revisions.moved(server, server.generation)
                version = f"{offer.entry.version} ({commit})".strip() if commit else offer.entry.version
                found[server.id] = Update(version, offer.origin)
        return found

    def find(self, servers: Collection[InstalledServer] = (), *, reinstall: bool = False) -> list[CatalogEntry]:
        """What is newer for *servers* (none: for all of this layer), or with *reinstall* for those named at all."""
        again = reinstall and bool(servers)
        servers = servers or [server for server in self._store.list() if server.writable]
        offers = self._catalog.offers([server.id for server in servers])
        found: list[CatalogEntry] = []
        for server in servers:
            for offer in offers.get(server.id, ()):
                if self._is_wanted(server, offer, again=again):
                    if again or not self._waits(server, offer):
                        found.append(offer)
                    break
        return found

    def _is_wanted(self, server: InstalledServer, offer: CatalogEntry, *, again: bool) -> bool:
        """Whether an update takes *offer*; *again*: also if it is not newer."""
        manifest = server.manifest
        if manifest is None:
            return again  # nothing tells where a broken server came from
        if is_update(manifest, offer.entry, offer.origin):
            return True
        if not is_from(manifest, offer.entry, offer.origin):
            return False
        has_version = offer.entry.version in {"", manifest.version}
        return again or (has_version and bool(self._revisions.moved(server, server.generation)))

    def _waits(self, server: InstalledServer, offer: CatalogEntry) -> bool:
        """Whether *offer* is installed already and waits for approval."""
        if not server.pending_generation:
            return False
        try:
            held = self._store.generation_manifest(server.id, server.pending_generation)
            path = self._store.generation_path(server.id, server.pending_generation)
        except McpdError as error:
            log.warning("%s: the update that waits for approval cannot be read: %s", server.id, error.message)
            return False
        return is_made_from(held, offer.entry, offer.origin) and not self._revisions.moved(server, path)
