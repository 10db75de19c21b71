# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tools, resources and prompts of a server, as its page shows them. Its answers are not trusted."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from mcpd.bridge.modern import envelope
from mcpd.bridge.pages.schema import Effort, Field, as_json, fields_of

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_SHOWN: Final = 200
"""Entries of one list."""
MOST_RAW: Final = 8000
"""Characters of one schema in full."""
PROBLEMS: Final = "org.mcpd/problems"
"""What of ``_meta`` of a list tells why something is not in it."""
MOST_PROBLEMS: Final = 20
"""That are shown of one server, however many lists and pages tell of some."""
MOST_PROBLEM: Final = 500
"""Characters of one."""

T = TypeVar("T")


@dataclass(slots=True)
class Tool:
    """One tool."""

    name: str
    title: str
    description: str
    hints: list[str]
    input: list[Field]
    output: list[Field]
    raw: str


@dataclass(slots=True)
class Entry:
    """A resource, a template for such, or a prompt."""

    name: str
    description: str
    uri: str = ""
    kind: str = ""
    arguments: list[Field] = field(default_factory=list)


@dataclass(slots=True)
class Listed(Generic[T]):
    """A list, as far as it is shown."""

    items: list[T] = field(default_factory=list)
    total: int = 0

    @property
    def left_out(self) -> int:
        """Number of entries that are not shown."""
        return self.total - len(self.items)


@dataclass(slots=True)
class Offer:
    """All of it."""

    revision: str = ""
    name: str = ""
    version: str = ""
    instructions: str = ""
    asked: float = 0.0
    """When it was asked for this page, in seconds since the epoch; 0 if only what others asked is known."""
    size: int = 0
    """Bytes of the answers."""
    tools: Listed[Tool] = field(default_factory=Listed)
    resources: Listed[Entry] = field(default_factory=Listed)
    templates: Listed[Entry] = field(default_factory=Listed)
    prompts: Listed[Entry] = field(default_factory=Listed)
    faults: list[str] = field(default_factory=list)
    effort: Effort = field(default_factory=Effort)

    def troubled(self, result: dict[str, Any]) -> None:
        """Take note of what the server itself tells is wrong with a part of what it offers."""
        problems = member(result, "_meta").get(PROBLEMS)
        for problem in problems[:MOST_PROBLEMS] if isinstance(problems, list) else ():
            text = str(problem)[:MOST_PROBLEM]
            if text not in self.faults and len(self.faults) < MOST_PROBLEMS:
                self.faults.append(text)

    def introduced(self, result: dict[str, Any]) -> None:
        """Take what the server says of itself, in the result of ``initialize`` or ``server/discover``."""
        about = result.get("serverInfo") or member(result, "_meta").get(envelope.SERVER_INFO)
        about = about if isinstance(about, dict) else {}
        self.name = text(about, "title") or text(about, "name")
        self.version = text(about, "version")
        self.instructions = text(result, "instructions")

    def listed(self, key: str, entries: list[Any]) -> None:
        """Take *entries* of the list *key* of MCP. Large ones take their time."""
        if key == "tools":
            _extend(self.tools, entries, partial(_tool, self.effort))
        elif key == "resources":
            _extend(self.resources, entries, lambda each: _resource(each, "uri"))
        elif key == "resourceTemplates":
            _extend(self.templates, entries, lambda each: _resource(each, "uriTemplate"))
        else:
            _extend(self.prompts, entries, _prompt)


def member(value: object, key: str) -> dict[str, Any]:
    """The object *key* of the object *value*; empty if there is none."""
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def text(value: dict[str, Any], key: str) -> str:
    """The string *key* of the object *value*, not more of it than is ever shown; empty if there is none."""
    found = value.get(key)
    return found[:4001] if isinstance(found, str) else ""


def _extend(into: Listed[T], entries: list[Any], make: Callable[[dict[str, Any]], T]) -> None:
    into.total += len(entries)
    room = MOST_SHOWN - len(into.items)
    into.items += [make(each) for each in entries[:room] if isinstance(each, dict)]


def _tool(effort: Effort, tool: dict[str, Any]) -> Tool:
    hints = member(tool, "annotations")
    schemas = {key: tool[key] for key in ("inputSchema", "outputSchema") if key in tool}
    return Tool(
        name=text(tool, "name"),
        title=text(tool, "title") or text(hints, "title"),
        description=text(tool, "description"),
        hints=[
            word
            for key, value, word in (
                ("readOnlyHint", True, "only reads"),
                ("destructiveHint", True, "may destroy"),
                ("idempotentHint", True, "repeatable"),
                ("openWorldHint", True, "reaches outside"),
            )
            if hints.get(key) is value
        ],
        input=fields_of(tool.get("inputSchema"), effort),
        output=fields_of(tool.get("outputSchema"), effort),
        raw=as_json(schemas, MOST_RAW, indent=2),
    )


def _resource(entry: dict[str, Any], key: str) -> Entry:
    name = text(entry, "title") or text(entry, "name")
    return Entry(name, text(entry, "description"), text(entry, key), text(entry, "mimeType"))


def _prompt(entry: dict[str, Any]) -> Entry:
    arguments = entry.get("arguments")
    fields = [
        Field(text(each, "name"), "string", each.get("required") is True, text(each, "description"))
        for each in (arguments[:50] if isinstance(arguments, list) else ())
        if isinstance(each, dict)
    ]
    return Entry(text(entry, "title") or text(entry, "name"), text(entry, "description"), arguments=fields)
