# SPDX-License-Identifier: LGPL-2.1-or-later
"""What make and CMake say, and errors that programs and shells print in a line of their own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.ci.formats.findings import NOWHERE, Reader, Spot, severity_of

if TYPE_CHECKING:
    from mcpd.servers.workstation.ci.formats.findings import Findings

_DIRECTORY: Final = re.compile(
    r"\w{1,20}(?:\[\d{1,4}\])?: (?P<verb>Entering|Leaving) directory ['`](?P<path>/[^']{0,1023})'$"
)
_TARGET: Final = re.compile(
    r"\w{1,20}(?:\[\d{1,4}\])?: \*\*\* (?:\[(?:(?P<file>[^\]:]{1,1024}):(?P<line>\d{1,9}): )?"
    r"(?P<target>[^\]]{1,1024})\] )?(?=\S)"
)
_CMAKE: Final = re.compile(
    r"CMake (?P<severity>Error|Warning|Deprecation Warning)(?: \((?:dev|deprecated)\))?"
    r"(?: (?:at|in) (?P<file>[^:]{1,1024})(?::(?P<line>\d{1,9}) \([^)]{0,200}\))?)?:(?P<message> \S.*)?$"
)
_CTEST: Final = re.compile(r"\s{1,8}\d{1,6} - (?P<name>\S.{0,300}) \((?P<how>[\w ]{1,40})\)$")
_PROGRAM: Final = re.compile(
    r"(?P<program>[A-Za-z_/][\w./+-]{0,100}): (?P<severity>fatal error|error|warning|fatal): (?=\S)"
)
_LINKER: Final = re.compile(r"(?:[\w./+-]{0,100}[/-])?ld(?:\.\w{1,8})?: (?=cannot find |library not found )")
_NUMBERED: Final = re.compile(r"(?P<severity>error|warning) (?P<code>[A-Z]{1,10}\d{1,6}): (?=\S)")
_SHELL: Final = re.compile(r"(?P<file>[^\s:][^:\n]{0,255}): (?:line )?(?P<line>\d{1,9}): (?=\S)")
_SHELL_SAYS: Final = ("syntax error", "Syntax error", "unexpected EOF", "unbound variable", "parameter not set")
_NOT_FOUND: Final = (": command not found", ": not found", ": No such file or directory", ": Permission denied")
_LINKERS: Final = ("collect2", "ld", "clang", "clang++", "gcc", "g++", "cc", "c++")
_REFORMAT: Final = ("Would reformat: ", "would reformat ")
_MAX_DEPTH: Final = 100
_MAX_LINES: Final = 20


class Directories(Reader):
    """Follows make, which says where it goes, so that paths are understood as they are meant there."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._left: list[str] = []

    def read(self, line: str) -> bool:
        """Whether *line* says where make goes."""
        match = _DIRECTORY.match(line) if line.endswith("'") and " directory " in line else None
        if match is None:
            return False
        if match["verb"] == "Entering":
            if len(self._left) < _MAX_DEPTH:
                self._left.append(self.findings.base)
            self.findings.base = match["path"]
        elif self._left:
            self.findings.base = self._left.pop()
        return True


class Cmake(Reader):
    """Reads messages of CMake, which are indented below the line that says where they come from, and of CTest."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._severity: str | None = None
        self._spot = NOWHERE
        self._message: list[str] = []
        self._failed = False

    def read(self, line: str) -> bool:
        """Whether *line* belongs to a message."""
        if line.startswith("CMake ") and (match := _CMAKE.match(line)):
            self._flush()
            self._severity = match["severity"].rpartition(" ")[2]
            self._spot = Spot(match["file"], match["line"]) if match["file"] else NOWHERE
            self._message = [match["message"].strip()] if match["message"] else []
            return True
        if line == "The following tests FAILED:":
            self._failed = True
            return True
        if self._failed and (test := _CTEST.match(line)):
            self.findings.add("error", f"{test['name']}: {test['how']}", source="ctest")
            return True
        if self._severity is None:
            return False
        if (line and not line.startswith("  ")) or len(self._message) > _MAX_LINES:
            self._flush()
            return False
        if line.strip():
            self._message.append(line.strip())
        elif self._message and not self._message[-1]:
            self._flush()
        else:
            self._message.append("")
        return True

    def end(self) -> None:
        """The last message ends with the output."""
        self._flush()

    def _flush(self) -> None:
        if self._severity is not None:
            message = "\n".join(self._message)
            self.findings.add(severity_of(self._severity), message, self._spot, source="cmake")
        self._severity = None
        self._message = []


class Programs(Reader):
    """Reads the rest: what names a program, or only a severity, and a line at most."""

    def read(self, line: str) -> bool:
        """Whether *line* is such an error."""
        return (
            ("*** " in line and self._target(line))
            or (": " in line and (self._program(line) or self._shell(line)))
            or (line.startswith(_REFORMAT) and self._reformat(line))
        )

    def _target(self, line: str) -> bool:
        match = _TARGET.match(line)
        if match is None:
            return False
        message = line[match.end() :].removesuffix("Stop.")
        if match["target"] is None:
            self.findings.add("error", message, source="make")
        else:
            spot = Spot(match["file"], match["line"]) if match["file"] else NOWHERE
            self.findings.last_resort(f"{match['target']}: {message}", spot, source="make")
        return True

    def _program(self, line: str) -> bool:
        numbered = _NUMBERED.match(line)
        if numbered is not None:
            code = numbered["code"]
            source = "tsc" if code.startswith("TS") else "dotnet"
            self.findings.add(severity_of(numbered["severity"]), line[numbered.end() :], code=code, source=source)
            return True
        linker = _LINKER.match(line)
        if linker is not None:
            self.findings.add("error", line[linker.end() :], source="ld")
            return True
        match = _PROGRAM.match(line)
        if match is None:
            return False
        source = match["program"].rpartition("/")[2]
        message = line[match.end() :]
        if source in _LINKERS and ("returned" in message or "linker command failed" in message):
            self.findings.last_resort(message, source=source)
        else:
            self.findings.add(severity_of(match["severity"]), message, source=source)
        return True

    def _shell(self, line: str) -> bool:
        match = _SHELL.match(line)
        if match is None:
            return False
        message = line[match.end() :]
        spot = Spot(match["file"], match["line"])
        if message.startswith(_SHELL_SAYS):
            self.findings.add("error", message, spot, source="sh")
            return True
        if message.endswith(_NOT_FOUND):
            self.findings.last_resort(message, spot, source="sh")
            return True
        return False

    def _reformat(self, line: str) -> bool:
        """What ``ruff format --check`` and ``black --check`` say of a file."""
        file = line[len(_REFORMAT[0]) - (line[0] == "w") :]
        source = "black" if line[0] == "w" else "ruff"
        self.findings.add("warning", "not formatted", Spot(file), source=source)
        return True
