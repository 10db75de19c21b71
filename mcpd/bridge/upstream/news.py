# SPDX-License-Identifier: LGPL-2.1-or-later
"""Notifications for many clients, limited in their rate."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias

from mcpd.bridge.tasks import LimitedLog, fault_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.bridge.jsonrpc import Message

    Key: TypeAlias = tuple[str, str]

PAUSE: Final = 0.05
"""Seconds between two rounds, at least."""
SHARE: Final = 10
"""A pause is so many times as long as the round before it took, so that others have most of the time."""
MOST_NEWS: Final = 1000
"""Pieces of news that may wait."""
MOST_HEARD: Final = 2000
"""How often something is heard in one round, at about which the next one begins; what comes then waits."""


class News:
    """Gives news to *spread*, which says how many heard it: the first at once, what comes soon after that together.

    A key is a method and what it is about; there are few methods that are about nothing in particular, and what these
    tell is never lost. What says the same as something that waits takes its place; the log calls the teller *server*.
    """

    def __init__(self, spread: Callable[[Key, Message], int], server: str) -> None:
        self._spread = spread
        self._warn = LimitedLog(server)
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Key, Message] = {}
        self._told: set[Key] = set()
        """What was told since the last round began."""
        self._heard = 0
        self._timer: asyncio.TimerHandle | None = None

    def tell(self, key: Key, message: Message) -> None:
        """Tell *message*, now or with the next round."""
        if self._waiting or key in self._told or self._heard >= MOST_HEARD or len(self._told) >= MOST_NEWS:
            if key in self._waiting or len(self._waiting) < MOST_NEWS or not key[1]:
                self._waiting[key] = message
            else:
                self._lose()
        else:
            self._one(key, message)
        self._plan(PAUSE)

    def waits(self, key: Key) -> bool:
        """Return True if something that says the same waits already."""
        return key in self._waiting

    def allows(self, hearers: int) -> bool:
        """Return True if so many may hear something now that cannot wait."""
        if self._heard >= MOST_HEARD:
            self._lose()
            return False
        self._heard += hearers
        self._plan(PAUSE)
        return True

    def forget(self) -> None:
        """Nobody wants to know any more."""
        self._waiting.clear()

    def _lose(self) -> None:
        self._warn.warning("it tells so much at once that some of it is lost")

    def _plan(self, pause: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(pause, self._round)

    def _round(self) -> None:
        self._timer = None
        self._told.clear()
        self._heard = 0
        began = self._loop.time()
        while self._waiting and self._heard < MOST_HEARD:
            key = next(iter(self._waiting))
            self._one(key, self._waiting.pop(key))
        if self._waiting or self._told:
            self._plan(max(PAUSE, SHARE * (self._loop.time() - began)))

    def _one(self, key: Key, message: Message) -> None:
        self._told.add(key)
        # The boundary: what goes wrong with one piece of news must not keep others back.
        try:
            self._heard += self._spread(key, message)
        except Exception as error:  # noqa: BLE001 -- logged by fault_of
            fault_of(error)
