# SPDX-License-Identifier: LGPL-2.1-or-later
"""The calls in flight of one process, and what they keep in memory until they were answered."""

from __future__ import annotations

import math
from functools import partial
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Final

from mcpd.bridge.budget import COUNTED_FROM
from mcpd.bridge.upstream.call import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mcpd.bridge.budget import Budget, Holding
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.upstream.call import Peer
    from mcpd.errors import LimitExceeded

GHOST: Final = 60.0
"""Seconds for which a server may go on with a call that was given up."""
MOST_GHOSTS: Final = 1000
"""Such calls that are told apart; if there are more, none counts as answered."""
_STEP: Final = COUNTED_FROM
"""Bytes in whose multiples room is made, so that most calls cost two additions and no more."""


class _Account:
    """The memory that the calls of one caller take."""

    __slots__ = ("held", "low", "room", "size")

    def __init__(self, held: Holding) -> None:
        self.held = held
        self.size = 0
        self.room = _STEP
        self.low = 0
        """Size in bytes below which room is given back."""

    def admits(self, size: int) -> bool:
        """Return whether there is room for a call of *size* bytes."""
        size += self.size
        if size <= self.room:
            return True
        # A process that does not read its input at once has the call kept twice.
        return self.make(size + size - self.size) and self.make(size)

    def shrink(self, size: int) -> None:
        """Remove a finished call of *size* bytes."""
        self.size -= size
        if self.size < self.low:
            self.make(self.size)

    def make(self, size: int) -> bool:
        """Reserve room for *size* bytes; return False if there is none."""
        room = -(-max(size, 1) // _STEP) * _STEP
        if not self.held.hold(room):
            return False
        self.room, self.low = room, room // 2 if room > _STEP else 0
        return True


class Flight(dict[bytes, Call]):
    """The unanswered calls of a process by their upstream id, oldest first; *budget* counts their memory for *payer*.

    If several callers share the process (*shared*), each call counts for its own caller, and a call that was given up
    is remembered until it is answered. *cut* is called if the calls of a caller take too much memory.

    Use :meth:`add`, :meth:`take` and :meth:`give_up` to change it.
    """

    __slots__ = ("_accounts", "_budget", "_cut", "_ghosts", "_haunted_until", "_own", "_shared")

    def __init__(
        self, budget: Budget, payer: Caller, cut: Callable[[Caller, LimitExceeded], None], *, shared: bool = False
    ) -> None:
        super().__init__()
        self._budget = budget
        self._cut = cut
        self._own = self._open(payer)
        self._accounts = {payer: self._own}
        self._shared = shared
        self._ghosts: dict[bytes, float] = {}
        """When those were given up that have not been answered yet, by their upstream id, the newest last."""
        self._haunted_until = 0.0
        """Until when there may be some that are not among these."""

    def _open(self, caller: Caller) -> _Account:
        return _Account(self._budget.holding(caller, partial(self._cut, caller)))

    def _account(self, caller: Caller | None) -> _Account:
        if not self._shared or caller is None:
            return self._own
        found = self._accounts.get(caller)
        if found is None:
            found = self._accounts[caller] = self._open(caller)
        return found

    def admits(self, caller: Caller | None, size: int) -> bool:
        """Return whether there is room for a call of *size* bytes by *caller*."""
        return self._account(caller).admits(size)

    def fault(self) -> LimitExceeded:
        """Why there is no room."""
        return self._budget.fault()

    def add(self, own: bytes, call: Call) -> None:
        """*call*, which was admitted, is in flight."""
        self[own] = call
        self._account(call.sink.caller).size += call.size

    def take(self, own: bytes) -> Call | None:
        """The call *own*, if it is there, which is over: it was answered, unless it was given up."""
        call = self.pop(own, None)
        if call is not None:
            self._account(call.sink.caller).shrink(call.size)
        elif self._ghosts:
            self._ghosts.pop(own, None)
        return call

    def give_up(self, own: bytes) -> Call | None:
        """The call *own*, if it is there, that nobody waits for any more; the server may go on with it."""
        call = self.take(own)
        if call is not None and not _is_stream(call):
            if len(self._ghosts) < MOST_GHOSTS:
                self._ghosts[own] = monotonic()
            else:
                self._haunted_until = math.inf if self._shared else monotonic() + GHOST
        return call

    @property
    def only(self) -> Call | None:
        """The call to which everything belongs that the server says now, if that is certain."""
        first = list(islice((call for call in self.values() if not _is_stream(call)), 2))
        return first[0] if len(first) == 1 and not self._is_haunted() else None

    @property
    def owner(self) -> Peer | None:
        """Whom everything concerns that the server says now, if that is certain."""
        if self._is_haunted():
            return None
        owners = (call.owner for call in self.values() if not _is_stream(call))
        first = next(owners, None)
        return first if all(owner is first for owner in owners) else None

    def _is_haunted(self) -> bool:
        if self._ghosts and not self._shared and next(reversed(self._ghosts.values())) + GHOST < monotonic():
            self._ghosts.clear()
        return bool(self._ghosts) or (self._haunted_until > 0 and monotonic() < self._haunted_until)

    def trim(self, caller: Caller | None) -> None:
        """Return the room of *caller* that an admitted call did not use after all."""
        account = self._account(caller)
        account.make(account.size)

    def cut(self, caller: Caller) -> Iterator[tuple[bytes, Call]]:
        """Give up the largest calls of *caller*, as others need the room, until the rest is too small to be counted."""
        account = self._account(caller)
        account.room, account.low = _STEP, 0
        for own, call in sorted(self.items(), key=lambda item: -item[1].size):
            if account.size <= _STEP:
                return
            if self._account(call.sink.caller) is account and self.give_up(own) is not None:
                yield own, call

    def end(self) -> list[Call]:
        """Take all, and keep none any more."""
        calls = list(self.values())
        self.clear()
        for account in self._accounts.values():
            account.held.close()
        return calls


def _is_stream(call: Call) -> bool:
    """Return True if *call* goes on for as long as its client likes; what is said in the course of it names it."""
    return call.timeout == math.inf
