# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which places an entry of a registry may send mcpd to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from mcpd.catalog.hosts import is_beside, is_here
from mcpd.catalog.urls import check_source_url
from mcpd.errors import InvalidArgument
from mcpd.model import SourceType, printable, strip_credentials

if TYPE_CHECKING:
    from mcpd.model import Entry

_FILE: Final = "file:"


def check_entry_url(url: str, registry: str) -> str:
    """*url*, which an entry of *registry* names, in its normal form; *registry* is empty for what a caller brought.

    A registry elsewhere can neither have files of this machine read nor the services of this machine, or of those
    beside it, asked. Raises :class:`~mcpd.errors.InvalidArgument`.
    """
    checked = check_source_url(url)
    if not registry or registry.startswith(_FILE):
        return checked
    if checked.startswith(_FILE):
        raise InvalidArgument(f"{printable(url)}: a registry on the network cannot name files of this machine")
    host, asking = urlsplit(checked).hostname or "", urlsplit(registry).hostname or ""
    if is_here(host) and not is_here(asking):
        raise InvalidArgument(f"{printable(url)}: a registry on the network cannot name a service of this machine")
    if is_beside(host) and not is_beside(asking):
        raise InvalidArgument(f"{printable(url)}: a registry elsewhere cannot name a link-local address")
    return checked


def out_of_reach(entry: Entry, registry: str) -> str:
    """Why *entry* of *registry* cannot be installed from where it says, for people; empty if it may be.

    *registry* is as of :func:`check_entry_url`. One elsewhere would have files of this machine copied into its server's
    sight.
    """
    is_elsewhere = bool(registry) and not registry.startswith(_FILE)
    source, field, url = entry.source, "source.url", ""
    if entry.is_summary:
        field, url = "manifest", entry.manifest
    elif source is not None and source.type is SourceType.LOCAL and is_elsewhere:
        return "a registry on the network cannot name files of this machine as a source"
    elif source is not None and source.is_file:
        url = source.url
    elif source is not None and is_elsewhere:
        url = strip_credentials(source.url)
    try:
        if url:
            check_entry_url(url, registry)
    except InvalidArgument as error:
        return f"{field}: {error.message}"
    return ""
