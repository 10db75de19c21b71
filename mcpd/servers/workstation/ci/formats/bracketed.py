# SPDX-License-Identifier: LGPL-2.1-or-later
"""Diagnostics of one line with a place in brackets: tsc, MSBuild, Maven and kotlinc."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.ci.formats.findings import NOWHERE, Reader, Spot, severity_of

if TYPE_CHECKING:
    from mcpd.servers.workstation.ci.formats.findings import Findings

_PLACES: Final = 4
_BRACKETS: Final = re.compile(
    r"\((?P<line>\d{1,9})(?:,(?P<column>\d{1,9})(?:,(?P<end_line>\d{1,9}),(?P<end_column>\d{1,9}))?)?\)"
    r"[ \t]{0,4}:[ \t]{1,4}(?:[\w.-]{1,30}[ ]){0,2}?(?P<severity>fatal error|error|warning|info|message)[ ]"
    r"(?P<code>[A-Za-z]{1,12}\d{1,8})[ ]?:[ ]"
)
_NO_PLACE: Final = re.compile(
    r"[ ]{1,2}:[ ](?:[\w.-]{1,30}[ ]){0,2}?(?P<severity>error|warning)[ ](?P<code>[A-Z]{1,12}\d{1,8})[ ]?:[ ]"
)
_KOTLIN: Final = re.compile(r": \((?P<line>\d{1,9}), (?P<column>\d{1,9})\): ")
_MAVEN: Final = re.compile(r":\[(?P<line>\d{1,9}),(?P<column>\d{1,9})\] ")
_LEVEL: Final = re.compile(r"\s{0,8}\[(?P<level>ERROR|WARNING)\]\s{1,4}")


class Bracketed(Reader):
    """Reads them."""

    def read(self, line: str) -> bool:
        """Whether *line* is one of these."""
        findings = self.findings
        if "(" in line and (_brackets(findings, line) or _kotlin(findings, line)):
            return True
        if " : " in line and _no_place(findings, line):
            return True
        return "]" in line and _maven(findings, line)


def _brackets(findings: Findings, line: str) -> bool:
    for match in islice(_BRACKETS.finditer(line), _PLACES):
        file = line[: match.start()].strip()
        if file:
            spot = Spot(file, match["line"], match["column"], match["end_line"], match["end_column"])
            _msbuild(findings, line[match.end() :], spot, match)
            return True
    return False


def _no_place(findings: Findings, line: str) -> bool:
    match = _NO_PLACE.search(line)
    if match is None:
        return False
    file = line[: match.start()].strip()
    _msbuild(findings, line[match.end() :], Spot(file) if "/" in file else NOWHERE, match)
    return True


def _msbuild(findings: Findings, message: str, spot: Spot, match: re.Match[str]) -> None:
    code = match["code"]
    start = message.rfind(" [")
    if start >= 0 and message.endswith("]") and ("proj" in message[start:] or ".sln" in message[start:]):
        message = message[:start]
    source = "tsc" if code.startswith("TS") else "dotnet"
    findings.add(severity_of(match["severity"]), message, spot, code=code, source=source)


def _kotlin(findings: Findings, line: str) -> bool:
    if not line.startswith(("e: ", "w: ")):
        return False
    match = _KOTLIN.search(line)
    if match is None:
        return False
    spot = Spot(line[3 : match.start()], match["line"], match["column"])
    findings.add(severity_of(line[0]), line[match.end() :], spot, source="kotlinc")
    return True


def _maven(findings: Findings, line: str) -> bool:
    level = _LEVEL.match(line)
    match = _MAVEN.search(line) if level else None
    if level is None or match is None:
        return False
    spot = Spot(line[level.end() : match.start()], match["line"], match["column"])
    message = line[match.end() :].removeprefix("error: ")
    code = None
    if message.startswith("["):
        code, _, message = message[1:].partition("] ")
    findings.add(severity_of(level["level"]), message, spot, code=code, source="javac")
    return True
