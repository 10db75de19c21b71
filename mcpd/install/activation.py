# SPDX-License-Identifier: LGPL-2.1-or-later
"""Activation of a built generation, on trial: rolled back unless the health check succeeds.

During the trial only mcpd can start the server, so clients only ever see a server that has answered and, after an
update, has unchanged or approved tools.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from mcpd.errors import InvalidManifest, McpdError, NeedsApproval, NotFound, Unhealthy
from mcpd.install.definitions import compare, needs_approval
from mcpd.install.health import HealthCheck
from mcpd.install.job import JobState
from mcpd.install.lockfile import identity, record_protocol
from mcpd.store import Generation
from mcpd.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Collection

    from mcpd.install.health import Health
    from mcpd.install.job import Job
    from mcpd.install.options import Answers
    from mcpd.model import JsonValue, Manifest
    from mcpd.runtime.sessions import Sessions
    from mcpd.runtime.states import States
    from mcpd.settings import Settings
    from mcpd.store import Store
    from mcpd.store.lifecycle import Tools

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _PreviousState:
    """The state before an activation."""

    generation: int | None
    other_layer: bool
    """True if the id belonged to a server of another layer."""
    values: dict[str, JsonValue] = field(repr=False)
    nothing: bool = False
    """True if no server with this id was installed."""


class Activation:
    """Activates new generations, on trial until their health check succeeds."""

    def __init__(self, store: Store, sessions: Sessions, settings: Settings, states: States) -> None:
        self._store = store
        self._sessions = sessions
        self._settings = settings
        self._states = states

    async def activate(
        self,
        job: Job,
        generation: Generation,
        manifest: Manifest,
        answers: Answers,
        *,
        watch_tools: bool,
        is_checked: bool = True,
    ) -> None:
        """Activate *generation* with *manifest* and the values of *answers*.

        *is_checked* enables the health check. With *watch_tools*, an update with different content that adds or changes
        tools is held until it is approved. Raises :class:`~mcpd.errors.Unhealthy`, :class:`~mcpd.errors.NeedsApproval`
        and the errors of activation; the previous generation is then active again.
        """
        job.advance(90)
        before = await in_thread(self._previous_state, manifest.id)
        async with self._sessions.reserved(manifest.id):
            job.enter(JobState.ACTIVATING)
            given = answers.given()  # complete: the job takes no values during activation
            manifest = manifest.model_copy(update={"config": given})
            health: Health | None = None
            try:
                if before.nothing:
                    await self._states.drop_unless_kept(manifest.id)
                await in_thread(partial(self._store.activate, generation, manifest, on_trial=True))
                if is_checked:
                    health = await self._check(job, generation, manifest)
                if health is not None and watch_tools:
                    await in_thread(self._compare, before.generation, generation, manifest, health)
            except NeedsApproval as error:
                if not await self._undo(before, generation, given):
                    raise NeedsApproval(
                        f"{manifest.id} changes tools. {_version_in_use(manifest.id, is_back=False)}"
                    ) from error
                await self._hold(generation, manifest, health.tools if health is not None else None)
                raise
            except BaseException as error:
                is_back = await self._undo(before, generation, given)
                if is_back:
                    await self._discard(generation)
                if isinstance(error, Unhealthy) and before.generation is not None:
                    raise Unhealthy(f"{error.message}\n{_version_in_use(manifest.id, is_back=is_back)}") from error
                raise
        await self._settle(manifest.id)

    async def approve(self, job: Job, server_id: str, number: int | None) -> None:
        """Activate the pending update of *server_id*; *number* is the generation that the approver saw, None for any.

        Raises :class:`~mcpd.errors.NotFound` if that generation is not pending, and :class:`~mcpd.errors.Unhealthy`.
        """
        held = await self._held(server_id, number)
        before = await in_thread(self._previous_state, server_id)
        async with self._sessions.reserved(server_id):
            job.enter(JobState.ACTIVATING)
            await self._sessions.stop_server(server_id)
            try:
                server = await in_thread(self._store.approve, server_id, held)
                if server.manifest is not None:
                    generation = Generation(server_id, held, self._store.generation_path(server_id, held))
                    health = await self._check(job, generation, server.manifest, keep=False)
                    if health is not None:
                        await in_thread(self._check_shown, server_id, held, health)
            except BaseException as error:
                # Keep the recorded tools of this generation: approval refers to it by its number, which must always
                # stand for the same list of tools.
                is_back = await in_thread(self._restore_generation, server_id, before.generation, held)
                self._sessions.forget_crashes(server_id)
                if isinstance(error, Unhealthy):
                    raise Unhealthy(f"{error.message}\n{_version_in_use(server_id, is_back=is_back)}") from error
                raise
        await self._sessions.stop_server(server_id)
        await self._settle(server_id)

    async def drop(self, job: Job, server_id: str, number: int | None) -> None:
        """Remove the pending update of *server_id*; *number* is the generation that the caller saw, None for any.

        Raises :class:`~mcpd.errors.NotFound` if that generation is not pending, and the errors of removing.
        """
        held = await self._held(server_id, number)
        job.enter(JobState.ACTIVATING)
        await in_thread(self._store.drop_held, server_id, held)

    async def _held(self, server_id: str, number: int | None) -> int:
        """Return the number of the pending generation; raise :class:`~mcpd.errors.NotFound` if *number* is not it."""
        held = await in_thread(self._store.held, server_id)
        if held is None or number not in (None, held):
            raise NotFound(f"{server_id} has no such pending update; see 'mcpctl history {server_id}'")
        return held

    async def _settle(self, server_id: str) -> None:
        await self._states.settle(server_id)
        try:
            await in_thread(self._store.prune, server_id)
        except McpdError as error:
            log.warning("%s: could not remove old generations: %s", server_id, error.message)

    async def _check(self, job: Job, generation: Generation, manifest: Manifest, *, keep: bool = True) -> Health | None:
        """Run the health check; with *keep*, record the listed tools and the protocol."""
        if manifest.stdio is None and manifest.remote is None:
            return None
        self._sessions.forget_crashes(manifest.id)  # crashes of the previous version do not count
        timeout = self._settings.install.health_timeout
        health = await HealthCheck(self._sessions, manifest.id, job.owner_uid, timeout).run()
        if keep:
            await in_thread(self._store.set_tools, manifest.id, health.tools)
            await in_thread(record_protocol, generation.path, health.protocol)
        job.advance(98)
        return health

    def _check_shown(self, server_id: str, held: int, health: Health) -> None:
        """Raise :class:`~mcpd.errors.NeedsApproval` if the tools differ from those shown for approval."""
        if needs_approval(compare(self._store.generation_tools(server_id, held) or [], health.tools)):
            raise NeedsApproval(
                f"{server_id} lists different tools than those shown for approval, and was not activated;"
                f" run 'mcpctl install --reinstall {server_id}' to review it again"
            )

    def _compare(self, known: int | None, generation: Generation, manifest: Manifest, health: Health) -> None:
        """Raise :class:`~mcpd.errors.NeedsApproval` if tools were added or changed since the generation *known*.

        Generations with the same content are not compared: their tools may depend on the configuration. A tool list
        that cannot be read counts as empty, so that all tools have to be approved.
        """
        if known is None or identity(self._store.generation_path(manifest.id, known)) == identity(generation.path):
            return
        try:
            told = self._store.generation_tools(manifest.id, known) or []
        except InvalidManifest:
            return  # the previous version was broken, so no client has seen its tools
        changes = compare(told, health.tools)
        if not needs_approval(changes):
            return
        named = ", ".join(f"{change.tool} ({change.change})" for change in changes[:5])
        more = f" and {len(changes) - 5} more" if len(changes) > 5 else ""
        raise NeedsApproval(
            f"{manifest.id} {manifest.version} is installed but not active, because it changes tools: {named}{more}."
            f" 'mcpctl approve {manifest.id}' shows the changes and activates it"
        )

    def _previous_state(self, server_id: str) -> _PreviousState:
        generation = self._store.active_generation(server_id)
        try:
            installed = self._store.get(server_id)
            values = self._store.values(server_id)
        except NotFound:
            return _PreviousState(None, other_layer=False, values={}, nothing=True)
        except McpdError:
            values = {}  # broken: there are no values to restore
        return _PreviousState(generation, not installed.writable, values)

    async def _undo(self, before: _PreviousState, generation: Generation, given: Collection[str]) -> bool:
        """Restore the state *before*; log errors, since the caller raises the original one.

        Return whether *generation* is no longer active.
        """
        server_id = generation.server_id
        try:
            await in_thread(self._restore, before, generation, given)
            # Clients that start it from now on get the restored version.
            await self._sessions.stop_generation(server_id, generation.path)
            if before.nothing:
                await self._states.drop_unless_kept(server_id)
        except (McpdError, OSError):
            log.exception("%s: the previous version could not be restored", server_id)
        self._sessions.forget_crashes(server_id)
        return await in_thread(self._store.active_generation, server_id) != generation.number

    async def _hold(self, generation: Generation, manifest: Manifest, tools: Tools | None) -> None:
        """Hold *generation* as the pending update; discard it if that fails."""
        try:
            await in_thread(self._store.hold, generation, manifest, tools)
        except BaseException:
            await self._discard(generation)
            raise

    async def _discard(self, generation: Generation) -> None:
        """Remove *generation*; log errors, since the caller is already raising one."""
        try:
            await in_thread(self._store.discard, generation)
        except (McpdError, OSError):
            log.exception("%s: could not remove generation %d", generation.server_id, generation.number)

    def _restore(self, before: _PreviousState, generation: Generation, given: Collection[str]) -> None:
        server_id = generation.server_id
        if self._store.active_generation(server_id) != generation.number:
            return
        try:
            self._store.rollback(server_id, before.generation)
        except NotFound:
            self._store.remove(server_id, keep_config=before.other_layer or before.generation is not None)
        else:
            self._restore_values(server_id, before, given)

    def _restore_values(self, server_id: str, before: _PreviousState, given: Collection[str]) -> None:
        manifest = self._store.get(server_id).manifest
        known = {prop.key: prop for prop in manifest.configurable_properties} if manifest else {}
        changed = [known[key] for key in given if key in known]
        self._store.set_config(server_id, {p.key: before.values.get(p.key) for p in changed if not p.sensitive})
        for prop in changed:
            if prop.sensitive:
                old = before.values.get(prop.key)
                self._store.set_secret(server_id, prop.key, None if old is None else str(old))

    def _restore_generation(self, server_id: str, number: int | None, held: int) -> bool:
        """Activate generation *number* and make *held* the pending update again; return whether that succeeded."""
        try:
            tried = self._store.get(server_id).manifest
            self._store.rollback(server_id, number)
            if tried is not None:
                path = self._store.generation_path(server_id, held)
                self._store.hold(Generation(server_id, held, path), tried)
        except (McpdError, OSError):
            log.exception("%s: the previous version could not be restored", server_id)
            return False
        return True


def _version_in_use(server_id: str, *, is_back: bool) -> str:
    """Return a sentence that says which version is in use after a failure."""
    if is_back:
        return "The previous version was restored."
    return f"The previous version could not be restored; see the journal, and try 'mcpctl rollback {server_id}'."
