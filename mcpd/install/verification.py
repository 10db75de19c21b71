# SPDX-License-Identifier: LGPL-2.1-or-later
"""Comparing all that is installed with what was recorded when it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mcpd.errors import IntegrityMismatch, McpdError
from mcpd.install import verify
from mcpd.install.lockfile import LOCK_FILE
from mcpd.install.threads import in_thread
from mcpd.install.updates import recorded_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mcpd.store import InstalledServer, Store

_NAMED: Final = 20
"""Files of one server that the message names."""


async def verify_servers(
    servers: Sequence[InstalledServer], progress: Callable[[int], None], *, recorded_only: bool
) -> None:
    """Verify *servers*, one after the other; *progress* is told how many are done.

    With *recorded_only* servers that mcpd did not install are passed over. One that cannot be read counts as another
    one than was installed, and keeps none of the rest from being looked at. Raises
    :class:`~mcpd.errors.IntegrityMismatch` that names every server and what is different there.
    """
    found: list[str] = []
    for done, server in enumerate(servers):
        progress(done)
        if recorded_only and not await in_thread(_is_recorded, server):
            continue
        faults = await in_thread(_faults, server)
        if faults:
            more = [f"and {len(faults) - _NAMED} more"] if len(faults) > _NAMED else []
            found.append("\n  ".join([f"{server.id}:", *faults[:_NAMED], *more]))
    if found:
        listed = "\n".join(found)
        raise IntegrityMismatch(f"not what was installed:\n{listed}\n'mcpctl install --reinstall' mends it")


def _is_recorded(server: InstalledServer) -> bool:
    """Whether mcpd installed *server*: a lock file that is gone does not make it another tool's."""
    known = server.manifest is not None and recorded_registry(server.manifest) is not None
    return known or (server.generation / LOCK_FILE).exists()


def _faults(server: InstalledServer) -> list[str]:
    try:
        return verify.verify(server.generation)
    except McpdError as error:
        return [f"cannot be told: {error.message}"]


def check_generation(store: Store, server_id: str, number: int) -> None:
    """Raise :class:`~mcpd.errors.IntegrityMismatch` if a generation is not what was installed any more; blocks.

    One of which nothing was recorded passes.
    """
    path = store.generation_path(server_id, number)
    faults = verify.verify(path) if (path / LOCK_FILE).exists() else []
    if faults and not faults[0].startswith("cannot be told"):
        named = "\n  ".join(faults[:_NAMED])
        raise IntegrityMismatch(f"generation {number} of {server_id} is not what was installed any more:\n  {named}")
