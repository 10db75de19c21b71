# SPDX-License-Identifier: LGPL-2.1-or-later
"""The catalog: the entries of all registries as one list."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeVar

from mcpd.catalog.fetch import Fetcher
from mcpd.catalog.registries import SourceLine, Sources, check_source_url, key_of
from mcpd.errors import InvalidManifest, McpdError, NotFound, SourceUnavailable
from mcpd.model import Problem, printable

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection

    from mcpd.catalog.database import Copy, Database, Standing
    from mcpd.catalog.icons import Icons
    from mcpd.catalog.refresh import Refresher
    from mcpd.catalog.registries import State
    from mcpd.catalog.results import CatalogEntry, Failure, Icon, Listing, Query
    from mcpd.paths import Paths, Scope
    from mcpd.settings import Settings
    from mcpd.trust.keys import Keys

T = TypeVar("T")
_log = logging.getLogger(__name__)

_AT_ONCE: Final = 8
"""Registries fetched at the same time."""


class Catalog:
    """What the sources of one instance offer; reading it needs no network.

    All but the coroutines reads files, so it is for threads beside an event loop. Keys and lists of sources are asked
    each time: what they say now counts.
    """

    def __init__(self, paths: Paths, scope: Scope, settings: Settings, keys: Keys) -> None:
        self._scope = scope
        self._sources = Sources(paths, scope)
        self._directory = paths.layout(scope).cache
        self._settings = settings
        self._keys = keys
        self._faults: dict[str, Failure] = {}
        """Why the last refresh of a source failed, by its normal URL."""
        self._empty: dict[str, float] = {}
        """When directories were read that hold nothing, by their normal URL."""

    @cached_property
    def _database(self) -> Database:
        # SQLite is not needed to start.
        from mcpd.catalog.database import Database  # noqa: PLC0415

        return Database(self._directory / "catalog.sqlite")

    @cached_property
    def _icons(self) -> Icons:
        from mcpd.catalog.icons import Icons  # noqa: PLC0415 - see _database

        return Icons(self._directory / "icons")

    def sources(self) -> list[SourceLine]:
        """Every source once, in order of precedence, with how it is."""
        from mcpd.catalog.database import standings  # noqa: PLC0415 - see _database
        from mcpd.catalog.search import faults_of  # noqa: PLC0415

        lines = self._sources.lines()
        order = standings(self._copies(), lines, self._keys)
        faults: dict[str, list[tuple[str, str]]] = self._database.ask(faults_of, {})
        return [self._with_state(line, order, faults) for line in lines]

    def listed(self) -> object:
        """Return something that is equal as long as nobody edited the lists of sources."""
        return self._sources.signature()

    def add_source(self, url: str, *, name: str = "", type: str = "", signature: str = "", key: str = "") -> None:  # noqa: A002 - what the file calls it
        """List *url*; the next :meth:`refresh` fetches it. Arguments and errors as of :meth:`Sources.add`."""
        if all(key_of(line.url) != key_of(url) for line in self._sources.lines()):
            # A line that somebody took out by hand may have left something behind.
            self._forget_removed(url)
        self._sources.add(url, name=name, type=type, signature=signature, key=key)

    def remove_source(self, url: str) -> None:
        """List *url* no longer, and forget all that is known of it.

        Raises :class:`~mcpd.errors.NotFound`, :class:`~mcpd.errors.ReadOnly`.
        """
        self._sources.remove(url)
        self._forget_removed(url)

    async def refresh(
        self, progress: Callable[[int, int], None] | None = None, *, only_new: bool = False
    ) -> list[McpdError]:
        """Fetch all registries, or *only_new*: those that nobody has tried yet.

        *progress* is told how many of how many are done.

        Returns the failures; those sources keep their last copy. If there are sources and all of them failed, raises
        :class:`~mcpd.errors.SourceUnavailable`, or what they failed with if that is one kind.
        """
        from mcpd.catalog import refresh as refreshing  # noqa: PLC0415 - see _database

        known = await asyncio.to_thread(self.sources if only_new else self._sources.lines)
        lines = [line for line in known if line.state == "new" or (not only_new and line.state != "invalid")]
        if not lines and only_new:
            return []
        failures: list[McpdError] = []
        done = 0
        slots = asyncio.Semaphore(_AT_ONCE)
        limits = self._settings.catalog
        async with Fetcher(seconds=limits.timeout, max_bytes=limits.max_bytes) as fetcher:
            refresher = refreshing.Refresher(self._database, self._keys, fetcher, self._directory)

            async def one(line: SourceLine) -> None:
                nonlocal done
                async with slots:
                    failure = await self._refresh_one(refresher, line)
                if failure is not None:
                    failures.append(failure)
                done += 1
                if progress is not None:
                    progress(done, len(lines))

            async with asyncio.TaskGroup() as group:
                for line in lines:
                    group.create_task(one(line))
        await asyncio.to_thread(self._settle)
        if failures and len(failures) == len(lines):
            kinds = {type(failure) for failure in failures}
            raise (kinds.pop() if len(kinds) == 1 else SourceUnavailable)(
                "; ".join(failure.message for failure in failures)
            )
        return failures

    async def _refresh_one(self, refresher: Refresher, line: SourceLine) -> McpdError | None:
        url = check_source_url(line.url)
        failure = await refresher.refresh(line)
        if failure is None:
            self._faults.pop(url, None)
            self._empty.pop(url, None)
            if line.type == "directory" and all(copy.source != url for copy in await asyncio.to_thread(self._copies)):
                self._empty[url] = time.time()
            return None
        error = failure.error
        if isinstance(error, InvalidManifest):
            error = SourceUnavailable(error.message)
        elif url not in error.message:
            error = type(error)(f"{url}: {error.message}")
        _log.warning("%s", error.message)
        self._faults[url] = replace(failure, error=error)
        return error

    def query(self, query: Query, cursor: str = "", limit: int = 100) -> tuple[list[Listing], str]:
        """The entries that *query* wants, the best matches first if it has a text, else by id.

        At most *limit* of them after *cursor*, and the cursor of the next page: empty when there is none. Raises
        :class:`~mcpd.errors.InvalidArgument`.
        """
        from mcpd.catalog.search import search  # noqa: PLC0415 - see _database

        if query.source:
            query = replace(query, source=check_source_url(query.source))
        nothing: tuple[list[Listing], str] = ([], "")
        return self._look(lambda run, order: search(run, order, query, cursor, limit, self._scope), nothing)

    def find(self, server_id: str, source: str = "") -> CatalogEntry:
        """The entry *server_id* of the first source that has it, or of *source* (a URL).

        Raises :class:`~mcpd.errors.NotFound`.
        """
        url = check_source_url(source) if source else ""
        for found in self.offers([server_id]).get(server_id, ()):
            if url in ("", found.origin):
                return found
        whose = f"the registry {printable(url)} does not offer" if url else "no registry offers"
        raise NotFound(f"{whose} a server {printable(server_id)!r}; 'mcpctl refresh' fetches the newest lists")

    def offers(self, ids: Collection[str]) -> dict[str, list[CatalogEntry]]:
        """By id, what the sources have of *ids*, in order of the sources."""
        from mcpd.catalog.search import offers  # noqa: PLC0415 - see _database

        return self._look(lambda run, order: offers(run, order, ids), {})

    def problems(self) -> list[Problem]:
        """What is wrong with entries of the registries, the first hundred of each."""
        return [
            Problem(origin, server_id, message)
            for origin, faults in self._found_faults().items()
            for server_id, message in faults
        ]

    def pins_sha256(self, sha256: str) -> str:
        """The name of the trusted key that vouches for the file of that *sha256*, empty if none does."""
        from mcpd.catalog.search import signer_of  # noqa: PLC0415 - see _database

        return self._look(lambda run, order: signer_of(run, order, sha256), "")

    async def icon(self, url: str, registry: str) -> Icon:
        """The image at *url*, which an entry of *registry* (empty: of none) names; fetched once, and kept.

        Raises :class:`~mcpd.errors.SourceUnavailable`.
        """
        return await self._icons.get(url, registry, self._settings.catalog.timeout)

    def _look(self, question: Callable[[sqlite3.Connection, list[Standing]], T], otherwise: T) -> T:
        """What *question* finds in a database that shows what is trusted now."""
        from mcpd.catalog.database import copies, is_placed, standings  # noqa: PLC0415 - see _database

        lines = self._sources.lines()

        def ask(connection: sqlite3.Connection) -> tuple[bool, T]:
            order = standings(copies(connection), lines, self._keys)
            return (True, question(connection, order)) if is_placed(connection, order) else (False, otherwise)

        placed, found = self._database.ask(ask, (True, otherwise))
        if placed:
            return found
        try:
            self._place()
        except McpdError as error:
            _log.warning("%s; nothing of the registries is shown", error.message)
            return otherwise
        return self._database.ask(ask, (True, otherwise))[1]

    def _place(self) -> None:
        from mcpd.catalog.database import copies, is_placed, place, standings  # noqa: PLC0415 - see _database

        def work(connection: sqlite3.Connection) -> None:
            order = standings(copies(connection), self._sources.lines(), self._keys)
            if not is_placed(connection, order):
                place(connection, order)

        self._database.change(work)

    def _settle(self) -> None:
        """After a refresh: nothing is known of sources that are not listed, and what is there is in order."""
        try:
            self._forget_unlisted()
            self._place()
        except McpdError as error:
            _log.warning("%s", error.message)

    def _forget_removed(self, url: str) -> None:
        """Forget what is known of *url*, which is not listed; a fault is logged, for the list is what counts."""
        try:
            self._forget_unlisted(key_of(url))
        except McpdError as error:
            _log.warning("%s; what is known of the source is forgotten later", error.message)

    def _forget_unlisted(self, removed: str = "") -> None:
        """Forget sources that nobody lists; while a list cannot be read *removed* alone, if that is one of them."""
        from mcpd.catalog.database import copies, show  # noqa: PLC0415 - see _database
        from mcpd.catalog.refresh import forget_copy  # noqa: PLC0415

        lines = self._sources.lines()
        # With a wrong word in a description goes what it asks for, not what is known of its source.
        listed = {key_of(line.url) for line in lines}
        gone = {copy.source for copy in self._copies()} - listed
        if not all(line.url for line in lines):
            gone &= {removed}
        for known in (self._faults, self._empty):
            for url in known.keys() - listed:
                known.pop(url, None)
        if not gone:
            return

        def work(connection: sqlite3.Connection) -> None:
            for copy in copies(connection):
                if copy.source in gone:
                    forget_copy(connection, copy.n)
            show(connection)

        self._database.change(work)

    def _copies(self) -> list[Copy]:
        from mcpd.catalog.database import copies  # noqa: PLC0415 - see _database

        none: list[Copy] = []
        return self._database.ask(copies, none)

    def _found_faults(self) -> dict[str, list[tuple[str, str]]]:
        from mcpd.catalog.search import faults_of  # noqa: PLC0415 - see _database

        listed = {check_source_url(line.url) for line in self._sources.lines() if line.state != "invalid"}
        found: dict[str, list[tuple[str, str]]] = self._database.ask(faults_of, {})
        return {url: faults for url, faults in found.items() if url in listed}

    def _with_state(
        self, line: SourceLine, order: list[Standing], faults: dict[str, list[tuple[str, str]]]
    ) -> SourceLine:
        if line.state == "invalid":
            return line
        url = check_source_url(line.url)
        fault = self._faults.get(url)
        own = [each for each in order if each.line is line and each.copy.fetched]
        problems = [fault.error.message] if fault else [each.problem for each in own if each.problem][:1]
        if not own:
            read = self._empty.get(url, 0.0) if line.type == "directory" else 0.0
            state: State = "ready" if read else "new"
            if fault:
                state = "refused" if fault.state == "refused" else "failed"
            return replace(line, state=state, updated=read, problem="; ".join(problems))
        usable = [each for each in own if each.usable]
        signers = {each.signer for each in own}
        messages = [each.dateless for each in own if each.dateless][:1]
        messages += [message for _, message in faults.get(url, ())]
        more = sum(each.copy.faults for each in own) - len(faults.get(url, ()))
        if more > 0:
            messages.append(f"and {more} more faults")
        return replace(
            line,
            state="untrusted" if not usable else fault.state if fault else "ready",
            updated=min(each.copy.fetched for each in own),
            problem="; ".join(problems),
            entries=sum(each.copy.entries for each in usable),
            faults=tuple(messages),
            signed_by=signers.pop() if len(signers) == 1 else "",
        )
