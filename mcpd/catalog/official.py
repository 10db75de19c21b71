# SPDX-License-Identifier: LGPL-2.1-or-later
"""Client of the official registry's API: reads all pages at first, later only changes."""

from __future__ import annotations

import asyncio
import tempfile
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, BinaryIO, Final, Self
from urllib.parse import urlencode, urlsplit, urlunsplit

from mcpd.catalog.database import confirm, copy_of, make_copy, show
from mcpd.catalog.ingest import MAX_ENTRIES, Ingest
from mcpd.errors import InvalidManifest, SourceUnavailable, from_oserror
from mcpd.files import make_directory
from mcpd.formats.registry import next_cursor, parse_page, parse_time
from mcpd.model import id_from_name

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator
    from pathlib import Path

    from mcpd.catalog.fetch import Fetcher
    from mcpd.formats.registry import OfficialItem

MAX_PAGES: Final = 2000
MAX_SECONDS: Final = 30 * 60
"""Maximum time for reading all pages of one registry, in seconds."""
_PER_PAGE: Final = 100
_OVERLAP: Final = timedelta(minutes=5)
"""Changes are requested from this long before the last read, since clocks differ and reading takes a while."""
MAX_BYTES: Final = 128 << 20
"""Maximum size in bytes of all pages, and of all stored entries, of one registry."""


class Pages:
    """The pages of one answer, in an unnamed temporary file, so that large answers take disk space and not memory."""

    def __init__(self, spool: Path, since: str) -> None:
        """*since* is the time since which changes were requested; empty for all entries."""
        self.since = since
        self.until: Final = _sortable(datetime.now(UTC) - _OVERLAP)
        """All changes before this time are in the pages."""
        try:
            make_directory(spool)
            self._file: BinaryIO = tempfile.TemporaryFile(dir=spool)  # noqa: SIM115 - closed by close
        except OSError as error:
            raise from_oserror(error, f"writing below {spool}") from error
        self._sizes: list[tuple[str, int]] = []
        self._total = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete the pages."""
        self._file.close()

    def add(self, url: str, data: bytes) -> str:
        """Store the page *data* of *url*; return the cursor of the next page."""
        cursor = next_cursor(data, url)
        self._total += len(data)
        if self._total > MAX_BYTES:
            raise SourceUnavailable(f"{url}: its pages have more than {MAX_BYTES} bytes in total")
        try:
            self._file.write(data)
        except OSError as error:
            raise from_oserror(error, "caching a page of the registry") from error
        self._sizes.append((url, len(data)))
        return cursor

    def __iter__(self) -> Iterator[list[OfficialItem]]:
        """Yield the items of each page, parsed one page at a time."""
        self._file.seek(0)
        for url, size in self._sizes:
            yield parse_page(self._file.read(size), url)


async def fetch_pages(fetcher: Fetcher, url: str, since: str, spool: Path) -> Pages:
    """Return all pages of the API at *url*, or those with changes *since* that time.

    Raises :class:`~mcpd.errors.SourceUnavailable` if a page cannot be read, or if all together take longer than
    :data:`MAX_SECONDS`.
    """
    pages = await asyncio.to_thread(Pages, spool, since)
    try:
        async with asyncio.timeout(MAX_SECONDS):
            await _fill(pages, fetcher, url, since)
    except TimeoutError:
        pages.close()
        raise SourceUnavailable(f"{url}: not all of its pages arrived within {MAX_SECONDS / 60:g} minutes") from None
    except BaseException:
        pages.close()
        raise
    return pages


async def _fill(pages: Pages, fetcher: Fetcher, url: str, since: str) -> None:
    wanted: dict[str, str] = {"limit": str(_PER_PAGE)}
    wanted |= {"updated_since": since, "include_deleted": "true"} if since else {"version": "latest"}
    cursor, seen = "", set[str]()
    loop = asyncio.get_running_loop()
    latest = loop.time() + MAX_SECONDS
    while True:
        if loop.time() > latest:
            raise TimeoutError  # in case a library swallows the cancellation
        place = _with_query(url, wanted | ({"cursor": cursor} if cursor else {}))
        data = (await fetcher.fetch(place)).data
        if data is None:
            raise SourceUnavailable(f"{place}: the server did not send a page")
        cursor = await asyncio.to_thread(_added, pages, place, data)
        if not cursor:
            return
        if cursor in seen:
            raise SourceUnavailable(f"{place}: its page cursors repeat")
        seen.add(cursor)
        if len(seen) >= MAX_PAGES:
            raise SourceUnavailable(f"{url}: more than {MAX_PAGES} pages")


def _added(pages: Pages, place: str, data: bytes) -> str:
    try:
        return pages.add(place, data)
    except InvalidManifest as error:
        raise SourceUnavailable(error.message) from error


def ingest_pages(connection: sqlite3.Connection, url: str, pages: Pages) -> None:
    """Apply *pages* to the copy of the API at *url*, within a transaction."""
    kept = copy_of(connection, url, "")
    n = make_copy(connection, url, "")
    since = kept.since if kept is not None else ""
    if since != pages.since:
        return  # another process has applied newer pages in the meantime
    ingest = Ingest(connection, n, url)
    rows = connection.execute("SELECT id FROM entry WHERE copy = ?", (n,))
    before = set() if since else {server_id for (server_id,) in rows}
    named: dict[str, str] = {}
    seen: set[str] = set()
    for items in pages:
        for item in items:
            since = max(since, min(_changed_at(item.updated_at), pages.until))
            server_id = _applied(ingest, item, named)
            before.discard(server_id)
            seen |= {item.name, server_id}
        if len(named) > MAX_ENTRIES:
            raise SourceUnavailable(f"{url}: more than {MAX_ENTRIES} entries")
    for server_id in before:
        ingest.drop(server_id)
    if ingest.size() > MAX_BYTES:
        raise SourceUnavailable(f"{url}: its entries have more than {MAX_BYTES} bytes in total")
    if pages.since:
        ingest.keep_faults(seen - {""})
    ingest.finish()
    # Clear the signature of a file that may have been at this URL before.
    connection.execute(
        "UPDATE copy SET since = ?, etag = '', modified = '', digest = x'', baseline = '', attested = '', signer = '',"
        " unsigned = '', tried = x'' WHERE n = ?",
        (since, n),
    )
    show(connection)
    confirm(connection, n)


def _applied(ingest: Ingest, item: OfficialItem, named: dict[str, str]) -> str:
    """Apply *item*; return the id of the entry added or removed, if any."""
    if item.problem:
        ingest.faults.add(item.name, item.problem)
    if not item.is_latest:
        return ""
    if item.deleted:
        return _dropped(ingest, item, named)
    if item.entry is None:
        return ""
    holder = named.setdefault(item.entry.id, ingest.name_of(item.entry.id) or item.name)
    if holder != item.name:
        ingest.faults.add(item.entry.id, f"{item.name}: {holder} already has the id {item.entry.id!r}")
        return ""
    ingest.put(item.entry)
    return item.entry.id


def _dropped(ingest: Ingest, item: OfficialItem, named: dict[str, str]) -> str:
    try:
        server_id = id_from_name(item.name)
    except InvalidManifest as error:
        ingest.faults.add(item.name, error.message)
        return ""
    # Another name may map to the same id; keep its entry.
    if ingest.name_of(server_id) != item.name:
        return ""
    ingest.drop(server_id)
    named.pop(server_id, None)
    return server_id


def _with_query(url: str, values: dict[str, str]) -> str:
    parts = urlsplit(url)
    query = "&".join(filter(None, (parts.query, urlencode(values))))
    return urlunsplit(parts._replace(query=query))


def _changed_at(text: str) -> str:
    """Return the time *text* in sortable form; empty if it is invalid or in the future."""
    found = parse_time(text)
    return _sortable(found) if found is not None and found <= datetime.now(UTC) else ""


def _sortable(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
