# SPDX-License-Identifier: LGPL-2.1-or-later
"""Differences between two configurations, by server.

The old configuration is the client's (local), the new one is the published (remote) one. Nothing here recurses, and
only paths that differ are built, so that a hostile payload takes no more time and memory than its size.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mcpd.model import JsonValue

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ABSENT: Final = object()

_Path: TypeAlias = "tuple[_Path, str | int] | None"
"""Path to a value: the parent path, and the last step, a key or an index; None for the root."""


def compare(local: Mapping[str, JsonValue], remote: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the servers that *remote* adds, removes and changes compared with *local*, sorted by name.

    The changes of a server are sorted by path: ``args[0]``, ``env.KEY``, ``headers["X-Key"]``. A value that exists on
    one side only is null on the other.
    """
    old, new = _servers(local), _servers(remote)
    modified: list[JsonValue] = []
    unchanged: list[JsonValue] = []
    for name in sorted(old.keys() & new.keys()):
        changes: list[JsonValue] = list(_changes(old[name], new[name]))
        if changes:
            modified.append({"server_id": name, "changes": changes})
        else:
            unchanged.append(name)
    return {
        "servers_added": [*sorted(new.keys() - old.keys())],
        "servers_removed": [*sorted(old.keys() - new.keys())],
        "servers_modified": modified,
        "servers_unchanged": unchanged,
    }


def report(
    local: Mapping[str, JsonValue],
    remote: Mapping[str, JsonValue],
    local_id: str,
    remote_id: str,
    *,
    published: bool = False,
) -> dict[str, JsonValue]:
    """Return the result of ``diff_config``: the differences, the status of *local*, and advice.

    A local configuration has diverged if it has servers that the remote one lacks, unless it was *published* itself:
    then an update removes those servers. Any other difference makes it outdated. *local_id* and *remote_id* are the
    artifact ids of the two configurations.
    """
    diff = compare(local, remote)
    added, removed, modified = (_count(diff, key) for key in ("servers_added", "servers_removed", "servers_modified"))
    if removed and not published:
        return _report("diverged", local_id, remote_id, diff, _to_keep(added, removed, modified))
    news = _news(added, modified, removed)
    if news:
        advice = f"Update available: {news}. Run 'get_config' to fetch latest."
        return _report("outdated", local_id, remote_id, diff, advice)
    return _report("up-to-date", local_id, remote_id, diff, "Your configuration is current. No updates needed.")


def unknown(local_id: str, remote_id: str) -> dict[str, JsonValue]:
    """Return the result of ``diff_config`` for an id that was never published, so that its content is unknown."""
    advice = (
        "This configuration was not published for this client and profile, so the differences are unknown. Run"
        " 'get_config' to fetch latest, or compare it as local_payload."
    )
    return _report("unknown", local_id, remote_id, compare({}, {}), advice)


def _report(
    status: str, local_id: str, remote_id: str, diff: dict[str, JsonValue], recommendation: str
) -> dict[str, JsonValue]:
    added, removed, modified = (_count(diff, key) for key in ("servers_added", "servers_removed", "servers_modified"))
    return {
        "status": status,
        "local_artifact_id": local_id,
        "remote_artifact_id": remote_id,
        "diff": diff,
        "summary": {
            "total_changes": added + removed + modified,
            "added_count": added,
            "removed_count": removed,
            "modified_count": modified,
        },
        "recommendation": recommendation,
    }


def _to_keep(added: int, removed: int, modified: int) -> str:
    own = f"Your configuration has {removed} {_plural(removed)} that the published one does not have"
    news = _news(added, modified, 0)
    more = f"; beyond that: {news}" if news else ""
    return f"{own}{more}. Run 'get_config' to fetch latest, and keep your own servers when you apply it."


def _news(added: int, modified: int, removed: int) -> str:
    found = [f"{added} new {_plural(added)}"] if added else []
    counts = ((modified, "updated"), (removed, "removed"))
    return ", ".join([*found, *(f"{count} {_plural(count)} {word}" for count, word in counts if count)])


def _plural(count: int) -> str:
    return "server" if count == 1 else "servers"


def _count(diff: dict[str, JsonValue], key: str) -> int:
    found = diff[key]
    return len(found) if isinstance(found, list) else 0


def _servers(payload: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    found = payload.get("mcpServers")
    return found if isinstance(found, dict) else {}


def _changes(old: JsonValue, new: JsonValue) -> Iterator[dict[str, JsonValue]]:
    waiting: list[tuple[_Path, object, object]] = [(None, old, new)]
    while waiting:
        path, before, after = waiting.pop()
        if isinstance(before, dict) and isinstance(after, dict):
            keys = sorted(before.keys() | after.keys(), reverse=True)
            waiting.extend(((path, key), before.get(key, _ABSENT), after.get(key, _ABSENT)) for key in keys)
        elif isinstance(before, list) and isinstance(after, list):
            indexes = reversed(range(max(len(before), len(after))))
            waiting.extend(((path, index), _at(before, index), _at(after, index)) for index in indexes)
        elif not _is_same(before, after):
            yield {"path": _spelled(path), "old_value": _shown(before), "new_value": _shown(after)}


def _at(items: list[JsonValue], index: int) -> object:
    return items[index] if index < len(items) else _ABSENT


def _is_same(before: object, after: object) -> bool:
    """Return True if two values, not both objects or both lists, are the same JSON (``true`` and ``1`` are not)."""
    if type(before) is not type(after):
        return False
    return repr(before) == repr(after) if isinstance(before, float) else before == after


def _shown(value: object) -> JsonValue:
    return None if value is _ABSENT else value  # type: ignore[return-value] # JSON came in


def _spelled(path: _Path) -> str:
    parts: list[str] = []
    while path is not None:
        path, step = path
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif not _NAME.fullmatch(step):
            parts.append(f"[{json.dumps(step, ensure_ascii=False)}]")
        else:
            parts.append(f".{step}" if path is not None else step)
    return "".join(reversed(parts))
