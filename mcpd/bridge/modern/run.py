# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls of clients of revision 2026-07-28, on servers of either era, and their suspension.

A server of the handshake era may ask its client something during a call. A client of this revision is never asked: the
result says that it has to answer first and come back. Such a call is suspended here meanwhile.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mcpd.bridge import eras, jsonrpc
from mcpd.bridge.jsonrpc import Raw
from mcpd.bridge.modern import results, seal
from mcpd.bridge.modern.profile import MOST_AWAY
from mcpd.bridge.modern.seal import LIFETIME, Seal
from mcpd.bridge.upstream.pool import MOST_PROCESSES
from mcpd.errors import LimitExceeded, McpdError, MissingCapability, ServiceUnavailable

if TYPE_CHECKING:
    from mcpd.bridge.budget import Budget, Holding
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.jsonrpc import Message
    from mcpd.bridge.modern.profile import Profile
    from mcpd.bridge.modern.request import Request
    from mcpd.bridge.upstream.child import Child

MOST_SUSPENDED: Final = 64
"""Calls of one caller that may wait at once."""
PATIENCE: Final = 30.0
"""Seconds for which a call may wait in any case, also if others need its process."""
_HANDLE: Final = 18
MOST_ASKED: Final = 64
"""Maximum number of unanswered requests of a server during one call."""
TOGETHER: Final = 0.01
"""Seconds in which what a server asks at once is collected."""
_METHOD_NOT_FOUND: Final = -32601
_PROGRESS: Final = b"notifications/progress"
_DROPPED: Final = ("notifications/tools/", "notifications/prompts/", "notifications/resources/", "notifications/tasks/",
                   "notifications/elicitation/")  # fmt: skip


class Suspended:
    """The calls that wait, each to be found once with the state that its client got."""

    def __init__(self, budget: Budget, state: Seal) -> None:
        self._budget = budget
        self._seal = state
        self._waiting: dict[bytes, tuple[Run, asyncio.TimerHandle]] = {}
        self._per_caller: dict[Caller, int] = {}

    def holding(self, run: Run) -> Holding:
        """Return the holding that counts the bytes kept for *run* while it waits."""
        return self._budget.holding(run.request.caller, run.give_up)

    def add(self, run: Run) -> str:
        """Have *run* wait from now on; returns the state for its client.

        Raises :class:`~mcpd.errors.LimitExceeded` if too many wait, or it is too large.
        """
        caller, profile = run.request.caller, run.profile
        count = self._per_caller.get(caller, 0)
        if count >= MOST_SUSPENDED:
            raise LimitExceeded(f"{count} calls wait for answers of their clients, the limit for one caller")
        if not run.held.hold(run.size):
            raise run.held.fault()
        request = run.digest
        loop = asyncio.get_running_loop()
        handle = secrets.token_bytes(_HANDLE)
        self._per_caller[caller] = count + 1
        self._waiting[handle] = run, loop.call_later(LIFETIME, self._expire, handle)
        profile.suspend(run)
        run.since = loop.time()
        return self._seal.close(handle, caller, run.request.post.server, request)

    def take(self, state: str, request: Request) -> Run:
        """The call that waits for *request*. Raises :class:`~mcpd.errors.InvalidArgument` if there is none."""
        wanted = seal.digest(request.method, request.params)
        handle = self._seal.open(state, request.caller, request.post.server, wanted)
        run = self._remove(handle)
        if run is None:
            raise seal.refused()
        return run

    def make_room(self, profile: Profile) -> None:
        """Have a process for a further call, though calls that wait for their clients keep all of *profile*.

        Soon that is: the one that waits longest is given up when it has done so long enough.
        """
        if len(profile.suspended) >= MOST_PROCESSES + MOST_AWAY and profile.room is None:
            loop = asyncio.get_running_loop()
            due = next(iter(profile.suspended)).since + PATIENCE
            profile.room = loop.call_at(max(due, loop.time()), self._give_up, profile)

    @staticmethod
    def _give_up(profile: Profile) -> None:
        profile.room = None
        if len(profile.suspended) >= MOST_PROCESSES + MOST_AWAY:
            oldest = next(iter(profile.suspended))
            oldest.give_up(ServiceUnavailable("the call waited for its client until others needed the server"))

    def close(self) -> None:
        """Give all up."""
        for handle in list(self._waiting):
            self._expire(handle)

    def _expire(self, handle: bytes) -> None:
        run = self._remove(handle)
        if run is not None:
            run.forget()

    def _remove(self, handle: bytes) -> Run | None:
        run, timer = self._waiting.pop(handle, (None, None))
        if run is None or timer is None:
            return None
        timer.cancel()
        run.profile.unsuspend(run)
        caller = run.request.caller
        left = self._per_caller[caller] - 1
        if left:
            self._per_caller[caller] = left
        else:
            del self._per_caller[caller]
        return run


class Forward:
    """A call on a server of this revision: the sink of its answer, and whom the server tells of it."""

    status = 200
    """The HTTP status of its answer."""

    def __init__(self, profile: Profile, request: Request) -> None:
        self.profile = profile
        self.request = request
        self.exchange = request.exchange
        self.identity = request.identity
        self.caller = self.exchange.caller

    @property
    def request_id(self) -> str:
        """The id of its HTTP request."""
        return self.exchange.request_id

    def send(self, message: Message) -> None:
        """Send the call as *message* to the server."""
        self.exchange.on_gone = self.gone
        self.profile.pool.request(self, self, self.identity, self.request.method, message, shape=self.shape)

    def gone(self) -> None:
        """The client went away, which cancels the call."""
        self.profile.pool.abandon(self)

    # ------------------------------------------------------------------------------------ the answer

    def shape(self, message: Message) -> None:
        """Edit the response of the server."""
        if "error" in message:
            self.status = results.status_of(results.code_of(message["error"]))

    def answer(self, response: bytes) -> None:
        """Take the response."""
        exchange = self.exchange
        exchange.on_gone = None
        if self.status == 200 or exchange.streaming:
            exchange.answer(response)
        else:
            exchange.reply(self.status, response)

    def refuse(self, fault: McpdError, identity: bytes = b"") -> None:
        """Take *fault* instead of a response."""
        self.exchange.on_gone = None
        self.exchange.refuse(fault, identity or self.identity)

    def push(self, message: bytes) -> bool:
        """Take progress."""
        return self.exchange.push(message)

    def cancelled(self, identity: bytes) -> None:
        """Learn that no response will come."""
        self.exchange.cancelled(identity)

    # ------------------------------------------------------------------------------------ from the server

    def server_request(self, child: Child, _method: str, message: Message) -> None:
        """A server of this revision has nothing to ask."""
        child.reply_error(bytes(message["id"]), _METHOD_NOT_FOUND, "revision 2026-07-28 has no requests of servers")

    def server_notification(self, _child: Child, method: str, message: Message) -> None:
        """Pass on what belongs to the call."""
        if not method.startswith(_DROPPED):
            self.exchange.push(jsonrpc.encode(message))

    def child_ended(self, child: Child) -> None:
        """The answer says so."""


@dataclass(slots=True)
class Ask:
    """A request of a server to the client."""

    child: Child
    original: bytes
    """The server's id."""
    request: Message
    """As the client gets it."""
    size: int


class Run(Forward):
    """A call on a server of the handshake era."""

    done = False
    """It was answered, or was given up."""
    since = 0.0
    """When it was suspended, by the loop's clock; 0 while its client waits for it."""
    _number = 0
    """Number of requests that its server has made."""
    _digest = b""
    _held: Holding | None = None
    _outcome: bytes | None = None
    _levels: frozenset[str] | None = None
    _collecting: asyncio.TimerHandle | None = None

    def __init__(self, profile: Profile, request: Request, table: Suspended) -> None:
        super().__init__(profile, request)
        self._table = table
        self._asks: dict[str, Ask] = {}
        if request.said.level:
            self._levels = frozenset(eras.LEVELS[eras.LEVELS.index(request.said.level) :])

    @property
    def held(self) -> Holding:
        """The holding that counts the bytes kept for it while it is suspended."""
        if self._held is None:
            self._held = self._table.holding(self)
        return self._held

    @property
    def size(self) -> int:
        """Bytes that are kept for it, beside its parameters, which count as those of a call in flight."""
        return sum(ask.size for ask in self._asks.values()) + len(self._outcome or b"")

    @property
    def digest(self) -> bytes:
        """Digest that identifies its request."""
        if not self._digest:
            self._digest = seal.digest(self.request.method, self.request.params)
        return self._digest

    # ------------------------------------------------------------------------------------ the answer

    def shape(self, message: Message) -> None:
        """Make a response of this revision of what the server answered."""
        method = self.request.method
        if "error" in message:
            asks = results.urls_to_open(message["error"]) if method in results.MRTR else {}
            if asks:
                self._have_opened(asks, message)
                return
            message["error"], code = results.translate_error(message["error"], method, self.request.params)
            self.status = results.status_of(code)
        elif "result" in message:
            complete = results.complete if method not in results.CACHEABLE else results.complete_cacheable
            message["result"] = complete(message["result"], self.profile.stamp)

    def _have_opened(self, asks: dict[str, Message], message: Message) -> None:
        """Make of a response what has the client open URLs and then make the call again."""
        del message["error"]
        if "elicitation/url" in self.request.said.asks:
            message["result"] = Raw(results.input_required(asks, "", self.profile.server_info))
        else:
            fault = MissingCapability(
                "the server has a URL to be opened first, and the client did not declare elicitation/url",
                results.as_capabilities(("elicitation/url",)),
            )
            self.status = fault.http_status
            message["error"] = jsonrpc.members(Raw(jsonrpc.failure(self.identity, fault)))["error"]

    def answer(self, response: bytes) -> None:
        """Take the response; it waits for the client if that has to come back for it."""
        if self.done:
            return
        if self.since:
            self._outcome = response
            self.profile.unsuspend(self)
            if not self.held.hold(self.size):
                self.give_up(self.held.fault())
            return
        self._finish()
        if self._number:
            # The client came back since, and its request has another id.
            members = jsonrpc.members(Raw(response))
            members["id"] = Raw(self.identity)
            response = jsonrpc.encode(members)
        if self.status == 200 or self.exchange.streaming:
            self.exchange.answer(response)
        else:
            self.exchange.reply(self.status, response)

    def refuse(self, fault: McpdError, identity: bytes = b"") -> None:
        """Take *fault* instead of a response."""
        if self.since:
            self.give_up(fault)
        elif not self.done:
            self._finish()
            super().refuse(fault, self.identity)

    def push(self, message: bytes) -> bool:
        """Take a message for the client, unless that is away."""
        if self.since or self.done:
            return False
        if self.profile.pool.is_asking and _PROGRESS in message:
            return self._push_progress(jsonrpc.members(Raw(message)))
        return self.exchange.push(message)

    def _push_progress(self, message: Message) -> bool:
        """Pass on progress with the token of the present request, as it is not that of the first one."""
        if jsonrpc.method_of(message) == "notifications/progress":
            token = self.request.token
            if token is None:
                return True
            message = jsonrpc.with_param(message, jsonrpc.PROGRESS_TOKEN, bytes(token))
        return self.exchange.push(jsonrpc.encode(message))

    def start(self) -> None:
        """Send the call to the server."""
        # Where its client may have to come back, it may want to hear of progress only then.
        self.send(self.request.for_handshake(with_token=self.profile.pool.is_asking))

    def gone(self) -> None:
        """The client went away, which cancels the call."""
        if not self.done and not self.since:
            self._finish()
            self.profile.pool.abandon(self)

    def _fail(self, fault: McpdError) -> None:
        """End the call with *fault*, and tell the server."""
        if self.since:
            self.give_up(fault)
        elif not self.done:
            self.refuse(fault)
            self.profile.pool.abandon(self)

    def _finish(self) -> None:
        self.done = True
        self.exchange.on_gone = None
        if self._number:
            self._asks.clear()
            self.held.close()
        if self._collecting is not None:
            self._collecting.cancel()
        if self._levels is not None:
            self.profile.pool.leave(self)

    # ------------------------------------------------------------------------------------ from the server

    def pool_notification(self, method: str, message: Message) -> None:
        """What belongs to no call does not belong to this one."""

    def server_notification(self, child: Child, method: str, message: Message) -> None:
        """Pass on what belongs to the call, and log messages if the client asked for them."""
        if method == "notifications/cancelled":
            self._withdraw(child, bytes(jsonrpc.members(message.get("params")).get("requestId", b"")))
        elif method == "notifications/message":
            if self._levels is not None and _level(message) in self._levels:
                self.push(jsonrpc.encode(message))
        elif not method.startswith(_DROPPED):
            self.push(jsonrpc.encode(message))

    def _withdraw(self, child: Child, original: bytes) -> None:
        for key, ask in list(self._asks.items()):
            if ask.child is child and ask.original == original:
                child.asks.discard(original)
                del self._asks[key]

    def server_request(self, child: Child, method: str, message: Message) -> None:
        """Have the client asked, with the result of the call."""
        original, params = bytes(message["id"]), message.get("params")
        names = results.needed(method, params)
        if not names or self.done or self.request.method not in results.MRTR:
            child.reply_error(original, _METHOD_NOT_FOUND, f"the client cannot be asked {method} here")
            return
        if not all(name in self.request.said.asks for name in names):
            child.reply_error(original, _METHOD_NOT_FOUND, f"the client did not declare {' and '.join(names)}")
            self.undeclared(method, message)
            return
        if len(self._asks) >= MOST_ASKED:
            text = f"{MOST_ASKED} requests to the client are unanswered"
            child.reply_error(original, LimitExceeded.jsonrpc_code, text)
            return
        self._number += 1
        size = len(memoryview(params)) if params is not None else 0
        self._asks[f"ask-{self._number}"] = Ask(child, original, results.input_request(method, params), size)
        if not self.since and self._collecting is None:
            self._collecting = asyncio.get_running_loop().call_later(TOGETHER, self._suspend)

    def undeclared(self, method: str, message: Message) -> None:
        """End the call, as its server needs what the client did not declare."""
        names = results.needed(method, message.get("params"))
        missing = tuple(name for name in names if name not in self.request.said.asks)
        if missing and self.request.method in results.MRTR:
            text = f"the server has to ask {method}, and the client did not declare {' and '.join(missing)}"
            self._fail(MissingCapability(text, results.as_capabilities(missing)))

    # ------------------------------------------------------------------------------------ round trips

    def _suspend(self) -> None:
        self._collecting = None
        if self.done or not self._asks:
            return
        try:
            state = self._table.add(self)
        except LimitExceeded as fault:
            self._fail(fault)
            return
        exchange = self.exchange
        exchange.on_gone = None
        # What came is not needed any more, and may be large.
        self.request.message = self.request.params = {}
        asks = {key: ask.request for key, ask in self._asks.items()}
        result = results.input_required(asks, state, self.profile.server_info)
        exchange.answer(jsonrpc.result(self.identity, result))

    def resume(self, request: Request, answers: Message) -> None:
        """Go on with the *answers* of the client, which came back with *request*."""
        self.since = 0.0
        self.held.hold(0)
        self.request, self.exchange, self.identity = request, request.exchange, request.identity
        self.exchange.on_gone = self.gone
        if self._outcome is not None:
            self.answer(self._outcome)
            return
        for key in [key for key in self._asks if key in answers]:
            ask = self._asks.pop(key)
            ask.child.reply(ask.original, {"jsonrpc": Raw(b'"2.0"'), "result": answers[key]})
        self._suspend()

    def give_up(self, fault: McpdError) -> None:
        """End the call while it is suspended; its client learns why if it comes back in time."""
        self._asks.clear()
        self.profile.unsuspend(self)
        self.status = fault.http_status
        self._outcome = jsonrpc.failure(self.identity, fault)
        self.held.hold(self.size)
        self.profile.pool.abandon(self)

    def forget(self) -> None:
        """End the call while it is suspended, as its client does not come back."""
        self._finish()
        self.profile.pool.abandon(self)


def _level(message: Message) -> str:
    return jsonrpc.text(jsonrpc.members(message.get("params")).get("level"))
