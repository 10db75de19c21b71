# SPDX-License-Identifier: LGPL-2.1-or-later
"""How much memory answers may take that are being made, or that the client has not read yet."""

from __future__ import annotations

import asyncio
from typing import Final

MOST: Final = 64 * 1024 * 1024
"""Bytes of all answers; a call that begins waits until there is room."""
EACH: Final = 4 * 1024 * 1024
"""Bytes that are taken for an answer until it is there."""


class Answers:
    """Those of one server."""

    def __init__(self, most: int = MOST, each: int = EACH) -> None:
        self._most, self._each = most, each
        self._taken = 0
        self._room = asyncio.Event()

    async def share(self, *, small: bool = False) -> Share:
        """Room for one more, as soon as there is; *small* ones are not counted before they are there."""
        each = 0 if small else self._each
        while self._taken and self._taken + each > self._most:
            self._room.clear()
            await self._room.wait()
        return Share(self, each)

    def change(self, more: int) -> None:
        """Take *more* bytes, or give back what is less than none."""
        self._taken += more
        if more < 0:
            self._room.set()


class Share:
    """What one answer takes."""

    def __init__(self, answers: Answers, size: int) -> None:
        self._answers, self._size = answers, 0
        self.is_now(size)

    def is_now(self, size: int) -> None:
        """It takes *size* bytes: none when it was sent."""
        self._answers.change(size - self._size)
        self._size = size
