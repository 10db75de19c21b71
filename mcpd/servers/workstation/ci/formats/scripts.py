# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lists below the name of a file, of ESLint and stylelint, and exceptions of JavaScript with stacks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.ci.formats.findings import Reader, Spot, severity_of

if TYPE_CHECKING:
    from mcpd.servers.workstation.ci.formats.findings import Findings

_ENTRY: Final = re.compile(
    r"\s{1,12}(?P<line>\d{1,9}):(?P<column>\d{1,9})\s{1,12}(?P<severity>error|warning|info|✖|×|⚠|ℹ)\s{1,12}(?=\S)"
)
_RAISED: Final = re.compile(
    r"\s{0,12}(?:Uncaught |error: )?(?P<code>[A-Z]\w{0,60}(?:Error|Exception)|Error)(?: \[\w{1,60}\])?: (?=\S)"
)
_AT: Final = re.compile(
    r"\s{1,40}at (?:[^(]{1,400}\()?(?P<file>[^()\s][^()]{0,1023}?):(?P<line>\d{1,9}):(?P<column>\d{1,9})\)?(?= \{|$)"
)
_ABOVE: Final = re.compile(r"(?P<file>/[^:]{1,1024}):(?P<line>\d{1,9})$")
_QUOTED: Final = 4
"""Lines between the place, with the line of code that is quoted, and the exception."""
_BETWEEN: Final = 40
"""Lines between what was raised and the first of its stack: the values that are not equal, and the code."""


class Lists(Reader):
    """Reads the lists."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._file: str | None = None

    def read(self, line: str) -> bool:
        """Whether *line* is an entry of a list."""
        if not line:
            self._file = None
        elif line[0] not in " \t":
            self._file = line if "." in line or "/" in line else None
        elif self._file is not None and line.lstrip()[:1].isdigit():
            return self._entry(self._file, line)
        return False

    def _entry(self, file: str, line: str) -> bool:
        entry = _ENTRY.match(line)
        if entry is None:
            return False
        message, found, code = line[entry.end() :].rstrip().rpartition("  ")
        if not found:
            message, code = code, ""
        source = "stylelint" if entry["severity"] in "✖×⚠ℹ" else "eslint"
        spot = Spot(file, entry["line"], entry["column"])
        self.findings.add(severity_of(entry["severity"]), message, spot, code=code.strip(), source=source)
        return True


class Stacks(Reader):
    """Reads exceptions. One is about the first frame in the project's own code, or else about what stands above it."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._message: str | None = None
        self._code: str | None = None
        self._lines = 0
        self._foreign = False
        """Whether frames were read, but none of the project's own."""
        self._above: Spot | None = None
        """Where node says that the exception comes from, before it quotes the line."""

    def read(self, line: str) -> bool:
        """Whether *line* belongs to an exception."""
        raised = _RAISED.match(line)
        if raised is not None:
            self._flush()
            self._message = line[raised.start("code") :].strip()
            self._code = raised["code"] if raised["code"] != "Error" else None
            self._lines = 0
            return True
        if self._message is None:
            self._heads(line)
            return False
        at = _AT.match(line) if " at " in line[:42] else None
        if at is not None:
            if self.findings.is_own(at["file"]):
                self._take(Spot(at["file"], at["line"], at["column"]))
            else:
                self._foreign = True
            return True
        self._lines += 1
        if self._foreign or self._lines > _BETWEEN:
            self._flush()
        return False

    def end(self) -> None:
        """No frame follows."""
        self._flush()

    def _heads(self, line: str) -> None:
        above = _ABOVE.match(line) if line[:1] == "/" else None
        if above is not None:
            self._above = Spot(above["file"], above["line"])
            self._lines = 0
        elif self._above is not None:
            self._lines += 1
            if self._lines > _QUOTED:
                self._above = None

    def _take(self, spot: Spot) -> None:
        self.findings.add("error", self._message or "", spot, code=self._code, source="javascript")
        self._message = self._above = None
        self._foreign = False

    def _flush(self) -> None:
        if self._message is not None and self._foreign:
            self._take(self._above or Spot())
        self._message = None
