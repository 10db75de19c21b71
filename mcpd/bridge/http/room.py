# SPDX-License-Identifier: LGPL-2.1-or-later
"""Limits on connections, which leave descriptors for servers and for other kinds of clients."""

from __future__ import annotations

import resource
from collections import Counter
from typing import Final

MOST_DESCRIPTORS: Final = 32768
"""The limit that the bridge sets for itself if it may."""
MOST_CONNECTIONS: Final = 4096


class Room:
    """Count of the connections of one kind of listener: at most *limit* at a time, at most *share* of one uid."""

    __slots__ = ("_free", "_of_uid", "_share", "entered")

    def __init__(self, limit: int, share: int) -> None:
        self._free = limit
        self._share = share
        self._of_uid = Counter[int]()
        self.entered = 0
        """Number of attempts to connect."""

    def enter(self, uid: int | None) -> bool:
        """Take a place for *uid*, ``None`` if it is unknown; return False if none is free."""
        self.entered += 1
        if self._free <= 0 or (uid is not None and self._of_uid[uid] >= self._share):
            return False
        self._free -= 1
        if uid is not None:
            self._of_uid[uid] += 1
        return True

    def leave(self, uid: int | None) -> None:
        """Release the place of *uid*."""
        self._free += 1
        if uid is not None:
            self._of_uid[uid] -= 1


def connection_limit() -> int:
    """Raise the limit on open descriptors, and return the maximum number of connections of one kind.

    Each kind gets a quarter, so that TCP, where anyone may connect, takes nothing from the Unix socket.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return min(soft // 4, MOST_CONNECTIONS)
