# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether a signature of a registry says anything of what is installed: only of what its entry pins."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from mcpd.model import COMMIT, SourceType

if TYPE_CHECKING:
    from mcpd.model import Entry, Source

_SHA256: Final = re.compile(r"[0-9a-fA-F]{64}")
_EXACT: Final = {
    SourceType.NPM: re.compile(r"\d+\.\d+\.\d+(?:[-+][0-9A-Za-z.+-]+)?", re.ASCII),
    SourceType.PYPI: re.compile(r"(?:\d+!)?\d+(?:\.\d+)*[0-9A-Za-z.+_-]*", re.ASCII),
}


def pins_what_it_names(entry: Entry) -> bool:
    """Whether nothing else than what *entry* means can be installed by it."""
    if entry.source is not None:
        return _is_exact(entry.source)
    if entry.manifest and not entry.transports:
        pinned = entry.integrity.get("manifestSha256") if isinstance(entry.integrity, dict) else None
        return isinstance(pinned, str) and _SHA256.fullmatch(pinned) is not None
    return entry.remote is not None


def pinned_sha256(entry: Entry) -> str:
    """The SHA-256 of the one file that *entry* installs; empty if it pins none."""
    source = entry.source
    return source.sha256 if source is not None and source.is_file else ""


def _is_exact(source: Source) -> bool:
    if source.is_file:
        return bool(source.sha256)
    if source.type is SourceType.GIT:
        return COMMIT.fullmatch(source.rev) is not None
    exact = _EXACT.get(source.type) if isinstance(source.type, SourceType) else None
    return exact is not None and exact.fullmatch(source.version) is not None
