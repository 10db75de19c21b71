# SPDX-License-Identifier: LGPL-2.1-or-later
"""An MCP bundle that a caller brought, and what it says of itself."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcpd.errors import InvalidManifest, LimitExceeded
from mcpd.formats.mcpb import entry_of_bundle
from mcpd.install import unpack
from mcpd.install.mcpb import MANIFEST
from mcpd.model import SourceType, load_json
from mcpd.store import bounded

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.model import Entry


@dataclass(frozen=True, slots=True)
class Bundle:
    """A copy that belongs to mcpd until it is removed."""

    path: Path
    sha256: str
    entry: Entry
    """What it says of itself, with the copy as its source."""

    def remove(self) -> None:
        """Remove the copy."""
        self.path.unlink(missing_ok=True)


def describe(path: Path, sha256: str) -> Bundle:
    """The bundle in the file *path*, which hashes to *sha256*; blocks.

    Raises :class:`~mcpd.errors.InvalidManifest` for what is no bundle; the file stays.
    """
    return Bundle(path, sha256, _describe(path, sha256))


def _describe(path: Path, sha256: str) -> Entry:
    try:
        ended, said = bounded.run(
            [sys.executable or "/usr/bin/python3", "-I", "-S", unpack.__file__, "member", str(path), MANIFEST], b""
        )
    except LimitExceeded as error:
        raise InvalidManifest("the bundle takes too long to read") from error
    if ended != 0:
        fault = said.decode("utf-8", "replace").strip().removeprefix("error: ")
        raise InvalidManifest(f"the bundle cannot be read: {fault[-300:]}")
    entry = entry_of_bundle(load_json(said, "the bundle's manifest.json"), "the bundle's manifest.json")
    document = entry.to_json() | {"source": {"type": str(SourceType.MCPB), "url": path.as_uri(), "sha256": sha256}}
    return type(entry).parse(document, "the bundle's manifest.json")
