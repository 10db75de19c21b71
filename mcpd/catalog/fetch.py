# SPDX-License-Identifier: LGPL-2.1-or-later
"""Fetching one registry file, from a server that may be slow, broken or hostile."""

from __future__ import annotations

import asyncio
import ssl
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import unquote, urljoin, urlsplit

from mcpd.catalog.sources import check_source_url
from mcpd.errors import InvalidArgument, InvalidManifest, SourceUnavailable
from mcpd.store.files import read_file

if TYPE_CHECKING:
    import httpx2

MAX_REDIRECTS: Final = 5
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_GZIP: Final = 31


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a source sent."""

    data: bytes | None
    """None if it is what *etag* named."""
    etag: str = ""


class Fetcher:
    """Fetches files with one HTTP client, which lives as long as the ``async with`` block."""

    def __init__(self, *, seconds: float, max_bytes: int) -> None:
        """*seconds* and *max_bytes* limit one file."""
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._client: httpx2.AsyncClient | None = None
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def fetch(self, url: str, etag: str = "") -> Fetched:
        """The file at *url*, a checked one, unless it is still what *etag* names.

        Raises :class:`~mcpd.errors.SourceUnavailable` that names *url* and the fault.
        """
        try:
            if url.startswith("file:"):
                path = Path(unquote(urlsplit(url).path))
                return Fetched(await asyncio.to_thread(read_file, path, self._max_bytes))
            client = await self._opened()
            async with asyncio.timeout(self._seconds):
                return await self._http(client, url, etag)
        except TimeoutError:
            raise SourceUnavailable(f"{url}: no complete answer within {self._seconds:g} s") from None
        except InvalidManifest as error:
            raise SourceUnavailable(error.message) from error
        except OSError as error:
            raise SourceUnavailable(f"{url}: {error.strerror or error}") from error

    async def _opened(self) -> httpx2.AsyncClient:
        async with self._opening:
            if self._client is None:
                self._client = await asyncio.to_thread(_open, self._seconds)
            return self._client

    async def _http(self, client: httpx2.AsyncClient, url: str, etag: str) -> Fetched:
        import httpx2  # noqa: PLC0415 - see _open

        headers = {"If-None-Match": etag} if etag else {}
        place = url
        try:
            for _ in range(MAX_REDIRECTS + 1):
                async with client.stream("GET", place, headers=headers) as response:
                    if response.status_code in _REDIRECTS:
                        place = _redirected(url, place, response.headers.get("Location", ""))
                        continue
                    if response.status_code == 304 and etag:
                        return Fetched(None, etag)
                    if response.status_code != 200:
                        raise SourceUnavailable(f"{url}: the server answers {response.status_code}")
                    return Fetched(await self._body(url, response), response.headers.get("ETag", "")[:1024])
        except (httpx2.HTTPError, httpx2.InvalidURL, zlib.error) as error:
            raise SourceUnavailable(f"{url}: {str(error) or type(error).__name__}") from error
        raise SourceUnavailable(f"{url}: redirects more than {MAX_REDIRECTS} times")

    async def _body(self, url: str, response: httpx2.Response) -> bytes:
        encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("identity", "", "gzip"):
            raise SourceUnavailable(f"{url}: answers in the encoding {encoding[:40]!r}, which was not asked for")
        unpacker = zlib.decompressobj(_GZIP) if encoding == "gzip" else None
        body = bytearray()
        async for chunk in response.aiter_raw():
            # A few bytes may unpack to gigabytes.
            room = self._max_bytes + 1 - len(body)
            body += unpacker.decompress(chunk, room) if unpacker is not None else chunk
            if len(body) > self._max_bytes:
                raise SourceUnavailable(f"{url}: larger than {self._max_bytes} bytes")
        if unpacker is not None and not unpacker.eof:
            raise SourceUnavailable(f"{url}: the answer ends in the middle")
        return bytes(body)


def _open(seconds: float) -> httpx2.AsyncClient:
    # Costs half a second and memory that an idle mcpd shall not pay.
    import httpx2  # noqa: PLC0415

    return httpx2.AsyncClient(
        verify=ssl.create_default_context(),
        headers={"User-Agent": "mcpd", "Accept": "application/json", "Accept-Encoding": "gzip"},
        timeout=seconds,
        follow_redirects=False,
    )


def _redirected(url: str, place: str, location: str) -> str:
    """Where *place* sends us on the way from *url*: never to a file, never from https to http."""
    target = urljoin(place, location)
    try:
        checked = check_source_url(target)
    except InvalidArgument as error:
        raise SourceUnavailable(f"{url}: redirects to an address that is not allowed: {error.message}") from error
    if urlsplit(checked).scheme != urlsplit(place).scheme and not checked.startswith("https:"):
        raise SourceUnavailable(f"{url}: redirects from {urlsplit(place).scheme} to {urlsplit(checked).scheme}")
    return checked
