# SPDX-License-Identifier: LGPL-2.1-or-later
"""The handshake era over Streamable HTTP: revisions 2024-11-05 to 2025-11-25.

Everything that arrives in a POST is decided here. A request that can go to a running process goes there at once, by
plain calls; only what needs a new process takes the detour of a task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from mcpd.bridge import eras, jsonrpc
from mcpd.bridge.handshake.greeting import POOL_GREETING
from mcpd.bridge.handshake.sessions import Sessions
from mcpd.bridge.jsonrpc import Kind, Message, Raw
from mcpd.bridge.observe.watch import refuse_all
from mcpd.bridge.tasks import fault_of
from mcpd.bridge.upstream.pool import Pools
from mcpd.bridge.upstream.slot import turn_away
from mcpd.errors import InvalidRequest, McpdError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from mcpd.bridge.callers import Caller
    from mcpd.bridge.exchange import Exchange
    from mcpd.bridge.handshake.session import Session
    from mcpd.bridge.http.post import Post
    from mcpd.bridge.parts import Parts
    from mcpd.bridge.upstream.pool import Pool

Request: TypeAlias = tuple[bytes, str, Message]
"""The id, the method and the whole."""


class Handshake:
    """Serves the requests of this era."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.pools = Pools(parts)
        self.sessions = Sessions(parts, self.pools)

    def post(self, post: Post, body: bytes, exchange: Exchange) -> None:
        """Serve one POST; its reply goes to *exchange*, perhaps later."""
        try:
            session = self.sessions.get(post.session_id, post.server, post.caller) if post.session_id else None
            parsed = jsonrpc.parse_body(body)
            if post.version and post.version not in eras.HANDSHAKE and not _is_of(session, post.version):
                self._told_of(post, body, "UnsupportedRevision", exchange)
                _refuse_version(post.version, parsed, exchange)
            elif isinstance(parsed, dict):
                self._one(post, session, parsed, exchange)
            else:
                self._batch(post, session, parsed, exchange)
        except McpdError as fault:
            self._told_of(post, body, fault.word, exchange)
            exchange.refuse(fault)

    def _told_of(self, post: Post, body: bytes, reason: str, exchange: Exchange) -> None:
        refuse_all(self._parts.watch, post.caller, post.server, body, reason, exchange.request_id)

    def delete(self, session: Session) -> None:
        """End *session*, for its client."""
        self.sessions.end(session, "its client ended it")

    def session(self, server: str, session_id: str, caller: Caller) -> Session:
        """The session that a GET or DELETE names.

        Raises :class:`~mcpd.errors.NotFound`, or InvalidRequest without an id.
        """
        if not session_id:
            raise InvalidRequest("there is no Mcp-Session-Id: send the one from the answer to initialize")
        return self.sessions.get(session_id, server, caller)

    def _one(self, post: Post, session: Session | None, message: Message, exchange: Exchange) -> None:
        try:
            kind, method, identity = jsonrpc.classify(message)
        except McpdError as fault:
            exchange.refuse(fault, jsonrpc.id_of(message))
            return
        if kind is Kind.REQUEST:
            if session is not None:
                life = session.life
                exchange.headers, exchange.streams = life.headers, life.streams
            if method == "initialize":
                self._initialize(post, session, message, identity, exchange)
            else:
                self._request(post, session, (identity, method, message), exchange)
        else:
            if session is not None:
                exchange.headers = session.headers
            self._other(session, kind, method, identity, message, exchange)

    def _initialize(
        self, post: Post, session: Session | None, message: Message, identity: bytes, exchange: Exchange
    ) -> None:
        if session is not None:
            exchange.answer(jsonrpc.result(identity, session.result))
            return
        params = bytes(message.get("params", b"{}"))
        try:
            opened = self.sessions.ready(post.server, post.caller, params, post.environment)
        except McpdError as fault:
            exchange.refuse(fault, identity)
            return
        if opened is None:
            self._later(post, self._open(post, identity, params, exchange), exchange, identity)
        else:
            exchange.opened(opened)
            exchange.answer(jsonrpc.result(identity, opened.result))

    def _request(self, post: Post, session: Session | None, request: Request, exchange: Exchange) -> None:
        identity, method, message = request
        if session is not None:
            session.request(exchange, identity, method, message)
            return
        if self._parts.options.strict_sessions:
            fault = InvalidRequest("there is no Mcp-Session-Id: send initialize first")
            turn_away(exchange, identity, method, message, fault, server=post.server, watch=self._parts.watch)
            return
        pool = self.pools.find(post.server, post.caller, POOL_GREETING)
        if pool is None:
            self._later(post, self._open_pool(post, request, exchange), exchange, identity)
        else:
            self._request_of_nobody(pool, request, exchange)

    @staticmethod
    def _request_of_nobody(pool: Pool, request: Request, exchange: Exchange) -> None:
        exchange.on_gone = lambda: pool.abandon(exchange)
        pool.request(None, exchange, *request)

    def _other(
        self, session: Session | None, kind: Kind, method: str, identity: bytes, message: Message, exchange: Exchange
    ) -> None:
        if session is None:
            # Nothing of a client without a session concerns a process of the pool.
            exchange.accept()
        elif kind is Kind.NOTIFICATION:
            session.notify(method, message, exchange.accept)
        else:
            session.reply(identity, message)
            exchange.accept()

    # ------------------------------------------------------------------------------------ batches

    def _batch(self, post: Post, session: Session | None, batch: list[Raw], exchange: Exchange) -> None:
        if post.version not in eras.WITH_BATCHES:
            raise InvalidRequest(f"revision {post.version} has no batches: send one message per POST")
        if session is not None:
            life = session.life
            exchange.headers, exchange.streams = life.headers, life.streams
        requests: list[Request] = []
        failures: list[bytes] = []
        for raw in batch:
            message: Message = {}
            try:
                message = jsonrpc.parse_member(raw)
                request = _member(session, message)
            except McpdError as fault:
                failures.append(jsonrpc.failure(jsonrpc.id_of(message), fault))
                continue
            if request is not None:
                requests.append(request)
        if not requests and not failures:
            exchange.accept()
            return
        exchange.expect_batch(len(requests) + len(failures))
        for failure in failures:
            exchange.answer(failure)
        for request in requests:
            self._request(post, session, request, exchange)

    # ------------------------------------------------------------------------------------ new processes

    def _later(self, post: Post, work: Coroutine[Any, Any, None], exchange: Exchange, identity: bytes) -> None:
        held, post.held = post.held, None

        async def guarded() -> None:
            # The boundary: whatever went wrong, the client waits for an answer.
            try:
                await work
            except Exception as error:  # noqa: BLE001 -- logged by fault_of
                exchange.refuse(fault_of(error, post.server, exchange.request_id), identity)
            finally:
                if held is not None:
                    held.close()

        self._parts.tasks.spawn(guarded())

    async def _open(self, post: Post, identity: bytes, params: bytes, exchange: Exchange) -> None:
        session = await self.sessions.open(post.server, post.caller, params, post.environment)
        if isinstance(session, dict):
            exchange.answer(jsonrpc.encode({**session, "id": Raw(identity)}))
        elif exchange.gone:
            self.sessions.end(session, "its client is gone")
        else:
            exchange.opened(session)
            exchange.answer(jsonrpc.result(identity, session.result))

    async def _open_pool(self, post: Post, request: Request, exchange: Exchange) -> None:
        try:
            info = await self._parts.source.describe(post.server)
            pool = await self.pools.open(info, post.caller, POOL_GREETING)
        except McpdError as fault:
            _, method, message = request
            params = message.get("params")
            self._parts.watch.refused(post.caller, post.server, method, params, fault.word, exchange.request_id)
            raise
        if not exchange.gone:
            self._request_of_nobody(pool, request, exchange)


def _is_of(session: Session | None, version: str) -> bool:
    return session is not None and version == session.version


def _refuse_version(version: str, parsed: Message | list[Raw], exchange: Exchange) -> None:
    identity = jsonrpc.id_of(parsed) if isinstance(parsed, dict) else b""
    text = f"revision {version[:40]!r} is not served here"
    exchange.reply(400, jsonrpc.error(identity, eras.UNSUPPORTED_VERSION, text, eras.unsupported_data(version[:40])))


def _member(session: Session | None, message: Message) -> Request | None:
    """A request of a batch; anything else goes to *session* at once, and there is nothing to answer."""
    kind, method, identity = jsonrpc.classify(message)
    if method == "initialize":
        raise InvalidRequest("initialize cannot be part of a batch")
    if kind is Kind.REQUEST:
        return identity, method, message
    if session is not None and kind is Kind.NOTIFICATION:
        session.notify(method, message, _nothing)
    elif session is not None:
        session.reply(identity, message)
    return None


def _nothing() -> None:
    """A batch is acknowledged by its answers."""
