# SPDX-License-Identifier: LGPL-2.1-or-later
"""Comparing all that is installed with what was recorded when it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcpd.errors import IntegrityMismatch, InvalidManifest, McpdError, NotFound, NotSupported
from mcpd.install.lockfile import LOCK_FILE
from mcpd.install.updates import recorded_registry
from mcpd.install.verify import verify
from mcpd.store.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from mcpd.model import Manifest
    from mcpd.store import Store


async def verify_servers(store: Store, server_ids: Collection[str], progress: Callable[[float], None]) -> None:
    """Verify *server_ids* (none: all that mcpd installed in this scope), one after the other.

    *progress* is told how many percent are done. One that cannot be read keeps none of the rest from being looked at.

    Raises :class:`~mcpd.errors.IntegrityMismatch` that names every server which is not what was installed, or of which
    nobody can tell any more, and what is different there. Where there is no such, it raises
    :class:`~mcpd.errors.NotSupported` for one of *server_ids* that mcpd did not install, and
    :class:`~mcpd.errors.NotFound` for one that was removed since.
    """
    changed: list[str] = []
    untold: list[str] = []
    others: list[McpdError] = []
    wanted = server_ids or await in_thread(_recorded, store)
    for done, server_id in enumerate(wanted):
        progress(100 * done / len(wanted))
        try:
            faults = await in_thread(_faults, store, server_id)
        except (NotFound, NotSupported) as error:
            if server_ids:
                others.append(error)
            continue
        except McpdError as error:
            untold.append(f"{server_id}:\n  cannot be told: {error.message}")
            continue
        if faults:
            changed.append("\n  ".join([f"{server_id}:", *faults]))
    said = [error.message for error in others]
    if changed or untold:
        said = ["'mcpctl install --reinstall' mends it", *said]
    if untold:
        said = ["whether this is what was installed cannot be told:", *untold, *said]
    if changed:
        said = ["not what was installed:", *changed, *said]
    if said:
        raise (IntegrityMismatch if changed or untold else type(others[0]))("\n".join(said))


def check_generation(store: Store, server_id: str, number: int) -> None:
    """See that a generation is what was installed; one that mcpd did not install passes. Blocks on the disk.

    Raises :class:`~mcpd.errors.IntegrityMismatch` if it is not, or if its record is gone, and what reading raises.
    """
    path = store.generation_path(server_id, number)
    manifest: Manifest | None
    try:
        manifest = store.generation_manifest(server_id, number)
    except InvalidManifest:
        manifest = None  # which is a difference
    if _is_foreign(path, manifest):
        return
    try:
        faults = verify(path)
    except IntegrityMismatch as error:
        raise IntegrityMismatch(
            f"whether generation {number} of {server_id} is what was installed cannot be told: {error.message}"
        ) from error
    if faults:
        named = "\n  ".join(faults)
        raise IntegrityMismatch(
            f"generation {number} of {server_id} is not what was installed any more; 'mcpctl history {server_id}' lists"
            f" the others:\n  {named}"
        )


def _recorded(store: Store) -> list[str]:
    """The servers of this scope that mcpd installed."""
    return [
        server.id
        for server in store.list()
        if server.writable and server.script is None and _is_recorded(server.generation, server.manifest)
    ]


def _is_recorded(generation: Path, manifest: Manifest | None) -> bool:
    """Whether mcpd installed it: a lock file that is gone does not make it another tool's."""
    known = manifest is not None and recorded_registry(manifest) is not None
    return known or (generation / LOCK_FILE).exists()


def _is_foreign(generation: Path, manifest: Manifest | None) -> bool:
    """Whether another tool installed it; of what has no manifest nobody knows."""
    return manifest is not None and not _is_recorded(generation, manifest)


def _faults(store: Store, server_id: str) -> list[str]:
    """What is not as it was installed. Raises :class:`~mcpd.errors.McpdError` if that cannot be told."""
    while True:
        server = store.get(server_id)
        if _is_foreign(server.generation, server.manifest):
            raise NotSupported(
                f"{server_id} was not installed by mcpd, so nothing was recorded that it could be compared with;"
                " install it with mcpctl to have it verified"
            )
        failure: McpdError | None = None
        faults: list[str] = []
        try:
            faults = verify(server.generation)
        except McpdError as error:
            failure = error
        # What is replaced or removed meanwhile loses its files.
        if (faults or failure) and store.get(server_id).generation != server.generation:
            continue
        if failure is not None:
            raise failure
        return faults
