# SPDX-License-Identifier: LGPL-2.1-or-later
"""The place of one server process: empty until a call needs it, filled again after the process died."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcpd.bridge.budget import Budget
from mcpd.bridge.child import Child, Terms
from mcpd.bridge.tasks import fault_of
from mcpd.bridge.watch import Nobody
from mcpd.errors import ServiceUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.bridge.call import Peer, Sink
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.jsonrpc import Message
    from mcpd.bridge.tasks import Tasks
    from mcpd.bridge.upstream import ServerInfo, ServerSource
    from mcpd.bridge.watch import Watch
    from mcpd.errors import McpdError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """What the administrator decides; the defaults are those of ``mcpd.toml``. Times in seconds, sizes in bytes."""

    idle_timeout: float = 300
    call_timeout: float = 30
    max_body: int = 4 * 1024 * 1024
    max_line: int = 64 * 1024 * 1024
    max_sessions: int = 256
    strict_sessions: bool = False
    """Refuse requests without a session id instead of serving them from the pool."""
    sharing: str = "session"
    """``session`` or ``caller``, for servers that do not say it."""
    max_children: int = 64
    """Processes of one caller at once."""
    keepalive: float = 30
    """Seconds after which a silent stream carries a comment (V-27)."""
    rate: float = 50_000
    """Calls a second that one caller may make of one server, on average."""
    burst: int = 10_000
    """Calls that may come at once."""


@dataclass(slots=True)
class Parts:
    """What sessions and pool share."""

    source: ServerSource
    options: Options
    """Replaced when the settings are read again; what has started keeps its time-outs."""
    tasks: Tasks
    budget: Budget = field(default_factory=Budget)
    watch: Watch = field(default_factory=Nobody)


class Seat:
    """At most one process of *info*'s server at a time, for *peer*, which *caller* uses.

    *greeting* are the ``initialize`` params with which the bridge starts it by itself; empty as long as that is not
    known. *on_idle* is called once no call was made for the idle time-out.
    """

    def __init__(
        self,
        info: ServerInfo,
        caller: Caller,
        parts: Parts,
        peer: Peer,
        greeting: bytes,
        on_idle: Callable[[], None],
    ) -> None:
        self.server = info.id
        self._caller = caller
        self.greeting = greeting
        self.child: Child | None = None
        self._parts = parts
        self._peer = peer
        self._on_idle = on_idle
        self._call_timeout = info.call_timeout or parts.options.call_timeout
        self._idle_timeout = info.idle_timeout or parts.options.idle_timeout
        self._loop = asyncio.get_running_loop()
        self._used = self._loop.time()
        self._waiting: list[tuple[Sink, bytes, str, Message]] = []
        self._waiting_size = 0
        self._held = parts.budget.holding(caller, self._refuse_waiting)
        self._starting: asyncio.Task[None] | None = None
        self._children: set[Child] = set()
        self._closed = False
        self._timer = self._loop.call_later(self._idle_timeout, self._check_idle)

    def request(self, sink: Sink, identity: bytes, method: str, message: Message) -> None:
        """Send a request; a process is started for it if there is none."""
        child = self.child
        if child is not None and child.request(sink, identity, method, message):
            return
        if self._closed:
            sink.refuse(ServiceUnavailable(f"the session with server {self.server} has ended"), identity)
            return
        size = self._waiting_size + sum(len(memoryview(raw)) for raw in message.values())
        if not self._held.hold(size):
            sink.refuse(self._held.fault(), identity)
        else:
            self._waiting_size = size
            self._used = self._loop.time()
            self._waiting.append((sink, identity, method, message))
            if self._starting is None:
                self._starting = self._parts.tasks.spawn(self._restart())

    def notify(self, message: Message, then: Callable[[], None]) -> None:
        """Send a notification to the process, if there is one; *then* is called when it may be acknowledged."""
        if self.child is not None:
            self.child.notify(message, then)
        else:
            then()

    def abandon(self, sink: Sink) -> None:
        """Forget what *sink* asked for."""
        self._waiting = [entry for entry in self._waiting if entry[0] is not sink]
        if self.child is not None:
            self.child.abandon(sink)

    async def launch(self) -> Child:
        """Start a process, which has to be greeted before it takes the seat."""
        upstream = await self._parts.source.start(self.server, self._caller)
        if self._closed:
            await upstream.stop()
            raise ServiceUnavailable(f"the session with server {self.server} has ended")
        options = self._parts.options
        terms = Terms(self._call_timeout, options.max_line, self._caller, self._parts.budget, self._parts.watch)
        child = Child(self.server, upstream, self._peer, self._parts.tasks, terms)
        self._children.add(child)
        return child

    def take(self, child: Child) -> None:
        """Let *child*, which was greeted, serve the calls from now on."""
        if child.open:
            self.child = child

    def vacate(self, child: Child) -> None:
        """Send no more calls to *child*."""
        if self.child is child:
            self.child = None

    async def close(self, reason: str) -> None:
        """Stop the process for good; calls in flight fail with *reason*."""
        self._closed = True
        self._timer.cancel()
        self._held.close()
        self._refuse_waiting(ServiceUnavailable(reason))
        for child in list(self._children):
            await child.stop(reason)
        self._children.clear()

    async def _restart(self) -> None:
        try:
            child = await self.launch()
            try:
                await child.greet(self.greeting)
            except BaseException:
                await child.stop()
                raise
        # The boundary: whatever went wrong, those who wait need an answer.
        except Exception as error:  # noqa: BLE001 -- logged by fault_of
            fault = fault_of(error)
            log.warning("server %s was not started: %s", self.server, fault.message)
            self._starting = None
            self._refuse_waiting(fault)
            return
        self._starting = None
        self._children = {old for old in self._children if not old.stopping}
        self.take(child)
        for sink, identity, method, message in self._take_waiting():
            self.request(sink, identity, method, message)

    def _take_waiting(self) -> list[tuple[Sink, bytes, str, Message]]:
        waiting, self._waiting = self._waiting, []
        self._waiting_size = 0
        self._held.hold(0)
        return waiting

    def _refuse_waiting(self, fault: McpdError) -> None:
        for sink, identity, _, _ in self._take_waiting():
            sink.refuse(fault, identity)

    def _check_idle(self) -> None:
        child = self.child
        last = max(self._used, child.used if child is not None else 0.0)
        due = last + self._idle_timeout
        now = self._loop.time()
        if self._starting is not None or any(each.calls for each in self._children):
            due = now + self._idle_timeout
        if due <= now:
            self._on_idle()
        else:
            self._timer = self._loop.call_at(due, self._check_idle)
