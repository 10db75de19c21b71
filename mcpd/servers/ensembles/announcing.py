# SPDX-License-Identifier: LGPL-2.1-or-later
"""Notifications to clients about changed resources: ensembles, profiles and runs."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from mcpd.servers.ensembles import uris
from mcpd.servers.ensembles.directories import SERVER
from mcpd.servers.ensembles.library.changes import watch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcpd.servers.changes import Changes
    from mcpd.servers.ensembles.library.changes import Changes as Found
    from mcpd.servers.ensembles.library.library import Entry
    from mcpd.servers.ensembles.service import Service

LATEST: Final = 2.0
"""Seconds after which files are watched even if no client has subscribed."""
_OF_RUNS: Final = (uris.ARTIFACTS, uris.METRICS)

log = logging.getLogger(SERVER)


async def announce(service: Service, changes: Changes) -> None:
    """Watch the files of *service* and notify clients with *changes*, until cancelled."""
    news: asyncio.Queue[Found] = asyncio.Queue()
    library = service.library
    # Do not delay the first request, which scans all files as well.
    with suppress(TimeoutError):
        async with asyncio.timeout(LATEST):
            await changes.wanted.wait()
    watching = asyncio.create_task(watch(library, library.artifact_roots(), news.put_nowait, changes.ready))
    watching.add_done_callback(_ended)
    watching.add_done_callback(lambda _: changes.ready.set())
    try:
        while True:
            found = await news.get()
            entries = await asyncio.to_thread(library.entries) if found.ensembles or found.artifacts else []
            # Of several ensembles with this name, another one may have runs now.
            listing = found.listing or any(each.shadowed and each.name in found.artifacts for each in entries)
            await changes.publish(_uris(found, entries), listing=listing)
    finally:
        watching.cancel()
        await asyncio.wait([watching])


def _uris(found: Found, entries: Iterable[Entry]) -> list[str]:
    """Return the URIs of the changed resources, in every form in which they can be read."""
    made = [uris.ENSEMBLES] if found.ensembles or found.listing else []
    made += [uris.PROFILES] if found.profiles else []
    made += [uris.uri(uris.ENSEMBLE, name) for name in sorted(found.ensembles)]
    made += [uris.uri(kind, name) for name in sorted(found.artifacts) for kind in _OF_RUNS]
    for entry in entries:
        kinds = [
            *([uris.ENSEMBLE] if entry.name in found.ensembles else []),
            *(_OF_RUNS if entry.name in found.artifacts else []),
        ]
        made += [form(kind, entry.qualified) for kind in kinds for form in (uris.uri, uris.plain_uri)]
    return made


def _ended(watching: asyncio.Task[None]) -> None:
    """Log the end of *watching*; without it the server works, but sends no notifications."""
    if not watching.cancelled() and (error := watching.exception()) is not None:
        log.warning("changes are not noticed any more: %s", error)
