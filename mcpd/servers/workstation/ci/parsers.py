# SPDX-License-Identifier: LGPL-2.1-or-later
"""Diagnostics from the output of build tools, compilers, linters and test runners.

What a project runs is not known from its ecosystem alone: ``make`` may run anything, and ``npm test`` a compiler of C.
So each line is shown to the readers of all formats, the most particular first, until one understands it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.ci.formats.arrows import Arrows
from mcpd.servers.workstation.ci.formats.bracketed import Bracketed
from mcpd.servers.workstation.ci.formats.builds import Cmake, Directories, Programs
from mcpd.servers.workstation.ci.formats.documents import Documents, go_output, read_document, spans
from mcpd.servers.workstation.ci.formats.dotnet import DotnetTests
from mcpd.servers.workstation.ci.formats.findings import Findings
from mcpd.servers.workstation.ci.formats.go import GoTests
from mcpd.servers.workstation.ci.formats.jvm import Javac, JvmTests
from mcpd.servers.workstation.ci.formats.located import Located
from mcpd.servers.workstation.ci.formats.numbered import Numbered
from mcpd.servers.workstation.ci.formats.pytests import Pytest
from mcpd.servers.workstation.ci.formats.script_tests import ScriptTests
from mcpd.servers.workstation.ci.formats.scripts import Lists, Stacks
from mcpd.servers.workstation.ci.formats.tap import Tap
from mcpd.servers.workstation.ci.formats.tracebacks import Tracebacks

if TYPE_CHECKING:
    from mcpd.servers.workstation.ci.diagnostic import Diagnostic
    from mcpd.servers.workstation.ci.formats.findings import Reader

TELLING: Final = {
    "clang": ("clang",),
    "golangci": ("golangci",),
    "pytest": ("test session starts", "short test summary info", "warnings summary", "= FAILURES ="),
    "ruff": ("ruff", "All checks passed!", "\nFound "),
}
"""What in the output tells two programs apart that print the same format."""

_READERS: Final[tuple[type[Reader], ...]] = (
    Directories,
    Pytest,
    Documents,
    Tracebacks,
    Javac,
    Tap,
    GoTests,
    ScriptTests,
    Numbered,
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
_MAX_LINE: Final = 4096
"""Characters of a line of text that are looked at."""
_MAX_LINES: Final = 100_000
_MAX_BLANK: Final = 3
"""Blank lines after each other that mean more than fewer of them."""


def parse(ecosystem: str, output: str, directory: str) -> list[Diagnostic]:
    """The diagnostics in *output*: each once, in order, at most 1000.

    *output* is that of a command that ran in *directory*, an absolute path, without escape sequences. Files in the
    directory are named relative to it. *ecosystem* tells programs apart that say the same. What is not understood is
    passed over; of more than 100,000 lines, so are the first. The time is in proportion to the length of *output*,
    whatever it is.
    """
    output = _SURROGATES.sub("\ufffd", output)
    words = frozenset(word for word, signs in TELLING.items() if any(sign in output for sign in signs))
    findings = Findings(ecosystem, directory, words=words)
    readers = [kind(findings) for kind in _READERS]
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in output.rsplit("\n", _MAX_LINES)[-_MAX_LINES:]]
    documents = spans(lines)
    index = blank = 0
    while index < len(lines) and not findings.full:
        end = documents.get(index)
        if end is not None and read_document(findings, "\n".join(lines[index:end])):
            index = end
            continue
        blank = 0 if lines[index] else blank + 1
        if blank <= _MAX_BLANK:
            _read(readers, lines[index])
        index += 1
    for reader in readers:
        reader.end()
    return findings.diagnostics


def _read(readers: list[Reader], line: str) -> None:
    said = go_output(line)
    if said is not None:
        line = said.rstrip("\n")
    start = line[:_MAX_LINE]
    for reader in readers:
        if reader.read(line if isinstance(reader, Documents) else start):
            return
