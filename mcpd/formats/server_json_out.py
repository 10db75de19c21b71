# SPDX-License-Identifier: LGPL-2.1-or-later
"""Entries as documents for others: server.json, and a registry of seed 001 §4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcpd.formats.server_json import original
from mcpd.formats.server_json_build import built, seed_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcpd.model import Entry, JsonValue


def server_json_of(entry: Entry) -> dict[str, JsonValue]:
    """The server.json (2025-12-11) for *entry*, from which :func:`~mcpd.formats.server_json.entry_of` makes it again.

    An entry that came from a server.json and is what that says gives that document, whatever its schema.
    """
    return original(entry) or built(entry)


def registry_of(entries: Iterable[Entry], updated: str) -> dict[str, JsonValue]:
    """A registry of *entries*, last changed at *updated* (ISO 8601)."""
    return {"version": "1.0", "updated": updated, "servers": [seed_of(entry) for entry in entries]}
