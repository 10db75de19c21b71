# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs ensembles: each agent as soon as what it depends on is there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from mcpd.model import printable
from mcpd.servers.ensembles.engine.budget import Meter, Slots
from mcpd.servers.ensembles.engine.definitions import definitions
from mcpd.servers.ensembles.engine.progress import Course, Stretch
from mcpd.servers.ensembles.engine.run import Run, Whole
from mcpd.servers.ensembles.format.graph import require_sound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.servers.ensembles.engine.types import (
        AgentResult,
        Found,
        Journal,
        Models,
        Observer,
        RunResult,
        Scripts,
        Source,
        ToolCaller,
    )


@dataclass(frozen=True, slots=True)
class Engine:
    """What all runs share."""

    source: Source
    models: Models
    scripts: Scripts
    tools: ToolCaller

    async def run(
        self,
        found: Found,
        text: str,
        *,
        observer: Observer,
        journal: Journal,
        earlier: Mapping[str, AgentResult] | None = None,
    ) -> RunResult:
        """Run *found* with the input *text*; its ``default_task`` is the input if that is empty.

        Agents for which *earlier* has a response to the same definition do not run again. What fails is in the result.
        ``journal.ended`` is called once, also when the run is cancelled.

        Raises :class:`~mcpd.errors.InvalidConfig` for an ensemble that cannot be run at all.
        """
        ensemble = found.ensemble
        require_sound(ensemble, file=printable(str(found.origin.file)))
        whole = Whole(
            source=self.source,
            models=self.models,
            scripts=self.scripts,
            tools=self.tools,
            meter=Meter(ensemble.name, ensemble.budget),
            slots=Slots(ensemble.max_concurrent),
            nests=asyncio.Semaphore(ensemble.max_concurrent),
        )
        course = Course(observer, len(ensemble.agents))
        run = Run(
            whole,
            found,
            text or ensemble.default_task or "",
            stretches={agent.name: Stretch(course) for agent in ensemble.agents},
            define=partial(definitions, found, self.source),
            journal=journal,
            earlier=earlier or {},
        )
        try:
            return await run.complete()
        finally:
            journal.ended(run.result())
