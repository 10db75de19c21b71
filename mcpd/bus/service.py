# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service: builds the D-Bus objects, keeps them up to date, and turns events of mcpd into signals."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from mcpd.bus.caller import Caller, Callers, Lookup, query_bus
from mcpd.bus.dispatcher import Dispatcher
from mcpd.bus.job import CHANGES, URGENT, JobObject
from mcpd.bus.manager import Manager
from mcpd.bus.names import LOG_CONTROL_PATH, ROOT, job_path, session_path
from mcpd.bus.object_manager import Objects
from mcpd.bus.server import Servers
from mcpd.bus.session import SessionObject
from mcpd.errors import McpdError
from mcpd.runtime.sessions import Owner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from mcpd.bus.authorization import Authority
    from mcpd.bus.connection import Connection
    from mcpd.bus.core import Core
    from mcpd.bus.idle import Activity
    from mcpd.bus.log_control import LogControl
    from mcpd.install.job import Job, JobEvent
    from mcpd.runtime.sessions import SessionEvent

SCAN_INTERVAL: Final = 2.0
"""Seconds between two scans of the mcps map and of scripts, which may not exist yet and so are not watched."""
FIRST_SCAN_TIMEOUT: Final = 3.0
"""Seconds that calls wait for the first scan; scripts that take longer to read are listed later."""
_CATALOG_JOBS: Final = frozenset({"refresh", "check-updates"})

log = logging.getLogger(__name__)


class Service:
    """Serves *core* on *connection*."""

    def __init__(
        self,
        connection: Connection,
        core: Core,
        authority: Authority,
        *,
        only_uid: int | None = None,
        bridge_uid: int | None = None,
        lookup: Lookup = query_bus,
        log_control: LogControl | None = None,
    ) -> None:
        self._connection = connection
        self._core = core
        self._has_one_user = only_uid is not None
        self._callers = Callers(connection, lookup)
        self._objects = Objects(connection, self._callers.names_of)
        self._callers.on_vanish(self._on_vanish)
        self._servers = Servers(core, self._objects)
        self._objects.add(ROOT, Manager(core, self._servers, self._catalog_changed, self._sources_changed, bridge_uid))
        if log_control is not None:
            self._objects.add(LOG_CONTROL_PATH, log_control)
        self._dispatcher = Dispatcher(
            connection,
            self._objects,
            self._callers,
            authority,
            only_uid=only_uid,
            bridge_uid=bridge_uid,
            read_only=lambda: core.settings.daemon.read_only,
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self._scanning: asyncio.Task[None] | None = None
        self._scanned: tuple[int, int] | None = None
        """The scan result of the store that the objects were last updated from."""
        self._source_lists: object = None
        """State of the catalog's source lists when they were last checked."""
        self._fault = ""
        """Why the last update of the objects failed; empty if it succeeded."""
        self._unsubscribe: list[Callable[[], None]] = []

    @property
    def activity(self) -> Activity:
        """The running calls."""
        return self._dispatcher.activity

    def installed(self) -> int:
        """Return the number of servers that were installed as of the last update of the objects."""
        return len(self._servers)

    async def start(self, adopt: Callable[[], Awaitable[None]] | None = None) -> None:
        """Answer calls, and emit signals.

        *adopt* takes over the running servers of an earlier mcpd, so that their objects exist from the first call on
        and their owners get the signals of their end.
        """
        await self._callers.start()
        self._unsubscribe = [
            self._core.installer.jobs.subscribe(self._on_job),
            self._core.sessions.subscribe(self._on_session),
        ]
        self._source_lists = await asyncio.to_thread(self._core.catalog.listed)
        first = asyncio.create_task(self._scan())
        self._scanning = asyncio.create_task(self._watch_edits(first))
        await asyncio.wait([first], timeout=FIRST_SCAN_TIMEOUT)
        if not first.done():
            log.info("New scripts are still being read; they will be listed later")
            self._sync()
        self._objects.start_signals()
        if adopt is not None:
            await adopt()
        for name in {session.owner.name for session in self._core.sessions.list()}:
            self._spawn(self._watch_owner(name))
        self._dispatcher.start()
        self._spawn(self._look_for_updates())

    async def close(self) -> None:
        """Stop answering, and send what is still queued."""
        if self._scanning is not None:
            self._scanning.cancel()
        await self._dispatcher.close()
        await self._callers.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._objects.close()
        await self._connection.drain()

    async def _watch_owner(self, name: str) -> None:
        """Look up *name*, the owner of a session from before this start, to notice when it leaves."""
        try:
            await self._callers.get(name)
        except McpdError as error:
            log.info("The owner %s of running servers has disconnected from the bus: %s", name, error.message)
            await self._core.sessions.stop_owner(name)

    async def _look_for_updates(self) -> None:
        if await self._core.read_new():
            self._catalog_changed()
        await self._core.look_for_updates()
        self._sync()

    async def _watch_edits(self, first: asyncio.Task[None]) -> None:
        """Scan for edited files repeatedly, since using a server need not involve a call to mcpd.

        Results of the *first* scan that arrive after :meth:`start` has returned are signalled, too.
        """
        await first
        while True:
            await asyncio.sleep(SCAN_INTERVAL)
            await self._scan()
            await self._check_sources()

    async def _scan(self) -> None:
        """Signal the edits since the last scan. Errors are handled here: the next scan may succeed."""
        try:
            now = await self._servers.scan()
        except Exception as error:  # noqa: BLE001 -- logged there
            self._log_fault(error)
            return
        if now == self._scanned and not self._fault:
            return
        if self._sync():
            self._scanned, self._fault = now, ""

    async def _check_sources(self) -> None:
        """Read registries that were added to the source lists by hand."""
        listed = await asyncio.to_thread(self._core.catalog.listed)
        if listed != self._source_lists:
            self._source_lists = listed
            self._sources_changed()

    def _sources_changed(self) -> None:
        """Signal that the listed registries changed, and read the new ones."""
        self._catalog_changed()
        self._spawn(self._look_for_updates())

    def _catalog_changed(self) -> None:
        self._objects.emit(ROOT, "CatalogChanged")

    def _sync(self) -> bool:
        """Update the objects; return whether that succeeded. Errors are handled here."""
        try:
            self._servers.sync()
        except Exception as error:  # noqa: BLE001 -- logged there
            self._log_fault(error)
            return False
        return True

    def _log_fault(self, error: Exception) -> None:
        """Log why the servers cannot be listed; a fault that persists is logged once."""
        fault = f"{type(error).__name__}: {error}"
        if fault == self._fault:
            return
        self._fault = fault
        if isinstance(error, McpdError):
            log.warning("The installed servers cannot be listed: %s", error.message)
        else:
            log.error("The installed servers cannot be listed: internal error", exc_info=error)

    def _on_job(self, event: JobEvent) -> None:
        path = job_path(event.job.number)
        if event.kind == "added":
            self._objects.add(path, JobObject(event.job), self._restricted_to(Owner(event.job.owner_uid, "")))
        elif event.kind == "changed":
            names = [name for attribute in event.changed for name in CHANGES.get(attribute, ())]
            self._objects.changed(path, names, urgent=not URGENT.isdisjoint(event.changed))
        elif event.kind == "finished":
            self._spawn(self._finish(event.job, path))
        elif event.kind == "removed":
            self._objects.remove(path)

    async def _finish(self, job: Job, path: str) -> None:
        """Signal the job's changes before its end, so that a client that waits for the end knows them."""
        await self._core.look_for_updates()
        self._sync()
        if job.kind in _CATALOG_JOBS:
            self._catalog_changed()
        result = JobObject(job).result()
        self._objects.emit(path, "Finished", *result)
        self._objects.emit(ROOT, "JobRemoved", path, *result, about=path)

    def _on_session(self, event: SessionEvent) -> None:
        session = event.session
        path = session_path(session.number)
        if event.kind == "started":
            self._objects.add(path, SessionObject(session, self._core.sessions), self._restricted_to(session.owner))
        elif session.exit is not None:
            result = "success" if session.exit.code == 0 else "failed"
            if session.owner.name.startswith(":"):
                self._objects.emit(path, "Exited", result, session.exit.code, destination=session.owner.name)
            self._objects.remove(path)

    def _restricted_to(self, owner: Owner) -> Owner | None:
        """Return *owner*, to whom an object is restricted; ``None`` if there is only one user."""
        return None if self._has_one_user else owner

    def _on_vanish(self, caller: Caller) -> None:
        self._spawn(self._core.sessions.stop_owner(caller.name))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("A background task of the D-Bus service failed", exc_info=task.exception())
