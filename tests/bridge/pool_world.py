# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pools and sessions on real processes, without HTTP."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcpd.bridge import jsonrpc
from mcpd.bridge.callers import Caller
from mcpd.bridge.handshake.greeting import POOL_GREETING, greeting
from mcpd.bridge.handshake.session import Session
from mcpd.bridge.handshake.sessions import Sessions
from mcpd.bridge.parts import Options, Parts
from mcpd.bridge.tasks import Tasks
from mcpd.bridge.upstream.commands import Command, CommandSource
from mcpd.bridge.upstream.pool import Pools
from mcpd.bridge.upstream.source import ServerInfo
from mcpd.errors import McpdError, NotAuthorized
from tests.bridge.bridge_harness import call, initialize, text_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from mcpd.bridge.jsonrpc import Message
    from mcpd.bridge.upstream.child import Child
    from mcpd.bridge.upstream.pool import Pool

PROGRAM = Path(__file__).parent / "fixtures" / "pool_server.py"
ASKING = greeting("2025-11-25", b'{"elicitation":{}}')
ME, OTHER = Caller(1), Caller(2)


class Sink:
    """Takes an answer."""

    caller: Caller | None = ME
    request_id = ""

    def __init__(self) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.pushed: list[Any] = []
        self.was_cancelled = False

    def answer(self, response: bytes) -> None:
        self.future.set_result(json.loads(response))

    def refuse(self, fault: McpdError, identity: bytes = b"") -> None:
        self.future.set_exception(fault)

    def push(self, message: bytes) -> bool:
        self.pushed.append(json.loads(message))
        return True

    def cancelled(self, identity: bytes) -> None:
        self.was_cancelled = True


class Client:
    """Somebody in the course of whose calls a server asks; it answers with its name, unless it is *silent*."""

    def __init__(self, name: str, *, silent: bool = False) -> None:
        self.name = name
        self.silent = silent
        self.asked: list[tuple[Child, bytes]] = []
        self.heard: list[str] = []

    def server_request(self, child: Child, method: str, message: Message) -> None:
        self.asked.append((child, bytes(message["id"])))
        if not self.silent:
            self.answer()

    def answer(self) -> None:
        child, identity = self.asked.pop()
        child.reply(identity, {"jsonrpc": jsonrpc.Raw(b'"2.0"'), "result": jsonrpc.Raw(jsonrpc.encode(self.name))})

    def server_notification(self, child: Child, method: str, message: Message) -> None:
        self.heard.append(method)

    def child_ended(self, child: Child) -> None:
        self.asked = [asked for asked in self.asked if asked[0] is not child]

    def pool_notification(self, method: str, message: Message) -> None:
        self.heard.append(method)


class Source(CommandSource):
    """Commands whose description can change, as that of mcpd's servers does."""

    def __init__(self, *flags: str) -> None:
        super().__init__({"p": Command((sys.executable, str(PROGRAM), *flags))})
        self.info = ServerInfo("p")
        self.fault: McpdError | None = None
        self.admitted = {ME}
        self.listener: Callable[[], None] = lambda: None

    async def describe(self, server: str) -> ServerInfo:
        if self.fault is not None:
            raise self.fault
        return self.info

    def known(self, server: str) -> ServerInfo | None:
        return None if self.fault is not None else self.info

    def listen(self, listener: Callable[[], None]) -> None:
        self.listener = listener

    async def authorize(self, server: str, caller: Caller) -> None:
        if caller not in self.admitted:
            raise NotAuthorized("no")


class World:
    """Pools and sessions on real processes."""

    def __init__(self, source: Source, options: Options) -> None:
        self.source = source
        self.parts = Parts(source, options, Tasks())
        self.pools = Pools(self.parts)
        self.sessions = Sessions(self.parts, self.pools)

    async def open(self, own: bytes = POOL_GREETING, caller: Caller = ME) -> Pool:
        return await self.pools.open(await self.source.describe("p"), caller, own)

    async def initialize(self, capabilities: object = None) -> Session:
        params = jsonrpc.encode(initialize(capabilities=capabilities)["params"])
        found = self.sessions.ready("p", ME, params, {}) or await self.sessions.open("p", ME, params, {})
        assert isinstance(found, Session)
        return found


@asynccontextmanager
async def world(*flags: str, **options: Any) -> AsyncIterator[World]:
    """A world that ends without anything left of it."""
    made = World(Source(*flags), Options(**options))
    try:
        async with asyncio.timeout(120):
            yield made
    finally:
        await made.sessions.close()
        assert not len(made.parts.process_counts)


def send(
    to: Pool | Session,
    tool: str,
    owner: Client | None = None,
    identity: str = "i",
    caller: Caller = ME,
    **arguments: object,
) -> Sink:
    sink, message = (
        Sink(),
        {key: jsonrpc.Raw(jsonrpc.encode(v)) for key, v in call(tool, identity, **arguments).items()},
    )
    sink.caller = caller
    if isinstance(to, Session):
        to.request(sink, bytes(message["id"]), "tools/call", message)
    else:
        to.request(owner, sink, bytes(message["id"]), "tools/call", message)
    return sink


async def lists(to: Session, cursor: str = "") -> Any:
    sink, params = Sink(), {"cursor": cursor} if cursor else {}
    message = jsonrpc.request(b"1", "tools/list", jsonrpc.encode({"_meta": {"progressToken": 5}, **params}))
    to.request(sink, b"1", "tools/list", message)
    return (await sink.future)["result"]


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.01)


def asked(answer: Any) -> tuple[int, str]:
    pid, said = json.loads(text_of(answer))
    return pid, said
