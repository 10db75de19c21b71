# SPDX-License-Identifier: LGPL-2.1-or-later
"""Background work of the bridge with one owner, and a log that a misbehaving server cannot flood."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import McpdError

if TYPE_CHECKING:
    from collections.abc import Coroutine

log = logging.getLogger(__name__)

BURST: Final = 10
PER_SECONDS: Final = 60.0


class Tasks:
    """Runs coroutines on their own; a failure is logged, and :meth:`close` waits for all."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run *work*."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    async def close(self) -> None:
        """Wait until everything has ended, including what is started meanwhile."""
        while self._running:
            await asyncio.wait(self._running)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("internal error in the bridge", exc_info=error)


def fault_of(error: Exception) -> McpdError:
    """What a client is told of *error*. One that is not in the table is a fault of the bridge, and logged here."""
    if isinstance(error, McpdError):
        return error
    log.error("internal error in the bridge", exc_info=error)
    return McpdError("the bridge met a fault of its own, see its log; please report it")


class LimitedLog:
    """Warnings about one server: at most ten a minute, the others are counted."""

    __slots__ = ("_left", "_since", "_swallowed", "_who")

    def __init__(self, who: str) -> None:
        self._who = who
        self._since = 0.0
        self._left = 0
        self._swallowed = 0

    def warning(self, text: str, *args: object) -> None:
        """Log *text* % *args* with the server's name, unless there was too much of it."""
        now = time.monotonic()
        if now - self._since >= PER_SECONDS:
            if self._swallowed:
                log.warning("server %s: %d further warnings left out", self._who, self._swallowed)
            self._since, self._left, self._swallowed = now, BURST, 0
        if self._left > 0:
            self._left -= 1
            log.warning("server %s: " + text, self._who, *args)  # noqa: G003 -- the text is a constant of ours
        else:
            self._swallowed += 1
