# SPDX-License-Identifier: LGPL-2.1-or-later
"""The output of a script as lines for the log, up to a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST: Final = 2000
"""Maximum length of a line in characters; the rest is omitted."""
MOST: Final = 1000
"""Maximum number of lines of a call; then one line says that there were more."""
MOST_BYTES: Final = 1 << 18
"""Maximum size of all its lines in bytes; then the same."""
MORE: Final = "… more".encode()
_HELD: Final = 4 * LONGEST
"""Number of bytes that contain at least that many characters."""


class Lines:
    """Splits one stream into lines for *say*; streams with the same *first* share the limits."""

    def __init__(self, say: Callable[[bytes], None], first: Lines | None = None) -> None:
        self._say = say
        self._first = first or self
        self._room: int | None = MOST_BYTES
        """Remaining bytes, None after the limit; counted in the first of several streams."""
        self._count = 0
        """Number of lines; counted there, too."""
        self._rest = bytearray()
        self._cut = False

    def feed(self, data: bytes) -> None:
        """Add a part of the stream."""
        if self._first._room is None:  # noqa: SLF001 -- of the same kind
            return
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._add(line)
            self._line()
        self._add(rest)

    def end(self) -> None:
        """Flush an incomplete last line."""
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
        """Return the current line, cut if it is too long."""
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
