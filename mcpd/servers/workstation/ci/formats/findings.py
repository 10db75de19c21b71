# SPDX-License-Identifier: LGPL-2.1-or-later
"""Diagnostics, and the paths, severities and codes in them, for all parsers of output."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from urllib.parse import unquote

from pydantic import Field

from mcpd.servers.workstation.tool import Result

if TYPE_CHECKING:
    from collections.abc import Sequence

Severity: TypeAlias = Literal["error", "warning", "note"]

RANKS: Final[dict[Severity, int]] = {"error": 2, "warning": 1, "note": 0}
"""Ranks of the severities; higher is more severe."""


class Diagnostic(Result):
    """One finding of a program. Lines and columns count from 1."""

    file: str | None = Field(None, description="Relative to the project directory if it is in it")
    line: int | None = Field(None, ge=1)
    column: int | None = Field(None, ge=1)
    end_line: int | None = Field(None, ge=1)
    end_column: int | None = Field(None, ge=1)
    severity: Severity
    code: str | None = Field(None, description="Rule, error number or exception, such as E0308, F401, TS2322")
    message: str
    source: str | None = Field(None, description="The program that reported it, such as gcc, tsc, mypy, pytest")


def worst(found: Sequence[Diagnostic], limit: int) -> list[Diagnostic]:
    """Return the *limit* most severe of *found*, in their order; the first ones of equal severity."""
    ranked = sorted(range(len(found)), key=lambda index: (-RANKS[found[index].severity], index))
    return [found[index] for index in sorted(ranked[:limit])]


MAX_FOUND: Final = 1000
"""Maximum number of diagnostics of one severity."""
_MAX_MESSAGE: Final = 1000
_MAX_PATH: Final = 1024
_MAX_CODE: Final = 100
_MAX_NUMBER: Final = 10**9
_LAST_RESORTS: Final = 20

_SEVERITIES: Final[dict[str, Severity]] = {
    **dict.fromkeys(("error", "fatal error", "fatal", "err", "e", "f", "✖", "×", "failure", "critical"), "error"),
    **dict.fromkeys(("internal compiler error", "sorry, unimplemented", "syntax error"), "error"),
    **dict.fromkeys(("warning", "warn", "w", "⚠", "convention", "refactor"), "warning"),
    **dict.fromkeys(("note", "info", "information", "help", "hint", "remark", "notice", "message", "ℹ"), "note"),
    "none": "note",
}
_FOREIGN: Final = ("node_modules/", "site-packages/", "dist-packages/", "node:", "internal/", "<", "bun:", "ext:")
_NOT_OURS: Final = re.compile(r"(?:^|/)(?:node_modules|site-packages|dist-packages|vendor|\.cargo|rustc)/|/lib/python3")


@dataclass(frozen=True, slots=True)
class Spot:
    """A position in a file, as printed; invalid and missing numbers are None."""

    file: str | None = None
    line: int | str | None = None
    column: int | str | None = None
    end_line: int | str | None = None
    end_column: int | str | None = None

    def column_from_zero(self) -> Spot:
        """Return the same position for a program that counts columns from 0."""
        column = str(self.column or "")
        return replace(self, column=int(column) + 1 if column.isdecimal() else None)


NOWHERE: Final = Spot()


class Findings:
    """The diagnostics found so far: unique, in order, and at most :data:`MAX_FOUND` of each severity."""

    def __init__(self, ecosystem: str, directory: str, *, words: frozenset[str] = frozenset()) -> None:
        """Collect for a program run in *directory*; *words* are the keys of :data:`.parsers.TELLING` for its output."""
        self.ecosystem = ecosystem
        self.words = words
        self.base = directory
        """Base of relative paths; changes with the directories that make enters."""
        self.truncated = False
        """True if there were more."""
        self._inside = directory.rstrip("/") + "/"
        self._found: dict[tuple[object, ...], Diagnostic] = {}
        self._counts: Counter[Severity] = Counter()
        self._last_resorts: list[Diagnostic] = []

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """The diagnostics; if there is no error among them, also those of :meth:`last_resort`."""
        found = list(self._found.values())
        return found if self._counts["error"] else found + self._last_resorts

    def add(
        self,
        severity: Severity,
        message: str,
        spot: Spot = NOWHERE,
        *,
        code: str | None = None,
        source: str | None = None,
    ) -> None:
        """Add a diagnostic, unless it was added before or its message is empty."""
        if self._counts[severity] >= MAX_FOUND:
            self.truncated = True
            return
        made = self._made(severity, message, spot, code, source)
        if made is None:
            return
        key = (made.file, made.line, made.column, made.severity, made.message)
        if key not in self._found:
            self._found[key] = made
            self._counts[severity] += 1

    def last_resort(self, message: str, spot: Spot = NOWHERE, *, source: str | None = None) -> None:
        """Add an error that matters only if no other one is found, as it repeats another program's less precisely."""
        made = self._made("error", message, spot, None, source)
        if made is not None and made not in self._last_resorts and len(self._last_resorts) < _LAST_RESORTS:
            self._last_resorts.append(made)

    def path(self, name: str) -> str | None:
        """Return the file *name*, as printed, in the form for the caller: relative to the directory if it is in it.

        None if it is not the name of a file.
        """
        name = name.strip().strip("\"'")
        if name.startswith("file://"):
            name = unquote(name.removeprefix("file://"))
        if not name or len(name) > _MAX_PATH or name.startswith("<") or "\0" in name:
            return None
        whole = posixpath.normpath(posixpath.join(self.base, name))
        return whole.removeprefix(self._inside)

    def is_own(self, name: str) -> bool:
        """Return True if the file *name*, as printed, is the project's own, not of a library or the language."""
        if name.startswith(_FOREIGN) or _NOT_OURS.search(name):
            return False
        path = self.path(name)
        return path is not None and not path.startswith("/") and not _NOT_OURS.search(path)

    def _made(
        self, severity: Severity, message: str, spot: Spot, code: str | None, source: str | None
    ) -> Diagnostic | None:
        message = message.strip()
        if not message:
            return None
        if len(message) > _MAX_MESSAGE:
            message = message[: _MAX_MESSAGE - 1] + "…"
        file = self.path(spot.file) if spot.file else None
        line = _number(spot.line)
        return Diagnostic(
            file=file,
            line=line,
            column=_number(spot.column) if line else None,
            end_line=_number(spot.end_line) if line else None,
            end_column=_number(spot.end_column) if line else None,
            severity=severity,
            code=(code or "")[:_MAX_CODE] or None,
            message=message,
            source=source,
        )


class Reader:
    """A parser of some formats, which gets each line in turn."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings

    def read(self, line: str) -> bool:
        """Parse *line*, without newline; return True if it was understood, so that no other reader gets it."""
        raise NotImplementedError

    def end(self) -> None:
        """Handle the end of the output."""


def severity_of(word: str | None, default: Severity = "error") -> Severity:
    """Return the severity for *word* as printed by programs."""
    return _SEVERITIES.get((word or "").strip().lower(), default)


def _number(value: int | str | None) -> int | None:
    """Return a line or column, or None if it is unknown: programs then print 0."""
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) <= 9 else None
    return value if value is not None and 0 < value < _MAX_NUMBER else None


_TRAILING: Final = {"]": "[", ")": "("}
_CODE: Final = re.compile(r"[A-Za-z@-][\w@/.,=+-]{0,99}$")


def trailing_code(message: str, brackets: str = "])") -> tuple[str, str | None]:
    """Return *message* and the code in brackets at its end, as in ``unused variable ‘x’ [-Wunused-variable]``."""
    message = message.rstrip()
    if message[-1:] not in brackets or not message:
        return message, None
    start = message.rfind(_TRAILING[message[-1]], max(0, len(message) - _MAX_CODE - 2))
    if start <= 0 or message[start - 1] != " ":
        return message, None
    code = message[start + 1 : -1]
    if not _CODE.match(code):
        return message, None
    return message[:start].rstrip(), code
