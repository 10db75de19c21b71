# SPDX-License-Identifier: LGPL-2.1-or-later
"""plan → fetch → build → verify → activate (design §7).

Until the activation everything happens in a generation that nobody uses, so ending anywhere, by a fault, a
cancellation or SIGKILL, leaves the server as it was. A generation that proves unhealthy after its activation is taken
back.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mcpd.errors import McpdError, NotFound, Unhealthy, from_oserror
from mcpd.install.commands import settle
from mcpd.install.health import HealthCheck
from mcpd.install.job import JobState
from mcpd.install.lockfile import record_protocol, write_lock
from mcpd.install.outcome import Outcome
from mcpd.install.seal import seal
from mcpd.install.threads import in_thread
from mcpd.install.workbench import Workbench

if TYPE_CHECKING:
    from mcpd.install.job import Job
    from mcpd.install.plan import Plan
    from mcpd.install.workbench import Tools
    from mcpd.model import JsonValue, Manifest
    from mcpd.runtime.sessions import Sessions
    from mcpd.runtime.states import States
    from mcpd.store import Generation, Store

PARALLEL: Final = 2
"""Installations that fetch and build at once; more wait."""

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


class Pipeline:
    """Carries out plans."""

    def __init__(self, store: Store, sessions: Sessions, tools: Tools, states: States) -> None:
        self._store = store
        self._sessions = sessions
        self._tools = tools
        self._states = states
        self._slots = asyncio.Semaphore(PARALLEL)

    async def install(self, job: Job, plan: Plan) -> None:
        """Carry out *plan* as *job*. Raises the errors of all steps; whatever was begun is gone then."""
        if plan.needs:
            await job.ask_consent(plan.needs)
        await job.ask_config()
        async with self._slots:
            made: list[Generation] = []
            try:
                await in_thread(lambda: made.append(self._store.new_generation(plan.entry.id)))
                manifest = await self._build(job, plan, made[0])
                await self._activate(job, plan, made[0], manifest)
            except OSError as error:
                raise from_oserror(error, f"installing {plan.entry.id}") from error
            finally:
                if made and job.state is not JobState.ACTIVATING:
                    await in_thread(self._store.discard, made[0])

    async def _build(self, job: Job, plan: Plan, generation: Generation) -> Manifest:
        """Fill *generation*; returns the manifest to activate it with."""
        bench = Workbench(self._tools, job, plan.entry, generation.path)
        bench.prepare()
        recipe = plan.recipe(bench)
        outcome = Outcome()
        if recipe is not None:
            job.enter(JobState.FETCHING)
            bench.stage(0, 40)
            await recipe.fetch()
            job.enter(JobState.BUILDING)
            bench.stage(55, 85)
            outcome = await recipe.build()
        job.enter(JobState.VERIFYING)
        job.advance(86)
        await in_thread(bench.clean)
        await in_thread(seal, generation.path)
        transports = plan.entry.transports if plan.remote else settle(plan.entry, outcome, generation.path)
        await in_thread(write_lock, generation.path, plan.entry, outcome, registry=plan.registry)
        return plan.manifest(transports, outcome.version)

    async def _activate(self, job: Job, plan: Plan, generation: Generation, manifest: Manifest) -> None:
        """Make *generation* the server, and take that back unless it proves healthy."""
        job.advance(90)
        before = await in_thread(self._remember, plan)
        job.enter(JobState.ACTIVATING)
        try:
            if before.nothing:
                await self._states.drop_unless_kept(manifest.id)
            await in_thread(self._store.activate, generation, manifest)
            if manifest.stdio is not None or manifest.remote is not None:
                await self._check_health(job, generation, manifest)
        except BaseException as error:
            await self._take_back(before, plan, generation)
            self._sessions.forgive(manifest.id)
            if isinstance(error, Unhealthy) and before.generation is not None:
                raise Unhealthy(f"{error.message}\nThe previous version is in use again.") from error
            raise
        await self._states.settle(manifest.id)
        try:
            await in_thread(self._store.prune, manifest.id)
        except McpdError as error:
            log.warning("%s: generations over the number to keep stay for now: %s", manifest.id, error.message)

    async def _check_health(self, job: Job, generation: Generation, manifest: Manifest) -> None:
        timeout = self._tools.settings.install.health_timeout
        self._sessions.forgive(manifest.id)  # crashes of the version before say nothing about this one
        health = await HealthCheck(self._sessions, manifest.id, job.owner_uid, timeout).run()
        job.advance(98)
        await in_thread(self._store.set_tools, manifest.id, health.tools)
        await in_thread(record_protocol, generation.path, health.protocol)

    def _remember(self, plan: Plan) -> _Before:
        server_id = plan.entry.id
        generation = self._store.active_generation(server_id)
        try:
            installed = self._store.get(server_id)
            values = self._store.values(server_id)
        except NotFound:
            return _Before(None, other_layer=False, values={}, nothing=True)
        except McpdError:
            values = {}  # broken: there is nothing to go back to
        return _Before(generation, not installed.writable, values)

    async def _take_back(self, before: _Before, plan: Plan, generation: Generation) -> None:
        """Restore what *before* says; a fault on the way is logged, for the reason of the failure matters more."""
        server_id = plan.entry.id
        try:
            await in_thread(self._restore, before, plan, generation)
            # Whoever starts it from now on gets what was restored.
            await self._sessions.stop_generation(server_id, generation.path)
            await in_thread(self._store.discard, generation)
            if before.nothing:
                await self._states.drop_unless_kept(server_id)
        except (McpdError, OSError):
            log.exception("%s: the previous version could not be restored", server_id)

    def _restore(self, before: _Before, plan: Plan, generation: Generation) -> None:
        server_id = plan.entry.id
        if self._store.active_generation(server_id) != generation.number:
            return
        try:
            self._store.rollback(server_id, before.generation)
        except NotFound:
            self._store.remove(server_id, keep_config=before.other_layer or before.generation is not None)
        else:
            self._restore_values(server_id, before, plan)

    def _restore_values(self, server_id: str, before: _Before, plan: Plan) -> None:
        manifest = self._store.get(server_id).manifest
        known = {prop.key: prop for prop in manifest.configurable_properties} if manifest else {}
        given = [known[key] for key in plan.answers.given() if key in known]
        self._store.set_config(server_id, {p.key: before.values.get(p.key) for p in given if not p.sensitive})
        for prop in given:
            if prop.sensitive:
                old = before.values.get(prop.key)
                self._store.set_secret(server_id, prop.key, None if old is None else str(old))
