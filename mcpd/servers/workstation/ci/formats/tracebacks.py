# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tracebacks of Python, and what unittest says around them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.ci.formats.findings import Reader, Spot

if TYPE_CHECKING:
    from mcpd.servers.workstation.ci.formats.findings import Findings

_START: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'File "(?P<file>[^"]{1,1024})", line (?P<line>\d{1,9})(?=$|, in )')
_RAISED: Final = re.compile(r"(?P<code>[A-Za-z_][\w.]{0,200})(?=: |:?$)")
_TEST: Final = re.compile(r"(?:FAIL|ERROR): (?P<name>\w{1,200}) \((?P<where>[\w.<>]{1,400})\)")
_MAX_FRAMES: Final = 10_000


class Tracebacks(Reader):
    """Reads them. A traceback is about its last frame in the project's own code."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._before: str | None = None
        """What stands in front of each line of the traceback that is being read, such as the bars of a group."""
        self._last: Spot | None = None
        self._own: Spot | None = None
        self._lines = 0
        self._test: str | None = None

    def read(self, line: str) -> bool:
        """Whether *line* belongs to a traceback."""
        start = line.find(_START) if _START[:9] in line else -1
        if start >= 0:
            self._begin(line[:start])
            return True
        if line.startswith(("FAIL: ", "ERROR: ")):
            test = _TEST.match(line)
            self._test = test["name"] if test else None
            return test is not None
        if self._before is None:
            if not line.lstrip(" ").startswith('File "') or not line.startswith("  "):
                return False
            self._begin("")
        return self._inside(line)

    def _begin(self, before: str) -> None:
        self._before = before
        self._last = self._own = None
        self._lines = 0

    def _inside(self, line: str) -> bool:
        before = self._before or ""
        self._lines += 1
        if not line.startswith(before) or self._lines > _MAX_FRAMES:
            self._before = None
            return False
        rest = line[len(before) :]
        if rest.startswith(" "):
            self._frame(rest.strip())
            return True
        self._before = None
        raised = _RAISED.match(rest)
        if raised is None or self._last is None:
            return rest.startswith("[Previous line repeated")
        message = f"{self._test}: {rest}" if self._test else rest
        source = "unittest" if self._test else "python"
        self.findings.add("error", message, self._own or self._last, code=raised["code"], source=source)
        self._test = None
        return True

    def _frame(self, text: str) -> None:
        frame = _FRAME.match(text)
        if frame is None:
            return
        self._last = Spot(frame["file"], frame["line"])
        if self.findings.is_own(frame["file"]):
            self._own = self._last
