# SPDX-License-Identifier: LGPL-2.1-or-later
"""The parts of mcpd that the interfaces stand on."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcpd.errors import McpdError
from mcpd.runtime.sessions import Owner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.catalog import Catalog
    from mcpd.install.installer import Installer
    from mcpd.paths import Scope
    from mcpd.runtime.sessions import Session, Sessions
    from mcpd.settings import Settings
    from mcpd.store import Store


log = logging.getLogger(__name__)


@dataclass(slots=True)
class Core:
    """What the composition root has built."""

    scope: Scope
    settings: Settings
    store: Store
    catalog: Catalog
    sessions: Sessions
    installer: Installer
    launcher_name: str
    version: str
    newer: Mapping[str, str] = field(default_factory=dict)
    """Versions that the registries offer over the installed ones, by server id, as of :meth:`look_for_updates`."""

    sandbox_problem: str = ""
    """Why servers cannot be confined here, and so are not started; empty if they can, or while it is found out."""

    def features(self) -> list[str]:
        """The property ``Features``."""
        sandbox = ["sandbox"] if self.settings.runtime.sandbox == "on" and not self.sandbox_problem else []
        read_only = ["read-only"] if self.settings.daemon.read_only else []
        return ["spawn", *sandbox, *read_only, f"launcher:{self.launcher_name}"]

    async def look_for_updates(self) -> None:
        """Compare the installed servers with what the registries offered when they were last read."""
        try:
            self.newer = await asyncio.to_thread(self.installer.updates)
        except McpdError as error:
            log.warning("Updates cannot be looked for: %s", error.message)

    async def spawn(
        self, server_id: str, fds: Mapping[int, int], uid: int, sender: str, environment: Mapping[str, str]
    ) -> Session:
        """Start *server_id* for *uid*, until *sender* leaves the bus."""
        return await self.sessions.spawn(server_id, fds, owner=Owner(uid, sender), environment=environment)
