# SPDX-License-Identifier: LGPL-2.1-or-later
"""The end of a client's requests is not the end of the answers: those that are under way are waited for.

So a program with its requests in a file answers all of them.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio

if TYPE_CHECKING:
    from types import TracebackType

LAST_ANSWERS: Final = 10.0
"""Seconds that answers may come after the last request."""
_UNANSWERED: Final = "subscriptions/listen"
"""It is answered when the client ends it, which is gone."""


class _Stream(Protocol):
    """What the SDK reads from, or writes to."""

    last_context: Any

    async def receive(self) -> Any: ...

    async def send(self, item: Any, /) -> None: ...

    async def aclose(self) -> None: ...


class Pending:
    """The requests that are under way."""

    def __init__(self) -> None:
        self._ids: set[str | int] = set()
        self._answered = asyncio.Event()

    def came(self, message: object) -> None:
        """Note what *message* of the client means for them."""
        method, identity = getattr(message, "method", None), getattr(message, "id", None)
        if method == "notifications/cancelled":
            params = getattr(message, "params", None)
            self._done(params.get("requestId") if isinstance(params, dict) else None)
        elif method is not None and method != _UNANSWERED and isinstance(identity, str | int):
            self._ids.add(identity)

    def went(self, message: object) -> None:
        """Note that *message* was sent; an answer has no method."""
        if getattr(message, "method", None) is None:
            self._done(getattr(message, "id", None))

    async def answered(self) -> None:
        """Wait until there are none, for :data:`LAST_ANSWERS` at most."""
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
    """A stream of the SDK, *inner*, that is watched for what is *pending*."""

    def __init__(self, inner: Any, pending: Pending) -> None:
        self._inner: _Stream = inner
        self._pending = pending

    async def aclose(self) -> None:
        """Close it."""
        await self._inner.aclose()

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Incoming(_Wrapped):
    """What the client sends; its end comes after the answers."""

    @property
    def last_context(self) -> Any:
        """The context of whoever has sent what was received last."""
        return self._inner.last_context

    async def receive(self) -> Any:
        """The next message, or what could not be read as one. Raises :class:`anyio.EndOfStream`."""
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
    """What the client is sent."""

    async def send(self, item: Any) -> None:
        """Send *item*."""
        await self._inner.send(item)
        self._pending.went(getattr(item, "message", None))
