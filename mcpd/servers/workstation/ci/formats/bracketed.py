# SPDX-License-Identifier: LGPL-2.1-or-later
"""Diagnostics of one line with a place in brackets, in words or in an annotation: tsc, MSBuild, Maven, kotlinc, …"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.ci.formats.findings import NOWHERE, Reader, Spot, severity_of, trailing_code

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
_WORDS: Final = re.compile(r": line (?P<line>\d{1,9}), col (?P<column>\d{1,9}), (?P<severity>Error|Warning|Info) - ")
_LEVEL: Final = re.compile(r"\s{0,8}\[(?P<level>ERROR|WARNING)\]\s{1,4}")
_COMMAND: Final = re.compile(r"\s{0,40}::(?P<severity>error|warning|notice)(?=\s|::)")
_ISSUE: Final = "##vso[task.logissue "
_TITLE: Final = re.compile(r"(?P<source>\w{1,40}) \((?P<code>[\w.:/@-]{1,80})\)$")
_REPEATED: Final = re.compile(r"\S{1,1024}:\d{1,9}:\d{1,9}: ")


class Bracketed(Reader):
    """Reads them."""

    def read(self, line: str) -> bool:
        """Whether *line* is one of these."""
        findings = self.findings
        if "::" in line and _command(findings, line):
            return True
        if line.startswith(_ISSUE):
            return _issue(findings, line)
        if "(" in line and (_brackets(findings, line) or _kotlin(findings, line)):
            return True
        if " : " in line and _no_place(findings, line):
            return True
        if "]" in line and _maven(findings, line):
            return True
        return ": line " in line and _words(findings, line)


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


def _words(findings: Findings, line: str) -> bool:
    """ESLint's compact format, and that of deno lint and markuplint after it."""
    match = _WORDS.search(line)
    if match is None:
        return False
    message, code = trailing_code(line[match.end() :], ")")
    source = "deno" if findings.ecosystem == "deno" else "eslint"
    spot = Spot(line[: match.start()], match["line"], match["column"])
    findings.add(severity_of(match["severity"]), message, spot, code=code, source=source)
    return True


def _command(findings: Findings, line: str) -> bool:
    """An annotation for GitHub: docs.github.com, "Workflow commands for GitHub Actions"."""
    match = _COMMAND.match(line)
    if match is None:
        return False
    given, found, message = line[match.end() :].partition("::")
    if not found:
        return False
    values = _values(given, ",")
    message = _plain(message).partition("\n  help: ")[0]
    _annotated(findings, match["severity"], message, values, ("file", "line", "col", "endLine", "endColumn"))
    return True


def _issue(findings: Findings, line: str) -> bool:
    """An annotation for Azure Pipelines: learn.microsoft.com, "Logging commands"."""
    given, found, message = line.removeprefix(_ISSUE).partition("]")
    if not found:
        return False
    values = _values(given, ";")
    _annotated(findings, values.get("type", ""), message, values, ("sourcepath", "linenumber", "columnnumber", "", ""))
    return True


def _annotated(
    findings: Findings, severity: str, message: str, values: dict[str, str], names: tuple[str, str, str, str, str]
) -> None:
    file, line, column, end_line, end_column = (values.get(name) for name in names)
    title = values.get("title", "")
    titled = _TITLE.match(title)
    code, source = (titled["code"], titled["source"]) if titled else (values.get("code"), None)
    if titled:
        repeated = _REPEATED.match(message)
        message = message[repeated.end() :] if repeated else message
        message = message.removeprefix(f"{code} ").removeprefix(f"{code}: ")
    elif title and title not in message:
        message = f"{title}: {message}"
    spot = Spot(file, line, column, end_line, end_column)
    findings.add(severity_of(severity), message, spot, code=code, source=source)


def _values(given: str, separator: str) -> dict[str, str]:
    pairs = (each.strip().partition("=") for each in given.split(separator))
    return {name: _plain(value) for name, _, value in pairs}


def _plain(text: str) -> str:
    for written, meant in (("%0D", ""), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(written, meant)
    return text
