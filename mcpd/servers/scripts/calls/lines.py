# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a script prints, as lines for the log, and not more than somebody can want to read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST: Final = 2000
"""Characters of a line; the rest of it is left out."""
MOST: Final = 1000
"""Lines of a call; then comes one that says that there were more."""
MOST_BYTES: Final = 1 << 18
"""Bytes of all its lines; the same."""
MORE: Final = "… more".encode()
_HELD: Final = 4 * LONGEST
"""Bytes that hold as many characters, whatever they are."""


class Lines:
    """Cuts one stream into lines for *say*; streams with the same *first* count together."""

    def __init__(self, say: Callable[[bytes], None], first: Lines | None = None) -> None:
        self._say = say
        self._first = first or self
        self._room: int | None = MOST_BYTES
        """Bytes that may be said yet, None once there were more; counted in the first of several streams."""
        self._count = 0
        """How many lines there were; the same."""
        self._rest = bytearray()
        self._cut = False

    def feed(self, data: bytes) -> None:
        """Take some of the stream."""
        if self._first._room is None:  # noqa: SLF001 -- of the same kind
            return
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._add(line)
            self._line()
        self._add(rest)

    def end(self) -> None:
        """Take what is there as the last line."""
        if self._rest:
            self._line()

    def _add(self, data: bytes) -> None:
        room = _HELD - len(self._rest)
        self._cut = self._cut or len(data) > room
        self._rest += data[:room]

    def _line(self) -> None:
        self._first._tell(self._whole())  # noqa: SLF001 -- of the same kind
        self._rest.clear()
        self._cut = False

    def _whole(self) -> bytes:
        """The line that is there, cut if it is too long."""
        if len(self._rest) <= LONGEST and not self._cut:
            return bytes(self._rest)
        text = self._rest.decode(errors="replace")
        if len(text) > LONGEST or self._cut:
            text = f"{text[:LONGEST]}…"
        return text.encode()

    def _tell(self, line: bytes) -> None:
        if self._room is None:
            return
        if self._count < MOST and len(line) <= self._room:
            self._count += 1
            self._room -= len(line)
            self._say(line)
        else:
            self._room = None
            self._say(MORE)
