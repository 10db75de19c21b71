# SPDX-License-Identifier: LGPL-2.1-or-later
"""Trying again what failed for a while."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from mcpd.errors import LimitExceeded, McpdError, ServiceUnavailable, TimedOut

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MOST: Final = 120.0
"""Seconds that a provider may ask to be left alone for; beyond that the agent fails instead of waiting."""
_BACKOFF: Final = wait_random_exponential(multiplier=0.5, max=30)
_RETRY_AFTER: Final = "retry_after"
T = TypeVar("T")


class Attempts:
    """The attempts of one agent."""

    def __init__(self, retries: int) -> None:
        self.made = 0
        self._retrying = AsyncRetrying(
            stop=stop_after_attempt(retries + 1),
            wait=_wait,
            retry=retry_if_exception(_is_transient),
            reraise=True,
            sleep=asyncio.sleep,
        )

    async def of(self, call: Callable[[], Awaitable[T]], seconds: float, whom: str) -> T:
        """What *call* gives, which has *seconds* each time. Raises what its last attempt did.

        *whom* is who has not answered, for messages.
        """

        async def attempt() -> T:
            self.made += 1
            try:
                async with asyncio.timeout(seconds) as timeout:
                    return await call()
            except TimeoutError:
                if not timeout.expired():
                    raise
                raise TimedOut(f"{whom} did not answer within {seconds:g} s; timeout_seconds gives it more") from None

        return await self._retrying(attempt)


def _is_transient(error: BaseException) -> bool:
    if not isinstance(error, (LimitExceeded, ServiceUnavailable, TimedOut)):
        return False
    after = _retry_after(error)
    # A limit that says nothing of waiting is one that waiting does not help.
    return after <= MOST if after is not None else not isinstance(error, LimitExceeded)


def _retry_after(error: McpdError) -> float | None:
    """Seconds; None for a limit that waiting does not help."""
    data = error.data or {}
    if _RETRY_AFTER not in data:
        return None
    found = data[_RETRY_AFTER]
    return float(found) if isinstance(found, (int, float)) and found >= 0 else 0.0


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome is not None else None
    after = _retry_after(error) if isinstance(error, McpdError) else None
    return max(after or 0.0, _BACKOFF(state) if not after else 0.0)
