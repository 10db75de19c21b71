# SPDX-License-Identifier: LGPL-2.1-or-later
"""Entries of registry files, and ids derived from names in other registries."""

from __future__ import annotations

import re
from typing import Any, Final

from mcpd.errors import InvalidManifest
from mcpd.model import ID_PATTERN, Entry, SourceType, check_git_url, id_from_name
from mcpd.package_sources import PACKAGE_SOURCES

_NAME_PATTERN: Final = re.compile(r"@?[A-Za-z0-9][A-Za-z0-9@._/+~: -]*", re.ASCII)
_INSTALLED_FIELDS: Final = frozenset({"config", "installDir"})
"""Fields that only installed servers have: a registry must not set a user's configuration, nor publish one."""
_INSTALLED_ORIGIN: Final = frozenset({"registry", "pinned", "verified", "content"})
"""Fields of ``origin`` that mcpd sets during installation: a registry must not claim who signed a server."""


def published_fields(document: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of *document* that a registry may set, without those of an installed server."""
    found = {name: value for name, value in document.items() if name not in _INSTALLED_FIELDS}
    if isinstance(origin := found.get("origin"), dict) and not origin.keys().isdisjoint(_INSTALLED_ORIGIN):
        found["origin"] = {name: value for name, value in origin.items() if name not in _INSTALLED_ORIGIN}
        if not found["origin"]:
            del found["origin"]
    return found


def id_of(name: str, where: str) -> str:
    """Return the id for *name* in a registry.

    Raises :class:`~mcpd.errors.InvalidManifest`, which begins with *where*, for a name that cannot become one.
    """
    if not _NAME_PATTERN.fullmatch(name) or ".." in name:
        raise InvalidManifest(f"{where}: {name[:140]!a} cannot become a server id")
    try:
        return id_from_name(name)
    except InvalidManifest as error:
        raise InvalidManifest(f"{where}: {error.message}") from error


def seed_entry(raw: dict[str, Any], where: str, key: str = "", *, is_plain: bool = False) -> Entry:
    """Parse the entry *raw*, whose id defaults to *key*.

    *is_plain* has the same meaning as in :meth:`~mcpd.model.base.Document.parse`. Raises
    :class:`~mcpd.errors.InvalidManifest`, whose message begins with *where* and names the field and the fault.
    """
    known: dict[str, Any] = {"id": key} if key else {}
    known.update(published_fields(raw))
    name = known.get("id")
    if isinstance(name, str) and name and not ID_PATTERN.fullmatch(name):
        known["id"] = id_of(name, where)
        known["origin"] = {**(o if isinstance(o := known.get("origin"), dict) else {}), "name": name}
    entry = Entry.parse(known, where, is_plain=is_plain and not key)
    if not entry.transports and not _needs_no_transports(entry):
        raise InvalidManifest(f"{where}: {entry.id}: has no transports")
    if entry.source is not None and entry.source.type is SourceType.GIT:
        try:
            check_git_url(entry.source.url)
        except InvalidManifest as error:
            raise InvalidManifest(f"{where}: source.url: {error.message}") from error
    return entry


def _needs_no_transports(entry: Entry) -> bool:
    """Return whether *entry* may omit transports: a manifest or its files define them, or it cannot be installed."""
    if entry.manifest or entry.unsupported_reason:
        return True
    if entry.source is None:
        return False
    kind = PACKAGE_SOURCES.get(entry.source.type)
    return kind is None or kind.describes_itself
