# SPDX-License-Identifier: LGPL-2.1-or-later
"""Entries that mcpctl wrote and somebody added to: a key, a switch of the client's own, a time-out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcpd.cli.clients.texts import same
from mcpd.servers.orchestration.dialects import from_client

if TYPE_CHECKING:
    from mcpd.model import JsonValue
    from mcpd.servers.orchestration.family import Family


def holds(found: JsonValue, written: JsonValue) -> bool:
    """Whether *found* is what was *written*, or that with members added."""
    if isinstance(written, dict) and isinstance(found, dict):
        return all(name in found and holds(found[name], value) for name, value in written.items())
    return same(found, written)


def renewed(family: Family, written: JsonValue, found: JsonValue, wanted: JsonValue) -> JsonValue:
    """The entry *wanted*, with what was added to *found* since it was *written*.

    An entry that starts a program and one that names a URL have nothing in common that could be kept.
    """
    if _is_remote(family, written) is not _is_remote(family, wanted):
        return wanted
    return merged(written, found, wanted)


def merged(written: JsonValue, found: JsonValue, wanted: JsonValue) -> JsonValue:
    """*wanted*, with the members of *found* that are not in *written*, in the order of *found*."""
    if not isinstance(found, dict) or not isinstance(wanted, dict):
        return wanted
    before = written if isinstance(written, dict) else {}
    result: dict[str, JsonValue] = {}
    for name, value in found.items():
        if name in wanted:
            result[name] = merged(before.get(name), value, wanted[name])
        elif name not in before:
            result[name] = value
        elif isinstance(value, dict) and isinstance(before[name], dict):
            if added := merged(before[name], value, {}):
                result[name] = added
        elif not same(value, before[name]):
            result[name] = value
    return {**result, **{name: value for name, value in wanted.items() if name not in result}}


def _is_remote(family: Family, entry: JsonValue) -> bool | None:
    """None for an entry that cannot be read."""
    canonical = from_client(family, {"entry": entry}).get("entry")
    return "url" in canonical if isinstance(canonical, dict) else None
