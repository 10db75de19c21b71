# SPDX-License-Identifier: LGPL-2.1-or-later
"""Limits on the rate of calls: a token bucket for each caller and server.

A bucket is kept as the moment at which it is full again (the *generic cell rate algorithm* of ITU-T I.371), one
number that has to be changed once a call. One that is full is not kept at all.
"""

from __future__ import annotations

import heapq
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.bridge.callers import Caller

MOST_BUCKETS: Final = 65_536
"""Buckets that are kept at once. Those with the most tokens are forgotten first, as if they had been full."""
_FIRST_SWEEP: Final = 1024
_SECOND: Final = 1_000_000_000


class RateLimiter:
    """Lets *rate* calls a second through on average, and *burst* at once; either may be changed at any time."""

    __slots__ = ("_clock", "_full_at", "_interval", "_sweep_at", "_tolerance")

    def __init__(self, rate: float, burst: int, clock: Callable[[], int] = monotonic_ns) -> None:
        self._clock = clock
        self._full_at: dict[tuple[Caller, str], int] = {}
        self._sweep_at = _FIRST_SWEEP
        self.replace(rate, burst)

    def __len__(self) -> int:
        """Return the number of buckets."""
        return len(self._full_at)

    def replace(self, rate: float, burst: int) -> None:
        """Other limits from now on; what was used up so far stays used up."""
        # At least a nanosecond, which no caller ever reaches.
        self._interval = max(round(_SECOND / rate), 1)
        self._tolerance = (burst - 1) * self._interval

    def take(self, caller: Caller, server: str, calls: int = 1) -> float:
        """Take a token for each of so many *calls* of *caller* to *server*: 0.0, or the seconds until there is one.

        Several that come together pass together; what they take too much is missing afterwards.
        """
        now = self._clock()
        key = (caller, server)
        full_at = self._full_at.get(key, now)
        if full_at <= now:
            full_at = now
        elif full_at - now > self._tolerance:
            return (full_at - now - self._tolerance) / _SECOND
        self._full_at[key] = full_at + calls * self._interval
        if len(self._full_at) >= self._sweep_at:
            self._sweep(now)
        return 0.0

    def _sweep(self, now: int) -> None:
        """Forget buckets that are full, and if those are too few, the fullest. Its cost is spread over many calls."""
        kept = {key: full_at for key, full_at in self._full_at.items() if full_at > now}
        if len(kept) > MOST_BUCKETS // 2:
            kept = dict(heapq.nlargest(MOST_BUCKETS // 2, kept.items(), key=lambda item: item[1]))
        self._full_at = kept
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(kept))
