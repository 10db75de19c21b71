# SPDX-License-Identifier: LGPL-2.1-or-later
"""One running server: requests are sent under ids of the bridge, and answers returned under those of their callers.

Every request gets a number of its own, which is both its id and its progress token upstream. Nothing is ever matched on
what a client chose, so equal ids of several clients, or of one, never meet.
"""

from __future__ import annotations

import asyncio
import logging
import math
from functools import partial
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Final

from mcpd.bridge import jsonrpc
from mcpd.bridge.budget import COUNTED_FROM
from mcpd.bridge.jsonrpc import Message, Raw
from mcpd.bridge.observe.watch import Outcome
from mcpd.bridge.tasks import LimitedLog, fault_of
from mcpd.bridge.upstream.call import LONGEST_CALL, Answer, Call
from mcpd.bridge.upstream.counts import DRAIN_TIMEOUT, START_TIMEOUT
from mcpd.bridge.upstream.pipes import CHATTER_AT_ONCE, LineReader, Pipe
from mcpd.bridge.upstream.policy import Answered, answer, screened
from mcpd.errors import LimitExceeded, McpdError, ParseError, ServiceUnavailable, SpawnFailed, TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mcpd.bridge.budget import Budget, Holding
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.tasks import Tasks
    from mcpd.bridge.upstream.call import Host, Peer, Shape, Sink
    from mcpd.bridge.upstream.counts import ProcessOptions
    from mcpd.bridge.upstream.source import Upstream

log = logging.getLogger(__name__)

ABANDONED_TIMEOUT: Final = 60.0
"""Seconds for which a server may continue to work on an abandoned request."""
MOST_ABANDONED: Final = 1000
"""Abandoned requests that are tracked by id; if there are more, none counts as answered."""
_STEP: Final = COUNTED_FROM
"""Bytes in whose multiples room is made, so that most calls cost two additions and no more."""
LONG_METHODS: Final = frozenset({"tools/call", "resources/read", "prompts/get"})
"""Methods for which the bridge asks for progress by itself, to tell slow from stuck."""
MOST_NAMED: Final = 5
"""Requests that one message in the log names."""
MAX_ID: Final = 1024
"""Bytes of the id of a server's own request."""
MOST_BROKEN: Final = 10_000
"""Lines that are no JSON after which a server is stopped, if no other line comes between."""


class _Account:
    """The memory that the calls of one caller take."""

    __slots__ = ("held", "low", "room", "size")

    def __init__(self, held: Holding) -> None:
        self.held = held
        self.size = 0
        self.room = _STEP
        self.low = 0
        """Size in bytes below which room is given back."""

    def admits(self, size: int) -> bool:
        """Return whether there is room for a call of *size* bytes."""
        size += self.size
        if size <= self.room:
            return True
        # A process that does not read its input at once has the call kept twice.
        return self.make(size + size - self.size) and self.make(size)

    def shrink(self, size: int) -> None:
        """Remove a finished call of *size* bytes."""
        self.size -= size
        if self.size < self.low:
            self.make(self.size)

    def make(self, size: int) -> bool:
        """Reserve room for *size* bytes; return False if there is none."""
        room = -(-max(size, 1) // _STEP) * _STEP
        if not self.held.hold(room):
            return False
        self.room, self.low = room, room // 2 if room > _STEP else 0
        return True


class InFlight(dict[bytes, Call]):
    """The unanswered calls of a process by their upstream id, oldest first; *budget* counts their memory for *payer*.

    If several callers share the process (*shared*), each call counts for its own caller, and a call that was given up
    is remembered until it is answered. *cut* is called if the calls of a caller take too much memory.

    Use :meth:`add`, :meth:`take` and :meth:`give_up` to change it.
    """

    __slots__ = ("_abandoned", "_abandoned_until", "_accounts", "_budget", "_cut", "_own", "_shared")

    def __init__(
        self, budget: Budget, payer: Caller, cut: Callable[[Caller, LimitExceeded], None], *, shared: bool = False
    ) -> None:
        super().__init__()
        self._budget = budget
        self._cut = cut
        self._own = self._open(payer)
        self._accounts = {payer: self._own}
        self._shared = shared
        self._abandoned: dict[bytes, float] = {}
        """The time at which each unanswered request was abandoned, by upstream id, newest last."""
        self._abandoned_until = 0.0
        """Until then there may be abandoned requests in addition to these."""

    def _open(self, caller: Caller) -> _Account:
        return _Account(self._budget.holding(caller, partial(self._cut, caller)))

    def _account(self, caller: Caller | None) -> _Account:
        if not self._shared or caller is None:
            return self._own
        found = self._accounts.get(caller)
        if found is None:
            found = self._accounts[caller] = self._open(caller)
        return found

    def admits(self, caller: Caller | None, size: int) -> bool:
        """Return whether there is room for a call of *size* bytes by *caller*."""
        return self._account(caller).admits(size)

    def fault(self) -> LimitExceeded:
        """Why there is no room."""
        return self._budget.fault()

    def add(self, own: bytes, call: Call) -> None:
        """*call*, which was admitted, is in flight."""
        self[own] = call
        self._account(call.sink.caller).size += call.size

    def take(self, own: bytes) -> Call | None:
        """The call *own*, if it is there, which is over: it was answered, unless it was given up."""
        call = self.pop(own, None)
        if call is not None:
            self._account(call.sink.caller).shrink(call.size)
        elif self._abandoned:
            self._abandoned.pop(own, None)
        return call

    def give_up(self, own: bytes) -> Call | None:
        """The call *own*, if it is there, that nobody waits for any more; the server may go on with it."""
        call = self.take(own)
        if call is not None and not _is_stream(call):
            if len(self._abandoned) < MOST_ABANDONED:
                self._abandoned[own] = monotonic()
            else:
                self._abandoned_until = math.inf if self._shared else monotonic() + ABANDONED_TIMEOUT
        return call

    @property
    def only(self) -> Call | None:
        """The call to which everything that the server sends now belongs, if that is certain."""
        first = list(islice((call for call in self.values() if not _is_stream(call)), 2))
        return first[0] if len(first) == 1 and not self._has_abandoned() else None

    @property
    def owner(self) -> Peer | None:
        """The peer of all unanswered calls, whom everything that the server sends now concerns, if that is certain."""
        if self._has_abandoned():
            return None
        owners = (call.owner for call in self.values() if not _is_stream(call))
        first = next(owners, None)
        return first if all(owner is first for owner in owners) else None

    def _has_abandoned(self) -> bool:
        if (
            self._abandoned
            and not self._shared
            and next(reversed(self._abandoned.values())) + ABANDONED_TIMEOUT < monotonic()
        ):
            self._abandoned.clear()
        return bool(self._abandoned) or (self._abandoned_until > 0 and monotonic() < self._abandoned_until)

    def trim(self, caller: Caller | None) -> None:
        """Return the room of *caller* that an admitted call did not use after all."""
        account = self._account(caller)
        account.make(account.size)

    def cut(self, caller: Caller) -> Iterator[tuple[bytes, Call]]:
        """Give up the largest calls of *caller*, as others need the room, until the rest is too small to be counted."""
        account = self._account(caller)
        account.room, account.low = _STEP, 0
        for own, call in sorted(self.items(), key=lambda item: -item[1].size):
            if account.size <= _STEP:
                return
            if self._account(call.sink.caller) is account and self.give_up(own) is not None:
                yield own, call

    def end(self) -> list[Call]:
        """Take all, and keep none any more."""
        calls = list(self.values())
        self.clear()
        for account in self._accounts.values():
            account.held.close()
        return calls


def _is_stream(call: Call) -> bool:
    """Return True if *call* goes on for as long as its client likes; what is said in the course of it names it."""
    return call.timeout == math.inf


class Child:
    """A server that runs."""

    def __init__(
        self, name: str, upstream: Upstream, host: Host, tasks: Tasks, process_options: ProcessOptions
    ) -> None:
        self.name = name
        self.calls = InFlight(
            process_options.budget, process_options.caller, self._cut_calls, shared=process_options.shared
        )
        """Requests in flight, oldest first, by their upstream id."""
        self.asks: set[bytes] = set()
        """Ids of the server's own requests that were not answered yet."""
        self.open = True
        """It takes new calls."""
        self._loop = asyncio.get_running_loop()
        self.used = self._loop.time()
        self._upstream = upstream
        self._host = host
        self._tasks = tasks
        self._timeout = process_options.timeout
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf
        self._drain: asyncio.TimerHandle | None = None
        self._watch = process_options.watch
        self._caller = process_options.caller
        self.born = monotonic()
        self.serves = False
        """It was greeted."""
        self._policy = process_options.policy
        self._stopping: asyncio.Task[None] | None = None
        self._died = False
        self._broken = 0
        self._chatter = process_options.chatter
        self._said, self._said_since = 0, 0.0
        """Unsolicited messages, and the time since which they are counted."""
        self._warn = LimitedLog(name)
        held = [process_options.budget.holding(process_options.caller, self._cut) for _ in range(2)]
        reader = LineReader(self._line, self._oversized, process_options.max_line, held[0])
        self._pipe = Pipe(*upstream.take(), reader, self._ended, held[1])
        self._watch.opened(self._caller, name)

    @property
    def stopping(self) -> bool:
        """It is being stopped, or gone. Before that, one that takes no calls may still have some to answer."""
        return self._stopping is not None

    @property
    def gone(self) -> bool:
        """It was stopped, with everything it started."""
        return self._stopping is not None and self._stopping.done()

    # ------------------------------------------------------------------------------------ from the client

    def request(
        self,
        sink: Sink,
        identity: bytes,
        method: str,
        message: Message,
        *,
        timeout: float = 0.0,
        shape: Shape | None = None,
        owner: Peer | None = None,
    ) -> bool:
        """Send the request *message*; its answer, edited by *shape*, goes to *sink* under *identity*.

        Returns false if the server turns out to be gone, so that it certainly has not seen the request.
        """
        params = message.get("params")
        if self._policy is not None or (sink.caller is not None and sink.caller.server):
            try:
                message, shape = screened(self._policy, sink.caller, method, message, shape)
            except Answered as answered:
                call = Call(sink, identity, method, params, b"", monotonic(), 0, shape)
                answer(call, answered, self.name, self._watch)
                return True
        self._number += 1
        own = b"%d" % self._number
        line, token = jsonrpc.upstream_line(message, own, always=method in LONG_METHODS)
        size = len(line)
        if (is_full := not self.calls.admits(sink.caller, size)) or not self._pipe.has_room(size):
            self.calls.trim(sink.caller)
            deaf = LimitExceeded(f"server {self.name} does not read its input; try again later")
            fault, word = (self.calls.fault(), deaf.word) if is_full else (deaf, "deaf")
            self._watch.refused(sink.caller, self.name, method, params, word, sink.request_id)
            sink.refuse(fault, identity)
            return True
        if not (self._pipe.write_soon(line) if self.calls else self._pipe.write(line)):
            self._ended()
            self._close("")
            return False
        # The loop's own clock tells milliseconds, and the beginning of its round.
        self.used = now = monotonic()
        timeout = timeout or self._timeout
        call = Call(sink, identity, method, params, token, now, timeout, shape, owner)
        call.size = size
        self.calls.add(own, call)
        if now + timeout < self._due:
            self._arm(now + timeout)
        return True

    async def ask(self, method: str, params: bytes, timeout: float) -> Message:  # noqa: ASYNC109 -- the call's own
        """Send a request of the bridge itself, before any other, and return the response.

        Raises :class:`~mcpd.errors.SpawnFailed` if the server ends instead, or
        :class:`~mcpd.errors.ServiceUnavailable` if it was retired.
        """
        sink = Answer()
        if not self.request(sink, b"0", method, jsonrpc.request(b"0", method, params), timeout=timeout):
            raise SpawnFailed(f"server {self.name} ended while it started; see its log")
        response = await sink.future
        if not self.open:
            if "result" in response:
                raise ServiceUnavailable(f"server {self.name} has changed or is gone: try again")
            what = "ended while it started" if self._died else f"did not answer {method} within {timeout:g} s"
            raise SpawnFailed(f"server {self.name} {what}; see its log")
        return response

    async def greet(self, params: bytes) -> Raw:
        """Do the handshake with the ``initialize`` *params*; its result. Raises :class:`~mcpd.errors.SpawnFailed`."""
        response = await self.ask("initialize", params, START_TIMEOUT)
        if "error" in response:
            text = bytes(jsonrpc.members(response["error"]).get("message", b"")).decode()
            raise SpawnFailed(f"server {self.name} did not start: it answered initialize with {text}")
        self.notify(jsonrpc.notification("notifications/initialized"))
        return response.get("result", Raw(b"{}"))

    def notify(self, message: Message, then: Callable[[], None] | None = None) -> None:
        """Send a notification; *then* is called when the server has taken all that was sent to it."""
        if self._policy is None or self._policy.allows_notification(message):
            self._send(message)
        if then is not None:
            self._pipe.when_drained(then)

    def reply(self, identity: bytes, message: Message) -> None:
        """Send the response to the server's request *identity*."""
        if identity not in self.asks:
            return
        self.asks.discard(identity)
        self._touch(self._loop.time())
        if self._policy is not None:
            message = self._policy.response(message)
        message["id"] = Raw(identity)
        self._send(message)

    def _touch(self, now: float) -> None:
        for call in self.calls.values():
            call.touched = now

    def _send(self, message: Message) -> None:
        if self._pipe.has_room(len(line := jsonrpc.to_line(message))):
            self._pipe.write(line)

    def reply_error(self, identity: bytes, code: int, text: str) -> None:
        """Refuse the server's request *identity*."""
        self.reply(identity, jsonrpc.members(Raw(jsonrpc.error(identity, code, text))))

    def cancel(self, own: bytes, message: Message) -> None:
        """Forget the call *own* and pass the cancellation *message* on."""
        call = self.calls.give_up(own)
        if call is not None:
            self.notify(jsonrpc.with_param(message, "requestId", own))
            self._watch.ended(self.name, call, Outcome.CANCELLED, b"")
            call.sink.cancelled(call.id)
            self._maybe_drained()

    def abandon(self, whose: Sink | Peer, fault: McpdError | None = None) -> None:
        """Cancel the calls of *whose* (a sink or an owner), whose client cannot come back for the answers.

        With *fault*, that is their answer.
        """
        for own, call in [(own, of) for own, of in self.calls.items() if of.sink is whose or of.owner is whose]:
            self.calls.give_up(own)
            self._tell_cancelled(own, "the client went away")
            if fault is None:
                self._watch.ended(self.name, call, Outcome.CANCELLED, b"")
            else:
                call.fail(fault, Outcome.CANCELLED, self.name, self._watch)
        self._maybe_drained()

    # ------------------------------------------------------------------------------------ from the server

    def _line(self, line: bytes) -> None:
        try:
            messages = jsonrpc.parse_line(line)
        except ParseError as fault:
            self._count_unasked()
            self._broken_line(line, line, f"is not JSON ({fault.message})")
            return
        self._broken = 0
        for message in messages:
            if "method" in message:
                self._count_unasked()
                self._own_message(message)
            else:
                self._response(message)

    def _count_unasked(self) -> None:
        """Count an unsolicited message; a server that sends too many is read more slowly."""
        self._said += 1
        if self._said < CHATTER_AT_ONCE:
            return
        now = self._loop.time()
        pause = self._chatter.pause(id(self), self._said_since, now)
        self._said, self._said_since = 0, now + pause
        if pause:
            self._pipe.pause(pause)

    def _response(self, message: Message) -> None:
        identity = bytes(message.get("id", b""))
        call = self.calls.take(identity)
        if call is None:
            # Usual after a cancellation or time-out; anything else is the server's own confusion.
            self._count_unasked()
            log.debug("server %s: response to the unknown request %r", self.name, identity[:40])
            return
        self.used = self._loop.time()
        call.respond(message, self.name, self._watch)
        if not self.open:
            self._maybe_drained()

    def _own_message(self, message: Message) -> None:
        method = jsonrpc.method_of(message)
        identity = message.get("id")
        if not method:
            self._warn.warning("a message on stdout has a method that is no string")
        elif self._stopping is not None:
            log.debug("server %s: %s comes too late", self.name, method)
        elif identity is not None and len(memoryview(identity)) > MAX_ID:
            self._warn.warning("the id of a request on stdout is longer than %d bytes, it gets no answer", MAX_ID)
        else:
            self._pass_on(method, identity, message)

    def _pass_on(self, method: str, identity: Raw | None, message: Message) -> None:
        # The boundary: what goes wrong with one message must not cost others the answers that come after it.
        try:
            if identity is not None:
                self.asks.add(bytes(identity))
                self._host.server_request(self, method, message)
            elif method == "notifications/progress":
                self._progress(message)
            elif self._policy is None or self._policy.lets_out(method):
                self._host.server_notification(self, method, message)
        except Exception as error:  # noqa: BLE001 -- logged by fault_of
            fault = fault_of(error, self.name)
            if identity is not None:
                self.reply_error(bytes(identity), fault.jsonrpc_code, fault.message)

    def _progress(self, message: Message) -> None:
        token = jsonrpc.members(message.get("params")).get(jsonrpc.PROGRESS_TOKEN)
        call = self.calls.get(bytes(token)) if token is not None else None
        if call is None:
            return
        call.touched = self._loop.time()
        if call.token:
            call.sink.push(jsonrpc.encode(jsonrpc.with_param(message, jsonrpc.PROGRESS_TOKEN, call.token)))

    def _oversized(self, head: bytes, tail: bytes) -> None:
        self._broken_line(head, tail, "is longer than bridge.max_line")

    def _broken_line(self, head: bytes, tail: bytes, fault: str) -> None:
        call = self.calls.take(jsonrpc.id_of_broken(head) or jsonrpc.id_of_broken(tail))
        request = "" if call is None else call.sink.request_id
        self._warn.warning("a line on stdout %s: %r", fault, head[:80], request=request)
        if call is not None:
            call.fail(McpdError(f"the answer of server {self.name} {fault}"), Outcome.BROKEN, self.name, self._watch)
            self._maybe_drained()
        self._broken += 1
        if self._broken == MOST_BROKEN:
            log.error("stopping server %s: it sent %d invalid lines in a row", self.name, MOST_BROKEN)
            self._close(f"server {self.name} was stopped: it writes something other than JSON-RPC to its stdout")
            self._stop_soon()

    # ------------------------------------------------------------------------------------ time-outs and the end

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = due
        if due == math.inf:
            return
        self._timer = self._loop.call_at(due, self._check)

    def _check(self) -> None:
        """Expire calls. One timer serves all, so that a call costs none of its own."""
        self._timer, self._due = None, math.inf
        now = self._loop.time()
        if self.asks:
            # Somebody is being asked; a person may take longer than a program.
            self._touch(now)
        expired = [(own, call) for own, call in self.calls.items() if call.due <= now]
        for own, call in expired:
            self.calls.give_up(own)
            self._tell_cancelled(own, "timeout")
            seconds = LONGEST_CALL if call.started + LONGEST_CALL <= now else call.timeout
            timed_out = TimedOut(f"Tool execution timeout after {seconds:g} s")
            call.fail(timed_out, Outcome.TIMED_OUT, self.name, self._watch)
        if self.calls:
            self._arm(max(min(call.due for call in self.calls.values()), now + 0.001))
        if expired:
            request = ", ".join([call.sink.request_id for _, call in expired[:MOST_NAMED]])
            self._warn.warning(
                "calls that timed out: %d; it gets no new ones and is stopped", len(expired), request=request
            )
            self.retire()

    def _tell_cancelled(self, own: bytes, reason: str) -> None:
        params = b'{"requestId":%b,"reason":%b}' % (own, jsonrpc.encode(reason))
        self.notify(jsonrpc.notification("notifications/cancelled", params))

    def retire(self) -> None:
        """Take no more calls; let those in flight end, for a while, then stop."""
        if self.open:
            self.open = False
            self._host.child_retired(self)
            self._drain = self._loop.call_later(DRAIN_TIMEOUT, self._stop_soon)
        self._maybe_drained()

    def _maybe_drained(self) -> None:
        if self._drain is not None and not self.calls:
            self._stop_soon()

    def _ended(self) -> None:
        if self._stopping is None:
            self._died = True
            log.info("server %s ended", self.name)
        self._stop_soon()

    def _cut(self, fault: McpdError) -> None:
        """Free what is kept for it at once."""
        log.warning("server %s is stopped: %s", self.name, fault.message)
        self._pipe.close()
        self._close(f"server {self.name} was stopped: {fault.message}")
        self._stop_soon()

    def _cut_calls(self, caller: Caller, fault: LimitExceeded) -> None:
        """Free what the largest calls in flight of *caller* keep."""
        for own, call in self.calls.cut(caller):
            self._tell_cancelled(own, "its parameters take too much memory")
            call.fail(fault, Outcome.CANCELLED, self.name, self._watch)
        self._maybe_drained()

    def _stop_soon(self) -> None:
        if self._stopping is None:
            self._stopping = self._tasks.spawn(self._stop())

    async def stop(self, reason: str = "") -> None:
        """End the server; calls in flight fail with *reason*. May be called again."""
        self._close(reason)
        self._stop_soon()
        if self._stopping is not None:
            await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        self._close("")
        self._pipe.close_stdin()
        try:
            await self._upstream.stop(died=self._died)
        finally:
            self._pipe.close()
            self._watch.gone(self._caller, self.name, died=self._died, served=self.serves)

    def _close(self, reason: str) -> None:
        for timer in (self._timer, self._drain):
            if timer is not None:
                timer.cancel()
        self._timer = self._drain = None
        if self.open:
            self.open = False
            self._host.child_retired(self)
        self._host.child_ended(self)
        fault = McpdError(reason or f"server {self.name} ended before it answered; the next call starts it again")
        for call in self.calls.end():
            call.fail(fault, Outcome.BROKEN, self.name, self._watch)
        self.asks.clear()
