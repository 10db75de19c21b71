# SPDX-License-Identifier: LGPL-2.1-or-later
"""Jobs that change the installed servers: install, update, roll back, approve, verify and remove."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Final

from mcpd.catalog import CatalogEntry
from mcpd.catalog.ingest import pins_what_it_names
from mcpd.errors import (
    AlreadyInstalled,
    Busy,
    Cancelled,
    InvalidArgument,
    InvalidManifest,
    McpdError,
    NeedsApproval,
    NotAuthorized,
    NotFound,
    ReadOnly,
    SignatureInvalid,
)
from mcpd.install.activation import Activation
from mcpd.install.entries import MAX_MANIFEST, complete_entry, user_supplied_entry
from mcpd.install.history import rollback_target
from mcpd.install.job import JobKind, Jobs, JobState
from mcpd.install.pipeline import PLAN_ONLY, Pipeline
from mcpd.install.plan import at_version, make_plan
from mcpd.install.updates import (
    Revisions,
    Updates,
    check_pin,
    content_digest,
    is_different_server,
    is_older,
    is_same_version,
    recorded_registry,
)
from mcpd.install.verification import check_generation, verify_servers
from mcpd.install.workbench import Tools
from mcpd.model import SourceType, check_id
from mcpd.runtime.guard import Guard
from mcpd.runtime.states import States
from mcpd.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from mcpd.catalog import Catalog
    from mcpd.install.job import Job
    from mcpd.install.options import InstallOptions
    from mcpd.install.plan import Plan
    from mcpd.install.sources.mcpb import Bundle
    from mcpd.install.updates import Update
    from mcpd.model import Entry, Manifest
    from mcpd.paths import Paths, Scope
    from mcpd.runtime.launchers import Launchers
    from mcpd.runtime.sessions import Sessions
    from mcpd.settings import Settings
    from mcpd.store import InstalledServer, Store
    from mcpd.trust.keys import Keys

REINSTALL: Final = "request a reinstallation (mcpctl install --reinstall)"

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
        keys: Keys,
    ) -> None:
        self.jobs = Jobs()
        self._store = store
        self._catalog = catalog
        self._sessions = sessions
        self._paths = paths
        self._settings = settings
        self._scope = scope
        self._states = States(launchers.servers, paths, scope, settings)
        self._keys = keys
        self._activation = Activation(store, sessions, settings, self._states)
        tools = Tools(launchers.builds, paths, settings, scope)
        self._pipeline = Pipeline(store, tools, self._activation, keys)
        self._revisions = Revisions(tools, store)
        self._updates = Updates(store, catalog, self._revisions)

    async def find(self, server_id: str, options: InstallOptions) -> CatalogEntry:
        """Return the offer for *server_id*, at the version that *options* ask for.

        Raises :class:`~mcpd.errors.NotFound`, and :class:`~mcpd.errors.InvalidArgument` if the entry has no versions to
        choose from.
        """
        offer = await in_thread(partial(self._catalog.find, check_id(server_id), options.source))
        return at_version(offer, options.version)

    async def install(self, server_id: str, options: InstallOptions, owner_uid: int) -> Job:
        """Install *server_id* from a registry. Raises the same errors as :meth:`find` and :meth:`install_offer`."""
        return self.install_offer(await self.find(server_id, options), options, owner_uid)

    def install_offer(self, offer: CatalogEntry, options: InstallOptions, owner_uid: int) -> Job:
        """Install *offer*.

        Raises :class:`~mcpd.errors.AlreadyInstalled`, :class:`~mcpd.errors.Busy`, :class:`~mcpd.errors.LimitExceeded`
        and the validation errors of :func:`mcpd.install.plan.make_plan`; all later errors are the job's.
        """
        return self._install(offer, options, owner_uid)

    def install_manifest(self, data: bytes, options: InstallOptions, owner_uid: int, signer: str = "") -> Job:
        """Install the server that *data*, the JSON of a registry entry or manifest, describes.

        *signer* is the name of the trusted key that signed *data*; it covers the files only if *data* pins them. Raises
        the same errors as :meth:`install_offer`.
        """
        if len(data) > MAX_MANIFEST:
            raise InvalidManifest(f"the manifest is larger than {MAX_MANIFEST} bytes")
        entry = user_supplied_entry(data)
        verified_by = signer if pins_what_it_names(entry) else ""
        return self._install(
            CatalogEntry(entry, "", verified=bool(verified_by), signer=verified_by), options, owner_uid
        )

    def bundle_signer(self, bundle: Bundle, *, required: bool = False) -> str:
        """Return the name of the trusted key that covers *bundle*, empty if there is none. Reads the catalog.

        A key covers a bundle if it signed a registry that has an entry with the same id and hash. With *required*, for
        a signature that was the reason to allow the installation, raises :class:`~mcpd.errors.SignatureInvalid` or
        :class:`~mcpd.errors.NotAuthorized` if there is no such key.
        """
        for offer in self._catalog.offers([bundle.entry.id]).get(bundle.entry.id, ()):
            source = offer.entry.source
            if offer.verified and source and (source.type, source.sha256) == (SourceType.MCPB, bundle.sha256):
                return offer.signer
        if not required:
            return ""
        fault = f"this bundle is not signed by a trusted key as {bundle.entry.id}"
        if self._catalog.pins_sha256(bundle.sha256):
            raise SignatureInvalid(
                f"{fault}: the registry lists this file under another id; use the option 'unverified' to install it"
                " like any other file"
            )
        raise NotAuthorized(f"{fault}; the key was removed meanwhile, so try again to authorize it as unsigned")

    def install_bundle(self, bundle: Bundle, options: InstallOptions, owner_uid: int, signer: str = "") -> Job:
        """Install a user-supplied bundle that the key *signer* covers; the job removes the file when it ends.

        Raises the same errors as :meth:`install_offer`; if it raises, the caller has to remove the file.
        """
        offer = CatalogEntry(bundle.entry, "", verified=bool(signer), signer=signer)
        return self._install(offer, options, owner_uid, bundle=bundle)

    async def update(self, server_ids: Iterable[str], options: InstallOptions, owner_uid: int) -> Job:
        """Install the updates of *server_ids* (empty: of all servers) as new generations.

        Only the registry that a server came from can update it. Servers that are up to date are skipped. If some fail,
        the others are still updated, and the job's error names all that failed.

        Raises :class:`~mcpd.errors.NotFound`, :class:`~mcpd.errors.ReadOnly` for a server of another layer,
        :class:`~mcpd.errors.Busy` and :class:`~mcpd.errors.LimitExceeded`.
        """
        wanted = list(dict.fromkeys(server_ids))
        return self.update_to(wanted, await self.update_offers(wanted, options), options, owner_uid)

    async def update_offers(self, server_ids: Iterable[str], options: InstallOptions) -> list[CatalogEntry]:
        """Return the offers that :meth:`update` would install, at the version that *options* ask for.

        Raises :class:`~mcpd.errors.NotFound`, :class:`~mcpd.errors.ReadOnly`, and :class:`~mcpd.errors.InvalidArgument`
        if a version is given for several servers, or for a server that has none to choose from.
        """
        wanted = list(dict.fromkeys(server_ids))
        if options.version and len(wanted) != 1:
            raise InvalidArgument(f"version {options.version!r} applies to a single server; specify exactly one")

        def find() -> list[CatalogEntry]:
            servers = {server_id: self._own(server_id) for server_id in wanted}
            found = self._updates.find(servers.values(), reinstall=options.reinstall)
            for offer in found:
                server = servers.get(offer.entry.id)
                if server is not None and server.manifest is not None and not options.version:
                    check_pin(server.manifest, offer.entry, reinstall=options.reinstall)
            return found

        return [at_version(offer, options.version) for offer in await in_thread(find)]

    def update_to(
        self, wanted: Collection[str], found: Sequence[CatalogEntry], options: InstallOptions, owner_uid: int
    ) -> Job:
        """Install the offers *found* as updates of *wanted* (empty: of all servers).

        Raises the same errors as :meth:`update`.
        """

        async def work(job: Job) -> None:
            failed: list[McpdError] = []
            for index, one in enumerate(found):
                job.begin_part(index, len(found), one.entry.id)
                try:
                    self._own(one.entry.id)
                    await self._carry_out(job, one, options)
                except Cancelled:
                    continue  # a dry run
                except McpdError as error:
                    failed.append(error)
            if failed:
                worst = next((error for error in failed if not isinstance(error, NeedsApproval)), failed[0])
                raise type(worst)("\n".join(error.message for error in failed))
            if options.dry_run:
                raise Cancelled(PLAN_ONLY)

        return self.jobs.start(JobKind.UPDATE, list(wanted) or [one.entry.id for one in found], owner_uid, work)

    async def rollback_target(self, server_id: str, wanted: int | None = None) -> int:
        """Return the generation that :meth:`rollback` activates: *wanted*, or the default if that is None.

        Raises :class:`~mcpd.errors.NotFound` and :class:`~mcpd.errors.ReadOnly`.
        """
        self._own(server_id)
        return await in_thread(rollback_target, self._store, server_id, wanted)

    def rollback(self, server_id: str, owner_uid: int, *, generation: int | None = None) -> Job:
        """Activate *generation*, by default the result of :func:`~mcpd.install.history.rollback_target`.

        Raises the same errors as :meth:`update`. The job fails with :class:`~mcpd.errors.IntegrityMismatch` if the
        files differ from what was installed.
        """
        self._own(server_id)

        async def work(job: Job) -> None:
            job.enter(JobState.VERIFYING)
            number = await in_thread(rollback_target, self._store, server_id, generation)
            await in_thread(check_generation, self._store, server_id, number)
            await self._change(job, server_id, partial(self._store.rollback, server_id, number, keep_pin=True))

        return self.jobs.start(JobKind.ROLLBACK, [server_id], owner_uid, work)

    def approve(self, server_id: str, owner_uid: int, *, generation: int | None = None, drop: bool = False) -> Job:
        """Activate the pending update of *server_id*; if *generation* is given, only if that generation is pending.

        With *drop* the update is removed instead. Raises the same errors as :meth:`update`.
        """
        self._own(server_id)
        decide = self._activation.drop if drop else self._activation.approve

        async def work(job: Job) -> None:
            await decide(job, server_id, generation)

        return self.jobs.start(JobKind.APPROVE, [server_id], owner_uid, work)

    def verify(self, server_ids: Iterable[str], owner_uid: int) -> Job:
        """Compare the files of *server_ids* (empty: all servers of this layer) with the recorded hashes.

        The job fails like :func:`~mcpd.install.verification.verify_servers`. Verification keeps the disk busy, so each
        user can run one such job at a time. Raises the same errors as :meth:`update`.
        """
        for job in self.jobs.list():
            if job.kind is JobKind.VERIFY and job.owner_uid == owner_uid and not job.state.finished:
                raise Busy(f"job {job.number} is already verifying; wait for it or cancel it")
        wanted = [self._own(server_id).id for server_id in dict.fromkeys(server_ids)]

        async def work(job: Job) -> None:
            job.enter(JobState.VERIFYING)
            await verify_servers(self._store, wanted, job.advance)

        return self.jobs.start(JobKind.VERIFY, [], owner_uid, work)

    async def set_pinned(self, server_id: str, pinned: bool) -> None:
        """Pin *server_id* to its version, or unpin it.

        Raises :class:`~mcpd.errors.Busy` while a job works on the server: if the job rolls back a generation on trial,
        the pin would be lost.
        """
        self.jobs.check_free([server_id])
        await in_thread(self._store.set_pinned, server_id, pinned)

    def uninstall(self, server_id: str, owner_uid: int, *, keep_config: bool = False) -> Job:
        """Stop and remove *server_id* and, unless *keep_config*, its configuration and state.

        Raises the same errors as :meth:`update`.
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
        """Stop the script server *server_id*, which may be broken or missing, and remove its configuration and state.

        The caller removes the script. For an installed server the job fails with :class:`~mcpd.errors.InvalidArgument`.
        """
        check_id(server_id)

        async def work(job: Job) -> None:
            job.enter(JobState.ACTIVATING)
            await in_thread(partial(self._store.forget, server_id))
            await self._sessions.stop_server(server_id)
            await self._forget_state(server_id)

        return self.jobs.start(JobKind.UNINSTALL, [server_id], owner_uid, work)

    def check_updates(self, owner_uid: int) -> Job:
        """Refresh the registries and query the followed git branches; the result is in :meth:`updates`."""

        async def work(job: Job) -> None:
            await self._read_registries(job)
            await self._revisions.refresh(job, await in_thread(self._store.list))

        return self.jobs.start(JobKind.CHECK_UPDATES, [], owner_uid, work)

    def refresh(self, owner_uid: int) -> Job:
        """Refresh the registries."""
        return self.jobs.start(JobKind.REFRESH, [], owner_uid, self._read_registries)

    def updates(self) -> dict[str, Update]:
        """Return the updates of this layer's servers, by id. Blocks on the disk."""
        return self._updates.updates()

    async def close(self) -> None:
        """Cancel all jobs and undo what they began."""
        await self.jobs.close()

    def _install(
        self, offer: CatalogEntry, options: InstallOptions, owner_uid: int, *, bundle: Bundle | None = None
    ) -> Job:
        entry = offer.entry
        self.jobs.check_free([entry.id])
        self._refuse_installed(entry, offer.origin, options)
        plan = None if entry.is_summary else self._plan(offer, options, given=bundle is not None)

        async def work(job: Job) -> None:
            try:
                await self._carry_out(job, offer, options, plan)
            finally:
                if bundle is not None:
                    await in_thread(bundle.remove)

        return self.jobs.start(JobKind.INSTALL, [entry.id], owner_uid, work, plan.answers if plan else None)

    async def _carry_out(
        self, job: Job, offer: CatalogEntry, options: InstallOptions, plan: Plan | None = None
    ) -> None:
        job.enter(JobState.PLANNING)
        if plan is None:
            content = content_digest(offer.entry)
            offer = await complete_entry(offer, self._settings.catalog, self._keys)
            plan = self._plan(offer, options, content=content)
            job.answers.forget()  # the values given for the previous server
            job.answers = plan.answers
        await self._pipeline.install(job, plan)

    def _plan(self, offer: CatalogEntry, options: InstallOptions, *, content: str = "", given: bool = False) -> Plan:
        content = content or content_digest(offer.entry)
        guard = Guard.of(self._paths, self._scope) if self._settings.runtime.sandbox == "on" else None
        return make_plan(
            offer,
            options,
            self._store,
            guard,
            self._scope,
            content=content,
            is_user_supplied=given,
            has_state=self._states.is_kept(offer.entry.id),
        )

    async def _change(self, job: Job, server_id: str, change: Callable[[], object]) -> None:
        """Stop *server_id*, apply *change*, and stop it again, since clients may have restarted it in the meantime."""
        job.enter(JobState.ACTIVATING)
        await self._sessions.stop_server(server_id)
        await in_thread(change)
        await self._sessions.stop_server(server_id)

    async def _forget_state(self, server_id: str) -> None:
        """Remove the state of the removed *server_id*; errors are logged, as the next installation tries again."""
        try:
            await self._states.drop(server_id)
        except McpdError as error:
            log.warning("%s: %s", server_id, error.message)

    def _refuse_installed(self, entry: Entry, registry: str, options: InstallOptions) -> None:
        """Raise :class:`~mcpd.errors.AlreadyInstalled` unless *entry* or *options* allow the installation."""
        try:
            installed = self._store.get(entry.id)
        except NotFound:
            return
        if not installed.writable and not options.reinstall and self._has_kept(entry.id):
            raise AlreadyInstalled(
                f"{entry.id} would replace another server with this id and take over its values, secrets and state;"
                f" to allow that, {REINSTALL}"
            )
        if not installed.writable or installed.manifest is None:
            return
        manifest = installed.manifest
        if registry and not options.version:
            check_pin(manifest, entry, reinstall=options.reinstall)
        if options.reinstall:
            return
        if is_different_server(manifest, entry, registry):
            known = _origin_text(manifest) if registry or recorded_registry(manifest) else "from another source"
            new = f"what {registry} offers" if registry else "this"
            raise AlreadyInstalled(f"{entry.id} is already installed, {known}; to replace it with {new}, {REINSTALL}")
        if not installed.problem and is_same_version(manifest, entry, options.version):
            named = " ".join(filter(None, (entry.id, manifest.version)))
            raise AlreadyInstalled(f"{named} is already installed; to install it again, {REINSTALL}")
        if registry and not options.version and is_older(entry, manifest):
            raise AlreadyInstalled(
                f"{entry.id} {manifest.version} is installed, which is newer than {entry.version} from {registry};"
                f" to downgrade, {REINSTALL}"
            )

    def _has_kept(self, server_id: str) -> bool:
        """Return whether values, secrets or state of *server_id* exist."""
        state = self._paths.layout(self._scope).state / server_id
        return os.path.lexists(state) or self._store.kept(server_id) is not None

    async def _read_registries(self, job: Job) -> None:
        job.enter(JobState.FETCHING)
        await self._catalog.refresh(lambda done, total: job.advance(100 * done / total))

    def _own(self, server_id: str) -> InstalledServer:
        """Return the server *server_id*; raise :class:`~mcpd.errors.ReadOnly` if this instance may not change it."""
        server = self._store.get(check_id(server_id))
        if server.script is not None:
            raise ReadOnly(
                f"{server_id} is a script server; remove its script ('mcpctl script remove {server_id}') or its"
                " entry in the mcps map instead"
            )
        if not server.writable:
            raise ReadOnly(f"{server_id} belongs to the {server.layer} layer and cannot be changed by this instance")
        return server


def _origin_text(manifest: Manifest) -> str:
    registry = recorded_registry(manifest)
    if registry is None:
        return "by another tool from another source"
    return f"from {registry}" if registry else "but not from a registry"
