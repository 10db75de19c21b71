# SPDX-License-Identifier: LGPL-2.1-or-later
"""Diagnostics in JSON: whole documents, and one object a line.

A document is what begins with a line ``[`` or ``{`` and goes on to the line ``]`` or ``}``, or is a line of its own:
so it is found among other output without trying. Only what is needed of it is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from mcpd.servers.workstation.ci.formats import compilers_json, linters_json
from mcpd.servers.workstation.ci.formats.findings import Reader

if TYPE_CHECKING:
    from mcpd.servers.workstation.ci.formats.findings import Findings

_ARRAYS: Final = linters_json.ARRAYS + compilers_json.ARRAYS
_OBJECTS: Final = linters_json.OBJECTS + compilers_json.OBJECTS


class _GoEvent(msgspec.Struct):
    Action: str
    Output: str = ""


_GO_EVENT: Final = msgspec.json.Decoder(_GoEvent)


class Documents(Reader):
    """Reads lines that are documents."""

    def read(self, line: str) -> bool:
        """Whether *line* is one."""
        return is_document(line) and read_document(self.findings, line)


def is_document(line: str) -> bool:
    """Whether *line* looks like a whole array or object that holds something."""
    return (line.startswith('{"') and line.endswith("}")) or (line.startswith(("[{", "[]")) and line.endswith("]"))


def read_document(findings: Findings, text: str) -> bool:
    """Whether *text* is a document of any form, which is taken then."""
    if text.startswith("["):
        return any(form.read(findings, text) for form in _ARRAYS)
    return any(hint in text and form.read(findings, text) for hint, form in _OBJECTS)


def go_output(line: str) -> str | None:
    """What ``go test -json`` says in *line*; None if it is none of its events (go.dev/cmd/test2json)."""
    if not line.startswith('{"') or '"Action":' not in line or not line.endswith("}"):
        return None
    try:
        event = _GO_EVENT.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None
    return event.Output if event.Action in {"output", "build-output"} else ""


def spans(lines: list[str]) -> dict[int, int]:
    """Where documents of several lines may be: the index of the first line of each, and that after its last."""
    found: dict[int, int] = {}
    opened: int | None = None
    for index, line in enumerate(lines):
        if line in {"[", "{"}:
            opened = index if opened is None or lines[opened] == line else opened
        elif line in {"]", "}"} and opened is not None and (line == "]") == (lines[opened] == "["):
            found[opened] = index + 1
            opened = None
    return found
