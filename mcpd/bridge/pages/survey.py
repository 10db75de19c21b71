# SPDX-License-Identifier: LGPL-2.1-or-later
"""Asks a server what it offers, on the way that every client takes: sessions, policy, limits and audit are theirs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mcpd import __version__
from mcpd.bridge import eras, jsonrpc
from mcpd.bridge.exchange import Exchange
from mcpd.bridge.http.post import Post
from mcpd.bridge.modern import envelope
from mcpd.bridge.pages.offer import Offer, member
from mcpd.bridge.upstream.policy import Answered as Refused
from mcpd.errors import LimitExceeded, McpdError, TimedOut

if TYPE_CHECKING:
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.handshake.serve import Handshake
    from mcpd.bridge.http.endpoint import Endpoint
    from mcpd.bridge.parts import Parts
    from mcpd.bridge.upstream.source import ServerInfo

PATIENCE: Final = 90.0
"""Seconds for all of it, a start of the server included."""
MOST_BYTES: Final = 4 << 20
"""Bytes of one answer; there is no use in showing more."""
MOST_PAGES: Final = 20
_LISTS: Final = (
    ("tools", "tools/list", "tools"),
    ("resources", "resources/list", "resources"),
    ("resources", "resources/templates/list", "resourceTemplates"),
    ("prompts", "prompts/list", "prompts"),
)
"""The capability, the method and the member of its result."""
_CLIENT: Final = {"name": "mcpd-bridge", "title": "Page of the MCP bridge", "version": __version__}
_META: Final = {
    envelope.VERSION: eras.MODERN,
    envelope.CAPABILITIES: {},
    envelope.CLIENT: _CLIENT,
}


class Answered(Exception):
    """The server, or the bridge in its place, answered with an error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Way(NamedTuple):
    """The way of requests to servers."""

    parts: Parts
    endpoint: Endpoint
    handshake: Handshake


async def survey(way: Way, server: str, caller: Caller) -> Offer:
    """Return what *server* offers *caller*; a list that cannot be read becomes an error in the offer.

    Raises :class:`Answered` with what hinders it altogether, or the :class:`~mcpd.errors.McpdError` of the bridge.
    """
    offer = Offer(asked=time.time())
    asker = _Asker(way, server, caller)
    try:
        async with asyncio.timeout(PATIENCE):
            try:
                await _with_handshake(asker, offer)
            except Answered as refusal:
                if refusal.code != eras.UNSUPPORTED_VERSION:
                    raise
                await _modern(asker, offer)
    except TimeoutError:
        raise TimedOut(f"server {server} did not tell within {PATIENCE:g} s what it offers") from None
    finally:
        asker.end()
    offer.size = asker.size
    return offer


async def _with_handshake(asker: _Asker, offer: Offer) -> None:
    params = {"protocolVersion": eras.LATEST_HANDSHAKE, "capabilities": {}, "clientInfo": _CLIENT}
    opened = await asker.ask("initialize", params)
    version = opened.get("protocolVersion")
    offer.revision = asker.version = version if isinstance(version, str) else ""
    offer.introduced(opened)
    await asker.tell("notifications/initialized")
    await _lists(asker, offer, member(opened, "capabilities"), {})


async def _modern(asker: _Asker, offer: Offer) -> None:
    offer.revision = asker.version = eras.MODERN
    found = await asker.ask("server/discover", {"_meta": _META})
    offer.introduced(found)
    await _lists(asker, offer, member(found, "capabilities"), {"_meta": _META})


async def _lists(asker: _Asker, offer: Offer, capabilities: dict[str, Any], params: dict[str, Any]) -> None:
    for capability, method, key in _LISTS:
        if capability not in capabilities:
            continue
        cursor: dict[str, Any] = {}
        try:
            for _ in range(MOST_PAGES):
                result = await asker.ask(method, {**params, **cursor})
                entries = result.get(key)
                await asyncio.to_thread(offer.listed, key, entries if isinstance(entries, list) else [])
                offer.troubled(result)
                if not isinstance(result.get("nextCursor"), str):
                    break
                cursor = {"cursor": result["nextCursor"]}
        except Answered as refusal:
            # Many servers have resources but no templates for such.
            if method != "resources/templates/list":
                offer.faults.append(f"{method}: {refusal}")


async def known(way: Way, info: ServerInfo) -> Offer | None:
    """Return what the server of *info* was found to offer by others who asked it, if anybody has.

    That is what it listed to a client of this bridge, or else its tools when it was installed. Raises the
    :class:`~mcpd.errors.McpdError` that hinders to tell.
    """
    lists = way.handshake.pools.catalog.lists(info.id, info.state)
    if "tools/list" not in lists:
        tools = await way.parts.source.tools(info.id)
        if tools:
            lists["tools/list"] = [jsonrpc.Raw(jsonrpc.encode({"tools": tools}))]
    offer = Offer()
    for _, method, key in _LISTS:
        for page in lists.get(method, ()):
            result = await asyncio.to_thread(_shown, info, method, page)
            offer.size += len(page)
            await asyncio.to_thread(offer.listed, key, result[key] if isinstance(result.get(key), list) else [])
    return offer if lists else None


def _shown(info: ServerInfo, method: str, result: jsonrpc.Raw) -> dict[str, Any]:
    """*result* of the list *method*, as the policy of *info* lets clients see it."""
    message: jsonrpc.Message = {"result": result}
    if info.policy is not None:
        try:
            _, shape = info.policy.apply(method, {"method": jsonrpc.Raw(jsonrpc.encode(method))})
        except Refused as answered:
            message = answered.members
        else:
            if shape is not None:
                shape(message)
    try:
        return member(json.loads(jsonrpc.encode(message)), "result")
    except (ValueError, RecursionError):
        return {}


class _Asker:
    """Makes the requests of one survey."""

    def __init__(self, way: Way, server: str, caller: Caller) -> None:
        self._way = way
        self._server = server
        self._caller = caller
        self._session = ""
        self._number = 0
        self.version = ""
        self.size = 0
        """Bytes of the answers so far."""

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        body = await self._post(message, method)
        self.size += len(body)
        if len(body) > MOST_BYTES:
            raise Answered(0, f"the answer has {len(body)} bytes, too many for this page")
        try:
            answer = await asyncio.to_thread(json.loads, body)
        except (ValueError, RecursionError):
            raise Answered(0, "the answer is nested too deeply for this page") from None
        if "result" in answer:
            result = answer["result"]
            return result if isinstance(result, dict) else {}
        fault = member(answer, "error")
        code = fault.get("code")
        raise Answered(code if isinstance(code, int) else 0, str(fault.get("message")))

    async def tell(self, method: str) -> None:
        await self._post({"jsonrpc": "2.0", "method": method}, method)

    async def _post(self, message: dict[str, Any], method: str) -> bytes:
        parts = self._way.parts
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def replied(_exchange: Exchange) -> None:
            if not done.done():
                done.set_result(None)

        def cut() -> None:
            if not done.done():
                done.set_exception(LimitExceeded("the answer takes too much memory, see bridge.max_buffered"))

        headers = {b"mcp-protocol-version": self.version.encode(), b"mcp-method": method.encode()}
        post = Post(self._server, self._caller, self._session, self.version, headers)
        exchange = Exchange(takes_json=True, takes_events=False)
        exchange.charge(parts.budget, self._caller, cut)
        exchange.on_reply = replied
        try:
            self._way.endpoint.post(post, json.dumps(message).encode(), exchange)
            if exchange.status:
                replied(exchange)
            await done
        except BaseException:
            exchange.hang_up()
            raise
        finally:
            exchange.release()
        for name, value in exchange.headers:
            if name == b"mcp-session-id":
                self._session = value.decode("latin-1")
        return exchange.body

    def end(self) -> None:
        if self._session:
            with contextlib.suppress(McpdError):
                found = self._way.handshake.session(self._server, self._session, self._caller)
                self._way.handshake.delete(found)
