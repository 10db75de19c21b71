# SPDX-License-Identifier: LGPL-2.1-or-later
"""What one user may hold of mcpd, so that something is left for the others, for root and for the system's bridge."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping

_SAID_EVERY: Final = 60.0
"""Seconds between two warnings about the same."""


class Shares:
    """Counts what users hold: so much each, and so much together. Who has a reserve is counted beside the others."""

    def __init__(self, each: int, together: int, reserves: Mapping[int, int]) -> None:
        """*reserves* has what certain uids may hold, whatever the others do."""
        self._each = each
        self._together = together
        self._reserves = reserves
        self._held: Counter[int] = Counter()
        self._common = 0
        """What those without a reserve hold together."""

    def take(self, uid: int, amount: int = 1) -> bool:
        """Count *amount* for *uid*, if it may have that much more."""
        held = self._held[uid] + amount
        if uid in self._reserves:
            if held > self._reserves[uid]:
                return False
        elif held > self._each or self._common + amount > self._together:
            return False
        else:
            self._common += amount
        self._held[uid] = held
        return True

    def give_back(self, uid: int, amount: int = 1) -> None:
        """Count *amount* of what *uid* took no more."""
        self._held[uid] -= amount
        if not self._held[uid]:
            del self._held[uid]
        if uid not in self._reserves:
            self._common -= amount

    def held(self, uid: int) -> int:
        """What *uid* holds."""
        return self._held[uid]


class Turns:
    """Lets a number in at once, few of them of one user; the users that wait take turns."""

    def __init__(self, together: int, each: int) -> None:
        self._together = together
        self._each = each
        self._inside: Counter[int] = Counter()
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}
        """By user, who is next first."""

    async def enter(self, uid: int) -> None:
        """Wait until *uid* may come in; :meth:`leave` has to follow."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(uid, deque()).append(turn)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(uid)
            else:
                self._forget(uid, turn)
            raise

    def leave(self, uid: int) -> None:
        """Make room for the next."""
        self._inside[uid] -= 1
        if not self._inside[uid]:
            del self._inside[uid]
        self._admit()

    def _admit(self) -> None:
        while self._inside.total() < self._together:
            uid = next((uid for uid in self._waiting if self._inside[uid] < self._each), None)
            if uid is None:
                return
            turns = self._waiting.pop(uid)
            turn = turns.popleft()
            if turns:
                self._waiting[uid] = turns  # behind everybody else
            if not turn.done():
                self._inside[uid] += 1
                turn.set_result(None)

    def _forget(self, uid: int, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(uid)
        if turns is not None and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[uid]


class Seldom:
    """Warns at most once a minute about the same, for those who can cause it as often as they like."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: dict[str, float] = {}

    def warning(self, text: str, *args: object) -> None:
        """Log *text* filled with *args*, unless it was logged less than a minute ago, perhaps with others."""
        now = time.monotonic()
        if now - self._said.get(text, -_SAID_EVERY) >= _SAID_EVERY:
            self._said[text] = now
            self._log.warning(text, *args)
