# SPDX-License-Identifier: LGPL-2.1-or-later
"""Everything that changes the installed servers, each as a job (design §4, §7)."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from mcpd.errors import AlreadyInstalled, InvalidManifest, McpdError, NotFound, ReadOnly
from mcpd.install.job import JobKind, JobState
from mcpd.install.jobs import Jobs
from mcpd.install.pipeline import Pipeline
from mcpd.install.plan import make_plan
from mcpd.install.summary import is_summary, whole_entry
from mcpd.install.threads import in_thread
from mcpd.install.updates import is_from, is_same_version, is_update, recorded_registry
from mcpd.install.workbench import Tools
from mcpd.model import Entry, check_id, load_json
from mcpd.runtime.states import States

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mcpd.catalog import Catalog, CatalogEntry
    from mcpd.install.job import Job
    from mcpd.install.options import InstallOptions
    from mcpd.install.plan import Plan
    from mcpd.model import Manifest
    from mcpd.paths import Paths, Scope
    from mcpd.runtime.launchers import Launchers
    from mcpd.runtime.sessions import Sessions
    from mcpd.settings import Settings
    from mcpd.store import InstalledServer, Store

MAX_MANIFEST: Final = 1024 * 1024
"""Bytes of a manifest that a caller brings."""
REINSTALL: Final = "ask for a reinstallation (mcpctl install --reinstall)"

log = logging.getLogger(__name__)


class Installer:
    """Starts installations, updates, rollbacks and removals."""

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        sessions: Sessions,
        launchers: Launchers,
        paths: Paths,
        settings: Settings,
        scope: Scope,
    ) -> None:
        self.jobs = Jobs()
        self._store = store
        self._catalog = catalog
        self._sessions = sessions
        self._settings = settings
        self._scope = scope
        self._states = States(launchers.servers, paths, scope, settings)
        self._pipeline = Pipeline(store, sessions, Tools(launchers.builds, paths, settings, scope), self._states)

    async def install(self, server_id: str, options: InstallOptions, owner_uid: int) -> Job:
        """Install *server_id* as a registry describes it.

        Raises :class:`~mcpd.errors.NotFound`, :class:`~mcpd.errors.AlreadyInstalled`, :class:`~mcpd.errors.Busy`,
        :class:`~mcpd.errors.LimitExceeded`, and what is wrong with the entry or the options
        (:func:`mcpd.install.plan.make_plan`); everything later is the job's error.
        """
        found = await asyncio.to_thread(self._catalog.find, check_id(server_id))
        return self._install(found.entry, found.origin, options, owner_uid)

    def install_manifest(self, data: bytes, options: InstallOptions, owner_uid: int) -> Job:
        """Install what *data*, a registry entry or manifest as JSON, describes. Errors as :meth:`install`."""
        if len(data) > MAX_MANIFEST:
            raise InvalidManifest(f"the manifest is larger than {MAX_MANIFEST} bytes")
        document = load_json(data, "the manifest")
        if isinstance(document, dict):
            document = {key: value for key, value in document.items() if key not in {"config", "installDir"}}
        return self._install(Entry.parse(document, "the manifest"), "", options, owner_uid)

    async def update(self, server_ids: Iterable[str], options: InstallOptions, owner_uid: int) -> Job:
        """Install what registries have newer for *server_ids* (none: for all servers) as new generations.

        Only the registry that a server came from can update it. A server that is up to date is left alone. One that
        fails stops no other; the job then names all that failed.

        Raises :class:`~mcpd.errors.NotFound`, :class:`~mcpd.errors.ReadOnly` for a server of another layer,
        :class:`~mcpd.errors.Busy` and :class:`~mcpd.errors.LimitExceeded`.
        """
        wanted = list(dict.fromkeys(server_ids))
        found = await asyncio.to_thread(self._newer, wanted, reinstall=options.reinstall)

        async def work(job: Job) -> None:
            failed: list[McpdError] = []
            for index, one in enumerate(found):
                job.begin_part(index, len(found))
                try:
                    self._own(one.entry.id)
                    await self._carry_out(job, one.entry, one.origin, options)
                except McpdError as error:
                    failed.append(error)
            if failed:
                raise type(failed[0])("\n".join(error.message for error in failed))

        return self.jobs.start(JobKind.UPDATE, wanted or [one.entry.id for one in found], owner_uid, work)

    def rollback(self, server_id: str, owner_uid: int, *, generation: int | None = None) -> Job:
        """Go back to *generation*, or the one before the present. Errors as :meth:`update`."""
        self._own(server_id)

        async def work(job: Job) -> None:
            await self._change(job, server_id, partial(self._store.rollback, server_id, generation))

        return self.jobs.start(JobKind.ROLLBACK, [server_id], owner_uid, work)

    def uninstall(self, server_id: str, owner_uid: int, *, keep_config: bool = False) -> Job:
        """Stop *server_id* and remove it, its configuration and state too unless *keep_config*.

        Errors as :meth:`update`.
        """
        self._own(server_id)

        async def work(job: Job) -> None:
            if keep_config:
                await self._states.keep(server_id)
            await self._change(job, server_id, partial(self._store.remove, server_id, keep_config=keep_config))
            if not keep_config:
                await self._forget_state(server_id)

        return self.jobs.start(JobKind.UNINSTALL, [server_id], owner_uid, work)

    def forget(self, server_id: str, owner_uid: int) -> Job:
        """Stop the script server *server_id*, which may be broken or gone, and remove all that is kept for it.

        That is its configuration and its state; its script is for others to remove. For an installed server the job
        fails with :class:`~mcpd.errors.InvalidArgument`.
        """
        check_id(server_id)

        async def work(job: Job) -> None:
            job.enter(JobState.ACTIVATING)
            await in_thread(partial(self._store.forget, server_id))
            await self._sessions.stop_server(server_id)
            await self._forget_state(server_id)

        return self.jobs.start(JobKind.UNINSTALL, [server_id], owner_uid, work)

    def check_updates(self, owner_uid: int) -> Job:
        """Read the registries again; afterwards :meth:`updates` tells what is newer there."""
        return self._start_refresh(JobKind.CHECK_UPDATES, owner_uid)

    def refresh(self, owner_uid: int) -> Job:
        """Read the registries again."""
        return self._start_refresh(JobKind.REFRESH, owner_uid)

    def updates(self) -> dict[str, str]:
        """Servers of this layer that the registry they came from has newer: id → version there.

        It may read the whole catalogue, so it is for threads beside the event loop.
        """
        return {found.entry.id: found.entry.version for found in self._newer([])}

    async def close(self) -> None:
        """End all jobs; what they began is undone."""
        await self.jobs.close()

    def _install(self, entry: Entry, origin: str, options: InstallOptions, owner_uid: int) -> Job:
        self.jobs.check_free([entry.id])
        self._refuse_installed(entry, origin, options)
        plan = None if is_summary(entry) else make_plan(entry, origin, options, self._store, self._scope)
        return self.jobs.start(
            JobKind.INSTALL,
            [entry.id],
            owner_uid,
            lambda job: self._carry_out(job, entry, origin, options, plan),
            plan.answers if plan else None,
        )

    async def _carry_out(
        self, job: Job, entry: Entry, origin: str, options: InstallOptions, plan: Plan | None = None
    ) -> None:
        job.enter(JobState.PLANNING)
        if plan is None:
            whole = await whole_entry(entry, origin, self._settings.catalog)
            plan = make_plan(whole, origin, options, self._store, self._scope)
            job.answers = plan.answers
        await self._pipeline.install(job, plan)

    async def _change(self, job: Job, server_id: str, change: Callable[[], object]) -> None:
        """Make *change*, before and after which nothing of *server_id* runs: clients start it again at once."""
        job.enter(JobState.ACTIVATING)
        await self._sessions.stop_server(server_id)
        await in_thread(change)
        await self._sessions.stop_server(server_id)

    async def _forget_state(self, server_id: str) -> None:
        """The server is removed already, so this fails nothing; the next of its id looks again."""
        try:
            await self._states.drop(server_id)
        except McpdError as error:
            log.warning("%s: %s", server_id, error.message)

    def _refuse_installed(self, entry: Entry, registry: str, options: InstallOptions) -> None:
        """Raise :class:`~mcpd.errors.AlreadyInstalled` unless this changes the version, or replacing was asked for."""
        try:
            installed = self._store.get(entry.id)
        except NotFound:
            return
        if not installed.writable or installed.manifest is None or options.reinstall:
            return
        manifest = installed.manifest
        if registry and not is_from(manifest, entry, registry):
            raise AlreadyInstalled(
                f"{entry.id} is installed already, {_whence(manifest)}; "
                f"to replace it by what {registry} offers, {REINSTALL}"
            )
        if not installed.problem and is_same_version(manifest, entry, options.version):
            named = " ".join(filter(None, (entry.id, manifest.version)))
            raise AlreadyInstalled(f"{named} is installed already; to install it again, {REINSTALL}")

    def _newer(self, wanted: Iterable[str], *, reinstall: bool = False) -> list[CatalogEntry]:
        """What registries have newer for the servers *wanted*, or with *reinstall* at all; none: for all servers."""
        servers = [self._own(server_id) for server_id in wanted]
        again = reinstall and bool(servers)
        offers = self._catalog.offers()
        found: list[CatalogEntry] = []
        for server in servers or [server for server in self._store.list() if server.writable]:
            for offer in offers.get(server.id, ()):
                if _is_wanted(server.manifest, offer, again=again):
                    found.append(offer)
                    break
        return found

    def _start_refresh(self, kind: JobKind, owner_uid: int) -> Job:
        async def work(job: Job) -> None:
            job.enter(JobState.FETCHING)
            await self._catalog.refresh(lambda done, total: job.advance(100 * done / total))

        return self.jobs.start(kind, [], owner_uid, work)

    def _own(self, server_id: str) -> InstalledServer:
        """The installed server, if this instance may change it."""
        server = self._store.get(check_id(server_id))
        if server.script is not None:
            raise ReadOnly(
                f"{server_id} is a script server: its script ('mcpctl script remove {server_id}') or its entry in the"
                " mcps map is all there is of it"
            )
        if not server.writable:
            raise ReadOnly(f"{server_id} belongs to the {server.layer} layer and is not changed by this instance")
        return server


def _is_wanted(manifest: Manifest | None, offer: CatalogEntry, *, again: bool) -> bool:
    """Whether an update takes *offer*; *again*: also if it is not newer."""
    if manifest is None:
        return again  # nothing tells where a broken server came from
    return (again and is_from(manifest, offer.entry, offer.origin)) or is_update(manifest, offer.entry, offer.origin)


def _whence(manifest: Manifest) -> str:
    registry = recorded_registry(manifest)
    if registry is None:
        return "by another tool from another source"
    return f"from {registry}" if registry else "from a manifest of its own"
