# SPDX-License-Identifier: LGPL-2.1-or-later
"""Transports with a single connection for all messages: answers are assigned by their ids."""

from __future__ import annotations

import asyncio
import secrets
from abc import abstractmethod
from typing import TYPE_CHECKING, Final, Protocol

from mcpd.servers.remote.http import SHORT_TIMEOUT
from mcpd.servers.remote.lanes import Lanes, log
from mcpd.servers.remote.messages import TIMED_OUT, Fault, Message, dump, made, parse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcpd.servers.remote.stdio import Output
    from mcpd.servers.remote.target import Remote

INVALID: Final = -32600
LONGEST_DELAY: Final = 60.0
"""Maximum delay in seconds between attempts to reconnect."""
STEADY: Final = 30.0
"""Duration in seconds below which a connection makes the next attempt wait longer."""


class Channel(Protocol):
    """An open connection."""

    async def send(self, message: Message) -> None:
        """Send *message*. Raises :class:`Fault`."""

    def messages(self) -> AsyncIterator[bytes | str]:
        """Yield the received messages until the connection ends; raises :class:`Fault` if it ends with an error."""

    async def close(self) -> None:
        """Close the connection."""


class Duplex(Lanes):
    """Maintains one :class:`Channel`; if it is lost, a new one is opened with the client's own ``initialize``."""

    def __init__(self, remote: Remote, out: Output) -> None:
        super().__init__(remote, out)
        self._channel: Channel | None = None
        self._opening = asyncio.Lock()
        self._waiting: dict[str, asyncio.Future[Message]] = {}
        self._drops = 0
        """Number of consecutive short connections."""
        self._own: set[str] = set()
        """Keys of requests that this program has sent itself."""

    @abstractmethod
    async def connect(self) -> Channel:
        """Return a new connection. Raises :class:`Fault`."""

    async def ask(self, message: Message) -> None:
        """See :class:`Lanes`."""
        if message.key in self._waiting:
            raise Fault(f"the id {message.key[:100]} is that of a request which is under way", INVALID)
        channel = await self._open(greet=message.method != "initialize")
        answer = await self._exchange(channel, message)
        if message.method == "initialize" and "result" in answer.data:
            self.greeted = True

    async def tell(self, message: Message) -> None:
        """See :class:`Lanes`."""
        await (await self._open()).send(message)

    async def end(self) -> None:
        """See :class:`Lanes`."""
        if self._channel is not None:
            await self._channel.close()

    async def _exchange(self, channel: Channel, message: Message, timeout: float | None = None) -> Message:  # noqa: ASYNC109 - of a Fault's text
        answered: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[message.key] = answered
        try:
            async with asyncio.timeout(timeout):
                await channel.send(message)
                return await answered
        except TimeoutError:
            raise Fault(f"{self.remote.place}: no answer to {message.method} in time", TIMED_OUT) from None
        finally:
            self._waiting.pop(message.key, None)
            answered.cancel()

    async def _open(self, *, greet: bool = True) -> Channel:
        """Return the connection, which is opened and initialized if there is none."""
        async with self._opening:
            if self._channel is not None:
                return self._channel
            channel = self._channel = await self.connect()
            reader = self.spawn(self._read(channel))
            if greet and self.greeted and self.greeting is not None:
                try:
                    await self._greet(channel, self.greeting)
                except BaseException:
                    self._channel = None
                    reader.cancel()
                    raise
            return channel

    async def _greet(self, channel: Channel, greeting: Message) -> None:
        data = {**greeting.data, "id": f"mcpd-remote-{secrets.token_hex(8)}"}
        message = Message(dump(data), data)
        self._own.add(message.key)
        try:
            answer = await self._exchange(channel, message, SHORT_TIMEOUT)
        finally:
            self._own.discard(message.key)
        if "result" not in answer.data:
            raise Fault(f"{self.remote.place} has lost the session and refuses a new one")
        await channel.send(made(method="notifications/initialized"))

    async def _read(self, channel: Channel) -> None:
        began = asyncio.get_running_loop().time()
        fault = Fault(f"{self.remote.place} ended the connection before the answer")
        try:
            async for raw in channel.messages():
                try:
                    heard = parse(raw)
                except ValueError as error:
                    log.warning("%s sends something that is no message: %s", self.remote.place, error)
                    continue
                for message in heard:
                    await self._hear(message)
        except Fault as found:
            fault = found
        finally:
            self._lost(channel, fault)
            await channel.close()
        log.info("%s: %s", self.remote.id, fault.text)
        lasted = asyncio.get_running_loop().time() - began
        self._drops = 0 if lasted >= STEADY else self._drops + 1
        if self.greeted:
            self.spawn(self._come_back())

    async def _hear(self, message: Message) -> None:
        if not message.is_response:
            await self.out.write(message.raw)
            return
        answered = self._waiting.get(message.key)
        if answered is None or answered.done():
            log.debug("an answer that nobody waits for was left out")
            return
        if message.key not in self._own:
            await self.out.write(message.raw)
        if not answered.done():
            answered.set_result(message)

    def _lost(self, channel: Channel, fault: Fault) -> None:
        if self._channel is channel:
            self._channel = None
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(fault)
                answered.exception()  # the waiting request may have been cancelled

    async def _come_back(self) -> None:
        """Reconnect even without a request of the client, as the server may have messages."""
        while self._channel is None:
            await asyncio.sleep(min(2.0 ** min(self._drops, 10), LONGEST_DELAY))
            self._drops += 1
            try:
                await self._open()
            except Fault as fault:
                log.debug("%s", fault.text)
