# SPDX-License-Identifier: LGPL-2.1-or-later
"""How many calls may come: a token bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Bucket:
    """*rate* tokens a second come into it, and *burst* are in it at most, as at the beginning."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float]) -> None:
        """*clock* gives seconds that never go back."""
        self._rate, self._burst, self._clock = rate, burst, clock
        self._tokens, self._at = float(burst), clock()

    def take(self) -> float:
        """Take a token: 0 if there was one, otherwise the seconds until there is."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self._rate

    def give_back(self) -> None:
        """Put back a token that was not needed."""
        self._tokens = min(self._burst, self._tokens + 1)
