# SPDX-License-Identifier: LGPL-2.1-or-later
"""Load ensembles, profiles and ``config.yaml`` from text, with readable messages for all faults and their lines."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_args

from pydantic import BaseModel, Field, ValidationError

from mcpd.errors import InvalidConfig
from mcpd.model.base import printable
from mcpd.servers.ensembles.format import models
from mcpd.servers.ensembles.format.reading import Positions, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydantic_core import ErrorDetails

MAX_PROBLEMS: Final = 20
"""Maximum number of faults reported for a file."""
_SHOWN: Final = 80
_Model = TypeVar("_Model", bound=BaseModel)
_Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """An ensemble, and the content of its file."""

    ensemble: models.Ensemble
    positions: Positions
    document: dict[str, Any]


class _NamedProfile(models.Profile):
    """A profile in a file of its own."""

    name: Annotated[str, Field(min_length=1, max_length=128)]


def load(text: str, file: str) -> Loaded:
    """Return the ensemble in *text*; *file* names it in messages.

    Raises :class:`~mcpd.errors.InvalidConfig`, whose message is about the first fault; ``data`` has its ``file``,
    ``line`` and ``agent``, and in ``problems`` all faults, each with ``line``, ``agent`` and ``message``.
    """
    document, positions = _mapping(text, file, "an ensemble")
    return Loaded(_validated(models.Ensemble, document, positions, file), positions, document)


def load_profiles(text: str, file: str) -> models.Settings:
    """Return the profiles, and the other settings of ensembles, in *text*, a ``config.yaml``.

    An empty file has no settings. Raises :class:`~mcpd.errors.InvalidConfig` like :func:`load`.
    """
    document, positions = _read(text, file)
    if document is None:
        return models.Settings()
    return _validated(models.Settings, _a_mapping(document, positions, file, "config.yaml"), positions, file)


def load_profile(text: str, file: str) -> tuple[str, models.Profile]:
    """Return the name and the profile in *text*, a profile with a ``name``.

    Raises :class:`~mcpd.errors.InvalidConfig` like :func:`load`.
    """
    document, positions = _mapping(text, file, "a profile")
    named = _validated(_NamedProfile, document, positions, file)
    return named.name, models.Profile.model_validate(named.model_dump(exclude={"name"}))


def _mapping(text: str, file: str, what: str) -> tuple[dict[str, Any], Positions]:
    document, positions = _read(text, file)
    return _a_mapping(document, positions, file, what), positions


def _read(text: str, file: str) -> tuple[Any, Positions]:
    """Return the result of :func:`.reading.read`; errors have the same ``data`` as all in this module."""
    try:
        return read(text, file)
    except InvalidConfig as error:
        data = error.data or {}
        line = data["line"]
        message = error.message.removeprefix(f"{file}:{line}: ")
        error.data = {**data, "agent": None, "problems": [{"line": line, "agent": None, "message": message}]}
        raise


def _a_mapping(document: Any, positions: Positions, file: str, what: str) -> dict[str, Any]:
    if isinstance(document, dict):
        return document
    raise invalid(file, [Fault(positions.line(()), None, f"{what} has to be a mapping of keys to values")], 1)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a file."""

    line: int
    agent: str | None
    message: str
    where: str = ""
    """Prefix for the message of an error, unless the message names the agent in another way."""

    @classmethod
    def of(cls, index: int, name: str, message: str, line: int) -> Fault:
        """Return a fault of the agent *name*, which has the number *index*."""
        return cls(line, name, message, f'agents[{index}] "{printable(name)}": ')


@dataclass(frozen=True, slots=True)
class _Document:
    """A document to be validated as *model*, and its positions."""

    model: type[BaseModel]
    content: dict[str, Any]
    positions: Positions


def _validated(model: type[_Model], content: dict[str, Any], positions: Positions, file: str) -> _Model:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        faults = error.errors(include_url=False)
    found: dict[tuple[_Path, str], ErrorDetails] = {}
    for fault in faults:
        path = _inside(content, fault["loc"])
        if not _follows(fault, content):
            found.setdefault((path, fault["type"]), fault)
    document = _Document(model, content, positions)
    ordered = sorted(found.items(), key=lambda item: positions.line(item[0][0]))
    problems = [_problem(document, path, fault) for (path, _), fault in ordered[:MAX_PROBLEMS]]
    raise invalid(file, problems, len(ordered)) from None


def _follows(fault: ErrorDetails, content: dict[str, Any]) -> bool:
    """Return True if *fault* says that a list is too short only because of other faults in its elements."""
    return fault["type"] == "too_short" and bool(content.get(str(fault["loc"][0])))


def invalid(file: str, problems: Sequence[Fault], count: int) -> InvalidConfig:
    """Return the error for *file* with *count* faults, of which *problems* are the first."""
    first = problems[0]
    others = f" (and {count - 1} more)" if count > 1 else ""
    error = InvalidConfig(f"{file}:{first.line}: {first.where}{first.message}{others}")
    error.data = {
        "file": file,
        "line": first.line,
        "agent": first.agent,
        "problems": [{"line": each.line, "agent": each.agent, "message": each.message} for each in problems],
    }
    return error


def _inside(content: Any, location: Iterable[str | int]) -> _Path:
    """Return the parts of *location* that are keys and indexes of *content*; pydantic adds names of types."""
    path: list[str | int] = []
    value = content
    for part in location:
        if isinstance(value, dict) and isinstance(part, str):
            path.append(part)
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int):
            path.append(part)
            value = value[part] if part < len(value) else None
    return tuple(path)


def _agent_at(content: dict[str, Any], path: _Path) -> dict[str, Any] | None:
    """Return the agent that contains *path*, or None."""
    match path:
        case ("agents", int(number), *_) if isinstance(content["agents"][number], dict):
            return dict(content["agents"][number])
        case _:
            return None


def _agent(content: dict[str, Any], path: _Path) -> str | None:
    name = (_agent_at(content, path) or {}).get("name")
    return name if isinstance(name, str) else None


def _problem(document: _Document, path: _Path, fault: ErrorDetails) -> Fault:
    line = document.positions.line(path)
    match path:
        case ("agents", int(number), *inner):
            words = _words(document, path, inner, fault)
            name = _agent(document.content, path)
            if name:
                return Fault.of(number, name, words, line)
            return Fault(line, None, f"agents[{number}]: {words}")
        case _:
            return Fault(line, None, _words(document, path, path, fault))


def _words(document: _Document, path: _Path, inner: Sequence[str | int], fault: ErrorDetails) -> str:
    kind = fault["type"]
    if kind == "extra_forbidden":
        return _unknown_key(document, path)
    key = printable(".".join(map(str, inner)))
    if kind == "missing":
        return f'"{key}" is missing'
    agent = _agent_at(document.content, path)
    if kind == "value_error" and agent is not None and not _says_what_it_does(agent):
        return f"has none of {', '.join(models.KINDS)}, one of which says what an agent does"
    words = _fault_words(kind, fault)
    if not inner:
        return words
    return f'"{key}" {words}' if words.startswith("has to") else f"{key}: {words}"


_FIXED: Final[Mapping[str, str]] = {
    "string_type": "has to be text",
    "int_type": "has to be a whole number",
    "int_parsing": "has to be a whole number",
    "int_from_float": "has to be a whole number",
    "float_type": "has to be a number",
    "float_parsing": "has to be a number",
    "finite_number": "has to be a number",
    "bool_type": "has to be true or false",
    "bool_parsing": "has to be true or false",
    "dict_type": "has to be a mapping of keys to values",
    "model_type": "has to be a mapping of keys to values",
    "tuple_type": "has to be a list",
    "list_type": "has to be a list",
    "string_too_short": "has to say something",
}


def _fault_words(kind: str, fault: ErrorDetails) -> str:
    context = fault.get("ctx", {})
    if kind in _FIXED:
        return _FIXED[kind]
    if kind == "string_pattern_mismatch":
        signs = "._-" if "." in context["pattern"] else "_-"
        return f"has to be a name of letters, digits and {' '.join(signs)}, 128 at most{_given(fault)}"
    if kind == "literal_error":
        words = [word.strip("' ") for word in context["expected"].replace(" or ", ", ").split(",")]
        return f"has to be {'one of ' if len(words) > 1 else ''}{', '.join(words)}{_given(fault)}"
    if kind == "value_error":
        return str(context["error"])
    if kind in ("too_short", "too_long"):
        return "has to have an entry" if kind == "too_short" else f"has to have at most {context['max_length']} entries"
    return fault["msg"].replace("Input should be", "has to be").replace("String should", "has to") + _given(fault)


def _given(fault: ErrorDetails) -> str:
    value = fault["input"]
    if not isinstance(value, str | int | float) or len(str(value)) > _SHOWN:
        return ""
    return f", not {json.dumps(value, ensure_ascii=False)}"


def _unknown_key(document: _Document, path: _Path) -> str:
    key = str(path[-1])[:_SHOWN]
    parent = _model_at(document, path[:-1])
    known = list(parent.model_fields)
    agent = _agent_at(document.content, path)
    has = f"{_WHAT.get(parent, 'this')} has {', '.join(known)}"
    every = list(dict.fromkeys(name for kind in models.KINDS.values() for name in kind.model_fields))
    if issubclass(parent, models.AgentBase) and agent is not None:
        if not _says_what_it_does(agent):
            known, has = every, f"an agent has one of {', '.join(models.KINDS)}, which says what it does"
        elif key in every:
            return f'"{key}" is of another kind of agent; {has}'
    near = difflib.get_close_matches(key, known, n=1)
    guess = f'; did you mean "{near[0]}"?' if near else ""
    return f'unknown key "{printable(key)}"{guess} ({has})'


def _says_what_it_does(agent: Mapping[str, Any]) -> bool:
    return "provider" in agent or any(key in agent for key in models.KINDS)


_WHAT: Final[Mapping[type[BaseModel], str]] = {
    models.Ensemble: "an ensemble",
    models.Profile: "a profile",
    _NamedProfile: "a profile",
    models.Plexus: "plexus",
    models.Budget: "a budget",
    models.Loop: "a loop",
    models.ToolCall: "mcp",
    models.ModelAgent: "a model agent",
    models.ScriptAgent: "a script agent",
    models.EnsembleAgent: "an ensemble agent",
    models.LoopAgent: "a loop agent",
    models.DispatchAgent: "a dispatch agent",
    models.McpAgent: "an mcp agent",
}


def _model_at(document: _Document, path: _Path) -> type[BaseModel]:
    """Return the model of the mapping at *path*."""
    found = document.model
    value: Any = document.content
    for part in path:
        value = value[part]
        if isinstance(part, str) and part in found.model_fields:
            found = _within(found.model_fields[part].annotation) or found
        if isinstance(value, dict) and issubclass(found, models.AgentBase):
            found = next((kind for key, kind in models.KINDS.items() if key in value), found)
    return found


def _within(annotation: Any) -> type[BaseModel] | None:
    """Return the first model in *annotation*, or None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _within(part))), None)
