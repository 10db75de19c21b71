# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tools, resources and prompts of a server, as its page shows them: requested from it, and cached.

The requests take the way of every client, through sessions, policy, limits and audit. Answers are not trusted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from mcpd import __version__
from mcpd.bridge import eras, jsonrpc
from mcpd.bridge.exchange import Exchange
from mcpd.bridge.http.post import Post
from mcpd.bridge.modern import envelope
from mcpd.bridge.pages.schema import Effort, Field, as_json, fields_of
from mcpd.bridge.upstream.policy import Answered as Refused
from mcpd.errors import LimitExceeded, McpdError, TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.bridge.budget import Budget, Holding
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.handshake.serve import Handshake
    from mcpd.bridge.http.endpoint import Endpoint
    from mcpd.bridge.parts import Parts
    from mcpd.bridge.upstream.source import ServerInfo

MOST_SHOWN: Final = 200
"""Entries of one list."""
MOST_RAW: Final = 8000
"""Characters of one schema in full."""
PROBLEMS: Final = "org.mcpd/problems"
"""Key in the ``_meta`` of a list for the reasons why something is missing from it."""
MOST_PROBLEMS: Final = 20
"""Problems that are shown for one server, in all its lists together."""
MOST_PROBLEM: Final = 500
"""Characters of one problem."""

MOST_KEPT: Final = 64
"""Offers that are cached; the oldest is dropped if there are more."""
PATIENCE: Final = 90.0
"""Seconds for all requests to a server for its page, including its start."""
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

T = TypeVar("T")


@dataclass(slots=True)
class Tool:
    """One tool."""

    name: str
    title: str
    description: str
    hints: list[str]
    input: list[Field]
    output: list[Field]
    raw: str


@dataclass(slots=True)
class Entry:
    """A resource, a template for such, or a prompt."""

    name: str
    description: str
    uri: str = ""
    kind: str = ""
    arguments: list[Field] = field(default_factory=list)


@dataclass(slots=True)
class Listed(Generic[T]):
    """A list, as far as it is shown."""

    items: list[T] = field(default_factory=list)
    total: int = 0

    @property
    def left_out(self) -> int:
        """Number of entries that are not shown."""
        return self.total - len(self.items)


@dataclass(slots=True)
class Offer:
    """Everything that a server offers to one caller."""

    revision: str = ""
    name: str = ""
    version: str = ""
    instructions: str = ""
    asked: float = 0.0
    """When it was asked for this page, in seconds since the epoch; 0 if only what others asked is known."""
    size: int = 0
    """Bytes of the answers."""
    tools: Listed[Tool] = field(default_factory=Listed)
    resources: Listed[Entry] = field(default_factory=Listed)
    templates: Listed[Entry] = field(default_factory=Listed)
    prompts: Listed[Entry] = field(default_factory=Listed)
    faults: list[str] = field(default_factory=list)
    effort: Effort = field(default_factory=Effort)

    def troubled(self, result: dict[str, Any]) -> None:
        """Take note of what the server itself tells is wrong with a part of what it offers."""
        problems = member(result, "_meta").get(PROBLEMS)
        for problem in problems[:MOST_PROBLEMS] if isinstance(problems, list) else ():
            text = str(problem)[:MOST_PROBLEM]
            if text not in self.faults and len(self.faults) < MOST_PROBLEMS:
                self.faults.append(text)

    def introduced(self, result: dict[str, Any]) -> None:
        """Take what the server says of itself, in the result of ``initialize`` or ``server/discover``."""
        about = result.get("serverInfo") or member(result, "_meta").get(envelope.SERVER_INFO)
        about = about if isinstance(about, dict) else {}
        self.name = text(about, "title") or text(about, "name")
        self.version = text(about, "version")
        self.instructions = text(result, "instructions")

    def listed(self, key: str, entries: list[Any]) -> None:
        """Take *entries* of the list *key* of MCP. Large ones take their time."""
        if key == "tools":
            _extend(self.tools, entries, partial(_tool, self.effort))
        elif key == "resources":
            _extend(self.resources, entries, lambda each: _resource(each, "uri"))
        elif key == "resourceTemplates":
            _extend(self.templates, entries, lambda each: _resource(each, "uriTemplate"))
        else:
            _extend(self.prompts, entries, _prompt)


def member(value: object, key: str) -> dict[str, Any]:
    """The object *key* of the object *value*; empty if there is none."""
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def text(value: dict[str, Any], key: str) -> str:
    """The string *key* of the object *value*, not more of it than is ever shown; empty if there is none."""
    found = value.get(key)
    return found[:4001] if isinstance(found, str) else ""


def _extend(into: Listed[T], entries: list[Any], make: Callable[[dict[str, Any]], T]) -> None:
    into.total += len(entries)
    room = MOST_SHOWN - len(into.items)
    into.items += [make(each) for each in entries[:room] if isinstance(each, dict)]


def _tool(effort: Effort, tool: dict[str, Any]) -> Tool:
    hints = member(tool, "annotations")
    schemas = {key: tool[key] for key in ("inputSchema", "outputSchema") if key in tool}
    return Tool(
        name=text(tool, "name"),
        title=text(tool, "title") or text(hints, "title"),
        description=text(tool, "description"),
        hints=[
            word
            for key, value, word in (
                ("readOnlyHint", True, "only reads"),
                ("destructiveHint", True, "may destroy"),
                ("idempotentHint", True, "repeatable"),
                ("openWorldHint", True, "reaches outside"),
            )
            if hints.get(key) is value
        ],
        input=fields_of(tool.get("inputSchema"), effort),
        output=fields_of(tool.get("outputSchema"), effort),
        raw=as_json(schemas, MOST_RAW, indent=2),
    )


def _resource(entry: dict[str, Any], key: str) -> Entry:
    name = text(entry, "title") or text(entry, "name")
    return Entry(name, text(entry, "description"), text(entry, key), text(entry, "mimeType"))


def _prompt(entry: dict[str, Any]) -> Entry:
    arguments = entry.get("arguments")
    fields = [
        Field(text(each, "name"), "string", each.get("required") is True, text(each, "description"))
        for each in (arguments[:50] if isinstance(arguments, list) else ())
        if isinstance(each, dict)
    ]
    return Entry(text(entry, "title") or text(entry, "name"), text(entry, "description"), arguments=fields)


Key = tuple["Caller", str]


class Memory:
    """Remembers the newest offer of each server to each caller."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._kept: dict[Key, tuple[str, Offer, Holding]] = {}

    def recall(self, caller: Caller, info: ServerInfo) -> Offer | None:
        """Return what *info*'s server offered *caller*, unless it has changed since then."""
        state, offer, _ = self._kept.get((caller, info.id), ("", None, None))
        return offer if state == info.state else None

    def keep(self, caller: Caller, info: ServerInfo, offer: Offer) -> None:
        """Remember *offer*, if there is room for it."""
        key = (caller, info.id)
        self._forget(key)
        holding = self._budget.holding(caller, lambda _fault: self._forget(key))
        # What was made of the answers is a few times their size.
        if holding.hold(4 * offer.size):
            self._kept[key] = info.state, offer, holding
            while len(self._kept) > MOST_KEPT:
                self._forget(next(iter(self._kept)))

    def _forget(self, key: Key) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            kept[2].close()


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
