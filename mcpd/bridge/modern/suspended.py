# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls that wait for their clients to come back with answers."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final

from mcpd.bridge.modern import seal
from mcpd.bridge.modern.profile import MOST_AWAY
from mcpd.bridge.modern.seal import LIFETIME, Seal
from mcpd.bridge.upstream.pool import MOST_PROCESSES
from mcpd.errors import LimitExceeded, ServiceUnavailable

if TYPE_CHECKING:
    from mcpd.bridge.budget import Budget, Holding
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.modern.profile import Profile
    from mcpd.bridge.modern.request import Request
    from mcpd.bridge.modern.run import Run

MOST_SUSPENDED: Final = 64
"""Calls of one caller that may wait at once."""
PATIENCE: Final = 30.0
"""Seconds for which a call may wait in any case, also if others need its process."""
_HANDLE: Final = 18


class Suspended:
    """The calls that wait, each to be found once with the state that its client got."""

    def __init__(self, budget: Budget, state: Seal) -> None:
        self._budget = budget
        self._seal = state
        self._waiting: dict[bytes, tuple[Run, asyncio.TimerHandle]] = {}
        self._per_caller: dict[Caller, int] = {}

    def holding(self, run: Run) -> Holding:
        """What counts the bytes that are kept for *run* while it waits."""
        return self._budget.holding(run.request.caller, run.give_up)

    def add(self, run: Run) -> str:
        """Have *run* wait from now on; returns the state for its client.

        Raises :class:`~mcpd.errors.LimitExceeded` if too many wait, or it is too large.
        """
        caller, profile = run.request.caller, run.profile
        count = self._per_caller.get(caller, 0)
        if count >= MOST_SUSPENDED:
            raise LimitExceeded(f"{count} calls wait for answers of their clients, the limit for one caller")
        if not run.held.hold(run.size):
            raise run.held.fault()
        request = run.digest
        loop = asyncio.get_running_loop()
        handle = secrets.token_bytes(_HANDLE)
        self._per_caller[caller] = count + 1
        self._waiting[handle] = run, loop.call_later(LIFETIME, self._expire, handle)
        profile.suspend(run)
        run.since = loop.time()
        return self._seal.close(handle, caller, run.request.post.server, request)

    def take(self, state: str, request: Request) -> Run:
        """The call that waits for *request*. Raises :class:`~mcpd.errors.InvalidArgument` if there is none."""
        wanted = seal.digest(request.method, request.params)
        handle = self._seal.open(state, request.caller, request.post.server, wanted)
        run = self._remove(handle)
        if run is None:
            raise seal.refused()
        return run

    def make_room(self, profile: Profile) -> None:
        """Have a process for a further call, though calls that wait for their clients keep all of *profile*.

        Soon that is: the one that waits longest is given up when it has done so long enough.
        """
        if len(profile.suspended) >= MOST_PROCESSES + MOST_AWAY and profile.room is None:
            loop = asyncio.get_running_loop()
            due = next(iter(profile.suspended)).since + PATIENCE
            profile.room = loop.call_at(max(due, loop.time()), self._give_up, profile)

    @staticmethod
    def _give_up(profile: Profile) -> None:
        profile.room = None
        if len(profile.suspended) >= MOST_PROCESSES + MOST_AWAY:
            oldest = next(iter(profile.suspended))
            oldest.give_up(ServiceUnavailable("the call waited for its client until others needed the server"))

    def close(self) -> None:
        """Give all up."""
        for handle in list(self._waiting):
            self._expire(handle)

    def _expire(self, handle: bytes) -> None:
        run = self._remove(handle)
        if run is not None:
            run.forget()

    def _remove(self, handle: bytes) -> Run | None:
        run, timer = self._waiting.pop(handle, (None, None))
        if run is None or timer is None:
            return None
        timer.cancel()
        run.profile.unsuspend(run)
        caller = run.request.caller
        left = self._per_caller[caller] - 1
        if left:
            self._per_caller[caller] = left
        else:
            del self._per_caller[caller]
        return run
