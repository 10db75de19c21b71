# SPDX-License-Identifier: LGPL-2.1-or-later
"""The catalogue: the entries of all registries as one list."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from mcpd.catalog.cache import Cache, Copy
from mcpd.catalog.fetch import Fetcher
from mcpd.catalog.sources import SourceLine, Sources, check_source_url
from mcpd.errors import InvalidManifest, McpdError, NotFound, SourceUnavailable
from mcpd.model import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mcpd.model import Entry, Problem
    from mcpd.paths import Paths, Scope
    from mcpd.settings import Settings

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 8
"""Registries fetched at the same time."""
MAX_LIMIT: Final = 1000


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """An entry and the URL of the registry it is from."""

    entry: Entry
    origin: str


class Catalog:
    """What the sources of one instance offer; reading it needs no network.

    It may parse copies of many megabytes, so :meth:`entries`, :meth:`offers`, :meth:`find` and :meth:`query` are for
    threads beside an event loop.
    """

    def __init__(self, paths: Paths, scope: Scope, settings: Settings) -> None:
        self._sources = Sources(paths, scope)
        self._cache = Cache(paths.layout(scope).cache / "registries")
        self._settings = settings
        self._faults: dict[str, str] = {}
        """Why the last fetch of a source failed, by its normal URL."""

    def sources(self) -> list[SourceLine]:
        """Every source once, in order of precedence, with how it is."""
        return [self._with_state(line) for line in self._sources.lines()]

    def add_source(self, url: str) -> None:
        """List *url*; it is fetched at the next :meth:`refresh`.

        Raises :class:`~mcpd.errors.InvalidArgument`.
        """
        self._sources.add(url)

    def remove_source(self, url: str) -> None:
        """List *url* no longer. Raises :class:`~mcpd.errors.NotFound`, :class:`~mcpd.errors.ReadOnly`."""
        self._sources.remove(url)

    async def refresh(self, progress: Callable[[int, int], None] | None = None) -> list[SourceUnavailable]:
        """Fetch all registries; *progress* is told how many of how many are done.

        Returns the failures; those sources keep their last copy. Raises
        :class:`~mcpd.errors.SourceUnavailable` if there are sources and all of them failed.
        """
        lines = await asyncio.to_thread(self._sources.lines)
        urls = [check_source_url(line.url) for line in lines if line.state != "invalid"]
        failures: list[SourceUnavailable] = []
        done = 0
        slots = asyncio.Semaphore(_AT_ONCE)
        limits = self._settings.catalog
        async with Fetcher(seconds=limits.timeout, max_bytes=limits.max_bytes) as fetcher:

            async def one(url: str) -> None:
                nonlocal done
                async with slots:
                    failure = await self._refresh_one(fetcher, url)
                if failure is not None:
                    failures.append(failure)
                done += 1
                if progress is not None:
                    progress(done, len(urls))

            async with asyncio.TaskGroup() as group:
                for url in urls:
                    group.create_task(one(url))
        self._faults = {url: fault for url, fault in self._faults.items() if url in urls}
        if failures and len(failures) == len(urls):
            raise SourceUnavailable("; ".join(failure.message for failure in failures))
        return failures

    async def _refresh_one(self, fetcher: Fetcher, url: str) -> SourceUnavailable | None:
        try:
            kept = await asyncio.to_thread(self._cache.load, url)
            fetched = await fetcher.fetch(url, kept.etag if kept is not None else "")
            if fetched.data is None:
                await asyncio.to_thread(self._cache.confirm, url)
            else:
                await asyncio.to_thread(self._cache.store, url, fetched.data, fetched.etag)
        except SourceUnavailable as error:
            failure = error
        except InvalidManifest as error:
            failure = SourceUnavailable(error.message)
        except McpdError as error:
            failure = SourceUnavailable(f"{url}: {error.message}")
        else:
            self._faults.pop(url, None)
            return None
        _log.warning("%s", failure.message)
        self._faults[url] = failure.message
        return failure

    def entries(self) -> list[CatalogEntry]:
        """All entries by id; of two with the same id the one of the earlier source (S-5)."""
        return [found[0] for _, found in sorted(self.offers().items())]

    def offers(self) -> dict[str, list[CatalogEntry]]:
        """By id, the entries of all registries that have it, in order of the sources."""
        merged: dict[str, list[CatalogEntry]] = {}
        for url, copy in self._copies():
            for entry in copy.registry.servers:
                merged.setdefault(entry.id, []).append(CatalogEntry(entry, url))
        return merged

    def problems(self) -> list[Problem]:
        """What is wrong with entries of the registries (S-36)."""
        return [problem for _, copy in self._copies() for problem in copy.registry.problems]

    def find(self, server_id: str) -> CatalogEntry:
        """The entry *server_id* of the first source that has it. Raises :class:`~mcpd.errors.NotFound`."""
        for url, copy in self._copies():
            for entry in copy.registry.servers:
                if entry.id == server_id:
                    return CatalogEntry(entry, url)
        raise NotFound(f"no source offers a server {printable(server_id)!r}; 'mcpctl refresh' fetches the newest lists")

    def query(
        self, text: str = "", *, category: str = "", cursor: str = "", limit: int = 100
    ) -> tuple[list[CatalogEntry], str]:
        """Entries that hold every word of *text* and have *category*, by id.

        At most *limit* of them after *cursor*, and the cursor of the next page: empty when there is none.
        """
        words = text.casefold().split()
        limit = min(max(limit, 1), MAX_LIMIT)
        hits = [
            found
            for found in self.entries()
            if found.entry.id > cursor and _has_category(found.entry, category) and _matches(found.entry, words)
        ]
        page = hits[:limit]
        return page, page[-1].entry.id if len(hits) > limit else ""

    def _with_state(self, line: SourceLine) -> SourceLine:
        if line.state == "invalid":
            return line
        url = check_source_url(line.url)
        fault = self._faults.get(url, "")
        try:
            updated = self._cache.path(url).stat().st_mtime
        except OSError:
            return replace(line, state="failed" if fault else "new", problem=fault)
        return replace(line, state="offline" if fault else "ready", updated=updated, problem=fault)

    def _copies(self) -> Iterator[tuple[str, Copy]]:
        for line in self._sources.lines():
            if line.state != "invalid":
                url = check_source_url(line.url)
                copy = self._cache.load(url)
                if copy is not None:
                    yield url, copy


def _has_category(entry: Entry, category: str) -> bool:
    return not category or category.casefold() in (name.casefold() for name in entry.categories)


def _matches(entry: Entry, words: list[str]) -> bool:
    if not words:
        return True
    text = "\n".join((entry.id, entry.name, entry.summary, entry.description, *entry.categories)).casefold()
    return all(word in text for word in words)
