# SPDX-License-Identifier: LGPL-2.1-or-later
"""Comparison of the tools before and after an update.

A server could describe harmless tools until it is trusted and different ones afterwards, so tools that change have to
be approved (MCP: clients treat descriptions and annotations as untrusted unless the server is trusted).
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, Literal

from mcpd.errors import NotFound, Unhealthy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcpd.store import InstalledServer, Store
    from mcpd.store.lifecycle import Tools

FIELDS: Final = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
"""Fields of a tool definition that are compared."""
_SETS: Final = frozenset({"required", "enum", "type"})
"""JSON Schema lists that are unordered; servers that build them from sets shuffle them at each start."""


@dataclass(frozen=True, slots=True)
class ToolChange:
    """A tool that an update adds, removes or changes."""

    tool: str
    change: Literal["added", "removed", "changed"]
    before: dict[str, Any] | None
    """The compared fields of the definition (:data:`FIELDS`), in a fixed order."""
    after: dict[str, Any] | None


def compare(before: Tools, after: Tools) -> list[ToolChange]:
    """Return the differences between *before* and *after* by tool name; the order of keys and tools is ignored.

    If a name occurs several times, each occurrence is compared. Raises :class:`~mcpd.errors.Unhealthy` for definitions
    that are nested too deeply.
    """
    then, now = _by_name(before), _by_name(after)
    changes: list[ToolChange] = []
    for name in sorted(then.keys() | now.keys()):
        old, new = then.get(name, Counter()), now.get(name, Counter())
        for was, is_now in zip_longest(sorted((old - new).elements()), sorted((new - old).elements())):
            changes.append(_change(name, was, is_now))
    return changes


@dataclass(frozen=True, slots=True)
class PendingUpdate:
    """An update that waits for approval."""

    server: InstalledServer
    generation: int
    changes: list[ToolChange]


def pending_update(store: Store, server_id: str) -> PendingUpdate:
    """Return the pending update of *server_id*. Blocks on the disk.

    Raises :class:`~mcpd.errors.NotFound` if there is none, and the errors of :func:`compare`.
    """
    server, held = store.get(server_id), store.held(server_id)
    if held is None:
        raise NotFound(f"{server_id} has no pending update")
    changes = compare(store.tools(server_id) or [], store.generation_tools(server_id, held) or [])
    return PendingUpdate(server, held, changes)


def needs_approval(changes: Iterable[ToolChange]) -> bool:
    """Return whether *changes* require approval; a removed tool does not."""
    return any(change.change != "removed" for change in changes)


def _change(name: str, before: str | None, after: str | None) -> ToolChange:
    kind: Literal["added", "removed", "changed"] = "changed"
    if before is None or after is None:
        kind = "added" if before is None else "removed"
    return ToolChange(name, kind, json.loads(before) if before else None, json.loads(after) if after else None)


def _by_name(tools: Tools) -> dict[str, Counter[str]]:
    """Return how often each definition, in canonical form, occurs, by tool name."""
    found: dict[str, Counter[str]] = {}
    for tool in tools:
        name = tool.get("name")
        shown = name if isinstance(name, str) else ""
        found.setdefault(shown, Counter())[_canonical(shown, tool)] += 1
    return found


def _canonical(name: str, tool: dict[str, Any]) -> str:
    """Return the compared fields of *tool* as JSON; missing and empty fields are equal."""
    counting = {key: tool[key] for key in FIELDS if tool.get(key) not in (None, "", {})}
    try:
        return json.dumps(_ordered(counting), sort_keys=True, ensure_ascii=False)
    except RecursionError:
        raise Unhealthy(f"the definition of the tool {name[:200]!r} is nested too deeply") from None


def _ordered(value: Any, key: str = "") -> Any:
    """Return *value*, found under *key*, with unordered lists sorted."""
    if isinstance(value, dict):
        return {name: _ordered(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        items = [_ordered(item) for item in value]
        return sorted(items, key=lambda item: json.dumps(item, sort_keys=True)) if key in _SETS else items
    return value
