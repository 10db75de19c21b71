# SPDX-License-Identifier: LGPL-2.1-or-later
"""Process slots: each holds one server process, and the requests that wait for it.

A slot is empty until a call needs it, and is filled again after the process has ended.
"""

from __future__ import annotations

import asyncio
import logging
import math
from time import monotonic
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from mcpd.bridge.jsonrpc import Message, Raw, method_of
from mcpd.bridge.observe.watch import Outcome
from mcpd.bridge.tasks import fault_of, fields_of
from mcpd.bridge.upstream import catalog
from mcpd.bridge.upstream.call import Call, both
from mcpd.bridge.upstream.child import Child
from mcpd.bridge.upstream.counts import START_TIMEOUT, Counted, ProcessOptions
from mcpd.errors import HeldBack, LimitExceeded, McpdError, NotAuthorized, ServiceUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mcpd.bridge.callers import Caller
    from mcpd.bridge.observe.watch import Watch
    from mcpd.bridge.parts import Parts
    from mcpd.bridge.upstream.call import Host, Peer, Shape, Sink
    from mcpd.bridge.upstream.catalog import CachedCatalog
    from mcpd.bridge.upstream.source import ServerInfo

log = logging.getLogger(__name__)

OF_PAYER: Final = (HeldBack, LimitExceeded, NotAuthorized)
"""Errors of a start that concern only the caller for whom the process counts."""
_TELLING_NOTHING: Final = frozenset({"notifications/initialized", "notifications/cancelled"})
"""Notifications of a client that make no difference to what a server says of itself."""


class Waiting:
    """A request that no process has got yet."""

    __slots__ = ("identity", "message", "method", "owner", "shape", "sink", "size", "timeout")

    def __init__(
        self,
        sink: Sink,
        identity: bytes,
        method: str,
        message: Message,
        owner: Peer | None,
        timeout: float,
        shape: Shape | None,
    ) -> None:
        self.sink = sink
        self.identity = identity
        self.method = method
        self.message = message
        self.owner = owner
        self.timeout = timeout
        self.shape = shape
        self.size = sum(len(memoryview(raw)) for raw in message.values())
        """Bytes that it takes while it waits."""

    def is_of(self, whose: Sink | Peer) -> bool:
        """Return True if *whose* is where its answer goes, or whom it concerns."""
        return whose is self.sink or whose is self.owner


W = TypeVar("W", bound=Waiting)


class Queue(Generic[W]):
    """The requests that wait for a process of *server*, the oldest first; *caller* pays for the memory."""

    def __init__(self, server: str, caller: Caller, parts: Parts) -> None:
        self._server = server
        self._watch = parts.watch
        self._budget = parts.budget
        self._waiting: dict[W, None] = {}
        self._size = 0
        self._held = parts.budget.holding(caller, self.refuse_all)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[W]:
        return iter(list(self._waiting))

    def charge(self, caller: Caller) -> None:
        """Count requests that wait from now on for *caller*; none may be waiting."""
        self._held.close()
        self._held = self._budget.holding(caller, self.refuse_all)

    def add(self, request: W) -> bool:
        """Have *request* wait; false if there is no room for it, upon which it was refused."""
        if not self._held.hold(self._size + request.size):
            self.refuse(request, self._held.fault())
            return False
        self._size += request.size
        self._waiting[request] = None
        return True

    def remove(self, request: W) -> None:
        """*request* waits no longer."""
        del self._waiting[request]
        self._size -= request.size
        self._held.hold(self._size)

    def take_all(self) -> list[W]:
        """All of them, which wait no longer."""
        taken = list(self._waiting)
        self._waiting.clear()
        self._size = 0
        self._held.hold(0)
        return taken

    def concerns(self, owner: Peer) -> bool:
        """Return True if one of them concerns *owner*."""
        return any(request.owner is owner for request in self._waiting)

    def called(self, whose: Sink | Peer, identity: bytes) -> list[W]:
        """Those of *whose* that have the client's id *identity*."""
        return [request for request in self._waiting if request.identity == identity and request.is_of(whose)]

    def cancel(self, request: W) -> None:
        """The client cancelled *request*."""
        self.remove(request)
        self._watch.ended(self._server, _call_of(request), Outcome.CANCELLED, b"")
        request.sink.cancelled(request.identity)

    def abandon(self, whose: Sink | Peer, fault: McpdError | None) -> None:
        """Forget those of *whose*; *fault* is their answer, if there is to be one."""
        for request in [request for request in self._waiting if request.is_of(whose)]:
            self.remove(request)
            if fault is None:
                self._watch.ended(self._server, _call_of(request), Outcome.CANCELLED, b"")
            else:
                _call_of(request).fail(fault, Outcome.CANCELLED, self._server, self._watch)

    def refuse(self, request: W, fault: McpdError) -> None:
        """No process gets *request*, which does not wait any more, because of *fault*."""
        turn_away(
            request.sink,
            request.identity,
            request.method,
            request.message,
            fault,
            server=self._server,
            watch=self._watch,
        )

    def refuse_all(self, fault: McpdError) -> None:
        """Refuse all that wait."""
        for request in self.take_all():
            self.refuse(request, fault)

    def close(self, fault: McpdError) -> None:
        """Refuse all, and let none wait any more."""
        self.refuse_all(fault)
        self._held.close()


def _call_of(request: Waiting) -> Call:
    """*request* as the watch sees it; no time has passed, as that counts from when a server gets it."""
    return Call(
        request.sink, request.identity, request.method, request.message.get("params"), b"", monotonic(), 0.0, None
    )


def turn_away(
    sink: Sink, identity: bytes, method: str, message: Message, fault: McpdError, *, server: str, watch: Watch
) -> None:
    """Refuse the request *message* with *fault*, as no process of *server* gets it.

    As with a :class:`~mcpd.bridge.upstream.call.Call`, nothing that goes wrong at *sink* is raised.
    """
    try:
        watch.refused(sink.caller, server, method, message.get("params"), fault.word, sink.request_id)
        sink.refuse(fault, identity)
    except Exception as error:  # noqa: BLE001 -- logged by fault_of
        fault_of(error, server, sink.request_id)


class ProcessSlot:
    """At most one process of *info*'s server at a time, for *host*; it counts for *caller*.

    If several callers share it, each process counts for the caller whose request started it, so that a caller who has
    too many processes does not keep the others from theirs.

    *greeting* are the ``initialize`` params with which the bridge starts it by itself; empty for the modern era.
    *cached* keeps what its processes report about themselves, *on_start* is called with each process that takes the
    slot, and *environment* contains the client's variables for it.
    """

    def __init__(
        self,
        info: ServerInfo,
        caller: Caller,
        parts: Parts,
        host: Host,
        greeting: bytes,
        cached: CachedCatalog | None = None,
        on_start: Callable[[Child], None] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.info = info
        self._environment = environment or {}
        self.greeting = greeting
        self.child: Child | None = None
        self.result = b""
        """The InitializeResult of the last process."""
        self._caller = caller
        self._parts = parts
        self._host = host
        self._cached = cached
        self._on_start = on_start
        self._pristine = False
        """The process has only been asked for lists, so its answers are the same for others and can be cached."""
        self._loop = asyncio.get_running_loop()
        self.used = self._loop.time()
        """When it was, beside the calls of its process."""
        self._queue: Queue[Waiting] = Queue(info.id, caller, parts)
        self._starting: asyncio.Task[McpdError | None] | None = None
        self._children: set[Child] = set()
        self._closed = False
        self._renewals = 0
        """How often the server has changed, or was gone."""

    # ------------------------------------------------------------------------------------ calls

    def request(
        self,
        sink: Sink,
        identity: bytes,
        method: str,
        message: Message,
        *,
        owner: Peer | None = None,
        timeout: float = 0.0,
        shape: Shape | None = None,
    ) -> None:
        """Send a request; a process is started for it if there is none. See :meth:`Pool.request` for the rest."""
        child = self.child
        kept = self._record(method, message, shape) if child is not None and self._pristine else shape
        if child is None or not child.request(
            sink, identity, method, message, timeout=timeout, shape=kept, owner=owner
        ):
            self._wait(Waiting(sink, identity, method, message, owner, timeout, shape))

    def notify(self, message: Message, then: Callable[[], None]) -> None:
        """Send a notification to the process, if there is one; *then* is called when it may be acknowledged."""
        if self._pristine and not (method_of(message) in _TELLING_NOTHING and catalog.is_plain(message.get("params"))):
            self.spoil()
        if self.child is not None:
            self.child.notify(message, then)
        else:
            then()

    def abandon(self, whose: Sink | Peer, fault: McpdError | None = None) -> None:
        """Forget what *whose* (a sink or an owner) asked for; *fault* is the answer, if there is to be one."""
        self._queue.abandon(whose, fault)
        for child in self._children:
            child.abandon(whose, fault)

    def is_calling(self, owner: Peer) -> bool:
        """Return True if a call that concerns *owner* is in flight."""
        running = any(call.owner is owner for child in self._children for call in child.calls.values())
        return running or self._queue.concerns(owner)

    def cancel(self, whose: Sink | Peer, identity: bytes, message: Message) -> bool:
        """Cancel the call that *whose* (its sink or owner) made with the id *identity*, if there is just one."""
        waiting = self._queue.called(whose, identity)
        found = [
            (child, own)
            for child in self._children
            for own, call in child.calls.items()
            if call.id == identity and (call.sink is whose or call.owner is whose)
        ]
        if len(found) + len(waiting) > 1:
            # Which of them is meant cannot be told, and ending another's call would be worse than none.
            log.debug("server %s: several calls have the id %r, none is cancelled", self.info.id, identity[:40])
            return False
        for request in waiting:
            self._queue.cancel(request)
        for child, own in found:
            child.cancel(own, message)
        return bool(found or waiting)

    def spoil(self) -> None:
        """Its client told the process something, or may be about to, so what it says from now on is for that one."""
        self._pristine = False

    def changed(self, method: str) -> None:
        """The process sent the notification *method*, which tells that one of its lists has changed."""
        if self._cached is not None:
            self._cached.changed(method)

    # ------------------------------------------------------------------------------------ the process

    @property
    def empty(self) -> bool:
        """There is no process, and none on its way in or out."""
        return self._starting is None and all(child.gone for child in self._children)

    def due(self, now: float) -> float:
        """When its process will have been unused for long enough, as things stand; infinite without a process."""
        if self._starting is not None or any(each.calls for each in self._children):
            return now + self.idle_timeout
        if self.child is None:
            return math.inf
        return max(self.used, self.child.used) + self.idle_timeout

    @property
    def idle_timeout(self) -> float:
        """Seconds without a call after which a process is of no use."""
        return self.info.idle_timeout or self._parts.options.idle_timeout

    async def fill(self, caller: Caller | None = None) -> None:
        """Wait until there is a process; if one has to be started, it counts for *caller*, by default as the last one.

        Raises the :class:`~mcpd.errors.McpdError` of a failed start.
        """
        while self.child is None:
            self._charge(caller)
            starting, payer = self._start(), self._caller
            await asyncio.wait([starting])
            fault = starting.result()
            if self.child is None and (caller in {None, payer} or not isinstance(fault, OF_PAYER)):
                raise fault or ServiceUnavailable(f"server {self.info.id} was stopped; try again")

    async def open(self, params: bytes) -> Message:
        """Fill the slot for the ``initialize`` *params* of a client, and return the response, which may be an error.

        The client sends what is to follow. Raises the McpdError that tells why there cannot be a process.
        """
        renewals = self._renewals
        self._reserve()
        child = await self._launch()
        try:
            response = await child.ask("initialize", params, START_TIMEOUT)
        except BaseException:
            await child.stop()
            raise
        if "result" in response and renewals == self._renewals:
            self._take(child, response["result"])
        else:
            # It cannot serve, or was started as the server was before.
            self._parts.tasks.spawn(child.stop())
        return response

    def vacate(self, child: Child) -> None:
        """Send no more calls to *child*."""
        if self.child is child:
            self.child = None
            self.used = self._loop.time()

    def rest(self) -> None:
        """Stop the process, which the next call starts again."""
        self.child = None
        self.used = self._loop.time()
        for child in self._children:
            if not child.stopping:
                self._parts.tasks.spawn(child.stop(f"server {self.info.id} was stopped"))

    def renew(self, info: ServerInfo, cached: CachedCatalog | None) -> None:
        """Serve the next calls with a process of *info*; the present one ends when its calls have."""
        self.info, self._cached = info, cached
        self._renewals += 1
        for child in list(self._children):
            # Whoever greets one sees that it is of before, and has the greeting end first.
            if child.serves:
                child.retire()

    def retire(self, fault: McpdError) -> None:
        """Take no more calls; the process ends when those in flight have."""
        self._closed = True
        self._queue.close(fault)
        for child in list(self._children):
            child.retire()

    async def close(self, reason: str) -> None:
        """Stop the process for good; calls in flight fail with *reason*."""
        self._closed = True
        self._queue.close(ServiceUnavailable(reason))
        for child in list(self._children):
            await child.stop(reason)
        self._children.clear()

    # ------------------------------------------------------------------------------------ starting one

    def _wait(self, request: Waiting) -> None:
        """Have *request* wait for a process, unless its answer is known without."""
        if self._closed:
            self._queue.refuse(request, self._ended())
        elif self._starting is None and self._is_known(request):
            self.used = self._loop.time()
        else:
            self._charge(request.sink.caller)
            if self._queue.add(request):
                try:
                    self._start()
                except LimitExceeded as fault:
                    self._queue.remove(request)
                    self._queue.refuse(request, fault)

    def _is_known(self, request: Waiting) -> bool:
        """Return True if *request* could be answered without a process, and was."""
        return self._cached is not None and catalog.replay(
            self._cached,
            self._parts,
            self.info.id,
            request.sink,
            request.identity,
            request.method,
            request.message,
            request.shape,
        )

    def _ended(self) -> ServiceUnavailable:
        return ServiceUnavailable(f"the session with server {self.info.id} has ended")

    def _record(self, method: str, message: Message, shape: Shape | None) -> Shape | None:
        """Return a shape that caches the answer to a list; after any other request, nothing more is cached."""
        cached = self._cached
        if cached is None or method not in catalog.LISTS:
            self._pristine = method == "ping"
            return shape
        page = catalog.page_of(message.get("params"))
        if page is None:
            self.spoil()
            return shape

        def keep(response: Message) -> None:
            if "result" in response and self._pristine:
                cached.put(method, page, response["result"])

        return both(keep, shape)

    def _charge(self, caller: Caller | None) -> None:
        """Count the next process for *caller*, unless one is starting already."""
        if self._starting is None and caller is not None and caller != self._caller:
            self._caller = caller
            self._queue.charge(caller)

    def _start(self) -> asyncio.Task[McpdError | None]:
        self.used = self._loop.time()
        if self._starting is None:
            self._reserve()
            self._starting = self._parts.tasks.spawn(self._restart())
        return self._starting

    async def _restart(self) -> McpdError | None:
        """Start a process and send the waiting requests to it; return the error if it could not be started."""
        try:
            while True:
                renewals = self._renewals
                child = await self._launch()
                try:
                    result = await child.greet(self.greeting) if self.greeting else Raw(b"")
                except BaseException:
                    await child.stop()
                    raise
                if renewals == self._renewals:
                    break
                # It was started as the server was before.
                await child.stop()
                self._reserve()
        # The boundary: whatever went wrong, those who wait need an answer.
        except Exception as error:  # noqa: BLE001 -- logged by fault_of
            fault = fault_of(error, self.info.id)
            if not isinstance(fault, LimitExceeded):
                log.warning("server %s was not started: %s", self.info.id, fault.message, extra=fields_of(self.info.id))
            self._starting, payer = None, self._caller
            for each in self._queue.take_all():
                if isinstance(fault, OF_PAYER) and each.sink.caller not in {None, payer}:
                    self._wait(each)
                else:
                    self._queue.refuse(each, fault)
            return fault
        self._starting = None
        self._take(child, result)
        for each in self._queue.take_all():
            self._send(each)
        return None

    def _send(self, waited: Waiting) -> None:
        # The boundary: what goes wrong with one request must not cost others theirs.
        try:
            self.request(
                waited.sink,
                waited.identity,
                waited.method,
                waited.message,
                owner=waited.owner,
                timeout=waited.timeout,
                shape=waited.shape,
            )
        except Exception as error:  # noqa: BLE001 -- logged by fault_of
            self._queue.refuse(waited, fault_of(error, self.info.id, waited.sink.request_id))

    def _reserve(self) -> None:
        """Count a process before it starts; LimitExceeded if there are too many."""
        self._parts.process_counts.enter(self._caller, self._parts.options.max_children)

    async def _launch(self) -> Child:
        """Start a process that was counted, and has to be greeted before it takes the slot."""
        parts, options, info = self._parts, self._parts.options, self.info
        since = monotonic()
        try:
            started = await parts.source.start(info.id, self._caller, self._environment)
        except BaseException as error:
            parts.process_counts.leave(self._caller)
            if isinstance(error, McpdError):
                parts.watch.started(self._caller, info.id, 0, failed=True)
            raise
        upstream = Counted(started, parts.process_counts, self._caller)
        if self._closed:
            await upstream.stop()
            raise self._ended()
        timeout = info.call_timeout or options.call_timeout
        process_options = ProcessOptions(
            timeout=timeout,
            max_line=options.max_line,
            caller=self._caller,
            budget=parts.budget,
            watch=parts.watch,
            chatter=parts.chatter,
            shared=info.sharing == "all",
            policy=info.policy,
        )
        child = Child(info.id, upstream, self._host, parts.tasks, process_options)
        child.born = since
        self._children = {old for old in self._children if not old.gone}
        self._children.add(child)
        return child

    def _take(self, child: Child, result: Raw) -> None:
        """Let *child*, which was greeted, serve the calls from now on."""
        self.result = bytes(result)
        if self._cached is not None and self.result:
            self._cached.greeted(self.greeting, self.result)
        self._pristine = self._cached is not None
        self.used = self._loop.time()
        child.serves = True
        self._parts.watch.started(self._caller, self.info.id, monotonic() - child.born, failed=False)
        if child.open:
            self.child = child
            if self._on_start is not None:
                self._on_start(child)
