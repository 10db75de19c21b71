# SPDX-License-Identifier: LGPL-2.1-or-later
"""A manifest or registry entry that a caller brought."""

from __future__ import annotations

from typing import Final

from mcpd.formats import server_json
from mcpd.model import Entry, load_json

_OF_MCPD: Final = frozenset({"config", "installDir"})
"""What a manifest that was installed says beside the entry."""


def brought_entry(data: bytes) -> Entry:
    """What *data*, JSON of a manifest, an entry or a ``server.json``, describes.

    Raises :class:`~mcpd.errors.InvalidManifest`.
    """
    document = load_json(data, "the manifest")
    if isinstance(document, dict):
        document = {key: value for key, value in document.items() if key not in _OF_MCPD}
    parse = server_json.entry_of if server_json.is_server_json(document) else Entry.parse
    return parse(document, "the manifest")
