# SPDX-License-Identifier: LGPL-2.1-or-later
"""The engine with models, scripts and tools that a test scripts, and what it says while it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcpd.errors import NotFound
from mcpd.servers.ensembles.engine.engine import Engine
from mcpd.servers.ensembles.engine.types import Completion, Found, Origin
from mcpd.servers.ensembles.format.models import Ensemble, Profile

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from mcpd.errors import McpdError
    from mcpd.servers.ensembles.engine.types import AgentResult, Prompt, RunResult, ScriptCall, Tier

ORIGIN = Origin("user", Path("/ensembles/it.yaml"), Path("/ensembles"), None)
MODEL = {"model": "m", "provider": "mock"}


class Source:
    """Ensembles and profiles by name."""

    def __init__(self, ensembles: Mapping[str, Any], profiles: Mapping[str, Any]) -> None:
        self.ensembles = {
            name: Ensemble.model_validate({"name": name, **content}) for name, content in ensembles.items()
        }
        self.scripts: dict[str, Path] = {}
        self.profiles = {name: Profile.model_validate(content) for name, content in profiles.items()}

    def find(self, name: str, whose: Origin | None = None) -> Found:
        """The ensemble *name*."""
        if name not in self.ensembles:
            raise NotFound(f"there is no ensemble {name!r}")
        return Found(self.ensembles[name], whose or ORIGIN)

    def profile(self, name: str, whose: Origin) -> Profile:
        """The profile *name*."""
        if name not in self.profiles:
            raise NotFound(f"there is no profile {name!r} for {whose.file}")
        return self.profiles[name]

    def profile_of(self, name: str, whose: Origin) -> tuple[Profile, Tier]:
        """Everybody's is the user's."""
        return self.profile(name, whose), "user"

    def script(self, origin: Origin, script: str) -> Path:
        """The file of *script*, if a test has one."""
        if script not in self.scripts:
            raise NotFound(f"there is no script {script!r} of {origin.file}")
        return self.scripts[script]


class Stage:
    """Plays models, scripts and tools, and hears of runs."""

    def __init__(self, ensembles: Mapping[str, Any], profiles: Mapping[str, Any] | None = None) -> None:
        """*ensembles* are without their names."""
        self.source = Source(ensembles, profiles or {})
        self.answer: Callable[[Prompt], Awaitable[str]] = _echo
        self.script: Callable[[ScriptCall], Awaitable[str]] = _input
        self.tool: Callable[[str, str, Mapping[str, Any]], Awaitable[str]] = _told
        self.tokens = (3, 2)
        self.prompts: list[Prompt] = []
        self.calls: list[ScriptCall] = []
        self.busy = self.peak = 0
        self.begun: list[str] = []
        self.fallbacks: list[str] = []
        self.heard: list[tuple[float, float, str, str]] = []
        self.kept: list[AgentResult] = []
        self.ends: list[RunResult] = []

    @property
    def engine(self) -> Engine:
        """The engine on this stage."""
        return Engine(self.source, self, _Scripts(self), _Tools(self))

    async def run(
        self, name: str = "it", text: str = "hello", earlier: Mapping[str, AgentResult] | None = None
    ) -> RunResult:
        """Run the ensemble *name*."""
        found = self.source.find(name)
        return await self.engine.run(found, text, observer=self, journal=self, earlier=earlier)

    async def complete(self, prompt: Prompt) -> Completion:
        """What :attr:`answer` says."""
        self.prompts.append(prompt)
        self.busy += 1
        self.peak = max(self.peak, self.busy)
        try:
            text = await self.answer(prompt)
        finally:
            self.busy -= 1
        return Completion(text, *self.tokens, model=prompt.profile.model)

    def started(self, agent: str) -> None:
        """Remember it."""
        self.begun.append(agent)

    def fallback(self, agent: str, fault: McpdError) -> None:
        """Remember it."""
        self.fallbacks.append(f"{agent}: {fault.message}")

    def progressed(self, done: float, total: float, result: AgentResult) -> None:
        """Remember it."""
        self.heard.append((done, total, result.name, result.status))

    def finished(self, result: AgentResult) -> None:
        """Remember it."""
        self.kept.append(result)

    def ended(self, result: RunResult) -> None:
        """Remember it."""
        self.ends.append(result)


class _Scripts:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def run(self, call: ScriptCall) -> str:
        self._stage.calls.append(call)
        return await self._stage.script(call)


class _Tools:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any]) -> str:
        return await self._stage.tool(server, tool, arguments)


async def _echo(prompt: Prompt) -> str:
    await asyncio.sleep(0)
    return f"said: {prompt.text}"


async def _input(call: ScriptCall) -> str:
    await asyncio.sleep(0)
    return call.input


async def _told(server: str, tool: str, arguments: Mapping[str, Any]) -> str:
    await asyncio.sleep(0)
    return f"{server} {tool} {dict(arguments)}"


def model(name: str, *depends_on: str, **more: Any) -> dict[str, Any]:
    """An agent that asks a model."""
    return {"name": name, **MODEL, "depends_on": list(depends_on), **more}


def script(name: str, *depends_on: str, **more: Any) -> dict[str, Any]:
    """An agent that runs a script, which gives back its input unless a test says otherwise."""
    return {"name": name, "script": f"scripts/{name}.py", "depends_on": list(depends_on), **more}
