# SPDX-License-Identifier: LGPL-2.1-or-later
"""Fetching of single files from servers that may be slow, broken or hostile."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import ssl
import stat
import zlib
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, BinaryIO, Final, Self
from urllib.parse import urljoin, urlsplit

from mcpd.catalog.registries import check_entry_url, file_path
from mcpd.errors import InvalidArgument, InvalidManifest, LimitExceeded, SourceUnavailable, from_oserror
from mcpd.files import is_missing, read_file, settled, signature
from mcpd.model import printable
from mcpd.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable
    from pathlib import Path

    import httpx2

    from mcpd.errors import McpdError


class NewFile:
    """A file created by :func:`new_file`. All disk access happens in threads, so the event loop never blocks on it."""

    def __init__(self, path: Path) -> None:
        self.size = 0
        """Bytes written."""
        self.is_finished = False
        self._path = path
        self._hash = hashlib.sha256()
        # After a cancellation a thread may still be opening or writing the file.
        self._lock = Lock()
        self._descriptor = -1
        self._is_made = False
        self._is_dropped = False

    async def open(self) -> None:
        """Create the file. Raises the same errors as :meth:`write`, also if the file exists."""
        await asyncio.to_thread(self._open)

    async def write(self, data: bytes) -> None:
        """Append *data*. Raises :class:`~mcpd.errors.NoSpace` or another :class:`~mcpd.errors.McpdError`."""
        await asyncio.to_thread(self._write, data)
        self.size += len(data)

    async def finish(self) -> str:
        """Flush the file to disk; return its SHA-256 in hexadecimal. Raises the same errors as :meth:`write`."""
        await asyncio.to_thread(self._sync)
        self.is_finished = True
        return self._hash.hexdigest()

    async def close(self) -> None:
        """Stop writing, and remove the file unless it is finished."""
        self._is_dropped = True
        # A thread that has not yet begun to create the file no longer will, so there is nothing to wait for.
        if not self.is_finished and (self._lock.locked() or self._is_made):
            await in_thread(self._remove)

    def _open(self) -> None:
        with self._lock:
            if self._is_dropped:
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                self._descriptor = os.open(self._path, flags, 0o600)
            except OSError as error:
                raise self._fault(error) from error
            self._is_made = True

    def _write(self, data: bytes) -> None:
        with self._lock:
            self._hash.update(data)
            rest = memoryview(data)
            try:
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError as error:
                raise self._fault(error) from error

    def _sync(self) -> None:
        with self._lock:
            try:
                os.fsync(self._descriptor)
            except OSError as error:
                raise self._fault(error) from error
            self._close()

    def _remove(self) -> None:
        with self._lock:
            self._close()
            if self._is_made:
                with suppress(OSError):
                    self._path.unlink()

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _fault(self, error: OSError) -> McpdError:
        return from_oserror(error, f"writing {self._path}")


@asynccontextmanager
async def new_file(path: Path) -> AsyncIterator[NewFile]:
    """Create the file *path* (0600), which is removed after the ``async with`` block unless it was finished.

    Raises the same errors as the methods of the file; an existing file is not changed.
    """
    file = NewFile(path)
    try:
        await file.open()
        yield file
    finally:
        await file.close()


MAX_REDIRECTS: Final = 5
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_ABSENT: Final = frozenset({404, 410})
_GZIP: Final = 31
_CHUNK: Final = 1 << 20
_MAX_VALIDATOR: Final = 1024
"""Maximum length in characters of an ETag or date that is kept."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Result of a fetch."""

    data: bytes | None
    """None if *etag* or *modified* shows that the file is unchanged, or if it is optional and missing."""
    etag: str = ""
    modified: str = ""
    """``Last-Modified`` as the server sent it."""


class Fetcher:
    """Fetches files with one HTTP client, which is closed at the end of the ``async with`` block."""

    def __init__(self, *, seconds: float, max_bytes: int) -> None:
        """*seconds* and *max_bytes* limit each file of :meth:`fetch`."""
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._client: httpx2.AsyncClient | None = None
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def fetch(
        self, url: str, etag: str = "", modified: str = "", *, max_bytes: int = 0, optional: bool = False
    ) -> Fetched:
        """Return the file at the checked *url*; without data if *etag* or else *modified* shows that it is unchanged.

        *max_bytes*, if given, replaces the limit. With *optional*, a missing file is returned without data. Raises
        :class:`~mcpd.errors.SourceUnavailable` that names *url* and the fault.
        """
        limit = max_bytes or self._max_bytes
        try:
            headers = {"If-None-Match": etag, "If-Modified-Since": modified}
            async with asyncio.timeout(self._seconds):
                if url.startswith("file:"):
                    return await asyncio.to_thread(_read, url, etag, limit, optional=optional)
                return await self._http(url, {name: text for name, text in headers.items() if text}, limit, optional)
        except TimeoutError:
            raise SourceUnavailable(f"{url}: no complete response within {self._seconds:g} s") from None
        except InvalidManifest as error:
            raise SourceUnavailable(error.message) from error
        except OSError as error:
            raise SourceUnavailable(f"{url}: {error.strerror or error}") from error

    async def download(
        self,
        url: str,
        target: Path,
        *,
        max_bytes: int,
        seconds: float,
        progress: Callable[[int, int], None] | None = None,
    ) -> str:
        """Write the file at the checked *url* to the new file *target* (0600); return its SHA-256 in hexadecimal.

        *progress* is called with the bytes received and their total, 0 if unknown. On failure *target* is removed.
        Raises :class:`~mcpd.errors.SourceUnavailable`, :class:`~mcpd.errors.LimitExceeded` for more than *max_bytes*,
        and errors of writing (:class:`~mcpd.errors.NoSpace`).
        """
        async with new_file(target) as file:
            try:
                async with asyncio.timeout(seconds), aclosing(self._chunks(url)) as chunks:
                    async for chunk, total in chunks:
                        if max(file.size + len(chunk), total) > max_bytes:
                            raise LimitExceeded(f"{url}: larger than {max_bytes} bytes")
                        await file.write(chunk)
                        if progress is not None:
                            progress(file.size, total)
            except TimeoutError:
                raise SourceUnavailable(f"{url}: not complete within {seconds:g} s") from None
            return await file.finish()

    async def _opened(self) -> httpx2.AsyncClient:
        async with self._opening:
            if self._client is None:
                self._client = await asyncio.to_thread(_open, self._seconds)
            return self._client

    async def _http(self, url: str, headers: dict[str, str], limit: int, optional: bool) -> Fetched:
        async with self._response(url, headers) as response:
            if response.status_code == 304 and headers:
                return Fetched(None, headers.get("If-None-Match", ""), headers.get("If-Modified-Since", ""))
            if response.status_code in _ABSENT and optional:
                return Fetched(None)
            if response.status_code != 200:
                raise SourceUnavailable(f"{url}: the server responded with status {response.status_code}")
            data = await _body(url, response, limit)
            return Fetched(data, *(_validator(response.headers.get(name, "")) for name in ("ETag", "Last-Modified")))

    async def _chunks(self, url: str) -> AsyncGenerator[tuple[bytes, int]]:
        """Yield the file at *url* in pieces, each with the total size."""
        if url.startswith("file:"):
            file = await asyncio.to_thread(_open_file, url)
            try:
                total = os.fstat(file.fileno()).st_size
                while data := await asyncio.to_thread(_read_chunk, url, file):
                    yield data, total
            finally:
                # Closing waits for a thread that is still reading.
                await in_thread(file.close)
            return
        # Request the file unencoded, as its hash is that of the stored bytes.
        async with self._response(url, {"Accept": "*/*", "Accept-Encoding": "identity"}) as response:
            if response.status_code != 200:
                raise SourceUnavailable(f"{url}: the server responded with status {response.status_code}")
            length = response.headers.get("Content-Length", "")
            total = int(length) if length.isascii() and length.isdigit() and len(length) < 16 else 0
            async for chunk in response.aiter_raw(_CHUNK):
                yield chunk, total

    @asynccontextmanager
    async def _response(self, url: str, headers: dict[str, str]) -> AsyncIterator[httpx2.Response]:
        """Yield the response to a request for *url*, after redirects."""
        import httpx2  # see _open

        client = await self._opened()
        place = url
        try:
            for _ in range(MAX_REDIRECTS + 1):
                async with client.stream("GET", place, headers=headers) as response:
                    if response.status_code in _REDIRECTS:
                        place = _redirected(url, place, response.headers.get("Location", ""))
                        continue
                    yield response
                    return
        except (httpx2.HTTPError, httpx2.InvalidURL, zlib.error) as error:
            raise SourceUnavailable(f"{url}: {str(error) or type(error).__name__}") from error
        raise SourceUnavailable(f"{url}: more than {MAX_REDIRECTS} redirects")


def _validator(text: str) -> str:
    """Return *text*, an ETag or date, if it can be sent back later; otherwise an empty string."""
    return text if text.isascii() and text.isprintable() and len(text) <= _MAX_VALIDATOR else ""


async def _body(url: str, response: httpx2.Response, limit: int) -> bytes:
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", "", "gzip"):
        raise SourceUnavailable(f"{url}: the response has the encoding {encoding[:40]!r}, which was not requested")
    unpacker = zlib.decompressobj(_GZIP) if encoding == "gzip" else None
    body = io.BytesIO()  # returns its content without a copy
    async for chunk in response.aiter_raw():
        if unpacker is not None and unpacker.eof:
            raise SourceUnavailable(f"{url}: the response has trailing data")
        # A few bytes may unpack to gigabytes.
        body.write(unpacker.decompress(chunk, limit + 1 - body.tell()) if unpacker is not None else chunk)
        if body.tell() > limit:
            raise SourceUnavailable(f"{url}: larger than {limit} bytes")
    if unpacker is not None and not unpacker.eof:
        raise SourceUnavailable(f"{url}: the response is incomplete")
    return body.getvalue()


def _read(url: str, etag: str, limit: int, *, optional: bool) -> Fetched:
    path = file_path(url)
    try:
        status = path.stat()
        found = "-".join(format(part, "x") for part in signature(status)) if settled(status) else ""
        return Fetched(None if found and found == etag else read_file(path, limit), found)
    except OSError as error:
        if optional and is_missing(error):
            return Fetched(None)
        raise


def _open_file(url: str) -> BinaryIO:
    try:
        path = file_path(url)
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb")
    except OSError as error:
        raise SourceUnavailable(f"{url}: {error.strerror or error}") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise SourceUnavailable(f"{url}: not a regular file")
    return file


def _read_chunk(url: str, file: BinaryIO) -> bytes:
    try:
        return file.read(_CHUNK)
    except OSError as error:
        raise SourceUnavailable(f"{url}: {error.strerror or error}") from error


def _open(seconds: float) -> httpx2.AsyncClient:
    # Importing httpx2 takes half a second, and memory that an idle mcpd does not need.
    from http.cookiejar import CookieJar, DefaultCookiePolicy

    import httpx2

    return httpx2.AsyncClient(
        verify=ssl.create_default_context(),
        headers={"User-Agent": "mcpd", "Accept": "application/json", "Accept-Encoding": "gzip"},
        timeout=seconds,
        follow_redirects=False,
        # No cookies, so that no server learns what was fetched before.
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        # Unencrypted requests are allowed on this machine only, so they must not go to a proxy from the environment.
        mounts={f"all://{host}": None for host in ("localhost", "127.0.0.1", "[::1]")},
    )


def _redirected(url: str, place: str, location: str) -> str:
    """Return the checked target of the redirect *location* from *place*.

    Refuses redirects to files, from https to http, from the network to this machine, and over http from one service of
    this machine to another.
    """
    try:
        there = urlsplit(urljoin(place, location))
        if there.scheme not in (urlsplit(place).scheme, "https"):
            raise SourceUnavailable(f"{url}: redirects from {urlsplit(place).scheme} to {printable(there.scheme)}")
        checked = check_entry_url(there.geturl(), place)
    except (InvalidArgument, ValueError) as error:
        raise SourceUnavailable(f"{url}: redirects to an address that is not allowed: {error}") from error
    if there.scheme == "http" and urlsplit(checked).netloc != urlsplit(place).netloc:
        raise SourceUnavailable(f"{url}: redirects to another service on this machine, {printable(checked)}")
    return checked
