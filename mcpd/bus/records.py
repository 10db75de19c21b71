# SPDX-License-Identifier: LGPL-2.1-or-later
"""Descriptions of servers on the bus: the properties of the interface Server, and the dictionaries of the Manager."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mcpd.bus import codec, contract
from mcpd.bus.codec import Variant
from mcpd.bus.names import SERVER
from mcpd.catalog.listing import describe, text, texts
from mcpd.errors import InvalidArgument
from mcpd.store.config import origin_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.bus.codec import Raw
    from mcpd.install.updates import Update
    from mcpd.model import ConfigProperty, JsonValue, Manifest
    from mcpd.store import InstalledServer

PROPERTIES: Final = {
    re.sub("(?<!^)([A-Z])", r"-\1", name).lower(): declared
    for name, declared in contract.interfaces()[SERVER].properties.items()
}
"""The properties of the interface, by the key that stands for them in a dictionary: ``bug-url`` for ``BugUrl``."""
KEYS: Final[Mapping[str, str]] = {key: declared.signature for key, declared in PROPERTIES.items()}
"""The keys that describe a server, and their D-Bus types."""
ALWAYS: Final = frozenset({"id", "name", "summary", "version", "scope", "state"})
_EMPTY: Final[Mapping[str, object]] = {"s": "", "as": [], "t": 0, "aa{sv}": [], "b": False}


@dataclass(frozen=True, slots=True)
class Record:
    """The description of one server, ready for the bus."""

    values: Mapping[str, Any]
    """The values by key; empty values are left out unless their key is in :data:`ALWAYS`."""
    raw: Raw
    """:attr:`values` as the elements of an ``a{sv}``."""

    @classmethod
    def make(cls, found: Mapping[str, object]) -> Record:
        """Create a record of the values *found*."""
        values = {
            key: value
            for key in KEYS
            if (value := found.get(key)) is not None and (value or value is False or key in ALWAYS)
        }
        return cls(values, codec.entries({key: (KEYS[key], value) for key, value in values.items()}))

    def variants(self) -> dict[str, Variant]:
        """Return :attr:`values` as variants."""
        return {key: Variant(KEYS[key], value) for key, value in self.values.items()}

    def properties(self) -> dict[str, Variant]:
        """Return all properties of the interface Server."""
        return {
            declared.name: Variant(declared.signature, self.values.get(key, _EMPTY[declared.signature]))
            for key, declared in PROPERTIES.items()
        }


def installed_record(server: InstalledServer, *, update: Update | None, sandboxed: bool) -> Record:
    """Return the record of an installed *server*; *update* is the update that a registry offers for it."""
    found: dict[str, object] = {"id": text(server.id), "name": text(server.id), "summary": "", "version": ""}
    if server.manifest is not None:
        fields = describe(server.manifest)
        found |= fields | {"transports": _transports(fields)}
        origin = origin_of(server.manifest)
        found |= {"verified": bool(origin.get("verified")), "pinned": origin.get("pinned") is True}
        found["sharing"] = server.manifest.runtime.sharing
        found["run-as"] = server.manifest.runtime.run_as
    overrides = {"summary": text(server.entry.summary), "description": text(server.entry.description)}
    found |= {key: value for key, value in overrides.items() if value}
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


def installation_details(server: InstalledServer) -> dict[str, Variant]:
    """Return the details that ``GetServer`` adds to a listing: how *server* is run, and what can be configured."""
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
        found["configurable-properties"] = Variant(
            "aa{sv}", [property_variants(p) for p in manifest.configurable_properties]
        )
    return found


def _digest(server: InstalledServer, manifest: Manifest) -> str:
    """Return a digest of everything that a process of *server* is started from; if it changes, a restart is needed."""
    entry = server.entry
    # While a file is too new to detect another change, the last part of its signature is the time of the scan.
    values = [found and found[:3] for found in server.values]
    parts = (str(server.generation), values, entry.disabled, entry.policy, manifest.model_dump_json())
    return hashlib.blake2b(repr(parts).encode("utf-8", "replace"), digest_size=16).hexdigest()


def _protocols(server: InstalledServer) -> list[str] | None:
    """Return the eras of MCP that *server* spoke when it was installed; ``None`` if that was not checked."""
    if server.script is not None:
        return ["handshake", "modern"]
    from mcpd.install.lockfile import read_lock  # installing is not needed to list

    found = read_lock(server.generation).get("protocol")
    if not isinstance(found, Mapping):
        return None
    return [era for era in ("handshake", "modern") if found.get(era)]


def property_variants(prop: ConfigProperty) -> dict[str, Variant]:
    """Return a configurable property as ``GetServer`` and ``GetAvailable`` report it."""
    texts_of = {"label": prop.label, "description": prop.description, "type": prop.type}
    known: dict[str, JsonValue] = {key: text(value) for key, value in texts_of.items() if value}
    if not prop.sensitive:
        known["default"] = prop.default
    return to_variants({"key": prop.key, "sensitive": prop.sensitive, "required": prop.required, **known})


def available_record(
    fields: Mapping[str, Any], *, verified: bool, scope: str, installed: InstalledServer | None, updatable: bool
) -> Record:
    """Return the record of a registry's offer; *fields* are those of :func:`mcpd.catalog.listing.describe`.

    If the server is *installed*, the record has the version and trust of the installed server, which the state also
    refers to.
    """
    state = "available" if installed is None else "updatable" if updatable else "installed"
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
    """Return the version of the pending update of *server*, empty if there is none.

    An update without a version is named after its generation, so that the result is never empty while one is pending.
    """
    return text(server.pending) or (f"generation {server.pending_generation}" if server.pending_generation else "")


def _state(server: InstalledServer, update: Update | None) -> str:
    if server.manifest is None or server.problem:
        return "broken"
    if server.entry.disabled or (server.manifest.model_extra or {}).get("disabled") is True:
        return "disabled"
    return "updatable" if update is not None else "installed"


def to_variants(values: Mapping[str, JsonValue]) -> dict[str, Variant]:
    """Return JSON *values* as an ``a{sv}``; D-Bus has no null, so null values are left out."""
    return {text(key): found for key, value in values.items() if (found := _variant(value)) is not None}


def _variant(value: Any) -> Variant | None:
    if isinstance(value, Mapping):
        return Variant("a{sv}", to_variants(value))
    if isinstance(value, list) and not all(isinstance(item, str) for item in value):
        return Variant("av", [found for item in value if (found := _variant(item)) is not None])
    if isinstance(value, list):
        return Variant("as", texts(value))
    if isinstance(value, str) or (isinstance(value, int) and not -(1 << 63) <= value < 1 << 64):
        return Variant("s", text(value))
    return None if value is None else codec.variant(value)


def matcher(wanted: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], bool]:
    """Return a function that tests the values of a record against the filter *wanted* of ``ListServers``.

    Unknown keys of *wanted* are ignored. Raises :class:`~mcpd.errors.InvalidArgument` for values of another type.
    """
    words = text(wanted.get("text", "")).lower().split()
    category = wanted.get("category")
    equal: dict[str, set[str | bool]] = {}
    for key, value in wanted.items():
        if KEYS.get(key) in ("s", "b"):
            choices = value if isinstance(value, list) else [value]
            if not all(isinstance(choice, (str, bool)) for choice in choices):
                raise InvalidArgument(f"filter {key!r} must be a string or boolean, or a list of strings")
            equal[key] = set(choices)

    def matches(values: Mapping[str, Any]) -> bool:
        if any(values.get(key, _EMPTY[KEYS[key]]) not in choice for key, choice in equal.items()):
            return False
        if category is not None and category not in values.get("categories", ()):
            return False
        shown = " ".join(str(values.get(key, "")) for key in ("id", "name", "summary", "description")).lower()
        return all(word in shown for word in words)

    return matches
