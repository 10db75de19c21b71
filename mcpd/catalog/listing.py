# SPDX-License-Identifier: LGPL-2.1-or-later
"""Listing of an entry: plain values under the keys of the D-Bus interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from mcpd.catalog.registries import address_fault
from mcpd.formats.registry import shortcomings

if TYPE_CHECKING:
    from mcpd.model import Entry, JsonValue, Transport

_ALWAYS: Final = frozenset({"id", "name", "summary", "description", "version", "categories", "pinned", "installable"})


def describe(entry: Entry, registry: str = "") -> dict[str, Any]:
    """Return the listing of *entry* as JSON values; *registry* is the URL of its registry, or empty.

    Texts come from a checked document (:func:`mcpd.model.check_json`), so D-Bus can carry them.
    """
    origin = (entry.model_extra or {}).get("origin")
    why_not = obstacle(entry, registry)
    found = {
        "id": entry.id,
        "name": entry.name or entry.id,
        "summary": entry.summary,
        "description": entry.description,
        "version": entry.version,
        "origin": _origin(origin),
        "author": text(entry.author),
        "homepage": entry.homepage,
        "bug-url": entry.bug_url,
        "donation-url": entry.donation_url,
        "icon": entry.icon,
        "licenses": texts(entry.license),
        "categories": texts(entry.categories),
        "size": entry.size if isinstance(entry.size, int) and 0 <= entry.size < 1 << 64 else 0,
        "release-date": entry.release_date,
        "changelog": text(entry.changelog),
        "screenshots": texts(entry.screenshots),
        "transports": [_transport(transport) for transport in entry.transports],
        "permissions": texts(entry.all_permissions),
        "pinned": isinstance(origin, Mapping) and origin.get("pinned") is True,
        "installable": not why_not,
        "problem": why_not,
        "scope": "system" if entry.is_for_system else "",
    }
    return {key: value for key, value in found.items() if value or key in _ALWAYS}


def obstacle(entry: Entry, registry: str) -> str:
    """Return why no instance can install *entry*; empty if it can be installed.

    *registry* is the URL of the registry that offers it, empty for a user-supplied entry: such an entry may name a
    program of this machine, and needs no texts for a listing.
    """
    if found := entry.unsupported or address_fault(entry, registry):
        return found
    lacks = " and ".join(shortcomings(entry)) if registry else ""
    return f"it {lacks}" if lacks else ""


def text(value: object) -> str:
    """Return *value*, which may have any shape, as one string that D-Bus can carry."""
    if isinstance(value, str):
        return _carried(value)
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return next((text(value[key]) for key in ("name", "text", "url", "src", "version") if value.get(key)), "")
    if isinstance(value, (list, tuple)):
        return ", ".join(filter(None, map(text, value)))
    return _carried(str(value))


def texts(value: JsonValue | list[str]) -> list[str]:
    """Return *value* as a list of strings; a single value becomes a list of one."""
    items = value if isinstance(value, list) else [value]
    return [found for item in items if (found := item if isinstance(item, str) else text(item))]


def _carried(value: str) -> str:
    clean = value if value.isascii() else value.encode("utf-8", "replace").decode()
    return clean.replace("\0", "\ufffd")


def _origin(value: object) -> str:
    if isinstance(value, Mapping):
        return next((text(value[key]) for key in ("registry", "source", "url", "name") if value.get(key)), "")
    return text(value)


def _transport(transport: Transport) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "type": str(transport.type),
        "command": transport.command,
        "url": transport.url,
        "ws-url": transport.ws_url,
        "description": transport.description,
    }
    shown = {key: value for key, value in shown.items() if value}
    if transport.args:
        shown["args"] = texts(list(transport.args))
    return shown
