# SPDX-License-Identifier: LGPL-2.1-or-later
"""The graph of an ensemble's agents: its order, its last agents, and its faults."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidArgument, InvalidConfig
from mcpd.model.base import printable
from mcpd.servers.ensembles.format.loading import MAX_PROBLEMS, Fault, invalid
from mcpd.servers.ensembles.format.models import DispatchAgent, LoopAgent, McpAgent
from mcpd.servers.ensembles.format.references import check, check_condition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from mcpd.servers.ensembles.format.loading import Loaded
    from mcpd.servers.ensembles.format.models import Agent, AgentBase, Ensemble

INPUT: Final = "input"
"""Name of the run's input in references; agents cannot have it."""
ITEM: Final = "item"
"""Name of the element of an instance in references; agents cannot have it."""
_MAX_CYCLES: Final = 20
_SHOWN: Final = 10
_RESERVED: Final = {INPUT: "the run's input", ITEM: "the element that an instance is for"}


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault of an agent in the graph."""

    agent: str
    message: str
    path: tuple[str | int, ...]
    """Path in the document."""


def levels(agents: Sequence[AgentBase]) -> list[list[str]]:
    """Return the names in groups, each of which depends only on earlier ones, in the order of *agents* within a group.

    Unknown names are ignored. Raises :class:`~mcpd.errors.InvalidConfig` if dependencies form a circle.
    """
    place = {agent.name: index for index, agent in enumerate(agents)}
    sorter = TopologicalSorter(_dependencies(agents))
    try:
        sorter.prepare()
    except CycleError as error:
        raise InvalidConfig(f"agents depend on each other in a circle: {chain(error.args[1])}") from None
    found = []
    while sorter.is_active():
        ready = sorter.get_ready()
        found.append(sorted(ready, key=place.__getitem__))
        sorter.done(*ready)
    return found


def terminals(agents: Sequence[AgentBase]) -> list[str]:
    """Return the names of the agents on which nothing depends, in the order of *agents*."""
    needed = {name for agent in agents for name in agent.depends_on}
    return [agent.name for agent in agents if agent.name not in needed]


def ancestors(agents: Iterable[AgentBase], name: str) -> set[str]:
    """Return the names of all agents that *name* depends on, directly or indirectly."""
    dependencies = _dependencies(agents)
    found: set[str] = set()
    waiting = [name]
    while waiting:
        fresh = dependencies.get(waiting.pop(), set()) - found
        found |= fresh
        waiting.extend(fresh)
    return found


def problems(ensemble: Ensemble) -> list[Problem]:
    """Return all faults in the graph of *ensemble*, in the order of its agents: duplicate names; dependencies that are
    missing, duplicate or on the agent itself; circles; and references and conditions that are invalid, or read agents
    on which the agent does not depend.
    """
    found = [*_names(ensemble.agents), *_edges(ensemble.agents), *_circles(ensemble.agents), *_references(ensemble)]
    return sorted(found, key=lambda problem: problem.path[1])


def fault(ensemble: Ensemble, loaded: Loaded | None = None, file: str = "") -> InvalidConfig | None:
    """Return the error for *ensemble* if it cannot be run, else None.

    With *loaded*, the content of *file*, the error is like those of :func:`.loading.load`, with the line. Otherwise
    lines are unknown, and *file* may be empty.
    """
    found = problems(ensemble)
    if not found:
        return None
    first, shown = found[0], found[:MAX_PROBLEMS]
    if loaded is not None:
        faults = [Fault.of(int(at.path[1]), at.agent, at.message, loaded.positions.line(at.path)) for at in shown]
        return invalid(file, faults, len(found))
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    where = file or f"ensemble {ensemble.name}"
    error = InvalidConfig(f'{where}: agent "{first.agent}": {first.message}{more}')
    error.data = {
        "ensemble": ensemble.name,
        **({"file": file} if file else {}),
        "agent": first.agent,
        "problems": [{"agent": each.agent, "message": each.message} for each in shown],
    }
    return error


def require_sound(ensemble: Ensemble, loaded: Loaded | None = None, file: str = "") -> None:
    """Raise :class:`~mcpd.errors.InvalidConfig` for an ensemble that cannot be run, see :func:`fault`."""
    if (error := fault(ensemble, loaded, file)) is not None:
        raise error


def _dependencies(agents: Iterable[AgentBase]) -> dict[str, set[str]]:
    agents = list(agents)
    names = {agent.name for agent in agents}
    found: dict[str, set[str]] = {name: set() for name in names}
    for agent in agents:
        found[agent.name].update(names.intersection(agent.depends_on))
    return found


def _names(agents: Sequence[AgentBase]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, agent in enumerate(agents):
        path = ("agents", index, "name")
        if agent.name in _RESERVED:
            yield Problem(
                agent.name, f'"{agent.name}" is {_RESERVED[agent.name]} and cannot be the name of an agent', path
            )
        if agent.name in first:
            yield Problem(agent.name, f"agents[{first[agent.name]}] has the same name", path)
        first.setdefault(agent.name, index)


def _edges(agents: Sequence[AgentBase]) -> Iterator[Problem]:
    names = {agent.name: None for agent in agents}
    suggested: dict[str, str] = {}
    for index, agent in enumerate(agents):
        seen: set[str] = set()
        for number, name in enumerate(agent.depends_on):
            path = ("agents", index, "depends_on", number)
            if name == agent.name:
                yield Problem(agent.name, "depends on itself", path)
            elif name in seen:
                yield Problem(agent.name, f'depends on "{name}" twice', path)
            elif name not in names:
                if name not in suggested:
                    # Comparing with every name is slow, so a file full of unknown names gets fewer suggestions.
                    suggested[name] = _near(name, names) if len(suggested) < _SHOWN else ""
                yield Problem(agent.name, f'depends on "{name}", which is not there{suggested[name]}', path)
            seen.add(name)


def _near(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f'; did you mean "{near[0]}"?' if near else ""


def cycles(dependencies: Mapping[str, Iterable[str]]) -> Iterator[list[str]]:
    """Yield circles in *dependencies*, each as ``[a, b, a]`` where b depends on a; those that share an edge with an
    earlier one, and all after the first twenty, may be missing.
    """
    left = {name: set(needed) for name, needed in dependencies.items()}
    for _ in range(_MAX_CYCLES):
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            cycle = list(error.args[1])
        else:
            return
        yield cycle
        for earlier, later in pairwise(cycle):
            left[later].discard(earlier)


def chain(names: Sequence[str]) -> str:
    """Return the path of *names* for a message."""
    if len(names) > _SHOWN:
        names = [*names[: _SHOWN - 2], "…", names[-1]]
    return " → ".join(names)


def _circles(agents: Sequence[AgentBase]) -> Iterator[Problem]:
    dependencies = _dependencies(agents)
    place = {agent.name: index for index, agent in reversed(list(enumerate(agents)))}
    for name, needed in dependencies.items():
        needed.discard(name)
    for cycle in cycles(dependencies):
        first = min(range(len(cycle) - 1), key=lambda index: place[cycle[index]])
        turned = [*cycle[first:-1], *cycle[: first + 1]]
        listed = agents[place[turned[0]]].depends_on
        path = ("agents", place[turned[0]], "depends_on", listed.index(turned[-2]) if turned[-2] in listed else 0)
        yield Problem(turned[0], f"agents depend on each other in a circle: {chain(turned)}", path)


@dataclass(frozen=True, slots=True)
class _Use:
    """A text of an agent that contains references."""

    check: Callable[[str], tuple[str, ...]]
    text: str
    path: tuple[str | int, ...]
    outside: bool = False
    """True if it does not refer to agents of this ensemble."""
    before: bool = False
    """True if it is evaluated before there are instances."""


def _references(ensemble: Ensemble) -> Iterator[Problem]:
    names = {agent.name for agent in ensemble.agents}
    reach: _Reach | None = None
    for index, agent in enumerate(ensemble.agents):
        for use in _uses(agent):
            path = ("agents", index, *use.path)
            try:
                read = use.check(use.text)
            except InvalidArgument as error:
                yield Problem(agent.name, f"{_shown(use.path)}: {error.message}", path)
                continue
            for name in () if use.outside else read:
                if name == INPUT or (name == ITEM and agent.fan_out and not use.before):
                    continue
                if name not in names:
                    yield Problem(agent.name, f'{_shown(use.path)} refers to "{name}", which is no agent here', path)
                    continue
                reach = reach or _Reach(ensemble.agents)
                if not reach.depends(agent.name, name):
                    yield Problem(
                        agent.name, f'{_shown(use.path)} refers to "{name}", which it does not depend on', path
                    )


def _uses(agent: Agent) -> Iterator[_Use]:
    if agent.when is not None:
        yield _Use(check_condition, agent.when, ("when",), before=True)
    if isinstance(agent, DispatchAgent):
        yield _Use(check, agent.dispatch, ("dispatch",))
    elif isinstance(agent, LoopAgent):
        yield _Use(check_condition, agent.loop.until, ("loop", "until"), outside=True)
        if agent.loop.carry is not None:
            yield _Use(_check_carry, agent.loop.carry, ("loop", "carry"), outside=True)
    elif isinstance(agent, McpAgent):
        for text, path in _texts(agent.mcp.arguments, ("mcp", "arguments")):
            yield _Use(check, text, path)


def _check_carry(text: str) -> tuple[str, ...]:
    names = check(text)
    if not names:
        raise InvalidArgument(f'"{printable(text)}" refers to nothing of the deliverable; write ${{key}}')
    return names


def _texts(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str, tuple[str | int, ...]]]:
    if isinstance(value, str):
        yield value, path
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _texts(each, (*path, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _texts(each, (*path, number))


def _shown(path: Iterable[str | int]) -> str:
    return ".".join(map(str, path))


class _Reach:
    """All direct and indirect dependencies: for each agent a number with a bit for each other agent."""

    def __init__(self, agents: Sequence[AgentBase]) -> None:
        self._bits: Mapping[str, int] = {agent.name: 1 << index for index, agent in enumerate(agents)}
        self._reached: dict[str, int] = {}
        dependencies = _dependencies(agents)
        sorter = TopologicalSorter(dependencies)
        try:
            order = list(sorter.static_order())
        except CycleError:
            # The circle is reported separately; indirect dependencies are undefined until it is removed.
            return
        for name in order:
            reached = 0
            for earlier in dependencies[name]:
                reached |= self._bits[earlier] | self._reached[earlier]
            self._reached[name] = reached

    def depends(self, name: str, on: str) -> bool:
        """Return True if the agent *name* depends on *on*."""
        return name not in self._reached or bool(self._reached[name] & self._bits[on])
