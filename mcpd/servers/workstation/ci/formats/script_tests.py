# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tests that fail under Jest, Vitest and the reporter ``spec`` of node's own runner."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.ci.formats.findings import Reader, Spot

if TYPE_CHECKING:
    from mcpd.servers.workstation.ci.formats.findings import Findings

_JEST: Final = re.compile(r"\s{1,8}● (?P<title>\S.*)")
_FAIL: Final = re.compile(r" ?FAIL {1,3}(?P<rest>\S.*)")
_SPEC: Final = re.compile(r"\s{0,40}✖ (?P<title>\S.*) \(\d[\d.]{0,20}ms\)$")
_PLACE: Final = re.compile(
    r"\s{1,40}(?:at|❯) (?:[^(]{1,400}[( ])?(?P<file>[^()\s:][^()\s]{0,1023}?):(?P<line>\d{1,9}):(?P<column>\d{1,9})\)?"
    r"(?= \{|$)"
)
_RAISED: Final = re.compile(r"(?P<code>[A-Z]\w{0,60}(?:Error|Exception)|Error)(?: \[\w{1,60}\])?: ")
_MORE: Final = ("Expected", "Received", "- ", "+ ")
_ENDS: Final = ("Test Suites:", "Tests:", "Snapshots:", "⎯⎯", " Test Files ")
_NO_TESTS: Final = frozenset({"Console", "Validation Warning:", "Deprecation Warning:"})
_MAX_LINES: Final = 5
_GIVE_UP: Final = 200
"""Lines without a place after which the rest is about something else."""


class ScriptTests(Reader):
    """Reads them. A failure is where the first frame in the project's own code is."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._title: str | None = None
        self._source = ""
        self._file: str | None = None
        """The test's, in case that no frame says a better place."""
        self._message: list[str] = []
        self._lines = 0

    def read(self, line: str) -> bool:
        """Whether *line* is about a test that failed."""
        if ("●" in line or "✖" in line or "FAIL" in line[:6]) and self._opens(line):
            return True
        if self._title is None:
            return False
        if line.startswith(_ENDS):
            self._flush()
            return False
        return self._inside(line)

    def end(self) -> None:
        """The last test ends with the output."""
        self._flush()

    def _opens(self, line: str) -> bool:
        match = _JEST.match(line)
        if match is not None:
            self._flush()
            self._lines = 0
            self._source = "jest"
            self._title = match["title"] if match["title"] not in _NO_TESTS else None
            return True
        match = _SPEC.match(line)
        if match is not None:
            self._flush()
            self._lines = 0
            self._source, self._title, self._file = "node:test", match["title"], None
            return True
        match = _FAIL.match(line)
        if match is None:
            return False
        self._flush()
        self._lines = 0
        file, found, title = match["rest"].partition(" > ")
        self._file = file.rpartition("| ")[2].strip() if found else file.partition(" (")[0].partition(" [")[0].strip()
        if found:
            self._source, self._title = "vitest", title
        return True

    def _inside(self, line: str) -> bool:
        self._lines += 1
        if self._lines > _GIVE_UP or (self._source != "vitest" and line and not line.startswith(" ")):
            self._flush()
            return False
        if not line.strip():
            return True
        place = _PLACE.match(line)
        if place is not None:
            if self._message and self.findings.is_own(place["file"]):
                self._take(Spot(place["file"], place["line"], place["column"]))
            return True
        text = line.strip()
        if " - error TS" in text:
            self._title = None
            return False
        if not self._message or (len(self._message) < _MAX_LINES and text.startswith(_MORE)):
            self._message.append(text)
        return True

    def _take(self, spot: Spot) -> None:
        raised = _RAISED.match(self._message[0]) if self._message else None
        code = raised["code"] if raised else None
        message = "\n".join(self._message) or "failed"
        self.findings.add("error", f"{self._title}: {message}", spot, code=code, source=self._source)
        self._title = None
        self._message = []

    def _flush(self) -> None:
        """Take the test without a better place than its file, if that is known: else it may be none."""
        if self._title is not None and self._file is not None:
            self._take(Spot(self._file))
        self._title = None
        self._message = []
