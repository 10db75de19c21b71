# SPDX-License-Identifier: LGPL-2.1-or-later
"""All faults of an ensemble that can be found before it runs."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from graphlib import TopologicalSorter
from time import thread_time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from mcpd.errors import InvalidConfig, NotFound
from mcpd.model.base import printable
from mcpd.servers.ensembles.engine.types import MAX_DEPTH
from mcpd.servers.ensembles.format import graph
from mcpd.servers.ensembles.format.models import (
    DispatchAgent,
    EnsembleAgent,
    LoopAgent,
    McpAgent,
    ModelAgent,
    Profile,
    ScriptAgent,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from mcpd.servers.ensembles.engine.types import Found, Origin, Source
    from mcpd.servers.ensembles.format.loading import Loaded
    from mcpd.servers.ensembles.format.models import Agent, Ensemble

MAX_ENSEMBLES: Final = 1000
"""Maximum number of ensembles that are checked because others run them."""
MAX_TIME: Final = 10.0
"""Time limit in seconds for reading them: their files may be untrusted and slow to read."""
MAX_FINDINGS: Final = 500
"""Maximum number of findings; another one reports how many are missing."""

Severity = Literal["error", "warning"]
_Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """An error or a warning."""

    severity: Severity
    message: str
    agent: str | None
    line: int | None
    file: str


def validate(  # noqa: PLR0913 -- all that an ensemble refers to
    found: Found,
    source: Source,
    loaded: Loaded,
    *,
    script_exists: Callable[[Origin, str], str | None],
    servers: Collection[str] | None,
    options_fault: Callable[[str, Mapping[str, Any]], str | None] = lambda provider, options: None,
    model_fault: Callable[[Profile, bool], str | None] = lambda profile, trusted: None,
    tools: Mapping[str, Collection[str]] = MappingProxyType({}),
    clock: Callable[[], float] = thread_time,
) -> list[Finding]:
    """Return the findings for the ensemble *found*, by line: in its graph, its references, and the ensembles it runs.

    *loaded* is its file, *source* has profiles and other ensembles, *script_exists* returns the fault of a script of an
    origin, *servers* are the installed ones, or None if unknown, and *options_fault* returns the fault of options for a
    provider. *model_fault* returns why the model of a profile cannot be used; its second argument is True if the user
    has configured the address. *tools* has the names of the tools of the servers that were queried, and *clock* returns
    seconds.

    A run is possible if no finding is an error. Faults of the file itself are not included: :func:`.loading.load`
    raises them.
    """
    notes = [
        *(_Note("error", problem.message, problem.path) for problem in graph.problems(found.ensemble)),
        *_names(found, source, script_exists, servers),
        *_models(found, source, model_fault),
        *_tools(found, tools),
        *_options(found, source, options_fault),
        *_oddities(found.ensemble),
        *_Runs(source, found, clock).notes(),
    ]
    agents = found.ensemble.agents
    findings = [
        Finding(
            note.severity,
            note.message,
            agents[note.path[1]].name if len(note.path) > 1 and isinstance(note.path[1], int) else None,
            loaded.positions.line(note.path),
            str(found.origin.file),
        )
        for note in dict.fromkeys(notes)
    ]
    findings.sort(key=lambda finding: (finding.line or 0, finding.severity))
    if len(findings) > MAX_FINDINGS:
        more = f"and {len(findings) - MAX_FINDINGS} more"
        findings[MAX_FINDINGS:] = [Finding("error", more, None, None, str(found.origin.file))]
    return findings


@dataclass(frozen=True, slots=True)
class _Note:
    """A finding without its line."""

    severity: Severity
    message: str
    path: _Path


def _names(
    found: Found,
    source: Source,
    script_exists: Callable[[Origin, str], str | None],
    servers: Collection[str] | None,
) -> Iterator[_Note]:
    """Yield references of agents to things that do not exist."""
    for index, agent in enumerate(found.ensemble.agents):
        path = ("agents", index)
        match agent:
            case ModelAgent():
                for key in ("model_profile", "fallback_model_profile"):
                    if fault := _profile_fault(found, source, getattr(agent, key)):
                        yield _Note("error", fault, (*path, key))
            case ScriptAgent():
                if fault := script_exists(found.origin, agent.script):
                    yield _Note("error", fault, (*path, "script"))
            case McpAgent() if servers is not None and agent.mcp.server not in servers:
                near = difflib.get_close_matches(agent.mcp.server, servers, n=1)
                guess = f'; did you mean "{near[0]}"?' if near else ""
                yield _Note(
                    "error", f'the server "{agent.mcp.server}" is not installed{guess}', (*path, "mcp", "server")
                )


def _models(found: Found, source: Source, model_fault: Callable[[Profile, bool], str | None]) -> Iterator[_Note]:
    """Yield models that cannot be used here; this may differ where the ensemble runs."""
    for index, agent in enumerate(found.ensemble.agents):
        if not isinstance(agent, ModelAgent):
            continue
        if agent.provider is not None and agent.model_profile is None:
            profile = Profile(model=agent.model or "", provider=agent.provider)
            if fault := model_fault(profile, False):
                yield _Note("warning", fault, ("agents", index, "provider"))
        for key in ("model_profile", "fallback_model_profile"):
            if (name := getattr(agent, key)) is None:
                continue
            try:
                profile, tier = source.profile_of(name, found.origin)
            except (NotFound, InvalidConfig):  # Reported separately.
                continue
            if fault := model_fault(profile, tier != "project"):
                yield _Note("warning", f'with the profile "{printable(name)}", {fault}', ("agents", index, key))


def _tools(found: Found, tools: Mapping[str, Collection[str]]) -> Iterator[_Note]:
    """Yield tools that their server does not list; some accept other spellings, too."""
    for index, agent in enumerate(found.ensemble.agents):
        if not isinstance(agent, McpAgent) or (listed := tools.get(agent.mcp.server)) is None:
            continue
        if _spelling(agent.mcp.tool) not in map(_spelling, listed):
            near = difflib.get_close_matches(agent.mcp.tool, listed, n=1)
            guess = f'; did you mean "{near[0]}"?' if near else ""
            yield _Note(
                "warning",
                f'the server "{agent.mcp.server}" lists no tool "{printable(agent.mcp.tool)}"{guess}',
                ("agents", index, "mcp", "tool"),
            )


def _spelling(name: str) -> str:
    return name.replace("/", "_").replace(".", "_")


def _options(
    found: Found, source: Source, options_fault: Callable[[str, Mapping[str, Any]], str | None]
) -> Iterator[_Note]:
    """Yield options that the provider refuses: those of profiles, overridden by those of the agent."""
    for index, agent in enumerate(found.ensemble.agents):
        if not isinstance(agent, ModelAgent):
            continue
        own = agent.options or {}
        if agent.provider is not None and (fault := options_fault(agent.provider, own)):
            yield _Note("error", fault, ("agents", index, "options"))
        for key in ("model_profile", "fallback_model_profile"):
            if (name := getattr(agent, key)) is None:
                continue
            try:
                profile = source.profile(name, found.origin)
            except (NotFound, InvalidConfig):  # Reported separately.
                continue
            if fault := options_fault(profile.provider, {**(profile.options or {}), **own}):
                path = ("agents", index, "options" if own else key)
                yield _Note("error", f'with the profile "{printable(name)}", {fault}', path)


def _profile_fault(found: Found, source: Source, name: str | None) -> str | None:
    if name is None:
        return None
    try:
        source.profile(name, found.origin)
    except (NotFound, InvalidConfig) as error:
        return error.message
    return None


def _oddities(ensemble: Ensemble) -> Iterator[_Note]:
    """Yield settings that are possible, but probably not intended."""
    for index, agent in enumerate(ensemble.agents):
        if not isinstance(agent, ModelAgent):
            continue
        if agent.fallback_model_profile is not None and agent.fallback_model_profile == agent.model_profile:
            yield _Note(
                "warning",
                "the fallback is the profile itself, so that it is no help",
                ("agents", index, "fallback_model_profile"),
            )
        if agent.input_scope == "dependencies" and not agent.depends_on:
            yield _Note(
                "warning", "it depends on nothing, so that its model sees no input", ("agents", index, "input_scope")
            )


def _run_by(agent: Agent) -> tuple[str, tuple[str, ...]] | None:
    """Return the ensemble that *agent* runs, if it is known beforehand, and the path of the key that names it."""
    match agent:
        case EnsembleAgent():
            return agent.ensemble, ("ensemble",)
        case LoopAgent():
            return agent.loop.body, ("loop", "body")
        case DispatchAgent() if "$" not in agent.dispatch:
            return agent.dispatch, ("dispatch",)
        case _:
            return None


@dataclass(frozen=True, slots=True)
class _Call:
    """The reference of an agent to another ensemble."""

    path: _Path
    """Path of the reference."""
    file: str = ""
    """File of the ensemble."""
    fault: str = ""
    """The reason why it cannot be used."""


class _Runs:
    """The ensembles that are run from one of them, directly or indirectly, as far as they are known beforehand."""

    def __init__(self, source: Source, root: Found, clock: Callable[[], float]) -> None:
        self._source = source
        self._clock = clock
        self._end = clock() + MAX_TIME
        self._root = str(root.origin.file)
        self._names = {self._root: root.ensemble.name}
        """Names of ensembles by file."""
        self._calls: dict[str, list[_Call]] = {}
        """References by the file of the ensemble that contains them."""
        self._cut = False
        waiting = [root]
        while waiting:
            caller = waiting.pop()
            calls, fresh = self._look(caller)
            self._calls[str(caller.origin.file)] = calls
            waiting.extend(fresh)
        self._runs = {file: {call.file for call in calls if call.file} for file, calls in self._calls.items()}
        self._targets: dict[str, _Path] = {}
        """The files of the ensembles that the first one itself runs, and the path of the first reference to each."""
        for call in self._calls[self._root]:
            if call.file:
                self._targets.setdefault(call.file, call.path)

    def notes(self) -> Iterator[_Note]:
        """Yield the findings."""
        if self._cut:
            many = f"there are more than {MAX_ENSEMBLES}, or their files take too long to read"
            yield _Note("warning", f"not all ensembles that it runs were looked at: {many}", ())
        yield from (_Note("error", call.fault, call.path) for call in self._calls[self._root] if call.fault)
        for target, path in self._targets.items():
            for file in sorted(self._reached(target) - {self._root}):
                for fault in dict.fromkeys(call.fault for call in self._calls[file] if call.fault):
                    yield _Note("error", f'runs "{self._names[file]}", where {fault}', path)
        yield from self._circles() or self._too_deep()

    def _look(self, caller: Found) -> tuple[list[_Call], list[Found]]:
        """Return the references of *caller*, and the ensembles that were not yet known."""
        calls: list[_Call] = []
        fresh: list[Found] = []
        for index, agent in enumerate(caller.ensemble.agents):
            named = _run_by(agent)
            if named is None:
                continue
            if self._clock() >= self._end:
                self._cut = True
                break
            path: _Path = ("agents", index, *named[1])
            try:
                callee = self._source.find(named[0], caller.origin)
            except (NotFound, InvalidConfig) as error:
                calls.append(_Call(path, fault=error.message))
                continue
            file = str(callee.origin.file)
            if file not in self._names:
                if len(self._names) == MAX_ENSEMBLES:
                    self._cut = True
                    continue
                self._names[file] = callee.ensemble.name
                fresh.append(callee)
            calls.append(_Call(path, file))
        return calls, fresh

    def _reached(self, start: str) -> set[str]:
        found = {start}
        waiting = [start]
        while waiting:
            fresh = self._runs[waiting.pop()] - found
            found |= fresh
            waiting.extend(fresh)
        return found

    def _circles(self) -> list[_Note]:
        notes = []
        for cycle in graph.cycles(self._runs):
            files = cycle[::-1]
            reaching = (path for target, path in self._targets.items() if not self._reached(target).isdisjoint(files))
            shown = graph.chain([self._names[file] for file in files])
            notes.append(_Note("error", f"ensembles run each other in a circle: {shown}", next(reaching)))
        return notes

    def _too_deep(self) -> list[_Note]:
        """Return the references to chains of ensembles that are too long; there must be no circle."""
        heights: dict[str, int] = {}
        deepest: dict[str, str] = {}
        for file in TopologicalSorter(self._runs).static_order():
            if runs := sorted(self._runs[file]):
                deepest[file] = max(runs, key=heights.__getitem__)
            heights[file] = heights[deepest[file]] + 1 if runs else 0
        notes = []
        for target, path in self._targets.items():
            if heights[target] >= MAX_DEPTH:
                files = [self._root, target]
                while files[-1] in deepest:
                    files.append(deepest[files[-1]])
                shown = graph.chain([self._names[file] for file in files])
                notes.append(_Note("error", f"ensembles run each other deeper than {MAX_DEPTH} levels: {shown}", path))
        return notes
