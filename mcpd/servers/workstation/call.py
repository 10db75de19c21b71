# SPDX-License-Identifier: LGPL-2.1-or-later
"""One call of a tool: its roots, time limit, threads, commands and progress reports."""

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
    """A call of a tool."""

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
        """Limit the call to *seconds* after *began* (monotonic clock; now by default).

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
        """True while a command is running."""
        return self._commands > 0

    @property
    def left(self) -> float:
        """Remaining seconds."""
        return self._deadline - time.monotonic()

    def timed_out(self) -> TimedOut:
        """Return the error of a call that has exceeded its time limit."""
        return timed_out(self.seconds)

    def end(self) -> None:
        """Mark the call as over, so that :meth:`check` raises from now on."""
        self._over.set()

    def check(self) -> None:
        """Raise if the call is over; threads call this before and during long operations."""
        if self._over.is_set():
            raise Cancelled("the call was cancelled")
        if self.left <= 0:
            raise self.timed_out()

    def report(self, progress: float, total: float | None = None, message: str = "") -> None:
        """Report progress to the client if it asked for it; *progress* has to increase with each call. Thread-safe."""
        if self._progress is not None and not self._over.is_set():
            self._loop.call_soon_threadsafe(self._progress, progress, total, message)

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Run *function* in a thread and return its result; it may block and calls :meth:`check` from time to time."""
        return await self._loop.run_in_executor(self._executor, function)

    def which(self, program: str) -> str | None:
        """Return the absolute path of *program* as commands find it, or None if it is not installed."""
        return self._processes.which(program)

    async def run(self, command: Command) -> Completed:
        """Run *command* within the remaining time; all its processes have ended when this returns or raises.

        Raises :class:`~mcpd.errors.TimedOut`, with the end of the output in ``data``, and
        :class:`~mcpd.errors.SpawnFailed`.
        """
        self._commands += 1
        try:
            return await self._processes.run(command, self)
        finally:
            self._commands -= 1


def timed_out(seconds: float) -> TimedOut:
    """Return the error of a call that has taken more than *seconds*."""
    return TimedOut(f"Tool execution timeout after {seconds:g} s")


def in_thread(function: Callable[[Call, T], Answer]) -> Run:
    """Return the :data:`Run` of a tool that runs the synchronous *function* in a thread."""

    async def run(call: Call, arguments: T) -> Answer:
        return await call.in_thread(lambda: function(call, arguments))

    return run
