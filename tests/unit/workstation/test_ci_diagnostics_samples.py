# SPDX-License-Identifier: LGPL-2.1-or-later
"""What real programs print, and the diagnostics in it.

Below diagnostics_samples, in a directory named after the ecosystem, each file NAME.txt is the output of a program that
ran in /project, and NAME.expected has a line for each diagnostic.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.servers.workstation.ci.parsers import parse

if TYPE_CHECKING:
    from mcpd.servers.workstation.ci.formats.findings import Diagnostic

SAMPLES = Path(__file__).parent / "diagnostics_samples"
OUTPUTS = sorted(SAMPLES.glob("*/*.txt"))


def shown(found: Diagnostic) -> str:
    place = found.file or "-"
    for number in (found.line, found.column):
        place += f":{number}" if number else ""
    if found.end_line or found.end_column:
        place += f"-{found.end_line or ''}:{found.end_column or ''}"
    message = found.message.replace("\n", "\\n")
    return f"{found.severity} {place} [{found.code or '-'}] {found.source or '-'}: {message}"


@pytest.mark.parametrize("output", OUTPUTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_finds_what_a_program_says(output: Path) -> None:
    expected = output.with_suffix(".expected").read_text(encoding="utf-8").splitlines()
    text = output.read_text(encoding="utf-8")
    assert [shown(each) for each in parse(output.parent.name, text, "/project").diagnostics] == expected


@pytest.mark.parametrize("output", OUTPUTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_understands_lines_that_end_as_on_windows(output: Path) -> None:
    text = output.read_text(encoding="utf-8")
    found = parse(output.parent.name, text.replace("\n", "\r\n"), "/project")
    assert found == parse(output.parent.name, text, "/project")
