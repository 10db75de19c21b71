# SPDX-License-Identifier: LGPL-2.1-or-later
"""The input of an agent, made of the run's input and of its dependencies' responses."""

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
"""Maximum number of instances of an agent that fans out."""
MAX_GATHERED: Final = 8 * MAX_RESPONSE
"""Maximum length of the responses of all instances, in characters."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The element for one instance."""

    value: Any
    index: int
    total: int


@dataclass(frozen=True, slots=True)
class Given:
    """The input of an agent, or of an instance of it."""

    base: str
    """The input of the run."""
    dependencies: Mapping[str, AgentResult]
    """Results in the order of ``depends_on``."""
    selected: str | None = None
    """The member that ``input_key`` names."""
    chunk: Chunk | None = None
    _said: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """Cache of :attr:`said` for all instances of an agent."""

    @property
    def said(self) -> Mapping[str, Any]:
        """The responses of the dependencies, each parsed once."""
        if not self._said:
            self._said.update({name: said(result) for name, result in self.dependencies.items()})
        return self._said

    @property
    def text(self) -> str:
        """Return the input for all agents but models: the run's input, the only response, or an object of several."""
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
        """Return the input for models, as text rather than objects; *scope* is the agent's ``input_scope``."""
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
        """Return the context of a script."""
        found: dict[str, Any] = {
            "ensemble": ensemble,
            "agent": agent,
            "dependencies": self.said,
        }
        if self.chunk is not None:
            found["fan_out"] = {"chunk_index": self.chunk.index, "total_chunks": self.chunk.total}
        return found


def selected(agent: AgentBase, dependencies: Mapping[str, AgentResult]) -> str | None:
    """Return the input that ``input_key`` of *agent* names. Raises :class:`~mcpd.errors.InvalidArgument` if missing."""
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
    """Return a chunk for each element of the list that *agent* fans out over.

    Raises :class:`~mcpd.errors.InvalidArgument` if it is not a list, :class:`~mcpd.errors.LimitExceeded` for too many.
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
    """Return the response of an agent that fanned out into *instances*, and ``success``, ``partial`` or ``failed``.

    Raises :class:`~mcpd.errors.LimitExceeded` if the response is too long.
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
    """Return the response of *result*, parsed if it is JSON, or its status and error if it has none."""
    if result.status == "success":
        return parsed(result.response)
    return {"status": result.status, **({"error": result.fault.message} if result.fault else {})}


def parsed(text: str | None) -> Any:
    """Return *text* parsed as JSON if it is an object, a list, a number or the like; otherwise *text* itself."""
    if not text or text.lstrip()[:1] not in _BEGINNINGS:
        return text
    try:
        return load_json(text, "a response")
    except InvalidManifest:
        return text


def as_text(value: Any) -> str:
    """Return *value* as a response. Raises the errors of :func:`as_json`."""
    return _whole(value) if isinstance(value, str) else as_json(value)


def as_json(value: Any) -> str:
    """Return *value* as JSON. Raises :class:`~mcpd.errors.InvalidArgument` if it is nested too deeply."""
    try:
        return _whole(json.dumps(value, ensure_ascii=False))
    except RecursionError:
        raise InvalidArgument("what is to be written as JSON is nested too deeply") from None


def _whole(text: str) -> str:
    """Return *text* without single surrogates, which JSON can contain, but UTF-8 cannot."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _response(result: AgentResult) -> str | None:
    """Return the response of *result*. Raises :class:`~mcpd.errors.InvalidArgument` if it has none."""
    if result.status != "success":
        raise InvalidArgument(f"{result.name}, whose response is its input, has none: it is {result.status}")
    return result.response


def _shown(result: AgentResult) -> str:
    if result.status == "success":
        return result.response or ""
    return f"({result.status}{f': {result.fault.message}' if result.fault else ''})"


_BEGINNINGS: Final = frozenset('{["-0123456789tfn')
