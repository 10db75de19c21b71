# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pages of the official registry's API, ``/v0.1/servers`` and its older twin ``/v0/servers``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mcpd.errors import InvalidManifest
from mcpd.formats import server_json
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
    version: str
    deleted: bool
    is_latest: bool
    updated_at: str
    """ISO 8601, as the registry has it."""
    entry: Entry | None
    """None for what is deleted, not the latest version, or faulty."""
    problem: str
    """The fault, with the source, the item and the field; empty if there is none."""


@dataclass(frozen=True, slots=True)
class Page:
    """One answer."""

    items: list[Item]
    next_cursor: str
    """Empty on the last page."""


class _Metadata(msgspec.Struct):
    camel: str | None = msgspec.field(default=None, name="nextCursor")
    snake: str | None = msgspec.field(default=None, name="next_cursor")


class _Page(msgspec.Struct):
    servers: msgspec.Raw
    metadata: _Metadata | None = None


_PAGE: Final = msgspec.json.Decoder(_Page)


@cache
def _items() -> msgspec.json.Decoder[Any]:
    """What splits a list of at most :data:`MAX_ITEMS`; made when there is one, for it is large.

    A list would be counted when all of it is there. This ends with the first item that is too many.
    """
    fields = [(f"item_{number}", msgspec.Raw, msgspec.UNSET) for number in range(MAX_ITEMS)]
    made = msgspec.defstruct("_Items", fields, array_like=True, forbid_unknown_fields=True)
    return msgspec.json.Decoder(made | None)


def parse_page(data: bytes, origin: str) -> Page:
    """Read the page *data*, fetched from *origin*; a faulty item has a problem, and the others stay (S-36).

    Raises :class:`~mcpd.errors.InvalidManifest` if it is no page at all, or one of more than :data:`MAX_ITEMS`.
    """
    page = _page(data, origin)
    try:
        found = _items().decode(page.servers)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidManifest(
            f"{origin}: not a page of a registry: servers: not a list of at most {MAX_ITEMS} items"
        ) from error
    raws = [] if found is None else [raw for raw in msgspec.structs.astuple(found) if raw is not msgspec.UNSET]
    items = [_item(raw, f"{origin}: item {number}") for number, raw in enumerate(raws)]
    return Page(items, _cursor(page, origin))


def next_cursor(data: bytes, origin: str) -> str:
    """The cursor that the page *data*, fetched from *origin*, names; empty on the last one. Its items are not parsed.

    Raises :class:`~mcpd.errors.InvalidManifest` if it is no page at all.
    """
    return _cursor(_page(data, origin), origin)


def _page(data: bytes, origin: str) -> _Page:
    try:
        return _PAGE.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidManifest(f"{origin}: not a page of a registry: {error}") from error


def _cursor(page: _Page, origin: str) -> str:
    metadata = page.metadata or _Metadata()
    cursor = metadata.camel or metadata.snake or ""
    if len(cursor) > _MAX_CURSOR:
        raise InvalidManifest(f"{origin}: metadata.nextCursor: longer than {_MAX_CURSOR} characters")
    return cursor


def _item(raw: msgspec.Raw, where: str) -> Item:
    try:
        item = decoded(memoryview(raw), where)
    except InvalidManifest as error:
        return Item("", "", deleted=False, is_latest=True, updated_at="", entry=None, problem=error.message)
    document = item.get("server", item) if isinstance(item, dict) else None
    if not isinstance(item, dict) or not isinstance(document, dict):
        fault = f"{where}: not an object with 'server'"
        return Item("", "", deleted=False, is_latest=True, updated_at="", entry=None, problem=fault)
    standing = standing_of(item) or Standing(deleted=document.get("status") == "deleted")
    name, version = _text(document.get("name")), _version(document)
    named = f"{where}: {printable(name)!r}" if name else where
    entry, problem = None, ""
    if standing.is_latest and not standing.deleted:
        try:
            entry = server_json.entry_of(document, named, published=True)
        except InvalidManifest as error:
            problem = error.message
    return Item(name, version, standing.deleted, standing.is_latest, standing.updated_at, entry, problem)


def _version(document: dict[str, Any]) -> str:
    detail = document.get("version_detail")
    return _text(document.get("version") or (detail.get("version") if isinstance(detail, dict) else ""))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
