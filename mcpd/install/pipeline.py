# SPDX-License-Identifier: LGPL-2.1-or-later
"""plan → resolve → consent → fetch → build → verify → activate (design §7).

Until the activation everything happens in a generation that nobody uses, so ending anywhere, by a fault, a
cancellation or SIGKILL, leaves the server as it was.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from mcpd.errors import Cancelled, Unhealthy, from_oserror
from mcpd.install import verify
from mcpd.install.commands import settle
from mcpd.install.job import JobState, Need
from mcpd.install.lockfile import write_lock
from mcpd.install.outcome import Outcome, Resolution
from mcpd.install.seal import seal
from mcpd.install.workbench import CACHE, Workbench, trim
from mcpd.store.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.install.activation import Activation
    from mcpd.install.job import Job
    from mcpd.install.outcome import Recipe
    from mcpd.install.plan import Plan
    from mcpd.install.workbench import Tools
    from mcpd.model import Entry, Manifest
    from mcpd.store import Generation, Store

PARALLEL: Final = 2
"""Installations that fetch and build at once; more wait."""
PLAN_ONLY: Final = "only the plan was asked for"
"""What a dry run ends with."""


class Pipeline:
    """Carries out plans."""

    def __init__(self, store: Store, tools: Tools, activation: Activation) -> None:
        self._store = store
        self._tools = tools
        self._activation = activation
        self._slots = asyncio.Semaphore(PARALLEL)
        self._first = asyncio.Lock()
        self._is_trimmed = False

    async def install(
        self, job: Job, plan: Plan, again: Callable[[Entry], Plan], check_signer: Callable[[str], None]
    ) -> None:
        """Carry out *plan* as *job*; *again* plans what a source says of itself.

        *check_signer* raises if the key of that name is trusted no longer, which it may be after somebody was asked.

        Raises the errors of all steps; whatever was begun is gone then.
        """
        made: list[Generation] = []
        try:
            if not plan.is_dry_run and plan.is_complete and plan.answers.missing():
                # What the entry itself asks for need not wait until the packages are resolved.
                job.show_plan(plan.items(Resolution()))
                await job.ask_config()
                job.enter(JobState.PLANNING)
            async with self._slots:
                await self._trim()
                await in_thread(lambda: made.append(self._store.new_generation(plan.entry.id)))
                bench = Workbench(self._tools, job, plan.entry, made[0].path)
                await in_thread(bench.prepare)
                recipe = plan.recipe(bench)
                resolution = await recipe.resolve() if recipe is not None else Resolution()
            if resolution.entry is not None:
                plan = again(resolution.entry)
                plan.answers.take_over(job.answers)
                job.answers = plan.answers
                bench.entry = plan.entry
            # Nobody is waited for while others could work.
            job.show_plan(plan.items(resolution))
            if plan.is_dry_run:
                raise Cancelled(PLAN_ONLY)
            if plan.needs:
                await job.ask_consent(plan.needs)
            await job.ask_config()
            if plan.verified:
                await in_thread(check_signer, plan.verified)
            try:
                await self._put_into_use(job, plan, recipe, bench, made[0], is_checked=plan.is_checked)
            except Unhealthy as error:
                if not plan.may_be_offline or await in_thread(self._store.active_generation, plan.entry.id) is not None:
                    raise
                made.clear()
                await _ask_if_offline(job, plan, error)
                await in_thread(lambda: made.append(self._store.new_generation(plan.entry.id)))
                bench = Workbench(self._tools, job, plan.entry, made[0].path)
                await in_thread(bench.prepare)
                await self._put_into_use(job, plan, recipe, bench, made[0], is_checked=False)
        except OSError as error:
            raise from_oserror(error, f"installing {plan.entry.id}") from error
        finally:
            if made and job.state is not JobState.ACTIVATING:
                await in_thread(self._store.discard, made[0])

    async def _trim(self) -> None:
        """See to the size of the cache of packages before anything works with it."""
        async with self._first:
            if not self._is_trimmed:
                await in_thread(trim, self._tools.paths.layout(self._tools.scope).cache / CACHE)
                self._is_trimmed = True

    async def _put_into_use(
        self,
        job: Job,
        plan: Plan,
        recipe: Recipe | None,
        bench: Workbench,
        generation: Generation,
        *,
        is_checked: bool,
    ) -> None:
        async with self._slots:
            manifest = await self._build(job, plan, recipe, bench)
            # Who brings the files is the one who would be asked.
            watch_tools = bool(plan.registry)
            await self._activation.activate(
                job, generation, manifest, plan.answers, watch_tools=watch_tools, is_checked=is_checked
            )

    async def _build(self, job: Job, plan: Plan, recipe: Recipe | None, bench: Workbench) -> Manifest:
        """Fill the generation; returns the manifest to activate it with."""
        outcome = Outcome()
        if recipe is not None:
            job.enter(JobState.FETCHING)
            bench.stage(10, 40)
            await recipe.fetch()
            job.enter(JobState.BUILDING)
            bench.stage(55, 85)
            outcome = await recipe.build()
            plan = plan.described(outcome.words) if outcome.words is not None else plan
        job.enter(JobState.VERIFYING)
        job.advance(86)
        await in_thread(bench.clean)
        await in_thread(seal, bench.root)
        transports = plan.entry.transports if plan.remote else settle(plan.entry, outcome, bench.root)
        await in_thread(
            lambda: write_lock(
                bench.root,
                plan.recorded,
                outcome,
                registry=plan.registry,
                verified=plan.verified,
                content=plan.content,
            )
        )
        manifest = plan.manifest(transports, outcome.version)
        await in_thread(verify.record, bench.root, manifest)
        return manifest


async def _ask_if_offline(job: Job, plan: Plan, error: Unhealthy) -> None:
    """Wait until somebody consents to installing the remote server that did not answer, as *error* says.

    Whoever gave all consent beforehand cannot be asked, and gets the error with the way out.
    """
    if plan.is_agreed or plan.entry.remote is None:
        raise Unhealthy(
            f"{error.message}\nIf it is only offline: 'mcpctl install --no-check' installs it untried."
        ) from error
    problem = error.message.splitlines()[0]
    await job.ask_consent([Need("unchecked", plan.entry.remote.address, description=problem)])
