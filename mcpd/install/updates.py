# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether a registry has something newer than what is installed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from mcpd.install.summary import is_summary
from mcpd.install.workbench import strip_credentials

if TYPE_CHECKING:
    from mcpd.model import Entry, Manifest

_Key: TypeAlias = list[tuple[int, int, str]]


def is_pinned(manifest: Manifest) -> bool:
    """Whether somebody asked for the installed version by name, so that updates leave it alone."""
    origin = (manifest.model_extra or {}).get("origin")
    return isinstance(origin, dict) and origin.get("pinned") is True


def is_update(manifest: Manifest, entry: Entry) -> bool:
    """Whether *entry* is newer than the installed *manifest*: a higher version, or the same one with other pins."""
    if is_pinned(manifest):
        return False
    if entry.version and manifest.version and entry.version != manifest.version:
        return _key(entry.version) > _key(manifest.version)
    return not is_summary(entry) and _pins(entry) != _pins(manifest)


def _pins(entry: Entry) -> tuple[str, ...]:
    source = entry.source
    if source is None:
        return ()
    url = strip_credentials(source.url)
    return (source.type, url, source.path, source.package, source.version, source.rev, source.sha256)


def _key(version: str) -> _Key:
    """For comparing versions as people mean them: numbers by value, ``1.0rc1`` before ``1.0`` before ``1.0.1``."""
    parts = re.findall(r"[0-9]+|[a-z]+", version.lower().removeprefix("v"))
    return [*(_number(part) if part.isdigit() else (0, 0, part) for part in parts), (1, 0, "")]


def _number(digits: str) -> tuple[int, int, str]:
    """Sorts by value, without the limit that ``int`` has on digits: a registry may write any number of them."""
    significant = digits.lstrip("0")
    return (2, len(significant), significant)
