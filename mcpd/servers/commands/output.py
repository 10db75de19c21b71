# SPDX-License-Identifier: LGPL-2.1-or-later
"""The output of a command: read as it comes, so that the command never blocks, and kept up to a limit."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

_CHUNK: Final = 1 << 16
_LINE: Final = 1 << 16
"""Maximum length of a line in bytes; longer ones are split."""


class Output:
    """One pipe, used in the loop's thread only."""

    def __init__(
        self,
        most: int,
        *,
        keep: Literal["head", "tail"],
        on_line: Callable[[bytes], None] | None = None,
        on_full: Callable[[], None] | None = None,
    ) -> None:
        """Keep *most* bytes, those at the end *keep*; call *on_full* when there are more."""
        self.kept = bytearray()
        self.truncated = False
        self.ended = asyncio.Event()
        """Set at the end of the output."""
        self._most, self._keep, self._on_line, self._on_full = most, keep, on_line, on_full
        self._partial = bytearray()
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        self.end = os.fdopen(write, "wb", buffering=0)
        """The end of the pipe for the command."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read, self._take)

    def close(self) -> None:
        """Stop reading. May be called repeatedly."""
        self.end.close()
        if self._read >= 0:
            self._loop.remove_reader(self._read)
            os.close(self._read)
            self._read = -1
            self.ended.set()

    def _take(self) -> None:
        try:
            data = os.read(self._read, _CHUNK)
        except BlockingIOError:
            return
        if data:
            self._keep_of(data)
            if self._on_line is not None:
                self._lines(data)
            return
        if self._partial and self._on_line is not None:
            self._on_line(bytes(self._partial))
        self.close()

    def _keep_of(self, data: bytes) -> None:
        self.kept += data
        if len(self.kept) <= self._most:
            return
        self.truncated = True
        if self._keep == "head":
            del self.kept[self._most :]
        else:
            del self.kept[: -self._most]
        if self._on_full is not None:
            self._on_full()

    def _lines(self, data: bytes) -> None:
        *lines, rest = (bytes(self._partial) + data).split(b"\n")
        self._partial = bytearray(rest)
        if len(self._partial) > _LINE:
            lines.append(bytes(self._partial))
            self._partial.clear()
        if self._on_line is not None:
            for line in lines:
                self._on_line(line)
