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
from mcpd.catalog.registries import RegistryLine, RegistryLists, check_url, key_of
from mcpd.errors import InvalidManifest, McpdError, NotFound, SourceUnavailable
from mcpd.model import Problem, printable

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection

    from mcpd.catalog.database import Copy, CopyStatus, Database
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
"""Number of registries fetched at the same time."""


class Catalog:
    """The catalog of one mcpd instance; reading it needs no network.

    All methods except the coroutines read files, so call them in a thread if there is an event loop. Keys and lists of
    registries are read again at each call.
    """

    def __init__(self, paths: Paths, scope: Scope, settings: Settings, keys: Keys) -> None:
        self._scope = scope
        self._sources = RegistryLists(paths, scope)
        self._directory = paths.layout(scope).cache
        self._settings = settings
        self._keys = keys
        self._faults: dict[str, Failure] = {}
        """Failures of the last refresh, by the registry's normalized URL."""
        self._empty: dict[str, float] = {}
        """Unix time at which a directory without entries was read, by its normalized URL."""

    @cached_property
    def _database(self) -> Database:
        # Imported late, since SQLite is not needed to start.
        from mcpd.catalog.database import Database

        return Database(self._directory / "catalog.sqlite")

    @cached_property
    def _icons(self) -> Icons:
        from mcpd.catalog.icons import Icons  # see _database

        return Icons(self._directory / "icons")

    def sources(self) -> list[RegistryLine]:
        """Return every registry once, in order of precedence, with its state."""
        from mcpd.catalog.database import statuses  # see _database
        from mcpd.catalog.search import faults_of

        lines = self._sources.lines()
        order = statuses(self._copies(), lines, self._keys)
        faults: dict[str, list[tuple[str, str]]] = self._database.ask(faults_of, {})
        return [self._with_state(line, order, faults) for line in lines]

    def listed(self) -> object:
        """Return a value that changes whenever somebody edits the lists of registries."""
        return self._sources.signature()

    def add_source(self, url: str, *, name: str = "", type: str = "", signature: str = "", key: str = "") -> None:  # noqa: A002 - the key in the file
        """Add the registry *url* to a list; the next :meth:`refresh` fetches it.

        Arguments and errors are those of :meth:`RegistryLists.add`.
        """
        if all(key_of(line.url) != key_of(url) for line in self._sources.lines()):
            # If its line was once removed by hand, old data may be left.
            self._forget_removed(url)
        self._sources.add(url, name=name, type=type, signature=signature, key=key)

    def remove_source(self, url: str) -> None:
        """Remove the registry *url* from the lists, and delete its data.

        Raises :class:`~mcpd.errors.NotFound`, :class:`~mcpd.errors.ReadOnly`.
        """
        self._sources.remove(url)
        self._forget_removed(url)

    async def refresh(
        self, progress: Callable[[int, int], None] | None = None, *, only_new: bool = False
    ) -> list[McpdError]:
        """Fetch all registries, or with *only_new* those never fetched before.

        *progress* is called with the number of registries done and their total.

        Returns the failures; those registries keep their last copy. If all registries failed, raises
        :class:`~mcpd.errors.SourceUnavailable`, or an error of the class that they all failed with.
        """
        from mcpd.catalog import refresh as refreshing  # see _database

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

            async def one(line: RegistryLine) -> None:
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
        await asyncio.to_thread(self._clean_up)
        if failures and len(failures) == len(lines):
            kinds = {type(failure) for failure in failures}
            raise (kinds.pop() if len(kinds) == 1 else SourceUnavailable)(
                "; ".join(failure.message for failure in failures)
            )
        return failures

    async def _refresh_one(self, refresher: Refresher, line: RegistryLine) -> McpdError | None:
        url = check_url(line.url)
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
        """Return the entries that match *query*: the best matches first if it has a text, otherwise by id.

        Returns at most *limit* entries after *cursor*, and the cursor of the next page, empty if there is none. Raises
        :class:`~mcpd.errors.InvalidArgument`.
        """
        from mcpd.catalog.search import search  # see _database

        if query.source:
            query = replace(query, source=check_url(query.source))
        nothing: tuple[list[Listing], str] = ([], "")
        return self._query_placed(lambda run, order: search(run, order, query, cursor, limit, self._scope), nothing)

    def find(self, server_id: str, source: str = "") -> CatalogEntry:
        """Return the entry *server_id* of the first registry that has it, or of *source* (a URL).

        Raises :class:`~mcpd.errors.NotFound`.
        """
        url = check_url(source) if source else ""
        for found in self.offers([server_id]).get(server_id, ()):
            if url in ("", found.origin):
                return found
        whose = f"the registry {printable(url)} does not offer" if url else "no registry offers"
        raise NotFound(f"{whose} a server {printable(server_id)!r}; 'mcpctl refresh' updates the catalog")

    def offers(self, ids: Collection[str]) -> dict[str, list[CatalogEntry]]:
        """Return the entries of each of *ids*, in the order of the registries."""
        from mcpd.catalog.search import offers  # see _database

        return self._query_placed(lambda run, order: offers(run, order, ids), {})

    def problems(self) -> list[Problem]:
        """Return the faults of registry entries, up to a hundred per registry."""
        return [
            Problem(origin, server_id, message)
            for origin, faults in self._faults_by_registry().items()
            for server_id, message in faults
        ]

    def pins_sha256(self, sha256: str) -> str:
        """Return the name of the trusted key that signed an entry pinning the hash *sha256*; empty if none did."""
        from mcpd.catalog.search import signer_of  # see _database

        return self._query_placed(lambda run, order: signer_of(run, order, sha256), "")

    async def icon(self, url: str, registry: str) -> Icon:
        """Return the image at *url*, named by an entry of *registry* (may be empty); fetched once, then cached.

        Raises :class:`~mcpd.errors.SourceUnavailable`.
        """
        return await self._icons.get(url, registry, self._settings.catalog.timeout)

    def _query_placed(self, question: Callable[[sqlite3.Connection, list[CopyStatus]], T], otherwise: T) -> T:
        """Return the result of *question*, after bringing trust and precedence in the database up to date."""
        from mcpd.catalog.database import copies, is_placed, statuses  # see _database

        lines = self._sources.lines()

        def ask(connection: sqlite3.Connection) -> tuple[bool, T]:
            order = statuses(copies(connection), lines, self._keys)
            return (True, question(connection, order)) if is_placed(connection, order) else (False, otherwise)

        placed, found = self._database.ask(ask, (True, otherwise))
        if placed:
            return found
        try:
            self._place()
        except McpdError as error:
            _log.warning("%s; the catalog is treated as empty", error.message)
            return otherwise
        return self._database.ask(ask, (True, otherwise))[1]

    def _place(self) -> None:
        from mcpd.catalog.database import copies, is_placed, place, statuses  # see _database

        def work(connection: sqlite3.Connection) -> None:
            order = statuses(copies(connection), self._sources.lines(), self._keys)
            if not is_placed(connection, order):
                place(connection, order)

        self._database.change(work)

    def _clean_up(self) -> None:
        """Delete the data of registries that are no longer listed, and update precedence. Errors are logged."""
        try:
            self._forget_unlisted()
            self._place()
        except McpdError as error:
            _log.warning("%s", error.message)

    def _forget_removed(self, url: str) -> None:
        """Delete the data of *url*, which is no longer listed.

        Errors are only logged, as the registry is already removed.
        """
        try:
            self._forget_unlisted(key_of(url))
        except McpdError as error:
            _log.warning("%s; the data of the registry will be deleted later", error.message)

    def _forget_unlisted(self, removed: str = "") -> None:
        """Delete the data of unlisted registries; if a list cannot be read, at most the data of *removed*."""
        from mcpd.catalog.database import copies, show  # see _database
        from mcpd.catalog.refresh import forget_copy

        lines = self._sources.lines()
        # An invalid description disables its registry, but the data is kept.
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
        from mcpd.catalog.database import copies  # see _database

        none: list[Copy] = []
        return self._database.ask(copies, none)

    def _faults_by_registry(self) -> dict[str, list[tuple[str, str]]]:
        from mcpd.catalog.search import faults_of  # see _database

        listed = {check_url(line.url) for line in self._sources.lines() if line.state != "invalid"}
        found: dict[str, list[tuple[str, str]]] = self._database.ask(faults_of, {})
        return {url: faults for url, faults in found.items() if url in listed}

    def _with_state(
        self, line: RegistryLine, order: list[CopyStatus], faults: dict[str, list[tuple[str, str]]]
    ) -> RegistryLine:
        if line.state == "invalid":
            return line
        url = check_url(line.url)
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
        messages = [each.undated for each in own if each.undated][:1]
        messages += [message for _, message in faults.get(url, ())]
        more = sum(each.copy.faults for each in own) - len(faults.get(url, ()))
        if more > 0:
            messages.append(f"and {more} more errors")
        return replace(
            line,
            state="untrusted" if not usable else fault.state if fault else "ready",
            updated=min(each.copy.fetched for each in own),
            problem="; ".join(problems),
            entries=sum(each.copy.entries for each in usable),
            faults=tuple(messages),
            signed_by=signers.pop() if len(signers) == 1 else "",
        )
