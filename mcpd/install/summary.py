# SPDX-License-Identifier: LGPL-2.1-or-later
"""Registry entries that are a summary and name the URL of their manifest."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from mcpd.catalog.fetch import Fetcher
from mcpd.catalog.sources import check_source_url
from mcpd.errors import IntegrityMismatch, InvalidArgument, InvalidManifest, SourceUnavailable
from mcpd.model import Entry, load_json

if TYPE_CHECKING:
    from mcpd.settings import CatalogSettings


def is_summary(entry: Entry) -> bool:
    """Whether *entry* cannot be installed without the manifest it names."""
    return bool(entry.manifest) and not entry.transports and entry.source is None


async def whole_entry(entry: Entry, registry: str, limits: CatalogSettings) -> Entry:
    """*entry* of *registry* itself, or what is behind the URL of a summary.

    Raises :class:`~mcpd.errors.SourceUnavailable`, :class:`~mcpd.errors.IntegrityMismatch` for other bytes than
    ``integrity.manifestSha256`` says, and :class:`~mcpd.errors.InvalidManifest` for the manifest of another server.
    """
    if not is_summary(entry):
        return entry
    try:
        url = check_source_url(entry.manifest)
    except InvalidArgument as error:
        raise InvalidManifest(f"{entry.id}: manifest: {error.message}") from error
    if url.startswith("file:") and not registry.startswith("file:"):
        raise InvalidManifest(f"{entry.id}: its manifest would be a file of this machine, which no registry may name")
    async with Fetcher(seconds=limits.timeout, max_bytes=limits.max_bytes) as fetcher:
        data = (await fetcher.fetch(url)).data
    if data is None:
        raise SourceUnavailable(f"{url}: it sent no manifest")
    pinned = entry.integrity.get("manifestSha256") if isinstance(entry.integrity, dict) else None
    found = hashlib.sha256(data).hexdigest()
    if pinned is not None and found != str(pinned).lower():
        raise IntegrityMismatch(f"{url} has sha256 {found}, but the registry pins {pinned}; nothing was installed")
    document = load_json(data, url)
    if isinstance(document, dict):
        document = {"id": entry.id, **entry.to_json(), **document}
    whole = Entry.parse(document, url)
    if whole.id != entry.id:
        raise InvalidManifest(f"{url} is the manifest of {whole.id!r}, not of {entry.id!r}")
    return whole
