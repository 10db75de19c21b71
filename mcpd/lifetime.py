# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the service manager hears while mcpd runs, and what mcpd stays for."""

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

HANDED_OVER: Final = 75
"""Exit status that asks the service manager to start mcpd again at once (``RestartForceExitStatus=``)."""
STATUS_INTERVAL: Final = 0.5
"""Seconds between two status lines at least."""


async def feed_watchdog() -> None:
    """Tell the service manager that the event loop turns, as often as it wants to hear it."""
    interval = watchdog_interval()
    while interval is not None:
        notify("WATCHDOG=1")
        await asyncio.sleep(interval)


class StatusLine:
    """One line about mcpd for ``systemctl status``, brought up to date soon after :meth:`changed`."""

    def __init__(self, core: Core, installed: Callable[[], int]) -> None:
        self._core = core
        self._installed = installed
        self._timer: asyncio.TimerHandle | None = None
        self.problem = ""
        """What is wrong with the settings, shown before the figures."""

    def text(self) -> str:
        """The line."""
        core = self._core
        jobs = sum(not job.state.finished for job in core.installer.jobs.list())
        figures = (
            f"{_count(self._installed(), 'server')} installed, "
            f"{_count(len(core.sessions.list()), 'session')}, {_count(jobs, 'job')}"
        )
        return "; ".join(filter(None, (self.problem, core.sandbox_problem, figures)))

    def changed(self) -> None:
        """A figure may be another."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(STATUS_INTERVAL, self._send)

    def close(self) -> None:
        """Say no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _send(self) -> None:
        self._timer = None
        notify(f"STATUS={self.text()}")


class Duties:
    """What mcpd has to do beside answering calls: see :class:`mcpd.bus.idle.Work`."""

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
        """Whether a server runs or starts, a job is listed, or a sandbox is checked."""
        checking = any(gate.checking for gate in self._gates)
        return bool(checking or self._sessions.list() or self._sessions.starting or self._jobs.list())

    def unfinished(self) -> bool:
        """Whether there is a job, or a server that the next mcpd could not take over."""
        lost = self._sessions.list() and not self.can_hand_over()
        return bool(self._jobs.list() or self._sessions.starting or lost)

    def can_hand_over(self) -> bool:
        """Whether servers run, and the next mcpd could take over every one."""
        sessions = self._sessions.list()
        room = os.environ.get("FDSTORE", "")
        return (
            bool(sessions)
            and room.isascii()
            and room.isdigit()
            and int(room) >= len(sessions)
            and all(self._leashes.keeps(session) for session in sessions)
        )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
