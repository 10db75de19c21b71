# SPDX-License-Identifier: LGPL-2.1-or-later
"""Failures that are numbered, ``1) name``, with what was wrong and where below: RSpec, minitest, PHPUnit and Mocha."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.ci.formats.findings import Reader, Spot

if TYPE_CHECKING:
    from mcpd.servers.workstation.ci.formats.findings import Findings

_NUMBER: Final = re.compile(r"\s{0,8}\d{1,6}\) (?=\S)")
_RSPEC: Final = re.compile(r"\s{1,20}# (?P<file>\S{1,1024}\.rb):(?P<line>\d{1,9})(?=:in |$)")
_PHPUNIT: Final = re.compile(r"(?P<file>/.{1,1024}\.php):(?P<line>\d{1,9})$")
_MOCHA: Final = re.compile(
    r"\s{1,40}at (?:[^(]{1,400}\()?(?P<file>[^()\s][^()]{0,1023}?):(?P<line>\d{1,9}):(?P<column>\d{1,9})\)?$"
)
_MINITEST: Final = re.compile(r"(?P<name>[\w:]{1,300}#\S{1,300}) \[(?P<file>[^\]:]{1,1024}):(?P<line>\d{1,9})\]:$")
_MINITEST_ERROR: Final = re.compile(r"\s{1,12}(?P<file>[^\s:]{1,1024}\.rb):(?P<line>\d{1,9}):in ")
_PLACES: Final = (("rspec", _RSPEC), ("phpunit", _PHPUNIT), ("mocha", _MOCHA), ("minitest", _MINITEST_ERROR))
_AGAIN: Final = re.compile(r"rspec (?P<file>\S{1,1024}\.rb):(?P<line>\d{1,9}) # (?=\S)")
_INDENTED: Final = " " * 6
"""How far RSpec and Mocha indent what is wrong, at least."""
_LINES: Final = 4
_GIVE_UP: Final = 200
"""Lines without a place after which the number was that of something else."""
_MAX_NAMES: Final = 10_000


class Numbered(Reader):
    """Reads them. A failure is where the first frame in the project's own code is."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._title: str | None = None
        self._message: list[str] = []
        self._lines = 0
        self._spot: Spot | None = None
        """Where minitest says the failure is, before it says what is wrong."""
        self._known: set[str] = set()

    def read(self, line: str) -> bool:
        """Whether *line* belongs to a failure."""
        if ") " in line[:16] and (number := _NUMBER.match(line)):
            self._flush()
            self._title = line[number.end() :]
            self._message = []
            self._lines = 0
            return True
        if line.startswith("rspec ") and (again := _AGAIN.match(line)):
            return self._repeated(line[again.end() :], Spot(again["file"], again["line"]))
        return self._title is not None and self._inside(self._title, line)

    def end(self) -> None:
        """The last failure ends with the output."""
        self._flush()

    def _inside(self, title: str, line: str) -> bool:
        self._lines += 1
        if self._lines > _GIVE_UP:
            self._title = None
            return False
        text = line.strip()
        if self._spot is not None:
            if text and len(self._message) < _LINES:
                self._message.append(text)
            else:
                self._flush()
            return True
        test = _MINITEST.match(line)
        if test is not None:
            self._title = test["name"]
            self._spot = Spot(test["file"], test["line"])
            self._message = []
            return True
        for source, form in _PLACES:
            place = form.match(line)
            if place is not None:
                if self.findings.is_own(place["file"]):
                    self._take(title, Spot(**place.groupdict()), source)
                return True
        if text and text != "+ expected - actual" and len(self._message) < _LINES:
            self._message.append(text)
        return line.startswith(_INDENTED)

    def _take(self, title: str, spot: Spot, source: str) -> None:
        if title == "Error:" and self._message:
            title = self._message.pop(0).rstrip(":")
        message = "\n".join(self._message) or "failed"
        self.findings.add("error", f"{title}: {message}", spot, source=source)
        if len(self._known) < _MAX_NAMES:
            self._known.add(title)
        self._title = self._spot = None
        self._message = []

    def _flush(self) -> None:
        if self._title is not None and self._spot is not None:
            self._take(self._title, self._spot, "minitest")

    def _repeated(self, title: str, spot: Spot) -> bool:
        """RSpec's list of examples at its end: only what was not said before."""
        if title not in self._known:
            self.findings.add("error", f"{title}: failed", spot, source="rspec")
        return True
