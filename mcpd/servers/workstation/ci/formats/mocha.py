# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tests that fail under Mocha: numbered, ``1) name``, with what was thrown and its stack below."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.ci.formats.findings import Reader, Spot

if TYPE_CHECKING:
    from mcpd.servers.workstation.ci.formats.findings import Findings

_NUMBER: Final = re.compile(r"\s{0,8}\d{1,6}\) (?=\S)")
_FRAME: Final = re.compile(
    r"\s{1,40}at (?:[^(]{1,400}\()?(?P<file>[^()\s][^()]{0,1023}?):(?P<line>\d{1,9}):(?P<column>\d{1,9})\)?$"
)
_INDENTED: Final = " " * 6
"""How far what is wrong is indented, at least."""
_LINES: Final = 4
_GIVE_UP: Final = 200
"""Lines without a place after which the number was that of something else."""


class Mocha(Reader):
    """Reads them. A failure is where the first frame in the project's own code is."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._title: str | None = None
        self._message: list[str] = []
        self._lines = 0

    def read(self, line: str) -> bool:
        """Whether *line* belongs to a failure."""
        if ") " in line[:16] and (number := _NUMBER.match(line)):
            self._title = line[number.end() :]
            self._message = []
            self._lines = 0
            return True
        return self._title is not None and self._inside(self._title, line)

    def _inside(self, title: str, line: str) -> bool:
        self._lines += 1
        if self._lines > _GIVE_UP:
            self._title = None
            return False
        frame = _FRAME.match(line)
        if frame is not None:
            if self.findings.is_own(frame["file"]):
                message = "\n".join(self._message) or "failed"
                self.findings.add("error", f"{title}: {message}", Spot(**frame.groupdict()), source="mocha")
                self._title = None
            return True
        text = line.strip()
        if text and text != "+ expected - actual" and len(self._message) < _LINES:
            self._message.append(text)
        return line.startswith(_INDENTED)
