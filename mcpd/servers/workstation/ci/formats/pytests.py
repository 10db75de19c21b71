# SPDX-License-Identifier: LGPL-2.1-or-later
"""What pytest says about tests that fail: the sections with their tracebacks, and the short summary."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.ci.formats.findings import Reader, Spot

if TYPE_CHECKING:
    from mcpd.servers.workstation.ci.formats.findings import Findings

_PLACE: Final = re.compile(r"(?P<file>[^\s:][^:]{0,1023}):(?P<line>\d{1,9}): ?(?P<what>[\w.]{0,200})(?=$|[ :])")
_FRAME: Final = re.compile(r'(?:E {2,9})?\s{0,12}File "(?P<file>[^"]{1,1024})", line (?P<line>\d{1,9})(?=$|, )')
_RAISED: Final = re.compile(r"(?P<code>[A-Za-z_][\w.]{0,200}(?:Error|Exception|Exit|Failed|Warning|Interrupt))(?=:|$)")
_TESTED: Final = re.compile(r"(?:FAILED|ERROR) (?P<file>[^\s:]{1,1024})(?:(?<=\.py)(?= - |$)|::(?P<name>[^ ]{1,500}))")
_ERROR_AT: Final = re.compile(r"ERROR (?:at (?:setup|teardown) of|collecting) ")
_MAX_NAMES: Final = 10_000


@dataclass(slots=True)
class _Section:
    """What is known of the test whose section is being read."""

    name: str
    collecting: bool
    last: Spot | None = None
    own: Spot | None = None
    first: str | None = None
    raised: str | None = None
    code: str | None = None


class Pytest(Reader):
    """Reads it. A failure is where its last frame in the project's own code is."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._section: _Section | None = None
        self._captured = False
        self._lines_of: dict[str, int] = {}
        """Of ``--tb=line``: how often a message was said with a place, but without the test's name."""
        self._named: dict[str, int] = {}
        self._unplaced: dict[str, tuple[str, str | None]] = {}
        """What is wrong with tests whose sections say no place; the summary says at least the file."""
        self._failures = False

    def read(self, line: str) -> bool:
        """Whether *line* is pytest's."""
        if "pytest" not in self.findings.words:
            return False
        if line.startswith("==="):
            self._close()
            title = line.strip("= ")
            self._failures = title in {"FAILURES", "ERRORS"}
            return self._failures
        title = line.strip("_") if line[:1] == "_" == line[-1:] and (self._failures or line.startswith("___")) else ""
        if title[:1] == " " == title[-1:] and title.strip():
            self._open(title.strip())
            return True
        if line.startswith(("FAILED ", "ERROR ")):
            return self._summary(line)
        if self._section is not None:
            self._inside(self._section, line)
            return True
        return self._failures and self._one_line(line)

    def end(self) -> None:
        """The last section ends with the output."""
        self._close()
        for name, (message, code) in self._unplaced.items():
            self.findings.add("error", f"{name}: {message}", code=code, source="pytest")

    def _open(self, title: str) -> None:
        self._close()
        error = _ERROR_AT.match(title)
        name = title[error.end() :] if error else title
        self._section = _Section(name, collecting=title.startswith("ERROR collecting "))
        self._captured = False

    def _inside(self, section: _Section, line: str) -> None:
        if line.startswith("---"):
            self._captured = "Captured" in line or self._captured
        if self._captured:
            return
        frame = _FRAME.match(line) or _PLACE.match(line)
        if frame is not None:
            section.last = Spot(frame["file"], frame["line"])
            if self.findings.is_own(frame["file"]):
                section.own = section.last
            what = frame.groupdict().get("what")
            if what and what != "in":
                section.code = what
        elif line.startswith("E  "):
            text = line[1:].strip()
            section.first = section.first or text
            self._raised(section, text)
        elif section.last is not None and line[:1].isalpha():
            self._raised(section, line)

    @staticmethod
    def _raised(section: _Section, text: str) -> None:
        raised = _RAISED.match(text)
        if raised is not None:
            section.raised = section.raised or text
            section.code = section.code or raised["code"]

    def _close(self) -> None:
        section, self._section = self._section, None
        if section is None:
            return
        message = section.raised or section.first or section.code or "failed"
        spot = section.own or section.last
        if section.collecting:
            spot = spot if section.own else Spot(section.name)
            message = f"cannot be collected: {message}"
        code = section.code if section.code != "AssertionError" else None
        if spot is None:
            if len(self._unplaced) < _MAX_NAMES:
                self._unplaced[section.name] = message, code
            return
        if not section.collecting:
            message = f"{section.name}: {message}"
        self.findings.add("error", message, spot, code=code, source="pytest")
        _count(self._named, section.name)

    def _one_line(self, line: str) -> bool:
        """``--tb=line``: the place of a failure and what was raised, without the test's name."""
        place = _PLACE.match(line)
        if place is None:
            return False
        message = line[place.start("what") :]
        self.findings.add("error", message, Spot(place["file"], place["line"]), source="pytest")
        _count(self._lines_of, message[:40])
        return True

    def _summary(self, line: str) -> bool:
        self._close()
        test = _TESTED.match(line)
        if test is None:
            return False
        message = line[test.end() :].removeprefix(" - ")
        name = (test["name"] or test["file"]).replace("::", ".")
        said, code = self._unplaced.pop(name, (message, None))
        if not _uncount(self._named, name) and not (message and _uncount(self._lines_of, message[:40])):
            text = f"{name}: {said or 'failed'}" if test["name"] else said or "cannot be collected"
            self.findings.add("error", text, Spot(test["file"]), code=code, source="pytest")
        return True


def _count(counts: dict[str, int], key: str) -> None:
    if len(counts) < _MAX_NAMES:
        counts[key] = counts.get(key, 0) + 1


def _uncount(counts: dict[str, int], key: str) -> bool:
    """Whether *key* was counted; once for each time that it was."""
    left = counts.get(key, 0)
    if left:
        counts[key] = left - 1
    return bool(left)
