# SPDX-License-Identifier: LGPL-2.1-or-later
"""After the end of a client's requests, wait for the answers to those in progress.

So a program with its requests in a file gets all answers.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio

if TYPE_CHECKING:
    from types import TracebackType

LAST_ANSWERS: Final = 10.0
"""Maximum time in seconds for answers after the last request."""
_UNANSWERED: Final = "subscriptions/listen"
"""Answered only when the client ends it, which has gone."""


class _Stream(Protocol):
    """A stream that the SDK reads from, or writes to."""

    last_context: Any

    async def receive(self) -> Any: ...

    async def send(self, item: Any, /) -> None: ...

    async def aclose(self) -> None: ...


class Pending:
    """The in-flight requests."""

    def __init__(self) -> None:
        self._ids: set[str | int] = set()
        self._answered = asyncio.Event()

    def came(self, message: object) -> None:
        """Update the requests for *message*, received from the client."""
        method, identity = getattr(message, "method", None), getattr(message, "id", None)
        if method == "notifications/cancelled":
            params = getattr(message, "params", None)
            self._done(params.get("requestId") if isinstance(params, dict) else None)
        elif method is not None and method != _UNANSWERED and isinstance(identity, str | int):
            self._ids.add(identity)

    def went(self, message: object) -> None:
        """Update the requests for *message*, sent to the client; an answer has no method."""
        if getattr(message, "method", None) is None:
            self._done(getattr(message, "id", None))

    async def answered(self) -> None:
        """Wait until there are none, for at most :data:`LAST_ANSWERS` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_ANSWERS):
                while self._ids:
                    self._answered.clear()
                    await self._answered.wait()

    def _done(self, identity: object) -> None:
        if isinstance(identity, str | int):
            self._ids.discard(identity)
            self._answered.set()


class _Wrapped:
    """A stream of the SDK, *inner*, whose messages update *pending*."""

    def __init__(self, inner: Any, pending: Pending) -> None:
        self._inner: _Stream = inner
        self._pending = pending

    async def aclose(self) -> None:
        """Close the stream."""
        await self._inner.aclose()

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Incoming(_Wrapped):
    """The client's messages; the stream ends after the answers to them."""

    @property
    def last_context(self) -> Any:
        """The sender's context of the last received message."""
        return self._inner.last_context

    async def receive(self) -> Any:
        """Return the next message, or the error of one that could not be parsed. Raises :class:`anyio.EndOfStream`."""
        try:
            found = await self._inner.receive()
        except anyio.EndOfStream:
            await self._pending.answered()
            raise
        self._pending.came(getattr(found, "message", None))
        return found

    def __aiter__(self) -> Incoming:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class Outgoing(_Wrapped):
    """The messages to the client."""

    async def send(self, item: Any) -> None:
        """Send *item*."""
        await self._inner.send(item)
        self._pending.went(getattr(item, "message", None))
