# SPDX-License-Identifier: LGPL-2.1-or-later
"""A registry file (seed 001 §4): a list or an id-keyed map of entries."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidManifest
from mcpd.model.base import ID_PATTERN, Problem, id_from_name, printable
from mcpd.model.entry import Entry
from mcpd.model.source import SourceType, check_git_url

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger(__name__)

_NAME_PATTERN: Final = re.compile(r"@?[A-Za-z0-9][A-Za-z0-9@._/+~: -]*", re.ASCII)
_REQUIRED: Final = ("name", "summary", "version")
_NOT_A_REGISTRYS: Final = ("config", "installDir")
"""Fields of an installed server; a registry cannot set a user's configuration."""


@dataclass(frozen=True, slots=True)
class Registry:
    """The usable entries of a registry, and what is wrong with it."""

    version: str
    updated: str
    servers: list[Entry] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    """Entries left out, and faults of entries that are used all the same (a missing ``summary``)."""


def parse_registry(data: object, origin: str) -> Registry:
    """Read the registry *data*, which came from *origin* (a URL or path, for messages).

    A faulty entry becomes a problem and the others stay (S-36). Raises :class:`~mcpd.errors.InvalidManifest` if
    *data* is no registry at all.
    """
    if not isinstance(data, dict) or not isinstance(data.get("servers"), (list, dict)):
        raise InvalidManifest(f"{origin}: not a registry: needs an object with 'servers', a list or a map of entries")
    registry = Registry(_line(data.get("version")), _line(data.get("updated")))
    seen: set[str] = set()
    for label, raw in _entries(data["servers"]):
        try:
            entry = _parse_entry(raw, label, origin)
        except InvalidManifest as error:
            registry.problems.append(Problem(origin, printable(_name(raw)) or label, error.message))
            continue
        if entry.id in seen:
            taken = f"{origin}: {label}: another entry of this registry has the id {entry.id!r}"
            registry.problems.append(Problem(origin, entry.id, taken))
            continue
        seen.add(entry.id)
        registry.servers.append(entry)
        registry.problems.extend(Problem(origin, entry.id, message) for message in _shortcomings(entry, raw))
    if registry.problems:
        _log.warning("%s: %d faults, first: %s", origin, len(registry.problems), registry.problems[0].message)
    return registry


def _line(value: object) -> str:
    return printable(str(value)) if isinstance(value, (str, int, float)) else ""


def _entries(servers: list[object] | dict[str, object]) -> Iterator[tuple[str, object]]:
    if isinstance(servers, list):
        for number, raw in enumerate(servers):
            yield f"entry {number}", raw
        return
    for key, raw in servers.items():
        yield f"entry {printable(key)!r}", {"id": key, **raw} if isinstance(raw, dict) else raw


def _name(raw: object) -> str:
    name = raw.get("id") if isinstance(raw, dict) else None
    return name if isinstance(name, str) else ""


def _parse_entry(raw: object, label: str, origin: str) -> Entry:
    where = f"{origin}: {label}"
    if not isinstance(raw, dict):
        raise InvalidManifest(f"{where}: not an object")
    known: dict[str, Any] = {key: value for key, value in raw.items() if key not in _NOT_A_REGISTRYS}
    name = _name(known)
    if name and not ID_PATTERN.fullmatch(name):
        if not _NAME_PATTERN.fullmatch(name) or ".." in name:
            raise InvalidManifest(f"{where}: {name[:140]!a} cannot become a server id")
        known["id"] = id_from_name(name)
        known["origin"] = {**(o if isinstance(o := known.get("origin"), dict) else {}), "name": name}
    entry = Entry.parse(known, where)
    if not entry.transports and not entry.manifest:
        raise InvalidManifest(f"{where}: {entry.id}: has no transports")
    if entry.source is not None and entry.source.type is SourceType.GIT:
        check_git_url(entry.source.url)
    return entry


def _shortcomings(entry: Entry, raw: object) -> Iterator[str]:
    """What the format requires (S-12) and mcpd can do without."""
    missing = [name for name in _REQUIRED if not (isinstance(raw, dict) and raw.get(name))]
    if missing and not entry.manifest:
        yield f"{entry.id}: has no {', '.join(missing)}"
    if entry.stdio is not None and entry.source is None and not entry.manifest:
        yield f"{entry.id}: has a stdio transport but no source"
