# SPDX-License-Identifier: LGPL-2.1-or-later
"""HTTP requests to one origin, and readable messages for their failures."""

from __future__ import annotations

import http
import logging
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import httpx2

from mcpd import __version__
from mcpd.servers.remote.messages import MAX_MESSAGE, TIMED_OUT, Fault, Message, parse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from mcpd.servers.remote.target import Remote

CONNECT_TIMEOUT: Final = 30.0
"""Seconds to connect, and for each step of sending."""
ANSWER_TIMEOUT: Final = 7200.0
"""Seconds without data after which a call is abandoned; its caller's limit is shorter."""
SHORT_TIMEOUT: Final = 30.0
"""Seconds for requests without an answer to wait for."""
MAX_REDIRECTS: Final = 5
EVENTS: Final = "text/event-stream"
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_KEEP_METHOD: Final = frozenset({307, 308})

# It logs whole URLs, which may contain secrets.
logging.getLogger("httpx2").setLevel(logging.WARNING)


class Refused(Fault):
    """An unsuccessful HTTP status."""

    def __init__(self, text: str, status: int, answer: Message | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.answer = answer
        """The JSON-RPC error in the body, if there is one."""


class Http:
    """HTTP client for one remote server. TLS is always verified; other origins are never contacted."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._client = httpx2.AsyncClient(
            verify=ssl.create_default_context(),
            # The size of an uncompressed answer is bounded by the bytes received.
            headers={"User-Agent": f"mcpd-remote/{__version__}", **remote.headers, "Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(CONNECT_TIMEOUT, read=ANSWER_TIMEOUT),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
            follow_redirects=False,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    @asynccontextmanager
    async def request(
        self,
        method: str,
        headers: Mapping[str, str],
        *,
        content: bytes | None = None,
        url: str = "",
        silence: float | None = ANSWER_TIMEOUT,
    ) -> AsyncIterator[httpx2.Response]:
        """Yield the response to a request, with its body unread; *silence* is the maximum time without data in seconds.

        Raises :class:`Refused` for an unsuccessful status, and :class:`Fault`, also for errors within the context.
        """
        timeout = httpx2.Timeout(CONNECT_TIMEOUT, read=silence)
        try:
            place = httpx2.URL(url or self._remote.url)
            for _ in range(MAX_REDIRECTS + 1):
                async with self._client.stream(
                    method, place, headers=dict(headers), content=content, timeout=timeout
                ) as response:
                    if response.status_code in _REDIRECTS:
                        place = self._redirected(response, method)
                        continue
                    if not response.is_success:
                        raise await self._refused(response)
                    if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
                        raise Fault(f"{self._remote.place} sends compressed data, which was not asked for")
                    yield response
                    return
            raise Fault(f"{self._remote.place} redirects more than {MAX_REDIRECTS} times")
        except (httpx2.TimeoutException, TimeoutError) as error:
            what = "no connection" if isinstance(error, httpx2.ConnectTimeout) else "no answer"
            raise Fault(f"{self._remote.place}: {what} in time", TIMED_OUT) from error
        except httpx2.SSEError as error:
            raise Fault(f"{self._remote.place}: {error}") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise Fault(f"{self._remote.place} cannot be reached: {reason(error)}") from error

    async def body(self, response: httpx2.Response) -> bytes:
        """Return the whole body. Raises :class:`Fault` if it is too large."""
        found = bytearray()
        async for chunk in response.aiter_raw():
            found += chunk
            if len(found) > MAX_MESSAGE:
                raise Fault(f"{self._remote.place} sent a message over {MAX_MESSAGE} bytes")
        return bytes(found)

    def _redirected(self, response: httpx2.Response, method: str) -> httpx2.URL:
        """Return the target of a redirect within the same server: the headers must not be sent to others."""
        here = response.request.url
        try:
            there = here.join(response.headers.get("Location", ""))
        except httpx2.InvalidURL:
            there = httpx2.URL("")
        same = (here.scheme, here.host, here.port) == (there.scheme, there.host, there.port)
        upgrade = (
            (here.scheme, there.scheme) == ("http", "https")
            and here.host == there.host
            and not (here.port or there.port)
        )
        if there.userinfo not in (b"", here.userinfo) or not (same or upgrade):
            raise Fault(
                f"{self._remote.place} redirects to {there.scheme}://{there.host}, which is another server and is not"
                " asked; if it is the one you mean, put its URL into the manifest"
            )
        if method != "GET" and response.status_code not in _KEEP_METHOD:
            raise Fault(
                f"{self._remote.place} redirects with status {response.status_code}, which would drop the message"
            )
        return there

    async def _refused(self, response: httpx2.Response) -> Refused:
        status = response.status_code
        answer = None
        if response.headers.get("Content-Type", "").lower().startswith("application/json"):
            try:
                answer = next((m for m in parse(await self.body(response)) if "error" in m.data), None)
            except ValueError:
                answer = None
        return Refused(refusal(self._remote, status), status, answer)


def refusal(remote: Remote, status: int) -> str:
    """Return the message for an unsuccessful HTTP *status* of *remote*, with advice."""
    if status in {401, 403, 407}:
        given = "refuses the credentials" if remote.headers else "wants credentials"
        return f"{remote.place} {given} (HTTP {status}): {remote.how_to_set()}"
    try:
        words = http.HTTPStatus(status).phrase
    except ValueError:
        words = "an unknown status"
    return f"{remote.place} answers HTTP {status} ({words})"


def reason(error: BaseException) -> str:
    """Return the reason for a failed connection on one line, without URLs."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:300]
