# SPDX-License-Identifier: LGPL-2.1-or-later
"""Entries from outside the catalog: user-supplied, fetched for a summary, or derived from an installed server."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from mcpd.catalog.fetch import Fetcher
from mcpd.catalog.ingest import pins_what_it_names
from mcpd.catalog.registries import check_entry_url, signature_url
from mcpd.errors import (
    IntegrityMismatch,
    InvalidArgument,
    InvalidManifest,
    NotSupported,
    SignatureInvalid,
    SourceUnavailable,
)
from mcpd.formats import server_json
from mcpd.formats.seed import published_fields
from mcpd.install.lockfile import read_lock
from mcpd.model import Entry, load_json
from mcpd.package_sources import PACKAGE_SOURCES
from mcpd.threads import in_thread

if TYPE_CHECKING:
    from mcpd.catalog import CatalogEntry
    from mcpd.settings import CatalogSettings
    from mcpd.store import InstalledServer
    from mcpd.trust.keys import Keys

_INSTALLED_FIELDS: Final = frozenset({"config", "installDir"})
"""Fields that an installed manifest has in addition to an entry's."""


def user_supplied_entry(data: bytes) -> Entry:
    """Return the entry in *data*, the JSON of a manifest, an entry or a ``server.json``.

    Raises :class:`~mcpd.errors.InvalidManifest`.
    """
    document = load_json(data, "the manifest")
    if isinstance(document, dict):
        document = {key: value for key, value in document.items() if key not in _INSTALLED_FIELDS}
    parse = server_json.entry_of if server_json.is_server_json(document) else Entry.parse
    return parse(document, "the manifest")


def published_entry(server: InstalledServer) -> dict[str, Any]:
    """Return the entry that *server* was installed from, pinned to the installed version, for use in a registry.

    Blocks on the disk. Raises :class:`~mcpd.errors.NotSupported` for a script server or a broken one.
    """
    if server.script is not None or server.manifest is None:
        raise NotSupported(f"{server.id} was not installed from an entry")
    lock = read_lock(server.generation)
    entry, resolved = lock.get("entry"), lock.get("resolved")
    if not isinstance(entry, dict):
        # Servers from other tools or distribution packages have no lock file; their manifest describes them.
        entry = {key: value for key, value in server.manifest.to_json().items() if key != "scope"}
    entry = published_fields(entry)
    if server.manifest.version:
        entry["version"] = server.manifest.version
    if isinstance(source := entry.get("source"), dict) and isinstance(resolved, dict):
        # Without a pin, the next installation of this entry could install another version.
        kind = PACKAGE_SOURCES.get(str(source.get("type")))
        if kind is not None and resolved.get(kind.pin) and not source.get(kind.pin):
            entry["source"] = {**source, kind.pin: resolved[kind.pin]}
    return entry


MAX_MANIFEST: Final = 1024 * 1024
"""Maximum size in bytes of a manifest that is not part of a registry."""


async def complete_entry(offer: CatalogEntry, limits: CatalogSettings, keys: Keys) -> CatalogEntry:
    """Return *offer* itself or, for a summary, the offer with the manifest fetched from its URL.

    The manifest is signed by a key if a signed registry pins its hash, or if it has a signature file; it counts as
    verified if it pins its files in turn. The version is that of the registry, which updates are compared with.

    Raises :class:`~mcpd.errors.SourceUnavailable`, :class:`~mcpd.errors.IntegrityMismatch` if the hash differs from
    ``integrity.manifestSha256``, and :class:`~mcpd.errors.InvalidManifest` for the manifest of another server.
    """
    entry, is_signed = offer.entry, False
    if not entry.is_summary:
        return offer
    try:
        url = check_entry_url(entry.manifest, offer.origin)
    except InvalidArgument as error:
        raise InvalidManifest(f"{entry.id}: manifest: {error.message}") from error
    pinned = entry.integrity.get("manifestSha256") if isinstance(entry.integrity, dict) else None
    async with Fetcher(seconds=limits.timeout, max_bytes=min(limits.max_bytes, MAX_MANIFEST)) as fetcher:
        data = (await fetcher.fetch(url)).data
        if data is None:
            raise SourceUnavailable(f"{url}: no manifest received")
        if pinned is None:
            offer = await _signed(offer, url, data, fetcher, keys)
            is_signed = offer.verified
    found = hashlib.sha256(data).hexdigest()
    if pinned is not None and found != str(pinned).lower():
        raise IntegrityMismatch(f"{url} has sha256 {found}, but the registry pins {pinned}; nothing was installed")
    document = load_json(data, url)
    if isinstance(document, dict):
        # A signature covers only the manifest, so nothing is added to it from an unsigned registry.
        document = {"id": entry.id, **({} if is_signed else entry.to_json()), **document}
    whole = Entry.parse(document, url)
    if whole.id != entry.id:
        raise InvalidManifest(f"{url} is the manifest of {whole.id!r}, not of {entry.id!r}")
    if is_signed and entry.version not in {"", whole.version}:
        raise InvalidManifest(f"{url} is the signed manifest of version {whole.version}, not of {entry.version}")
    if entry.version and whole.version != entry.version:
        whole = whole.model_copy(update={"version": entry.version})
    verified = offer.verified and pins_what_it_names(whole)
    return replace(offer, entry=whole, verified=verified, signer=offer.signer if verified else "")


async def _signed(offer: CatalogEntry, url: str, data: bytes, fetcher: Fetcher, keys: Keys) -> CatalogEntry:
    try:
        signature = (await fetcher.fetch(signature_url(url))).data
        signer = await in_thread(keys.signer, data, signature or b"")
    except (SourceUnavailable, SignatureInvalid):
        signer = None  # most manifests are not signed
    return replace(offer, verified=signer is not None, signer=signer.name if signer is not None else "")
