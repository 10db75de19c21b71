# SPDX-License-Identifier: LGPL-2.1-or-later
"""Single entries of the database, and what is wrong with them."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from mcpd.catalog.pins import pins_what_it_names
from mcpd.catalog.results import CatalogEntry
from mcpd.errors import InvalidManifest
from mcpd.formats.registry import parse_item

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection

    from mcpd.catalog.copies import Standing

_log = logging.getLogger(__name__)


def offers(
    connection: sqlite3.Connection, order: list[Standing], ids: Collection[str]
) -> dict[str, list[CatalogEntry]]:
    """By id, the entries of *ids* in the copies of *order*: of each source one, in that order."""
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
            _log.warning("%s; fetching the registry again may help", error.message)
            continue
        verified = bool(each.signer) and pins_what_it_names(entry)
        others.append(CatalogEntry(entry, each.copy.source, verified, each.signer))
    return {server_id: entries for server_id, entries in found.items() if entries}


def signer_of(connection: sqlite3.Connection, order: list[Standing], sha256: str) -> str:
    """The name of the trusted key that signed a copy with an entry which pins *sha256*; empty if there is none."""
    if not sha256:
        return ""
    rows = connection.execute("SELECT DISTINCT copy FROM entry WHERE sha256 = ? AND pins", (sha256.lower(),))
    having = {copy for (copy,) in rows}
    return next((each.signer for each in order if each.usable and each.signer and each.copy.n in having), "")


def faults_of(connection: sqlite3.Connection) -> dict[str, list[tuple[str, str]]]:
    """By source, id and message of what is wrong with its entries, the first hundred."""
    found: dict[str, list[tuple[str, str]]] = {}
    for source, server_id, message in connection.execute(
        "SELECT c.source, f.id, f.message FROM fault f JOIN copy c ON c.n = f.copy ORDER BY c.source, c.part, f.number"
    ):
        faults = found.setdefault(source, [])
        if len(faults) < 100:
            faults.append((server_id, message))
    return found
