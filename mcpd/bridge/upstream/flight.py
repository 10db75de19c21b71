# SPDX-License-Identifier: LGPL-2.1-or-later
"""The calls in flight of one process, and what they keep in memory until they were answered."""

from __future__ import annotations

import math
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Final

from mcpd.bridge.budget import COUNTED_FROM
from mcpd.bridge.upstream.call import Call

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.bridge.budget import Holding
    from mcpd.bridge.upstream.call import Peer
    from mcpd.errors import LimitExceeded

GHOST: Final = 60.0
"""Seconds for which a server may go on with a call that was given up."""
MOST_GHOSTS: Final = 1000
"""Such calls that are told apart; if there are more, none counts as answered."""
_STEP: Final = COUNTED_FROM
"""Bytes in whose multiples room is made, so that most calls cost two additions and no more."""


class Flight(dict[bytes, Call]):
    """Calls by their upstream id, oldest first; the sum of their sizes is counted in *held*.

    Where the process is *shared* by several callers, a call that was given up is remembered until it is answered.
    Use :meth:`add`, :meth:`take` and :meth:`give_up` to change it.
    """

    __slots__ = ("_ghosts", "_haunted_until", "_held", "_low", "_room", "_shared", "_size")

    def __init__(self, held: Holding, *, shared: bool = False) -> None:
        super().__init__()
        self._held = held
        self._shared = shared
        self._ghosts: dict[bytes, float] = {}
        """When those were given up that have not been answered yet, by their upstream id, the newest last."""
        self._haunted_until = 0.0
        """Until when there may be some that are not among these."""
        self._size = 0
        self._room = _STEP
        self._low = 0
        """Bytes under which room is given back."""

    def admits(self, size: int) -> bool:
        """Whether there is room for a call of *size* bytes."""
        size += self._size
        if size <= self._room:
            return True
        # A process that does not read its input at once has the call kept twice.
        return self._make(size + size - self._size) and self._make(size)

    def fault(self) -> LimitExceeded:
        """Why there is no room."""
        return self._held.fault()

    def add(self, own: bytes, call: Call) -> None:
        """*call*, which was admitted, is in flight."""
        self[own] = call
        self._size += call.size

    def take(self, own: bytes) -> Call | None:
        """The call *own*, if it is there, which is over: it was answered, unless it was given up."""
        call = self.pop(own, None)
        if call is not None:
            self._size -= call.size
            if self._size < self._low:
                self._make(self._size)
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

    def trim(self) -> None:
        """Give room back that an admitted call did not take after all."""
        self._make(self._size)

    def cut(self) -> Iterator[tuple[bytes, Call]]:
        """Take the largest until what is left need not be counted, as others had to have the room."""
        self._room, self._low = _STEP, 0
        for own, call in sorted(self.items(), key=lambda item: -item[1].size):
            if self._size <= _STEP:
                return
            if self.give_up(own) is not None:
                yield own, call

    def end(self) -> list[Call]:
        """Take all, and keep none any more."""
        calls = list(self.values())
        self.clear()
        self._size = 0
        self._held.close()
        return calls

    def _make(self, size: int) -> bool:
        room = -(-max(size, 1) // _STEP) * _STEP
        if not self._held.hold(room):
            return False
        self._room, self._low = room, room // 2 if room > _STEP else 0
        return True


def _is_stream(call: Call) -> bool:
    """Whether *call* goes on for as long as its client likes; what is said in the course of it names it."""
    return call.timeout == math.inf
