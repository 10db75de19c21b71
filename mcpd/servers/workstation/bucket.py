# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rate limit for calls: a token bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Bucket:
    """A token bucket, full at first: it gains *rate* tokens a second and holds at most *burst*."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float]) -> None:
        """Take the time from *clock*, in seconds of a monotonic clock."""
        self._rate, self._burst, self._clock = rate, burst, clock
        self._tokens, self._at = float(burst), clock()

    def take(self) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self._rate

    def give_back(self) -> None:
        """Put back a token that was not used."""
        self._tokens = min(self._burst, self._tokens + 1)
