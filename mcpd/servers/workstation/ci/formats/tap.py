# SPDX-License-Identifier: LGPL-2.1-or-later
"""The Test Anything Protocol (testanything.org, versions 12 to 14), as node's own runner and Mocha write it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.ci.formats.findings import Reader, Spot

if TYPE_CHECKING:
    from mcpd.servers.workstation.ci.formats.findings import Findings

_NOT_OK: Final = re.compile(r"\s{0,40}not ok(?: (?P<number>\d{1,9}))?(?: - | |$)(?P<name>.*)")
_KEY: Final = re.compile(
    r"\s{1,80}(?P<key>location|error|message|failureType|file|line|column|code|stack|name): ?(?P<value>.*)"
)
_PLACE: Final = re.compile(r":(?P<line>\d{1,9})(?::(?P<column>\d{1,9}))?\)?$")
_WITHIN: Final = ("ok ", "1..", "# ")
_DIRECTIVES: Final = ("# todo", "# skip")


@dataclass(slots=True)
class _Test:
    name: str
    number: str = ""
    spot: Spot | None = None
    message: str | None = None
    code: str | None = None
    holds_others: bool = False
    """Whether it failed only because tests within it did."""
    details: bool = False
    """Whether its YAML is being read."""
    key: str = ""
    """Whose value, of several lines, is being read."""


class Tap(Reader):
    """Reads it."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._test: _Test | None = None

    def read(self, line: str) -> bool:
        """Whether *line* is about a test that failed."""
        if self._test is not None and self._test.details and (not line or line[0] == " "):
            self._detail(self._test, line)
            return True
        if "not ok" in line and (match := _NOT_OK.match(line)):
            self._flush()
            name = match["name"].strip()
            if not any(each in name.lower() for each in _DIRECTIVES):
                self._test = _Test(name, match["number"] or "")
            return True
        if self._test is not None and (not line or line.startswith("  ")):
            return self._below(self._test, line)
        self._flush()
        return False

    def end(self) -> None:
        """The last test ends with the output."""
        self._flush()

    def _below(self, test: _Test, line: str) -> bool:
        """What is indented: YAML, tests within this one, or, from Mocha, what was thrown and its stack."""
        text = line.strip()
        if text == "---":
            test.details = True
        elif text.startswith(_WITHIN):
            self._flush()
            return False
        elif text.startswith("at "):
            self._frame(test, text)
            if test.spot is not None:
                self._flush()
        elif text:
            test.message = test.message or text
        return True

    def _detail(self, test: _Test, line: str) -> None:
        text = line.strip()
        match = _KEY.match(line)
        if text == "...":
            self._flush()
        elif test.key in {"error", "message"}:
            test.message = test.message or text
            test.key = test.key if not text else ""
        elif match is not None:
            self._value(test, match["key"], match["value"].strip())
        elif test.key == "stack":
            self._frame(test, text)

    def _value(self, test: _Test, key: str, value: str) -> None:
        test.key = key if value.startswith(("|", ">")) else ""
        if test.key:
            return
        value = value.strip("'\"")
        if key in {"error", "message"}:
            test.message = test.message or value
        elif key == "failureType":
            test.holds_others = value == "subtestsFailed"
        elif key == "location":
            self._frame(test, value)
        elif key == "file":
            test.spot = Spot(value, test.spot.line if test.spot else None)
        elif key == "line":
            test.spot = Spot(test.spot.file if test.spot else None, value)
        elif key == "name":
            test.code = value if value.endswith(("Error", "Exception")) else None

    def _frame(self, test: _Test, text: str) -> None:
        place = _PLACE.search(text[-1100:])
        if place is None:
            return
        file = text[-1100:][: place.start()].rpartition("(")[2].removeprefix("at ")
        if self.findings.is_own(file):
            test.spot = Spot(file, place["line"], place["column"])
            test.key = ""

    def _flush(self) -> None:
        test, self._test = self._test, None
        if test is None or test.holds_others:
            return
        name = test.name or (f"test {test.number}" if test.number else "a test")
        message = f"{name}: {test.message or 'failed'}"
        self.findings.add("error", message, test.spot or Spot(), code=test.code, source="tap")
