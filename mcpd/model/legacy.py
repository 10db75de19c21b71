# SPDX-License-Identifier: LGPL-2.1-or-later
"""Conversion of older forms of entries and manifests to the current form.

The older fields are kept as unknown fields, so that the tools that wrote them can still read the file. If both forms
are present, the current one takes precedence.
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
    """Return a copy of the entry or manifest *data* with current fields added where only older ones are present."""
    new = dict(data)
    if not new.get("transports") and (transport := _transport(new)) is not None:
        new["transports"] = [transport]
    if not new.get("configurableProperties") and (properties := _properties(new)):
        new["configurableProperties"] = properties
    if not new.get("version") and new.get("installedVersion"):
        new["version"] = new["installedVersion"]
    return new


def modern_source_type(name: object) -> object:
    """Return the current name of a package source type: ``pip`` is now ``pypi``."""
    return "pypi" if name == "pip" else name


def modern_transport_type(name: object) -> object:
    """Return the current name of a transport type."""
    return _TRANSPORT_TYPES.get(name, name) if isinstance(name, str) else name


def modern_value_type(name: object) -> object:
    """Return the current name of a value type; None for an empty one."""
    return _VALUE_TYPES.get(name, name) or None if isinstance(name, str) else name


def _transport(data: dict[str, Any]) -> dict[str, Any] | None:
    """Convert the older single ``transport`` object, whose type may be in the entry's ``type``."""
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
