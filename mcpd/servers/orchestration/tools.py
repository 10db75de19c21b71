# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tools: what they take, as ``tools.json`` says, and which method of the service answers."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from mcpd.clients.errors import InvalidInput
from mcpd.clients.service import DEFAULT_CLIENT, DEFAULT_PROFILE
from mcpd.model import printable
from mcpd.servers.orchestration import steps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mcpd.clients.service import Orchestration
    from mcpd.model import JsonValue

READING: Final = frozenset(
    {
        "list_clients", "list_profiles", "get_config", "diff_config", "list_available_servers", "describe_server",
        "validate_config", "deploy_config", "drift_config", "undo_config",
    }
)  # fmt: skip
"""Those that change nothing: all that is offered where nothing can be changed."""
_NAMING: Final = ("add_server_to_config", "remove_server_from_config")
_ALIAS: Final = "server_name"
"""Accepted by them for ``server_id``; beside it, the name of the server in the configuration."""
_MOST: Final = 1024
"""Characters of an argument that is an id or a name."""


@cache
def descriptions() -> tuple[dict[str, Any], ...]:
    """The tools as ``tools/list`` shows them."""
    text = (files("mcpd.servers.orchestration") / "tools.json").read_text(encoding="utf-8")
    return tuple(json.loads(text))


@cache
def _validators() -> dict[str, Draft202012Validator]:
    found = {tool["name"]: tool["inputSchema"] for tool in descriptions()}
    for name in _NAMING:
        found[name] = {**found[name], "properties": {**found[name]["properties"], _ALIAS: {"type": "string"}}}
    return {name: Draft202012Validator(schema) for name, schema in found.items()}


class Tools:
    """The tools of one service."""

    def __init__(self, service: Orchestration) -> None:
        self._service = service
        self._offered = {tool["name"]: tool for tool in descriptions() if service.writable or tool["name"] in READING}

    @property
    def offered(self) -> list[dict[str, Any]]:
        """What ``tools/list`` shows."""
        return list(self._offered.values())

    def has(self, name: str) -> bool:
        """Whether there is a tool *name*."""
        return name in self._offered

    def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, JsonValue]:
        """The answer of the tool *name*, which is one of those :attr:`offered`.

        Raises :class:`~mcpd.clients.errors.InvalidInput` for arguments that its schema refuses, and what
        the service raises.
        """
        return _HANDLERS[name](self._service, _checked(self._offered[name], arguments))


def _checked(tool: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """*arguments* of *tool*; objects and lists that a client wrote as JSON text are read."""
    properties: Mapping[str, Mapping[str, Any]] = tool["inputSchema"]["properties"]
    given = {key: _unwrapped(value, properties.get(key, {})) for key, value in arguments.items() if value is not None}
    if tool["name"] in _NAMING and _ALIAS in given:
        given.setdefault("server_id", given[_ALIAS])
    fault = best_match(_validators()[tool["name"]].iter_errors(given))
    if fault is not None:
        where = str(fault.path[0]) if fault.path else ""
        text = fault.message
        if fault.validator == "required":
            where = next(name for name in tool["inputSchema"]["required"] if name not in given)
        elif fault.validator == "additionalProperties":
            where = printable(next(name for name in given if name not in properties))
            text = f"there is no argument {where!r}; there are {', '.join(properties)}"
        raise InvalidInput(f"{tool['name']}: {printable(text)}", {"field": where})
    for key, value in given.items():
        if isinstance(value, str) and len(value) > _MOST and key != "changelog":
            raise InvalidInput(f"{tool['name']}: {key} is longer than {_MOST} characters", {"field": key})
    return given


def _unwrapped(value: Any, schema: Mapping[str, Any]) -> Any:
    if not isinstance(value, str) or schema.get("type") not in {"object", "array"}:
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _who(given: Mapping[str, Any]) -> tuple[str, str]:
    return given.get("client_id", DEFAULT_CLIENT), given.get("profile_id", DEFAULT_PROFILE)


def _add(service: Orchestration, given: Mapping[str, Any]) -> dict[str, JsonValue]:
    return service.add_server(
        *_who(given),
        given["server_id"],
        name=given.get(_ALIAS),
        entry=given.get("entry"),
        variables=tuple(given.get("env_vars", ())),
    )


_HANDLERS: Final[dict[str, Callable[[Orchestration, Mapping[str, Any]], dict[str, JsonValue]]]] = {
    "list_clients": lambda service, _: service.list_clients(),
    "list_profiles": lambda service, given: service.list_profiles(given["client_id"]),
    "get_config": lambda service, given: service.get_config(*_who(given), given.get("artifact_id")),
    "diff_config": lambda service, given: service.diff_config(
        *_who(given),
        local_artifact_id=given.get("local_artifact_id"),
        local_payload=given.get("local_payload"),
    ),
    "list_available_servers": lambda service, given: service.available_servers(
        given.get("search_query", ""), given.get("transport_filter", "")
    ),
    "describe_server": lambda service, given: service.describe_server(given["server_id"]),
    "add_server_to_config": _add,
    "remove_server_from_config": lambda service, given: service.remove_server(
        *_who(given), given.get(_ALIAS, given["server_id"])
    ),
    "view_draft_config": lambda service, given: service.view_draft(*_who(given)),
    "clear_draft_config": lambda service, given: service.clear_draft(*_who(given)),
    "validate_config": lambda service, given: service.validate(*_who(given), given.get("payload")),
    "publish_config": lambda service, given: service.publish(
        *_who(given), given.get("changelog", ""), from_installed=given.get("from_installed", False)
    ),
    "deploy_config": lambda service, given: steps.deploy(service, *_who(given), given.get("artifact_id")),
    "drift_config": lambda service, given: steps.drift(service, *_who(given)),
    "undo_config": lambda service, given: steps.undo(service, *_who(given)),
    "initialize_keys": lambda service, given: service.initialize_keys(regenerate=given.get("regenerate", False)),
}
