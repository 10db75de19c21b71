# SPDX-License-Identifier: LGPL-2.1-or-later
"""Failed tests of Python and JavaScript, and in the Test Anything Protocol."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.ci.formats.findings import Reader, Spot

if TYPE_CHECKING:
    from mcpd.servers.workstation.ci.formats.findings import Findings

_START: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'File "(?P<file>[^"]{1,1024})", line (?P<line>\d{1,9})(?=$|, in )')
_RAISED: Final = re.compile(r"(?P<code>[A-Za-z_][\w.]{0,200})(?=: |:?$)")
_TEST: Final = re.compile(r"(?:FAIL|ERROR): (?P<name>\w{1,200}) \((?P<where>[\w.<>]{1,400})\)")
_MAX_FRAMES: Final = 10_000


class Tracebacks(Reader):
    """Reads tracebacks. The position is the last frame in the project's own code."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._before: str | None = None
        """Prefix of each line of the current traceback, such as the bars of an exception group."""
        self._last: Spot | None = None
        self._own: Spot | None = None
        self._lines = 0
        self._test: str | None = None

    def read(self, line: str) -> bool:
        """Return True if *line* belongs to a traceback."""
        start = line.find(_START) if _START[:9] in line else -1
        if start >= 0:
            self._begin(line[:start])
            return True
        if line.startswith(("FAIL: ", "ERROR: ")):
            test = _TEST.match(line)
            self._test = test["name"] if test else None
            return test is not None
        if self._before is None:
            if not line.lstrip(" ").startswith('File "') or not line.startswith("  "):
                return False
            self._begin("")
        return self._inside(line)

    def _begin(self, before: str) -> None:
        self._before = before
        self._last = self._own = None
        self._lines = 0

    def _inside(self, line: str) -> bool:
        before = self._before or ""
        self._lines += 1
        if not line.startswith(before) or self._lines > _MAX_FRAMES:
            self._before = None
            return False
        rest = line[len(before) :]
        if rest.startswith(" "):
            self._frame(rest.strip())
            return True
        self._before = None
        raised = _RAISED.match(rest)
        if raised is None or self._last is None:
            return rest.startswith("[Previous line repeated")
        message = f"{self._test}: {rest}" if self._test else rest
        source = "unittest" if self._test else "python"
        self.findings.add("error", message, self._own or self._last, code=raised["code"], source=source)
        self._test = None
        return True

    def _frame(self, text: str) -> None:
        frame = _FRAME.match(text)
        if frame is None:
            return
        self._last = Spot(frame["file"], frame["line"])
        if self.findings.is_own(frame["file"]):
            self._own = self._last


_PYTEST_PLACE: Final = re.compile(r"(?P<file>[^\s:][^:]{0,1023}):(?P<line>\d{1,9}): ?(?P<what>[\w.]{0,200})(?=$|[ :])")
_PYTEST_FRAME: Final = re.compile(r'(?:E {2,9})?\s{0,12}File "(?P<file>[^"]{1,1024})", line (?P<line>\d{1,9})(?=$|, )')
_PYTEST_RAISED: Final = re.compile(
    r"(?P<code>[A-Za-z_][\w.]{0,200}(?:Error|Exception|Exit|Failed|Warning|Interrupt))(?=:|$)"
)
_TESTED: Final = re.compile(r"(?:FAILED|ERROR) (?P<file>[^\s:]{1,1024})(?:(?<=\.py)(?= - |$)|::(?P<name>[^ ]{1,500}))")
_ERROR_AT: Final = re.compile(r"ERROR (?:at (?:setup|teardown) of|collecting) ")
_MAX_NAMES: Final = 10_000


@dataclass(slots=True)
class _Section:
    """The test whose section is being read."""

    name: str
    collecting: bool
    last: Spot | None = None
    own: Spot | None = None
    first: str | None = None
    raised: str | None = None
    code: str | None = None


class Pytest(Reader):
    """Reads output of pytest. The position of a failure is its last frame in the project's own code."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._section: _Section | None = None
        self._captured = False
        self._lines_of: dict[str, int] = {}
        """With ``--tb=line``: how often a message occurred with a position, but without the name of the test."""
        self._named: dict[str, int] = {}
        self._unplaced: dict[str, tuple[str, str | None]] = {}
        """Messages of tests whose sections have no position; the summary has at least the file."""
        self._failures = False

    def read(self, line: str) -> bool:
        """Return True if *line* is pytest's."""
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
        """End the last section with the output, and add the failures without a position."""
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
        frame = _PYTEST_FRAME.match(line) or _PYTEST_PLACE.match(line)
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
        raised = _PYTEST_RAISED.match(text)
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
        """Parse a line of ``--tb=line``: the position of a failure and the exception, without the name of the test."""
        place = _PYTEST_PLACE.match(line)
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
    """Decrement the count of *key* and return True, or return False if it is 0."""
    left = counts.get(key, 0)
    if left:
        counts[key] = left - 1
    return bool(left)


_NUMBER: Final = re.compile(r"\s{0,8}\d{1,6}\) (?=\S)")
_MOCHA_FRAME: Final = re.compile(
    r"\s{1,40}at (?:[^(]{1,400}\()?(?P<file>[^()\s][^()]{0,1023}?):(?P<line>\d{1,9}):(?P<column>\d{1,9})\)?$"
)
_INDENTED: Final = " " * 6
"""Minimum indentation of the message."""
_LINES: Final = 4
_GIVE_UP: Final = 200
"""Lines without a position after which the number was not that of a failure."""


class Mocha(Reader):
    """Reads failures of Mocha. Their position is the first frame in the project's own code."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._title: str | None = None
        self._message: list[str] = []
        self._lines = 0

    def read(self, line: str) -> bool:
        """Return True if *line* belongs to a failure."""
        if ") " in line[:16] and (number := _NUMBER.match(line)):
            self._title = line[number.end() :]
            self._message = []
            self._lines = 0
            return True
        return self._title is not None and self._inside(self._title, line)

    def _inside(self, title: str, line: str) -> bool:
        self._lines += 1
        if self._lines > _GIVE_UP:
            self._title = None
            return False
        frame = _MOCHA_FRAME.match(line)
        if frame is not None:
            if self.findings.is_own(frame["file"]):
                message = "\n".join(self._message) or "failed"
                self.findings.add("error", f"{title}: {message}", Spot(**frame.groupdict()), source="mocha")
                self._title = None
            return True
        text = line.strip()
        if text and text != "+ expected - actual" and len(self._message) < _LINES:
            self._message.append(text)
        return line.startswith(_INDENTED)


_JEST: Final = re.compile(r"\s{1,8}● (?P<title>\S.*)")
_FAIL: Final = re.compile(r" ?FAIL {1,3}(?P<rest>\S.*)")
_SPEC: Final = re.compile(r"\s{0,40}✖ (?P<title>\S.*) \(\d[\d.]{0,20}ms\)$")
_JEST_PLACE: Final = re.compile(
    r"\s{1,40}(?:at|❯) (?:[^(]{1,400}[( ])?(?P<file>[^()\s:][^()\s]{0,1023}?):(?P<line>\d{1,9}):(?P<column>\d{1,9})\)?"
    r"(?= \{|$)"
)
_JEST_RAISED: Final = re.compile(r"(?P<code>[A-Z]\w{0,60}(?:Error|Exception)|Error)(?: \[\w{1,60}\])?: ")
_MORE: Final = ("Expected", "Received", "- ", "+ ")
_ENDS: Final = ("Test Suites:", "Tests:", "Snapshots:", "⎯⎯", " Test Files ")
_NO_TESTS: Final = frozenset({"Console", "Validation Warning:", "Deprecation Warning:"})
_MAX_LINES: Final = 5


class ScriptTests(Reader):
    """Reads tests of other JavaScript runners. A failure's position is the first frame in the project's own code."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._title: str | None = None
        self._source = ""
        self._file: str | None = None
        """The file of the test, if no frame gives a better position."""
        self._message: list[str] = []
        self._lines = 0

    def read(self, line: str) -> bool:
        """Return True if *line* is about a test that failed."""
        if ("●" in line or "✖" in line or "FAIL" in line[:6]) and self._opens(line):
            return True
        if self._title is None:
            return False
        if line.startswith(_ENDS):
            self._flush()
            return False
        return self._inside(line)

    def end(self) -> None:
        """End the last test with the output."""
        self._flush()

    def _opens(self, line: str) -> bool:
        match = _JEST.match(line)
        if match is not None:
            self._flush()
            self._lines = 0
            self._source = "jest"
            self._title = match["title"] if match["title"] not in _NO_TESTS else None
            return True
        match = _SPEC.match(line)
        if match is not None:
            self._flush()
            self._lines = 0
            self._source, self._title, self._file = "node:test", match["title"], None
            return True
        match = _FAIL.match(line)
        if match is None:
            return False
        self._flush()
        self._lines = 0
        file, found, title = match["rest"].partition(" > ")
        self._file = file.rpartition("| ")[2].strip() if found else file.partition(" (")[0].partition(" [")[0].strip()
        if found:
            self._source, self._title = "vitest", title
        return True

    def _inside(self, line: str) -> bool:
        self._lines += 1
        if self._lines > _GIVE_UP or (self._source != "vitest" and line and not line.startswith(" ")):
            self._flush()
            return False
        if not line.strip():
            return True
        place = _JEST_PLACE.match(line)
        if place is not None:
            if self._message and self.findings.is_own(place["file"]):
                self._take(Spot(place["file"], place["line"], place["column"]))
            return True
        text = line.strip()
        if " - error TS" in text:
            self._title = None
            return False
        if not self._message or (len(self._message) < _MAX_LINES and text.startswith(_MORE)):
            self._message.append(text)
        return True

    def _take(self, spot: Spot) -> None:
        raised = _JEST_RAISED.match(self._message[0]) if self._message else None
        code = raised["code"] if raised else None
        message = "\n".join(self._message) or "failed"
        self.findings.add("error", f"{self._title}: {message}", spot, code=code, source=self._source)
        self._title = None
        self._message = []

    def _flush(self) -> None:
        """Add the test, if a position or at least its file is known: otherwise it may not be a test."""
        if self._title is not None and self._file is not None:
            self._take(Spot(self._file))
        self._title = None
        self._message = []


_NOT_OK: Final = re.compile(r"\s{0,40}not ok(?: (?P<number>\d{1,9}))?(?: - | |$)(?P<name>.*)")
_KEY: Final = re.compile(
    r"\s{1,80}(?P<key>location|error|message|failureType|file|line|column|code|stack|name): ?(?P<value>.*)"
)
_TAP_PLACE: Final = re.compile(r":(?P<line>\d{1,9})(?::(?P<column>\d{1,9}))?\)?$")
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
    """True if it failed only because tests within it did."""
    details: bool = False
    """True while its YAML is being read."""
    key: str = ""
    """The key whose value, of several lines, is being read."""


class Tap(Reader):
    """Reads the Test Anything Protocol."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._test: _Test | None = None

    def read(self, line: str) -> bool:
        """Return True if *line* is about a test that failed."""
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
        """End the last test with the output."""
        self._flush()

    def _below(self, test: _Test, line: str) -> bool:
        """Parse an indented line: YAML, a test within this one, or from Mocha the exception and its stack."""
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
        place = _TAP_PLACE.search(text[-1100:])
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
