# SPDX-License-Identifier: LGPL-2.1-or-later
"""Putting a finished generation into use, and taking that back unless it proves healthy.

While it is on trial nobody but mcpd starts the server, so clients meet only what has answered and, after an update,
only tools that are as they were or that somebody approved of.
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
from mcpd.store.threads import in_thread

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
    from mcpd.store.tool_catalog import Tools

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Before:
    """What was there before an activation."""

    generation: int | None
    other_layer: bool
    """Whether a server of another layer had the id."""
    values: dict[str, JsonValue] = field(repr=False)
    nothing: bool = False
    """Whether no server had the id."""


class Activation:
    """Makes generations the server, on trial first."""

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
        """Make *generation* the server, with *manifest* and the values of *answers*, given for this installation.

        Unless *is_checked* it is not tried. With *watch_tools* one that is made of something else than the generation
        before, and describes its tools otherwise, is kept aside, to be approved of. Raises
        :class:`~mcpd.errors.Unhealthy`, :class:`~mcpd.errors.NeedsApproval` and what activating raises; the generation
        before is in use again then.
        """
        job.advance(90)
        before = await in_thread(self._remember, manifest.id)
        async with self._sessions.reserved(manifest.id):
            job.enter(JobState.ACTIVATING)
            given = answers.given()  # complete now: from here on none are taken
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
                if not await self._take_back(before, generation, given):
                    raise NeedsApproval(f"{manifest.id} changes tools. {_after(manifest.id, is_back=False)}") from error
                await self._hold(generation, manifest, health.tools if health is not None else None)
                raise
            except BaseException as error:
                is_back = await self._take_back(before, generation, given)
                if is_back:
                    await self._discard(generation)
                if isinstance(error, Unhealthy) and before.generation is not None:
                    raise Unhealthy(f"{error.message}\n{_after(manifest.id, is_back=is_back)}") from error
                raise
        await self._settle(manifest.id)

    async def approve(self, job: Job, server_id: str, number: int | None) -> None:
        """Put the update of *server_id* into use that waits for approval; *number* is the generation that was seen.

        Raises :class:`~mcpd.errors.NotFound` if none, or another one, waits, and :class:`~mcpd.errors.Unhealthy`.
        """
        held = await self._held(server_id, number)
        before = await in_thread(self._remember, server_id)
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
                # What was shown stays what is to be approved of, or the same number would stand for something else.
                is_back = await in_thread(self._back_to, server_id, before.generation, held)
                self._sessions.forgive(server_id)
                if isinstance(error, Unhealthy):
                    raise Unhealthy(f"{error.message}\n{_after(server_id, is_back=is_back)}") from error
                raise
        await self._sessions.stop_server(server_id)
        await self._settle(server_id)

    async def drop(self, job: Job, server_id: str, number: int | None) -> None:
        """Remove the update of *server_id* that waits for approval; *number* is the generation that was seen.

        Raises :class:`~mcpd.errors.NotFound` if none, or another one, waits, and what removing raises.
        """
        held = await self._held(server_id, number)
        job.enter(JobState.ACTIVATING)
        await in_thread(self._store.drop_held, server_id, held)

    async def _held(self, server_id: str, number: int | None) -> int:
        """The generation that waits, which is *number* if that is given. Raises :class:`~mcpd.errors.NotFound`."""
        held = await in_thread(self._store.held, server_id)
        if held is None or number not in (None, held):
            raise NotFound(f"no such update of {server_id} waits for approval; see 'mcpctl history {server_id}'")
        return held

    async def _settle(self, server_id: str) -> None:
        await self._states.settle(server_id)
        try:
            await in_thread(self._store.prune, server_id)
        except McpdError as error:
            log.warning("%s: generations over the number to keep stay for now: %s", server_id, error.message)

    async def _check(self, job: Job, generation: Generation, manifest: Manifest, *, keep: bool = True) -> Health | None:
        """See that the server works; *keep* what it lists as its tools."""
        if manifest.stdio is None and manifest.remote is None:
            return None
        self._sessions.forgive(manifest.id)  # crashes of the version before say nothing about this one
        timeout = self._settings.install.health_timeout
        health = await HealthCheck(self._sessions, manifest.id, job.owner_uid, timeout).run()
        if keep:
            await in_thread(self._store.set_tools, manifest.id, health.tools)
            await in_thread(record_protocol, generation.path, health.protocol)
        job.advance(98)
        return health

    def _check_shown(self, server_id: str, held: int, health: Health) -> None:
        """Raise :class:`~mcpd.errors.NeedsApproval` if the tools are others than those that somebody looked at."""
        if needs_approval(compare(self._store.generation_tools(server_id, held) or [], health.tools)):
            raise NeedsApproval(
                f"{server_id} lists other tools than those that were shown, and was not put into use;"
                f" 'mcpctl install --reinstall {server_id}' makes it anew, to be looked at again"
            )

    def _compare(self, known: int | None, generation: Generation, manifest: Manifest, health: Health) -> None:
        """Raise :class:`~mcpd.errors.NeedsApproval` if the tools are others than those of the generation *known*.

        Those of the same content may depend on the configuration, which is not what is looked at here.
        What that generation listed and cannot be read any more counts as nothing, so that all is looked at anew.
        """
        if known is None or identity(self._store.generation_path(manifest.id, known)) == identity(generation.path):
            return
        try:
            told = self._store.generation_tools(manifest.id, known) or []
        except InvalidManifest:
            return  # a broken server has told nobody anything
        changes = compare(told, health.tools)
        if not needs_approval(changes):
            return
        named = ", ".join(f"{change.tool} ({change.change})" for change in changes[:5])
        more = f" and {len(changes) - 5} more" if len(changes) > 5 else ""
        raise NeedsApproval(
            f"{manifest.id} {manifest.version} is installed but not used yet, for it changes tools: {named}{more}."
            f" 'mcpctl approve {manifest.id}' shows how, and puts it into use"
        )

    def _remember(self, server_id: str) -> _Before:
        generation = self._store.active_generation(server_id)
        try:
            installed = self._store.get(server_id)
            values = self._store.values(server_id)
        except NotFound:
            return _Before(None, other_layer=False, values={}, nothing=True)
        except McpdError:
            values = {}  # broken: there is nothing to go back to
        return _Before(generation, not installed.writable, values)

    async def _take_back(self, before: _Before, generation: Generation, given: Collection[str]) -> bool:
        """Restore what *before* says; a fault on the way is logged, for the reason of the failure matters more.

        Returns whether *generation* is used no longer.
        """
        server_id = generation.server_id
        try:
            await in_thread(self._restore, before, generation, given)
            # Whoever starts it from now on gets what was restored.
            await self._sessions.stop_generation(server_id, generation.path)
            if before.nothing:
                await self._states.drop_unless_kept(server_id)
        except (McpdError, OSError):
            log.exception("%s: the previous version could not be restored", server_id)
        self._sessions.forgive(server_id)
        return await in_thread(self._store.active_generation, server_id) != generation.number

    async def _hold(self, generation: Generation, manifest: Manifest, tools: Tools | None) -> None:
        """Keep *generation* aside; what cannot be kept is gone, and nobody is told that it waits."""
        try:
            await in_thread(self._store.hold, generation, manifest, tools)
        except BaseException:
            await self._discard(generation)
            raise

    async def _discard(self, generation: Generation) -> None:
        """Remove *generation*; a fault is logged, for there is one already."""
        try:
            await in_thread(self._store.discard, generation)
        except (McpdError, OSError):
            log.exception("%s: generation %d stays for now", generation.server_id, generation.number)

    def _restore(self, before: _Before, generation: Generation, given: Collection[str]) -> None:
        server_id = generation.server_id
        if self._store.active_generation(server_id) != generation.number:
            return
        try:
            self._store.rollback(server_id, before.generation)
        except NotFound:
            self._store.remove(server_id, keep_config=before.other_layer or before.generation is not None)
        else:
            self._restore_values(server_id, before, given)

    def _restore_values(self, server_id: str, before: _Before, given: Collection[str]) -> None:
        manifest = self._store.get(server_id).manifest
        known = {prop.key: prop for prop in manifest.configurable_properties} if manifest else {}
        changed = [known[key] for key in given if key in known]
        self._store.set_config(server_id, {p.key: before.values.get(p.key) for p in changed if not p.sensitive})
        for prop in changed:
            if prop.sensitive:
                old = before.values.get(prop.key)
                self._store.set_secret(server_id, prop.key, None if old is None else str(old))

    def _back_to(self, server_id: str, number: int | None, held: int) -> bool:
        """Bring generation *number* back after *held* was tried, and keep that aside as it was; whether that worked."""
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


def _after(server_id: str, *, is_back: bool) -> str:
    """What is in use after a failure."""
    if is_back:
        return "The previous version is in use again."
    return f"The previous version could not be brought back; see the journal, and try 'mcpctl rollback {server_id}'."
