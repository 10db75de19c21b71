# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sessions of the handshake era, and the pool that serves requests without one (design §8, C-2)."""

from __future__ import annotations

import logging
import secrets
from collections import deque
from typing import TYPE_CHECKING, Final

from mcpd.bridge import jsonrpc
from mcpd.bridge.exchange import EventQueue
from mcpd.bridge.jsonrpc import Message, Raw
from mcpd.bridge.seat import Seat
from mcpd.errors import InvalidRequest, LimitExceeded, NotFound, ServiceUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.bridge.callers import Caller
    from mcpd.bridge.child import Child
    from mcpd.bridge.exchange import Headers
    from mcpd.bridge.seat import Parts
    from mcpd.bridge.upstream import ServerInfo

log = logging.getLogger(__name__)

OUTBOX_MESSAGES: Final = 100
OUTBOX_BYTES: Final = 1 << 20
"""What is kept of a server's own messages for a client that has no stream open."""
MOST_ASKED: Final = 64
"""Requests of one server to its client that may be unanswered."""
METHOD_NOT_FOUND: Final = -32601

Greeted = tuple[bytes, str]


class Session:
    """One client's handshake with one server, which gets a process of its own."""

    def __init__(self, info: ServerInfo, caller: Caller, parts: Parts, params: bytes, table: Sessions) -> None:
        self.id = secrets.token_urlsafe(24)
        self.server = info.id
        self.caller = caller
        self.headers: Headers = ((b"mcp-session-id", self.id.encode()),)
        self.version = ""
        """The negotiated protocol revision."""
        self._held = parts.budget.holding(caller, lambda fault: table.end(self, fault.message))
        if not self._held.hold(len(params)):
            raise self._held.fault()
        self.result = b""
        """The InitializeResult, as the server wrote it."""
        self.seat = Seat(info, caller, parts, self, params, lambda: table.end(self, "it was idle"))
        self._stream: EventQueue | None = None
        self._outbox: deque[bytes] = deque(maxlen=OUTBOX_MESSAGES)
        self._asked: dict[bytes, tuple[Child, bytes]] = {}
        self._number = 0

    def greeted(self, result: Raw) -> None:
        """Remember what the server answered to ``initialize``; LimitExceeded if that is too much."""
        if not self._held.hold(len(self.seat.greeting) + len(memoryview(result))):
            raise self._held.fault()
        self.result = bytes(result)
        version = bytes(jsonrpc.members(result).get("protocolVersion", b""))
        self.version = version.strip(b'"').decode("ascii", "replace")

    # ------------------------------------------------------------------------------------ from the client

    def notify(self, method: str, message: Message, then: Callable[[], None]) -> None:
        """A notification of the client; *then* is called when it may be acknowledged."""
        if method == "notifications/cancelled":
            self._cancel(message)
            then()
        else:
            self.seat.notify(message, then)

    def reply(self, identity: bytes, message: Message) -> None:
        """The client's response to a request that its server made."""
        asked = self._asked.pop(identity, None)
        if asked is None:
            log.debug("server %s: response to the unknown request %r of its own", self.server, identity[:40])
        else:
            child, original = asked
            child.reply(original, message)

    def open_stream(self) -> EventQueue:
        """The stream of the session, for a GET; an older one ends, as its client has come back."""
        if self._stream is not None:
            self._stream.end()
        stream = self._stream = EventQueue()
        while self._outbox:
            stream.push(self._outbox.popleft())
        self._held.hold(len(self.seat.greeting) + len(self.result))
        return stream

    def close_stream(self, stream: EventQueue) -> None:
        """The client closed *stream*."""
        stream.end()
        if self._stream is stream:
            self._stream = None

    async def close(self, reason: str) -> None:
        """End it all."""
        if self._stream is not None:
            self._stream.end()
        self._asked.clear()
        self._outbox.clear()
        self._held.close()
        await self.seat.close(f"the session with server {self.server} ended: {reason}")

    def _cancel(self, message: Message) -> None:
        wanted = bytes(jsonrpc.members(message.get("params")).get("requestId", b""))
        child = self.seat.child
        if child is None or not wanted:
            return
        found = [own for own, call in child.calls.items() if call.id == wanted]
        if len(found) == 1:
            child.cancel(found[0], message)
        elif found:
            # Which of them is meant cannot be told, and ending another's call would be worse than none.
            log.debug("server %s: %d calls have the id %r, none is cancelled", self.server, len(found), wanted[:40])

    # ------------------------------------------------------------------------------------ from the server

    def server_request(self, child: Child, method: str, message: Message) -> None:
        """Pass a request of the server on, under an id of the bridge."""
        original = bytes(message["id"])
        if method == "ping":
            child.reply(original, {"jsonrpc": Raw(b'"2.0"'), "result": Raw(b"{}")})
            return
        if len(self._asked) >= MOST_ASKED:
            child.reply_error(original, LimitExceeded.jsonrpc_code, "too many requests to the client are unanswered")
            return
        self._number += 1
        own = b"%d" % self._number
        self._asked[own] = (child, original)
        message["id"] = Raw(own)
        if not self._deliver(child, jsonrpc.encode(message), of_call=True):
            del self._asked[own]
            child.reply_error(original, InvalidRequest.jsonrpc_code, "the client takes no more messages")

    def server_notification(self, child: Child, method: str, message: Message) -> None:
        """Pass a notification on: what belongs to a call to its stream, changes to the session's."""
        if method == "notifications/cancelled":
            original = bytes(jsonrpc.members(message.get("params")).get("requestId", b""))
            own = next((own for own, asked in self._asked.items() if asked == (child, original)), None)
            if own is None:
                return
            del self._asked[own]
            child.asks.discard(original)
            message = jsonrpc.with_param(message, "requestId", own)
        of_call = not method.startswith(("notifications/tools/", "notifications/prompts/", "notifications/resources/"))
        self._deliver(child, jsonrpc.encode(message), of_call=of_call)

    def child_ended(self, child: Child) -> None:
        """The process is gone: the next call starts another one."""
        self.seat.vacate(child)
        self._asked = {own: asked for own, asked in self._asked.items() if asked[0] is not child}

    def _deliver(self, child: Child, message: bytes, *, of_call: bool) -> bool:
        """Send *message* where it can go. stdio does not tell its call, so the newest one that listens gets it."""
        if not of_call and self._stream is not None and self._stream.push(message):
            return True
        if any(call.sink.push(message) for call in reversed(child.calls.values())):
            return True
        if self._stream is not None:
            return self._stream.push(message)
        size = sum(map(len, self._outbox)) + len(message)
        if size > OUTBOX_BYTES or (len(self._outbox) == OUTBOX_MESSAGES and of_call):
            return False
        if not self._held.hold(len(self.seat.greeting) + len(self.result) + size):
            return False
        self._outbox.append(message)
        return True


class Pooled:
    """A process for all requests of one caller that come without a session; it knows no client to ask."""

    def __init__(
        self, info: ServerInfo, caller: Caller, parts: Parts, greeting: bytes, on_idle: Callable[[], None]
    ) -> None:
        self.seat = Seat(info, caller, parts, self, greeting, on_idle)

    def server_request(self, child: Child, method: str, message: Message) -> None:
        """Answer ``ping``, refuse everything else: the handshake declared no capability."""
        original = bytes(message["id"])
        if method == "ping":
            child.reply(original, {"jsonrpc": Raw(b'"2.0"'), "result": Raw(b"{}")})
        else:
            child.reply_error(original, METHOD_NOT_FOUND, "there is no client to ask: no capability was declared")

    def server_notification(self, child: Child, method: str, message: Message) -> None:
        """Pass on what can only belong to the one call in flight."""
        if method != "notifications/cancelled" and len(child.calls) == 1:
            next(iter(child.calls.values())).sink.push(jsonrpc.encode(message))

    def child_ended(self, child: Child) -> None:
        """The next call starts another process."""
        self.seat.vacate(child)


class Sessions:
    """All sessions and pooled processes of this bridge."""

    def __init__(self, parts: Parts, greeting: bytes) -> None:
        self._parts = parts
        self._greeting = greeting
        self._sessions: dict[str, Session] = {}
        self._per_caller: dict[Caller, int] = {}
        self._pool: dict[tuple[str, Caller], Pooled] = {}
        self._closing = False

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def idle(self) -> bool:
        """Whether there is no session, no process, and nothing on its way to become or end one."""
        return not self._sessions and not self._pool and not self._parts.tasks

    def get(self, session_id: str, server: str, caller: Caller) -> Session:
        """The session; raises :class:`~mcpd.errors.NotFound` also for one of another caller or server."""
        session = self._sessions.get(session_id)
        if session is None or session.server != server or session.caller != caller:
            raise NotFound("there is no such session (any more): send initialize without Mcp-Session-Id to open one")
        return session

    def create(self, info: ServerInfo, caller: Caller, params: bytes) -> Session:
        """A new session; raises :class:`~mcpd.errors.LimitExceeded` if *caller* has too many."""
        self._check_open()
        limit = self._parts.options.max_sessions
        if self._per_caller.get(caller, 0) >= limit:
            raise LimitExceeded(
                f"{limit} sessions are open, the limit for one caller: end some with DELETE, or raise "
                "bridge.max_sessions"
            )
        session = Session(info, caller, self._parts, params, self)
        self._sessions[session.id] = session
        self._per_caller[caller] = self._per_caller.get(caller, 0) + 1
        return session

    def end(self, session: Session, reason: str) -> None:
        """Remove *session* and stop its process in the background."""
        if self._sessions.pop(session.id, None) is None:
            return
        left = self._per_caller[session.caller] - 1
        if left:
            self._per_caller[session.caller] = left
        else:
            del self._per_caller[session.caller]
        log.debug("session with server %s ended: %s", session.server, reason)
        self._parts.tasks.spawn(session.close(reason))

    def pooled(self, server: str, caller: Caller) -> Pooled | None:
        """The seat for requests of *caller* without a session, if it was opened."""
        return self._pool.get((server, caller))

    def open_pooled(self, info: ServerInfo, caller: Caller) -> Pooled:
        """The same, opened now if need be."""
        self._check_open()
        key = (info.id, caller)
        found = self._pool.get(key)
        if found is None:
            found = Pooled(info, caller, self._parts, self._greeting, lambda: self._close_pooled(key))
            self._pool[key] = found
        return found

    def _close_pooled(self, key: tuple[str, Caller]) -> None:
        found = self._pool.pop(key, None)
        if found is not None:
            self._parts.tasks.spawn(found.seat.close("it was idle"))

    def _check_open(self) -> None:
        if self._closing:
            raise ServiceUnavailable("the bridge stops")

    async def close(self) -> None:
        """End everything, and open nothing any more."""
        self._closing = True
        for session in list(self._sessions.values()):
            self.end(session, "the bridge stops")
        for key in list(self._pool):
            self._close_pooled(key)
        await self._parts.tasks.close()
