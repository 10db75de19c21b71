# SPDX-License-Identifier: LGPL-2.1-or-later
"""Limits of a run: budgets for models, responses and instances, and the number of concurrent agents."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from mcpd.errors import LimitExceeded
from mcpd.servers.ensembles.engine.types import MAX_BEGUN, MAX_KEPT, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcpd.servers.ensembles.format import models


class Meter:
    """Counts the usage of a run, including nested runs, within the budgets of its ensemble and of those around it."""

    def __init__(self, ensemble: str, budget: models.Budget | None, outer: Meter | None = None) -> None:
        self.used = Usage()
        self._kept = self._begun = 0
        self._ensemble, self._budget, self._outer = ensemble, budget, outer

    def add(self, usage: Usage) -> None:
        """Add *usage*."""
        self.used += usage
        if self._outer is not None:
            self._outer.add(usage)

    def keep(self, characters: int) -> None:
        """Add the length of a response. Raises :class:`~mcpd.errors.LimitExceeded` if a run has too many characters."""
        self._kept += characters
        if self._outer is not None:
            self._outer.keep(characters)
        elif self._kept > MAX_KEPT:
            raise LimitExceeded(f"the responses of the run have more than {MAX_KEPT} characters; have agents say less")

    def begin(self, agents: int) -> None:
        """Add agents or instances of another agent. Raises :class:`~mcpd.errors.LimitExceeded` for too many."""
        self._begun += agents
        if self._outer is not None:
            self._outer.begin(agents)
        elif self._begun > MAX_BEGUN:
            raise LimitExceeded(
                f"the run has more than {MAX_BEGUN} instances and agents of other ensembles; have it run fewer"
            )

    def check(self) -> None:
        """Raise :class:`~mcpd.errors.LimitExceeded` if a budget is exhausted."""
        if (spent := self.spent()) is not None:
            raise spent

    def spent(self) -> LimitExceeded | None:
        """Return the error if a budget is exhausted, or None."""
        if self._budget is not None:
            tokens, cost = self._budget.tokens, self._budget.cost_usd
            if tokens is not None and self.used.total_tokens >= tokens:
                return self._fault(f"{tokens} tokens", f"{self.used.total_tokens} tokens")
            if cost is not None and self.used.cost_usd >= cost:
                return self._fault(f"{cost:g} USD", f"{self.used.cost_usd:.6g} USD")
        return None if self._outer is None else self._outer.spent()

    def _fault(self, budget: str, used: str) -> LimitExceeded:
        fault = LimitExceeded(
            f"the budget of {self._ensemble}, {budget}, is spent: the run has used {used}; raise it with the key budget"
            " of the ensemble"
        )
        fault.data = {"ensemble": self._ensemble, "budget": budget, "used": used}
        return fault


class Slots:
    """Limits the concurrent agents of a run, including nested runs, in addition to the limits of the runs around it."""

    def __init__(self, most: int, outer: Slots | None = None) -> None:
        self.most = most
        self._free = asyncio.Semaphore(most)
        self._outer = outer

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Hold a slot. There is no deadlock, as agents that run ensembles, and wait for others, take none."""
        async with self._free:
            if self._outer is None:
                yield
                return
            async with self._outer.taken():
                yield
