# SPDX-License-Identifier: LGPL-2.1-or-later
"""Diagnostics of build programs: make, CMake, shells, cargo, Go, .NET, and Java."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BaseModel, FailFast, ValidationError

from mcpd.servers.workstation.ci.formats.findings import NOWHERE, Reader, Spot, severity_of

if TYPE_CHECKING:
    from mcpd.servers.workstation.ci.formats.findings import Findings

_DIRECTORY: Final = re.compile(
    r"\w{1,20}(?:\[\d{1,4}\])?: (?P<verb>Entering|Leaving) directory ['`](?P<path>/[^']{0,1023})'$"
)
_TARGET: Final = re.compile(
    r"\w{1,20}(?:\[\d{1,4}\])?: \*\*\* (?:\[(?:(?P<file>[^\]:]{1,1024}):(?P<line>\d{1,9}): )?"
    r"(?P<target>[^\]]{1,1024})\] )?(?=\S)"
)
_CMAKE: Final = re.compile(
    r"CMake (?P<severity>Error|Warning|Deprecation Warning)(?: \((?:dev|deprecated)\))?"
    r"(?: (?:at|in) (?P<file>[^:]{1,1024})(?::(?P<line>\d{1,9}) \([^)]{0,200}\))?)?:(?P<message> \S.*)?$"
)
_CTEST: Final = re.compile(r"\s{1,8}\d{1,6} - (?P<name>\S.{0,300}) \((?P<how>[\w ]{1,40})\)$")
_PROGRAM: Final = re.compile(
    r"(?P<program>[A-Za-z_/][\w./+-]{0,100}): (?P<severity>fatal error|error|warning|fatal): (?=\S)"
)
_LINKER: Final = re.compile(r"(?:[\w./+-]{0,100}[/-])?ld(?:\.\w{1,8})?: (?=cannot find |library not found )")
_NUMBERED: Final = re.compile(r"(?P<severity>error|warning) (?P<code>[A-Z]{1,10}\d{1,6}): (?=\S)")
_SHELL: Final = re.compile(r"(?P<file>[^\s:][^:\n]{0,255}): (?:line )?(?P<line>\d{1,9}): (?=\S)")
_SHELL_SAYS: Final = ("syntax error", "Syntax error", "unexpected EOF", "unbound variable", "parameter not set")
_NOT_FOUND: Final = (": command not found", ": not found", ": No such file or directory", ": Permission denied")
_LINKERS: Final = ("collect2", "ld", "clang", "clang++", "gcc", "g++", "cc", "c++")
_REFORMAT: Final = ("Would reformat: ", "would reformat ")
_MAX_DEPTH: Final = 100
_MAX_LINES: Final = 20


class Directories(Reader):
    """Follows the directory changes that make prints, as paths are relative to the current directory."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._left: list[str] = []

    def read(self, line: str) -> bool:
        """Return True if *line* is a message of make about a directory."""
        match = _DIRECTORY.match(line) if line.endswith("'") and " directory " in line else None
        if match is None:
            return False
        if match["verb"] == "Entering":
            if len(self._left) < _MAX_DEPTH:
                self._left.append(self.findings.base)
            self.findings.base = match["path"]
        elif self._left:
            self.findings.base = self._left.pop()
        return True


class Cmake(Reader):
    """Reads messages of CMake, which are indented below a line with their position, and of CTest."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._severity: str | None = None
        self._spot = NOWHERE
        self._message: list[str] = []
        self._failed = False

    def read(self, line: str) -> bool:
        """Return True if *line* belongs to a message."""
        if line.startswith("CMake ") and (match := _CMAKE.match(line)):
            self._flush()
            self._severity = match["severity"].rpartition(" ")[2]
            self._spot = Spot(match["file"], match["line"]) if match["file"] else NOWHERE
            self._message = [match["message"].strip()] if match["message"] else []
            return True
        if line == "The following tests FAILED:":
            self._failed = True
            return True
        if self._failed and (test := _CTEST.match(line)):
            self.findings.add("error", f"{test['name']}: {test['how']}", source="ctest")
            return True
        if self._severity is None:
            return False
        if (line and not line.startswith("  ")) or len(self._message) > _MAX_LINES:
            self._flush()
            return False
        if line.strip():
            self._message.append(line.strip())
        elif self._message and not self._message[-1]:
            self._flush()
        else:
            self._message.append("")
        return True

    def end(self) -> None:
        """End the last message with the output."""
        self._flush()

    def _flush(self) -> None:
        if self._severity is not None:
            message = "\n".join(self._message)
            self.findings.add(severity_of(self._severity), message, self._spot, source="cmake")
        self._severity = None
        self._message = []


class Programs(Reader):
    """Reads other errors in one line, with the name of a program or only a severity."""

    def read(self, line: str) -> bool:
        """Return True if *line* is such an error."""
        return (
            ("*** " in line and self._target(line))
            or (": " in line and (self._program(line) or self._shell(line)))
            or (line.startswith(_REFORMAT) and self._reformat(line))
        )

    def _target(self, line: str) -> bool:
        match = _TARGET.match(line)
        if match is None:
            return False
        message = line[match.end() :].removesuffix("Stop.")
        if match["target"] is None:
            self.findings.add("error", message, source="make")
        else:
            spot = Spot(match["file"], match["line"]) if match["file"] else NOWHERE
            self.findings.last_resort(f"{match['target']}: {message}", spot, source="make")
        return True

    def _program(self, line: str) -> bool:
        numbered = _NUMBERED.match(line)
        if numbered is not None:
            code = numbered["code"]
            source = "tsc" if code.startswith("TS") else "dotnet"
            self.findings.add(severity_of(numbered["severity"]), line[numbered.end() :], code=code, source=source)
            return True
        linker = _LINKER.match(line)
        if linker is not None:
            self.findings.add("error", line[linker.end() :], source="ld")
            return True
        match = _PROGRAM.match(line)
        if match is None:
            return False
        source = match["program"].rpartition("/")[2]
        message = line[match.end() :]
        if source in _LINKERS and ("returned" in message or "linker command failed" in message):
            self.findings.last_resort(message, source=source)
        else:
            self.findings.add(severity_of(match["severity"]), message, source=source)
        return True

    def _shell(self, line: str) -> bool:
        match = _SHELL.match(line)
        if match is None:
            return False
        message = line[match.end() :]
        spot = Spot(match["file"], match["line"])
        if message.startswith(_SHELL_SAYS):
            self.findings.add("error", message, spot, source="sh")
            return True
        if message.endswith(_NOT_FOUND):
            self.findings.last_resort(message, spot, source="sh")
            return True
        return False

    def _reformat(self, line: str) -> bool:
        """Add a finding for a message of ``ruff format --check`` or ``black --check``."""
        file = line[len(_REFORMAT[0]) - (line[0] == "w") :]
        source = "black" if line[0] == "w" else "ruff"
        self.findings.add("warning", "not formatted", Spot(file), source=source)
        return True


_START: Final = '{"reason":"'
_MESSAGE: Final = '{"reason":"compiler-message",'
_MAX_LINE: Final = 256 * 1024
"""Maximum length of a line to decode, in characters, as decoding blocks other threads."""


class _Code(BaseModel):
    code: str


class _Span(BaseModel):
    file_name: str
    is_primary: bool = False
    line_start: int | None = None
    line_end: int | None = None
    column_start: int | None = None
    column_end: int | None = None


class _Message(BaseModel):
    message: str
    level: str
    spans: Annotated[list[_Span], FailFast()] = []
    code: _Code | None = None


class _Line(BaseModel):
    message: _Message


def is_cargo(line: str) -> bool:
    """Return True if *line* is JSON of cargo, which begins with the reason."""
    return line.startswith(_START)


class Cargo(Reader):
    """Reads the JSON messages of cargo."""

    def read(self, line: str) -> bool:
        """Return True if *line*, which must be complete, is cargo's."""
        if not is_cargo(line):
            return False
        if line.startswith(_MESSAGE) and len(line) <= _MAX_LINE:
            try:
                self._take(_Line.model_validate_json(line).message)
            except ValidationError:
                # The line is cut off, or only looks like cargo's: ignore it.
                return True
        return True

    def _take(self, message: _Message) -> None:
        if not message.spans and message.code is None:
            if message.level == "error":
                self.findings.last_resort(message.message, source="rustc")
            return
        spot = NOWHERE
        span = next((span for span in message.spans if span.is_primary), next(iter(message.spans), None))
        if span is not None:
            spot = Spot(span.file_name, span.line_start, span.column_start, span.line_end, span.column_end)
        code = message.code.code if message.code else None
        severity = severity_of(message.level.partition(":")[0])
        self.findings.add(severity, message.message, spot, code=code, source="rustc")


_RUN: Final = re.compile(r"=== (?:RUN|CONT|NAME) {1,4}(?P<name>\S{1,500})")
_RESULT: Final = re.compile(r"\s{0,40}--- (?P<result>FAIL|PASS|SKIP): (?P<name>\S{1,500}) \(")
_SAID: Final = re.compile(r"\s{4,44}(?P<file>[^\s:]{1,255}\.go):(?P<line>\d{1,9}): (?=\S)")
_FRAME: Final = re.compile(r"\t(?P<file>/.{1,1024}\.go):(?P<line>\d{1,9})(?= \+0x|$)")
_MAX_SAID: Final = 100
_MAX_TESTS: Final = 1000


class GoTests(Reader):
    """Reads tests of Go. With ``-v`` the output of a test precedes its result, otherwise it follows."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._running: str | None = None
        self._said: dict[str, list[tuple[str, Spot]]] = {}
        self._failed: str | None = None
        self._silent = False
        """True if no output of the failed test has been read."""
        self._panic: str | None = None

    def read(self, line: str) -> bool:
        """Return True if *line* is about a test or a panic."""
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
        """End the output of the last failed test."""
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


_FAILED: Final = re.compile(
    r"  (?:Failed|\[FAIL\]) (?P<name>\S.{0,500}) \[(?:< )?\d[\d.,]{0,12} (?:ms|s|m|h)(?: \d{1,6} (?:ms|s|m))?\]$"
)
_THROWN: Final = re.compile(r"Unhandled exception\. (?P<code>[\w.]{1,200}): (?=\S)")
_LINE: Final = re.compile(r":line (?P<line>\d{1,9})$")
_DOTNET_LINES: Final = 4
_GIVE_UP: Final = 200
"""Lines after which the rest no longer belongs to a failure."""


class DotnetTests(Reader):
    """Reads failed tests and exceptions of .NET."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._title: str | None = None
        self._code: str | None = None
        self._message: list[str] = []
        self._stack = False
        self._lines = 0

    def read(self, line: str) -> bool:
        """Return True if *line* is about a test that failed, or an exception."""
        if line.startswith("  ") and (failed := _FAILED.match(line)):
            self._flush(NOWHERE)
            self._title = failed["name"]
            return True
        if line.startswith("Unhandled ") and (thrown := _THROWN.match(line)):
            self._flush(NOWHERE)
            self._title, self._code, self._stack = "", thrown["code"], True
            self._message = [line[thrown.start("code") :]]
            return True
        if self._title is None:
            return False
        self._lines += 1
        if self._lines > _GIVE_UP:
            self._flush(NOWHERE)
            return False
        text = line.strip()
        if text == "Stack Trace:":
            self._stack = True
        elif self._stack:
            return self._frame(line)
        elif text and text != "Error Message:" and len(self._message) < _DOTNET_LINES:
            self._message.append(text)
        return True

    def end(self) -> None:
        """End the last failure, which has no further frame."""
        self._flush(NOWHERE)

    def _frame(self, line: str) -> bool:
        line_number = _LINE.search(line[-16:])
        head, _, file = line.partition(":line ")[0].rpartition(" in ")
        if line_number is not None and head and self.findings.is_own(file):
            self._flush(Spot(file, line_number["line"]))
        elif not line.lstrip().startswith(("at ", "---")):
            self._flush(NOWHERE)
            return False
        return True

    def _flush(self, spot: Spot) -> None:
        title, self._title = self._title, None
        message = "\n".join(self._message) or "failed"
        if title is not None:
            text = f"{title}: {message}" if title else message
            self.findings.add("error", text, spot, code=self._code, source="dotnet")
        self._message = []
        self._lines = 0
        self._code = None
        self._stack = False


_JAVAC: Final = re.compile(
    r"(?P<file>[^\n:]{1,1024}\.(?:java|groovy)):(?P<line>\d{1,9}): "
    r"(?:(?P<severity>error|warning): )?(?:\[(?P<code>[\w-]{1,40})\] )?(?=\S)"
)
_CARET: Final = re.compile(r"\s{0,8192}\^$")
_THREAD: Final = re.compile(r'Exception in thread "[^"]{1,200}" (?P<code>[\w.$]{1,200})(?=:|$)')
_BLOCK: Final = re.compile(r"\[ERROR\] (?:Failures|Errors): $|\[ERROR\] (?:Failures|Errors):$")
_GRADLE: Final = re.compile(r"(?P<name>\S{1,200}(?: > \S.{0,300})?) > (?P<test>\S.{0,300}) FAILED$")
_JVM_LINES: Final = 3
"""Lines from a diagnostic to its caret."""


@dataclass(slots=True)
class _Pending:
    severity: str
    message: str
    spot: Spot
    code: str | None
    lines: int = 0


class Javac(Reader):
    """Reads diagnostics of javac: the column is the position of the caret, below the quoted line of code."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._pending: _Pending | None = None

    def read(self, line: str) -> bool:
        """Return True if *line* belongs to a diagnostic."""
        match = _JAVAC.match(line) if ".java:" in line or ".groovy:" in line else None
        if match is not None:
            self._flush(None)
            severity = match["severity"] or "error"
            spot = Spot(match["file"], match["line"])
            self._pending = _Pending(severity, line[match.end() :], spot, match["code"])
            return True
        if self._pending is None:
            return False
        if _CARET.match(line):
            self._flush(len(line))
            return True
        self._pending.lines += 1
        if self._pending.lines >= _JVM_LINES:
            self._flush(None)
        return False

    def end(self) -> None:
        """End the last diagnostic, which has no caret."""
        self._flush(None)

    def _flush(self, column: int | None) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            spot = Spot(pending.spot.file, pending.spot.line, column)
            severity = severity_of(pending.severity)
            self.findings.add(severity, pending.message, spot, code=pending.code, source="javac")


class JvmTests(Reader):
    """Reads failed tests and exceptions on the JVM. Stack frames lack the directory of a file, so none is reported."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._block = False
        self._title: str | None = None
        self._thrown: tuple[str, str] | None = None
        self._wrong = False

    def read(self, line: str) -> bool:
        """Return True if *line* is about a failed test or an exception."""
        if self._thrown is not None:
            return self._stack(self._thrown, line)
        if self._title is not None and line.strip():
            self.findings.add("error", f"{self._title}: {line.strip()}", source="gradle")
            self._title = None
            return True
        if self._wrong and line.strip():
            self.findings.last_resort(line, source="gradle")
            self._wrong = False
            return True
        if line.startswith("[ERROR]"):
            return self._maven(line)
        self._block = self._block and line.startswith("[")
        return self._starts(line)

    def end(self) -> None:
        """End the last exception, which has no further frame."""
        if self._thrown is not None:
            self._stack(self._thrown, "")

    def _starts(self, line: str) -> bool:
        if line.endswith(" FAILED") and (test := _GRADLE.match(line)):
            self._title = f"{test['name']} > {test['test']}"
            return True
        if line.startswith("Exception in thread") and (thrown := _THREAD.match(line)):
            code = thrown["code"]
            self._thrown = (code.rpartition(".")[2], line[thrown.start("code") :])
            return True
        if line == "* What went wrong:":
            self._wrong = True
            return True
        return False

    def _stack(self, thrown: tuple[str, str], line: str) -> bool:
        code, message = thrown
        frame = line.strip() if line.lstrip().startswith("at ") else ""
        self._thrown = None
        self.findings.add("error", f"{message} {frame}", NOWHERE, code=code, source="java")
        return bool(frame)

    def _maven(self, line: str) -> bool:
        if _BLOCK.match(line):
            self._block = True
            return True
        text = line.removeprefix("[ERROR]")
        if self._block and text.startswith("   "):
            self.findings.add("error", text, source="surefire")
            return True
        self._block = self._block and not text.strip()
        if text.startswith((" Failed to execute goal", " Plugin ")):
            self.findings.last_resort(text, source="maven")
            return True
        return False
