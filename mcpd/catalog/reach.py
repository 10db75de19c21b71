# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which places an entry of a registry may send mcpd to."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from mcpd.catalog.hosts import is_beside, is_here
from mcpd.catalog.urls import check_source_url
from mcpd.errors import InvalidArgument
from mcpd.model import printable

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
