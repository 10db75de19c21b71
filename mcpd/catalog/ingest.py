# SPDX-License-Identifier: LGPL-2.1-or-later
"""Writing the entries of a registry into the database, parsing only the new ones."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mcpd.catalog.listing import describe
from mcpd.catalog.results import InstallableBy
from mcpd.errors import InvalidManifest
from mcpd.formats.registry import parse_item, shortcomings
from mcpd.model import printable

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

    from mcpd.formats.registry import Item
    from mcpd.model import Entry

_SHA256: Final = re.compile(r"[0-9a-fA-F]{64}")


def pins_what_it_names(entry: Entry) -> bool:
    """Return whether *entry* determines exactly what is installed: by a hash, a commit or an exact version."""
    if entry.source is not None:
        return entry.source.is_exact
    if entry.manifest and not entry.transports:
        pinned = entry.integrity.get("manifestSha256") if isinstance(entry.integrity, dict) else None
        return isinstance(pinned, str) and _SHA256.fullmatch(pinned) is not None
    return entry.remote is not None


def pinned_sha256(entry: Entry) -> str:
    """Return the SHA-256 of the single file that *entry* installs; empty if *entry* pins no such file."""
    source = entry.source
    return source.sha256 if source is not None and source.is_file else ""


MAX_ENTRIES: Final = 200_000
MAX_FAULTS: Final = 100
"""Maximum number of faults of one copy that are stored; all are counted."""
_MAX_FAULT: Final = 2000
"""Maximum length of one fault message, in characters."""
_MAX_CATEGORIES: Final = 64
_INDEXED: Final = 4096
"""Number of characters of each text that are indexed."""
_AT_ONCE: Final = 128
"""Number of rows that are written together."""
_ENTRY: Final = (
    "INSERT INTO entry (n, copy, id, digest, installable, pins, sha256, note) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (n) DO UPDATE SET id = excluded.id, digest = excluded.digest,"
    " installable = excluded.installable, pins = excluded.pins, sha256 = excluded.sha256, note = excluded.note"
)
_BODY: Final = "INSERT OR REPLACE INTO body VALUES (?, ?, ?, ?, ?)"
_WORDS: Final = "INSERT INTO words (rowid, id, name, summary, description, categories) VALUES (?, ?, ?, ?, ?, ?)"
_CATEGORY: Final = "INSERT OR IGNORE INTO category VALUES (?, ?)"


@dataclass(slots=True)
class Faults:
    """Faults of the entries of one copy."""

    kept: list[tuple[str, str]] = field(default_factory=list)
    """Id, if known, and message of the first faults."""
    count: int = 0

    def add(self, server_id: str, message: str) -> None:
        """Add one fault."""
        self.count += 1
        if len(self.kept) < MAX_FAULTS:
            self.kept.append((printable(server_id), message[:_MAX_FAULT]))


class Ingest:
    """Changes the entries of one copy within a transaction; :meth:`finish` completes the change."""

    def __init__(self, connection: sqlite3.Connection, copy: int, origin: str) -> None:
        """*origin* is the URL named in faults."""
        self._run = connection.execute
        self._copy = copy
        self._origin = origin
        self._many = connection.executemany
        self._next = self._run("SELECT coalesce(max(n), 0) FROM entry").fetchone()[0] + 1
        self._is_new = self._run("SELECT 1 FROM entry WHERE copy = ? LIMIT 1", (copy,)).fetchone() is None
        self._written: set[str] = set()
        self._waiting: dict[str, list[tuple[object, ...]]] = {
            statement: [] for statement in (_ENTRY, _BODY, _WORDS, _CATEGORY)
        }
        self.faults: Final = Faults()

    def replace(self, items: Iterable[Item]) -> None:
        """Replace all entries with *items*. Raises :class:`~mcpd.errors.InvalidManifest` if there are too many."""
        rows = self._run("SELECT digest, n, note FROM entry WHERE copy = ?", (self._copy,))
        known: dict[bytes, tuple[int, str]] = {digest: (n, note) for digest, n, note in rows}
        left = {n for n, _ in known.values()}
        taken: set[int] = set()
        for count, item in enumerate(items):
            if count >= MAX_ENTRIES:
                raise InvalidManifest(f"{self._origin}: more than {MAX_ENTRIES} entries")
            digest = _digest(item.key, item.data)
            found = known.get(digest)
            if found is not None and found[0] not in taken:
                taken.add(found[0])
                left.discard(found[0])
                if found[1]:
                    self.faults.add("", found[1])
                continue
            n = self._parsed(item, digest, taken)
            if n:
                taken.add(n)
                left.discard(n)
        for n in left:
            self._remove(n)

    def put(self, entry: Entry) -> None:
        """Add *entry*, or replace the entry with the same id."""
        data = msgspec.json.encode(entry.to_json())
        digest = _digest("", data)
        row = self._row(entry.id)
        if row is None or row[1] != digest:
            self._write(row[0] if row else 0, entry, digest, ("", "", data))

    def name_of(self, server_id: str) -> str:
        """Return the name that the registry uses for the entry *server_id*; empty if there is none."""
        row = self._row(server_id)
        if row is None:
            return ""
        (data,) = self._run("SELECT data FROM body WHERE n = ?", (row[0],)).fetchone()
        origin = msgspec.json.decode(data).get("origin")
        return str(origin.get("name", "")) if isinstance(origin, dict) else ""

    def drop(self, server_id: str) -> None:
        """Remove the entry *server_id*, if it exists."""
        row = self._row(server_id)
        if row is not None:
            self._remove(row[0])

    def clear(self) -> None:
        """Remove all entries."""
        for (n,) in self._run("SELECT n FROM entry WHERE copy = ?", (self._copy,)).fetchall():
            self._remove(n)

    def size(self) -> int:
        """Return the total size of all entries in bytes."""
        self._flush()
        query = "SELECT total(length(data)) FROM body WHERE n IN (SELECT n FROM entry WHERE copy = ?)"
        return int(self._run(query, (self._copy,)).fetchone()[0])

    def keep_faults(self, seen: set[str]) -> None:
        """Keep earlier faults, except those of the ids and names *seen* again."""
        earlier = self._run("SELECT id, message FROM fault WHERE copy = ? ORDER BY number", (self._copy,)).fetchall()
        (count,) = self._run("SELECT faults FROM copy WHERE n = ?", (self._copy,)).fetchone()
        for server_id, message in earlier:
            if server_id not in seen and (server_id, message) not in self.faults.kept:
                self.faults.add(server_id, message)
        self.faults.count += count - len(earlier)

    def finish(self) -> None:
        """Write the faults and the counts."""
        self._flush()
        if self._run("SELECT 1 FROM entry LIMIT 1").fetchone() is None:
            # Removing words one by one would leave traces of them in the index.
            self._run("INSERT INTO words (words) VALUES ('delete-all')")
        self._run("DELETE FROM fault WHERE copy = ?", (self._copy,))
        for number, (server_id, message) in enumerate(self.faults.kept):
            self._run("INSERT INTO fault VALUES (?, ?, ?, ?)", (self._copy, number, server_id, message))
        self._run(
            "UPDATE copy SET faults = ?, entries = (SELECT count(*) FROM entry WHERE copy = ?) WHERE n = ?",
            (self.faults.count, self._copy, self._copy),
        )

    def _parsed(self, item: Item, digest: bytes, taken: set[int]) -> int:
        """Parse and write *item*; return the number of its row, 0 if *item* is invalid."""
        try:
            entry = parse_item(item.label, item.data, self._origin, item.key)
        except InvalidManifest as error:
            self.faults.add(item.key or item.label, error.message)
            return 0
        row = None if entry.id in self._written else self._row(entry.id)
        if entry.id in self._written or (row is not None and row[0] in taken):
            message = f"{self._origin}: {item.label}: another entry of this registry has the id {entry.id!r}"
            self.faults.add(entry.id, message)
            return 0
        return self._write(row[0] if row else 0, entry, digest, (item.label, item.key, bytes(item.data)))

    def _row(self, server_id: str) -> tuple[int, bytes] | None:
        if server_id in self._written:
            self._flush()
        elif self._is_new:
            return None
        row: tuple[int, bytes] | None = self._run(
            "SELECT n, digest FROM entry WHERE id = ? AND copy = ?", (server_id, self._copy)
        ).fetchone()
        return row

    def _write(self, n: int, entry: Entry, digest: bytes, raw: tuple[str, str, bytes]) -> int:
        """Write *entry* into the row *n*, or into a new row if *n* is 0."""
        if n:
            self._unindex(n)
        else:
            n, self._next = self._next, self._next + 1
        note = "; ".join(f"{entry.id}: {lack}" for lack in shortcomings(entry))[:_MAX_FAULT]
        if note:
            self.faults.add(entry.id, note)
        fields = describe(entry, self._origin)
        pins, sha256 = pins_what_it_names(entry), pinned_sha256(entry)
        label, key, data = raw
        installable = (
            (InstallableBy.SYSTEM if entry.is_for_system else InstallableBy.ALL)
            if fields["installable"]
            else InstallableBy.NOBODY
        )
        self._waiting[_ENTRY].append((n, self._copy, entry.id, digest, installable, pins, sha256, note))
        self._waiting[_BODY].append((n, label, key, _encoded(fields), data))
        self._waiting[_WORDS].append((n, *_words(fields)))
        self._waiting[_CATEGORY] += [(name, n) for name in _categories(fields)]
        self._written.add(entry.id)
        if len(self._waiting[_ENTRY]) >= _AT_ONCE:
            self._flush()
        return n

    def _flush(self) -> None:
        for statement, rows in self._waiting.items():
            self._many(statement, rows)
            rows.clear()

    def _remove(self, n: int) -> None:
        self._unindex(n)
        self._run("DELETE FROM entry WHERE n = ?", (n,))
        self._run("DELETE FROM body WHERE n = ?", (n,))

    def _unindex(self, n: int) -> None:
        (encoded,) = self._run("SELECT fields FROM body WHERE n = ?", (n,)).fetchone()
        fields = msgspec.json.decode(encoded)
        self._run(
            "INSERT INTO words (words, rowid, id, name, summary, description, categories)"
            " VALUES ('delete', ?, ?, ?, ?, ?, ?)",
            (n, *_words(fields)),
        )
        for name in _categories(fields):
            self._run("DELETE FROM category WHERE name = ? AND entry = ?", (name, n))


_encoded: Final = msgspec.json.Encoder().encode


def _digest(key: str, data: memoryview | bytes) -> bytes:
    found = hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=16)
    found.update(b"\0")
    found.update(data)
    return found.digest()


def _words(fields: dict[str, Any]) -> tuple[str, ...]:
    """Return the indexed texts of an entry by column, truncated, as an index takes several times their size."""
    found = (fields[name][:_INDEXED] for name in ("id", "name", "summary", "description"))
    return (*found, "\n".join(fields["categories"])[:_INDEXED])


def _categories(fields: dict[str, Any]) -> list[str]:
    return [name.casefold() for name in fields["categories"][:_MAX_CATEGORIES]]
