# SPDX-License-Identifier: LGPL-2.1-or-later
"""Exit when idle, without losing a call.

The order of the steps makes this safe. First the service manager gets ``STOPPING=1``: from then on it treats an
activation as a request to start mcpd again after its exit, and not as one that is already fulfilled. Then the name is
released. Calls that the bus has sent until then arrive before its reply, and are answered; later calls wait at the bus
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

GRACE_PERIOD: Final = 1.0
"""Seconds that last-moment calls may take before the name is requested again for them."""
STOP_EXTENSION: Final = 30.0
"""Seconds by which each ``EXTEND_TIMEOUT_USEC=`` extends the stop timeout."""

log = logging.getLogger(__name__)


class Activity:
    """The running calls, and the time of the last activity."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._changed = asyncio.Event()
        self.calls = 0
        """Number of calls that are not answered yet."""
        self.total_calls = 0
        """Number of calls so far."""

    def begin(self) -> None:
        """Count a new call."""
        self.calls += 1
        self.total_calls += 1
        self.touch()

    def end(self) -> None:
        """Count a call as answered."""
        self.calls -= 1
        self.touch()

    def touch(self) -> None:
        """Restart the idle time."""
        self._last = self._clock()
        self._changed.set()

    def remaining(self, limit: float) -> float | None:
        """Return the seconds left until *limit* seconds without activity; ``None`` during calls, or if *limit* is 0."""
        if self.calls or limit <= 0:
            return None
        return max(0.0, self._last + limit - self._clock())

    async def wait_for_change(self, within: float | None) -> bool:
        """Wait for the next change, at most *within* seconds; return whether there was one."""
        self._changed.clear()
        try:
            async with asyncio.timeout(within):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True


class Work(Protocol):
    """The work of mcpd besides answering calls."""

    def busy(self) -> bool:
        """Return whether mcpd has a reason not to exit when idle."""

    def unfinished(self) -> bool:
        """Return whether something would be lost if this process ended."""


class IdleExit:
    """Ends mcpd when it has been idle for long enough."""

    def __init__(self, connection: Connection, activity: Activity, work: Work, limit: Callable[[], float]) -> None:
        """*limit* returns the current setting of the idle time in seconds, 0 for never."""
        self._connection = connection
        self._activity = activity
        self._work = work
        self._limit = limit

    async def run(self) -> None:
        """Return when mcpd should exit: the name is released, every call answered, and nothing would be lost.

        Does not return if no service manager would start mcpd again.
        """
        while True:
            await self._wait_until_idle()
            if not await self._can_be_activated():
                log.info("Not exiting when idle: the message bus would not start mcpd again")
                await asyncio.get_running_loop().create_future()
            # All calls that the bus sent before its reply have arrived by now.
            if self._remaining() == 0:
                break
        log.info("mcpd is idle and exiting; the next call will start it again")
        notify("STOPPING=1", "STATUS=Idle, exiting")
        await self._release()
        while not await self._drained():
            await self._resume()
            await self._release()

    def _remaining(self) -> float | None:
        return None if self._work.busy() else self._activity.remaining(self._limit())

    async def _wait_until_idle(self) -> None:
        while (remaining := self._remaining()) != 0:
            await self._activity.wait_for_change(remaining)

    async def _can_be_activated(self) -> bool:
        if not os.environ.get("NOTIFY_SOCKET"):
            return False
        names = await self._connection.call_bus("ListActivatableNames")
        return BUS_NAME in names

    async def _release(self) -> None:
        """Release the name; on return, all calls that were sent to it have arrived."""
        await self._connection.call_bus("ReleaseName", "s", BUS_NAME)

    async def _drained(self) -> bool:
        """Answer the remaining calls; return False if that takes longer than :data:`GRACE_PERIOD`."""
        deadline = time.monotonic() + GRACE_PERIOD
        while self._activity.calls and (remaining := deadline - time.monotonic()) > 0:
            await self._activity.wait_for_change(remaining)
        if self._activity.calls or self._work.unfinished():
            return False
        total_calls = self._activity.total_calls
        # A client that knows the unique name may have called mcpd by it.
        await self._connection.call_bus("GetId")
        return self._activity.total_calls == total_calls or await self._drained()

    async def _resume(self) -> None:
        """Serve under the name again until the last calls and jobs are done.

        The service manager waits for this process to exit, so no other mcpd can have taken the name. Without a service
        manager another mcpd might; then the rest is finished without the name.
        """
        log.info("mcpd was called while exiting; finishing the call first")
        await self._connection.request_name(BUS_NAME)
        while self._activity.calls or self._work.unfinished():
            notify(f"EXTEND_TIMEOUT_USEC={int(STOP_EXTENSION * 1_000_000)}", "STATUS=Finishing the last jobs")
            await self._activity.wait_for_change(STOP_EXTENSION / 2)
