# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tells clients which resources have changed, as files of ensembles, profiles and runs do."""

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
"""Seconds after which files are watched, whatever clients have asked for."""
_OF_RUNS: Final = (uris.ARTIFACTS, uris.METRICS)

log = logging.getLogger(SERVER)


async def announce(service: Service, changes: Changes) -> None:
    """Watch the files of *service* and tell clients by *changes*, until it is cancelled."""
    news: asyncio.Queue[Found] = asyncio.Queue()
    library = service.library
    # The first look at all files is not to be in the way of the first answer, which looks at all of them, too.
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
            # Of several that share a name one more may have runs now.
            listing = found.listing or any(each.shadowed and each.name in found.artifacts for each in entries)
            await changes.publish(_uris(found, entries), listing=listing)
    finally:
        watching.cancel()
        await asyncio.wait([watching])


def _uris(found: Found, entries: Iterable[Entry]) -> list[str]:
    """The resources that are others now, by each URI that they can be read by."""
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
    """The server works without it, too: its clients have to look for themselves."""
    if not watching.cancelled() and (error := watching.exception()) is not None:
        log.warning("changes are not noticed any more: %s", error)
