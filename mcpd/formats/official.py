# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pages of the official registry's API, ``/v0.1/servers`` and its older twin ``/v0/servers``."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from mcpd.errors import InvalidManifest
from mcpd.formats import server_json
from mcpd.formats.elements import elements
from mcpd.formats.registry import Standing, decoded, standing_of
from mcpd.model import printable

if TYPE_CHECKING:
    from mcpd.model import Entry

MAX_ITEMS: Final = 1000
"""Items of one page."""
_MAX_CURSOR: Final = 4096


@dataclass(frozen=True, slots=True)
class Item:
    """One version of one server."""

    name: str
    """As the registry has it; empty if it cannot be told."""
    deleted: bool
    is_latest: bool
    updated_at: str
    """ISO 8601, as the registry has it."""
    entry: Entry | None
    """None for what is deleted, not the latest version, or faulty."""
    problem: str
    """The fault, with the source, the item and the field; empty if there is none."""


class _Metadata(msgspec.Struct):
    camel: str | None = msgspec.field(default=None, name="nextCursor")
    snake: str | None = msgspec.field(default=None, name="next_cursor")


class _Page(msgspec.Struct):
    servers: msgspec.Raw
    metadata: _Metadata | None = None


_PAGE: Final = msgspec.json.Decoder(_Page)


def parse_page(data: bytes, origin: str) -> list[Item]:
    """The items of the page *data*, fetched from *origin*; a faulty one has a problem, and the others stay (S-36).

    Raises :class:`~mcpd.errors.InvalidManifest` if it is no page at all, or one of more than :data:`MAX_ITEMS`.
    """
    servers = memoryview(_page(data, origin).servers)
    if servers[0] in b"n":  # null
        return []
    found = list(islice(elements(servers), MAX_ITEMS + 1)) if servers[0] in b"[" else None
    if found is None or len(found) > MAX_ITEMS:
        raise InvalidManifest(f"{origin}: not a page of a registry: servers: not a list of at most {MAX_ITEMS} items")
    return [_item(raw, f"{origin}: item {number}") for number, (_, raw) in enumerate(found)]


def next_cursor(data: bytes, origin: str) -> str:
    """The cursor that the page *data*, fetched from *origin*, names; empty on the last one. Its items are not parsed.

    Raises :class:`~mcpd.errors.InvalidManifest` if it is no page at all, and for a cursor without end.
    """
    metadata = _page(data, origin).metadata or _Metadata()
    cursor = metadata.camel or metadata.snake or ""
    if len(cursor) > _MAX_CURSOR:
        raise InvalidManifest(f"{origin}: metadata.nextCursor: longer than {_MAX_CURSOR} characters")
    return cursor


def _page(data: bytes, origin: str) -> _Page:
    try:
        return _PAGE.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidManifest(f"{origin}: not a page of a registry: {error}") from error


def _item(raw: memoryview, where: str) -> Item:
    try:
        item = decoded(raw, where)
    except InvalidManifest as error:
        return Item("", deleted=False, is_latest=True, updated_at="", entry=None, problem=error.message)
    document = item.get("server", item) if isinstance(item, dict) else None
    if not isinstance(item, dict) or not isinstance(document, dict):
        fault = f"{where}: not an object with 'server'"
        return Item("", deleted=False, is_latest=True, updated_at="", entry=None, problem=fault)
    standing = standing_of(item) or Standing(deleted=document.get("status") == "deleted")
    name = _text(document.get("name"))
    named = f"{where}: {printable(name)!r}" if name else where
    entry, problem = None, ""
    if standing.is_latest and not standing.deleted:
        try:
            entry = server_json.entry_of(document, named, published=True)
        except InvalidManifest as error:
            problem = error.message
    return Item(name, standing.deleted, standing.is_latest, standing.updated_at, entry, problem)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
