# SPDX-License-Identifier: LGPL-2.1-or-later
"""How many connections there may be, so that descriptors are left for servers and for other kinds of clients."""

from __future__ import annotations

import resource
from collections import Counter
from typing import Final

MOST_DESCRIPTORS: Final = 32768
"""What the bridge raises its limit to, if it may."""
MOST_CONNECTIONS: Final = 4096


class Room:
    """Counts the connections of one kind of listener; *limit* may be there at once, *share* of them of one uid."""

    __slots__ = ("_free", "_of_uid", "_share", "entered")

    def __init__(self, limit: int, share: int) -> None:
        self._free = limit
        self._share = share
        self._of_uid = Counter[int]()
        self.entered = 0
        """How many there were."""

    def enter(self, uid: int | None) -> bool:
        """Take a place for *uid*, ``None`` where it is not known; false if there is none."""
        self.entered += 1
        if self._free <= 0 or (uid is not None and self._of_uid[uid] >= self._share):
            return False
        self._free -= 1
        if uid is not None:
            self._of_uid[uid] += 1
        return True

    def leave(self, uid: int | None) -> None:
        """Give the place of *uid* back."""
        self._free += 1
        if uid is not None:
            self._of_uid[uid] -= 1


def connection_limit() -> int:
    """Raise the limit on open descriptors; returns how many connections of one kind fit.

    A quarter each, so that what comes over TCP, where anybody may connect, takes nothing from the unix socket.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return min(soft // 4, MOST_CONNECTIONS)
