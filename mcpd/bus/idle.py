# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ending when there is nothing to do, without losing a call.

The order is what makes it safe. First the service manager hears ``STOPPING=1``: from then on it takes an activation as
a wish to start mcpd again after its end, and no more for one that is fulfilled already. Then the name is released.
What the bus had sent before arrives before its answer to that, and is answered; what is called later waits at the bus
for the next mcpd.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import TYPE_CHECKING, Final, Protocol

from mcpd.bus.names import BUS_NAME
from mcpd.notify import notify

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.bus.connection import Connection

SHORT: Final = 1.0
"""Seconds that a call of the last moment may take before the name is taken back for it."""
EXTENSION: Final = 30.0
"""Seconds by which the service manager is asked to wait on, each time."""

log = logging.getLogger(__name__)


class Activity:
    """The calls under way, and when there was last something to do."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._changed = asyncio.Event()
        self.calls = 0
        """Calls that are not answered yet."""
        self.seen = 0
        """Calls until now."""

    def begin(self) -> None:
        """A call has come."""
        self.calls += 1
        self.seen += 1
        self.touch()

    def end(self) -> None:
        """A call is answered."""
        self.calls -= 1
        self.touch()

    def touch(self) -> None:
        """Something has happened that starts the wait anew."""
        self._last = self._clock()
        self._changed.set()

    def left(self, limit: float) -> float | None:
        """Seconds until there was nothing for *limit* seconds; ``None`` while that cannot come, as *limit* 0 says."""
        if self.calls or limit <= 0:
            return None
        return max(0.0, self._last + limit - self._clock())

    async def changes(self, within: float | None) -> bool:
        """Await the next change for *within* seconds at most; whether there was one."""
        self._changed.clear()
        try:
            async with asyncio.timeout(within):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True


class Work(Protocol):
    """What mcpd has to do beside answering calls."""

    def busy(self) -> bool:
        """Whether anything is there that mcpd should stay for."""

    def unfinished(self) -> bool:
        """Whether anything is there that would be lost with this process."""


class IdleExit:
    """Watches for the time to leave, and leaves."""

    def __init__(self, connection: Connection, activity: Activity, work: Work, limit: Callable[[], float]) -> None:
        """*limit* tells the seconds to wait, 0 for ever, as the settings say now."""
        self._connection = connection
        self._activity = activity
        self._work = work
        self._limit = limit

    async def run(self) -> None:
        """Return when mcpd should end: the name is released, every call answered, and nothing would be lost.

        Without a service manager that starts mcpd again it does not return.
        """
        while True:
            await self._quiet()
            if not await self._would_come_back():
                log.info("mcpd stays: the message bus would not start it again")
                await asyncio.get_running_loop().create_future()
            # The bus's answer came after all the calls that it had sent before.
            if self._left() == 0:
                break
        log.info("mcpd has nothing to do and ends until it is called")
        notify("STOPPING=1", "STATUS=Nothing to do")
        await self._release()
        while not await self._finished():
            await self._go_on()
            await self._release()

    def _left(self) -> float | None:
        return None if self._work.busy() else self._activity.left(self._limit())

    async def _quiet(self) -> None:
        while (left := self._left()) != 0:
            await self._activity.changes(left)

    async def _would_come_back(self) -> bool:
        if not os.environ.get("NOTIFY_SOCKET"):
            return False
        names = await self._connection.call_bus("ListActivatableNames")
        return BUS_NAME in names

    async def _release(self) -> None:
        """Give the name up; what was called by it before has arrived when this returns."""
        await self._connection.call_bus("ReleaseName", "s", BUS_NAME)

    async def _finished(self) -> bool:
        """Answer what is left; False if that takes longer than anybody can be without mcpd."""
        deadline = time.monotonic() + SHORT
        while self._activity.calls and (left := deadline - time.monotonic()) > 0:
            await self._activity.changes(left)
        if self._activity.calls or self._work.unfinished():
            return False
        seen = self._activity.seen
        # Who knows our unique name may have called by it.
        await self._connection.call_bus("GetId")
        return self._activity.seen == seen or await self._finished()

    async def _go_on(self) -> None:
        """Serve under the name again, as long as what began in the last moment takes.

        The service manager waits for our end, so there is no other mcpd that could have the name; without one there
        might be, and then the rest is finished without it.
        """
        log.info("mcpd was called while it was leaving, and stays until that is done")
        await self._connection.request_name(BUS_NAME)
        while self._activity.calls or self._work.unfinished():
            notify(f"EXTEND_TIMEOUT_USEC={int(EXTENSION * 1_000_000)}", "STATUS=Finishing the last jobs")
            await self._activity.changes(EXTENSION / 2)
