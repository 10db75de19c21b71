# SPDX-License-Identifier: LGPL-2.1-or-later
"""The copies of registries in the database: which of them are used, in which order, and who vouches for them."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Final

from mcpd.catalog.urls import check_source_url
from mcpd.formats.moments import moment

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable

    from mcpd.catalog.sources import SourceLine
    from mcpd.trust.keys import Keys, TrustedKey

_COLUMNS: Final = (
    "n, source, part, etag, modified, digest, fetched, baseline, attested, since, signer, unsigned, tried, entries,"
    " faults"
)


@dataclass(frozen=True, slots=True)
class Copy:
    """One file of a source, as it was fetched; an official API is one file, too."""

    n: int
    source: str
    """The normal URL of the source."""
    part: str
    """Its name in a directory, else empty."""
    etag: str
    modified: str
    digest: bytes
    """Of its bytes."""
    fetched: float
    """Unix time at which it was last found to be what the source has."""
    baseline: str
    """The newest ``updated`` that was seen; of one that was yet to come the time at which it was seen."""
    attested: str
    """The newest that a trusted key signed: what nobody vouched for says nothing of what is older than that.

    These two and :attr:`signer`, by which an older or an unsigned file is refused, are kept in the database of the
    cache alone: who clears the cache, or removes and adds the source, begins anew.
    """
    since: str
    """Of an official API, the newest ``updatedAt`` that was seen."""
    signer: str
    """The fingerprint of the key that signed it, empty if none did that was trusted then."""
    unsigned: str
    """Why there is no signer."""
    tried: bytes
    """Which signature was tried with which keys, where there is no signer."""
    entries: int
    faults: int


@dataclass(frozen=True, slots=True)
class Standing:
    """How a copy counts at this time."""

    copy: Copy
    line: SourceLine
    signer: str
    """The name of the trusted key that signed it; empty if it is not verified."""
    usable: bool
    lacks_key: bool = False
    """Whether the source asks for a key that is not there."""

    @property
    def problem(self) -> str:
        """Why it is not verified where it might be, empty if it is."""
        if self.signer or self.line.signature == "off" or self.line.type == "official":
            return ""
        name = f"{self.copy.part}: " if self.copy.part else ""
        asked = f"the key {self.line.key!r}" if self.line.key else "a trusted key"
        if self.lacks_key:
            return f"{name}{no_key(self.line.key)}"
        if self.copy.signer:
            return f"{name}signed by {self.copy.signer}, which is not trusted; 'mcpctl key list' shows what is"
        return f"{name}{self.copy.unsigned or f'not signed by {asked}'}"

    @property
    def dateless(self) -> str:
        """That its age cannot be told though it is signed, empty if that is not so."""
        if not self.signer or self.copy.attested:
            return ""
        return (
            f"{self.copy.part or self.copy.source}: it is signed, but has no 'updated', so that an older one, signed"
            " once, could not be told"
        )


def copies(connection: sqlite3.Connection) -> list[Copy]:
    """Every copy there is."""
    return [Copy(*row) for row in connection.execute(f"SELECT {_COLUMNS} FROM copy ORDER BY source, part")]  # noqa: S608


def copy_of(connection: sqlite3.Connection, source: str, part: str) -> Copy | None:
    """The copy of *part* of *source*."""
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM copy WHERE source = ? AND part = ?",  # noqa: S608
        (source, part),
    ).fetchone()
    return Copy(*row) if row else None


def make_copy(connection: sqlite3.Connection, source: str, part: str) -> int:
    """The number of the copy of *part* of *source*, made if there is none."""
    connection.execute("INSERT OR IGNORE INTO copy (source, part) VALUES (?, ?)", (source, part))
    found: int = connection.execute("SELECT n FROM copy WHERE source = ? AND part = ?", (source, part)).fetchone()[0]
    return found


def confirm(connection: sqlite3.Connection, copy: int) -> None:
    """Note that *copy* is what the source has now."""
    connection.execute("UPDATE copy SET fetched = ? WHERE n = ?", (time.time(), copy))


def standings(found: Iterable[Copy], lines: Iterable[SourceLine], keys: Keys) -> list[Standing]:
    """How the copies *found* count, in order of precedence; those of no source of *lines* do not."""
    by_source: dict[str, list[Copy]] = {}
    for copy in found:
        by_source.setdefault(copy.source, []).append(copy)
    trusted = cache(keys.trusted)  # once for all the files of a directory
    has = cache(keys.has)
    order: list[Standing] = []
    for line in lines:
        if line.state == "invalid":
            continue
        own = [
            replace(standing(copy, line, trusted), lacks_key=bool(line.key) and not has(line.key))
            for copy in by_source.get(check_source_url(line.url), ())
            # What was there when the source was of another type is not what it has now.
            if bool(copy.part) == (line.type == "directory")
        ]
        order += sorted(own, key=_rank)
    return order


def _rank(each: Standing) -> tuple[bool, float]:
    """What is verified comes first, and of that the newest: an old file that was signed once wins by no name."""
    signed = moment(each.copy.attested) if each.signer else None
    return not each.signer, -signed.timestamp() if signed is not None else 0.0


def standing(copy: Copy, line: SourceLine, trusted: Callable[[str, str], TrustedKey | None]) -> Standing:
    """How *copy* of the source *line* counts: *trusted* (of :class:`~mcpd.trust.keys.Keys`) is asked now, so that a key
    which was removed ends it at once.
    """
    may = copy.signer and line.signature != "off" and line.type != "official"
    key = trusted(copy.signer, line.key) if may else None
    return Standing(copy, line, key.name if key else "", key is not None or line.signature != "required")


def no_key(name: str) -> str:
    """What is to be done where a source asks for the key *name*, which is not there."""
    return f"there is no key {name!r} in keys.d, by which it has to be signed; 'mcpctl key add' adds it"


def is_placed(connection: sqlite3.Connection, order: list[Standing]) -> bool:
    """Whether the database shows the entries of the copies as *order* says."""
    placed = connection.execute("SELECT n FROM copy WHERE place IS NOT NULL ORDER BY place").fetchall()
    return [n for (n,) in placed] == [each.copy.n for each in order if each.usable]


def place(connection: sqlite3.Connection, order: list[Standing]) -> None:
    """Show of entries with the same id the one of the first usable copy in *order* (S-5)."""
    connection.execute("UPDATE copy SET place = NULL")
    for number, each in enumerate(each for each in order if each.usable):
        connection.execute("UPDATE copy SET place = ? WHERE n = ?", (number, each.copy.n))
    show(connection)


def show(connection: sqlite3.Connection) -> None:
    """Bring the column ``shown`` up to date."""
    placed = [n for (n,) in connection.execute("SELECT n FROM copy WHERE place IS NOT NULL")]
    if len(placed) <= 1:
        only = placed[0] if placed else -1
        connection.execute("UPDATE entry SET shown = (copy = ?) WHERE shown <> (copy = ?)", (only, only))
        return
    connection.execute(
        "WITH best AS (SELECT e.n AS n, row_number() OVER (PARTITION BY e.id ORDER BY c.place) AS rank"
        " FROM entry e JOIN copy c ON c.n = e.copy WHERE c.place IS NOT NULL)"
        " UPDATE entry SET shown = NOT shown"
        " WHERE shown <> (n IN (SELECT n FROM best WHERE rank = 1))"
    )
