# SPDX-License-Identifier: LGPL-2.1-or-later
"""Background work of the bridge with one owner, and a log that a misbehaving server cannot flood."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mcpd.errors import McpdError

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")
log = logging.getLogger(__name__)

BURST: Final = 10
PER_SECONDS: Final = 60.0


class Tasks:
    """Runs coroutines on their own; a failure is logged, and :meth:`close` waits for all."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run *work*."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    async def close(self) -> None:
        """Wait until everything has ended, including what is started meanwhile."""
        while self._running:
            await asyncio.wait(self._running)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("internal error in the bridge", exc_info=error)


def fault_of(error: Exception, server: str = "", request: str = "") -> McpdError:
    """What a client is told of *error*. One that is not in the table is a fault of the bridge, and logged here.

    The log names the *server* and the HTTP *request*, if there is one.
    """
    if isinstance(error, McpdError):
        return error
    where = ", ".join(f"{what} {name}" for what, name in (("server", server), ("request", request)) if name)
    log.error("internal error in the bridge (%s)", where, exc_info=error, extra=fields_of(server, request))
    return McpdError("internal error in the bridge; see its log")


def fields_of(server: str, request: str = "") -> dict[str, str | None]:
    """The journal's fields of a message about *server*, in the course of the HTTP *request*."""
    return {"MCP_SERVER_ID": server or None, "MCP_REQUEST_ID": request or None}


class LimitedLog:
    """Warnings about one server: at most ten a minute, the others are counted."""

    __slots__ = ("_left", "_since", "_swallowed", "_who")

    def __init__(self, who: str) -> None:
        self._who = who
        self._since = 0.0
        self._left = 0
        self._swallowed = 0

    def warning(self, text: str, *args: object, request: str = "") -> None:
        """Log *text* % *args* with the server's name and the id of the *request*, unless there was too much of it."""
        now = time.monotonic()
        if now - self._since >= PER_SECONDS:
            if self._swallowed:
                log.warning("server %s: omitted %d more warnings", self._who, self._swallowed)
            self._since, self._left, self._swallowed = now, BURST, 0
        if self._left > 0:
            self._left -= 1
            # The text is a constant of ours.
            text = f"server %s: {text} (request %s)" if request else f"server %s: {text}"
            about = (request,) if request else ()
            log.warning(text, self._who, *args, *about, extra=fields_of(self._who, request))
        else:
            self._swallowed += 1
