# SPDX-License-Identifier: LGPL-2.1-or-later
"""Server processes: their options, how many each caller has, and the end of those that are idle."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from mcpd.errors import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mcpd.bridge.budget import Budget
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.observe.watch import Watch
    from mcpd.bridge.upstream.pipes import Chatter
    from mcpd.bridge.upstream.policy import Policy
    from mcpd.bridge.upstream.source import Upstream

START_TIMEOUT: Final = 60.0
"""Seconds in which a server must answer ``initialize``."""
DRAIN_TIMEOUT: Final = 30.0
"""Seconds that other calls of a server get after one of its calls timed out."""
ITEMS_AT_ONCE: Final = 200
"""Items that a sweeper examines before other work gets its turn."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Options for one process of a server."""

    timeout: float
    """Seconds that a call may take without an answer or progress."""
    max_line: int
    """Maximum size of one of its messages, in bytes."""
    caller: Caller
    """The caller whose memory its messages count for."""
    budget: Budget
    watch: Watch
    chatter: Chatter
    shared: bool = False
    """True if several callers use it."""
    policy: Policy | None = None
    """The settings of the mcps map for all its clients."""


class ProcessCounts:
    """The processes of each caller, from before they start until they are gone."""

    def __init__(self) -> None:
        self._running: dict[Caller, int] = {}

    def __len__(self) -> int:
        return sum(self._running.values())

    def has_room(self, caller: Caller, limit: int) -> bool:
        """Return True if *caller* may have another one, of at most *limit*."""
        return self._running.get(caller, 0) < limit

    def enter(self, caller: Caller, limit: int) -> None:
        """Count another one; raises :class:`~mcpd.errors.LimitExceeded` if there are *limit* already."""
        if not self.has_room(caller, limit):
            raise LimitExceeded(
                f"{limit} server processes run for you, the limit for one caller: end sessions that you do not need, "
                "wait until unused ones have ended, or raise bridge.max_children (--max-children)"
            )
        self._running[caller] = self._running.get(caller, 0) + 1

    def leave(self, caller: Caller) -> None:
        """One has gone."""
        left = self._running[caller] - 1
        if left:
            self._running[caller] = left
        else:
            del self._running[caller]


class Counted:
    """A running server that is counted until it was stopped."""

    def __init__(self, upstream: Upstream, process_counts: ProcessCounts, caller: Caller) -> None:
        self._upstream = upstream
        self._process_counts: ProcessCounts | None = process_counts
        self._caller = caller

    def take(self) -> tuple[int, int]:
        """See :class:`~mcpd.bridge.upstream.source.Upstream`."""
        return self._upstream.take()

    async def stop(self, *, died: bool = False) -> None:
        """See :class:`~mcpd.bridge.upstream.source.Upstream`."""
        try:
            await self._upstream.stop(died=died)
        finally:
            process_counts, self._process_counts = self._process_counts, None
            if process_counts is not None:
                process_counts.leave(self._caller)


class Sweeper(Generic[T]):
    """Ends what has been idle for too long: one timer for all *items*, so that each costs none.

    *due* is the time (of the loop) at which an item is to go as things stand, infinite if never; *expire* lets it go.
    """

    def __init__(
        self, items: Callable[[], Iterable[T]], due: Callable[[T, float], float], expire: Callable[[T], None]
    ) -> None:
        self._items = items
        self._due = due
        self._expire = expire
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._at = math.inf
        self._shortest = math.inf
        self._closed = False

    def expect(self, after: float) -> None:
        """Something is there that will be due in *after* seconds if it stays unused."""
        self._shortest = min(self._shortest, after)
        self._look_at(self._loop.time() + after)

    def close(self) -> None:
        """Look no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _look_at(self, at: float) -> None:
        if self._closed or self._at <= at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._at = at
        self._timer = self._loop.call_at(at, self._look, None, math.inf)

    def _look(self, left: Iterator[T] | None, soonest: float) -> None:
        """Look at some items; others get their turn before the rest."""
        if left is None:
            left = iter(list(self._items()))
        now = self._loop.time()
        at_hand = list(islice(left, ITEMS_AT_ONCE))
        for item in at_hand:
            due = self._due(item, now)
            if due <= now:
                self._expire(item)
            else:
                # What is never due as things stand may be so later.
                soonest = min(soonest, due, now + self._shortest)
        if len(at_hand) == ITEMS_AT_ONCE and not self._closed:
            self._timer = self._loop.call_soon(self._look, left, soonest)
            return
        # What was expected meanwhile is later than what is here, or is found the next time.
        self._timer, self._at = None, math.inf
        if soonest < math.inf:
            # Many that become due one after the other are not worth a look each.
            self._look_at(max(soonest, now + self._shortest / 20))
