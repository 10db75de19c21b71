# SPDX-License-Identifier: LGPL-2.1-or-later
"""The parts of mcpd that the D-Bus interfaces use."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from mcpd.bus.authorization import FairSemaphore
from mcpd.errors import McpdError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Executor
    from pathlib import Path

    from mcpd.catalog import Catalog
    from mcpd.install.installer import Installer
    from mcpd.install.updates import Update
    from mcpd.paths import Scope
    from mcpd.runtime.sessions import Sessions
    from mcpd.settings import Settings
    from mcpd.store import Store
    from mcpd.trust.keys import Keys

READERS: Final = 2
"""Number of concurrent long reads, each for a different user."""
FIRST_READ_TIMEOUT: Final = 5.0
"""Seconds that a search waits for registries that are read for the first time."""

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Core:
    """The objects that :mod:`mcpd.daemon` builds."""

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
    """Directory that keeps bundles from callers until they are installed."""
    updates: Mapping[str, Update] = field(default_factory=dict)
    """Update candidates by server id, as of :meth:`look_for_updates`."""

    all_read: asyncio.Event = field(default_factory=asyncio.Event)
    """Set after the first :meth:`read_new`, while no registry is being read for the first time."""
    reads_running: int = 0
    """Number of :meth:`read_new` calls that are running."""
    read_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while registries are read for the first time, so that none is read twice."""
    readers: Executor = field(default_factory=lambda: ThreadPoolExecutor(READERS, "reader"))
    """Separate from the threads that start and install servers, which searches would otherwise delay."""
    read_slots: FairSemaphore = field(default_factory=lambda: FairSemaphore(READERS, 1))
    updates_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while :attr:`updates` is computed, so that an older result never replaces a newer one."""
    sandbox_problem: str = ""
    """Reason why servers cannot be confined, and are not started; empty if they can, or if that is not known yet."""

    def features(self) -> list[str]:
        """Return the value of the property ``Features``."""
        sandbox = ["sandbox"] if self.settings.runtime.sandbox == "on" and not self.sandbox_problem else []
        read_only = ["read-only"] if self.settings.daemon.read_only else []
        return ["spawn", *sandbox, *read_only, f"launcher:{self.launcher_name}"]

    async def run_read(self, uid: int, function: Callable[[], T]) -> T:
        """Run *function*, a long read, in one of a few threads that users share fairly; return its result."""
        await self.read_slots.acquire(uid)
        try:
            return await asyncio.get_running_loop().run_in_executor(self.readers, function)
        finally:
            self.read_slots.release(uid)

    async def read_new(self) -> bool:
        """Read the listed registries that were never read; return whether there were any."""
        self.all_read.clear()
        self.reads_running += 1
        try:
            async with self.read_lock:
                if all(line.state != "new" for line in await asyncio.to_thread(self.catalog.sources)):
                    return False
                await self.catalog.refresh(only_new=True)
        except McpdError as error:
            log.warning("Failed to read registries: %s", error.message)
        finally:
            self.reads_running -= 1
            if not self.reads_running:
                self.all_read.set()
        return True

    async def wait_until_read(self) -> None:
        """Wait for the end of :meth:`read_new`, at most :data:`FIRST_READ_TIMEOUT` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_READ_TIMEOUT):
                await self.all_read.wait()

    async def look_for_updates(self) -> None:
        """Set :attr:`updates` by comparing the installed servers with the registries as last read."""
        async with self.updates_lock:
            try:
                self.updates = await asyncio.to_thread(self.installer.updates)
            except McpdError as error:
                log.warning("Failed to look for updates: %s", error.message)
