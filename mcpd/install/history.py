# SPDX-License-Identifier: LGPL-2.1-or-later
"""The history of a server: its generations that still exist."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from mcpd.errors import InvalidManifest, NotFound, from_oserror
from mcpd.files import is_missing
from mcpd.install.lockfile import identity, read_lock
from mcpd.install.updates import recorded_registry
from mcpd.package_sources import PACKAGE_SOURCES

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.model import Manifest
    from mcpd.store import Store


@dataclass(frozen=True, slots=True)
class GenerationInfo:
    """One generation in the history."""

    number: int
    version: str
    """Empty if the manifest is broken."""
    state: Literal["active", "previous", "pending"]
    """``pending``: waits for approval; ``previous``: not active, even if newer than the active generation."""
    registry: str
    """URL of the registry that it was installed from; empty if it was user-supplied, or if the registry is unknown."""
    resolved: str
    """The commit, version or hash that was installed."""
    installed: float
    """Seconds since the epoch."""
    verified: bool
    """True if the generation was verified when it was installed."""


def history(store: Store, server_id: str) -> list[GenerationInfo]:
    """Return the generations of *server_id* in the scope of *store*, newest first.

    The list is empty for a server that mcpd did not install. Blocks on the disk. Raises :class:`~mcpd.errors.NotFound`.
    """
    store.get(server_id)
    active, held = store.active_generation(server_id), store.held(server_id)
    numbers = {*store.generations(server_id), *(number for number in (active, held) if number is not None)}
    found = []
    for number in sorted(numbers, reverse=True):
        with suppress(NotFound):  # removed in the meantime
            found.append(_info(store, server_id, number, active, held))
    return found


def _info(store: Store, server_id: str, number: int, active: int | None, held: int | None) -> GenerationInfo:
    path = store.generation_path(server_id, number)
    manifest: Manifest | None
    try:
        manifest = store.generation_manifest(server_id, number)
    except InvalidManifest:
        manifest = None
    lock = read_lock(path)
    resolved = lock.get("resolved")
    known = resolved if isinstance(resolved, dict) else {}
    return GenerationInfo(
        number,
        manifest.version if manifest else "",
        "active" if number == active else "pending" if number == held else "previous",
        _text(lock.get("registry")) or (recorded_registry(manifest) if manifest else "") or "",
        next((_text(known[kind.pin]) for kind in PACKAGE_SOURCES.values() if known.get(kind.pin)), ""),
        _installed(lock, path),
        bool(lock.get("verified")),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _installed(lock: dict[str, Any], path: Path) -> float:
    try:
        return datetime.fromisoformat(_text(lock.get("installed"))).timestamp()
    except (ValueError, OverflowError):
        try:
            return path.stat().st_mtime
        except OSError as error:
            if is_missing(error):
                return 0.0
            raise from_oserror(error, f"reading {path}") from error


def rollback_target(store: Store, server_id: str, wanted: int | None = None) -> int:
    """Return the generation to roll back to: *wanted*, or the newest older one whose content differs.

    The content is compared because an update that was rolled back and installed again exists twice. If all older
    generations have the same content, the previous one is returned. Blocks on the disk. Raises
    :class:`~mcpd.errors.NotFound` if there is none.
    """
    active = store.active_generation(server_id)
    if wanted is None and active is not None:
        present = identity(store.generation_path(server_id, active))
        older = [number for number in reversed(store.generations(server_id)) if number < active]
        others = (number for number in older if identity(store.generation_path(server_id, number)) != present)
        wanted = next(others, None)
    return store.previous(server_id, wanted)
