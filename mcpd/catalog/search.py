# SPDX-License-Identifier: LGPL-2.1-or-later
"""Searching the database for entries."""

from __future__ import annotations

import json
import logging
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mcpd.catalog.ingest import pins_what_it_names
from mcpd.catalog.results import CatalogEntry, InstallableBy, Listing, Query
from mcpd.errors import InvalidArgument, InvalidManifest
from mcpd.formats.registry import parse_item
from mcpd.paths import Scope

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Iterator

    from mcpd.catalog.database import CopyStatus

_log = logging.getLogger(__name__)


def offers(
    connection: sqlite3.Connection, order: list[CopyStatus], ids: Collection[str]
) -> dict[str, list[CatalogEntry]]:
    """Return the entries of each of *ids* in the copies of *order*: one per registry, and in the same order."""
    usable = {each.copy.n: each for each in order if each.usable}
    rows = connection.execute(
        "SELECT e.copy, e.id, b.label, b.key, b.data FROM entry e JOIN copy c ON c.n = e.copy"
        " JOIN body b ON b.n = e.n"
        " WHERE e.id IN (SELECT value FROM json_each(?)) AND c.place IS NOT NULL ORDER BY c.place",
        (json.dumps(list(ids)),),
    )
    found: dict[str, list[CatalogEntry]] = {}
    for copy, server_id, label, key, data in rows:
        each = usable[copy]
        others = found.setdefault(server_id, [])
        if any(other.origin == each.copy.source for other in others):
            continue
        try:
            entry = parse_item(label, data, each.copy.source, key)
        except InvalidManifest as error:
            _log.warning("%s; try 'mcpctl refresh'", error.message)
            continue
        verified = bool(each.signer) and pins_what_it_names(entry)
        others.append(CatalogEntry(entry, each.copy.source, verified, each.signer))
    return {server_id: entries for server_id, entries in found.items() if entries}


def signer_of(connection: sqlite3.Connection, order: list[CopyStatus], sha256: str) -> str:
    """Return the name of the trusted key that signed a copy with an entry that pins *sha256*; empty if none did."""
    if not sha256:
        return ""
    rows = connection.execute("SELECT DISTINCT copy FROM entry WHERE sha256 = ? AND pins", (sha256.lower(),))
    having = {copy for (copy,) in rows}
    return next((each.signer for each in order if each.usable and each.signer and each.copy.n in having), "")


def faults_of(connection: sqlite3.Connection) -> dict[str, list[tuple[str, str]]]:
    """Return id and message of the first hundred faults of each registry's entries."""
    found: dict[str, list[tuple[str, str]]] = {}
    for source, server_id, message in connection.execute(
        "SELECT c.source, f.id, f.message FROM fault f JOIN copy c ON c.n = f.copy ORDER BY c.source, c.part, f.number"
    ):
        faults = found.setdefault(source, [])
        if len(faults) < 100:
            faults.append((server_id, message))
    return found


MAX_LIMIT: Final = 1000
MAX_WORDS: Final = 32
MAX_TEXT: Final = 1000
MAX_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of the listings of a page in bytes; the page ends before the first entry that exceeds it."""
_RANKED: Final = 300
"""Maximum number of matches that are ranked; for words in nearly all entries, ranking means little."""
_CHUNKS: Final = (256, 4096)
_RANK: Final = "bm25(words, 10.0, 8.0, 4.0, 1.0, 3.0)"
_decoded: Final = msgspec.json.Decoder(dict[str, Any]).decode


def search(
    connection: sqlite3.Connection, order: list[CopyStatus], query: Query, cursor: str, limit: int, scope: Scope
) -> tuple[list[Listing], str]:
    """Run :meth:`mcpd.catalog.Catalog.query` for the instance of *scope*; *order* contains the status of all copies."""
    limit = min(max(limit, 1), MAX_LIMIT)
    where, values = _conditions(query, order, scope)
    text = _cleaned(query.text)
    if text.strip():
        is_narrow = query.only is not None or query.offers is not None or bool(query.category)
        rows = _by_match(connection, text, (where, values), cursor, limit + 1, is_narrow=is_narrow)
    else:
        rows = connection.execute(
            f"SELECT n, id FROM entry WHERE {where} AND id > ? ORDER BY id LIMIT ?",  # noqa: S608 - our own text
            (*values, cursor, limit + 1),
        ).fetchall()
    page = _within_size(connection, rows[:limit])
    return _listings(connection, order, [n for n, _ in page]), page[-1][1] if len(page) < len(rows) else ""


def _conditions(query: Query, order: list[CopyStatus], scope: Scope) -> tuple[str, list[object]]:
    """Return SQL conditions on the table ``entry`` for *query*, without its text, and their values."""
    parts, values = ["shown"], list[object]()
    if query.source or query.offers is not None:
        # Files of one directory may hold the same id.
        parts = [
            (
                "NOT EXISTS (SELECT 1 FROM entry o JOIN copy c ON c.n = entry.copy JOIN copy d ON d.n = o.copy"
                " WHERE o.id = entry.id AND d.source = c.source AND d.place < c.place)"
            )
        ]
    if query.source:
        parts.append("copy IN (SELECT value FROM json_each(?))")
        values.append(json.dumps(_copies(order, query.source)))
    if query.offers is not None:
        parts.append(
            "(id, copy) IN (SELECT json_extract(p.value, '$[0]'), c.value"
            " FROM json_each(?) p, json_each(p.value, '$[1]') c)"
        )
        values.append(json.dumps([[server_id, _copies(order, source)] for server_id, source in sorted(query.offers)]))
    if query.installable is not None:
        able = {InstallableBy.ALL, InstallableBy.SYSTEM} if scope is Scope.SYSTEM else {InstallableBy.ALL}
        parts.append("installable IN (SELECT value FROM json_each(?))")
        values.append(json.dumps(sorted(able if query.installable else set(InstallableBy) - able)))
    if query.category:
        parts.append("n IN (SELECT entry FROM category WHERE name = ?)")
        values.append(_cleaned(query.category).casefold())
    if query.only is not None:
        parts.append("id IN (SELECT value FROM json_each(?))")
        values.append(json.dumps(sorted(query.only)))
    if query.without:
        parts.append("id NOT IN (SELECT value FROM json_each(?))")
        values.append(json.dumps(sorted(query.without)))
    return " AND ".join(parts), values


def _copies(order: list[CopyStatus], source: str) -> list[int]:
    """Return the usable copies of the registry *source*."""
    return [each.copy.n for each in order if each.usable and each.copy.source == source]


def _cleaned(text: str) -> str:
    return text.encode("utf-8", "replace").decode().replace("\0", " ")


def _expression(text: str) -> str:
    """Return *text* as an FTS5 expression: each word is a prefix, and nothing in it is syntax."""
    words = text.split()
    if len(text) > MAX_TEXT or len(words) > MAX_WORDS:
        raise InvalidArgument(f"text: more than {MAX_WORDS} words or {MAX_TEXT} characters")
    # Skip words without letters or digits: the tokenizer drops them, and an empty term matches nothing.
    return " AND ".join(f'"{word.replace(chr(34), " ")}" *' for word in words if any(map(str.isalnum, word)))


def _by_match(
    connection: sqlite3.Connection,
    text: str,
    conditions: tuple[str, list[object]],
    cursor: str,
    limit: int,
    *,
    is_narrow: bool,
) -> list[tuple[int, str]]:
    """Return rows that match *text* and *conditions*, each with the cursor after it.

    *is_narrow* is true if few entries meet *conditions*.
    """
    expression = _expression(text)
    if cursor and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
        raise InvalidArgument(f"cursor {cursor[:40]!r}: not returned for this text; start with ''")
    start = int(cursor or 0)
    if not expression:
        return []
    where, values = conditions
    matches = enumerate(_matches(connection, text.strip(), expression))
    for _ in islice(matches, start):
        pass
    wanted = set[int]()
    if is_narrow:
        wanted = set(_numbers(connection.execute(f"SELECT n FROM entry WHERE {where}", values)))  # noqa: S608
    rows: list[tuple[int, str]] = []
    size = _CHUNKS[0]
    while chunk := list(islice(matches, size)):
        size = _CHUNKS[1]
        if not is_narrow:
            found = connection.execute(
                f"SELECT n FROM entry WHERE n IN (SELECT value FROM json_each(?)) AND {where}",  # noqa: S608
                (json.dumps([n for _, n in chunk]), *values),
            )
            wanted = set(_numbers(found))
        for position, n in chunk:
            if n in wanted:
                rows.append((n, str(position + 1)))
                if len(rows) == limit:
                    return rows
    return rows


def _matches(connection: sqlite3.Connection, text: str, expression: str) -> Iterator[int]:
    """Yield each matching row once: the entry with the id *text* first, then the best matches.

    If there are too many to rank, those whose id or name matches come first.
    """
    seen: set[int] = set()
    for n in _candidates(connection, text, expression):
        if n not in seen:
            seen.add(n)
            yield n


def _candidates(connection: sqlite3.Connection, text: str, expression: str) -> Iterator[int]:
    yield from _numbers(connection.execute("SELECT n FROM entry WHERE id = ?", (text,)))
    if _are_few(connection, expression):
        yield from _ranked(connection, expression)
        return
    named = f"{{id name}} : ({expression})"
    yield from (_ranked if _are_few(connection, named) else _unranked)(connection, named)
    yield from _unranked(connection, expression)


def _are_few(connection: sqlite3.Connection, expression: str) -> bool:
    one_more = connection.execute("SELECT 1 FROM words WHERE words MATCH ? LIMIT 1 OFFSET ?", (expression, _RANKED))
    return one_more.fetchone() is None


def _ranked(connection: sqlite3.Connection, expression: str) -> Iterator[int]:
    query = f"SELECT rowid FROM words WHERE words MATCH ? ORDER BY {_RANK}, rowid"  # noqa: S608 - our own text
    return _numbers(connection.execute(query, (expression,)))


def _unranked(connection: sqlite3.Connection, expression: str) -> Iterator[int]:
    return _numbers(connection.execute("SELECT rowid FROM words WHERE words MATCH ?", (expression,)))


def _numbers(rows: Iterable[tuple[int]]) -> Iterator[int]:
    return (n for (n,) in rows)


def _within_size(connection: sqlite3.Connection, rows: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return the first of *rows* that fit into :data:`MAX_BYTES`, at least one."""
    sizes = dict(
        connection.execute(
            "SELECT n, length(fields) FROM body WHERE n IN (SELECT value FROM json_each(?))",
            (json.dumps([n for n, _ in rows]),),
        )
    )
    total = 0
    for number, (n, _) in enumerate(rows):
        total += sizes[n]
        if total > MAX_BYTES and number:
            return rows[:number]
    return rows


def _listings(connection: sqlite3.Connection, order: list[CopyStatus], rows: list[int]) -> list[Listing]:
    found = connection.execute(
        "SELECT e.n, e.copy, e.digest, e.pins, b.fields FROM entry e JOIN body b ON b.n = e.n"
        " WHERE e.n IN (SELECT value FROM json_each(?))",
        (json.dumps(rows),),
    )
    by_copy = {each.copy.n: each for each in order}
    made: dict[int, Listing] = {}
    for n, copy, digest, pins, encoded in found:
        each = by_copy[copy]
        fields = _decoded(encoded)
        fields["origin"] = each.copy.source
        verified = bool(pins and each.signer)
        stamp = digest + each.copy.source.encode()
        made[n] = Listing(fields["id"], each.copy.source, verified, fields, stamp)
    return [made[n] for n in rows]
