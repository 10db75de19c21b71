# SPDX-License-Identifier: LGPL-2.1-or-later
"""``index.json``, which points to the manifests of installed servers, in its current and older form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mcpd.errors import InvalidManifest
from mcpd.model.base import Problem, check_id, check_json, printable


@dataclass(frozen=True, slots=True)
class Pointer:
    """Location of one server's manifest."""

    location: str
    """Absolute path of ``manifest.json``; empty in the older form, which embeds the manifest."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Fields set by other tools, written back unchanged."""
    embedded: dict[str, Any] | None = None
    """The whole manifest, from the older form."""


@dataclass(slots=True)
class Index:
    """Content of the ``index.json`` of one scope."""

    servers: dict[str, Pointer] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    """Top-level fields other than ``servers``."""
    broken: dict[str, Any] = field(default_factory=dict)
    """Invalid entries as they are in the file, by key."""
    problems: list[Problem] = field(default_factory=list)
    """One problem for each broken entry."""
    legacy: bool = False
    """True if the file has the older form, a list of full objects."""

    def to_json(self) -> dict[str, Any]:
        """Return the index in the current form; invalid entries are kept, embedded manifests are not."""
        servers = {
            server_id: {**pointer.extra, "location": pointer.location}
            for server_id, pointer in self.servers.items()
            if pointer.location
        }
        return {**self.extra, "servers": {**self.broken, **servers}}


def parse_index(data: object, origin: str) -> Index:
    """Parse the index *data* from *origin* (a path, for messages).

    An invalid entry is reported as a problem; the others are kept. Raises :class:`~mcpd.errors.InvalidManifest` if
    *data* is not an index.
    """
    if not isinstance(data, dict) or not isinstance(data.get("servers"), (list, dict)):
        raise InvalidManifest(f"{origin}: not an index: needs an object with 'servers'")
    extra = {key: value for key, value in data.items() if key != "servers"}
    try:
        check_json(extra)
    except ValueError as error:
        raise InvalidManifest(f"{origin}: {error}") from error
    index = Index(extra=extra, legacy=isinstance(data["servers"], list))
    if index.legacy:
        _read_legacy(index, data["servers"], origin)
    else:
        _read_pointers(index, data["servers"], origin)
    return index


def _read_pointers(index: Index, servers: dict[str, object], origin: str) -> None:
    for key, raw in servers.items():
        try:
            index.servers[check_id(key)] = _pointer(raw)
        except (InvalidManifest, ValueError) as error:
            index.broken[key] = raw
            index.problems.append(Problem(origin, printable(key), f"{origin}: {printable(key)!r}: {_text(error)}"))


def _pointer(raw: object) -> Pointer:
    check_json(raw)
    if isinstance(raw, str):
        return Pointer(raw)
    if not isinstance(raw, dict):
        raise ValueError("not an object with 'location'")  # noqa: TRY004 - a fault of the input, not of the caller
    location = raw.get("location") or raw.get("manifest")
    if not isinstance(location, str) or not location.startswith("/"):
        raise ValueError("needs 'location', the absolute path of manifest.json")
    return Pointer(location, {key: value for key, value in raw.items() if key not in ("location", "manifest")})


def _read_legacy(index: Index, servers: list[object], origin: str) -> None:
    for number, raw in enumerate(servers):
        try:
            if not isinstance(raw, dict) or not isinstance(raw.get("id"), str):
                raise ValueError("not an object with 'id'")  # noqa: TRY301, TRY004
            check_json(raw)
            index.servers[check_id(raw["id"])] = Pointer("", embedded=raw)
        except (InvalidManifest, ValueError) as error:
            key = raw["id"] if isinstance(raw, dict) and isinstance(raw.get("id"), str) else f"#{number}"
            index.broken[key] = raw
            index.problems.append(Problem(origin, printable(key), f"{origin}: entry {number}: {_text(error)}"))


def _text(error: InvalidManifest | ValueError) -> str:
    return error.message if isinstance(error, InvalidManifest) else str(error)
