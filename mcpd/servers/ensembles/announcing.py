# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tells clients which resources have changed, as files of ensembles, profiles and runs do."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from mcpd.servers.ensembles import uris
from mcpd.servers.ensembles.directories import SERVER
from mcpd.servers.ensembles.library.changes import watch

if TYPE_CHECKING:
    from mcpd.servers.changes import Changes
    from mcpd.servers.ensembles.library.changes import Changes as Found
    from mcpd.servers.ensembles.service import Service

log = logging.getLogger(SERVER)


async def announce(service: Service, changes: Changes) -> None:
    """Watch the files of *service* and tell clients by *changes*, until it is cancelled."""
    news: asyncio.Queue[Found] = asyncio.Queue()
    library = service.library
    watching = asyncio.create_task(watch(library, library.artifact_roots(), news.put_nowait, changes.ready))
    watching.add_done_callback(_ended)
    watching.add_done_callback(lambda _: changes.ready.set())
    try:
        while True:
            found = await news.get()
            await changes.publish(_uris(found), listing=found.listing)
    finally:
        watching.cancel()
        await asyncio.wait([watching])


def _uris(found: Found) -> list[str]:
    """The resources that are others now."""
    made = [uris.ENSEMBLES] if found.ensembles or found.listing else []
    made += [uris.PROFILES] if found.profiles else []
    made += [uris.uri(uris.ENSEMBLE, name) for name in sorted(found.ensembles)]
    return made + [uris.uri(kind, name) for name in sorted(found.artifacts) for kind in (uris.ARTIFACTS, uris.METRICS)]


def _ended(watching: asyncio.Task[None]) -> None:
    """The server works without it, too: its clients have to look for themselves."""
    if not watching.cancelled() and (error := watching.exception()) is not None:
        log.warning("changes are not noticed any more: %s", error)
