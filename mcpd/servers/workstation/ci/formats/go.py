# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tests that fail under ``go test``, and panics of Go. What the compiler and vet say is read in :mod:`.located`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.ci.formats.findings import NOWHERE, Reader, Spot

if TYPE_CHECKING:
    from mcpd.servers.workstation.ci.formats.findings import Findings

_RUN: Final = re.compile(r"=== (?:RUN|CONT|NAME) {1,4}(?P<name>\S{1,500})")
_RESULT: Final = re.compile(r"\s{0,40}--- (?P<result>FAIL|PASS|SKIP): (?P<name>\S{1,500}) \(")
_SAID: Final = re.compile(r"\s{4,44}(?P<file>[^\s:]{1,255}\.go):(?P<line>\d{1,9}): (?=\S)")
_FRAME: Final = re.compile(r"\t(?P<file>/.{1,1024}\.go):(?P<line>\d{1,9})(?= \+0x|$)")
_MAX_SAID: Final = 100
_MAX_TESTS: Final = 1000


class GoTests(Reader):
    """Reads them. With ``-v`` what a test says comes before its result, without it after that."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._running: str | None = None
        self._said: dict[str, list[tuple[str, Spot]]] = {}
        self._failed: str | None = None
        self._silent = False
        """Whether nothing was read of what the test that failed said."""
        self._panic: str | None = None

    def read(self, line: str) -> bool:
        """Whether *line* is about a test or a panic."""
        if line.startswith("=== ") and (run := _RUN.match(line)):
            self._running = run["name"]
            return True
        if "--- " in line and (result := _RESULT.match(line)):
            self._ended(result["name"], failed=result["result"] == "FAIL")
            return True
        if line.startswith(("panic: ", "fatal error: all goroutines")):
            self._flush()
            self._panic = line.partition(": ")[2].removesuffix(" [recovered]")
            return True
        if self._panic is not None:
            return self._frame(line)
        if line[:4].isspace() and (said := _SAID.match(line)):
            return self._says(line[said.end() :], Spot(said["file"], said["line"]))
        if line.startswith(("FAIL", "ok ", "PASS", "exit status")):
            self._flush()
        return False

    def end(self) -> None:
        """What failed last said nothing more."""
        self._flush()
        if self._panic is not None:
            self.findings.add("error", f"panic: {self._panic}", NOWHERE, code="panic", source="go")

    def _ended(self, name: str, *, failed: bool) -> None:
        said = self._said.pop(name, [])
        if self._failed is not None and name.startswith(self._failed + "/"):
            self._silent = False
        self._flush()
        self._running = None
        if not failed:
            return
        self._failed, self._silent = name, not said
        for message, spot in said:
            self.findings.add("error", f"{name}: {message}", spot, source="go test")

    def _says(self, message: str, spot: Spot) -> bool:
        if self._running is not None:
            if len(self._said) < _MAX_TESTS:
                said = self._said.setdefault(self._running, [])
                if len(said) < _MAX_SAID:
                    said.append((message, spot))
            return True
        if self._failed is None:
            return False
        self.findings.add("error", f"{self._failed}: {message}", spot, source="go test")
        self._silent = False
        return True

    def _flush(self) -> None:
        if self._failed is not None and self._silent:
            self.findings.last_resort(f"{self._failed}: failed", source="go test")
        self._failed = None
        self._silent = False

    def _frame(self, line: str) -> bool:
        frame = _FRAME.match(line)
        if frame is None:
            return False
        if self.findings.is_own(frame["file"]):
            spot = Spot(frame["file"], frame["line"])
            self.findings.add("error", f"panic: {self._panic}", spot, code="panic", source="go")
            self._panic = None
        return True
