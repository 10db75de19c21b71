# SPDX-License-Identifier: LGPL-2.1-or-later
"""The mcps map (seed 004 "MCPs Variable Format", ``docs/mcps.md``): from server ids to what is said about them.

Its own fields are in snake_case, as the seed has them, those of MCP (``inputSchema``, ``mimeType``) as MCP has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, StringConstraints

from mcpd.errors import InvalidManifest
from mcpd.model.base import Document, Text, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MOST_NAMES: Final = 10_000
"""Names of tools in one entry."""

Name = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=256)]
Names = Annotated[list[Name], Field(max_length=MOST_NAMES)]
_Switch = Annotated[bool, Field(strict=True)]
"""``"false"`` in quotes is a slip of the pen, and no word for true."""


def _map(value: Any) -> Any:
    return {} if value is None else value


class _Part(Document):
    model_config = ConfigDict(alias_generator=str)


class ArgumentEntry(_Part):
    """What is said about one argument of a tool."""

    default: JsonValue = None
    """Given to the tool if the client gives nothing; always, if it is hidden."""
    hide: _Switch = False
    """Not offered to clients, who cannot give it."""
    description: str | None = None


class ToolEntry(_Part):
    """A tool: of a script server the whole, of an installed one what is different."""

    enabled: _Switch = True
    name: Name | None = None
    """What clients call it."""
    title: str | None = None
    description: str | None = None
    input_schema: dict[str, JsonValue] | None = Field(default=None, alias="inputSchema")
    arguments: dict[Name, ArgumentEntry] = Field(default_factory=dict)


class ResourceEntry(_Part):
    """A resource of a script server."""

    uri: Text = ""
    name: Text = ""
    description: Text = ""
    mime_type: Text = Field(default="", alias="mimeType")


class PromptEntry(_Part):
    """A prompt of a script server."""

    description: Text = ""
    arguments: list[dict[str, JsonValue]] = Field(default_factory=list)


class McpsEntry(_Part):
    """What the map says about one server."""

    enabled: _Switch = True
    mcp_enabled: _Switch = True
    """Whether it is offered over MCP, which for an installed server is the same as :attr:`enabled`."""
    summary: Text = ""
    description: Text = ""
    tools: Annotated[dict[Name, ToolEntry], BeforeValidator(_map), Field(max_length=MOST_NAMES)] = Field(
        default_factory=dict
    )
    allowed_tools: Names | None = None
    """Patterns of the names of the only tools that are left."""
    disallowed_tools: Names = Field(default_factory=list)
    """Patterns of the names of tools that are not."""
    resources: _Switch | dict[str, ResourceEntry] = Field(default_factory=dict)
    """Those of a script server; false takes an installed server's away."""
    prompts: _Switch | dict[str, PromptEntry] = Field(default_factory=dict)
    """The same of prompts."""
    auto_discover: bool | None = None
    """Whether tools are found by looking at a script; where it is not said, a script without ``tools`` is looked at."""
    tools_transform_cid: Text = ""
    resources_transform_cid: Text = ""
    prompts_transform_cid: Text = ""

    @property
    def usable(self) -> bool:
        """Whether clients may have the server at all."""
        return self.enabled and self.mcp_enabled


def unknown_fields(raw: object) -> list[str]:
    """What is in the valid entry *raw*, and in those of its tools and their arguments, that nothing here reads."""
    found = _unknown(McpsEntry, raw, "")
    for name, tool in _items(raw, "tools"):
        found += _unknown(ToolEntry, tool, f"tools.{name}.")
        for argument, said in _items(tool, "arguments"):
            found += _unknown(ArgumentEntry, said, f"tools.{name}.arguments.{argument}.")
    return found


def _unknown(kind: type[_Part], raw: object, where: str) -> list[str]:
    known = {field.alias or name for name, field in kind.model_fields.items()}
    return [where + key for key in raw if key not in known] if isinstance(raw, dict) else []


def _items(raw: object, member: str) -> list[tuple[str, object]]:
    inner = raw.get(member) if isinstance(raw, dict) else None
    return list(inner.items()) if isinstance(inner, dict) else []


def parse_entry(server_id: str, data: object, origin: str) -> McpsEntry:
    """The entry *data* of *server_id* in the map *origin*.

    Raises :class:`~mcpd.errors.InvalidManifest` that names both and the field.
    """
    if not isinstance(data, dict):
        raise InvalidManifest(f"{origin}: entry {printable(server_id)!r}: an entry is an object")
    entry = McpsEntry.parse(data, f"{origin}: entry {printable(server_id)!r}")
    _check_names(server_id, entry, origin)
    return entry


def _check_names(server_id: str, entry: McpsEntry, origin: str) -> None:
    """Two tools under one name could not be told apart."""
    outward: dict[str, str] = {}
    for name, tool in entry.tools.items():
        if tool.enabled and tool.name is not None and outward.setdefault(tool.name, name) != name:
            raise InvalidManifest(
                f"{origin}: entry {printable(server_id)!r}: tools.{name}.name: {tool.name!r} is the name of"
                f" {outward[tool.name]!r} already"
            )


def merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Two entries for one server as one: *upper* wins field by field, in maps (``tools`` …) name by name."""
    merged = {**lower, **upper}
    for key in ("tools", "resources", "prompts"):
        if isinstance(lower.get(key), dict) and isinstance(upper.get(key), dict):
            merged[key] = {**lower[key], **upper[key]}
    return merged


def policies(entries: Iterable[McpsEntry]) -> list[dict[str, Any]]:
    """What *entries* change of an installed server's tools, resources and prompts; empty if they change nothing.

    One object per entry that does, in the order given: each sees the server as those before it leave it.
    """
    return [found for entry in entries if (found := _policy(entry))]


def _policy(entry: McpsEntry) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if tools := {name: changes for name, tool in entry.tools.items() if (changes := _changes(tool))}:
        found["tools"] = tools
    if entry.allowed_tools is not None:
        found["allowed_tools"] = entry.allowed_tools
    if entry.disallowed_tools:
        found["disallowed_tools"] = entry.disallowed_tools
    for facility in ("resources", "prompts"):
        if getattr(entry, facility) is False:
            found[facility] = False
    return found


def _changes(tool: ToolEntry) -> dict[str, Any]:
    known = set(ToolEntry.model_fields) - {"arguments"}
    changes = tool.model_dump(mode="json", by_alias=True, exclude_unset=True, include=known)
    changes = {key: value for key, value in changes.items() if value is not None}
    if changes.get("enabled") is True:
        del changes["enabled"]
    arguments = {
        name: argument.model_dump(mode="json", exclude_unset=True, include=set(ArgumentEntry.model_fields))
        for name, argument in tool.arguments.items()
    }
    if arguments := {name: changed for name, changed in arguments.items() if changed}:
        changes["arguments"] = arguments
    return changes
