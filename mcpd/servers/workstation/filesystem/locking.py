# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names that one call at a time changes: what was looked at under the lock is what is replaced.

This holds between the calls of one process. What other programs change is noticed (:func:`.atomic.differs`), but for
the moment between the last look and the rename.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.servers.workstation.call import Call

_Key: TypeAlias = tuple[int, int, str]
_ASKED_EVERY: Final = 0.1
"""Seconds between two questions whether anybody still waits."""


@dataclass(slots=True)
class _Held:
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    """Who has it or waits for it: as long as there is one, it is kept."""


_GUARD: Final = threading.Lock()
HELD: Final[dict[_Key, _Held]] = {}
"""What is being changed, or waited for, in this moment."""


@contextmanager
def locked(call: Call, *names: tuple[int, str]) -> Iterator[None]:
    """Change *names*, each with the descriptor of its directory, alone, by whatever path others come to them.

    No second one may be taken within, or two calls could wait for each other. Raises what ``call.check`` raises while
    it waits, and OSError.
    """
    with ExitStack() as stack:
        # All take them in the same order.
        for key in sorted({_key(directory, name) for directory, name in names}):
            stack.enter_context(_one(call, key))
        yield


def _key(directory: int, name: str) -> _Key:
    status = os.fstat(directory)
    # Some file systems do not tell cases apart; where they do, such names only wait for each other.
    return status.st_dev, status.st_ino, name.casefold()


@contextmanager
def _one(call: Call, key: _Key) -> Iterator[None]:
    with _GUARD:
        held = HELD.setdefault(key, _Held())
        held.users += 1
    try:
        while not held.lock.acquire(timeout=_ASKED_EVERY):
            call.check()
        try:
            yield
        finally:
            held.lock.release()
    finally:
        with _GUARD:
            held.users -= 1
            if not held.users:
                del HELD[key]
