# SPDX-License-Identifier: LGPL-2.1-or-later
"""What javac says over several lines, and tests that fail under Maven and Gradle."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.ci.formats.findings import NOWHERE, Reader, Spot, severity_of

if TYPE_CHECKING:
    from mcpd.servers.workstation.ci.formats.findings import Findings

_JAVAC: Final = re.compile(
    r"(?P<file>[^\n:]{1,1024}\.(?:java|groovy)):(?P<line>\d{1,9}): "
    r"(?:(?P<severity>error|warning): )?(?:\[(?P<code>[\w-]{1,40})\] )?(?=\S)"
)
_CARET: Final = re.compile(r"\s{0,8192}\^$")
_THREAD: Final = re.compile(r'Exception in thread "[^"]{1,200}" (?P<code>[\w.$]{1,200})(?=:|$)')
_BLOCK: Final = re.compile(r"\[ERROR\] (?:Failures|Errors): $|\[ERROR\] (?:Failures|Errors):$")
_GRADLE: Final = re.compile(r"(?P<name>\S{1,200}(?: > \S.{0,300})?) > (?P<test>\S.{0,300}) FAILED$")
_LINES: Final = 3
"""Lines from a diagnostic to its caret."""


@dataclass(slots=True)
class _Pending:
    severity: str
    message: str
    spot: Spot
    code: str | None
    lines: int = 0


class Javac(Reader):
    """Reads it: the column is where the caret stands, below the line of code."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._pending: _Pending | None = None

    def read(self, line: str) -> bool:
        """Whether *line* belongs to a diagnostic."""
        match = _JAVAC.match(line) if ".java:" in line or ".groovy:" in line else None
        if match is not None:
            self._flush(None)
            severity = match["severity"] or "error"
            spot = Spot(match["file"], match["line"])
            self._pending = _Pending(severity, line[match.end() :], spot, match["code"])
            return True
        if self._pending is None:
            return False
        if _CARET.match(line):
            self._flush(len(line))
            return True
        self._pending.lines += 1
        if self._pending.lines >= _LINES:
            self._flush(None)
        return False

    def end(self) -> None:
        """There is no caret any more."""
        self._flush(None)

    def _flush(self, column: int | None) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            spot = Spot(pending.spot.file, pending.spot.line, column)
            severity = severity_of(pending.severity)
            self.findings.add(severity, pending.message, spot, code=pending.code, source="javac")


class JvmTests(Reader):
    """Reads what fails when it runs. A stack says the name of a file without its directory; so it says no place."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._block = False
        self._title: str | None = None
        self._thrown: tuple[str, str] | None = None
        self._wrong = False

    def read(self, line: str) -> bool:
        """Whether *line* is about that."""
        if self._thrown is not None:
            return self._stack(self._thrown, line)
        if self._title is not None and line.strip():
            self.findings.add("error", f"{self._title}: {line.strip()}", source="gradle")
            self._title = None
            return True
        if self._wrong and line.strip():
            self.findings.last_resort(line, source="gradle")
            self._wrong = False
            return True
        if line.startswith("[ERROR]"):
            return self._maven(line)
        self._block = self._block and line.startswith("[")
        return self._starts(line)

    def end(self) -> None:
        """No frame follows."""
        if self._thrown is not None:
            self._stack(self._thrown, "")

    def _starts(self, line: str) -> bool:
        if line.endswith(" FAILED") and (test := _GRADLE.match(line)):
            self._title = f"{test['name']} > {test['test']}"
            return True
        if line.startswith("Exception in thread") and (thrown := _THREAD.match(line)):
            code = thrown["code"]
            self._thrown = (code.rpartition(".")[2], line[thrown.start("code") :])
            return True
        if line == "* What went wrong:":
            self._wrong = True
            return True
        return False

    def _stack(self, thrown: tuple[str, str], line: str) -> bool:
        code, message = thrown
        frame = line.strip() if line.lstrip().startswith("at ") else ""
        self._thrown = None
        self.findings.add("error", f"{message} {frame}", NOWHERE, code=code, source="java")
        return bool(frame)

    def _maven(self, line: str) -> bool:
        if _BLOCK.match(line):
            self._block = True
            return True
        text = line.removeprefix("[ERROR]")
        if self._block and text.startswith("   "):
            self.findings.add("error", text, source="surefire")
            return True
        self._block = self._block and not text.strip()
        if text.startswith((" Failed to execute goal", " Plugin ")):
            self.findings.last_resort(text, source="maven")
            return True
        return False
