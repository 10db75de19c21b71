# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the catalog is asked, and what it answers."""

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
    """An entry and the URL of the registry it is from."""

    entry: Entry
    origin: str
    verified: bool = False
    """Whether a trusted key vouches for exactly what would be installed."""
    signer: str = ""
    """The name of the trusted key that signed the registry; empty if none did."""


@dataclass(frozen=True, slots=True)
class Listing:
    """An entry as it is listed."""

    id: str
    origin: str
    """The URL of the registry."""
    verified: bool
    """Whether a trusted key vouches for exactly what would be installed."""
    fields: dict[str, Any]
    """What :func:`mcpd.catalog.listing.describe` says of it."""
    stamp: bytes
    """Another one whenever :attr:`fields` may be."""


class ForWhom(IntEnum):
    """Which instances of mcpd can install an entry."""

    NOBODY = 0
    ALL = 1
    SYSTEM = 2


@dataclass(frozen=True, slots=True)
class Query:
    """Which entries are wanted: those that fit all that is said."""

    text: str = ""
    """Words, of which each has to begin one of the entry's id, name, summary, description or categories."""
    category: str = ""
    source: str = ""
    """The URL of a registry; without it of each id the entry of the first registry is given."""
    installable: bool | None = None
    """By the instance that asks."""
    only: frozenset[str] | None = None
    """Ids."""
    without: frozenset[str] = frozenset()
    """Ids."""
    offers: frozenset[tuple[str, str]] | None = None
    """Ids, each with the URL of the registry whose entry is wanted, be it the first that has one or not."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no news of a source."""

    error: McpdError
    state: State
    """How the source is, if there is a copy of before."""


@dataclass(frozen=True, slots=True)
class Icon:
    """An image."""

    data: bytes
    media_type: str
