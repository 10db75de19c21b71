# SPDX-License-Identifier: LGPL-2.1-or-later
"""Queries to the catalog, and their results."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcpd.catalog.registries import State
    from mcpd.errors import McpdError
    from mcpd.model import Entry


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """An entry and the URL of its registry."""

    entry: Entry
    origin: str
    verified: bool = False
    """True if a trusted key signed exactly what would be installed."""
    signer: str = ""
    """Name of the trusted key that signed the registry; empty if none did."""


@dataclass(frozen=True, slots=True)
class Listing:
    """An entry in a listing."""

    id: str
    origin: str
    """URL of the registry."""
    verified: bool
    """True if a trusted key signed exactly what would be installed."""
    fields: dict[str, Any]
    """Result of :func:`mcpd.catalog.listing.describe`."""
    stamp: bytes
    """A value that changes whenever :attr:`fields` may change."""


class InstallableBy(IntEnum):
    """The instances of mcpd that can install an entry."""

    NOBODY = 0
    ALL = 1
    SYSTEM = 2


@dataclass(frozen=True, slots=True)
class Query:
    """A query to the catalog; all of its conditions have to match."""

    text: str = ""
    """Words, each of which has to begin a word of the id, name, summary, description or categories."""
    category: str = ""
    source: str = ""
    """URL of a registry; if empty, the first registry that has an id provides its entry."""
    installable: bool | None = None
    """Filter by whether the asking instance can install the entry."""
    only: frozenset[str] | None = None
    """Ids to include."""
    without: frozenset[str] = frozenset()
    """Ids to exclude."""
    offers: frozenset[tuple[str, str]] | None = None
    """Pairs of an id and the URL of the registry whose entry is wanted, even if that registry is not the first."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Failed refresh of a registry."""

    error: McpdError
    state: State
    """State of the registry if it has an earlier copy."""


@dataclass(frozen=True, slots=True)
class Icon:
    """An image."""

    data: bytes
    media_type: str
