# SPDX-License-Identifier: LGPL-2.1-or-later
"""A cache of what servers offer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mcpd.bridge.budget import Budget, Holding
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.pages.offer import Offer
    from mcpd.bridge.upstream.source import ServerInfo

MOST_KEPT: Final = 64
"""Offers; when there are more, the oldest goes."""

Key = tuple["Caller", str]


class Memory:
    """Remembers the newest offer of each server to each caller."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._kept: dict[Key, tuple[str, Offer, Holding]] = {}

    def recall(self, caller: Caller, info: ServerInfo) -> Offer | None:
        """Return what *info*'s server offered *caller*, unless it has changed since then."""
        state, offer, _ = self._kept.get((caller, info.id), ("", None, None))
        return offer if state == info.state else None

    def keep(self, caller: Caller, info: ServerInfo, offer: Offer) -> None:
        """Remember *offer*, if there is room for it."""
        key = (caller, info.id)
        self._forget(key)
        holding = self._budget.holding(caller, lambda _fault: self._forget(key))
        # What was made of the answers is a few times their size.
        if holding.hold(4 * offer.size):
            self._kept[key] = info.state, offer, holding
            while len(self._kept) > MOST_KEPT:
                self._forget(next(iter(self._kept)))

    def _forget(self, key: Key) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            kept[2].close()
