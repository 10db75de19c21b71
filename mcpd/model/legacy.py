# SPDX-License-Identifier: LGPL-2.1-or-later
"""Older shapes of entries and manifests, brought to today's form.

The fields of the older form stay where they are, as unknown ones, so that the tools that wrote them can still read
the file. Where both forms are there, today's counts.
"""

from __future__ import annotations

from typing import Any, Final

_PROPERTY_LISTS: Final = (("requiredProperties", True), ("requiredParameters", True), ("optionalParameters", False))
_TRANSPORT_TYPES: Final = {
    "http": "streamable-http",
    "streamable_http": "streamable-http",
    "streamableHttp": "streamable-http",
    "ws": "websocket",
    "webSocket": "websocket",
}
_VALUE_TYPES: Final = {
    "str": "string",
    "text": "string",
    "password": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "array": "list",
    "file": "path",
    "directory": "path",
}


def modernise(data: dict[str, Any]) -> dict[str, Any]:
    """A copy of the entry or manifest *data* with today's fields added where only older ones are there."""
    new = dict(data)
    if not new.get("transports") and (transport := _transport(new)) is not None:
        new["transports"] = [transport]
    if not new.get("configurableProperties") and (properties := _properties(new)):
        new["configurableProperties"] = properties
    if not new.get("version") and new.get("installedVersion"):
        new["version"] = new["installedVersion"]
    return new


def modern_source_type(name: object) -> object:
    """``pip`` is what ``pypi`` was called."""
    return "pypi" if name == "pip" else name


def modern_transport_type(name: object) -> object:
    """Today's name of a kind of transport."""
    return _TRANSPORT_TYPES.get(name, name) if isinstance(name, str) else name


def modern_value_type(name: object) -> object:
    """Today's name of a type of value; an empty one is none."""
    return _VALUE_TYPES.get(name, name) or None if isinstance(name, str) else name


def _transport(data: dict[str, Any]) -> dict[str, Any] | None:
    """The single ``transport`` object whose kind is the entry's ``type``."""
    old = data.get("transport")
    if not isinstance(old, dict):
        return None
    new = dict(old)
    if not new.get("type"):
        new["type"] = data.get("type") or _guess(old)
    if installed := old.get("installedCommand"):
        new["command"] = installed
    return new


def _guess(transport: dict[str, Any]) -> str:
    if transport.get("command"):
        return "stdio"
    return "websocket" if transport.get("wsUrl") else "sse"


def _properties(data: dict[str, Any]) -> list[Any]:
    found: list[Any] = []
    keys: set[object] = set()
    for name, required in _PROPERTY_LISTS:
        old = data.get(name)
        for item in old if isinstance(old, list) else []:
            if not isinstance(item, dict):
                found.append(item)
            elif (key := str(item.get("key"))) not in keys:
                keys.add(key)
                found.append({"required": required, **item})
    return found
