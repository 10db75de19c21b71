# SPDX-License-Identifier: LGPL-2.1-or-later
"""Diagnostics of one line with a place in front, ``file:line:column: …``, as most compilers and linters print them.

The place is looked for, and the file is what stands before it: so names may have blanks and brackets, and no
expression has to find where a name ends. Each repetition in an expression has an end, and none is tried again: a line
takes time in proportion to its length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.ci.formats.findings import Reader, Spot, severity_of, trailing_code

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.servers.workstation.ci.formats.findings import Findings

_PLACES: Final = 4
"""Places in a line that are looked at; what stands in front of a diagnostic may look like one, such as the time."""
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
"""Suffixes of those that print no severity behind the place as they have printed it before."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A place in a line and what stands around it."""

    findings: Findings
    spot: Spot
    suffix: str
    rest: str
    gap: str
    """What stands between the place and :attr:`rest`."""
    level: str | None
    """The severity, if it stands in front."""

    @property
    def source(self) -> str | None:
        """The program that most likely prints such a place."""
        if self.suffix in _C:
            return "clang" if "clang" in self.findings.words else "gcc"
        if self.suffix == "py":
            return "pyright" if self.gap == " - " else "mypy"
        return _SOURCES.get(self.suffix)


class Located(Reader):
    """Reads them."""

    def read(self, line: str) -> bool:
        """Whether there is a place in *line* with something behind it that says what is wrong there."""
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
    """What the linker says about an object without line numbers: ``a.c:(.text+0x9): undefined reference to `f'``."""
    match = _SECTION.search(line)
    if match is None:
        return False
    file = line[: match.start()].rpartition(": ")[2]
    findings.add("error", line[match.end() :], Spot(file), source="ld")
    return True
