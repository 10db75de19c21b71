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


def moment(text: str) -> datetime | None:
    """The time that *text* names in ISO 8601, in UTC, which is meant where no zone is; None if it is none."""
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


_TEXT: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_STRING: Final = re.compile(_TEXT, re.DOTALL)
_BRACKET: Final = re.compile(rb'[^"\[\]{}]*+(?:' + _TEXT + rb'[^"\[\]{}]*+)*+[\[\]{}]', re.DOTALL)
"""All up to the next bracket that is not in a text, and that."""
_SCALAR: Final = re.compile(rb"[^\s,\]}]++")
_SPACE: Final = re.compile(rb"\s*+")
_COLON: Final = re.compile(rb"\s*+:\s*+")


def elements(data: memoryview) -> Iterator[tuple[str, memoryview]]:
    """The key (empty in a list) and the JSON of each element of *data*: a list or a map, known to be whole.

    Whoever stops early pays for no more: a few bytes of gzip are millions of elements.
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
    """Where the value that begins at *start* ends."""
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
        raise ValueError(f"no JSON at byte {position}")
    return found.end()


def _key(data: memoryview) -> str:
    try:
        return msgspec.json.decode(data, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # It becomes no id, and is named like that.
        return bytes(data[1:-1]).decode("utf-8", "backslashreplace")


_T = TypeVar("_T")
_log = logging.getLogger(__name__)

MAX_ENTRY: Final = 256 * 1024
"""Bytes of one entry."""
MAX_KEY: Final = 1000
"""Characters of the key of one, in a map."""
MAX_BRACKETS: Final = 4_000_000
"""Lists and objects of one registry, ten times what 20,000 entries have; looking for their ends takes a while."""
_MAX_STRAY: Final = 1000
"""Entries of one registry that may be no objects."""
_SHOWN: Final = 40
"""Bytes of a wrong value that are shown."""
_REQUIRED: Final = ("name", "summary", "version")
_OFFICIAL: Final = "io.modelcontextprotocol.registry/official"


class Item(NamedTuple):
    """One entry of a registry, not parsed yet: what :func:`parse_item` takes."""

    label: str
    """For messages: ``entry 3``, ``entry 'com.example.x'``."""
    data: memoryview | bytes
    """The entry's JSON; a view into the registry where that was bytes."""
    key: str = ""
    """The id, where the registry is a map of ids."""


@dataclass(frozen=True, slots=True)
class Body:
    """A registry split into its entries."""

    updated: str
    """As it is written; empty if there is none."""
    items: Iterator[Item]
    """To be gone through once, which may raise :class:`~mcpd.errors.InvalidManifest`."""
    fault: str = ""
    """What is wrong with :attr:`updated`."""


@dataclass(frozen=True, slots=True)
class Registry:
    """The usable entries of a registry, and what is wrong with it."""

    updated: str
    servers: list[Entry] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    """Entries left out, and faults of entries that are used all the same (a missing ``summary``)."""


class _File(msgspec.Struct):
    """The outermost object; what it holds is looked at piece by piece."""

    servers: msgspec.Raw
    updated: msgspec.Raw = msgspec.Raw(b"null")


_FILE: Final = msgspec.json.Decoder(_File)


def split(data: bytes, origin: str) -> Body:
    """Split the registry *data*, read from *origin* (a URL or path, for messages), without parsing its entries.

    Of a page of the official registry, what is deleted or not the latest version is left out. Raises
    :class:`~mcpd.errors.InvalidManifest` if *data* is no registry at all.
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
    """The entry whose JSON is *data*, of any shape that is known.

    *label*, *data* and *key* are an :class:`Item`'s. Raises :class:`~mcpd.errors.InvalidManifest` that names
    *origin*, *label*, the field and the fault.
    """
    where = f"{origin}: {label}"
    if len(key) > MAX_KEY:
        raise InvalidManifest(f"{where}: its key has {len(key)} characters; it may have {MAX_KEY}")
    return _parse_entry(decoded(data, where), where, key, is_plain=is_plain_json(bytes(data)))


def decoded(data: memoryview | bytes, where: str) -> Any:
    """The JSON of one entry. Raises :class:`~mcpd.errors.InvalidManifest`, which begins with *where*."""
    if len(data) > MAX_ENTRY:
        raise InvalidManifest(f"{where}: {len(data)} bytes long; an entry may have {MAX_ENTRY}")
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise InvalidManifest(f"{where}: nested too deeply") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidManifest(f"{where}: not JSON: {error}") from error


def shortcomings(entry: Entry) -> list[str]:
    """Return what *entry* lacks of what the format requires of an entry of a registry, as predicates.

    The fields of a listing may be left to the manifest that a summary names, and to that of a bundle.
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
    """Read the registry *document*, decoded already, which came from *origin* (a URL or path, for messages).

    A faulty entry becomes a problem and the others stay. Raises :class:`~mcpd.errors.InvalidManifest` if
    *document* is no registry at all.
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
        _log.warning("%s: %d faults, first: %s", origin, len(registry.problems), registry.problems[0].message)
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
    """What is wrong with *updated*, written as *raw*."""
    written = bytes(memoryview(raw)[:_SHOWN])
    if written == b"null" or moment(updated) is not None:
        return ""
    shown = printable(written.decode("utf-8", "replace"))
    return f"{origin}: updated: {shown} is no time (2026-01-31T12:00:00Z), so an older file could not be told"


def _labelled(servers: list[_T] | dict[str, _T]) -> Iterator[tuple[str, _T, str]]:
    found = enumerate(servers) if isinstance(servers, list) else servers.items()
    return ((_label(place), raw, place if isinstance(place, str) else "") for place, raw in found)


def _label(place: int | str) -> str:
    return f"entry {place}" if isinstance(place, int) else f"entry {printable(place)!r}"


class _Marked(msgspec.Struct):
    """What the official registry says of a version beside, or in former times in, its document."""

    meta: msgspec.Raw = msgspec.field(name="_meta", default=msgspec.Raw(b"{}"))
    status: msgspec.Raw = msgspec.Raw(b"null")


class _Marks(_Marked):
    server: _Marked | None = None


_MARKS: Final = msgspec.json.Decoder(_Marks)


def _items(servers: memoryview, origin: str) -> Iterator[Item]:
    is_map, stray = servers[0] in b"{", 0
    for number, (key, data) in enumerate(elements(servers)):
        if data[0] not in b"{":
            stray += 1
            if stray > _MAX_STRAY:
                raise InvalidManifest(f"{origin}: not a registry: more than {_MAX_STRAY} of its entries are no objects")
        elif not key and len(data) <= MAX_ENTRY and _superseded(_marks(data)):
            continue
        yield Item(_label(key if is_map else number), data, key)


def _marks(data: memoryview) -> object:
    try:
        marks = _MARKS.decode(data)
        return _decoded_marks(marks) | ({"server": _decoded_marks(marks.server)} if marks.server is not None else {})
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _decoded_marks(marks: _Marked) -> dict[str, Any]:
    return {"_meta": msgspec.json.decode(marks.meta), "status": msgspec.json.decode(marks.status)}


@dataclass(frozen=True, slots=True)
class Standing:
    """What the official registry says of one version of a server."""

    deleted: bool = False
    is_latest: bool = True
    updated_at: str = ""
    """ISO 8601, as the registry has it."""


def standing_of(item: dict[str, Any]) -> Standing | None:
    """What the official registry says of *item*, today's or the older form; None if it says nothing."""
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
    return Standing(status == "deleted", is_latest is not False, updated_at if isinstance(updated_at, str) else "")


def _superseded(raw: object) -> bool:
    """Whether *raw* is an item of the official registry that is deleted or not the latest of its versions."""
    standing = standing_of(raw) if isinstance(raw, dict) else None
    return standing is not None and (standing.deleted or not standing.is_latest)


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
"""Items of one page."""
_MAX_CURSOR: Final = 4096


@dataclass(frozen=True, slots=True)
class OfficialItem:
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


def parse_page(data: bytes, origin: str) -> list[OfficialItem]:
    """The items of the page *data*, fetched from *origin*; a faulty one has a problem, and the others stay.

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


def _item(raw: memoryview, where: str) -> OfficialItem:
    try:
        item = decoded(raw, where)
    except InvalidManifest as error:
        return OfficialItem("", deleted=False, is_latest=True, updated_at="", entry=None, problem=error.message)
    document = item.get("server", item) if isinstance(item, dict) else None
    if not isinstance(item, dict) or not isinstance(document, dict):
        fault = f"{where}: not an object with 'server'"
        return OfficialItem("", deleted=False, is_latest=True, updated_at="", entry=None, problem=fault)
    standing = standing_of(item) or Standing(deleted=document.get("status") == "deleted")
    name = _text(document.get("name"))
    named = f"{where}: {printable(name)!r}" if name else where
    entry, problem = None, ""
    if standing.is_latest and not standing.deleted:
        try:
            entry = server_json.entry_of(document, named, published=True)
        except InvalidManifest as error:
            problem = error.message
    return OfficialItem(name, standing.deleted, standing.is_latest, standing.updated_at, entry, problem)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
