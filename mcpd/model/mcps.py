# SPDX-License-Identifier: LGPL-2.1-or-later
"""The mcps map (``docs/mcps.md``), which maps server ids to entries.

Its own fields are in snake_case; fields of MCP (``inputSchema``, ``mimeType``) are spelled as in MCP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, StringConstraints

from mcpd.errors import InvalidManifest
from mcpd.model.base import Document, Strings, Text, as_list, as_map, printable
from mcpd.model.manifest import EnvironmentName, Runtime
from mcpd.model.property import ConfigProperty  # noqa: TC001 - pydantic reads the annotations

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CALL_TIMEOUT: Final = 30.0
"""Default seconds for a call of a script."""
MOST_NAMES: Final = 10_000
"""Maximum number of tool names in one entry."""

Name = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=256)]
Names = Annotated[list[Name], Field(max_length=MOST_NAMES)]
_Switch = Annotated[bool, Field(strict=True)]
"""Boolean that must be written without quotes; the string ``"false"`` is an error."""


class _Part(Document):
    model_config = ConfigDict(alias_generator=str)


class ArgumentEntry(_Part):
    """An argument of a tool."""

    default: JsonValue = None
    """Used if the client gives no value; always used if the argument is hidden."""
    hide: _Switch = False
    """True if clients neither see nor set the argument."""
    description: str | None = None


class ToolEntry(_Part):
    """A tool: the full description for a script server, or the changes to a tool of an installed server."""

    enabled: _Switch = True
    name: Name | None = None
    """Name that clients see."""
    title: str | None = None
    description: str | None = None
    input_schema: dict[str, JsonValue] | None = Field(default=None, alias="inputSchema")
    output_schema: dict[str, JsonValue] | None = Field(default=None, alias="outputSchema")
    """Script servers only."""
    annotations: dict[str, JsonValue] | None = None
    """Script servers only."""
    function: Name | None = None
    """Script servers only: the function or command that is called, if its name differs."""
    arguments: dict[Name, ArgumentEntry] = Field(default_factory=dict)


class ResourceEntry(_Part):
    """A resource of a script server."""

    uri: Text = ""
    name: Text = ""
    title: Text = ""
    description: Text = ""
    size: Annotated[int, Field(ge=0)] | None = None
    """Bytes, if known."""
    mime_type: Text = Field(default="", alias="mimeType")
    source: Text = ""
    """Location of the resource's content, if it differs from :attr:`uri`."""


class PromptEntry(_Part):
    """A prompt of a script server."""

    title: Text = ""
    description: Text = ""
    arguments: list[dict[str, JsonValue]] = Field(default_factory=list)
    template: Text = ""
    """Text of the prompt's only message."""
    messages: list[dict[str, JsonValue]] = Field(default_factory=list)


class ScriptRuntime(Runtime):
    """Settings for running a script server, with limits for each call."""

    workers: Annotated[int, Field(ge=0, le=64)] = 0
    """Number of processes that import the script in advance."""
    memory: Annotated[int, Field(ge=16 << 20, le=1 << 40)] = 1 << 30
    """Maximum memory in bytes."""
    processes: Annotated[int, Field(ge=1, le=32768)] = 256
    output: Annotated[int, Field(ge=1 << 10, le=1 << 30)] = 10 << 20
    """Maximum size of a result in bytes."""
    error_mapping: Literal["tool-result", "json-rpc"] = "tool-result"
    """Whether a failed call is reported as a result with ``isError`` or as a JSON-RPC error."""

    @property
    def seconds(self) -> float:
        """Seconds that a call may take."""
        return self.call_timeout or CALL_TIMEOUT


class McpsEntry(_Part):
    """Entry of the map for one server."""

    enabled: _Switch = True
    mcp_enabled: _Switch = True
    """True if the server is offered over MCP; for an installed server, equivalent to :attr:`enabled`."""
    summary: Text = ""
    description: Text = ""
    tools: Annotated[dict[Name, ToolEntry], BeforeValidator(as_map), Field(max_length=MOST_NAMES)] = Field(
        default_factory=dict
    )
    allowed_tools: Names | None = None
    """Patterns of tool names; only matching tools are kept."""
    disallowed_tools: Names = Field(default_factory=list)
    """Patterns of tool names; matching tools are removed."""
    resources: _Switch | dict[str, ResourceEntry] = Field(default_factory=dict)
    """Resources of a script server; false removes those of an installed server."""
    prompts: _Switch | dict[str, PromptEntry] = Field(default_factory=dict)
    """Prompts of a script server; false removes those of an installed server."""
    auto_discover: bool | None = None
    """True if tools are found by inspecting the script.

    Default: true unless ``tools`` defines a tool with ``inputSchema`` or ``function``.
    """
    tools_transform_cid: Text = ""
    resources_transform_cid: Text = ""
    prompts_transform_cid: Text = ""
    definition_cid: Text = ""
    """Id of the script in the content store, if there is no file with the server's name."""
    permissions: Strings = Field(default_factory=list)
    """Permissions of a script server, as in manifests."""
    env: Annotated[dict[EnvironmentName, str], BeforeValidator(as_map)] = Field(default_factory=dict)
    configurable_properties: Annotated[list[ConfigProperty], BeforeValidator(as_list)] = Field(
        default_factory=list, alias="configurableProperties"
    )
    runtime: ScriptRuntime = Field(default_factory=ScriptRuntime)
    variables: Annotated[dict[Name, JsonValue], BeforeValidator(as_map)] = Field(default_factory=dict)
    """Contents of the resources ``variable://NAME``."""

    @property
    def usable(self) -> bool:
        """True if clients may use the server."""
        return self.enabled and self.mcp_enabled

    @property
    def is_server(self) -> bool:
        """True if the entry defines a script server; an entry with tools alone changes an installed server."""
        offered = any(isinstance(each, dict) and each for each in (self.resources, self.prompts))
        return offered or any((
            self.definition_cid, self.tools_transform_cid, self.resources_transform_cid, self.prompts_transform_cid,
        ))  # fmt: skip


def unknown_fields(raw: object) -> list[str]:
    """Return the unknown fields of the valid entry *raw* and its runtime, tools, resources and prompts."""
    found = _unknown(McpsEntry, raw, "")
    if isinstance(raw, dict):
        found += _unknown(ScriptRuntime, raw.get("runtime"), "runtime.")
    for member, kind in (("resources", ResourceEntry), ("prompts", PromptEntry)):
        for name, said in _items(raw, member):
            found += _unknown(kind, said, f"{member}.{name}.")
    for name, tool in _items(raw, "tools"):
        found += _unknown(ToolEntry, tool, f"tools.{name}.")
        for argument, said in _items(tool, "arguments"):
            found += _unknown(ArgumentEntry, said, f"tools.{name}.arguments.{argument}.")
    return found


_SCRIPT_FIELDS: Final = (
    "auto_discover", "tools_transform_cid", "resources_transform_cid", "prompts_transform_cid", "definition_cid",
    "permissions", "env", "configurableProperties", "runtime", "variables",
)  # fmt: skip


def script_fields(raw: Mapping[str, Any]) -> list[str]:
    """Return the fields of the valid entry *raw* that only apply to script servers."""
    found = [field for field in _SCRIPT_FIELDS if raw.get(field)]
    found += [member for member in ("resources", "prompts") if isinstance(raw.get(member), dict) and raw[member]]
    for name, tool in _items(raw, "tools"):
        said = tool if isinstance(tool, dict) else {}
        found += [f"tools.{name}.{field}" for field in ("function", "outputSchema", "annotations") if said.get(field)]
    return found


def _unknown(kind: type[Document], raw: object, where: str) -> list[str]:
    known = {field.alias or name for name, field in kind.model_fields.items()}
    return [where + key for key in raw if key not in known] if isinstance(raw, dict) else []


def _items(raw: object, member: str) -> list[tuple[str, object]]:
    inner = raw.get(member) if isinstance(raw, dict) else None
    return list(inner.items()) if isinstance(inner, dict) else []


def parse_entry(server_id: str, data: object, origin: str) -> McpsEntry:
    """Parse the entry *data* of *server_id* in the map *origin*.

    Raises :class:`~mcpd.errors.InvalidManifest` that names both and the field.
    """
    if not isinstance(data, dict):
        raise InvalidManifest(f"{origin}: entry {printable(server_id)!r}: must be an object")
    entry = McpsEntry.parse(data, f"{origin}: entry {printable(server_id)!r}")
    _check_names(server_id, entry, origin)
    return entry


def _check_names(server_id: str, entry: McpsEntry, origin: str) -> None:
    """Raise :class:`~mcpd.errors.InvalidManifest` if two tools have the same name for clients."""
    outward: dict[str, str] = {}
    for name, tool in entry.tools.items():
        if tool.enabled and tool.name is not None and outward.setdefault(tool.name, name) != name:
            raise InvalidManifest(
                f"{origin}: entry {printable(server_id)!r}: tools.{name}.name: {tool.name!r} is already the"
                f" name of {outward[tool.name]!r}"
            )


def merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two entries for one server: *upper* wins field by field, in maps (``tools`` …) name by name."""
    merged = {**lower, **upper}
    for key in ("tools", "resources", "prompts"):
        if isinstance(lower.get(key), dict) and isinstance(upper.get(key), dict):
            merged[key] = {**lower[key], **upper[key]}
    return merged


def policies(entries: Iterable[McpsEntry], definition: McpsEntry | None = None) -> list[dict[str, Any]]:
    """Return the changes of *entries* to a server's tools, resources and prompts; empty if there are none.

    Returns one object for each entry that changes something, in the given order; each applies to the result of the
    previous one. The *definition* of a script server defines the appearance of its tools, so it does not change it.
    """
    return [found for entry in entries if (found := _policy(entry, defining=entry is definition))]


def _policy(entry: McpsEntry, *, defining: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if tools := {name: changes for name, tool in entry.tools.items() if (changes := _changes(tool, defining=defining))}:
        found["tools"] = tools
    if entry.allowed_tools is not None:
        found["allowed_tools"] = entry.allowed_tools
    if entry.disallowed_tools:
        found["disallowed_tools"] = entry.disallowed_tools
    for facility in ("resources", "prompts"):
        if getattr(entry, facility) is False:
            found[facility] = False
    return found


_LOOKS: Final = frozenset({"title", "description", "input_schema"})
_DEFINED: Final = frozenset({"output_schema", "annotations", "function", "arguments"})


def _changes(tool: ToolEntry, *, defining: bool) -> dict[str, Any]:
    known = set(ToolEntry.model_fields) - _DEFINED - (_LOOKS if defining else set())
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
