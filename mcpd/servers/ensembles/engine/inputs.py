# SPDX-License-Identifier: LGPL-2.1-or-later
"""What an agent is given, made of the run's input and of what it depends on."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidArgument, InvalidManifest, LimitExceeded
from mcpd.model import load_json, printable
from mcpd.servers.ensembles.engine.types import MAX_RESPONSE, AgentResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcpd.servers.ensembles.format.models import AgentBase

MAX_INSTANCES: Final = 10_000
"""Of an agent that fans out."""
MAX_GATHERED: Final = 8 * MAX_RESPONSE
"""Characters of the responses of all instances."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The element that an instance is for."""

    value: Any
    index: int
    total: int


@dataclass(frozen=True, slots=True)
class Given:
    """What an agent, or an instance of it, is given."""

    base: str
    """The run's input."""
    dependencies: Mapping[str, AgentResult]
    """In the order of ``depends_on``."""
    selected: str | None = None
    """The member that ``input_key`` names."""
    chunk: Chunk | None = None
    _said: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """What :attr:`said` has found, for all instances of an agent."""

    @property
    def said(self) -> Mapping[str, Any]:
        """What the dependencies said, each read once."""
        if not self._said:
            self._said.update({name: said(result) for name, result in self.dependencies.items()})
        return self._said

    @property
    def text(self) -> str:
        """For all but models: the run's input, the one response that there is, or an object of several."""
        if self.chunk is not None:
            return as_json(
                {
                    "input": self.chunk.value,
                    "chunk_index": self.chunk.index,
                    "total_chunks": self.chunk.total,
                    "base_input": self.base,
                }
            )
        if self.selected is not None:
            return self.selected
        if not self.dependencies:
            return self.base
        if len(self.dependencies) == 1:
            (only,) = self.dependencies.values()
            return only.response or ""
        return as_json(self.said)

    def for_model(self, scope: str) -> str:
        """For models, which read text rather than objects; *scope* is the agent's ``input_scope``."""
        if self.chunk is not None:
            part = as_text(self.chunk.value)
            if scope == "dependencies":
                return part
            return f"{self.base}\n\nPart {self.chunk.index + 1} of {self.chunk.total}:\n\n{part}"
        if self.selected is not None:
            return self.selected
        if scope == "base" or not self.dependencies:
            return self.base
        parts = [f"## {name}\n\n{_shown(result)}" for name, result in self.dependencies.items()]
        begin = [] if scope == "dependencies" else [self.base, "# Results of earlier agents"]
        return "\n\n".join([*begin, *parts])

    def context(self, ensemble: str, agent: str) -> dict[str, Any]:
        """What a script hears besides its input."""
        found: dict[str, Any] = {
            "ensemble": ensemble,
            "agent": agent,
            "dependencies": self.said,
        }
        if self.chunk is not None:
            found["fan_out"] = {"chunk_index": self.chunk.index, "total_chunks": self.chunk.total}
        return found


def selected(agent: AgentBase, dependencies: Mapping[str, AgentResult]) -> str | None:
    """What ``input_key`` of *agent* names. Raises :class:`~mcpd.errors.InvalidArgument` if it is not there."""
    if agent.input_key is None:
        return None
    first = agent.depends_on[0]
    found = parsed(_response(dependencies[first]))
    if not isinstance(found, dict) or agent.input_key not in found:
        members = ", ".join(map(printable, list(found)[:10])) if isinstance(found, dict) else None
        there = "it is not an object" if members is None else f"it has {members or 'none'}"
        raise InvalidArgument(f"the response of {first} has no member {printable(agent.input_key)!r}: {there}")
    return as_text(found[agent.input_key])


def chunks(agent: AgentBase, given: Given) -> list[Chunk]:
    """One for each element of what *agent* fans out over.

    Raises :class:`~mcpd.errors.InvalidArgument` for what is no list, :class:`~mcpd.errors.LimitExceeded` for too many.
    """
    source = agent.depends_on[0]
    found = parsed(given.selected if given.selected is not None else _response(given.dependencies[source]))
    if isinstance(found, dict):
        found = found.get("data", found)
    if not isinstance(found, list):
        raise InvalidArgument(
            f"it fans out over the response of {source}, which is neither a list nor an object with a list as its"
            " member data"
        )
    if len(found) > MAX_INSTANCES:
        raise LimitExceeded(f"it fans out over the {len(found)} elements of {source}; {MAX_INSTANCES} are the most")
    return [Chunk(value, index, len(found)) for index, value in enumerate(found)]


def gathered(instances: Sequence[AgentResult]) -> tuple[str, str]:
    """The response of an agent that fanned out into *instances*, and ``success``, ``partial`` or ``failed``.

    Raises :class:`~mcpd.errors.LimitExceeded` if that is too much.
    """
    if sum(len(each.response or "") for each in instances) > MAX_GATHERED:
        raise LimitExceeded(f"the responses of its {len(instances)} instances have more than {MAX_GATHERED} characters")
    good = sum(each.status == "success" for each in instances)
    status = "success" if good == len(instances) else "partial" if good else "failed"
    response = {
        "response": [parsed(each.response) if each.status == "success" else None for each in instances],
        "status": status,
        "fan_out": True,
        "instances": [
            {"index": index, "status": each.status, **({"error": each.fault.message} if each.fault else {})}
            for index, each in enumerate(instances)
        ],
    }
    return as_json(response), status


def said(result: AgentResult) -> Any:
    """The response of *result* as JSON if it is some; of one without, what became of it."""
    if result.status == "success":
        return parsed(result.response)
    return {"status": result.status, **({"error": result.fault.message} if result.fault else {})}


def parsed(text: str | None) -> Any:
    """*text* as JSON if it is an object, a list, a number or the like; else as it is."""
    if not text or text.lstrip()[:1] not in _BEGINNINGS:
        return text
    try:
        return load_json(text, "a response")
    except InvalidManifest:
        return text


def as_text(value: Any) -> str:
    """*value* as a response. Raises what :func:`as_json` does."""
    return _whole(value) if isinstance(value, str) else as_json(value)


def as_json(value: Any) -> str:
    """*value* as JSON. Raises :class:`~mcpd.errors.InvalidArgument` for what is nested too deeply for that."""
    try:
        return _whole(json.dumps(value, ensure_ascii=False))
    except RecursionError:
        raise InvalidArgument("what is to be written as JSON is nested too deeply") from None


def _whole(text: str) -> str:
    """*text* without half a surrogate pair, which JSON can name, but nothing can carry."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _response(result: AgentResult) -> str | None:
    """The response of *result*. Raises :class:`~mcpd.errors.InvalidArgument` if it has none."""
    if result.status != "success":
        raise InvalidArgument(f"{result.name}, whose response is its input, has none: it is {result.status}")
    return result.response


def _shown(result: AgentResult) -> str:
    if result.status == "success":
        return result.response or ""
    return f"({result.status}{f': {result.fault.message}' if result.fault else ''})"


_BEGINNINGS: Final = frozenset('{["-0123456789tfn')
