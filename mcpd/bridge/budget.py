# SPDX-License-Identifier: LGPL-2.1-or-later
"""Limits on the bytes of messages in memory, for each caller and for all of them.

What is counted stays somewhere for as long as others like: the beginning of a line whose end a server owes, what a
server does not read, a body that still comes, an answer that a client does not read. Each place has a
:class:`Holding`. Small ones are not counted, so that a usual call costs nothing here; how many of them there can be is
bounded by the limits on connections and sessions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mcpd.errors import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.bridge.callers import Caller

COUNTED_FROM: Final = 65536
"""Bytes up to which a holding counts as nothing."""
DEFAULT_TOTAL: Final = 256 << 20
"""Bytes of all callers together."""
SHARES: Final = 4
"""Into how many parts the total is divided where there are many callers, of which each may take one."""


class Holding:
    """Bytes kept at one place for one caller; *cut* frees them when another holding needs the room."""

    __slots__ = ("_budget", "_closed", "_counted_from", "caller", "cut", "size")

    def __init__(
        self, budget: Budget, caller: Caller, cut: Callable[[LimitExceeded], None], counted_from: int = COUNTED_FROM
    ) -> None:
        self._counted_from = counted_from
        self._budget = budget
        self._closed = False
        self.caller = caller
        self.cut = cut
        self.size = 0
        """Bytes that are counted."""

    def hold(self, size: int) -> bool:
        """Have *size* bytes from now on; false, and nothing changes, if those are too many and nobody has more."""
        if size <= self._counted_from:
            size = 0
        # Making room may end the owner of this one.
        if size > self.size and (self._closed or not self._budget.make_room(self, size) or self._closed):
            return False
        if size != self.size:
            self._budget.count(self, size)
        return True

    def fault(self) -> LimitExceeded:
        """Why :meth:`hold` was false, and why it is cut."""
        return self._budget.fault()

    def close(self) -> None:
        """Give everything back, and never hold anything again."""
        self._closed = True
        self.hold(0)
        # Its owner, which refers to it, would be freed late only, and what it has kept with it.
        self.cut = _nothing


def _nothing(_fault: LimitExceeded) -> None:
    """What is closed holds nothing to be freed."""


class Budget:
    """Bytes that may be held: *total* by all, one of *shares* parts of it by one caller."""

    def __init__(self, total: int = DEFAULT_TOTAL, shares: int = 1) -> None:
        self.total = total
        self.held = 0
        """Bytes that are held now."""
        self._shares = shares
        self._of_caller: dict[Caller, int] = {}
        self._holdings: set[Holding] = set()

    def holding(
        self, caller: Caller, cut: Callable[[LimitExceeded], None], counted_from: int = COUNTED_FROM
    ) -> Holding:
        """A place for bytes of *caller*; *cut* is called, after they were given back, if they must go.

        Up to *counted_from* bytes count as nothing.
        """
        return Holding(self, caller, cut, counted_from)

    def fault(self) -> LimitExceeded:
        """The error of what does not fit."""
        return LimitExceeded(
            f"the messages that wait for their end or their reader take too much memory: {self.total // self._shares} "
            "bytes are for one caller, see bridge.max_buffered"
        )

    def make_room(self, holding: Holding, size: int) -> bool:
        """Cut what is larger until *holding* can have *size*; false if it is the largest itself.

        Who has more than a share gives of its own; if all together have too much, then whoever has the most.
        """
        while True:
            more = size - holding.size
            wanted = self._of_caller.get(holding.caller, 0) + more
            caller = holding.caller
            if wanted <= self.total // self._shares:
                if self.held + more <= self.total:
                    return True
                greatest = max(self._of_caller, key=self._of_caller.__getitem__, default=caller)
                if self._of_caller.get(greatest, 0) > wanted:
                    caller = greatest
            own = size if caller == holding.caller else 0
            rivals = (each for each in self._holdings if each.caller == caller and each is not holding)
            largest = max(rivals, key=lambda each: each.size, default=None)
            if largest is None or largest.size <= own:
                return False
            self.count(largest, 0)
            largest.cut(self.fault())

    def count(self, holding: Holding, size: int) -> None:
        """Take down that *holding* has *size* bytes."""
        more = size - holding.size
        holding.size = size
        self.held += more
        left = self._of_caller.get(holding.caller, 0) + more
        if left:
            self._of_caller[holding.caller] = left
        else:
            self._of_caller.pop(holding.caller, None)
        if size:
            self._holdings.add(holding)
        else:
            self._holdings.discard(holding)
