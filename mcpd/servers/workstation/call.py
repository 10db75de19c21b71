# SPDX-License-Identifier: LGPL-2.1-or-later
"""One call of a tool: what it may touch, how long it may take, and whom it tells how far it is."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from mcpd.errors import Cancelled, TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from mcpd.servers.workstation.jail import Jail
    from mcpd.servers.workstation.processes import Command, Completed, Processes
    from mcpd.servers.workstation.settings import Settings
    from mcpd.servers.workstation.tool import Answer, Run

    Progress = Callable[[float, float | None, str], None]

T = TypeVar("T")


class Call:
    """One call."""

    def __init__(
        self,
        *,
        jail: Jail,
        settings: Settings,
        processes: Processes,
        executor: Executor,
        seconds: float,
        began: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        """*seconds* is what it may take, from *began* on (monotonic clock, now unless said).

        *progress* is called in the loop's thread.
        """
        self.jail = jail
        self.settings = settings
        self.seconds = seconds
        self.wants_progress = progress is not None
        self._processes = processes
        self._executor = executor
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        self._deadline = (time.monotonic() if began is None else began) + seconds
        self._over = threading.Event()
        self._commands = 0

    @property
    def runs_command(self) -> bool:
        """True if a command is running."""
        return self._commands > 0

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self._deadline - time.monotonic()

    def timed_out(self) -> TimedOut:
        """The error of a call that has taken too long."""
        return timed_out(self.seconds)

    def end(self) -> None:
        """Nobody waits for it any more: :meth:`check` raises from now on."""
        self._over.set()

    def check(self) -> None:
        """Raise if nobody waits for the call any more: threads ask this wherever they may take long."""
        if self._over.is_set():
            raise Cancelled("the call was cancelled")
        if self.left <= 0:
            raise self.timed_out()

    def report(self, progress: float, total: float | None = None, message: str = "") -> None:
        """Tell the client, if it asked, how far the call is; from any thread, and each time with more *progress*."""
        if self._progress is not None and not self._over.is_set():
            self._loop.call_soon_threadsafe(self._progress, progress, total, message)

    async def in_thread(self, function: Callable[[], T]) -> T:
        """What *function* says, which may wait for the disk and calls :meth:`check` every now and then."""
        return await self._loop.run_in_executor(self._executor, function)

    def which(self, program: str) -> str | None:
        """The absolute path of *program* as commands find it; None if it is not installed."""
        return self._processes.which(program)

    async def run(self, command: Command) -> Completed:
        """Run *command* to its end in what is left of the time; however this ends, nothing of it is left.

        Raises :class:`~mcpd.errors.TimedOut`, with the end of what it said in ``data``, and
        :class:`~mcpd.errors.SpawnFailed`.
        """
        self._commands += 1
        try:
            return await self._processes.run(command, self)
        finally:
            self._commands -= 1


def timed_out(seconds: float) -> TimedOut:
    """The error of a call that has taken more than *seconds*."""
    return TimedOut(f"Tool execution timeout after {seconds:g} s")


def in_thread(function: Callable[[Call, T], Answer]) -> Run:
    """What a tool runs whose *function* is given the call and the arguments, in a thread."""

    async def run(call: Call, arguments: T) -> Answer:
        return await call.in_thread(lambda: function(call, arguments))

    return run
