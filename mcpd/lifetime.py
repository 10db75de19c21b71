# SPDX-License-Identifier: LGPL-2.1-or-later
"""Status messages to the service manager, and the work that keeps mcpd from exiting when idle."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

from mcpd.notify import notify, watchdog_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mcpd.bus.core import Core
    from mcpd.install.job import Jobs
    from mcpd.runtime.fdstore import LeashStore
    from mcpd.runtime.self_check import GatedLauncher
    from mcpd.runtime.sessions import Sessions

RESTART_EXIT_STATUS: Final = 75
"""Exit status that asks the service manager to restart mcpd at once (``RestartForceExitStatus=``)."""
STATUS_INTERVAL: Final = 0.5
"""Minimum seconds between two status lines."""


async def feed_watchdog() -> None:
    """Send ``WATCHDOG=1`` from the event loop, as often as the service manager requires."""
    interval = watchdog_interval()
    while interval is not None:
        notify("WATCHDOG=1")
        await asyncio.sleep(interval)


class StatusLine:
    """The status line of ``systemctl status``, updated soon after :meth:`changed`."""

    def __init__(self, core: Core, installed: Callable[[], int]) -> None:
        self._core = core
        self._installed = installed
        self._timer: asyncio.TimerHandle | None = None
        self.problem = ""
        """The error in the settings, shown before the counts."""

    def text(self) -> str:
        """Return the text of the status line."""
        core = self._core
        jobs = sum(not job.state.finished for job in core.installer.jobs.list())
        figures = (
            f"{_count(self._installed(), 'server')} installed, "
            f"{_count(len(core.sessions.list()), 'session')}, {_count(jobs, 'job')}"
        )
        return "; ".join(filter(None, (self.problem, core.sandbox_problem, figures)))

    def changed(self) -> None:
        """Schedule an update of the status line."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(STATUS_INTERVAL, self._send)

    def close(self) -> None:
        """Cancel a scheduled update."""
        if self._timer is not None:
            self._timer.cancel()

    def _send(self) -> None:
        self._timer = None
        notify(f"STATUS={self.text()}")


class DaemonWork:
    """The work of mcpd besides answering calls; implements :class:`mcpd.bus.idle.Work`."""

    def __init__(
        self,
        sessions: Sessions,
        jobs: Jobs,
        leashes: LeashStore,
        gates: Sequence[GatedLauncher],
    ) -> None:
        self._gates = gates
        self._sessions = sessions
        self._jobs = jobs
        self._leashes = leashes

    def busy(self) -> bool:
        """Return whether a server is running or starting, a job is listed, or a sandbox check is in progress."""
        checking = any(gate.checking for gate in self._gates)
        return bool(checking or self._sessions.list() or self._sessions.starting or self._jobs.list())

    def unfinished(self) -> bool:
        """Return whether a job is listed, or a server is running or starting that the next mcpd could not take over."""
        lost = self._sessions.list() and not self.can_hand_over()
        return bool(self._jobs.list() or self._sessions.starting or lost)

    def can_hand_over(self) -> bool:
        """Return whether servers are running and the next mcpd could take over all of them."""
        sessions = self._sessions.list()
        capacity = os.environ.get("FDSTORE", "")
        return (
            bool(sessions)
            and capacity.isascii()
            and capacity.isdigit()
            and int(capacity) >= len(sessions)
            and all(self._leashes.keeps(session) for session in sessions)
        )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
