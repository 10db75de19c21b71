# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bringing the copy of one source up to date: fetch, judge the signature and the age, put the entries in place."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from mcpd.catalog.database import Copy, confirm, copies, copy_of, make_copy, no_key, show, standing
from mcpd.catalog.ingest import Ingest
from mcpd.catalog.official import fetch_pages, ingest_pages
from mcpd.catalog.registries import check_source_url, file_path, is_directory, signature_url
from mcpd.catalog.results import Failure
from mcpd.errors import InvalidManifest, McpdError, SignatureInvalid, SourceUnavailable
from mcpd.formats.registry import Body, Item, moment, parse_item, split
from mcpd.model import printable
from mcpd.trust.keys import MAX_SIGNATURE

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable
    from pathlib import Path

    from mcpd.catalog.database import Database
    from mcpd.catalog.fetch import Fetched, Fetcher
    from mcpd.catalog.registries import SourceLine, State
    from mcpd.trust.keys import Keys

MAX_FILES: Final = 1000
"""Files of a directory that are read."""
_TOLERANCE: Final = timedelta(days=1)
"""How far the clock of whoever made a registry may be ahead of this one."""


class _Outdated(Exception):
    """A file is older than what was seen before, as far as can be told."""

    def __init__(self, fault: str) -> None:
        self.error: Final = SourceUnavailable(fault)
        super().__init__(fault)


@dataclass(frozen=True, slots=True)
class _Judged:
    """What a signature says of a file."""

    signer: str = ""
    """The fingerprint of the trusted key that made it."""
    unsigned: str = ""
    """Why there is none."""
    tried: bytes = b""


class Refresher:
    """Refreshes the sources of one catalog."""

    def __init__(self, database: Database, keys: Keys, fetcher: Fetcher, spool: Path) -> None:
        """*spool* is a directory for temporary files."""
        self._database = database
        self._keys = keys
        self._fetcher = fetcher
        self._spool = spool

    async def refresh(self, line: SourceLine) -> Failure | None:
        """Bring the copies of *line* up to date, or say why not: what was there stays then.

        Errors are :class:`~mcpd.errors.SourceUnavailable`, :class:`~mcpd.errors.SignatureInvalid` and others.
        """
        url = check_source_url(line.url)
        if line.type == "directory":
            return await self._directory(line, url)
        return await _failure(self._official(url) if line.type == "official" else self._single(line, url))

    async def _single(self, line: SourceLine, url: str) -> None:
        if url.startswith("file:") and await asyncio.to_thread(is_directory, url):
            way = f"end its URL with a slash, or: mcpctl source add {url} --name NAME --type directory"
            raise SourceUnavailable(f"{url}: a directory, but listed as a file; {way}")
        await self._file(line, url, url, "")

    async def _official(self, url: str) -> None:
        kept = await asyncio.to_thread(self._kept, url, "")
        with await fetch_pages(self._fetcher, url, kept.since if kept is not None else "", self._spool) as pages:
            await asyncio.to_thread(self._database.change, partial(ingest_pages, url=url, pages=pages))

    async def _directory(self, line: SourceLine, url: str) -> Failure | None:
        try:
            names = await asyncio.to_thread(_json_files, file_path(url), url)
            found = [await _failure(self._part(line, url, name)) for name in names]
            await asyncio.to_thread(self._database.change, partial(_forget_others, source=url, parts=set(names)))
        except McpdError as error:
            return Failure(error, "offline")
        failures = [failure for failure in found if failure is not None]
        if not failures:
            return None
        first = failures[0]
        more = f" (and {len(failures) - 1} more files)" if len(failures) > 1 else ""
        states = {failure.state for failure in failures}
        state: State = "partly" if len(failures) < len(names) or len(states) > 1 else first.state
        return Failure(type(first.error)(f"{first.error.message}{more}"), state)

    async def _part(self, line: SourceLine, url: str, name: str) -> None:
        _check_file_name(name, url)
        await self._file(line, f"{url.rstrip('/')}/{quote(name)}", url, name)

    async def _file(self, line: SourceLine, url: str, source: str, part: str) -> None:
        kept, was_verified = await asyncio.to_thread(self._known, line, source, part)
        fetched = await self._fetcher.fetch(url, kept.etag, kept.modified) if kept else await self._fetcher.fetch(url)
        if fetched.data is None and kept is not None:
            # Where it has to be signed, and is not, the file is judged again, and refused with the reason.
            is_fine = line.signature == "off" or was_verified
            if is_fine or (line.signature == "warn" and not await self._may_be_signed_now(line, url, kept)):
                await asyncio.to_thread(self._database.change, partial(confirm, copy=kept.n))
                return
            fetched = await self._fetcher.fetch(url)
        if fetched.data is None:
            raise SourceUnavailable(f"{url}: the server sent nothing")
        digest = await asyncio.to_thread(_digest, fetched.data)
        if kept is not None and kept.digest == digest and (was_verified or line.signature == "off"):
            await asyncio.to_thread(self._database.change, partial(_confirm_as, copy=kept.n, fetched=fetched))
            return
        judged = await self._judge(line, url, fetched.data, was_verified=was_verified)
        arrival = _Arrival(line, self._keys, source, part, url, fetched, digest, judged)
        await asyncio.to_thread(self._database.change, arrival.settle)

    def _kept(self, source: str, part: str) -> Copy | None:
        return self._database.ask(partial(copy_of, source=source, part=part), None)

    def _known(self, line: SourceLine, source: str, part: str) -> tuple[Copy | None, bool]:
        """The copy there is, and whether it is verified. Reads the keys, so it is for threads."""
        kept = self._kept(source, part)
        return kept, _is_verified(kept, line, self._keys)

    async def _signature(self, url: str) -> Fetched:
        return await self._fetcher.fetch(signature_url(url), max_bytes=MAX_SIGNATURE + 1, optional=True)

    async def _may_be_signed_now(self, line: SourceLine, url: str, kept: Copy) -> bool:
        """Whether there is a signature, and it or the keys are others than those that were tried."""
        try:
            signature = (await self._signature(url)).data
        except SourceUnavailable:
            return False
        if signature is None:
            return False
        return await asyncio.to_thread(self._trial, line, signature) != kept.tried

    def _trial(self, line: SourceLine, signature: bytes) -> bytes:
        prints = [key.fingerprint for key in self._keys.list() if line.key in ("", key.name)]
        return hashlib.blake2b(repr((signature, sorted(prints))).encode(), digest_size=16).digest()

    async def _judge(self, line: SourceLine, url: str, data: bytes, *, was_verified: bool) -> _Judged:
        """Who signed *data*. Raises :class:`~mcpd.errors.SignatureInvalid` if it has to be signed, and is not."""
        if line.signature == "off":
            return _Judged()
        try:
            judged = await self._judged(line, url, data)
        except SourceUnavailable as error:
            if line.signature == "required" or was_verified:
                raise
            judged = _Judged(unsigned=error.message)
        if judged.signer:
            return judged
        if line.signature == "required":
            fault = f"{judged.unsigned}; ask whoever publishes it, or add its key ('mcpctl key add')"
            if line.key and not await asyncio.to_thread(self._keys.has, line.key):
                fault = no_key(line.key)
            raise SignatureInvalid(f'{url}: refused, for signature = "required" is asked of the source: {fault}')
        if was_verified:
            raise _no_longer_signed(url, judged)
        return judged

    async def _judged(self, line: SourceLine, url: str, data: bytes) -> _Judged:
        asked = f"the key {line.key!r}" if line.key else "a trusted key"
        signature = (await self._signature(url)).data
        if signature is None:
            return _Judged(unsigned=f"not signed by {asked}: there is no signature")
        tried = await asyncio.to_thread(self._trial, line, signature)
        try:
            key = await asyncio.to_thread(self._keys.signer, data, signature, line.key)
        except SignatureInvalid as error:
            return _Judged(unsigned=f"not signed by {asked}: {error.message}", tried=tried)
        if key is None:
            other = "another key" if line.key else "a key that is not trusted"
            fault = f"it was changed after it was signed, or was signed by {other}"
            return _Judged(unsigned=f"not signed by {asked}: {fault}", tried=tried)
        return _Judged(signer=key.fingerprint)


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A file that was fetched, and judged."""

    line: SourceLine
    keys: Keys
    source: str
    part: str
    url: str
    fetched: Fetched
    digest: bytes
    judged: _Judged

    def settle(self, connection: sqlite3.Connection) -> None:
        """Put it in place of the copy there is, within a transaction.

        Raises :class:`_Outdated` for one that is older,
        :class:`~mcpd.errors.SignatureInvalid` if another process has put a verified one there meanwhile, and
        :class:`~mcpd.errors.InvalidManifest` if it is no registry.
        """
        kept = copy_of(connection, self.source, self.part)
        was_verified = _is_verified(kept, self.line, self.keys)
        if was_verified and not self.judged.signer:
            raise _no_longer_signed(self.url, self.judged)
        n = make_copy(connection, self.source, self.part)
        is_other = kept is None or kept.digest != self.digest
        if is_other or not was_verified:
            body = _body(self.fetched.data or b"", self.url, self.part)
            baseline, attested = self._checked_age(body.updated, kept, was_verified=was_verified)
            if is_other:
                self._put(connection, n, body)
            connection.execute(
                "UPDATE copy SET baseline = ?, attested = ?, digest = ? WHERE n = ?",
                (baseline, attested, self.digest, n),
            )
        connection.execute(
            "UPDATE copy SET signer = ?, unsigned = ?, tried = ?, since = '' WHERE n = ?",
            (self.judged.signer, self.judged.unsigned, self.judged.tried, n),
        )
        _confirm_as(connection, n, self.fetched)

    def _put(self, connection: sqlite3.Connection, n: int, body: Body) -> None:
        if not self.part:
            _forget_others(connection, self.source, {""})
        ingest = Ingest(connection, n, self.url)
        if body.fault:
            ingest.faults.add("", body.fault)
        ingest.replace(body.items)
        ingest.finish()
        show(connection)

    def _checked_age(self, updated: str, kept: Copy | None, *, was_verified: bool) -> tuple[str, str]:
        """The new :attr:`Copy.baseline` and :attr:`Copy.attested`, where *updated* is what the file says.

        Refuses what is older than what there was, with which somebody might hide fixes.
        """
        is_signed = bool(self.judged.signer)
        baseline, attested = (kept.baseline, kept.attested) if kept is not None else ("", "")
        before = attested if is_signed else baseline
        known, found = moment(before), moment(updated)
        shown = f"{self.url}: refused: updated is {printable(updated)}"
        way_out = "if that is meant, remove the source and add it again"
        if found is None:
            if known is not None and (is_signed or was_verified):
                raise _Outdated(
                    f"{self.url}: refused: updated is {printable(updated)!r}, which is no date, but that of the copy in"
                    f" use is {before}; {way_out}"
                )
            return baseline, attested
        now = datetime.fromtimestamp(time.time(), UTC)
        if found > now + _TOLERANCE:
            raise _Outdated(f"{shown}, which is yet to come; compare the clocks, and mend it there or here")
        if known is not None and found < known:
            raise _Outdated(f"{shown}, older than the copy that is in use, which counts as of {before}; {way_out}")
        if known is not None and found == known and is_signed and was_verified:
            raise _Outdated(
                f"{shown}, as in the copy that is in use, but it says something else; sign it with a newer one, or"
                f" {way_out}"
            )
        # What nobody signed, dated ahead, would else bar the honest file of now until that date has passed.
        return updated if found <= now else now.isoformat(timespec="seconds"), updated if is_signed else attested


async def _failure(work: Awaitable[None]) -> Failure | None:
    """How *work* failed, if it did."""
    try:
        await work
    except _Outdated as outdated:
        return Failure(outdated.error, "refused")
    except SignatureInvalid as error:
        return Failure(error, "refused")
    except McpdError as error:
        return Failure(error, "offline")
    return None


def _is_verified(copy: Copy | None, line: SourceLine, keys: Keys) -> bool:
    return copy is not None and bool(standing(copy, line, keys.trusted).signer)


def _body(data: bytes, url: str, part: str) -> Body:
    try:
        return split(data, url)
    except InvalidManifest:
        if not part or b'"servers"' in data or not data.lstrip().startswith(b"{"):
            raise
        # A file of a directory may hold a single entry, too.
        parse_item("the entry", data, url)
        return Body("", iter([Item("the entry", data)]))


def _no_longer_signed(url: str, judged: _Judged) -> SignatureInvalid:
    return SignatureInvalid(
        f"{url}: refused: {judged.unsigned}, but it was before; the copy of then stays in use. If that is meant, add"
        " its new key ('mcpctl key add'), remove and add the source, or set signature = \"off\" for it"
    )


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


def _confirm_as(connection: sqlite3.Connection, copy: int, fetched: Fetched) -> None:
    connection.execute("UPDATE copy SET etag = ?, modified = ? WHERE n = ?", (fetched.etag, fetched.modified, copy))
    confirm(connection, copy)


def _json_files(path: Path, url: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            names = sorted(e.name for e in entries if e.name.endswith(".json") and not e.name.startswith("."))
    except OSError as error:
        raise SourceUnavailable(f"{url}: {error.strerror or error}") from error
    if len(names) > MAX_FILES:
        raise SourceUnavailable(f"{url}: holds more than {MAX_FILES} files")
    return names


def _check_file_name(name: str, url: str) -> None:
    """Raises :class:`~mcpd.errors.SourceUnavailable` for the *name* of a file in *url* that no URL can have."""
    if not name.isprintable():
        raise SourceUnavailable(f"{url}: {printable(name)!r}: the name of a file holds what is not UTF-8 or text")


def _forget_others(connection: sqlite3.Connection, source: str, parts: set[str]) -> None:
    others = [copy for copy in copies(connection) if copy.source == source and copy.part not in parts]
    for copy in others:
        forget_copy(connection, copy.n)
    if others:
        show(connection)


def forget_copy(connection: sqlite3.Connection, copy: int) -> None:
    """Remove *copy* with all its entries."""
    ingest = Ingest(connection, copy, "")
    ingest.clear()
    ingest.finish()
    connection.execute("DELETE FROM copy WHERE n = ?", (copy,))
