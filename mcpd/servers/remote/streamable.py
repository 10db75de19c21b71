# SPDX-License-Identifier: LGPL-2.1-or-later
"""Streamable HTTP: one POST for each message, in both eras."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

import httpx2

from mcpd.servers.remote.http import ANSWER_TIMEOUT, EVENTS, SHORT_TIMEOUT, Http, Refused
from mcpd.servers.remote.lanes import Lanes, log
from mcpd.servers.remote.messages import MAX_MESSAGE, Fault, Message, dump, made, parse
from mcpd.servers.remote.params import ParameterHeaders

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeAlias

    from mcpd.servers.remote.stdio import Output
    from mcpd.servers.remote.target import Remote

    Hear: TypeAlias = Callable[[Message], Awaitable[bool]]
    """Handles a message of the server; returns True if it was the expected answer."""

BOTH: Final = {"Content-Type": "application/json", "Accept": f"application/json, {EVENTS}"}
HEADER_MISMATCH: Final = -32020
RESUMPTIONS: Final = 5
"""Maximum number of consecutive failures to resume an interrupted answer."""
SHORTEST_DELAY: Final = 0.2
LONGEST_DELAY: Final = 60.0
"""Maximum delay in seconds between attempts to reopen the stream."""
QUIET_STREAM: Final = 300.0
"""Seconds without data after which the stream is reopened, as the connection may be dead."""
DELETE_TIMEOUT: Final = 2.0
MAX_PAGES: Final = 50
_SESSION: Final = re.compile(r"[\x21-\x7e]{1,1024}")


class StreamableHttp(Lanes):
    """A session over Streamable HTTP, renewed if the server has lost it."""

    def __init__(self, remote: Remote, out: Output) -> None:
        super().__init__(remote, out)
        self._http = Http(remote)
        self._session = ""
        self._revision = ""
        self._renewing = asyncio.Lock()
        self._stream: asyncio.Task[None] | None = None
        self._params = ParameterHeaders()

    async def ask(self, message: Message) -> None:
        """See :class:`Lanes`."""
        if message.method == "initialize":
            self._session = self._revision = ""
        async with self._renewing:
            session = self._session
        for again in (True, False):
            try:
                await self._post(message, lambda heard: self._pass_on(heard, message))
            except Refused as refused:
                if again and await self._mend(message, refused, session):
                    continue
                # Only this program knows which key to set.
                if refused.answer is None or refused.status == 401:
                    raise
                await self.out.write(dump({**refused.answer.data, "id": message.data["id"]}))
            return

    async def tell(self, message: Message) -> None:
        """See :class:`Lanes`."""
        if message.revision:
            return  # 2026-07-28 has no notifications of clients over HTTP
        async with self._renewing:
            pass
        await self._post(message, self._pass_on_only)
        if message.method == "notifications/initialized":
            self._listen()

    async def cancel(self, message: Message) -> None:
        """See :class:`Lanes`; in revision 2026-07-28 closing the connection cancels the request."""
        found = self.running(message.params.get("requestId"))
        if found is not None and found[0].revision:
            found[1].cancel()
        elif self.greeted:
            await super().cancel(message)

    async def end(self) -> None:
        """See :class:`Lanes`."""
        if self._session:
            try:
                async with asyncio.timeout(DELETE_TIMEOUT), self._http.request("DELETE", self._own_headers()):
                    pass
            except (Fault, TimeoutError) as fault:
                log.debug("the session was not ended: %s", fault)
        await self._http.close()

    # ------------------------------------------------------------------------------------ one message

    async def _post(self, message: Message, hear: Hear) -> None:
        headers = BOTH | (self._params.of(message) if message.revision else self._own_headers())
        silence = ANSWER_TIMEOUT if message.is_request else SHORT_TIMEOUT
        async with self._http.request("POST", headers, content=message.raw, silence=silence) as response:
            if not message.is_request:
                return
            if message.method == "initialize":
                self._keep_session(response.headers.get("Mcp-Session-Id", ""))
            kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
            if kind == "application/json":
                await self._hear_json(await self._http.body(response), hear)
                return
            if kind != EVENTS:
                shown = f"the content type {kind[:60]!r}" if kind else f"HTTP {response.status_code} and no answer"
                raise Fault(f"{self.remote.place} answers with {shown}; is this the URL of an MCP server?")
            place = _Place()
            answered = await self._hear_events(response, hear, place)
        if not answered:
            await self._resume(message, hear, place)

    async def _hear_json(self, body: bytes, hear: Hear) -> None:
        try:
            heard = parse(body)
        except ValueError as error:
            raise Fault(f"{self.remote.place} answers with something that is no message: {error}") from error
        if not any([await hear(each) for each in heard]):
            raise Fault(f"{self.remote.place} answers another request than it was asked")

    async def _hear_events(self, response: httpx2.Response, hear: Hear, place: _Place) -> bool:
        """Return True if the answer was among the events; an interrupted stream counts as ended."""
        try:
            async for event in httpx2.EventSource(response, max_event_size=MAX_MESSAGE):
                place.note(event)
                if event.event != "message" or not event.data:
                    continue
                try:
                    heard = parse(event.data)
                except ValueError as error:
                    raise Fault(f"{self.remote.place} sends something that is no message: {error}") from error
                if any([await hear(each) for each in heard]):
                    return True
        except httpx2.SSEError:
            raise
        except httpx2.TransportError as error:
            log.debug("a stream broke off: %s", error)
        return False

    async def _resume(self, message: Message, hear: Hear, place: _Place) -> None:
        """Wait for the remaining events of a request whose stream has ended before its answer."""
        failures = 0
        while place.last and not message.revision:
            await asyncio.sleep(place.delay(failures))
            try:
                headers = {"Accept": EVENTS, **self._own_headers(), "Last-Event-ID": place.last}
                async with self._http.request("GET", headers) as response:
                    failures = 0
                    if await self._hear_events(response, hear, place):
                        return
            except Fault as fault:
                failures += 1
                if failures >= RESUMPTIONS or (isinstance(fault, Refused) and fault.status < 500):
                    raise Fault(f"{self.remote.place} ended the connection before the answer: {fault.text}") from fault
        raise Fault(f"{self.remote.place} ended the connection before the answer")

    async def _pass_on(self, heard: Message, asked: Message) -> bool:
        if not heard.is_response:
            await self.out.write(heard.raw)
            return False
        if heard.data.get("id") is None and "error" in heard.data:
            # The error of a server that could not parse the id.
            await self.out.write(dump({**heard.data, "id": asked.data["id"]}))
            return True
        if heard.key != asked.key:
            log.warning("an answer to something else than %s was left out", asked.method)
            return False
        self._look_into(heard, asked)
        await self.out.write(heard.raw)
        return True

    async def _pass_on_only(self, heard: Message) -> bool:
        """Pass on messages that the server sends on its own; there are no answers among them."""
        if not heard.is_response:
            await self.out.write(heard.raw)
        return False

    def _look_into(self, answer: Message, asked: Message) -> None:
        result = answer.data.get("result")
        if asked.method == "tools/list":
            self._params.learn(result)
        elif asked.method == "initialize" and isinstance(result, dict):
            revision = result.get("protocolVersion")
            self._revision = revision if isinstance(revision, str) and _SESSION.fullmatch(revision) else ""
            self.greeted = True

    # ------------------------------------------------------------------------------------ the session

    def _own_headers(self) -> dict[str, str]:
        headers = {"Mcp-Session-Id": self._session, "Mcp-Protocol-Version": self._revision}
        return {name: value for name, value in headers.items() if value}

    def _keep_session(self, session: str) -> None:
        if session and not _SESSION.fullmatch(session):
            raise Fault(f"{self.remote.place} gives a session id that cannot be sent back")
        self._session = session

    async def _mend(self, message: Message, refused: Refused, session: str) -> bool:
        """Return True if a retry after *refused* can succeed: with a new session or previously unknown headers."""
        if message.revision:
            code = refused.answer.data["error"].get("code") if refused.answer is not None else None
            return code == HEADER_MISMATCH and message.method == "tools/call" and await self._list_tools(message)
        if refused.status != 404 or not session or message.method == "initialize" or self.greeting is None:
            return False
        await self._renew(self.greeting, session)
        return True

    async def _renew(self, greeting: Message, lost: str) -> None:
        """Start a new session instead of *lost*, with the client's own *greeting*."""
        async with self._renewing:
            if self._session != lost:
                return
            log.info("%s has lost the session; beginning a new one", self.remote.place)
            revision = self._revision
            self._session = self._revision = ""

            async def hear(heard: Message) -> bool:
                if heard.is_response and heard.key == greeting.key:
                    if "error" in heard.data:
                        raise Fault(f"{self.remote.place} has lost the session and refuses a new one")
                    self._look_into(heard, greeting)
                    return True
                return False

            try:
                await self._post(greeting, hear)
                await self._post(made(method="notifications/initialized"), self._pass_on_only)
            except BaseException:
                # The next request then fails, too, and tries again.
                self._session, self._revision = lost, revision
                raise
            self._listen()

    async def _list_tools(self, message: Message) -> bool:
        """List the tools to learn which headers they require, with the credentials of the call *message*."""
        cursor: object = None
        meta = {key: value for key, value in message.params["_meta"].items() if key != "progressToken"}
        for _ in range(MAX_PAGES):
            params = {"_meta": meta} | ({"cursor": cursor} if cursor else {})
            asking = made(id="mcpd-remote", method="tools/list", params=params)
            found: list[Message] = []

            async def hear(heard: Message, found: list[Message] = found) -> bool:
                found += [heard] * heard.is_response
                return heard.is_response

            await self._post(asking, hear)
            result = found[0].data.get("result")
            self._params.learn(result)
            cursor = result.get("nextCursor") if isinstance(result, dict) else None
            if not cursor:
                break
        return True

    # ------------------------------------------------------------------------------------ the server's own stream

    def _listen(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
        self._stream = self.spawn(self._keep_listening())

    async def _keep_listening(self) -> None:
        place = _Place()
        failures = 0
        while True:
            last = {"Last-Event-ID": place.last} if place.last else {}
            headers = {"Accept": EVENTS, "Cache-Control": "no-store", **self._own_headers(), **last}
            try:
                async with self._http.request("GET", headers, silence=QUIET_STREAM) as response:
                    failures = 0
                    await self._hear_events(response, self._pass_on_only, place)
            except Refused as refused:
                # Not supported, or the session has ended, which the next request will notice.
                if refused.status < 500 and refused.status not in {408, 425, 429}:
                    log.debug("no stream of the server's own messages: %s", refused.text)
                    return
                failures += 1
            except Fault as fault:
                log.debug("the stream of the server's own messages: %s", fault.text)
                failures += 1
            await asyncio.sleep(place.delay(failures))


class _Place:
    """The position in a stream of events."""

    def __init__(self) -> None:
        self.last = ""
        self._retry: float | None = None

    def note(self, event: httpx2.ServerSentEvent) -> None:
        """Store the position after another event."""
        if event.id and event.id.isprintable() and event.id.isascii():
            self.last = event.id[:1024]
        if event.retry is not None:
            self._retry = event.retry / 1000

    def delay(self, failures: int) -> float:
        """Return the seconds until the next attempt, after that many consecutive *failures*."""
        wanted = self._retry if self._retry is not None else 1.0
        return float(min(max(wanted, SHORTEST_DELAY) * 2 ** min(failures, 10), LONGEST_DELAY))
