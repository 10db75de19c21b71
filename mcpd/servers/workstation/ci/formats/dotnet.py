# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tests that fail under ``dotnet test``, and exceptions of .NET. What MSBuild says is read in :mod:`.bracketed`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.ci.formats.findings import NOWHERE, Reader, Spot

if TYPE_CHECKING:
    from mcpd.servers.workstation.ci.formats.findings import Findings

_FAILED: Final = re.compile(
    r"  (?:Failed|\[FAIL\]) (?P<name>\S.{0,500}) \[(?:< )?\d[\d.,]{0,12} (?:ms|s|m|h)(?: \d{1,6} (?:ms|s|m))?\]$"
)
_THROWN: Final = re.compile(r"Unhandled exception\. (?P<code>[\w.]{1,200}): (?=\S)")
_LINE: Final = re.compile(r":line (?P<line>\d{1,9})$")
_LINES: Final = 4
_GIVE_UP: Final = 200
"""Lines after which the rest is about something else."""


class DotnetTests(Reader):
    """Reads them."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._title: str | None = None
        self._code: str | None = None
        self._message: list[str] = []
        self._stack = False
        self._lines = 0

    def read(self, line: str) -> bool:
        """Whether *line* is about a test that failed, or an exception."""
        if line.startswith("  ") and (failed := _FAILED.match(line)):
            self._flush(NOWHERE)
            self._title = failed["name"]
            return True
        if line.startswith("Unhandled ") and (thrown := _THROWN.match(line)):
            self._flush(NOWHERE)
            self._title, self._code, self._stack = "", thrown["code"], True
            self._message = [line[thrown.start("code") :]]
            return True
        if self._title is None:
            return False
        self._lines += 1
        if self._lines > _GIVE_UP:
            self._flush(NOWHERE)
            return False
        text = line.strip()
        if text == "Stack Trace:":
            self._stack = True
        elif self._stack:
            return self._frame(line)
        elif text and text != "Error Message:" and len(self._message) < _LINES:
            self._message.append(text)
        return True

    def end(self) -> None:
        """No frame follows."""
        self._flush(NOWHERE)

    def _frame(self, line: str) -> bool:
        line_number = _LINE.search(line[-16:])
        head, _, file = line.partition(":line ")[0].rpartition(" in ")
        if line_number is not None and head and self.findings.is_own(file):
            self._flush(Spot(file, line_number["line"]))
        elif not line.lstrip().startswith(("at ", "---")):
            self._flush(NOWHERE)
            return False
        return True

    def _flush(self, spot: Spot) -> None:
        title, self._title = self._title, None
        message = "\n".join(self._message) or "failed"
        if title is not None:
            text = f"{title}: {message}" if title else message
            self.findings.add("error", text, spot, code=self._code, source="dotnet")
        self._message = []
        self._lines = 0
        self._code = None
        self._stack = False
