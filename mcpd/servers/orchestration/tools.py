# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tools: models of their arguments, from which the schemas are made, and the methods that answer them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema, WithJsonSchema

from mcpd.clients.errors import InvalidInput
from mcpd.clients.service import DEFAULT_CLIENT, DEFAULT_PROFILE
from mcpd.model import printable
from mcpd.model.base import first_fault
from mcpd.servers.json_schema import schema_of
from mcpd.servers.orchestration import commands

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mcpd.clients.service import Orchestration

_LONGEST: Final = 1024
"""Characters of an id or a name."""


def _short(text: str) -> str:
    if len(text) > _LONGEST:
        raise ValueError(f"longer than {_LONGEST} characters")
    return text


def _parsed(value: object) -> object:
    """Parse JSON text: some clients send objects and arrays so."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


_Text = Annotated[str, AfterValidator(_short)]
_Json = Annotated[dict[str, Any], WithJsonSchema({"type": "object"})]
_Object = Annotated[_Json, BeforeValidator(_parsed)]
_Texts = Annotated[list[str], BeforeValidator(_parsed)]
_Client = Annotated[_Text, Field(description="Client family identifier")]
_Profile = Annotated[_Text | None, Field(description="Profile identifier (defaults to 'default')")]
_Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]

# Tools of the source document, with its schemas.


class _Arguments(BaseModel):
    """Arguments of a tool. Those of the source document do not forbid others."""

    model_config = ConfigDict(strict=True, frozen=True)


class _OfClient(_Arguments):
    client_id: _Client


class _OfProfile(_OfClient):
    profile_id: _Profile = None


class _GetConfig(_OfProfile):
    artifact_id: Annotated[_Text | None, Field(description="Optional: specific artifact hash to retrieve")] = None


class _DiffConfig(_OfProfile):
    local_artifact_id: Annotated[
        _Text | None, Field(description="SHA-256 hash of local config (alternative to local_payload)")
    ] = None
    local_payload: Annotated[
        _Object | None, Field(description="Local MCP configuration payload (alternative to local_artifact_id)")
    ] = None


class _ClientItem(BaseModel):
    client_id: Annotated[str, Field(description="Unique identifier (e.g., 'claude-desktop', 'cursor')")]
    display_name: Annotated[str, Field(description="Human-readable name (e.g., 'Claude Desktop')")]
    platform: Annotated[Literal["macos", "windows", "linux", "cross-platform"], Field(description="Primary platform")]
    config_location: Annotated[str | None, Field(description="Default config file path pattern")] = None
    available_profiles: Annotated[list[str], Field(description="Profile IDs available for this client")]


class _Clients(BaseModel):
    clients: list[_ClientItem]
    count: Annotated[int, Field(description="Total number of clients")]


class _ProfileItem(BaseModel):
    profile_id: Annotated[str, Field(description="Profile identifier (e.g., 'default', 'dev', 'prod')")]
    display_name: Annotated[str, Field(description="Human-readable profile name")]
    description: Annotated[str | None, Field(description="Profile purpose/usage")] = None
    latest_artifact_id: Annotated[str, Field(description="SHA-256 hash of latest config artifact")]
    updated_at: Annotated[_Time, Field(description="ISO 8601 timestamp of last update")]


class _Profiles(BaseModel):
    client_id: _Client
    profiles: list[_ProfileItem]
    count: Annotated[int, Field(description="Number of profiles")]


class _Metadata(BaseModel):
    generator: Annotated[str | None, Field(description="Tool that generated config (e.g., 'chora-compose')")] = None
    generator_version: Annotated[str | None, Field(description="Version of generator")] = None


class _Config(BaseModel):
    artifact_id: Annotated[
        str, Field(pattern="^[a-f0-9]{64}$", description="SHA-256 hash of payload (content-addressable ID)")
    ]
    client_id: _Client
    profile_id: Annotated[str, Field(description="Profile identifier")]
    created_at: Annotated[_Time, Field(description="ISO 8601 timestamp")]
    payload: Annotated[_Json, Field(description="MCP client configuration (mcpServers structure)")]
    signature: Annotated[str, Field(description="Base64-encoded Ed25519 signature")]
    signing_key_id: Annotated[str, Field(description="Identifier for public key verification")]
    metadata: _Metadata | None = None


class _Change(BaseModel):
    path: str | None = None
    old_value: Any = Field(default_factory=lambda: None)
    new_value: Any = Field(default_factory=lambda: None)


class _Modified(BaseModel):
    server_id: str | None = None
    changes: list[_Change] | None = None


class _Difference(BaseModel):
    servers_added: Annotated[list[str] | None, Field(description="Server IDs added in remote")] = None
    servers_removed: Annotated[list[str] | None, Field(description="Server IDs removed in remote")] = None
    servers_modified: Annotated[list[_Modified] | None, Field(description="Servers with configuration changes")] = None
    servers_unchanged: Annotated[list[str] | None, Field(description="Server IDs with no changes")] = None


class _Summary(BaseModel):
    total_changes: int | None = None
    added_count: int | None = None
    removed_count: int | None = None
    modified_count: int | None = None


class _Report(BaseModel):
    status: Annotated[Literal["up-to-date", "outdated", "diverged", "unknown"], Field(description="Comparison result")]
    local_artifact_id: Annotated[str, Field(description="Hash of local config")]
    remote_artifact_id: Annotated[str, Field(description="Hash of latest orchestrated config")]
    diff: _Difference
    summary: _Summary
    recommendation: Annotated[str | None, Field(description="Human-readable action recommendation")] = None


# Further tools.


class _Strict(_Arguments):
    model_config = ConfigDict(extra="forbid")


class _Choice(_Strict):
    """One configuration; the default client and profile if not given."""

    client_id: _Text = DEFAULT_CLIENT
    profile_id: _Text = DEFAULT_PROFILE


class _ListServers(_Strict):
    transport_filter: Literal["stdio", "http", "sse", "websocket"] | None = None
    search_query: Annotated[_Text | None, Field(description="Words in the id, name or summary")] = None


class _DescribeServer(_Strict):
    server_id: Annotated[_Text, Field(description="Id of the server")]


class _Server(_Choice):
    server_id: Annotated[_Text, Field(description="Name of the server in the configuration")]
    server_name: SkipJsonSchema[_Text | None] = None
    """Accepted for :attr:`server_id`; beside it, the name of the server in the configuration."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        return {"server_id": given["server_name"], **given} if "server_name" in given else given


class _AddServer(_Server):
    server_id: Annotated[_Text, Field(description="Id of an installed server; with entry, its name")]
    env_vars: Annotated[
        _Texts | None,
        Field(description="Names of environment variables that the client passes to it"),
    ] = None
    entry: Annotated[
        _Object | None,
        Field(description="Entry of a server that is not installed: command, args, env; or type, url, headers"),
    ] = None


class _Validate(_Choice):
    payload: Annotated[_Object | None, Field(description="Configuration to check (mcpServers structure)")] = None


class _Publish(_Choice):
    changelog: Annotated[str | None, Field(description="Description of the change")] = None
    from_installed: Annotated[bool, Field(description="Replace even a configuration made from a draft")] = False


class _Deploy(_Choice):
    artifact_id: Annotated[_Text | None, Field(description="Artifact to deploy instead of the latest")] = None


class _InitializeKeys(_Strict):
    regenerate: Annotated[bool, Field(description="Replace the existing key")] = False


# The table.

Answer: TypeAlias = "dict[str, JsonValue]"
_DEFAULTS: Final = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True}
"""Annotations that need not be listed."""


@dataclass(frozen=True)
class Tool:
    """One tool; *read_only*, *destructive* and *idempotent* are the annotations of the MCP specification."""

    name: str
    title: str
    description: str
    arguments: type[_Arguments]
    run: Callable[[Orchestration, Any], Answer] = field(repr=False)
    result: type[BaseModel] | None = None
    """The model of ``structuredContent``, for tools of the source document."""
    read_only: bool = False
    destructive: bool = True
    idempotent: bool = False

    @cached_property
    def offered(self) -> dict[str, Any]:
        """The tool as ``tools/list`` shows it."""
        hints = {
            "readOnlyHint": self.read_only,
            "destructiveHint": self.destructive,
            "idempotentHint": self.idempotent,
            "openWorldHint": False,
        }
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": {"required": [], **schema_of(self.arguments, "validation")},
            **({} if self.result is None else {"outputSchema": schema_of(self.result, "validation")}),
            "annotations": {name: value for name, value in hints.items() if value is not _DEFAULTS[name]},
        }

    def checked(self, arguments: Mapping[str, Any]) -> _Arguments:
        """Return the checked *arguments*; null counts as not given. Raises :class:`InvalidInput`."""
        given = {name: value for name, value in arguments.items() if value is not None}
        try:
            return self.arguments.model_validate(given)
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False)[0]
            where = printable(str(fault["loc"][0])) if fault["loc"] else ""
            text = first_fault(error)
            if fault["type"] == "extra_forbidden":
                text = f"unknown argument {where!r}; it takes {', '.join(self.offered['inputSchema']['properties'])}"
            raise InvalidInput(f"{self.name}: {printable(text)}", {"field": where}) from error


def _profile(given: _OfProfile) -> tuple[str, str]:
    return given.client_id, given.profile_id or DEFAULT_PROFILE


def _place(given: _Choice) -> tuple[str, str]:
    return given.client_id, given.profile_id


def _add(service: Orchestration, given: _AddServer) -> Answer:
    return service.add_server(
        *_place(given),
        given.server_id,
        name=given.server_name,
        entry=given.entry,
        variables=tuple(given.env_vars or ()),
    )


_ALL: Final = (
    Tool(
        "list_clients", "List client families",
        "Lists all MCP client families supported by the orchestration system. Each client family represents a distinct"
        " MCP implementation (e.g., Claude Desktop, Cursor).",
        _Arguments, lambda service, _: service.list_clients(), _Clients, read_only=True,
    ),
    Tool(
        "list_profiles", "List profiles",
        "Returns all profiles available for a given client family. Profiles represent different configuration sets"
        " (e.g., dev, staging, prod).",
        _OfClient, lambda service, given: service.list_profiles(given.client_id), _Profiles, read_only=True,
    ),
    Tool(
        "get_config", "Get a signed configuration",
        "Fetches the latest (or specified) configuration artifact for a client/profile combination. Returns a"
        " cryptographically signed artifact with content-addressable identifier.",
        _GetConfig, lambda service, given: service.get_config(*_profile(given), given.artifact_id), _Config,
        read_only=True,
    ),
    Tool(
        "diff_config", "Compare a configuration with the latest",
        "Compares a local configuration against the latest orchestrated version. Returns diff report showing"
        " additions, modifications, removals, and update availability. Give exactly one of local_artifact_id and"
        " local_payload.",
        _DiffConfig,
        lambda service, given: service.diff_config(
            *_profile(given), local_artifact_id=given.local_artifact_id, local_payload=given.local_payload
        ),
        _Report, read_only=True,
    ),
    Tool(
        "list_available_servers", "List the installed servers",
        "Lists the installed MCP servers, which a configuration can contain.",
        _ListServers,
        lambda service, given: service.available_servers(given.search_query or "", given.transport_filter or ""),
        read_only=True,
    ),
    Tool(
        "describe_server", "Describe an installed server",
        "Describes an installed MCP server: its permissions, its parameters, and how a client starts it.",
        _DescribeServer, lambda service, given: service.describe_server(given.server_id), read_only=True,
    ),
    Tool(
        "add_server_to_config", "Add a server to the draft",
        "Adds an installed server to the draft of a configuration. Nothing is signed or deployed.",
        _AddServer, _add, destructive=False, idempotent=True,
    ),
    Tool(
        "remove_server_from_config", "Remove a server from the draft",
        "Removes a server from the draft of a configuration.",
        _Server,
        lambda service, given: service.remove_server(*_place(given), given.server_name or given.server_id),
    ),
    Tool(
        "view_draft_config", "View the draft",
        "Returns the draft of a configuration, and how it differs from the latest release.",
        _Choice, lambda service, given: service.view_draft(*_place(given)), read_only=True,
    ),
    Tool(
        "clear_draft_config", "Delete the draft",
        "Deletes the draft of a configuration. Releases stay.",
        _Choice, lambda service, given: service.clear_draft(*_place(given)), idempotent=True,
    ),
    Tool(
        "validate_config", "Validate a configuration",
        "Checks a configuration, by default the draft, else what would be published: its form, the client's limits,"
        " secrets, and the policy.",
        _Validate, lambda service, given: service.validate(*_place(given), given.payload), read_only=True,
    ),
    Tool(
        "publish_config", "Publish a configuration",
        "Signs the draft, or the installed servers if there is no draft, as the latest release of a configuration."
        " Installed servers replace a configuration made from a draft only with from_installed.",
        _Publish,
        lambda service, given: service.publish(
            *_place(given), given.changelog or "", from_installed=given.from_installed
        ),
        destructive=False, idempotent=True,
    ),
    Tool(
        "deploy_config", "Prepare a deployment",
        "Checks a release, and returns how it differs from the last deployment, and the command that writes it into the"
        " client's file.",
        _Deploy, lambda service, given: commands.deploy(service, *_place(given), given.artifact_id), read_only=True,
    ),
    Tool(
        "drift_config", "Look for drift",
        "Returns the last deployment, whether there is a newer release, and the command that compares the client's file"
        " with the deployment.",
        _Choice, lambda service, given: commands.drift(service, *_place(given)), read_only=True,
    ),
    Tool(
        "undo_config", "Prepare to undo a deployment",
        "Returns the last deployment, and the command that restores the client's file as it was before.",
        _Choice, lambda service, given: commands.undo(service, *_place(given)), read_only=True,
    ),
    Tool(
        "initialize_keys", "Initialize the keys",
        "Creates the key that signs configurations, if there is none. With regenerate, replaces it and signs the latest"
        " releases again; the old key stays valid for 30 days.",
        _InitializeKeys, lambda service, given: service.initialize_keys(regenerate=given.regenerate),
    ),
)  # fmt: skip
TOOLS: Final = {tool.name: tool for tool in _ALL}


class Tools:
    """The tools of one service."""

    def __init__(self, service: Orchestration) -> None:
        self._service = service
        self._tools = {name: tool for name, tool in TOOLS.items() if service.writable or tool.read_only}

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The result of ``tools/list``: only tools that change nothing if the service is read-only."""
        return [tool.offered for tool in self._tools.values()]

    def has(self, name: str) -> bool:
        """Return True if there is a tool *name*."""
        return name in self._tools

    def call(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        """Return the answer of the tool *name*, one of :attr:`offered`.

        Raises :class:`~mcpd.clients.errors.InvalidInput` for invalid *arguments*, and the errors of the service.
        """
        tool = self._tools[name]
        return tool.run(self._service, tool.checked(arguments))
