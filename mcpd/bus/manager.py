# SPDX-License-Identifier: LGPL-2.1-or-later
"""The interface Manager: installed servers, registries, keys, and the jobs that change them."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mcpd.bus import arguments
from mcpd.bus.arguments import flag, install_options, option, read_all, save_all
from mcpd.bus.authorization import FairSemaphore
from mcpd.bus.caller import find_user
from mcpd.bus.codec import Variant
from mcpd.bus.dispatcher import Row
from mcpd.bus.names import MANAGER, job_path, server_path, session_path
from mcpd.bus.server import Record, available_record, details, matcher, pending_version, property_variants, to_variants
from mcpd.bus.session import SessionObject
from mcpd.catalog.listing import describe, text
from mcpd.errors import (
    Busy,
    IntegrityMismatch,
    InvalidArgument,
    NeedsBridge,
    NotAuthorized,
    NotFound,
    NotSupported,
    ServiceUnavailable,
    SignatureInvalid,
    SpawnFailed,
)
from mcpd.paths import Scope
from mcpd.store.files import make_directory
from mcpd.trust.keys import fingerprint_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mcpd.bus.caller import Call
    from mcpd.bus.codec import Raw
    from mcpd.bus.core import Core
    from mcpd.bus.server import Servers
    from mcpd.catalog import CatalogEntry, Listing, Query
    from mcpd.install.job import Job
    from mcpd.store import InstalledServer

_MAX_ICONS, _ICONS_PER_USER = 16, 8
"""Icons that are fetched at once, in total and for one user."""
_STDIO: Final = frozenset({0, 1, 2})
_ONE_SHOT_CLIENTS: Final = frozenset({"busctl", "dbus-send", "gdbus"})
"""Programs that leave the bus as soon as their call is answered."""
_INVALID_UID: Final = 2**32 - 1
"""The uid that stands for "no user"."""


@dataclass(slots=True)
class Manager:
    """The object at the root path, with the interface Manager."""

    core: Core
    servers: Servers
    catalog_changed: Callable[[], None]
    sources_changed: Callable[[], None]
    bridge_uid: int | None
    """The user of the system bridge; only this user may start servers for other users (``caller-uid``)."""
    interface: str = MANAGER
    icons: FairSemaphore = field(default_factory=lambda: FairSemaphore(_MAX_ICONS, _ICONS_PER_USER))
    """Limits icon fetches: every user may cause them, and the servers that registries name may be slow."""

    def properties(self) -> Mapping[str, Variant]:
        """Return all properties of the interface."""
        return {
            "Version": Variant("s", self.core.version),
            "Scope": Variant("s", str(self.core.scope)),
            "Features": Variant("as", self.core.features()),
        }

    # --- reading ---

    async def list_servers(self, _call: Call, wanted: Mapping[str, Any]) -> list[Raw]:
        """Implement ``ListServers``."""
        await self.servers.scan()
        records = self.servers.sync()
        if not wanted:
            return [record.raw for record in records]
        matches = matcher(wanted)
        return [record.raw for record in records if matches(record.values)]

    async def get_server(self, _call: Call, server_id: str) -> tuple[dict[str, Variant], str]:
        """Implement ``GetServer``."""
        await self.servers.scan()
        found = self.servers.get(server_id)
        known = found.record.variants() | details(found.server)
        with suppress(NotFound):  # removed since
            tools = await asyncio.to_thread(self.core.store.tools, server_id)
            known |= {} if tools is None else {"tools": Variant("u", len(tools))}
        return known, server_path(server_id)

    async def get_manifest_path(self, _call: Call, server_id: str) -> str:
        """Implement ``GetManifestPath``."""
        return str(await asyncio.to_thread(self.core.store.manifest_path, server_id))

    async def get_tools(self, _call: Call, server_id: str) -> str:
        """Implement ``GetTools``."""
        tools = await asyncio.to_thread(self.core.store.tools, server_id)
        if tools is None:
            raise NotFound(f"server {server_id} was never asked for its tools; 'mcpctl tools {server_id}' asks it")
        return json.dumps(tools)

    async def get_config(self, _call: Call, server_id: str) -> tuple[dict[str, Variant], list[str]]:
        """Implement ``GetConfig``."""
        found = await asyncio.to_thread(self.core.store.config, server_id)
        return to_variants(found.values), [text(key) for key in found.secrets_set]

    def installed_ids(self) -> frozenset[str]:
        """Return the ids of the installed servers as of the last scan, without script servers."""
        return frozenset(one.id for one in self.servers.installed().values() if one.script is None)

    def list_sessions(self, call: Call) -> list[dict[str, Variant]]:
        """Implement ``ListSessions``; only root sees the sessions of other users."""
        sessions = self.core.sessions
        return [
            SessionObject(session, sessions).listed()
            for session in sessions.list()
            if call.uid in (0, session.owner.uid) or call.sender == session.owner.name
        ]

    # --- changing ---

    async def set_config(
        self, _call: Call, server_id: str, changes: Mapping[str, Any], options: Mapping[str, Any]
    ) -> None:
        """Implement ``SetConfig``."""
        unset = dict.fromkeys(option(options, "unset", list, []))
        await asyncio.to_thread(self.core.store.set_config, server_id, {**arguments.config_values(changes), **unset})
        self._on_configured(server_id)

    async def set_secret(self, call: Call, server_id: str, key: str, value: int, _options: Mapping[str, Any]) -> None:
        """Implement ``SetSecret``."""
        secret = await arguments.read_secret(call, value, key)
        await asyncio.to_thread(self.core.store.set_secret, server_id, key, secret)
        self._on_configured(server_id)

    def _on_configured(self, server_id: str) -> None:
        """Update the objects, and forget earlier crashes: they happened with another configuration."""
        self.core.sessions.forgive(server_id)
        self.servers.sync()

    # --- running ---

    async def spawn(
        self, call: Call, server_id: str, fds: Mapping[int, int], flags: int, options: Mapping[str, Any]
    ) -> tuple[str, dict[int, int]]:
        """Implement ``Spawn``."""
        if flags:
            raise InvalidArgument(f"Spawn: unknown flags {flags:#x}; pass 0")
        owner_uid = self._owner_uid(call, options)
        await self._check_direct(call, server_id, fds, options)
        environment = option(options, "environment", dict, {}) if self.core.scope is Scope.USER else {}
        if not all(isinstance(part, str) for pair in environment.items() for part in pair):
            raise InvalidArgument("Spawn: environment must be a dictionary of strings")
        if option(options, "check", bool, default=False):
            return "/", {}
        if (program := call.caller.program()) in _ONE_SHOT_CLIENTS:
            raise SpawnFailed(
                f"{server_id}: {program} leaves the message bus when Spawn returns, and the server would end with it;"
                f" use a client that stays on the bus, or 'mcpctl run {server_id}'"
            )
        stdio, reply_indices = _stdio(call, fds)
        session = await self.core.spawn(server_id, stdio, owner_uid, call.sender, environment)
        if call.caller.gone.is_set():
            # The caller left before its session was recorded, so nothing else stops the session.
            await self.core.sessions.stop(session.number)
            raise ServiceUnavailable(f"{call.sender} has left the message bus")
        return session_path(session.number), reply_indices

    async def _check_direct(
        self, call: Call, server_id: str, fds: Mapping[int, int], options: Mapping[str, Any]
    ) -> None:
        """Raise :class:`~mcpd.errors.NeedsBridge` if the server must be used through the bridge.

        The bridge applies the mcps map and shares processes. A direct start must not get around what an administrator
        restricted there.
        """
        is_direct = option(options, "direct", bool, default=False)
        is_system = self.core.scope is Scope.SYSTEM
        if not is_direct and (not is_system or call.uid in {0, self.bridge_uid}):
            return
        await self.servers.scan()
        server = self.servers.get(server_id).server
        if server.manifest is None or (server.manifest.runtime.run_as == "system" and not is_system):
            return
        if server.entry.policy:
            raise NeedsBridge(f"server {server_id} is used through the bridge: the mcps map changes what it offers")
        if is_direct and fds and server.manifest.runtime.sharing != "session":
            raise NeedsBridge(f"server {server_id} is used through the bridge: its process is shared")

    def _owner_uid(self, call: Call, options: Mapping[str, Any]) -> int:
        if "caller-uid" not in options:
            return call.uid
        if call.uid != self.bridge_uid:
            raise NotAuthorized("Spawn: only the system bridge may start a server for another user (caller-uid)")
        uid = option(options, "caller-uid", int, call.uid)
        if not 0 <= uid < _INVALID_UID:
            raise InvalidArgument(f"option 'caller-uid': {uid} is not a user id")
        return uid

    def spawn_action(self, _call: Call, *_args: object) -> str | None:
        """Return the polkit action for ``Spawn``, ``None`` for a user's own servers."""
        return None if self.core.scope is Scope.USER else "spawn"

    async def spawn_details(
        self, call: Call, server_id: str, _fds: object, _flags: object, options: Mapping[str, Any]
    ) -> dict[str, str]:
        """Return the polkit details of a start, with the user that the bridge starts the server for."""
        found = {"id": text(server_id)}
        if "caller-uid" not in options:
            return found
        uid = self._owner_uid(call, options)
        await self.servers.scan()
        if self.servers.get(server_id).record.values.get("run-as") != "system":
            raise NotSupported(f"server {server_id} runs as its caller; the system bridge cannot start it")
        user = await asyncio.to_thread(find_user, uid)
        groups = f" {' '.join(map(text, user.groups))} "
        return {**found, "caller-uid": str(uid), "caller-user": text(user.name), "caller-groups": groups}


def _stdio(call: Call, fds: Mapping[int, int]) -> tuple[dict[int, int], dict[int, int]]:
    """Return the descriptors for the server, and the reply indices of the pipe ends that go back to the caller."""
    if fds:
        if not {0, 1} <= fds.keys() <= _STDIO:
            raise InvalidArgument(f"Spawn: pass file descriptors 0, 1 and optionally 2, or none; got {sorted(fds)}")
        return {number: call.fds.get(index) for number, index in fds.items()}, {}
    server_in, client_in = os.pipe()
    client_out, server_out = os.pipe()
    # call.fds closes the server's ends when the call ends.
    call.fds.add(server_in)
    call.fds.add(server_out)
    return {0: server_in, 1: server_out}, {0: call.reply_fds.add(client_in), 1: call.reply_fds.add(client_out)}


def _property_details(_target: Manager, _call: Call, server_id: str, key: Any, *_args: object) -> dict[str, str]:
    return {"id": text(server_id), "keys": text(key if isinstance(key, str) else list(key))}


MAX_PAGE: Final = 500
DEFAULT_PAGE: Final = 100
MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of one page of entries; a longer page is cut, as a bus disconnects clients that send too much."""
_CACHED_RECORDS: Final = 2048
_MAX_CACHED_RECORD: Final = 8 * 1024
"""Bytes of a record that is cached; the few longer ones would fill most of the cache."""
_record_cache: Final[dict[tuple[bytes, bool, str], Record]] = {}
"""Records of entries that are not installed, which look the same to everybody; the last one used is last."""
_SOURCE_KEYS: Final = ("type", "url", "path", "package", "version", "rev", "sha256")


async def list_available(manager: Manager, call: Call, wanted: Mapping[str, Any], cursor: str) -> tuple[list[Raw], str]:
    """Implement ``ListAvailable``."""
    limit = min(max(option(wanted, "limit", int, DEFAULT_PAGE), 1), MAX_PAGE)
    query = _query(manager, wanted)
    await manager.core.wait_until_read()
    while True:
        found, following = await manager.core.run_read(
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
    from mcpd.catalog import Query  # noqa: PLC0415 -- imports SQLite, which is not needed to start

    installed, updatable = flag(wanted, "installed"), flag(wanted, "updatable")
    without = manager.installed_ids() if installed is False else frozenset()
    if updatable is False:
        without |= manager.core.updates.keys()
    return Query(
        text=option(wanted, "text", str, ""),
        category=option(wanted, "category", str, ""),
        source=option(wanted, "source", str, ""),
        installable=flag(wanted, "installable"),
        only=manager.installed_ids() if installed else None,
        without=without,
        offers=frozenset((key, update.registry) for key, update in manager.core.updates.items()) if updatable else None,
    )


def _record(manager: Manager, listing: Listing) -> Record:
    installed = _installed(manager, listing.id)
    if installed is not None:
        return _offer_record(manager, listing.fields, listing.origin, installed, verified=listing.verified)
    key = (listing.stamp, listing.verified, str(manager.core.scope))
    record = _record_cache.pop(key, None)
    if record is None:
        record = _offer_record(manager, listing.fields, listing.origin, None, verified=listing.verified)
    if len(record.raw) <= _MAX_CACHED_RECORD:
        if len(_record_cache) >= _CACHED_RECORDS:
            del _record_cache[next(iter(_record_cache))]
        _record_cache[key] = record
    return record


def _installed(manager: Manager, server_id: str) -> InstalledServer | None:
    # A registry's entry with the id of a script server can still be installed, and then takes precedence.
    server = manager.servers.installed().get(server_id)
    return server if server is not None and server.script is None else None


def _offer_record(
    manager: Manager, fields: Mapping[str, Any], origin: str, installed: InstalledServer | None, *, verified: bool
) -> Record:
    """Return the record of an offer of the registry *origin*.

    *installed* is updated only from the registry that it came from.
    """
    update = manager.core.updates.get(installed.id) if installed is not None else None
    updatable = update is not None and update.registry == origin
    if installed is not None and installed.manifest is not None:
        from mcpd.install.updates import recorded_registry  # noqa: PLC0415 -- not needed to start

        if recorded_registry(installed.manifest) not in (None, origin):
            fields = {key: value for key, value in fields.items() if key != "version"}
    scope = str(manager.core.scope)
    return available_record(fields, verified=verified, scope=scope, installed=installed, updatable=updatable)


async def get_available(
    manager: Manager, _call: Call, server_id: str, options: Mapping[str, Any]
) -> dict[str, Variant]:
    """Implement ``GetAvailable``."""
    await manager.core.wait_until_read()
    catalog, source = manager.core.catalog, option(options, "source", str, "")
    found = await asyncio.to_thread(catalog.find, server_id, source)
    others = await asyncio.to_thread(catalog.offers, [server_id])
    fields = describe(found.entry, found.origin) | {"origin": found.origin}
    record = _offer_record(manager, fields, found.origin, _installed(manager, server_id), verified=found.verified)
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
        shown["configurable-properties"] = Variant(
            "aa{sv}", [property_variants(p) for p in entry.configurable_properties]
        )
    return shown


async def get_icon(manager: Manager, call: Call, server_id: str, _options: Mapping[str, Any]) -> tuple[int, str]:
    """Implement ``GetIcon``."""
    url, registry = await asyncio.to_thread(_icon_url, manager, server_id)
    if "://" not in url:
        named = f"; {text(url)!r} is a name of the icon theme" if url else ""
        raise NotFound(f"server {text(server_id)!r} has no icon of its own{named}")
    await manager.icons.acquire(call.uid)
    try:
        icon = await manager.core.catalog.icon(url, registry)
    finally:
        manager.icons.release(call.uid)
    image = os.memfd_create("icon", os.MFD_CLOEXEC)
    index = call.reply_fds.add(image)
    os.write(image, icon.data)
    os.lseek(image, 0, os.SEEK_SET)
    return index, icon.media_type


def _icon_url(manager: Manager, server_id: str) -> tuple[str, str]:
    """Return the icon of a server, and the registry that names it."""
    from mcpd.install.updates import recorded_registry  # noqa: PLC0415 -- not needed to start

    server: InstalledServer | None = manager.servers.installed().get(server_id)
    if server is not None and server.manifest is not None:
        return server.manifest.icon, recorded_registry(server.manifest) or ""
    found = manager.core.catalog.find(server_id)
    return found.entry.icon, found.origin


async def list_sources(manager: Manager, _call: Call) -> list[dict[str, Variant]]:
    """Implement ``ListSources``."""
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
    """Implement ``AddSource``."""
    fields = {key: option(options, key, str, "") for key in ("name", "type", "signature", "key")}
    await asyncio.to_thread(lambda: manager.core.catalog.add_source(url, **fields))
    manager.sources_changed()


async def remove_source(manager: Manager, _call: Call, url: str, _options: Mapping[str, Any]) -> None:
    """Implement ``RemoveSource``."""
    await asyncio.to_thread(manager.core.catalog.remove_source, url)
    manager.sources_changed()


async def list_keys(manager: Manager, _call: Call) -> list[dict[str, Variant]]:
    """Implement ``ListKeys``."""
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
    """Implement ``AddKey``."""
    await asyncio.to_thread(manager.core.keys.add, name, pem)
    manager.catalog_changed()


async def remove_key(manager: Manager, _call: Call, name: str, _options: Mapping[str, Any]) -> None:
    """Implement ``RemoveKey``."""
    await asyncio.to_thread(manager.core.keys.remove, name)
    manager.catalog_changed()


def _url_details(_target: Manager, _call: Call, url: str, *args: Any) -> dict[str, str]:
    options = args[-1] if args and isinstance(args[-1], dict) else {}
    known = {key: text(options[key]) for key in ("type", "signature", "key") if isinstance(options.get(key), str)}
    return {"source": text(url), **known}


def _key_name_details(_target: Manager, _call: Call, name: str, *_args: object) -> dict[str, str]:
    return {"key": text(name)}


async def _new_key_details(_target: Manager, _call: Call, name: str, pem: str, *_args: object) -> dict[str, str]:
    found = await asyncio.to_thread(fingerprint_of, pem)
    return {"key": text(name)} | ({"fingerprint": found} if found else {})


BUNDLE_TIMEOUT: Final = 300.0
"""Seconds in which a bundle must have arrived."""
_PIN_FIELDS: Final = {"npm": "version", "pypi": "version", "git": "rev"}
"""The field that pins a version of a package source, both in an entry and in the lock file's ``resolved``."""
_TRUSTED: Final = "install-trusted"
_UNTRUSTED: Final = "install-untrusted"


async def install_action(manager: Manager, call: Call, server_id: str, options: Mapping[str, Any]) -> str:
    """Return the polkit action for ``Install``: the weaker one if a trusted key signed the offer."""
    await manager.core.wait_until_read()
    offer = call.memo["offer"] = await manager.core.installer.find(server_id, install_options(options))
    return _TRUSTED if _is_signed(offer) else _UNTRUSTED


def _is_signed(offer: CatalogEntry) -> bool:
    """Return whether a trusted key is known to have signed all of *offer*; a summary is completed only later."""
    return offer.verified and not offer.entry.is_summary


def install_details(_manager: Manager, call: Call, server_id: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the polkit details of an installation, with the version that would be installed."""
    offer = call.memo["offer"]
    version = install_options(options).version or offer.entry.version
    signer = offer.signer if _is_signed(offer) else ""
    details = {"id": server_id, "source": offer.origin, "version": version, "signed-by": signer}
    return {key: text(value) for key, value in details.items() if value}


def install(manager: Manager, call: Call, _server_id: str, options: Mapping[str, Any]) -> str:
    """Implement ``Install``."""
    return _path(manager.core.installer.install_offer(call.memo["offer"], install_options(options), call.uid))


async def manifest_action(manager: Manager, call: Call, manifest: int, options: Mapping[str, Any]) -> str:
    """Return the polkit action for ``InstallManifest``: the weaker one if it is signed and pins its version."""
    from mcpd.catalog.ingest import pins_what_it_names  # noqa: PLC0415 -- not needed to start
    from mcpd.install.entries import user_supplied_entry  # noqa: PLC0415 -- nor this

    signature = option(options, "signature", str, "")
    if not signature:
        return _UNTRUSTED
    data = call.memo["manifest"] = await _manifest(call, manifest)
    key = await asyncio.to_thread(manager.core.keys.signer, data, signature.encode())
    if key is None:
        raise SignatureInvalid(
            "the manifest is not signed by a trusted key ('mcpctl key list'); add the key, or install without the"
            " signature"
        )
    call.memo["signer"] = key.name
    pins = pins_what_it_names(await asyncio.to_thread(user_supplied_entry, data))
    return _TRUSTED if pins and not option(options, "version", str, "") else _UNTRUSTED


async def install_manifest(manager: Manager, call: Call, manifest: int, options: Mapping[str, Any]) -> str:
    """Implement ``InstallManifest``."""
    found, signer = install_options(options), call.memo.get("signer", "")
    data = call.memo["manifest"] if signer else await _manifest(call, manifest)
    return _path(manager.core.installer.install_manifest(data, found, call.uid, signer))


async def _manifest(call: Call, index: int) -> bytes:
    from mcpd.install.entries import MAX_MANIFEST  # noqa: PLC0415 -- not needed to start

    return await read_all(call.fds.get(index), MAX_MANIFEST, "the manifest", arguments.READ_TIMEOUT)


async def bundle_action(manager: Manager, call: Call, _bundle: int, options: Mapping[str, Any]) -> str:
    """Return the polkit action for ``InstallBundle``: the weaker one if a signed registry pins the bundle."""
    pinned = "" if option(options, "unverified", bool, default=False) else option(options, "sha256", str, "").lower()
    call.memo["pinned"] = bool(pinned and await asyncio.to_thread(manager.core.catalog.pins_sha256, pinned))
    return _TRUSTED if call.memo["pinned"] else _UNTRUSTED


async def install_bundle(manager: Manager, call: Call, bundle: int, options: Mapping[str, Any]) -> str:
    """Implement ``InstallBundle``."""
    from mcpd.install.sources.archive import MAX_ARCHIVE  # noqa: PLC0415 -- not needed to start
    from mcpd.install.sources.mcpb import describe  # noqa: PLC0415 -- nor this

    found = install_options(options)
    if found.version:
        raise InvalidArgument("InstallBundle: a bundle has one version; drop the option 'version'")
    directory = manager.core.bundles
    await asyncio.to_thread(make_directory, directory, 0o700)
    path = directory / f"{secrets.token_hex(16)}.mcpb"
    sha256 = await save_all(call.fds.get(bundle), path, MAX_ARCHIVE, "the bundle", BUNDLE_TIMEOUT)
    with ExitStack() as cleanup:
        cleanup.callback(path.unlink, missing_ok=True)
        wanted = option(options, "sha256", str, "").lower()
        if wanted and wanted != sha256:
            raise IntegrityMismatch(f"the bundle has sha256 {sha256}, not {text(wanted)}; nothing was installed")
        described = await asyncio.to_thread(describe, path, sha256)
        # The bundle may have taken minutes to arrive, and registries and keys may have changed meanwhile.
        signer = await asyncio.to_thread(manager.core.installer.bundle_signer, described)
        if call.memo["pinned"] and not signer:
            fault = f"this bundle is not signed by a trusted key as {described.entry.id}"
            if await asyncio.to_thread(manager.core.catalog.pins_sha256, sha256):
                raise SignatureInvalid(
                    f"{fault}: the registry lists this file under another id; use the option 'unverified' to install it"
                    " like any other file"
                )
            raise NotAuthorized(f"{fault} any more; try again to authorize an unsigned one")
        job = manager.core.installer.install_bundle(described, found, call.uid, signer)
        cleanup.pop_all()
    return _path(job)


def uninstall(manager: Manager, call: Call, server_id: str, options: Mapping[str, Any]) -> str:
    """Implement ``Uninstall``."""
    installer = manager.core.installer
    keep = option(options, "keep-config", bool, default=False)
    if option(options, "forget", bool, default=False):
        if keep:
            raise InvalidArgument("Uninstall: 'forget' and 'keep-config' contradict each other")
        return _path(installer.forget(server_id, call.uid))
    return _path(installer.uninstall(server_id, call.uid, keep_config=keep))


async def update_action(manager: Manager, call: Call, ids: Sequence[str], options: Mapping[str, Any]) -> str:
    """Return the polkit action for ``Update``.

    The action is weaker if a trusted key signed every new version, and weakest if the caller gives no consent in
    advance.
    """
    found = install_options(options)
    if found.config:
        raise InvalidArgument("Update: an update takes no config; use SetConfig")
    offers = call.memo["offers"] = await manager.core.installer.update_offers(list(dict.fromkeys(ids)), found)
    # A reinstallation may bring back what an administrator rolled back.
    if found.reinstall or not all(map(_is_signed, offers)):
        return _UNTRUSTED
    return _TRUSTED if found.consent and offers else "update"


def update_details(_manager: Manager, call: Call, ids: Sequence[str], *_args: object) -> dict[str, str]:
    """Return the polkit details of updates: one id as ``id``, several as ``ids``."""
    named = list(dict.fromkeys(ids)) or [offer.entry.id for offer in call.memo["offers"]]
    return {"id" if len(named) == 1 else "ids": text(named)} if named else {}


def update(manager: Manager, call: Call, ids: Sequence[str], options: Mapping[str, Any]) -> str:
    """Implement ``Update``."""
    wanted = list(dict.fromkeys(ids))
    return _path(manager.core.installer.update_to(wanted, call.memo["offers"], install_options(options), call.uid))


async def rollback_details(manager: Manager, call: Call, server_id: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the polkit details of a rollback, and fix the generation that it goes back to."""
    from mcpd.install.history import rollback_target  # noqa: PLC0415 -- not needed to start

    wanted = _generation(options)
    with suppress(NotFound):  # the installer reports it
        wanted = await asyncio.to_thread(rollback_target, manager.core.store, server_id, wanted)
    call.memo["generation"] = wanted
    return _generation_details(server_id, wanted)


async def rollback(manager: Manager, call: Call, server_id: str, _options: Mapping[str, Any]) -> str:
    """Implement ``Rollback``."""
    generation = await manager.core.installer.rollback_target(server_id, call.memo["generation"])
    return _path(manager.core.installer.rollback(server_id, call.uid, generation=generation))


async def approve_details(manager: Manager, call: Call, server_id: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the polkit details of an approval, and fix the pending update that it applies to."""
    held = _generation(options) or await asyncio.to_thread(manager.core.store.held, server_id)
    call.memo["generation"] = held
    return _generation_details(server_id, held)


def approve(manager: Manager, call: Call, server_id: str, options: Mapping[str, Any]) -> str:
    """Implement ``Approve``."""
    held = call.memo["generation"]
    if held is None:
        raise NotFound(f"no update of {text(server_id)} waits for approval")
    drop = option(options, "drop", bool, default=False)
    return _path(manager.core.installer.approve(server_id, call.uid, generation=held, drop=drop))


def verify(manager: Manager, call: Call, ids: Sequence[str], _options: Mapping[str, Any]) -> str:
    """Implement ``Verify``; one job at a time for each user, as it keeps the disk busy."""
    for job in manager.core.installer.jobs.list():
        if job.kind == "verify" and job.owner_uid == call.uid and not job.state.finished:
            raise Busy(f"job {job.number} is already verifying; wait for it or cancel it")
    return _path(manager.core.installer.verify(ids, call.uid))


async def set_pinned(manager: Manager, _call: Call, server_id: str, pinned: bool, _options: Mapping[str, Any]) -> None:
    """Implement ``SetPinned``."""
    # A job may roll back a generation on trial, and the pin would be lost with it.
    manager.core.installer.jobs.check_free([server_id])
    await asyncio.to_thread(manager.core.store.set_pinned, server_id, pinned)
    await manager.core.look_for_updates()
    manager.servers.sync()


def check_updates(manager: Manager, call: Call, _options: Mapping[str, Any]) -> str:
    """Implement ``CheckUpdates``."""
    return _path(manager.core.installer.check_updates(call.uid))


def refresh(manager: Manager, call: Call, _options: Mapping[str, Any]) -> str:
    """Implement ``Refresh``."""
    return _path(manager.core.installer.refresh(call.uid))


async def get_entry(manager: Manager, _call: Call, server_id: str) -> str:
    """Implement ``GetEntry``."""
    from mcpd.formats.seed import published_fields  # noqa: PLC0415 -- not needed to start
    from mcpd.install.lockfile import read_lock  # noqa: PLC0415 -- nor this

    await manager.servers.scan()
    server = manager.servers.get(server_id).server
    if server.script is not None or server.manifest is None:
        raise NotSupported(f"{server_id} was not installed from an entry")
    lock = await asyncio.to_thread(read_lock, server.generation)
    entry, resolved = lock.get("entry"), lock.get("resolved")
    if not isinstance(entry, dict):
        # Servers from other tools or distribution packages have no lock file; their manifest describes them.
        entry = {key: value for key, value in server.manifest.to_json().items() if key != "scope"}
    entry = published_fields(entry)
    if server.manifest.version:
        entry["version"] = server.manifest.version
    if isinstance(source := entry.get("source"), dict) and isinstance(resolved, dict):
        # Without a pin, the next installation of this entry could install another version.
        pin = _PIN_FIELDS.get(str(source.get("type")), "")
        if resolved.get(pin) and not source.get(pin):
            entry["source"] = {**source, pin: resolved[pin]}
    return json.dumps(entry)


async def get_history(manager: Manager, _call: Call, server_id: str) -> list[dict[str, Variant]]:
    """Implement ``GetHistory``."""
    from mcpd.install.history import history  # noqa: PLC0415 -- not needed to start

    found = await asyncio.to_thread(history, manager.core.store, server_id)
    return [
        {
            "generation": Variant("u", one.number),
            "version": Variant("s", text(one.version)),
            "state": Variant("s", one.state),
            "registry": Variant("s", text(one.registry)),
            "resolved": Variant("s", text(one.resolved)),
            "installed": Variant("t", max(0, int(one.installed))),
            "verified": Variant("b", one.verified),
        }
        for one in found
    ]


async def get_pending(
    manager: Manager, call: Call, server_id: str
) -> tuple[dict[str, Variant], list[dict[str, Variant]]]:
    """Implement ``GetPending``."""
    from mcpd.install.definitions import compare  # noqa: PLC0415 -- not needed to start

    store = manager.core.store

    def read() -> tuple[dict[str, Variant], list[dict[str, Variant]]]:
        server, held = store.get(server_id), store.held(server_id)
        if held is None:
            raise NotFound(f"no update of {server_id} waits for approval")
        about = {
            "generation": Variant("u", held),
            "version": Variant("s", pending_version(server)),
            "from-version": Variant("s", text(server.manifest.version if server.manifest else "")),
        }
        changes = compare(store.tools(server_id) or [], store.generation_tools(server_id, held) or [])
        return about, [
            {
                "tool": Variant("s", text(change.tool)),
                "change": Variant("s", change.change),
                **{
                    key: Variant("s", text(json.dumps(tool, ensure_ascii=False, sort_keys=True)))
                    for key, tool in (("before", change.before), ("after", change.after))
                    if tool is not None
                },
            }
            for change in changes
        ]

    return await manager.core.run_read(call.uid, read)


def _path(job: Job) -> str:
    return job_path(job.number)


def _generation(options: Mapping[str, Any]) -> int | None:
    return option(options, "generation", int, 0) or None


def _id_details(_target: Manager, _call: Call, server_id: str, *_args: object) -> dict[str, str]:
    return {"id": text(server_id)}


def _generation_details(server_id: str, number: int | None) -> dict[str, str]:
    return {"id": text(server_id)} | ({"generation": str(number)} if number else {})


def _manifest_details(_target: Manager, call: Call, *_args: object) -> dict[str, str]:
    signer = call.memo.get("signer", "")
    return {"source": "manifest"} | ({"signed-by": text(signer)} if signer else {})


def _bundle_details(_target: Manager, _call: Call, *_args: object) -> dict[str, str]:
    return {"source": "bundle"}


METHODS: Final = {
    (MANAGER, "ListServers"): Row(Manager.list_servers, changes=False),
    (MANAGER, "GetServer"): Row(Manager.get_server, changes=False),
    (MANAGER, "GetManifestPath"): Row(Manager.get_manifest_path, changes=False),
    (MANAGER, "GetTools"): Row(Manager.get_tools, changes=False),
    (MANAGER, "GetConfig"): Row(Manager.get_config, changes=False),
    (MANAGER, "ListSessions"): Row(Manager.list_sessions, changes=False),
    (MANAGER, "SetConfig"): Row(Manager.set_config, "configure", _property_details, changes=True),
    (MANAGER, "SetSecret"): Row(Manager.set_secret, "set-secret", _property_details, changes=True),
    (MANAGER, "Spawn"): Row(Manager.spawn, Manager.spawn_action, Manager.spawn_details, changes=False),
    (MANAGER, "GetEntry"): Row(get_entry, changes=False),
    (MANAGER, "GetHistory"): Row(get_history, changes=False),
    (MANAGER, "GetPending"): Row(get_pending, changes=False),
    (MANAGER, "Install"): Row(install, install_action, install_details, changes=True),
    (MANAGER, "InstallManifest"): Row(install_manifest, manifest_action, _manifest_details, changes=True),
    (MANAGER, "InstallBundle"): Row(install_bundle, bundle_action, _bundle_details, changes=True),
    (MANAGER, "Update"): Row(update, update_action, update_details, changes=True),
    (MANAGER, "Uninstall"): Row(uninstall, "uninstall", _id_details, changes=True),
    (MANAGER, "Rollback"): Row(rollback, "rollback", rollback_details, changes=True),
    (MANAGER, "Approve"): Row(approve, "approve", approve_details, changes=True),
    (MANAGER, "SetPinned"): Row(set_pinned, "configure", _id_details, changes=True),
    # These only read the disk or the network.
    (MANAGER, "Verify"): Row(verify, "refresh", changes=False),
    (MANAGER, "CheckUpdates"): Row(check_updates, "refresh", changes=False),
    (MANAGER, "Refresh"): Row(refresh, "refresh", changes=False),
    (MANAGER, "ListAvailable"): Row(list_available, changes=False),
    (MANAGER, "GetAvailable"): Row(get_available, changes=False),
    (MANAGER, "GetIcon"): Row(get_icon, changes=False),
    (MANAGER, "ListSources"): Row(list_sources, changes=False),
    (MANAGER, "AddSource"): Row(add_source, "manage-sources", _url_details, changes=True),
    (MANAGER, "RemoveSource"): Row(remove_source, "manage-sources", _url_details, changes=True),
    (MANAGER, "ListKeys"): Row(list_keys, changes=False),
    (MANAGER, "AddKey"): Row(add_key, "manage-sources", _new_key_details, changes=True),
    (MANAGER, "RemoveKey"): Row(remove_key, "manage-sources", _key_name_details, changes=True),
}
