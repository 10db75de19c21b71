# SPDX-License-Identifier: LGPL-2.1-or-later
"""Refresh of one registry: fetch it, verify signature and age, and store the entries."""

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

from mcpd.catalog.database import Copy, confirm, copies, copy_of, make_copy, no_key, show, status_of
from mcpd.catalog.ingest import Ingest
from mcpd.catalog.official import fetch_pages, ingest_pages
from mcpd.catalog.registries import check_url, file_path, is_directory, signature_url
from mcpd.catalog.results import Failure
from mcpd.errors import InvalidManifest, McpdError, SignatureInvalid, SourceUnavailable
from mcpd.formats.registry import Body, Item, parse_item, parse_time, split
from mcpd.model import printable
from mcpd.trust.keys import MAX_SIGNATURE

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable
    from pathlib import Path

    from mcpd.catalog.database import Database
    from mcpd.catalog.fetch import Fetched, Fetcher
    from mcpd.catalog.registries import RegistryLine, State
    from mcpd.trust.keys import Keys

MAX_FILES: Final = 1000
"""Maximum number of files that are read from a directory."""
_TOLERANCE: Final = timedelta(days=1)
"""How far ahead the clock of a registry's publisher may be."""


class _Outdated(Exception):
    """A file is older than one seen before, as far as can be determined."""

    def __init__(self, fault: str) -> None:
        self.error: Final = SourceUnavailable(fault)
        super().__init__(fault)


@dataclass(frozen=True, slots=True)
class _SignatureResult:
    """Result of checking a signature."""

    signer: str = ""
    """Fingerprint of the trusted key that made the signature."""
    unsigned: str = ""
    """Reason why there is no signer."""
    tried: bytes = b""


class Refresher:
    """Refreshes the registries of one catalog."""

    def __init__(self, database: Database, keys: Keys, fetcher: Fetcher, spool: Path) -> None:
        """*spool* is a directory for temporary files."""
        self._database = database
        self._keys = keys
        self._fetcher = fetcher
        self._spool = spool

    async def refresh(self, line: RegistryLine) -> Failure | None:
        """Update the copies of *line*; return the failure, if any, in which case the old copies stay.

        Errors are :class:`~mcpd.errors.SourceUnavailable`, :class:`~mcpd.errors.SignatureInvalid` and others.
        """
        url = check_url(line.url)
        if line.type == "directory":
            return await self._directory(line, url)
        return await _failure(self._official(url) if line.type == "official" else self._single(line, url))

    async def _single(self, line: RegistryLine, url: str) -> None:
        if url.startswith("file:") and await asyncio.to_thread(is_directory, url):
            way = f"end its URL with a slash, or: mcpctl source add {url} --name NAME --type directory"
            raise SourceUnavailable(f"{url}: a directory, but listed as a file; {way}")
        await self._file(line, url, url, "")

    async def _official(self, url: str) -> None:
        kept = await asyncio.to_thread(self._kept, url, "")
        with await fetch_pages(self._fetcher, url, kept.since if kept is not None else "", self._spool) as pages:
            await asyncio.to_thread(self._database.change, partial(ingest_pages, url=url, pages=pages))

    async def _directory(self, line: RegistryLine, url: str) -> Failure | None:
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

    async def _part(self, line: RegistryLine, url: str, name: str) -> None:
        _check_file_name(name, url)
        await self._file(line, f"{url.rstrip('/')}/{quote(name)}", url, name)

    async def _file(self, line: RegistryLine, url: str, source: str, part: str) -> None:
        kept, was_verified = await asyncio.to_thread(self._known, line, source, part)
        fetched = await self._fetcher.fetch(url, kept.etag, kept.modified) if kept else await self._fetcher.fetch(url)
        if fetched.data is None and kept is not None:
            # If a required signature is missing, the file is checked again to refuse it with the reason.
            is_fine = line.signature == "off" or was_verified
            if is_fine or (line.signature == "warn" and not await self._may_be_signed_now(line, url, kept)):
                await asyncio.to_thread(self._database.change, partial(confirm, copy=kept.n))
                return
            fetched = await self._fetcher.fetch(url)
        if fetched.data is None:
            raise SourceUnavailable(f"{url}: the server sent an empty response")
        digest = await asyncio.to_thread(_digest, fetched.data)
        if kept is not None and kept.digest == digest and (was_verified or line.signature == "off"):
            await asyncio.to_thread(self._database.change, partial(_confirm_as, copy=kept.n, fetched=fetched))
            return
        result = await self._verify_signature(line, url, fetched.data, was_verified=was_verified)
        file = _FetchedFile(line, self._keys, source, part, url, fetched, digest, result)
        await asyncio.to_thread(self._database.change, file.store)

    def _kept(self, source: str, part: str) -> Copy | None:
        return self._database.ask(partial(copy_of, source=source, part=part), None)

    def _known(self, line: RegistryLine, source: str, part: str) -> tuple[Copy | None, bool]:
        """Return the stored copy, and whether it is verified. Reads the keys, so call it in a thread."""
        kept = self._kept(source, part)
        return kept, _is_verified(kept, line, self._keys)

    async def _signature(self, url: str) -> Fetched:
        return await self._fetcher.fetch(signature_url(url), max_bytes=MAX_SIGNATURE + 1, optional=True)

    async def _may_be_signed_now(self, line: RegistryLine, url: str, kept: Copy) -> bool:
        """Return whether there is a signature that was not yet checked with the current keys."""
        try:
            signature = (await self._signature(url)).data
        except SourceUnavailable:
            return False
        if signature is None:
            return False
        return await asyncio.to_thread(self._attempt_digest, line, signature) != kept.tried

    def _attempt_digest(self, line: RegistryLine, signature: bytes) -> bytes:
        prints = [key.fingerprint for key in self._keys.list() if line.key in ("", key.name)]
        return hashlib.blake2b(repr((signature, sorted(prints))).encode(), digest_size=16).digest()

    async def _verify_signature(
        self, line: RegistryLine, url: str, data: bytes, *, was_verified: bool
    ) -> _SignatureResult:
        """Return who signed *data*. Raises :class:`~mcpd.errors.SignatureInvalid` if a required one is missing."""
        if line.signature == "off":
            return _SignatureResult()
        try:
            result = await self._verified(line, url, data)
        except SourceUnavailable as error:
            if line.signature == "required" or was_verified:
                raise
            result = _SignatureResult(unsigned=error.message)
        if result.signer:
            return result
        if line.signature == "required":
            fault = f"{result.unsigned}; ask its publisher, or add its key ('mcpctl key add')"
            if line.key and not await asyncio.to_thread(self._keys.has, line.key):
                fault = no_key(line.key)
            raise SignatureInvalid(f'{url}: refused because its list has signature = "required": {fault}')
        if was_verified:
            raise _no_longer_signed(url, result)
        return result

    async def _verified(self, line: RegistryLine, url: str, data: bytes) -> _SignatureResult:
        asked = f"the key {line.key!r}" if line.key else "a trusted key"
        signature = (await self._signature(url)).data
        if signature is None:
            return _SignatureResult(unsigned=f"not signed by {asked}: there is no signature")
        tried = await asyncio.to_thread(self._attempt_digest, line, signature)
        try:
            key = await asyncio.to_thread(self._keys.signer, data, signature, line.key)
        except SignatureInvalid as error:
            return _SignatureResult(unsigned=f"not signed by {asked}: {error.message}", tried=tried)
        if key is None:
            other = "another key" if line.key else "a key that is not trusted"
            fault = f"it was changed after it was signed, or was signed by {other}"
            return _SignatureResult(unsigned=f"not signed by {asked}: {fault}", tried=tried)
        return _SignatureResult(signer=key.fingerprint)


@dataclass(frozen=True, slots=True)
class _FetchedFile:
    """A fetched file with the result of checking its signature."""

    line: RegistryLine
    keys: Keys
    source: str
    part: str
    url: str
    fetched: Fetched
    digest: bytes
    signed: _SignatureResult

    def store(self, connection: sqlite3.Connection) -> None:
        """Replace the stored copy with this file, within a transaction.

        Raises :class:`_Outdated` if this file is older, :class:`~mcpd.errors.SignatureInvalid` if another process has
        stored a verified copy in the meantime, and :class:`~mcpd.errors.InvalidManifest` if it is not a registry.
        """
        kept = copy_of(connection, self.source, self.part)
        was_verified = _is_verified(kept, self.line, self.keys)
        if was_verified and not self.signed.signer:
            raise _no_longer_signed(self.url, self.signed)
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
            (self.signed.signer, self.signed.unsigned, self.signed.tried, n),
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
        """Return the new :attr:`Copy.baseline` and :attr:`Copy.attested` for a file with the date *updated*.

        Raises :class:`_Outdated` for a file older than the stored copy, as it might hide fixes.
        """
        is_signed = bool(self.signed.signer)
        baseline, attested = (kept.baseline, kept.attested) if kept is not None else ("", "")
        before = attested if is_signed else baseline
        known, found = parse_time(before), parse_time(updated)
        shown = f"{self.url}: refused: updated is {printable(updated)}"
        way_out = "if this is intended, remove the registry and add it again"
        if found is None:
            if known is not None and (is_signed or was_verified):
                raise _Outdated(
                    f"{self.url}: refused: updated is {printable(updated)!r}, which is not a date, while the copy in"
                    f" use is dated {before}; {way_out}"
                )
            return baseline, attested
        now = datetime.fromtimestamp(time.time(), UTC)
        if found > now + _TOLERANCE:
            raise _Outdated(f"{shown}, which is in the future; check the clocks of the publisher and of this machine")
        if known is not None and found < known:
            raise _Outdated(f"{shown}, older than the copy in use, which is dated {before}; {way_out}")
        if known is not None and found == known and is_signed and was_verified:
            raise _Outdated(
                f"{shown}, the date of the copy in use, but the content differs; sign it with a newer date, or"
                f" {way_out}"
            )
        # Otherwise an unsigned file with a future date would block correct files until that date.
        return updated if found <= now else now.isoformat(timespec="seconds"), updated if is_signed else attested


async def _failure(work: Awaitable[None]) -> Failure | None:
    """Await *work* and return its failure, if any."""
    try:
        await work
    except _Outdated as outdated:
        return Failure(outdated.error, "refused")
    except SignatureInvalid as error:
        return Failure(error, "refused")
    except McpdError as error:
        return Failure(error, "offline")
    return None


def _is_verified(copy: Copy | None, line: RegistryLine, keys: Keys) -> bool:
    return copy is not None and bool(status_of(copy, line, keys.trusted).signer)


def _body(data: bytes, url: str, part: str) -> Body:
    try:
        return split(data, url)
    except InvalidManifest:
        if not part or b'"servers"' in data or not data.lstrip().startswith(b"{"):
            raise
        # A file in a directory may also be a single entry.
        parse_item("the entry", data, url)
        return Body("", iter([Item("the entry", data)]))


def _no_longer_signed(url: str, result: _SignatureResult) -> SignatureInvalid:
    return SignatureInvalid(
        f"{url}: refused: {result.unsigned}, although the previous file was signed; the previous copy stays in use. If"
        " this is intended, add the new key ('mcpctl key add'), remove and add the registry, or set"
        ' signature = "off" for it'
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
        raise SourceUnavailable(f"{url}: contains more than {MAX_FILES} files")
    return names


def _check_file_name(name: str, url: str) -> None:
    """Raise :class:`~mcpd.errors.SourceUnavailable` if the file *name* cannot be part of a URL."""
    if not name.isprintable():
        raise SourceUnavailable(f"{url}: {printable(name)!r}: the file name is not printable UTF-8")


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
