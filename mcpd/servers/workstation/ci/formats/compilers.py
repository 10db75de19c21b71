# SPDX-License-Identifier: LGPL-2.1-or-later
"""Diagnostics of compilers and linters: with the position first, in brackets, after an arrow, or below a file name.

The position ``file:line:column`` is searched for, and the file is the text before it, so names may contain blanks and
brackets, and no expression has to find where a name ends. Each repetition in an expression is bounded and does not
backtrack: the time for a line is proportional to its length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.ci.formats.findings import NOWHERE, Reader, Spot, severity_of, trailing_code

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.servers.workstation.ci.formats.findings import Findings

_PLACES: Final = 4
"""Maximum number of positions examined in a line; text before a diagnostic, such as the time, may look like one."""
_COLONS: Final = re.compile(
    r":(?P<line>\d{1,9})"
    r"(?:[:.](?P<column>\d{1,9})(?::(?P<end_line>\d{1,9}):(?P<end_column>\d{1,9}))?(?:-\d{1,9})?)?"
    r"(?P<gap>:[ \t]{1,4}|[ ]-[ ]|:|[ ])(?=[^\s:\d])"
)
_BEFORE: Final = re.compile(
    r"[ \t]{0,12}(?:(?:##)?\[(?P<level>error|warning|warn|info)\][ \t]{1,4}|(?P<letter>[ew]):[ ]|vet:[ ])?",
    re.IGNORECASE,
)
_SEVERE: Final = re.compile(
    r"\[?(?P<severity>fatal error|internal compiler error|error|warning|warn|note|info|information|fatal|remark|hint|"
    r"help)\]?(?:\[(?P<code>[\w:.-]{1,80})\]|[ ](?P<number>[A-Za-z]{1,12}\d{1,6}))?"
    r"(?:[ ]?:[ ]?|(?<=\])[ ]|[ ]-[ ])(?=\S)",
    re.IGNORECASE,
)
_CODED: Final = re.compile(
    r"\[?(?P<code>[A-Z]{1,8}\d{1,5}|invalid-syntax)(?:/[\w/-]{1,80})?(?P<end>:|\])?[ ](?:\[\*\][ ])?(?=\S)"
)
_PYLINT: Final = re.compile(r"[CRWEFI]\d{4}$")
_RAISED: Final = re.compile(r"(?P<code>[A-Za-z_][\w.]{0,100}(?:Error|Exception|Warning|Failed|Exit))(?=: |$)")
_LINKER: Final = ("undefined reference to", "multiple definition of", "first defined here", "undefined symbol")
_SECTION: Final = re.compile(r":\(\.[\w.]{1,60}\+0x[0-9a-f]{1,16}\):[ ]")
_SUFFIX: Final = re.compile(r"\.([A-Za-z][\w+-]{0,11})$")
_NAMES: Final = frozenset(
    ("Makefile", "makefile", "GNUmakefile", "Dockerfile", "Rakefile", "Gemfile", "justfile", "Justfile", "Jenkinsfile")
)
_C: Final = frozenset(
    [
        "c", "h", "cc", "cpp", "cxx", "hh", "hpp", "hxx", "m", "mm", "s", "S", "C", "H", "inc", "def", "y", "l", "cu",
        "f", "f90", "f95", "F90", "adb", "ads", "d",
    ]
)  # fmt: skip
_SOURCES: Final = {
    "java": "javac",
    "kt": "kotlinc",
    "kts": "kotlinc",
    "rs": "rustc",
    "zig": "zig",
    "swift": "swiftc",
    "go": "go",
    "scala": "scalac",
    "build": "meson",
    "sh": "shellcheck",
}
_FILE_LINE: Final = frozenset(["kt", "kts", "scala", "java"])
"""Suffixes for which the severity is printed before the position, not after it."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A position in a line with the text around it."""

    findings: Findings
    spot: Spot
    suffix: str
    rest: str
    gap: str
    """The text between the position and :attr:`rest`."""
    level: str | None
    """The severity, if it precedes the position."""

    @property
    def source(self) -> str | None:
        """The program that most likely prints such a position."""
        if self.suffix in _C:
            return "clang" if "clang" in self.findings.words else "gcc"
        if self.suffix == "py":
            return "pyright" if self.gap == " - " else "mypy"
        return _SOURCES.get(self.suffix)


class Located(Reader):
    """Reads diagnostics with a position in the line."""

    def read(self, line: str) -> bool:
        """Return True if *line* has a position followed by a diagnostic."""
        return any(
            rule(place)
            for match in islice(_COLONS.finditer(line), _PLACES)
            if (place := _place(self.findings, line, match)) is not None
            for rule in _RULES
        ) or _section(self.findings, line)


def _place(findings: Findings, line: str, match: re.Match[str]) -> _Place | None:
    before = _BEFORE.match(line)
    start = before.end() if before else 0
    file = line[start : match.start()].rpartition(": ")[2]
    if not file or file.startswith(("In file included from ", "from ")) or " | " in file or file.endswith(" "):
        return None
    if "://" in file and not file.startswith("file://"):
        return None
    name = file[file.rfind("/") + 1 :]
    suffix = _SUFFIX.search(name[-14:])
    if suffix is None and name not in _NAMES:
        return None
    level = (before["level"] or before["letter"]) if before else None
    spot = Spot(file, match["line"], match["column"], match["end_line"], match["end_column"])
    return _Place(findings, spot, suffix[1] if suffix else "", line[match.end() :], match["gap"], level)


def _severe(place: _Place) -> bool:
    match = _SEVERE.match(place.rest)
    if match is None or (place.gap == " " and match["code"] is None and match["number"] is None):
        return False
    message = place.rest[match.end() :]
    code = match["code"] or match["number"]
    source = "tsc" if match["number"] and code.startswith("TS") else place.source
    if source == "mypy" and match["code"]:
        source = "ty"
    spot = place.spot
    if place.suffix == "build":
        spot = spot.column_from_zero()
    elif source == "mypy":
        if code is None and message.endswith("]") and "  [" in message:
            message, _, found = message.rpartition("  [")
            code = found[:-1]
    elif code is None:
        message, code = trailing_code(message, "])" if source not in {"gcc", "clang"} else "]")
    place.findings.add(severity_of(match["severity"]), message, spot, code=code, source=source)
    return True


def _coded(place: _Place) -> bool:
    match = _CODED.match(place.rest)
    if match is None or " " in (place.spot.file or ""):
        return False
    code = match["code"]
    spot = place.spot
    message = place.rest[match.end() :]
    source = None
    if place.suffix in {"py", "pyi", "ipynb"}:
        source = "ruff" if "[*]" in place.rest or match["end"] == "]" or "ruff" in place.findings.words else "flake8"
        if code == "invalid-syntax":
            source = "ruff"
        elif match["end"] == ":" and _PYLINT.match(code):
            source = "pylint"
            spot = spot.column_from_zero()
            message, _ = trailing_code(message, ")")
    severity = severity_of("warning" if code[0] in "WCRI" and source != "ruff" else "error")
    place.findings.add(severity, message, spot, code=code, source=source)
    return True


def _raised(place: _Place) -> bool:
    match = _RAISED.match(place.rest)
    if match is None or place.suffix != "py" or place.gap == " ":
        return False
    code = match["code"]
    severity = severity_of("warning" if code.endswith("Warning") else "error")
    source = "pytest" if "pytest" in place.findings.words else "python"
    place.findings.add(severity, place.rest, place.spot, code=code, source=source)
    return True


def _make(place: _Place) -> bool:
    if not place.rest.startswith("*** "):
        return False
    place.findings.add("error", place.rest[4:].removesuffix("Stop."), place.spot, source="make")
    return True


def _linked(place: _Place) -> bool:
    if not place.rest.startswith(_LINKER):
        return False
    place.findings.add("error", place.rest, place.spot, source="ld")
    return True


def _go(place: _Place) -> bool:
    if place.suffix != "go" or place.gap[0] != ":" or " " in (place.spot.file or ""):
        return False
    message, code = trailing_code(place.rest, ")")
    linter = code is not None and code.isidentifier() and code.islower() and "golangci" in place.findings.words
    place.findings.add(
        "error",
        message if linter else place.rest,
        place.spot,
        code=code if linter else None,
        source="golangci-lint" if linter else "go",
    )
    return True


def _levelled(place: _Place) -> bool:
    if place.level is None or (place.gap == " " and place.suffix not in _FILE_LINE):
        return False
    message, code = trailing_code(place.rest, "]")
    place.findings.add(severity_of(place.level), message, place.spot, code=code, source=place.source)
    return True


_RULES: Final[tuple[Callable[[_Place], bool], ...]] = (
    _severe,
    _coded,
    _raised,
    _make,
    _linked,
    _levelled,
    _go,
)


def _section(findings: Findings, line: str) -> bool:
    """Add a linker error for an object without line numbers: ``a.c:(.text+0x9): undefined reference to `f'``."""
    match = _SECTION.search(line)
    if match is None:
        return False
    file = line[: match.start()].rpartition(": ")[2]
    findings.add("error", line[match.end() :], Spot(file), source="ld")
    return True


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
    """Reads diagnostics with the position in brackets."""

    def read(self, line: str) -> bool:
        """Return True if *line* is such a diagnostic."""
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


_HEAD: Final = re.compile(r"\s{0,4}(?P<severity>error|warning|note|help)(?:\[(?P<code>[\w:/-]{1,80})\])?: (?=\S)")
_CODE_HEAD: Final = re.compile(r"(?P<code>[A-Z]{1,8}\d{1,5}|invalid-syntax|unformatted):? (?:\[[*-]\] )?(?=\S)")
_ARROW: Final = re.compile(r"\s{0,12}(?:-->|╭▸|┌─|└─|╭─\[|at)\s{1,4}(?=\S)")
_PLACE: Final = re.compile(r":(?P<line>\d{1,9})(?::(?P<column>\d{1,9}))?(?=\]?$|: )")
_PANIC: Final = re.compile(r"thread '(?P<name>[^']{1,300})'(?: \(\d{1,20}\))? panicked at (?=\S)")
_DIFF: Final = re.compile(r"Diff in (?P<file>\S.*?)(?::| at line )(?P<line>\d{1,9}):$")
_SUMS: Final = ("aborting due to", "could not compile", "build failed", "test failed", "doctest failed", "`")
_LINES: Final = 12
"""Maximum number of lines from a message to its arrow."""
_ARROW_SOURCES: Final = {"py": "ruff", "rs": "rustc", "toml": "cargo"}
_SCRIPTS: Final = ("ts", "tsx", "js", "jsx", "mjs")


@dataclass(slots=True)
class _Pending:
    severity: str
    code: str | None
    message: str
    lines: int = 0


class Arrows(Reader):
    """Reads diagnostics with the position after an arrow."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._pending: _Pending | None = None
        self._panic: tuple[str, Spot] | None = None

    def read(self, line: str) -> bool:
        """Return True if *line* belongs to such a diagnostic."""
        if self._panic is not None:
            self._panicked(line)
            return True
        if self._pending is not None and self._place(line):
            return True
        head = _HEAD.match(line) or _CODE_HEAD.match(line)
        if head is not None:
            self._flush()
            severity = head.groupdict().get("severity") or "error"
            self._pending = _Pending(severity, head["code"], line[head.end() :])
            return True
        return line.startswith(("thread '", "Diff in ")) and (self._starts_panic(line) or self._differs(line))

    def end(self) -> None:
        """Add the pending message without a position."""
        self._flush()
        if self._panic is not None:
            self._panicked("")

    def _place(self, line: str) -> bool:
        pending = self._pending
        if pending is None:
            return False
        arrow = _ARROW.match(line)
        place = _PLACE.search(line, arrow.end()) if arrow else None
        if arrow is None or place is None:
            pending.lines += 1
            if not line.strip() or pending.lines > _LINES:
                self._flush()
            return False
        spot = Spot(line[arrow.end() : place.start()], place["line"], place["column"])
        suffix = (spot.file or "").rpartition(".")[2]
        source = _ARROW_SOURCES.get(suffix, "deno" if suffix in _SCRIPTS else None)
        self.findings.add(severity_of(pending.severity), pending.message, spot, code=pending.code, source=source)
        self._pending = None
        return True

    def _flush(self) -> None:
        """Add the pending message without a position, if it can be a diagnostic of its own."""
        pending, self._pending = self._pending, None
        if pending is None or pending.severity not in {"error", "warning"}:
            return
        cargo = self.findings.ecosystem == "cargo"
        source = "cargo" if cargo else None
        if pending.message.startswith(_SUMS):
            if pending.severity == "error":
                self.findings.last_resort(pending.message, source=source)
        elif pending.code is None and (cargo or pending.severity == "error"):
            self.findings.add(severity_of(pending.severity), pending.message, NOWHERE, source=source)

    def _starts_panic(self, line: str) -> bool:
        match = _PANIC.match(line)
        if match is None:
            return False
        name = "" if match["name"] == "main" else match["name"] + ": "
        rest = line[match.end() :].rstrip(":")
        message = None
        if rest.startswith("'"):
            message, _, rest = rest[1:].rpartition("', ")
        file, _, numbers = rest.partition(".rs:")
        row, _, column = numbers.partition(":")
        spot = Spot(file + ".rs", row, column)
        if message is None:
            self._panic = (name, spot)
        else:
            self.findings.add("error", name + message, spot, code="panic", source="rust")
        return True

    def _panicked(self, line: str) -> None:
        if self._panic is not None:
            name, spot = self._panic
            self.findings.add("error", name + (line.strip() or "panicked"), spot, code="panic", source="rust")
        self._panic = None

    def _differs(self, line: str) -> bool:
        match = _DIFF.match(line)
        if match is None:
            return False
        spot = Spot(match["file"], match["line"])
        self.findings.add("warning", "not formatted as rustfmt formats it", spot, source="rustfmt")
        return True


_ENTRY: Final = re.compile(
    r"\s{1,12}(?P<line>\d{1,9}):(?P<column>\d{1,9})\s{1,12}(?P<severity>error|warning|info|✖|×|⚠|ℹ)\s{1,12}(?=\S)"
)
_THROWN: Final = re.compile(
    r"\s{0,12}(?:Uncaught |error: )?(?P<code>[A-Z]\w{0,60}(?:Error|Exception)|Error)(?: \[\w{1,60}\])?: (?=\S)"
)
_AT: Final = re.compile(
    r"\s{1,40}at (?:[^(]{1,400}\()?(?P<file>[^()\s][^()]{0,1023}?):(?P<line>\d{1,9}):(?P<column>\d{1,9})\)?(?= \{|$)"
)
_ABOVE: Final = re.compile(r"(?P<file>/[^:]{1,1024}):(?P<line>\d{1,9})$")
_QUOTED: Final = 4
"""Maximum number of lines between the position, with the quoted line of code, and the exception."""
_BETWEEN: Final = 40
"""Maximum number of lines between an exception and its stack: the values that differ, and the code."""


class Lists(Reader):
    """Reads lists of findings below the name of a file."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._file: str | None = None

    def read(self, line: str) -> bool:
        """Return True if *line* is an entry of a list."""
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
    """Reads exceptions. Their position is the first frame in the project's own code, or the one above the exception."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._message: str | None = None
        self._code: str | None = None
        self._lines = 0
        self._foreign = False
        """True if frames were read, but none in the project's own code."""
        self._above: Spot | None = None
        """The position of the exception that node prints above the quoted line."""

    def read(self, line: str) -> bool:
        """Return True if *line* belongs to an exception."""
        raised = _THROWN.match(line)
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
        """End the last exception, which has no further frame."""
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
