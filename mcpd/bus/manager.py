# SPDX-License-Identifier: LGPL-2.1-or-later
"""The interface Manager: installed servers, registries, keys, and the jobs that change them."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mcpd.bus import arguments
from mcpd.bus.arguments import flag, install_options, option, read_all, save_all
from mcpd.bus.authorization import FairSemaphore
from mcpd.bus.caller import find_user
from mcpd.bus.codec import Variant
from mcpd.bus.contract import Authorization, authorized_method, method
from mcpd.bus.names import MANAGER, job_path, server_path, session_path
from mcpd.bus.records import (
    Record,
    available_record,
    installation_details,
    matcher,
    pending_version,
    property_variants,
    to_variants,
)
from mcpd.bus.session import SessionObject
from mcpd.catalog.listing import describe, text
from mcpd.errors import (
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
from mcpd.files import make_directory
from mcpd.paths import Scope
from mcpd.runtime.sessions import Owner
from mcpd.trust.keys import fingerprint_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mcpd.bus.arguments import Options
    from mcpd.bus.caller import Call
    from mcpd.bus.codec import Raw
    from mcpd.bus.core import Core
    from mcpd.bus.server import Servers
    from mcpd.catalog import CatalogEntry, Listing, Query
    from mcpd.install.job import Job
    from mcpd.store import InstalledServer

_MAX_ICONS, _ICONS_PER_USER = 16, 8
"""Maximum number of icons fetched at once, in total and for one user."""
_STDIO: Final = frozenset({0, 1, 2})
_ONE_SHOT_CLIENTS: Final = frozenset({"busctl", "dbus-send", "gdbus"})
"""Programs that leave the bus as soon as their call is answered."""
_INVALID_UID: Final = 2**32 - 1
"""The uid that stands for "no user"."""


MAX_PAGE: Final = 500
DEFAULT_PAGE: Final = 100
MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of a page of entries in bytes; a longer one is cut, as a bus disconnects clients that send too much."""
_CACHED_RECORDS: Final = 2048
_MAX_CACHED_RECORD: Final = 8 * 1024
"""Maximum size in bytes of a cached record; the few longer ones would fill most of the cache."""
_record_cache: Final[dict[tuple[bytes, bool, str], Record]] = {}
"""Records of entries that are not installed, which look the same to everyone; the most recently used come last."""
_SOURCE_KEYS: Final = ("type", "url", "path", "package", "version", "rev", "sha256")
BUNDLE_TIMEOUT: Final = 300.0
"""Seconds within which a bundle must have arrived."""
_TRUSTED: Final = "install-trusted"
_UNTRUSTED: Final = "install-untrusted"


class SignedManifest(NamedTuple):
    """A manifest with a valid signature."""

    data: bytes
    signer: str
    """The name of the trusted key that signed the manifest."""


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

    # --- installed servers ---

    @method()
    async def list_servers(self, call: Call, wanted: Mapping[str, Any]) -> list[Raw]:
        """Return the installed servers that fit the filter *wanted*."""
        await self.servers.scan()
        records = self.servers.sync()
        if not wanted:
            return [record.raw for record in records]
        matches = matcher(wanted)
        return [record.raw for record in records if matches(record.values)]

    @method()
    async def get_server(self, call: Call, server_id: str) -> tuple[dict[str, Variant], str]:
        """Return the details of an installed server, and its object path."""
        await self.servers.scan()
        found = self.servers.get(server_id)
        known = found.record.variants() | installation_details(found.server)
        with suppress(NotFound):  # removed since
            tools = await asyncio.to_thread(self.core.store.tools, server_id)
            known |= {} if tools is None else {"tools": Variant("u", len(tools))}
        return known, server_path(server_id)

    @method()
    async def get_manifest_path(self, call: Call, server_id: str) -> str:
        """Return the path of the manifest of an installed server."""
        return str(await asyncio.to_thread(self.core.store.manifest_path, server_id))

    @method()
    async def get_tools(self, call: Call, server_id: str) -> str:
        """Return what a server answered to ``tools/list`` when it was last asked, as JSON."""
        tools = await asyncio.to_thread(self.core.store.tools, server_id)
        if tools is None:
            raise NotFound(f"server {server_id} has no recorded tools; 'mcpctl tools {server_id}' lists them")
        return json.dumps(tools)

    @method()
    async def get_entry(self, call: Call, server_id: str) -> str:
        """Return the entry that an installed server came from, as JSON."""
        from mcpd.install.entries import published_entry  # not needed to start

        await self.servers.scan()
        return json.dumps(await asyncio.to_thread(published_entry, self.servers.get(server_id).server))

    @method()
    async def get_history(self, call: Call, server_id: str) -> list[dict[str, Variant]]:
        """Return the generations of a server that still exist, newest first."""
        from mcpd.install.history import history  # not needed to start

        found = await asyncio.to_thread(history, self.core.store, server_id)
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

    @method()
    async def get_pending(self, call: Call, server_id: str) -> tuple[dict[str, Variant], list[dict[str, Variant]]]:
        """Return the pending update of a server, and the changes of its tools."""
        from mcpd.install.definitions import pending_update  # not needed to start

        update = await self.core.run_read(call.uid, partial(pending_update, self.core.store, server_id))
        manifest = update.server.manifest
        about = {
            "generation": Variant("u", update.generation),
            "version": Variant("s", pending_version(update.server)),
            "from-version": Variant("s", text(manifest.version if manifest else "")),
        }
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
            for change in update.changes
        ]

    def installed_ids(self) -> frozenset[str]:
        """Return the ids of the installed servers as of the last scan, without script servers."""
        return frozenset(one.id for one in self.servers.installed().values() if one.script is None)

    # --- the catalog ---

    @method()
    async def list_available(self, call: Call, wanted: Mapping[str, Any], cursor: str) -> tuple[list[Raw], str]:
        """Return one page of the catalog, and the cursor of the next one."""
        limit = min(max(option(wanted, "limit", int, DEFAULT_PAGE), 1), MAX_PAGE)
        query = self._query(wanted)
        await self.core.wait_until_read()
        while True:
            found, following = await self.core.run_read(
                call.uid, partial(self.core.catalog.query, query, cursor, limit)
            )
            records: list[Raw] = []
            size = 0
            for listing in found:
                raw = self._record(listing).raw
                size += len(raw)
                if size > MAX_PAGE_BYTES and records:
                    break
                records.append(raw)
            if len(records) == len(found):
                return records, following
            limit = len(records)

    def _query(self, wanted: Mapping[str, Any]) -> Query:
        from mcpd.catalog import Query  # imports SQLite, which is not needed to start

        installed, updatable = flag(wanted, "installed"), flag(wanted, "updatable")
        without = self.installed_ids() if installed is False else frozenset()
        if updatable is False:
            without |= self.core.updates.keys()
        return Query(
            text=option(wanted, "text", str, ""),
            category=option(wanted, "category", str, ""),
            source=option(wanted, "source", str, ""),
            installable=flag(wanted, "installable"),
            only=self.installed_ids() if installed else None,
            without=without,
            offers=frozenset((key, update.registry) for key, update in self.core.updates.items())
            if updatable
            else None,
        )

    def _record(self, listing: Listing) -> Record:
        installed = self._installed(listing.id)
        if installed is not None:
            return self._offer_record(listing.fields, listing.origin, installed, verified=listing.verified)
        key = (listing.stamp, listing.verified, str(self.core.scope))
        record = _record_cache.pop(key, None)
        if record is None:
            record = self._offer_record(listing.fields, listing.origin, None, verified=listing.verified)
        if len(record.raw) <= _MAX_CACHED_RECORD:
            if len(_record_cache) >= _CACHED_RECORDS:
                del _record_cache[next(iter(_record_cache))]
            _record_cache[key] = record
        return record

    def _installed(self, server_id: str) -> InstalledServer | None:
        # A registry's entry with the id of a script server can still be installed, and then takes precedence.
        server = self.servers.installed().get(server_id)
        return server if server is not None and server.script is None else None

    def _offer_record(
        self, fields: Mapping[str, Any], origin: str, installed: InstalledServer | None, *, verified: bool
    ) -> Record:
        """Return the record of an offer of the registry *origin*.

        The server *installed* is updated only from the registry that it came from.
        """
        update = self.core.updates.get(installed.id) if installed is not None else None
        updatable = update is not None and update.registry == origin
        if installed is not None and installed.manifest is not None:
            from mcpd.install.updates import recorded_registry  # not needed to start

            if recorded_registry(installed.manifest) not in (None, origin):
                fields = {key: value for key, value in fields.items() if key != "version"}
        scope = str(self.core.scope)
        return available_record(fields, verified=verified, scope=scope, installed=installed, updatable=updatable)

    @method()
    async def get_available(self, call: Call, server_id: str, options: Options) -> dict[str, Variant]:
        """Return the details of one entry of the catalog."""
        await self.core.wait_until_read()
        catalog, source = self.core.catalog, option(options, "source", str, "")
        found = await asyncio.to_thread(catalog.find, server_id, source)
        others = await asyncio.to_thread(catalog.offers, [server_id])
        fields = describe(found.entry, found.origin) | {"origin": found.origin}
        record = self._offer_record(fields, found.origin, self._installed(server_id), verified=found.verified)
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

    @method()
    async def get_icon(self, call: Call, server_id: str, options: Options) -> tuple[int, str]:
        """Return an image and its media type."""
        url, registry = await asyncio.to_thread(self._icon_url, server_id)
        if "://" not in url:
            named = f"; {text(url)!r} is the name of a theme icon" if url else ""
            raise NotFound(f"server {text(server_id)!r} does not have its own icon{named}")
        await self.icons.acquire(call.uid)
        try:
            icon = await self.core.catalog.icon(url, registry)
        finally:
            self.icons.release(call.uid)
        image = os.memfd_create("icon", os.MFD_CLOEXEC)
        index = call.reply_fds.add(image)
        os.write(image, icon.data)
        os.lseek(image, 0, os.SEEK_SET)
        return index, icon.media_type

    def _icon_url(self, server_id: str) -> tuple[str, str]:
        """Return a server's icon, as a URL or as a name in the icon theme, and the registry that names it."""
        from mcpd.install.updates import recorded_registry  # not needed to start

        server: InstalledServer | None = self.servers.installed().get(server_id)
        if server is not None and server.manifest is not None:
            return server.manifest.icon, recorded_registry(server.manifest) or ""
        found = self.core.catalog.find(server_id)
        return found.entry.icon, found.origin

    # --- registries and keys ---

    @method()
    async def list_sources(self, call: Call) -> list[dict[str, Variant]]:
        """Return the registries."""
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
            for source in await asyncio.to_thread(self.core.catalog.sources)
        ]

    async def _authorize_add_source(self, call: Call, url: str, options: Options) -> Authorization[dict[str, str]]:
        fields = {key: option(options, key, str, "") for key in ("name", "type", "signature", "key")}
        shown = {key: value for key, value in fields.items() if value and key != "name"}
        return Authorization("manage-sources", {"source": url, **shown}, fields)

    @authorized_method(_authorize_add_source)
    async def add_source(self, call: Call, fields: dict[str, str], url: str, options: Options) -> None:
        """Add a registry."""
        await asyncio.to_thread(lambda: self.core.catalog.add_source(url, **fields))
        self.sources_changed()

    @method("manage-sources", details={"source": "url"})
    async def remove_source(self, call: Call, url: str, options: Options) -> None:
        """Remove a registry."""
        await asyncio.to_thread(self.core.catalog.remove_source, url)
        self.sources_changed()

    @method()
    async def list_keys(self, call: Call) -> list[dict[str, Variant]]:
        """Return the trusted keys."""
        return [
            {
                "name": Variant("s", key.name),
                "fingerprint": Variant("s", key.fingerprint),
                "file": Variant("s", text(key.file)),
                "scope": Variant("s", str(key.scope)),
                "read-only": Variant("b", key.read_only),
            }
            for key in await asyncio.to_thread(self.core.keys.list)
        ]

    async def _authorize_add_key(self, call: Call, name: str, pem: str, options: Options) -> Authorization[str]:
        details = {"key": name}
        if fingerprint := await asyncio.to_thread(fingerprint_of, pem):
            details["fingerprint"] = fingerprint
        return Authorization("manage-sources", details, pem)

    @authorized_method(_authorize_add_key)
    async def add_key(self, call: Call, key: str, name: str, pem: str, options: Options) -> None:
        """Trust a public key."""
        await asyncio.to_thread(self.core.keys.add, name, key)
        self.catalog_changed()

    @method("manage-sources", details={"key": "name"})
    async def remove_key(self, call: Call, name: str, options: Options) -> None:
        """Remove a trusted key."""
        await asyncio.to_thread(self.core.keys.remove, name)
        self.catalog_changed()

    # --- installing ---

    async def _authorize_install(self, call: Call, server_id: str, options: Options) -> Authorization[CatalogEntry]:
        """Require less authorization if a trusted key signed the offer; the details name the version to install."""
        await self.core.wait_until_read()
        wanted = install_options(options)
        offer = await self.core.installer.find(server_id, wanted)
        version, signed = wanted.version or offer.entry.version, _is_signed(offer)
        signer = offer.signer if signed else ""
        details = {"id": server_id, "source": offer.origin, "version": version, "signed-by": signer}
        known = {key: value for key, value in details.items() if value}
        return Authorization(_TRUSTED if signed else _UNTRUSTED, known, offer)

    @authorized_method(_authorize_install)
    def install(self, call: Call, offer: CatalogEntry, server_id: str, options: Options) -> str:
        """Install a server from a registry."""
        return _path(self.core.installer.install_offer(offer, install_options(options), call.uid))

    async def _authorize_install_manifest(
        self, call: Call, manifest: int, options: Options
    ) -> Authorization[SignedManifest | None]:
        """Require less authorization for a signed manifest that pins its version; an unsigned one is read later."""
        from mcpd.catalog.ingest import pins_what_it_names  # not needed to start
        from mcpd.install.entries import user_supplied_entry  # nor this

        signature = option(options, "signature", str, "")
        if not signature:
            return Authorization(_UNTRUSTED, {"source": "manifest"}, None)
        data = await _manifest(call, manifest)
        key = await asyncio.to_thread(self.core.keys.signer, data, signature.encode())
        if key is None:
            raise SignatureInvalid(
                "the manifest is not signed by a trusted key ('mcpctl key list'); add the key, or install without the"
                " signature"
            )
        pins = pins_what_it_names(await asyncio.to_thread(user_supplied_entry, data))
        trusted = pins and not option(options, "version", str, "")
        details = {"source": "manifest", "signed-by": key.name}
        return Authorization(_TRUSTED if trusted else _UNTRUSTED, details, SignedManifest(data, key.name))

    @authorized_method(_authorize_install_manifest)
    async def install_manifest(self, call: Call, signed: SignedManifest | None, manifest: int, options: Options) -> str:
        """Install a server from a user-supplied entry or manifest."""
        wanted = install_options(options)
        data, signer = signed or (await _manifest(call, manifest), "")
        return _path(self.core.installer.install_manifest(data, wanted, call.uid, signer))

    async def _authorize_install_bundle(self, call: Call, bundle: int, options: Options) -> Authorization[bool]:
        """Require less authorization if a signed registry pins the bundle."""
        unverified = option(options, "unverified", bool, default=False)
        sha256 = "" if unverified else option(options, "sha256", str, "").lower()
        pinned = bool(sha256 and await asyncio.to_thread(self.core.catalog.pins_sha256, sha256))
        return Authorization(_TRUSTED if pinned else _UNTRUSTED, {"source": "bundle"}, pinned)

    @authorized_method(_authorize_install_bundle)
    async def install_bundle(self, call: Call, pinned: bool, bundle: int, options: Options) -> str:
        """Install a server from a user-supplied bundle; if a registry *pinned* it, only with a trusted signature."""
        from mcpd.install.sources.archive import MAX_ARCHIVE  # not needed to start
        from mcpd.install.sources.mcpb import describe  # nor this

        wanted = install_options(options)
        if wanted.version:
            raise InvalidArgument("InstallBundle: a bundle has one version; omit the option 'version'")
        directory = self.core.bundles
        await asyncio.to_thread(make_directory, directory, 0o700)
        path = directory / f"{secrets.token_hex(16)}.mcpb"
        sha256 = await save_all(call.fds.get(bundle), path, MAX_ARCHIVE, "the bundle", BUNDLE_TIMEOUT)
        with ExitStack() as cleanup:
            cleanup.callback(path.unlink, missing_ok=True)
            announced = option(options, "sha256", str, "").lower()
            if announced and announced != sha256:
                raise IntegrityMismatch(f"the bundle has sha256 {sha256}, not {text(announced)}; nothing was installed")
            described = await asyncio.to_thread(describe, path, sha256)
            # The bundle may have taken minutes to arrive, and registries and keys may have changed in the meantime.
            signer = await asyncio.to_thread(partial(self.core.installer.bundle_signer, described, required=pinned))
            job = self.core.installer.install_bundle(described, wanted, call.uid, signer)
            cleanup.pop_all()
        return _path(job)

    @method("uninstall", details={"id": "server_id"})
    def uninstall(self, call: Call, server_id: str, options: Options) -> str:
        """Remove a server, or what is left of a script server."""
        keep = option(options, "keep-config", bool, default=False)
        if option(options, "forget", bool, default=False):
            if keep:
                raise InvalidArgument("Uninstall: 'forget' and 'keep-config' cannot be used together")
            return _path(self.core.installer.forget(server_id, call.uid))
        return _path(self.core.installer.uninstall(server_id, call.uid, keep_config=keep))

    async def _authorize_update(
        self, call: Call, ids: Sequence[str], options: Options
    ) -> Authorization[list[CatalogEntry]]:
        """Require less authorization if a trusted key signed every new version, and least without advance consent."""
        wanted = install_options(options)
        if wanted.config:
            raise InvalidArgument("Update: an update does not accept config; use SetConfig")
        offers = await self.core.installer.update_offers(ids, wanted)
        named = list(dict.fromkeys(ids)) or [offer.entry.id for offer in offers]
        # A reinstallation may bring back what an administrator rolled back.
        if wanted.reinstall or not all(map(_is_signed, offers)):
            action = _UNTRUSTED
        else:
            action = _TRUSTED if wanted.consent and offers else "update"
        return Authorization(action, {"id" if len(named) == 1 else "ids": named} if named else {}, offers)

    @authorized_method(_authorize_update)
    def update(self, call: Call, offers: list[CatalogEntry], ids: Sequence[str], options: Options) -> str:
        """Install updates."""
        wanted = list(dict.fromkeys(ids))
        return _path(self.core.installer.update_to(wanted, offers, install_options(options), call.uid))

    async def _authorize_rollback(self, call: Call, server_id: str, options: Options) -> Authorization[int | None]:
        """Determine the generation that a rollback goes back to; if there is none, the method reports it."""
        from mcpd.install.history import rollback_target  # not needed to start

        generation = option(options, "generation", int, 0) or None
        with suppress(NotFound):
            generation = await asyncio.to_thread(rollback_target, self.core.store, server_id, generation)
        return Authorization("rollback", _generation_details(server_id, generation), generation)

    @authorized_method(_authorize_rollback)
    async def rollback(self, call: Call, generation: int | None, server_id: str, options: Options) -> str:
        """Go back to an earlier generation."""
        target = await self.core.installer.rollback_target(server_id, generation)
        return _path(self.core.installer.rollback(server_id, call.uid, generation=target))

    async def _authorize_approve(self, call: Call, server_id: str, options: Options) -> Authorization[int | None]:
        """Determine the pending update to approve; if there is none, the method reports it."""
        wanted = option(options, "generation", int, 0) or None
        generation = wanted or await asyncio.to_thread(self.core.store.held, server_id)
        return Authorization("approve", _generation_details(server_id, generation), generation)

    @authorized_method(_authorize_approve)
    def approve(self, call: Call, generation: int | None, server_id: str, options: Options) -> str:
        """Activate a pending update, or drop it."""
        if generation is None:
            raise NotFound(f"{text(server_id)} has no pending update")
        drop = option(options, "drop", bool, default=False)
        return _path(self.core.installer.approve(server_id, call.uid, generation=generation, drop=drop))

    @method("configure", details={"id": "server_id"})
    async def set_pinned(self, call: Call, server_id: str, pinned: bool, options: Options) -> None:
        """Keep a server at its version, or let updates change it again."""
        await self.core.installer.set_pinned(server_id, pinned)
        await self.core.look_for_updates()
        self.servers.sync()

    # These methods only read, so they work with --read-only.

    @method("refresh", changes=False)
    def verify(self, call: Call, ids: Sequence[str], options: Options) -> str:
        """Compare installed files with the recorded hashes."""
        return _path(self.core.installer.verify(ids, call.uid))

    @method("refresh", changes=False)
    def check_updates(self, call: Call, options: Options) -> str:
        """Look for updates."""
        return _path(self.core.installer.check_updates(call.uid))

    @method("refresh", changes=False)
    def refresh(self, call: Call, options: Options) -> str:
        """Read the registries again."""
        return _path(self.core.installer.refresh(call.uid))

    # --- configuring ---

    @method()
    async def get_config(self, call: Call, server_id: str) -> tuple[dict[str, Variant], list[str]]:
        """Return the configuration of a server, and which secrets are set."""
        found = await asyncio.to_thread(self.core.store.config, server_id)
        return to_variants(found.values), [text(key) for key in found.secrets_set]

    @method("configure", details={"id": "server_id", "keys": "changes"})
    async def set_config(self, call: Call, server_id: str, changes: Mapping[str, Any], options: Options) -> None:
        """Change the configuration of a server."""
        unset = dict.fromkeys(option(options, "unset", list, []))
        await asyncio.to_thread(self.core.store.set_config, server_id, {**arguments.config_values(changes), **unset})
        self._on_configured(server_id)

    @method("set-secret", details={"id": "server_id", "keys": "key"})
    async def set_secret(self, call: Call, server_id: str, key: str, value: int, options: Options) -> None:
        """Set or remove a secret of a server."""
        secret = await arguments.read_secret(call, value, key)
        await asyncio.to_thread(self.core.store.set_secret, server_id, key, secret)
        self._on_configured(server_id)

    def _on_configured(self, server_id: str) -> None:
        """Update the objects, and forget earlier crashes: they happened with another configuration."""
        self.core.sessions.forget_crashes(server_id)
        self.servers.sync()

    # --- running ---

    @method()
    def list_sessions(self, call: Call) -> list[dict[str, Variant]]:
        """Return the sessions; only root sees those of other users."""
        sessions = self.core.sessions
        return [
            SessionObject(session, sessions).listed()
            for session in sessions.list()
            if call.uid == 0 or call.owns(session.owner)
        ]

    async def _authorize_spawn(
        self, call: Call, server_id: str, fds: Mapping[int, int], flags: int, options: Options
    ) -> Authorization[Owner]:
        """Determine the user that the server is started for; in the user scope no authorization is needed."""
        owner = Owner(self._owner_uid(call, options), call.sender)
        details = {"id": server_id}
        if self.core.scope is Scope.USER:
            return Authorization(None, details, owner)
        if "caller-uid" in options:
            await self.servers.scan()
            values = self.servers.get(server_id).record.values
            if values.get("run-as") != "system":
                raise NotSupported(f"server {server_id} runs as its caller; the system bridge cannot start it")
            owner = replace(owner, is_shared=values.get("sharing") == "all")
            user = await asyncio.to_thread(find_user, owner.uid)
            groups = f" {' '.join(map(text, user.groups))} "
            details |= {"caller-uid": str(owner.uid), "caller-user": user.name, "caller-groups": groups}
        return Authorization("spawn", details, owner)

    def _owner_uid(self, call: Call, options: Options) -> int:
        if "caller-uid" not in options:
            return call.uid
        if call.uid != self.bridge_uid:
            raise NotAuthorized("Spawn: only the system bridge may start a server for another user (caller-uid)")
        uid = option(options, "caller-uid", int, call.uid)
        if not 0 <= uid < _INVALID_UID:
            raise InvalidArgument(f"option 'caller-uid': {uid} is not a user id")
        return uid

    @authorized_method(_authorize_spawn, changes=False)
    async def spawn(
        self, call: Call, owner: Owner, server_id: str, fds: Mapping[int, int], flags: int, options: Options
    ) -> tuple[str, dict[int, int]]:
        """Start a server for *owner*."""
        if flags:
            raise InvalidArgument(f"Spawn: unknown flags {flags:#x}; pass 0")
        await self._check_direct(call, server_id, fds, options)
        environment = option(options, "environment", dict, {}) if self.core.scope is Scope.USER else {}
        if not all(isinstance(part, str) for pair in environment.items() for part in pair):
            raise InvalidArgument("Spawn: environment must be a dictionary of strings")
        if option(options, "check", bool, default=False):
            return "/", {}
        if (program := call.caller.program()) in _ONE_SHOT_CLIENTS:
            raise SpawnFailed(
                f"{server_id}: {program} disconnects from the message bus when Spawn returns, which would end the"
                f" server; use a client that stays connected, or 'mcpctl run {server_id}'"
            )
        stdio, reply_indices = _stdio(call, fds)
        session = await self.core.sessions.spawn(server_id, stdio, owner=owner, environment=environment)
        if call.caller.gone.is_set():
            # The caller left before its session was recorded, so nothing else stops the session.
            await self.core.sessions.stop(session.number)
            raise ServiceUnavailable(f"{call.sender} has disconnected from the message bus")
        return session_path(session.number), reply_indices

    async def _check_direct(self, call: Call, server_id: str, fds: Mapping[int, int], options: Options) -> None:
        """Raise :class:`~mcpd.errors.NeedsBridge` if the server must be used through the bridge.

        The bridge applies the mcps map and shares processes. A direct start must not bypass restrictions that an
        administrator set there.
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
            raise NeedsBridge(f"server {server_id} must be used through the bridge: the mcps map changes its tools")
        if is_direct and fds and server.manifest.runtime.sharing != "session":
            raise NeedsBridge(f"server {server_id} must be used through the bridge: its process is shared")


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


def _is_signed(offer: CatalogEntry) -> bool:
    """Return whether a trusted key is known to have signed all of *offer*; a summary is completed only later."""
    return offer.verified and not offer.entry.is_summary


async def _manifest(call: Call, index: int) -> bytes:
    from mcpd.install.entries import MAX_MANIFEST  # not needed to start

    return await read_all(call.fds.get(index), MAX_MANIFEST, "the manifest", arguments.READ_TIMEOUT)


def _path(job: Job) -> str:
    return job_path(job.number)


def _generation_details(server_id: str, number: int | None) -> dict[str, object]:
    return {"id": server_id} | ({"generation": number} if number else {})
