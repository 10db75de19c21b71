# SPDX-License-Identifier: LGPL-2.1-or-later
"""Diagnostics from the output of build tools, compilers, linters and test runners.

The ecosystem alone does not determine what a project runs: ``make`` may run anything, and ``npm test`` a C compiler.
So each line is passed to the parsers of all formats, the most specific first, until one understands it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.ci.formats.builds import (
    Cargo,
    Cmake,
    Directories,
    DotnetTests,
    GoTests,
    Javac,
    JvmTests,
    Programs,
    is_cargo,
)
from mcpd.servers.workstation.ci.formats.compilers import Arrows, Bracketed, Lists, Located, Stacks
from mcpd.servers.workstation.ci.formats.findings import Findings
from mcpd.servers.workstation.ci.formats.tests import Mocha, Pytest, ScriptTests, Tap, Tracebacks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mcpd.servers.workstation.ci.formats.findings import Diagnostic, Reader

TELLING: Final = {
    "clang": ("clang",),
    "golangci": ("golangci",),
    "pytest": ("test session starts", "short test summary info", "warnings summary", "= FAILURES ="),
    "ruff": ("ruff", "All checks passed!", "\nFound "),
}
"""Words in the output that distinguish programs with the same format."""

_READERS: Final[tuple[type[Reader], ...]] = (
    Directories,
    Pytest,
    Tracebacks,
    Javac,
    Tap,
    GoTests,
    ScriptTests,
    Mocha,
    DotnetTests,
    Cmake,
    Bracketed,
    Located,
    Lists,
    Arrows,
    JvmTests,
    Stacks,
    Programs,
)
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
MAX_LINES: Final = 20_000
"""Maximum number of lines to parse, at the end."""
MAX_TEXT: Final = 1024 * 1024
"""Maximum number of characters to parse as text, at the end."""
_MAX_LINE: Final = 4096
"""Maximum number of characters to parse of a line of text."""
_MAX_BLANK: Final = 3
"""Number of consecutive blank lines above which further ones make no difference."""
_BETWEEN_CHECKS: Final = 256
"""Lines between two checks whether the call is over."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """The diagnostics found in output."""

    diagnostics: list[Diagnostic]
    """Unique, in order."""
    truncated: bool
    """True if there may be more: some output was not parsed, or too much was found."""


def parse(ecosystem: str, output: str, directory: str, *, check: Callable[[], None] = lambda: None) -> Parsed:
    """Return the diagnostics in *output*: at most 1000 of each severity.

    *output* is that of a command that ran in *directory*, an absolute path, without escape sequences. Files in the
    directory are named relative to it. *ecosystem* distinguishes programs with the same messages. Lines that no parser
    understands are ignored. *check* is called regularly and may raise to cancel. The time is bounded by
    :data:`MAX_LINES` and :data:`MAX_TEXT`, whatever the output is.
    """
    output = _SURROGATES.sub("\ufffd", output)
    words = frozenset(word for word, signs in TELLING.items() if any(sign in output for sign in signs))
    findings = Findings(ecosystem, directory, words=words)
    cargo, readers = Cargo(findings), [kind(findings) for kind in _READERS]
    before, *lines = output.rsplit("\n", MAX_LINES)
    if len(lines) < MAX_LINES:
        lines.insert(0, before)
        before = ""
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
    start = _start(lines)
    blank = 0
    for index in range(start, len(lines)):
        if index % _BETWEEN_CHECKS == 0:
            check()
        line = lines[index]
        blank = 0 if line else blank + 1
        if blank <= _MAX_BLANK and not cargo.read(line):
            _read(readers, line[:_MAX_LINE])
    for reader in readers:
        reader.end()
    return Parsed(findings.diagnostics, truncated=bool(before) or start > 0 or findings.truncated)


def _start(lines: Sequence[str]) -> int:
    """Return the index of the first of *lines* to parse."""
    left = MAX_TEXT
    for index in range(len(lines) - 1, -1, -1):
        line = lines[index]
        left -= 0 if is_cargo(line) else min(len(line), _MAX_LINE)
        if left < 0:
            return index + 1
    return 0


def _read(readers: Sequence[Reader], line: str) -> None:
    for reader in readers:
        if reader.read(line):
            return
