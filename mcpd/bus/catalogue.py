# SPDX-License-Identifier: LGPL-2.1-or-later
"""The methods of Manager about what could be installed: registries, their entries, and the keys that vouch for them."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mcpd.bus.dispatcher import Row
from mcpd.bus.names import MANAGER
from mcpd.bus.options import flag, option
from mcpd.bus.records import Record, available_record, property_of
from mcpd.bus.wire import Variant
from mcpd.catalog.listing import describe, text
from mcpd.errors import NotFound
from mcpd.trust.keys import fingerprint_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.bus.caller import Call
    from mcpd.bus.manager import Manager
    from mcpd.bus.wire import Raw
    from mcpd.catalog import Listing, Query
    from mcpd.store import InstalledServer

MAX_PAGE: Final = 500
DEFAULT_PAGE: Final = 100
MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a page of entries, which then has fewer of them: a bus throws out who sends more than it carries."""
_KEPT_RECORDS: Final = 2048
_MAX_KEPT: Final = 8 * 1024
"""Bytes of a record that is kept: few are longer, and they would be most of what is."""
_records: Final[dict[tuple[bytes, bool, str], Record]] = {}
"""Of what is not installed, for which they are the same whoever asks; the one used last is the last."""
_SOURCE_KEYS: Final = ("type", "url", "path", "package", "version", "rev", "sha256")


async def list_available(manager: Manager, call: Call, wanted: Mapping[str, Any], cursor: str) -> tuple[list[Raw], str]:
    """``ListAvailable``."""
    limit = min(max(option(wanted, "limit", int, DEFAULT_PAGE), 1), MAX_PAGE)
    query = _query(manager, wanted)
    await manager.core.stocked()
    while True:
        found, following = await manager.core.in_turn(
            call.uid, partial(manager.core.catalog.query, query, cursor, limit)
        )
        records: list[Raw] = []
        size = 0
        for listing in found:
            raw = _record(manager, listing).raw
            size += len(raw)
            if size > MAX_PAGE_BYTES and records:
                break
            records.append(raw)
        if len(records) == len(found):
            return records, following
        limit = len(records)


def _query(manager: Manager, wanted: Mapping[str, Any]) -> Query:
    from mcpd.catalog import Query  # noqa: PLC0415 -- with SQLite, which is not needed to start

    installed, newer = flag(wanted, "installed"), flag(wanted, "updatable")
    without = manager.installed_ids() if installed is False else frozenset()
    if newer is False:
        without |= manager.core.newer.keys()
    return Query(
        text=option(wanted, "text", str, ""),
        category=option(wanted, "category", str, ""),
        source=option(wanted, "source", str, ""),
        installable=flag(wanted, "installable"),
        only=manager.installed_ids() if installed else None,
        without=without,
        offers=frozenset((key, update.registry) for key, update in manager.core.newer.items()) if newer else None,
    )


def _record(manager: Manager, listing: Listing) -> Record:
    installed = _installed(manager, listing.id)
    if installed is not None:
        return _offered(manager, listing.fields, listing.origin, installed, verified=listing.verified)
    key = (listing.stamp, listing.verified, str(manager.core.scope))
    record = _records.pop(key, None)
    if record is None:
        record = _offered(manager, listing.fields, listing.origin, None, verified=listing.verified)
    if len(record.raw) <= _MAX_KEPT:
        if len(_records) >= _KEPT_RECORDS:
            del _records[next(iter(_records))]
        _records[key] = record
    return record


def _installed(manager: Manager, server_id: str) -> InstalledServer | None:
    # A script is no installation of what a registry offers under its id: that can be installed still, and wins.
    server = manager.servers.installed().get(server_id)
    return server if server is not None and server.script is None else None


def _offered(
    manager: Manager, fields: Mapping[str, Any], origin: str, installed: InstalledServer | None, *, verified: bool
) -> Record:
    """The record of what the registry *origin* offers; *installed* is updated from the one it came from alone."""
    update = manager.core.newer.get(installed.id) if installed is not None else None
    newer = update is not None and update.registry == origin
    if installed is not None and installed.manifest is not None:
        from mcpd.install.updates import recorded_registry  # noqa: PLC0415 -- not needed to start

        if recorded_registry(installed.manifest) not in (None, origin):
            fields = {key: value for key, value in fields.items() if key != "version"}
    return available_record(fields, verified=verified, scope=str(manager.core.scope), installed=installed, newer=newer)


async def get_available(
    manager: Manager, _call: Call, server_id: str, options: Mapping[str, Any]
) -> dict[str, Variant]:
    """``GetAvailable``."""
    await manager.core.stocked()
    catalog, source = manager.core.catalog, option(options, "source", str, "")
    found = await asyncio.to_thread(catalog.find, server_id, source)
    others = await asyncio.to_thread(catalog.offers, [server_id])
    fields = describe(found.entry, found.origin) | {"origin": found.origin}
    record = _offered(manager, fields, found.origin, _installed(manager, server_id), verified=found.verified)
    entry = found.entry
    shown = record.variants()
    also = [other.origin for other in others.get(server_id, ()) if other.origin != found.origin]
    if entry.source is not None:
        known = {key: text(getattr(entry.source, key)) for key in _SOURCE_KEYS}
        shown["source"] = Variant("a{sv}", {key: Variant("s", value) for key, value in known.items() if value})
    if found.signer:
        shown["signed-by"] = Variant("s", text(found.signer))
    if also:
        shown["also-from"] = Variant("as", [text(origin) for origin in also])
    if entry.configurable_properties:
        shown["configurable-properties"] = Variant("aa{sv}", [property_of(p) for p in entry.configurable_properties])
    return shown


async def get_icon(manager: Manager, call: Call, server_id: str, _options: Mapping[str, Any]) -> tuple[int, str]:
    """``GetIcon``."""
    url, registry = await asyncio.to_thread(_icon_of, manager, server_id)
    if "://" not in url:
        named = f"; {text(url)!r} is a name of the icon theme" if url else ""
        raise NotFound(f"server {text(server_id)!r} has no icon of its own{named}")
    await manager.icons.enter(call.uid)
    try:
        icon = await manager.core.catalog.icon(url, registry)
    finally:
        manager.icons.leave(call.uid)
    image = os.memfd_create("icon", os.MFD_CLOEXEC)
    index = call.ends.add(image)
    os.write(image, icon.data)
    os.lseek(image, 0, os.SEEK_SET)
    return index, icon.media_type


def _icon_of(manager: Manager, server_id: str) -> tuple[str, str]:
    """The icon of a server, and the registry that names it."""
    from mcpd.install.updates import recorded_registry  # noqa: PLC0415 -- not needed to start

    server: InstalledServer | None = manager.servers.installed().get(server_id)
    if server is not None and server.manifest is not None:
        return server.manifest.icon, recorded_registry(server.manifest) or ""
    found = manager.core.catalog.find(server_id)
    return found.entry.icon, found.origin


async def list_sources(manager: Manager, _call: Call) -> list[dict[str, Variant]]:
    """``ListSources``."""
    return [
        {
            "url": Variant("s", text(source.url)),
            "file": Variant("s", text(source.origin)),
            "scope": Variant("s", str(source.scope)),
            "type": Variant("s", source.type),
            "state": Variant("s", text(source.state)),
            "problem": Variant("s", text(source.problem)),
            "read-only": Variant("b", source.read_only),
            "updated": Variant("t", max(0, int(source.updated))),
            "entries": Variant("u", source.entries),
            "faults": Variant("as", [text(fault) for fault in source.faults]),
            "signature": Variant("s", source.signature),
            "key": Variant("s", text(source.key)),
            "signed-by": Variant("s", text(source.signed_by)),
        }
        for source in await asyncio.to_thread(manager.core.catalog.sources)
    ]


async def add_source(manager: Manager, _call: Call, url: str, options: Mapping[str, Any]) -> None:
    """``AddSource``."""
    said = {key: option(options, key, str, "") for key in ("name", "type", "signature", "key")}
    await asyncio.to_thread(lambda: manager.core.catalog.add_source(url, **said))
    manager.sources_changed()


async def remove_source(manager: Manager, _call: Call, url: str, _options: Mapping[str, Any]) -> None:
    """``RemoveSource``."""
    await asyncio.to_thread(manager.core.catalog.remove_source, url)
    manager.sources_changed()


async def list_keys(manager: Manager, _call: Call) -> list[dict[str, Variant]]:
    """``ListKeys``."""
    return [
        {
            "name": Variant("s", key.name),
            "fingerprint": Variant("s", key.fingerprint),
            "file": Variant("s", text(key.file)),
            "scope": Variant("s", str(key.scope)),
            "read-only": Variant("b", key.read_only),
        }
        for key in await asyncio.to_thread(manager.core.keys.list)
    ]


async def add_key(manager: Manager, _call: Call, name: str, pem: str, _options: Mapping[str, Any]) -> None:
    """``AddKey``."""
    await asyncio.to_thread(manager.core.keys.add, name, pem)
    manager.catalog_changed()


async def remove_key(manager: Manager, _call: Call, name: str, _options: Mapping[str, Any]) -> None:
    """``RemoveKey``."""
    await asyncio.to_thread(manager.core.keys.remove, name)
    manager.catalog_changed()


def _url_details(_target: Manager, _call: Call, url: str, *args: Any) -> dict[str, str]:
    said = args[-1] if args and isinstance(args[-1], dict) else {}
    known = {key: text(said[key]) for key in ("type", "signature", "key") if isinstance(said.get(key), str)}
    return {"source": text(url), **known}


def _key_details(_target: Manager, _call: Call, name: str, *_args: object) -> dict[str, str]:
    return {"key": text(name)}


async def _new_key_details(_target: Manager, _call: Call, name: str, pem: str, *_args: object) -> dict[str, str]:
    found = await asyncio.to_thread(fingerprint_of, pem)
    return {"key": text(name)} | ({"fingerprint": found} if found else {})


METHODS: Final = {
    (MANAGER, "ListAvailable"): Row(list_available, changes=False),
    (MANAGER, "GetAvailable"): Row(get_available, changes=False),
    (MANAGER, "GetIcon"): Row(get_icon, changes=False),
    (MANAGER, "ListSources"): Row(list_sources, changes=False),
    (MANAGER, "AddSource"): Row(add_source, "manage-sources", _url_details, changes=True),
    (MANAGER, "RemoveSource"): Row(remove_source, "manage-sources", _url_details, changes=True),
    (MANAGER, "ListKeys"): Row(list_keys, changes=False),
    (MANAGER, "AddKey"): Row(add_key, "manage-sources", _new_key_details, changes=True),
    (MANAGER, "RemoveKey"): Row(remove_key, "manage-sources", _key_details, changes=True),
}
