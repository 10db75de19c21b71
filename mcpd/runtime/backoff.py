# SPDX-License-Identifier: LGPL-2.1-or-later
"""Holding back servers that keep crashing (design §6, "Ends")."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mcpd.errors import HeldBack

if TYPE_CHECKING:
    from collections.abc import Callable

FREE_CRASHES: Final = 2
"""Crashes in a row that cost nothing: a child that dies must be there again for the next call."""
FIRST_DELAY: Final = 1.0
LONGEST_DELAY: Final = 300.0
LONG_ENOUGH: Final = 60.0
"""Seconds after which a crash is not put down to the start."""


@dataclass(slots=True)
class _Record:
    crashes: int = 0
    until: float = 0.0
    code: int = 0


class Backoff:
    """Counts crashes in a row per server id; the delay doubles from 1 s to 5 min."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._records: dict[str, _Record] = {}

    def check(self, server_id: str) -> None:
        """Raise :class:`~mcpd.errors.HeldBack`, which says for how long, if *server_id* may not start yet."""
        record = self._records.get(server_id)
        left = record.until - self._clock() if record else 0.0
        if record and left > 0:
            raise HeldBack(
                f"{server_id} crashed {record.crashes} times in a row (last exit status {record.code}) and is held back"
                f" for {math.ceil(left)} s; its log says why: mcpctl logs {server_id}"
            )

    def crashed(self, server_id: str, code: int, lived: float) -> None:
        """*server_id* ended by itself with status *code* after *lived* seconds."""
        if lived >= LONG_ENOUGH:
            self.forget(server_id)
        record = self._records.setdefault(server_id, _Record())
        record.crashes += 1
        record.code = code
        if record.crashes > FREE_CRASHES:
            delay = FIRST_DELAY * 2.0 ** min(record.crashes - FREE_CRASHES - 1, 32)
            record.until = self._clock() + min(delay, LONGEST_DELAY)

    def forget(self, server_id: str) -> None:
        """Start anew: the server ended as it should, or it was changed."""
        self._records.pop(server_id, None)
