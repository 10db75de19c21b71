# SPDX-License-Identifier: LGPL-2.1-or-later
"""Registries: files with a list or an id-keyed map of entries, and pages of the official registry's API."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from mcpd.errors import InvalidManifest
from mcpd.formats import server_json
from mcpd.formats.seed import seed_entry
from mcpd.model import Problem, SourceType, printable
from mcpd.model.base import is_plain_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.model import Entry


def parse_time(text: str) -> datetime | None:
    """Parse the ISO 8601 time *text* and convert it to UTC, the default time zone; return None if it is invalid."""
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


_TEXT: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_STRING: Final = re.compile(_TEXT, re.DOTALL)
_BRACKET: Final = re.compile(rb'[^"\[\]{}]*+(?:' + _TEXT + rb'[^"\[\]{}]*+)*+[\[\]{}]', re.DOTALL)
"""Everything up to and including the next bracket outside of a string."""
_SCALAR: Final = re.compile(rb"[^\s,\]}]++")
_SPACE: Final = re.compile(rb"\s*+")
_COLON: Final = re.compile(rb"\s*+:\s*+")


def elements(data: memoryview) -> Iterator[tuple[str, memoryview]]:
    """Yield the key (empty in a list) and the JSON of each element of *data*, a complete list or map.

    A generator, because a few compressed bytes can expand to millions of elements.
    """
    position = 1
    while True:
        start = _after(_SPACE, data, position)
        if data[start] in b"]}":
            return
        key = ""
        if data[0] in b"{":
            end = _after(_STRING, data, start)
            key = _key(data[start:end])
            start = _after(_COLON, data, end)
        end = _end(data, start)
        yield key, data[start:end]
        position = _after(_SPACE, data, end)
        if data[position] in b"]}":
            return
        position += 1


def _end(data: memoryview, start: int) -> int:
    """Return the position after the JSON value that begins at *start*."""
    if data[start] not in b"{[":
        return _after(_STRING if data[start] in b'"' else _SCALAR, data, start)
    position, depth = start + 1, 1
    while depth:
        position = _after(_BRACKET, data, position)
        depth += 1 if data[position - 1] in b"{[" else -1
    return position


def _after(pattern: re.Pattern[bytes], data: memoryview, position: int) -> int:
    found = pattern.match(data, position)
    if found is None:
        raise ValueError(f"invalid JSON at byte {position}")
    return found.end()


def _key(data: memoryview) -> str:
    try:
        return msgspec.json.decode(data, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # An invalid id, returned as text for the message.
        return bytes(data[1:-1]).decode("utf-8", "backslashreplace")


_T = TypeVar("_T")
_log = logging.getLogger(__name__)

MAX_ENTRY: Final = 256 * 1024
"""Maximum bytes of one entry."""
MAX_KEY: Final = 1000
"""Maximum characters of an entry's key in a map."""
MAX_BRACKETS: Final = 4_000_000
"""Maximum number of lists and objects in one registry, ten times as many as 20,000 entries contain; bounds the time
needed to find their ends."""
_MAX_STRAY: Final = 1000
"""Maximum number of entries of one registry that are not objects."""
_SHOWN: Final = 40
"""Maximum bytes of an invalid value shown in a message."""
_REQUIRED: Final = ("name", "summary", "version")
_OFFICIAL: Final = "io.modelcontextprotocol.registry/official"


class Item(NamedTuple):
    """One unparsed entry of a registry, for :func:`parse_item`."""

    label: str
    """Name for messages: ``entry 3``, ``entry 'com.example.x'``."""
    data: memoryview | bytes
    """JSON of the entry; usually a view into the registry's bytes."""
    key: str = ""
    """Id of the entry, if the registry is a map keyed by id; else empty."""


@dataclass(frozen=True, slots=True)
class Body:
    """A registry split into its entries."""

    updated: str
    """Value of the ``updated`` field as written; empty if missing."""
    items: Iterator[Item]
    """The entries; the iterator may raise :class:`~mcpd.errors.InvalidManifest`."""
    fault: str = ""
    """Message about an invalid :attr:`updated`; empty if it is valid."""


@dataclass(frozen=True, slots=True)
class Registry:
    """The usable entries of a registry, and its faults."""

    updated: str
    servers: list[Entry] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    """Faults of entries that were left out, and minor faults of usable entries (such as a missing ``summary``)."""


class _File(msgspec.Struct):
    """The outermost object of a registry, whose members are parsed later."""

    servers: msgspec.Raw
    updated: msgspec.Raw = msgspec.Raw(b"null")


_FILE: Final = msgspec.json.Decoder(_File)


def split(data: bytes, origin: str) -> Body:
    """Split the registry *data*, read from *origin* (a URL or path, for messages), without parsing its entries.

    In a page of the official registry, deleted and older versions are left out. Raises
    :class:`~mcpd.errors.InvalidManifest` if *data* is not a registry.
    """
    try:
        file = _FILE.decode(data)
    except msgspec.ValidationError:
        raise _no_registry(origin) from None
    except RecursionError:
        raise InvalidManifest(f"{origin}: nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidManifest(f"{origin}: not JSON: {error}") from error
    servers = memoryview(file.servers)
    if servers[0] not in b"[{":
        raise _no_registry(origin)
    if data.count(b"[") + data.count(b"{") > MAX_BRACKETS:
        raise InvalidManifest(f"{origin}: more than {MAX_BRACKETS} lists and objects")
    updated = _line(_scalar(file.updated))
    return Body(updated, _items(servers, origin), _fault_of(updated, file.updated, origin))


def parse_item(label: str, data: memoryview | bytes, origin: str, key: str = "") -> Entry:
    """Return the entry whose JSON is *data*, in any known format.

    *label*, *data* and *key* are those of an :class:`Item`. Raises :class:`~mcpd.errors.InvalidManifest` that names
    *origin*, *label*, the field and the fault.
    """
    where = f"{origin}: {label}"
    if len(key) > MAX_KEY:
        raise InvalidManifest(f"{where}: its key has {len(key)} characters; at most {MAX_KEY} are allowed")
    return _parse_entry(decoded(data, where), where, key, is_plain=is_plain_json(bytes(data)))


def decoded(data: memoryview | bytes, where: str) -> Any:
    """Decode the JSON of one entry. Raises :class:`~mcpd.errors.InvalidManifest`, which begins with *where*."""
    if len(data) > MAX_ENTRY:
        raise InvalidManifest(f"{where}: {len(data)} bytes long; at most {MAX_ENTRY} are allowed")
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise InvalidManifest(f"{where}: nested too deeply") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidManifest(f"{where}: not JSON: {error}") from error


def shortcomings(entry: Entry) -> list[str]:
    """Return phrases such as ``has no summary`` for fields that the format requires and *entry* lacks.

    Summaries and bundles may omit the fields of a listing, because their manifests can provide these.
    """
    found: list[str] = []
    missing = [name for name in _REQUIRED if name not in entry.model_fields_set or not getattr(entry, name)]
    is_bundle = entry.source is not None and entry.source.type is SourceType.MCPB
    if missing and not entry.manifest and not is_bundle:
        found.append(f"has no {', '.join(missing)}")
    if entry.stdio is not None and entry.source is None:
        found.append("has a stdio transport but no source")
    return found


def parse_registry(document: object, origin: str) -> Registry:
    """Parse the decoded registry *document* from *origin* (a URL or path, for messages).

    An invalid entry is reported as a problem; the others are kept. Raises :class:`~mcpd.errors.InvalidManifest` if
    *document* is not a registry.
    """
    if not isinstance(document, dict) or not isinstance(document.get("servers"), (list, dict)):
        raise _no_registry(origin)
    registry = Registry(_line(document.get("updated")))
    seen: set[str] = set()
    for label, raw, key in _labelled(document["servers"]):
        if _superseded(raw):
            continue
        try:
            entry = _parse_entry(raw, f"{origin}: {label}", key)
        except InvalidManifest as error:
            registry.problems.append(Problem(origin, printable(key or _name(raw)) or label, error.message))
            continue
        if entry.id in seen:
            taken = f"{origin}: {label}: another entry of this registry has the id {entry.id!r}"
            registry.problems.append(Problem(origin, entry.id, taken))
            continue
        seen.add(entry.id)
        registry.servers.append(entry)
        registry.problems.extend(Problem(origin, entry.id, f"{entry.id}: {lack}") for lack in shortcomings(entry))
    if registry.problems:
        _log.warning("%s: %d errors, first: %s", origin, len(registry.problems), registry.problems[0].message)
    return registry


def _no_registry(origin: str) -> InvalidManifest:
    return InvalidManifest(f"{origin}: not a registry: needs an object whose 'servers' is a list or a map of entries")


def _scalar(raw: msgspec.Raw) -> object:
    try:
        return msgspec.json.decode(raw, type=str | int | float | None)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _line(value: object) -> str:
    return printable(str(value)) if isinstance(value, (str, int, float)) else ""


def _fault_of(updated: str, raw: msgspec.Raw, origin: str) -> str:
    """Return a message if the time *updated*, whose JSON is *raw*, is invalid; else an empty string."""
    written = bytes(memoryview(raw)[:_SHOWN])
    if written == b"null" or parse_time(updated) is not None:
        return ""
    shown = printable(written.decode("utf-8", "replace"))
    return f"{origin}: updated: {shown} is not a time (2026-01-31T12:00:00Z), so older files cannot be detected"


def _labelled(servers: list[_T] | dict[str, _T]) -> Iterator[tuple[str, _T, str]]:
    found = enumerate(servers) if isinstance(servers, list) else servers.items()
    return ((_label(place), raw, place if isinstance(place, str) else "") for place, raw in found)


def _label(place: int | str) -> str:
    return f"entry {place}" if isinstance(place, int) else f"entry {printable(place)!r}"


class _VersionMetadata(msgspec.Struct):
    """Metadata of the official registry, next to a version's document or, in an older form, inside it."""

    meta: msgspec.Raw = msgspec.field(name="_meta", default=msgspec.Raw(b"{}"))
    status: msgspec.Raw = msgspec.Raw(b"null")


class _ItemMetadata(_VersionMetadata):
    server: _VersionMetadata | None = None


_ITEM_METADATA: Final = msgspec.json.Decoder(_ItemMetadata)


def _items(servers: memoryview, origin: str) -> Iterator[Item]:
    is_map, stray = servers[0] in b"{", 0
    for number, (key, data) in enumerate(elements(servers)):
        if data[0] not in b"{":
            stray += 1
            if stray > _MAX_STRAY:
                raise InvalidManifest(
                    f"{origin}: not a registry: more than {_MAX_STRAY} of its entries are not objects"
                )
        elif not key and len(data) <= MAX_ENTRY and _superseded(_item_metadata(data)):
            continue
        yield Item(_label(key if is_map else number), data, key)


def _item_metadata(data: memoryview) -> object:
    try:
        metadata = _ITEM_METADATA.decode(data)
        return _decoded_metadata(metadata) | (
            {"server": _decoded_metadata(metadata.server)} if metadata.server is not None else {}
        )
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _decoded_metadata(metadata: _VersionMetadata) -> dict[str, Any]:
    return {"_meta": msgspec.json.decode(metadata.meta), "status": msgspec.json.decode(metadata.status)}


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """Status of one version of a server in the official registry."""

    deleted: bool = False
    is_latest: bool = True
    updated_at: str = ""
    """ISO 8601, as the registry has it."""


def version_status(item: dict[str, Any]) -> VersionStatus | None:
    """Return the status in *item* of the official registry, in its current or older form; None if it has none."""
    document = item.get("server", item)
    for held in (item, document):
        meta = held.get("_meta") if isinstance(held, dict) else None
        official = meta.get(_OFFICIAL) if isinstance(meta, dict) else None
        if isinstance(official, dict) and official:
            break
    else:
        return None
    status = official.get("status", document.get("status") if isinstance(document, dict) else None)
    is_latest = official.get("isLatest", official.get("is_latest"))
    updated_at = official.get("updatedAt", official.get("updated_at"))
    return VersionStatus(status == "deleted", is_latest is not False, updated_at if isinstance(updated_at, str) else "")


def _superseded(raw: object) -> bool:
    """Return whether *raw* is an item of the official registry that is deleted or not the latest version."""
    status = version_status(raw) if isinstance(raw, dict) else None
    return status is not None and (status.deleted or not status.is_latest)


def _name(raw: object) -> str:
    name = raw.get("id", raw.get("name")) if isinstance(raw, dict) else None
    return name if isinstance(name, str) else ""


def _parse_entry(raw: object, where: str, key: str, *, is_plain: bool = False) -> Entry:
    published = isinstance(raw, dict) and isinstance(raw.get("server"), dict)
    if isinstance(raw, dict) and published:
        raw = raw["server"]
    if not isinstance(raw, dict):
        raise InvalidManifest(f"{where}: not an object")
    try:
        if server_json.is_server_json(raw):
            return server_json.entry_of(raw, where, published=published)
        return seed_entry(raw, where, key, is_plain=is_plain)
    except InvalidManifest as error:
        name = printable(_name(raw))
        if not name or not error.message.startswith(where):
            raise
        raise InvalidManifest(f"{where} ({name}){error.message.removeprefix(where)}") from error


MAX_ITEMS: Final = 1000
"""Maximum number of items of one page."""
_MAX_CURSOR: Final = 4096


@dataclass(frozen=True, slots=True)
class OfficialItem:
    """One version of one server in a page of the official registry."""

    name: str
    """Name of the server in the registry; empty if unknown."""
    deleted: bool
    is_latest: bool
    updated_at: str
    """ISO 8601, as the registry has it."""
    entry: Entry | None
    """None for versions that are deleted, not the latest, or faulty."""
    problem: str
    """Message that names the origin, item, field and fault; empty if the item is valid."""


class _Metadata(msgspec.Struct):
    camel: str | None = msgspec.field(default=None, name="nextCursor")
    snake: str | None = msgspec.field(default=None, name="next_cursor")


class _Page(msgspec.Struct):
    servers: msgspec.Raw
    metadata: _Metadata | None = None


_PAGE: Final = msgspec.json.Decoder(_Page)


def parse_page(data: bytes, origin: str) -> list[OfficialItem]:
    """Return the items of the page *data*, fetched from *origin*; faulty items have a :attr:`~OfficialItem.problem`.

    Raises :class:`~mcpd.errors.InvalidManifest` if *data* is not a page, or has more than :data:`MAX_ITEMS` items.
    """
    servers = memoryview(_page(data, origin).servers)
    if servers[0] in b"n":  # null
        return []
    found = list(islice(elements(servers), MAX_ITEMS + 1)) if servers[0] in b"[" else None
    if found is None or len(found) > MAX_ITEMS:
        raise InvalidManifest(f"{origin}: not a page of a registry: servers: not a list of at most {MAX_ITEMS} items")
    return [_item(raw, f"{origin}: item {number}") for number, (_, raw) in enumerate(found)]


def next_cursor(data: bytes, origin: str) -> str:
    """Return the cursor in the page *data*, fetched from *origin*, without parsing items; empty on the last page.

    Raises :class:`~mcpd.errors.InvalidManifest` if *data* is not a page, or the cursor is too long.
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


def _item(raw: memoryview, where: str) -> OfficialItem:
    try:
        item = decoded(raw, where)
    except InvalidManifest as error:
        return OfficialItem("", deleted=False, is_latest=True, updated_at="", entry=None, problem=error.message)
    document = item.get("server", item) if isinstance(item, dict) else None
    if not isinstance(item, dict) or not isinstance(document, dict):
        fault = f"{where}: not an object with 'server'"
        return OfficialItem("", deleted=False, is_latest=True, updated_at="", entry=None, problem=fault)
    status = version_status(item) or VersionStatus(deleted=document.get("status") == "deleted")
    name = _text(document.get("name"))
    named = f"{where}: {printable(name)!r}" if name else where
    entry, problem = None, ""
    if status.is_latest and not status.deleted:
        try:
            entry = server_json.entry_of(document, named, published=True)
        except InvalidManifest as error:
            problem = error.message
    return OfficialItem(name, status.deleted, status.is_latest, status.updated_at, entry, problem)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
