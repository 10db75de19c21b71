# SPDX-License-Identifier: LGPL-2.1-or-later
"""The interface Server, and the listing of all installed servers, kept in step with the store."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mcpd.bus import codec
from mcpd.bus.codec import Variant
from mcpd.bus.names import ROOT, SERVER, server_path
from mcpd.catalog.listing import describe, text, texts
from mcpd.errors import NotFound
from mcpd.store.config import origin_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.bus.codec import Raw
    from mcpd.bus.core import Core
    from mcpd.bus.object_manager import Objects
    from mcpd.install.updates import Update
    from mcpd.model import ConfigProperty, JsonValue, Manifest
    from mcpd.store import InstalledServer

KEYS: Final[Mapping[str, str]] = {
    "id": "s", "name": "s", "summary": "s", "description": "s", "version": "s", "available-version": "s",
    "scope": "s", "state": "s", "problem": "s", "origin": "s", "author": "s", "homepage": "s", "bug-url": "s",
    "donation-url": "s", "icon": "s", "licenses": "as", "categories": "as", "size": "t", "release-date": "s",
    "changelog": "s", "screenshots": "as", "transports": "aa{sv}", "permissions": "as", "sandboxed": "b",
    "configured": "b", "pinned": "b", "installable": "b", "verified": "b", "pending-version": "s", "sharing": "s",
    "run-as": "s",
}  # fmt: skip
"""Every key that describes a server, with its type."""
ALWAYS: Final = frozenset({"id", "name", "summary", "version", "scope", "state"})
_EMPTY: Final[Mapping[str, object]] = {"s": "", "as": [], "t": 0, "aa{sv}": [], "b": False}


def property_name(key: str) -> str:
    """The property of the interface Server that *key* is: ``bug-url`` is ``BugUrl``."""
    return "".join(part.capitalize() for part in key.split("-"))


PROPERTIES: Final = {key: property_name(key) for key in KEYS}


@dataclass(frozen=True, slots=True)
class Record:
    """One server, ready for the bus."""

    values: Mapping[str, Any]
    """By key; without what is empty, unless it is always there."""
    raw: Raw
    """:attr:`values` as the elements of an ``a{sv}``."""

    @classmethod
    def make(cls, found: Mapping[str, object]) -> Record:
        """The record that says *found*."""
        values = {
            key: value
            for key in KEYS
            if (value := found.get(key)) is not None and (value or value is False or key in ALWAYS)
        }
        return cls(values, codec.entries({key: (KEYS[key], value) for key, value in values.items()}))

    def variants(self) -> dict[str, Variant]:
        """:attr:`values` with their types."""
        return {key: Variant(KEYS[key], value) for key, value in self.values.items()}

    def properties(self) -> dict[str, Variant]:
        """All properties of the interface Server."""
        return {
            PROPERTIES[key]: Variant(signature, self.values.get(key, _EMPTY[signature]))
            for key, signature in KEYS.items()
        }


def installed_record(server: InstalledServer, *, update: Update | None, sandboxed: bool) -> Record:
    """The record of an installed *server*; *update* is what a registry has newer."""
    found: dict[str, object] = {"id": text(server.id), "name": text(server.id), "summary": "", "version": ""}
    if server.manifest is not None:
        fields = describe(server.manifest)
        found |= fields | {"transports": _transports(fields)}
        origin = origin_of(server.manifest)
        found |= {"verified": bool(origin.get("verified")), "pinned": origin.get("pinned") is True}
        found["sharing"] = server.manifest.runtime.sharing
        found["run-as"] = server.manifest.runtime.run_as
    said = {"summary": text(server.entry.summary), "description": text(server.entry.description)}
    found |= {key: value for key, value in said.items() if value}
    found |= {
        "id": text(server.id),
        "scope": str(server.scope),
        "state": _state(server, update),
        "problem": text(server.problem or server.entry.problem or server.clash),
        "available-version": text(update.version if update else ""),
        "sandboxed": sandboxed,
        "configured": server.configured,
        "installable": True,
        "pending-version": pending_version(server),
    }
    return Record.make(found)


def details(server: InstalledServer) -> dict[str, Variant]:
    """What GetServer says of *server* beside the keys of a listing: how it is run, and what can be configured."""
    manifest = server.manifest
    if manifest is None:
        return {}
    limits = {"call-timeout": manifest.runtime.call_timeout, "idle-timeout": manifest.runtime.idle_timeout}
    found = {key: Variant("d", seconds) for key, seconds in limits.items() if seconds is not None}
    if server.entry.policy:
        found["policy"] = Variant("s", text(server.entry.policy))
    found["digest"] = Variant("s", _digest(server, manifest))
    if key := origin_of(manifest).get("verified"):
        found["signed-by"] = Variant("s", text(str(key)))
    protocols = _protocols(server)
    if protocols is not None:
        found["protocols"] = Variant("as", protocols)
    if manifest.configurable_properties:
        found["configurable-properties"] = Variant("aa{sv}", [property_of(p) for p in manifest.configurable_properties])
    return found


def _digest(server: InstalledServer, manifest: Manifest) -> str:
    """What is another one whenever a fresh process of *server* may differ from one that runs."""
    entry = server.entry
    # The last part of a signature is the time of the look as long as the file is too new to be told from the next.
    values = [found and found[:3] for found in server.values]
    said = (str(server.generation), values, entry.disabled, entry.policy, manifest.model_dump_json())
    return hashlib.blake2b(repr(said).encode("utf-8", "replace"), digest_size=16).hexdigest()


def _protocols(server: InstalledServer) -> list[str] | None:
    """The eras of MCP that *server* was found to speak when it was installed; ``None`` if nobody has tried."""
    if server.script is not None:
        return ["handshake", "modern"]
    from mcpd.install.lockfile import read_lock  # noqa: PLC0415 -- installing is not needed to list

    found = read_lock(server.generation).get("protocol")
    if not isinstance(found, Mapping):
        return None
    return [era for era in ("handshake", "modern") if found.get(era)]


def property_of(prop: ConfigProperty) -> dict[str, Variant]:
    """A configurable property as GetServer and GetAvailable give it."""
    texts_of = {"label": prop.label, "description": prop.description, "type": prop.type}
    known: dict[str, JsonValue] = {key: text(value) for key, value in texts_of.items() if value}
    if not prop.sensitive:
        known["default"] = prop.default
    return plain({"key": prop.key, "sensitive": prop.sensitive, "required": prop.required, **known})


def available_record(
    fields: Mapping[str, Any], *, verified: bool, scope: str, installed: InstalledServer | None, newer: bool
) -> Record:
    """The record of what a registry offers: *fields* as :func:`mcpd.catalog.listing.describe` gives them.

    Of what is *installed* its version and trust are shown, as the state is about that.
    """
    state = "available" if installed is None else "updatable" if newer else "installed"
    found: dict[str, object] = {**fields, "state": state, "verified": verified}
    if not found.get("scope"):
        found["scope"] = scope
    elif installed is None and scope != found["scope"] and found["installable"]:
        where = f"install it there with 'mcpctl --system install {found['id']}'"
        found |= {"installable": False, "problem": f"it is a server for the whole system; {where}"}
    found["transports"] = _transports(fields)
    if installed is not None:
        found["scope"] = str(installed.scope)
        found["configured"] = installed.configured
        found["pending-version"] = pending_version(installed)
        if installed.manifest is not None:
            found |= {"available-version": fields.get("version", ""), "version": text(installed.manifest.version)}
            origin = origin_of(installed.manifest)
            found |= {"pinned": origin.get("pinned") is True, "verified": bool(origin.get("verified"))}
    return Record.make(found)


def _transports(fields: Mapping[str, Any]) -> list[Raw]:
    return [
        codec.entries({key: ("s" if isinstance(value, str) else "as", value) for key, value in transport.items()})
        for transport in fields.get("transports", ())
    ]


def pending_version(server: InstalledServer) -> str:
    """The version of the update of *server* that waits for approval, in words where it has none; empty if none waits.

    Whoever shows it tells by it that there is one.
    """
    return text(server.pending) or (f"generation {server.pending_generation}" if server.pending_generation else "")


def _state(server: InstalledServer, update: Update | None) -> str:
    if server.manifest is None or server.problem:
        return "broken"
    if server.entry.disabled or (server.manifest.model_extra or {}).get("disabled") is True:
        return "disabled"
    return "updatable" if update is not None else "installed"


def plain(values: Mapping[str, JsonValue]) -> dict[str, Variant]:
    """JSON *values* as an ``a{sv}``; those that are null are left out, D-Bus has no word for them."""
    return {text(key): found for key, value in values.items() if (found := _variant(value)) is not None}


def _variant(value: Any) -> Variant | None:
    if isinstance(value, Mapping):
        return Variant("a{sv}", plain(value))
    if isinstance(value, list) and not all(isinstance(item, str) for item in value):
        return Variant("av", [found for item in value if (found := _variant(item)) is not None])
    if isinstance(value, list):
        return Variant("as", texts(value))
    if isinstance(value, str) or (isinstance(value, int) and not -(1 << 63) <= value < 1 << 64):
        return Variant("s", text(value))
    return None if value is None else codec.variant(value)


def matcher(wanted: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a record's values fit the filter *wanted* of ListServers; unknown keys are ignored."""
    words = text(wanted.get("text", "")).lower().split()
    category = wanted.get("category")
    equal = {
        key: set(value) if isinstance(value, list) else {value}
        for key, value in wanted.items()
        if KEYS.get(key) in ("s", "b")
    }

    def matches(values: Mapping[str, Any]) -> bool:
        if any(values.get(key, _EMPTY[KEYS[key]]) not in choice for key, choice in equal.items()):
            return False
        if category is not None and category not in values.get("categories", ()):
            return False
        shown = " ".join(str(values.get(key, "")) for key in ("id", "name", "summary", "description")).lower()
        return all(word in shown for word in words)

    return matches


log = logging.getLogger(__name__)


@dataclass(slots=True)
class ServerObject:
    """An installed server on the bus."""

    server: InstalledServer
    update: Update | None
    record: Record
    interface: str = SERVER

    def properties(self) -> Mapping[str, Variant]:
        """Every property of the interface."""
        return self.record.properties()


class Servers:
    """The installed servers as last seen. Whoever lists them brings the objects up to date first."""

    def __init__(self, core: Core, objects: Objects) -> None:
        self._core = core
        self._objects = objects
        self._known: dict[str, ServerObject] = {}
        self._looked = False

    def __len__(self) -> int:
        return len(self._known)

    async def looked(self) -> tuple[int, int]:
        """Have the store look at what anybody may edit, in a thread, as new scripts are read; see its ``edits``.

        Raises :class:`~mcpd.errors.McpdError`.
        """
        return await asyncio.to_thread(self._core.store.edits)

    def sync(self) -> list[Record]:
        """Read the store, signal what is different, and return all records sorted by id.

        Of what anybody may edit it is what :meth:`looked` saw last.
        """
        newer = self._core.newer
        found = {server.id: server for server in self._core.store.list(edits=False)}
        gone = [known for known in self._known if known not in found]
        for server_id in gone:
            del self._known[server_id]
            self._objects.remove(server_path(server_id))
        changed = [self._update(server, newer.get(server_id)) for server_id, server in found.items()]
        # What is there when the first look is taken is no change.
        if self._looked and (gone or any(changed)):
            self._objects.emit(ROOT, "CatalogChanged")
        self._looked = True
        return [self._known[server_id].record for server_id in found]

    def get(self, server_id: str) -> ServerObject:
        """The server *server_id*, up to date. Raises :class:`~mcpd.errors.NotFound`."""
        self.sync()
        if server_id not in self._known:
            raise NotFound(f"no server {server_id!r} is installed; 'mcpctl list' names those that are")
        return self._known[server_id]

    def installed(self) -> Mapping[str, InstalledServer]:
        """The servers as the store has them, by id, as of the last look."""
        return {server_id: known.server for server_id, known in self._known.items()}

    def _update(self, server: InstalledServer, update: Update | None) -> bool:
        """Whether anything about it is otherwise than before, or a process of it may be another one."""
        known = self._known.get(server.id)
        sandboxed = self._core.settings.runtime.sandbox == "on"
        # The store gives the same object as long as nothing about a server has changed.
        if (
            known is not None
            and known.server is server
            and (known.update, known.record.values["sandboxed"]) == (update, sandboxed)
        ):
            return False
        record = installed_record(server, update=update, sandboxed=sandboxed)
        if known is None:
            self._known[server.id] = added = ServerObject(server, update, record)
            self._objects.add(server_path(server.id), added)
            return True
        before, known.record = known.record.values, record
        known.server, known.update = server, update
        self._objects.changed(server_path(server.id), _different(before, record.values), urgent=True)
        return True


def _different(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [name for key, name in PROPERTIES.items() if before.get(key) != after.get(key)]
