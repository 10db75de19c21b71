# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpd inside the test's own process, on a private bus."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcpd.bus.authorization import OwnUser, Polkit
from mcpd.bus.caller import Credentials, query_bus
from mcpd.bus.connection import Connection
from mcpd.bus.core import Core
from mcpd.bus.names import BUS_NAME
from mcpd.bus.service import Service
from mcpd.catalog import Catalog
from mcpd.install.installer import Installer
from mcpd.paths import Scope
from mcpd.runtime.launchers import Launchers, PlainLauncher
from mcpd.runtime.sessions import Sessions
from mcpd.settings import load
from mcpd.store import Store
from mcpd.trust.keys import Keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from tests.bus.harness import Machine


@asynccontextmanager
async def served(
    machine: Machine,
    *,
    scope: Scope,
    uids: Mapping[str, int],
    only_uid: int | None = None,
    bridge_uid: int | None = None,
) -> AsyncIterator[Core]:
    """mcpd in this process, so that the bus can be made to tell of other users: name of the sender to uid."""
    async with serving(machine, scope=scope, uids=uids, only_uid=only_uid, bridge_uid=bridge_uid) as running:
        yield running.core


@dataclass
class Serving:
    """The parts of an mcpd in this process."""

    connection: Connection
    core: Core
    service: Service


@asynccontextmanager
async def serving(
    machine: Machine,
    *,
    scope: Scope,
    uids: Mapping[str, int],
    only_uid: int | None = None,
    bridge_uid: int | None = None,
) -> AsyncIterator[Serving]:
    """As :func:`served`, with all parts."""
    layout = machine.paths
    settings = load([], {"MCPD_RUNTIME_SANDBOX": "off"})

    async def lookup(connection: Connection, sender: str) -> Credentials:
        known = await query_bus(connection, sender)
        return known._replace(uid=uids.get(sender, known.uid))

    async with await Connection.open(machine.bus.address) as connection:
        store = Store(layout, scope)
        sessions = Sessions(store, PlainLauncher(), layout, settings, scope)
        keys = Keys(layout, scope)
        catalog = Catalog(layout, scope, settings, keys)
        launchers = Launchers(PlainLauncher(), PlainLauncher())
        installer = Installer(store, catalog, sessions, launchers, layout, settings, scope, keys)
        bundles = layout.layout(scope).cache / "bundles"
        core = Core(scope, settings, store, catalog, keys, sessions, installer, "plain", "1", bundles=bundles)
        authority = OwnUser() if scope is Scope.USER else Polkit(connection, bridge_uid=bridge_uid)
        service = Service(connection, core, authority, only_uid=only_uid, bridge_uid=bridge_uid, lookup=lookup)
        assert await connection.request_name(BUS_NAME)
        await service.start()
        try:
            yield Serving(connection, core, service)
        finally:
            await installer.close()
            await sessions.close()
            await service.close()
