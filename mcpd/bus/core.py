# SPDX-License-Identifier: LGPL-2.1-or-later
"""The parts of mcpd that the interfaces stand on."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from mcpd.bus.authorization import Turns
from mcpd.errors import McpdError
from mcpd.runtime.sessions import Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Executor
    from pathlib import Path

    from mcpd.catalog import Catalog
    from mcpd.install.installer import Installer
    from mcpd.install.updates import Update
    from mcpd.paths import Scope
    from mcpd.runtime.sessions import Session, Sessions
    from mcpd.settings import Settings
    from mcpd.store import Store
    from mcpd.trust.keys import Keys

READERS: Final = 2
"""Long reads at once, each of another user."""
FIRST_READING: Final = 5.0
"""Seconds that a search waits for registries that are read for the first time."""

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Core:
    """What the composition root has built."""

    scope: Scope
    settings: Settings
    store: Store
    catalog: Catalog
    keys: Keys
    sessions: Sessions
    installer: Installer
    launcher_name: str
    version: str
    bundles: Path
    """Where bundles that callers bring are kept until they are installed."""
    newer: Mapping[str, Update] = field(default_factory=dict)
    """What the registries have newer than what is installed, by server id, as of :meth:`look_for_updates`."""

    began: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no registry is read for the first time, from the end of the first :meth:`read_new` on."""
    reading: int = 0
    """Calls of :meth:`read_new` that have not ended."""
    reads: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while registries are read for the first time, so that none is read twice."""
    readers: Executor = field(default_factory=lambda: ThreadPoolExecutor(READERS, "reader"))
    """Apart from the threads in which servers are started and installed, so that no search keeps those waiting."""
    turns: Turns = field(default_factory=lambda: Turns(READERS, 1))
    looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while updates are looked for: of two looks the one that began first must not have the last word."""
    sandbox_problem: str = ""
    """Why servers cannot be confined here, and so are not started; empty if they can, or while it is found out."""

    def features(self) -> list[str]:
        """The property ``Features``."""
        sandbox = ["sandbox"] if self.settings.runtime.sandbox == "on" and not self.sandbox_problem else []
        read_only = ["read-only"] if self.settings.daemon.read_only else []
        return ["spawn", *sandbox, *read_only, f"launcher:{self.launcher_name}"]

    async def in_turn(self, uid: int, function: Callable[[], T]) -> T:
        """What *function* gives, which reads much: in one of few threads, which the users of the bus share evenly."""
        await self.turns.enter(uid)
        try:
            return await asyncio.get_running_loop().run_in_executor(self.readers, function)
        finally:
            self.turns.leave(uid)

    async def read_new(self) -> bool:
        """Read the registries that are listed and that nobody has read, as what they offer is expected to be there.

        Returns whether there were any.
        """
        self.began.clear()
        self.reading += 1
        try:
            async with self.reads:
                if all(line.state != "new" for line in await asyncio.to_thread(self.catalog.sources)):
                    return False
                await self.catalog.refresh(only_new=True)
        except McpdError as error:
            log.warning("Registries cannot be read: %s", error.message)
        finally:
            self.reading -= 1
            if not self.reading:
                self.began.set()
        return True

    async def stocked(self) -> None:
        """Return when :meth:`read_new` has ended, or has taken long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_READING):
                await self.began.wait()

    async def look_for_updates(self) -> None:
        """Compare the installed servers with what the registries offered when they were last read."""
        async with self.looking:
            try:
                self.newer = await asyncio.to_thread(self.installer.updates)
            except McpdError as error:
                log.warning("Updates cannot be looked for: %s", error.message)

    async def spawn(
        self, server_id: str, fds: Mapping[int, int], uid: int, sender: str, environment: Mapping[str, str]
    ) -> Session:
        """Start *server_id* for *uid*, until *sender* leaves the bus."""
        return await self.sessions.spawn(server_id, fds, owner=Owner(uid, sender), environment=environment)
