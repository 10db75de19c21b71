# SPDX-License-Identifier: LGPL-2.1-or-later
"""The changes that ``update_ensemble`` can make, and their effect on an ensemble as plain data."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from mcpd.errors import InvalidArgument, NotFound
from mcpd.model import printable
from mcpd.servers.ensembles.format.models import MAX_AGENTS, AgentName, ModelAgent, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mcpd.servers.ensembles.format.loading import Loaded

MAX_CHANGES: Final = MAX_AGENTS
_Name = Annotated[str, Field(min_length=1, max_length=128)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Dependencies(_Strict):
    """The new dependencies of an agent."""

    agent: _Name = Field(description="Name of an agent of the ensemble")
    depends_on: Annotated[tuple[AgentName, ...], Field(max_length=MAX_AGENTS)] = Field(
        description="All its dependencies; an empty list for none"
    )


class Changes(_Strict):
    """Changes that are made together or not at all."""

    add_agents: Annotated[tuple[dict[str, Any], ...], Field(max_length=MAX_CHANGES)] = Field(
        default=(), description="Agents to append, each with the same keys as in the file"
    )
    remove_agents: Annotated[tuple[_Name, ...], Field(max_length=MAX_CHANGES)] = Field(
        default=(), description="Names of agents to remove"
    )
    modify_dependencies: Annotated[tuple[Dependencies, ...], Field(max_length=MAX_CHANGES)] = Field(
        default=(), description="Agents and their new dependencies"
    )
    update_model_profiles: Annotated[dict[_Name, _Name], Field(max_length=MAX_CHANGES)] = Field(
        default_factory=dict, description="The new model profile of each agent; it replaces model and provider"
    )

    @property
    def is_empty(self) -> bool:
        """True if there are no changes."""
        return not (self.add_agents or self.remove_agents or self.modify_dependencies or self.update_model_profiles)


_DANGLING: Final = (
    'it depends on "{}", which is to be removed; remove it, too, or say in modify_dependencies what it depends on'
    " instead"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes by the index of agents in the file."""

    removed: frozenset[int]
    added: tuple[dict[str, Any], ...]
    dependencies: dict[int, Any]
    """The new value of ``depends_on``; None to remove the key."""
    profiles: dict[int, str]

    def applied(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return *document* with the changes applied."""
        agents = []
        for index, agent in enumerate(document["agents"]):
            if index in self.removed:
                continue
            changed = dict(agent)
            if index in self.dependencies:
                changed["depends_on"] = self.dependencies[index]
                if self.dependencies[index] is None:
                    del changed["depends_on"]
            if index in self.profiles:
                changed = {key: value for key, value in changed.items() if key not in {"model", "provider"}}
                changed["model_profile"] = self.profiles[index]
            agents.append(changed)
        return document | {"agents": [*agents, *self.added]}


def planned(loaded: Loaded, changes: Changes) -> Plan:
    """Return the plan for *changes* to the ensemble *loaded*.

    Raises :class:`~mcpd.errors.NotFound` for unknown agents, :class:`~mcpd.errors.InvalidArgument` with all faults of
    *changes*.
    """
    agents = loaded.ensemble.agents
    names = [agent.name for agent in agents]
    _check_names(names, changes)
    faults: list[tuple[str | None, str]] = [
        *_contradictions(changes),
        *_duplicates(names, changes),
        *_left(loaded, changes),
    ]
    for name in changes.update_model_profiles:
        agent = agents[names.index(name)]
        if not isinstance(agent, ModelAgent):
            faults.append((name, f"it has no model profile: it is of the kind {kind_of(agent)}"))
    if not changes.add_agents and set(names) <= set(changes.remove_agents):
        faults.append((None, "no agent would be left, and an ensemble has at least one; add one by the same change"))
    refuse(faults)
    return Plan(
        removed=frozenset(names.index(name) for name in changes.remove_agents),
        added=changes.add_agents,
        dependencies={
            (at := names.index(each.agent)): _dependencies(loaded.document["agents"][at], agents[at].depends_on, each)
            for each in changes.modify_dependencies
            if each.depends_on != agents[names.index(each.agent)].depends_on
        },
        profiles={
            names.index(name): profile
            for name, profile in changes.update_model_profiles.items()
            if loaded.document["agents"][names.index(name)].get("model_profile") != profile
        },
    )


def refuse(faults: Sequence[tuple[str | None, str]]) -> None:
    """Raise :class:`~mcpd.errors.InvalidArgument` with all *faults*, pairs of agent and message, if there are any."""
    if not faults:
        return
    shown = [
        message if agent is None or f'"{agent}"' in message.partition(":")[0] else f'agent "{agent}": {message}'
        for agent, message in faults
    ]
    more = f"; and {len(shown) - 10} more" if len(shown) > 10 else ""
    fault = InvalidArgument(f"nothing was changed: {'; '.join(shown[:10])}{more}")
    fault.data = {"problems": [{"agent": agent, "message": message} for agent, message in faults]}
    raise fault


def _named(changes: Changes) -> Iterator[str]:
    yield from changes.remove_agents
    yield from (each.agent for each in changes.modify_dependencies)
    yield from changes.update_model_profiles


def _added(changes: Changes) -> list[str]:
    return [name for agent in changes.add_agents if isinstance(name := agent.get("name"), str)]


def _check_names(names: Sequence[str], changes: Changes) -> None:
    unknown = list(dict.fromkeys(name for name in _named(changes) if name not in names))
    if not unknown:
        return
    first = unknown[0]
    if first in _added(changes):
        raise InvalidArgument(
            f'agent "{printable(first)}" is added by the same change: write in add_agents what it is to be'
        )
    near = difflib.get_close_matches(first, names, n=3)
    meant = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(names[:10])}"
    missing = NotFound(f'the ensemble has no agent "{printable(first)}"; {meant}')
    missing.data = {"unknown": unknown, "agents": list(names[:100])}
    raise missing


def _contradictions(changes: Changes) -> Iterator[tuple[str, str]]:
    removed = set(changes.remove_agents)
    modified = [each.agent for each in changes.modify_dependencies]
    for name in dict.fromkeys([*modified, *changes.update_model_profiles]):
        if name in removed:
            yield name, "it is both removed and changed"
    for name in _twice(modified):
        yield name, "modify_dependencies has it twice"
    for name in _twice(changes.remove_agents):
        yield name, "remove_agents has it twice"


def _duplicates(names: Sequence[str], changes: Changes) -> Iterator[tuple[str, str]]:
    added = _added(changes)
    for name in _twice(added):
        yield name, "add_agents has it twice"
    for name in dict.fromkeys(added):
        if name in names and name not in changes.remove_agents:
            yield name, "there is one of this name already; remove_agents in the same change replaces it"
    for name in _twice(names):
        if name in _named(changes):
            yield name, "the file has several of this name; name them apart in the file first"


def _left(loaded: Loaded, changes: Changes) -> Iterator[tuple[str, str]]:
    """Yield the agents that would depend on removed ones."""
    gone = set(changes.remove_agents) - set(_added(changes))
    modified = {each.agent for each in changes.modify_dependencies}
    for agent in loaded.ensemble.agents:
        if agent.name in modified or agent.name in changes.remove_agents:
            continue
        for name in agent.depends_on:
            if name in gone:
                yield agent.name, _DANGLING.format(printable(name))


def _twice(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    found = dict.fromkeys(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    return list(found)


def _dependencies(agent: dict[str, Any], before: Sequence[str], change: Any) -> Any:
    """Return the new value of ``depends_on``, with each remaining dependency as written in the file."""
    if not change.depends_on:
        return None
    written = agent.get("depends_on")
    if isinstance(written, list):
        kept = dict(zip(before, written, strict=True))
        return [kept.get(name, name) for name in change.depends_on]
    return change.depends_on[0] if isinstance(written, str) and len(change.depends_on) == 1 else [*change.depends_on]
