# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpd on the bus: the objects, what they are made of, and the events that become signals."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from mcpd.bus.caller import Caller, Callers, Lookup, ask_bus
from mcpd.bus.dispatcher import Dispatcher, Table
from mcpd.bus.job import CHANGES, URGENT, JobObject
from mcpd.bus.job import METHODS as JOB_METHODS
from mcpd.bus.manager import METHODS as MANAGER_METHODS
from mcpd.bus.manager import Manager
from mcpd.bus.names import LOG_CONTROL_PATH, ROOT, job_path, session_path
from mcpd.bus.object_manager import Objects
from mcpd.bus.server import Servers
from mcpd.bus.session import METHODS as SESSION_METHODS
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

TABLE: Final[Table] = {**MANAGER_METHODS, **JOB_METHODS, **SESSION_METHODS}
"""Every method of ours; the standard ones are in :mod:`mcpd.bus.object_manager`."""
EDITS_LOOK: Final = 2.0
"""Seconds between two looks at the mcps map and at scripts: where they lie may not exist yet, so nothing would tell."""
FIRST_LOOK: Final = 3.0
"""Seconds that clients wait for the first one; if new scripts take longer to read, they are servers from then on."""
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
        lookup: Lookup = ask_bus,
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
            TABLE,
            self._callers,
            authority,
            only_uid=only_uid,
            bridge_uid=bridge_uid,
            read_only=lambda: core.settings.daemon.read_only,
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._seen: tuple[int, int] | None = None
        """What the store said of edits when the objects were last brought up to date with them."""
        self._listed: object = None
        """What the catalog said of the lists of sources when they were last looked at."""
        self._fault = ""
        """Why that was not possible, empty if it was."""
        self._unsubscribe: list[Callable[[], None]] = []

    @property
    def activity(self) -> Activity:
        """The calls under way."""
        return self._dispatcher.activity

    def installed(self) -> int:
        """How many servers were installed when somebody last looked."""
        return len(self._servers)

    async def start(self, adopt: Callable[[], Awaitable[None]] | None = None) -> None:
        """Answer calls, and signal what happens.

        *adopt* takes over the running servers of an earlier mcpd, so that their objects are there from the first call
        and their owners hear of their end.
        """
        await self._callers.start()
        self._unsubscribe = [
            self._core.installer.jobs.subscribe(self._on_job),
            self._core.sessions.subscribe(self._on_session),
        ]
        self._listed = await asyncio.to_thread(self._core.catalog.listed)
        look = asyncio.create_task(self._look())
        self._watching = asyncio.create_task(self._watch_edits(look))
        await asyncio.wait([look], timeout=FIRST_LOOK)
        if not look.done():
            log.info("There are new scripts that take long to read; they are listed later")
            self._sync()
        self._objects.announce()
        if adopt is not None:
            await adopt()
        for name in {session.owner.name for session in self._core.sessions.list()}:
            self._spawn(self._watch_owner(name))
        self._dispatcher.start()
        self._spawn(self._look_for_updates())

    async def close(self) -> None:
        """Stop answering, and send what is still to be sent."""
        if self._watching is not None:
            self._watching.cancel()
        await self._dispatcher.close()
        await self._callers.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._objects.close()
        await self._connection.drain()

    async def _watch_owner(self, name: str) -> None:
        """Have *name*, which owns a session from before our time, known, so that its leaving is noticed."""
        try:
            await self._callers.get(name)
        except McpdError as error:
            log.info("The owner %s of running servers is gone: %s", name, error.message)
            await self._core.sessions.stop_owner(name)

    async def _look_for_updates(self) -> None:
        if await self._core.read_new():
            self._catalog_changed()
        await self._core.look_for_updates()
        self._sync()

    async def _watch_edits(self, first: asyncio.Task[None]) -> None:
        """Signal what somebody edits: who uses a server asks nothing any more by which it would be noticed.

        What the *first* look finds after clients are answered is signalled, too.
        """
        await first
        while True:
            await asyncio.sleep(EDITS_LOOK)
            await self._look()
            await self._look_at_sources()

    async def _look(self) -> None:
        """Signal what was edited since the last look. A boundary: the next look comes whatever this one meets."""
        try:
            now = await self._servers.looked()
        except Exception as error:  # noqa: BLE001 -- logged there
            self._tell(error)
            return
        if now == self._seen and not self._fault:
            return
        if self._sync():
            self._seen, self._fault = now, ""

    async def _look_at_sources(self) -> None:
        """Read the registries that somebody listed by hand since the last look."""
        listed = await asyncio.to_thread(self._core.catalog.listed)
        if listed != self._listed:
            self._listed = listed
            self._sources_changed()

    def _sources_changed(self) -> None:
        """Signal that other registries are listed, and read those that are new."""
        self._catalog_changed()
        self._spawn(self._look_for_updates())

    def _catalog_changed(self) -> None:
        self._objects.emit(ROOT, "CatalogChanged")

    def _sync(self) -> bool:
        """Bring the objects up to date, and say whether that was possible. A boundary: whoever asks goes on without."""
        try:
            self._servers.sync()
        except Exception as error:  # noqa: BLE001 -- logged there
            self._tell(error)
            return False
        return True

    def _tell(self, error: Exception) -> None:
        """Log why the servers cannot be looked at; of one fault that stays once, as the looks are many."""
        fault = f"{type(error).__name__}: {error}"
        if fault == self._fault:
            return
        self._fault = fault
        if isinstance(error, McpdError):
            log.warning("The installed servers cannot be listed: %s", error.message)
        else:
            log.error("The installed servers cannot be listed, by a fault of mcpd's own", exc_info=error)

    def _on_job(self, event: JobEvent) -> None:
        path = job_path(event.job.number)
        if event.kind == "added":
            self._objects.add(path, JobObject(event.job), self._hidden_by(Owner(event.job.owner_uid, "")))
        elif event.kind == "changed":
            names = [name for attribute in event.changed for name in CHANGES.get(attribute, ())]
            self._objects.changed(path, names, urgent=not URGENT.isdisjoint(event.changed))
        elif event.kind == "finished":
            self._spawn(self._finish(event.job, path))
        elif event.kind == "removed":
            self._objects.remove(path)

    async def _finish(self, job: Job, path: str) -> None:
        """Signal what the job changed before its end, so that who waits for the end has seen it."""
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
            self._objects.add(path, SessionObject(session, self._core.sessions), self._hidden_by(session.owner))
        elif session.exit is not None:
            result = "success" if session.exit.code == 0 else "failed"
            if session.owner.name.startswith(":"):
                self._objects.emit(path, "Exited", result, session.exit.code, destination=session.owner.name)
            self._objects.remove(path)

    def _hidden_by(self, owner: Owner) -> Owner | None:
        """Whose an object is, where there are others to hide it from."""
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
            log.error("Something on the bus failed", exc_info=task.exception())
