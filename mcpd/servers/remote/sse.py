# SPDX-License-Identifier: LGPL-2.1-or-later
"""HTTP+SSE, the transport of 2024-11-05: a stream of events, the first of which has the URL to POST to."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import httpx2

from mcpd.servers.remote.duplex import Duplex
from mcpd.servers.remote.http import EVENTS, SHORT_TIMEOUT, Http
from mcpd.servers.remote.messages import MAX_MESSAGE, TIMED_OUT, Fault

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcpd.servers.remote.messages import Message
    from mcpd.servers.remote.stdio import Output
    from mcpd.servers.remote.target import Remote

ENDPOINT_TIMEOUT: Final = 30.0
"""Seconds until the first event is required."""

log = logging.getLogger("mcpd-remote")


class Sse(Duplex):
    """HTTP+SSE with consecutive streams of events."""

    def __init__(self, remote: Remote, out: Output) -> None:
        super().__init__(remote, out)
        self._http = Http(remote)

    async def connect(self) -> SseChannel:
        """See :class:`Duplex`."""
        channel = SseChannel(self.remote, self._http)
        try:
            async with asyncio.timeout(ENDPOINT_TIMEOUT):
                await channel.open()
        except TimeoutError:
            await channel.close()
            raise Fault(f"{self.remote.place} does not say where to send messages to", TIMED_OUT) from None
        except BaseException:
            await channel.close()
            raise
        return channel

    async def end(self) -> None:
        """See :class:`~mcpd.servers.remote.lanes.Lanes`."""
        await super().end()
        await self._http.close()


class SseChannel:
    """A stream of events."""

    def __init__(self, remote: Remote, http: Http) -> None:
        self._remote = remote
        self._http = http
        self._ways: asyncio.Queue[str] = asyncio.Queue(1)
        self._lines: asyncio.Queue[str | Fault | None] = asyncio.Queue(16)
        self._following: asyncio.Task[None] | None = None
        self._endpoint = ""

    async def open(self) -> None:
        """Open the stream and wait for the endpoint. Raises :class:`Fault`."""
        # Contexts have to be exited in the task in which they were entered.
        self._following = asyncio.create_task(self._follow())
        named = asyncio.create_task(self._ways.get())
        try:
            await asyncio.wait([named, self._following], return_when=asyncio.FIRST_COMPLETED)
        finally:
            found = named.done()
            named.cancel()
        if not found:
            last = None if self._lines.empty() else self._lines.get_nowait()
            raise last if isinstance(last, Fault) else Fault(f"{self._remote.place} ended the stream of events")
        self._endpoint = self._checked(named.result())

    async def send(self, message: Message) -> None:
        """See :class:`~mcpd.servers.remote.duplex.Channel`."""
        headers = {"Content-Type": "application/json"}
        async with self._http.request("POST", headers, content=message.raw, url=self._endpoint, silence=SHORT_TIMEOUT):
            pass

    async def messages(self) -> AsyncIterator[str]:
        """See :class:`~mcpd.servers.remote.duplex.Channel`."""
        while (line := await self._lines.get()) is not None:
            if isinstance(line, Fault):
                raise line
            yield line

    async def close(self) -> None:
        """See :class:`~mcpd.servers.remote.duplex.Channel`."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])

    async def _follow(self) -> None:
        end: Fault | None = None
        try:
            async with AsyncExitStack() as stack:
                headers = {"Accept": EVENTS, "Cache-Control": "no-store"}
                response = await stack.enter_async_context(self._http.request("GET", headers, silence=None))
                async for event in httpx2.EventSource(response, max_event_size=MAX_MESSAGE):
                    if event.event == "endpoint" and not self._endpoint and self._ways.empty():
                        self._ways.put_nowait(event.data)
                    elif event.event == "message" and event.data:
                        await self._lines.put(event.data)
        except Fault as fault:
            end = fault
        except Exception:
            log.exception("the stream of events failed")
            end = Fault(f"{self._remote.place}: mcpd-remote failed on its events; its log says why")
        await self._lines.put(end)

    def _checked(self, text: str) -> str:
        """Return the endpoint *text* as a URL. Raises :class:`Fault` for another server: it would get the headers."""
        here = httpx2.URL(self._remote.url)
        try:
            there = here.join(text)
        except httpx2.InvalidURL as error:
            raise Fault(f"{self._remote.place} names an endpoint that is no URL") from error
        if (here.scheme, here.host, here.port) != (there.scheme, there.host, there.port) or (
            there.userinfo not in (b"", here.userinfo)
        ):
            raise Fault(
                f"{self._remote.place} wants messages sent to {there.scheme}://{there.host}, which is another server"
            )
        return str(there)
