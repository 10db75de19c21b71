# SPDX-License-Identifier: LGPL-2.1-or-later
"""Diagnostics whose place follows on a line of its own behind an arrow, as rustc prints them, and panics of Rust.

Those of ruff, deno lint, ty and others look the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.ci.formats.findings import NOWHERE, Reader, Spot, severity_of

if TYPE_CHECKING:
    from mcpd.servers.workstation.ci.formats.findings import Findings

_HEAD: Final = re.compile(r"\s{0,4}(?P<severity>error|warning|note|help)(?:\[(?P<code>[\w:/-]{1,80})\])?: (?=\S)")
_CODE_HEAD: Final = re.compile(r"(?P<code>[A-Z]{1,8}\d{1,5}|invalid-syntax|unformatted):? (?:\[[*-]\] )?(?=\S)")
_ARROW: Final = re.compile(r"\s{0,12}(?:-->|╭▸|┌─|└─|╭─\[|at)\s{1,4}(?=\S)")
_PLACE: Final = re.compile(r":(?P<line>\d{1,9})(?::(?P<column>\d{1,9}))?(?=\]?$|: )")
_PANIC: Final = re.compile(r"thread '(?P<name>[^']{1,300})'(?: \(\d{1,20}\))? panicked at (?=\S)")
_DIFF: Final = re.compile(r"Diff in (?P<file>\S.*?)(?::| at line )(?P<line>\d{1,9}):$")
_SUMS: Final = ("aborting due to", "could not compile", "build failed", "test failed", "doctest failed", "`")
_LINES: Final = 12
"""Lines of a message in front of its arrow."""
_SOURCES: Final = {"py": "ruff", "rs": "rustc", "toml": "cargo"}
_SCRIPTS: Final = ("ts", "tsx", "js", "jsx", "mjs")


@dataclass(slots=True)
class _Pending:
    severity: str
    code: str | None
    message: str
    lines: int = 0


class Arrows(Reader):
    """Reads them."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._pending: _Pending | None = None
        self._panic: tuple[str, Spot] | None = None

    def read(self, line: str) -> bool:
        """Whether *line* belongs to one of these."""
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
        """What still waits for its place has none."""
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
        source = _SOURCES.get(suffix, "deno" if suffix in _SCRIPTS else None)
        self.findings.add(severity_of(pending.severity), pending.message, spot, code=pending.code, source=source)
        self._pending = None
        return True

    def _flush(self) -> None:
        """Take what waits for a place without one, if it can be a diagnostic on its own."""
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
