# SPDX-License-Identifier: LGPL-2.1-or-later
"""What an update changes of the tools that a server offers, which clients and their models act upon.

A server may describe harmless tools until it is trusted and other ones afterwards, so what was agreed to is compared
with what comes next (MCP: clients treat descriptions and annotations as untrusted unless the server is trusted).
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, Literal

from mcpd.errors import Unhealthy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcpd.store.tool_catalog import Tools

FIELDS: Final = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
"""What of a definition counts."""
_SETS: Final = frozenset({"required", "enum", "type"})
"""Lists of JSON Schema whose order means nothing; servers that make them from sets shuffle them at each start."""


@dataclass(frozen=True, slots=True)
class ToolChange:
    """One tool that is another one after an update."""

    tool: str
    change: Literal["added", "removed", "changed"]
    before: dict[str, Any] | None
    """What counts of the definition (:data:`FIELDS`), in an order that is always the same."""
    after: dict[str, Any] | None


def compare(before: Tools, after: Tools) -> list[ToolChange]:
    """What *after* has otherwise than *before*, by name of the tool; the order of keys and of tools does not count.

    A name that is there several times is compared as often. Raises :class:`~mcpd.errors.Unhealthy` for definitions
    nested beyond reason.
    """
    then, now = _by_name(before), _by_name(after)
    changes: list[ToolChange] = []
    for name in sorted(then.keys() | now.keys()):
        old, new = then.get(name, Counter()), now.get(name, Counter())
        for was, is_now in zip_longest(sorted((old - new).elements()), sorted((new - old).elements())):
            changes.append(_change(name, was, is_now))
    return changes


def needs_approval(changes: Iterable[ToolChange]) -> bool:
    """Whether somebody has to approve of *changes*; that a tool is gone misleads nobody."""
    return any(change.change != "removed" for change in changes)


def _change(name: str, before: str | None, after: str | None) -> ToolChange:
    kind: Literal["added", "removed", "changed"] = "changed"
    if before is None or after is None:
        kind = "added" if before is None else "removed"
    return ToolChange(name, kind, json.loads(before) if before else None, json.loads(after) if after else None)


def _by_name(tools: Tools) -> dict[str, Counter[str]]:
    """The definitions as text that is equal if they are, by name; as often as they are there."""
    found: dict[str, Counter[str]] = {}
    for tool in tools:
        name = tool.get("name")
        shown = name if isinstance(name, str) else ""
        found.setdefault(shown, Counter())[_canonical(shown, tool)] += 1
    return found


def _canonical(name: str, tool: dict[str, Any]) -> str:
    """What counts of *tool*; that a field is missing and that it is empty means the same."""
    counting = {key: tool[key] for key in FIELDS if tool.get(key) not in (None, "", {})}
    try:
        return json.dumps(_ordered(counting), sort_keys=True, ensure_ascii=False)
    except RecursionError:
        raise Unhealthy(f"the definition of the tool {name[:200]!r} is nested too deeply") from None


def _ordered(value: Any, key: str = "") -> Any:
    """*value*, which is under *key*, with lists that are sets in order."""
    if isinstance(value, dict):
        return {name: _ordered(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        items = [_ordered(item) for item in value]
        return sorted(items, key=lambda item: json.dumps(item, sort_keys=True)) if key in _SETS else items
    return value
