# SPDX-License-Identifier: LGPL-2.1-or-later
"""Fetching one file, from a server that may be slow, broken or hostile."""

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
from mcpd.model import printable
from mcpd.store.files import is_missing, read_file, settled, signature
from mcpd.store.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable
    from pathlib import Path

    import httpx2

    from mcpd.errors import McpdError


class NewFile:
    """What :func:`new_file` makes. Disks are waited for in threads, the event loop never waits for one."""

    def __init__(self, path: Path) -> None:
        self.size = 0
        """Bytes that were written."""
        self.is_finished = False
        self._path = path
        self._hash = hashlib.sha256()
        # Who is cancelled leaves a thread behind that may be opening or writing the file still.
        self._lock = Lock()
        self._descriptor = -1
        self._is_made = False
        self._is_dropped = False

    async def open(self) -> None:
        """Make it. Raises what :meth:`write` does, also if there is a file of that name."""
        await asyncio.to_thread(self._open)

    async def write(self, data: bytes) -> None:
        """Append *data*. Raises :class:`~mcpd.errors.NoSpace` or another :class:`~mcpd.errors.McpdError`."""
        await asyncio.to_thread(self._write, data)
        self.size += len(data)

    async def finish(self) -> str:
        """Make what was written last; returns its sha256 in hexadecimal. Raises what :meth:`write` does."""
        await asyncio.to_thread(self._settle)
        self.is_finished = True
        return self._hash.hexdigest()

    async def close(self) -> None:
        """Nothing is made or written from here on, and a file that is not finished is gone."""
        self._is_dropped = True
        # A thread that has not begun to make it makes nothing any more, so it is not waited for.
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

    def _settle(self) -> None:
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
    """The new file *path* (0600), which is gone after the ``async with`` block unless it was finished there.

    Raises what its methods do; one that is there already stays as it is.
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
"""Characters of an ETag or a date that are kept."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a source sent."""

    data: bytes | None
    """None if it is what *etag* or *modified* named, or if it was optional and is not there."""
    etag: str = ""
    modified: str = ""
    """As the server's ``Last-Modified`` says it."""


class Fetcher:
    """Fetches files with one HTTP client, which lives as long as the ``async with`` block."""

    def __init__(self, *, seconds: float, max_bytes: int) -> None:
        """*seconds* and *max_bytes* limit one file of :meth:`fetch`."""
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
        """The file at *url*, a checked one, unless it is still what *etag* or else *modified* names.

        *max_bytes*, if given, is its own limit. With *optional* a file that is not there has no data.
        Raises :class:`~mcpd.errors.SourceUnavailable` that names *url* and the fault.
        """
        limit = max_bytes or self._max_bytes
        try:
            headers = {"If-None-Match": etag, "If-Modified-Since": modified}
            async with asyncio.timeout(self._seconds):
                if url.startswith("file:"):
                    return await asyncio.to_thread(_read, url, etag, limit, optional=optional)
                return await self._http(url, {name: text for name, text in headers.items() if text}, limit, optional)
        except TimeoutError:
            raise SourceUnavailable(f"{url}: no complete answer within {self._seconds:g} s") from None
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
        """Write the file at *url*, a checked one, to the new file *target* (0600); returns its sha256 in hexadecimal.

        *progress* is told how many bytes of how many have come, of 0 if the server does not say. When this fails,
        *target* is not there. Raises :class:`~mcpd.errors.SourceUnavailable`, :class:`~mcpd.errors.LimitExceeded` for
        more than *max_bytes*, and what writing may raise (:class:`~mcpd.errors.NoSpace`).
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
                raise SourceUnavailable(f"{url}: the server answers {response.status_code}")
            data = await _body(url, response, limit)
            return Fetched(data, *(_validator(response.headers.get(name, "")) for name in ("ETag", "Last-Modified")))

    async def _chunks(self, url: str) -> AsyncGenerator[tuple[bytes, int]]:
        """The file at *url* piece by piece, each with the size of the whole."""
        if url.startswith("file:"):
            file = await asyncio.to_thread(_open_file, url)
            try:
                total = os.fstat(file.fileno()).st_size
                while data := await asyncio.to_thread(_read_chunk, url, file):
                    yield data, total
            finally:
                # Closing waits for a thread that is reading still.
                await in_thread(file.close)
            return
        # A file is wanted as it is, whatever a server says of how it came to be packed.
        async with self._response(url, {"Accept": "*/*", "Accept-Encoding": "identity"}) as response:
            if response.status_code != 200:
                raise SourceUnavailable(f"{url}: the server answers {response.status_code}")
            length = response.headers.get("Content-Length", "")
            total = int(length) if length.isascii() and length.isdigit() and len(length) < 16 else 0
            async for chunk in response.aiter_raw(_CHUNK):
                yield chunk, total

    @asynccontextmanager
    async def _response(self, url: str, headers: dict[str, str]) -> AsyncIterator[httpx2.Response]:
        """What *url* answers, behind its redirects."""
        import httpx2  # noqa: PLC0415 - see _open

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
        raise SourceUnavailable(f"{url}: redirects more than {MAX_REDIRECTS} times")


def _validator(text: str) -> str:
    """*text* as it can be sent back later; empty for what cannot, or is cut short."""
    return text if text.isascii() and text.isprintable() and len(text) <= _MAX_VALIDATOR else ""


async def _body(url: str, response: httpx2.Response, limit: int) -> bytes:
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", "", "gzip"):
        raise SourceUnavailable(f"{url}: answers in the encoding {encoding[:40]!r}, which was not asked for")
    unpacker = zlib.decompressobj(_GZIP) if encoding == "gzip" else None
    body = io.BytesIO()  # gives its bytes away without copying them
    async for chunk in response.aiter_raw():
        if unpacker is not None and unpacker.eof:
            raise SourceUnavailable(f"{url}: the answer goes on after its end")
        # A few bytes may unpack to gigabytes.
        body.write(unpacker.decompress(chunk, limit + 1 - body.tell()) if unpacker is not None else chunk)
        if body.tell() > limit:
            raise SourceUnavailable(f"{url}: larger than {limit} bytes")
    if unpacker is not None and not unpacker.eof:
        raise SourceUnavailable(f"{url}: the answer ends in the middle")
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
    # Costs half a second and memory that an idle mcpd shall not pay.
    from http.cookiejar import CookieJar, DefaultCookiePolicy  # noqa: PLC0415

    import httpx2  # noqa: PLC0415

    return httpx2.AsyncClient(
        verify=ssl.create_default_context(),
        headers={"User-Agent": "mcpd", "Accept": "application/json", "Accept-Encoding": "gzip"},
        timeout=seconds,
        follow_redirects=False,
        # No server shall know by a cookie what was fetched before, or set one for its neighbours.
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        # What may go unencrypted because it stays here shall not go to the proxy of an environment.
        mounts={f"all://{host}": None for host in ("localhost", "127.0.0.1", "[::1]")},
    )


def _redirected(url: str, place: str, location: str) -> str:
    """Where *place* sends us on the way from *url*: never to a file, from https to http, or back to this machine.

    Nor from one service of this machine to another over http.
    """
    try:
        there = urlsplit(urljoin(place, location))
        if there.scheme not in (urlsplit(place).scheme, "https"):
            raise SourceUnavailable(f"{url}: redirects from {urlsplit(place).scheme} to {printable(there.scheme)}")
        checked = check_entry_url(there.geturl(), place)
    except (InvalidArgument, ValueError) as error:
        raise SourceUnavailable(f"{url}: redirects to an address that is not allowed: {error}") from error
    if there.scheme == "http" and urlsplit(checked).netloc != urlsplit(place).netloc:
        raise SourceUnavailable(f"{url}: redirects to another service of this machine, {printable(checked)}")
    return checked
