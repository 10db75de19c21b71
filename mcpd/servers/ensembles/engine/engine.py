# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run ensembles: each agent as soon as the responses it depends on exist.

An earlier response is reused if neither the hash of the agent's definition nor its dependencies have changed. The hash
does not include limits and failure policies, as they do not influence a response, nor a script's imports, the
implementation of a tool, and the ensemble that another agent names for a dispatch.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import stat
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import McpdError
from mcpd.model import printable
from mcpd.servers.ensembles.engine.budget import Meter, Slots
from mcpd.servers.ensembles.engine.progress import Course, Stretch
from mcpd.servers.ensembles.engine.run import Run, Whole
from mcpd.servers.ensembles.engine.types import MAX_DEPTH
from mcpd.servers.ensembles.format.graph import levels, require_sound
from mcpd.servers.ensembles.format.models import EnsembleAgent, LoopAgent, ModelAgent, ScriptAgent

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mcpd.servers.ensembles.engine.types import (
        AgentResult,
        Found,
        Journal,
        Models,
        Observer,
        Origin,
        RunResult,
        Scripts,
        Source,
        ToolCaller,
    )
    from mcpd.servers.ensembles.format.models import Agent

MAX_HASHED: Final = 16 * 1024 * 1024
"""Maximum size of a script to hash, in bytes; a larger one is identified by its size and time."""
_AGENT_ASIDE: Final = {"timeout_seconds", "retries", "on_failure"}
_PROFILE_ASIDE: Final = {"timeout_seconds", "cost_per_token", "cost_per_output_token"}


def definitions(found: Found, source: Source) -> dict[str, str]:
    """Return the hashes of the definitions of the agents of *found*. Reads files."""
    return _Definitions(source).of(found, 0)


class _Definitions:
    """Hashes definitions; reads each file once, however often it is named."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._made: dict[tuple[Path, str, int], dict[str, str]] = {}
        self._scripts: dict[tuple[Path, str], Any] = {}

    def of(self, found: Found, depth: int) -> dict[str, str]:
        """Return the hashes for *found*, which is nested *depth* levels deep."""
        key = (found.origin.file, found.ensemble.name, depth)
        if key not in self._made:
            self._made[key] = self._of(found, depth)
        return self._made[key]

    def _of(self, found: Found, depth: int) -> dict[str, str]:
        agents = {agent.name: agent for agent in found.ensemble.agents}
        made: dict[str, str] = {}
        for level in levels(found.ensemble.agents):
            for name in level:
                agent = agents[name]
                behind = [made[each] for each in agent.depends_on if each in made]
                own = agent.model_dump(mode="json", exclude=_AGENT_ASIDE)
                made[name] = _digest([own, behind, self._beyond(agent, found, depth)])
        return made

    def _beyond(self, agent: Agent, found: Found, depth: int) -> Any:
        """Return the definitions to which *agent* refers."""
        try:
            if isinstance(agent, ScriptAgent):
                return self._script(agent.script, found.origin)
            if isinstance(agent, ModelAgent):
                names = [each for each in (agent.model_profile, agent.fallback_model_profile) if each is not None]
                profiles = [self._source.profile(name, found.origin) for name in names]
                return [each.model_dump(mode="json", exclude=_PROFILE_ASIDE) for each in profiles]
            if isinstance(agent, (EnsembleAgent, LoopAgent)) and depth < MAX_DEPTH:
                name = agent.ensemble if isinstance(agent, EnsembleAgent) else agent.loop.body
                other = self._source.find(name, found.origin)
                return [other.ensemble.default_task, _digest(self.of(other, depth + 1))]
        except McpdError:
            # Running the agent reports the error.
            return None
        return None

    def _script(self, script: str, origin: Origin) -> Any:
        key = (origin.base, script)
        if key not in self._scripts:
            self._scripts[key] = _content(self._source.script(origin, script))
        return self._scripts[key]


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _content(path: Path) -> Any:
    """Return a value that identifies the content of the file at *path*; None if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return None
            if status.st_size > MAX_HASHED:
                return [status.st_size, status.st_mtime_ns]
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class Engine:
    """The services that all runs share."""

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
        """Run *found* with the input *text*, or its ``default_task`` if that is empty.

        Agents for which *earlier* has a response to the same definition are not run again. Failures are in the result.
        ``journal.ended`` is called once, even if the run is cancelled.

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
