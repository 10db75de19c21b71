# SPDX-License-Identifier: LGPL-2.1-or-later
"""The common part of all transports: a task for each message, in order where order matters."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from mcpd.servers.remote.messages import INTERNAL, TOO_MANY, Fault, Message, error, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mcpd.servers.remote.stdio import Output
    from mcpd.servers.remote.target import Remote

MAX_CALLS: Final = 1000
"""Maximum number of the client's messages in progress."""

log = logging.getLogger("mcpd-remote")


class Lanes(ABC):
    """Carries the client's messages to the remote server, and the answers to *out*.

    ``initialize`` and ``notifications/initialized`` are completed before later messages are started; all others are
    concurrent. A request that cannot be answered gets an error.
    """

    def __init__(self, remote: Remote, out: Output) -> None:
        self.remote = remote
        self.out = out
        self.greeting: Message | None = None
        """The client's last ``initialize``."""
        self.greeted = False
        """True if the server has answered one."""
        self._tasks: set[asyncio.Task[None]] = set()
        """One task for each message in progress."""
        self._background: set[asyncio.Task[None]] = set()
        self._requests: dict[str, tuple[Message, asyncio.Task[None]]] = {}
        self._gate: asyncio.Task[None] | None = None

    async def take(self, message: Message) -> None:
        """Start to carry *message*, without waiting for the end."""
        method = message.method
        if len(self._tasks) >= MAX_CALLS and method != "notifications/cancelled":
            if message.is_request:
                text = f"{self.remote.id}: {MAX_CALLS} messages are under way already; wait for their answers"
                await self.out.write(error(message.data["id"], TOO_MANY, text))
            return
        if message.is_request:
            if method == "initialize":
                self.greeting = message
            task = self._begin(self._answer, message, gate=method == "initialize")
            self._requests[message.key] = message, task
            task.add_done_callback(lambda done: self._forget(message.key, done))
        elif method == "notifications/cancelled":
            self._begin(self._cancel, message)
        else:
            self._begin(self._tell, message, gate=method == "notifications/initialized")

    async def settled(self) -> None:
        """Wait until all messages so far have been carried."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def close(self) -> None:
        """Abandon the messages in progress and end the session."""
        under_way = self._tasks | self._background
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)
        await self.end()

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run *work* concurrently, until it is done or :meth:`close` is called."""
        return _start(work, self._background)

    def running(self, identity: object) -> tuple[Message, asyncio.Task[None]] | None:
        """Return the client's in-flight request *identity* with its task, or None."""
        return self._requests.get(key_of(identity))

    @abstractmethod
    async def ask(self, message: Message) -> None:
        """Carry the request *message* and write its answer. Raises :class:`Fault`."""

    @abstractmethod
    async def tell(self, message: Message) -> None:
        """Carry a notification or an answer of the client. Raises :class:`Fault`."""

    @abstractmethod
    async def end(self) -> None:
        """End the session with the server."""

    async def cancel(self, message: Message) -> None:
        """Carry the cancellation *message*, and abandon the request that it names."""
        await self.tell(message)
        found = self.running(message.params.get("requestId"))
        if found is not None:
            found[1].cancel()

    def _begin(
        self, work: Callable[[Message], Coroutine[None, None, None]], message: Message, *, gate: bool = False
    ) -> asyncio.Task[None]:
        task = _start(self._in_turn(work, message, self._gate), self._tasks)
        if gate:
            self._gate = task
        return task

    async def _in_turn(
        self,
        work: Callable[[Message], Coroutine[None, None, None]],
        message: Message,
        before: asyncio.Task[None] | None,
    ) -> None:
        if before is not None and not before.done():
            await asyncio.wait([before])
        await work(message)

    async def _answer(self, message: Message) -> None:
        try:
            await self.ask(message)
        except Fault as fault:
            await self.out.write(error(message.data["id"], fault.code, fault.text))
        except Exception:
            log.exception("%s failed", message.method)
            text = f"mcpd-remote failed on {message.method[:100]}; its log says why"
            await self.out.write(error(message.data["id"], INTERNAL, text))

    async def _tell(self, message: Message) -> None:
        try:
            await self.tell(message)
        except Fault as fault:
            log.warning("%s was not delivered: %s", message.method or "an answer of the client", fault.text)

    async def _cancel(self, message: Message) -> None:
        try:
            await self.cancel(message)
        except Fault as fault:
            log.debug("a cancellation was not delivered: %s", fault.text)

    def _forget(self, key: str, task: asyncio.Task[None]) -> None:
        found = self._requests.get(key)
        if found is not None and found[1] is task:
            del self._requests[key]


def _start(work: Coroutine[None, None, None], owner: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    def done(task: asyncio.Task[None]) -> None:
        owner.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("an unforeseen fault", exc_info=fault)

    task = asyncio.create_task(work)
    owner.add(task)
    task.add_done_callback(done)
    return task
