# SPDX-License-Identifier: LGPL-2.1-or-later
"""Notifications of a running request to its client: progress, and log messages."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, get_args

import mcp_types as types
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server.context import ServerRequestContext

    Context = ServerRequestContext[Any, Any]

LEVELS: Final = get_args(types.LoggingLevel)
"""Levels of messages, from the lowest."""
SILENCE: Final = 5.0
"""Seconds without progress after which a request is reported as still running; clients abandon silent ones."""
_STEP: Final = 1e-6
"""Increment of such a report, as progress has to increase: smaller than that of any request."""
_Notice = TypeVar("_Notice")


class _Notices(Generic[_Notice]):
    """Sends notices in a task of its own; if the client is slower, the newest *keep* are kept."""

    def __init__(self, ctx: Context, keep: int) -> None:
        self._ctx = ctx
        self._waiting: deque[_Notice] = deque(maxlen=keep)
        self._news = asyncio.Event()
        self._ended = False
        self._task: asyncio.Task[None] | None = None

    async def __aexit__(self, kind: object, *_: object) -> None:
        if self._task is None:
            return
        if kind is None:
            # The last report precedes the result.
            self._ended = True
            self._news.set()
            await self._task
        else:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._send_all())

    def _put(self, notice: _Notice) -> None:
        self._waiting.append(notice)
        self._news.set()

    async def _send_all(self) -> None:
        while not self._ended or self._waiting:
            await self._wait()
            self._news.clear()
            while self._waiting:
                await self._send(self._waiting.popleft())

    async def _wait(self) -> None:
        """Wait until there is something to send, or the end."""
        await self._news.wait()

    async def _send(self, notice: _Notice) -> None:
        raise NotImplementedError


class Progress(_Notices[tuple[float, float | None, str]]):
    """Sends the progress of the request of *ctx*; if the client is slower, the newest *keep* reports are kept.

    A request that reports nothing for :data:`SILENCE` seconds is reported as still running. ``async with`` yields the
    function to call with the progress, the total and a message, or None if progress is not requested or not *wanted*.
    """

    def __init__(self, ctx: Context, keep: int = 1, *, wanted: bool = True) -> None:
        super().__init__(ctx, keep)
        self._wanted = wanted
        self._began = time.monotonic()
        self._last = float("-inf")
        self._sent = float("-inf")
        self._total: float | None = None

    async def __aenter__(self) -> Callable[[float, float | None, str], None] | None:
        meta = (self._ctx.params or {}).get("_meta")
        if not self._wanted or not isinstance(meta, dict) or meta.get("progressToken") is None:
            return None
        self._begin()
        return self._take

    def _take(self, progress: float, total: float | None, message: str) -> None:
        if progress > self._last:
            self._last = progress
            self._total = total
            self._put((progress, total, message))

    async def _wait(self) -> None:
        while not self._news.is_set():
            try:
                async with asyncio.timeout(SILENCE):
                    await self._news.wait()
            except TimeoutError:
                seconds = time.monotonic() - self._began
                await self._send((max(self._last, 0.0), self._total, f"still running after {seconds:.0f} s"))

    async def _send(self, notice: tuple[float, float | None, str]) -> None:
        progress, total, message = notice
        # Increments sent without reports must not suppress later reports.
        self._sent = max(progress, self._sent + _STEP, math.nextafter(self._sent, math.inf))
        await self._ctx.session.report_progress(self._sent, total, message or None)


class Messages(_Notices[types.LoggingMessageNotificationParams]):
    """Sends log messages for the request of *ctx*, in the same way.

    ``async with`` yields the function to call with the level, the name of a logger and the data, which is JSON, or None
    if the client has not requested messages. It does so in the handshake era with ``logging/setLevel``, stored in
    *levels*, and from revision 2026-07-28 on in ``_meta`` of each request.
    """

    def __init__(self, ctx: Context, levels: Levels, keep: int) -> None:
        super().__init__(ctx, keep)
        self._least = levels.of(ctx)

    async def __aenter__(self) -> Callable[[types.LoggingLevel, str, Any], None] | None:
        if self._least is None:
            return None
        self._begin()
        return self._take

    def _take(self, level: types.LoggingLevel, logger: str, data: Any) -> None:
        if self._least is not None and LEVELS.index(level) >= LEVELS.index(self._least):
            self._put(types.LoggingMessageNotificationParams(level=level, logger=logger, data=data))

    async def _send(self, notice: types.LoggingMessageNotificationParams) -> None:
        await self._ctx.session.send_notification(
            types.LoggingMessageNotification(params=notice), related_request_id=self._ctx.request_id
        )


class Levels:
    """The minimum level of log messages for each client."""

    async def set(self, ctx: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        """Handle ``logging/setLevel`` of the handshake era."""
        connection(ctx).state[_LEVEL] = params.level
        return types.EmptyResult()

    def of(self, ctx: Context) -> types.LoggingLevel | None:
        """Return the minimum level of messages for the request of *ctx*, or None for no messages."""
        if ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
            level = connection(ctx).state.get(_LEVEL)
        else:
            meta = (ctx.params or {}).get("_meta")
            level = meta.get(types.LOG_LEVEL_META_KEY) if isinstance(meta, dict) else None
        return level if level in LEVELS else None


_LEVEL: Final = "org.mcpd/logLevel"


def connection(ctx: Context) -> Any:
    """Return the SDK's ``Connection`` of the request of *ctx*, whose ``state`` and ``exit_stack`` servers may use."""
    return ctx.session._connection  # noqa: SLF001 -- a request's context has no other way to it
