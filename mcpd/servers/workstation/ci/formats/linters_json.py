# SPDX-License-Identifier: LGPL-2.1-or-later
"""The JSON of linters and type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from mcpd.servers.workstation.ci.formats.findings import Spot, from_zero, severity_of
from mcpd.servers.workstation.ci.formats.form import Form

if TYPE_CHECKING:
    from mcpd.servers.workstation.ci.diagnostic import Severity
    from mcpd.servers.workstation.ci.formats.findings import Findings

_ESLINT: Final[dict[int | str, Severity]] = {0: "note", 1: "warning", 2: "error"}


class _Point(msgspec.Struct):
    row: int | None = None
    column: int | None = None
    line: int | None = None
    character: int | None = None
    start_line: int | None = None
    start_column: int | None = None
    last_line: int | None = None
    last_column: int | None = None


class _EslintMessage(msgspec.Struct):
    message: str
    severity: int | str = 2
    line: int | None = None
    column: int | None = None
    endLine: int | None = None  # noqa: N815 - theirs
    endColumn: int | None = None  # noqa: N815
    ruleId: str | None = None  # noqa: N815


class _EslintFile(msgspec.Struct):
    filePath: str  # noqa: N815
    messages: list[_EslintMessage]


class _StylelintWarning(msgspec.Struct):
    text: str
    line: int | None = None
    column: int | None = None
    endLine: int | None = None  # noqa: N815
    endColumn: int | None = None  # noqa: N815
    rule: str | None = None
    severity: str = "error"


class _StylelintFile(msgspec.Struct):
    source: str
    warnings: list[_StylelintWarning]


class _Ruff(msgspec.Struct):
    filename: str
    message: str
    location: _Point
    end_location: _Point | None = None
    code: str | None = None


class _Pylint(msgspec.Struct):
    type: str
    path: str
    message: str
    line: int | None = None
    column: int | None = None
    endLine: int | None = None  # noqa: N815
    endColumn: int | None = None  # noqa: N815
    message_id: str | None = msgspec.field(default=None, name="message-id")


class _Mypy(msgspec.Struct):
    file: str
    message: str
    severity: str
    line: int | None = None
    column: int | None = None
    end_line: int | None = None
    end_column: int | None = None
    code: str | None = None


class _Range(msgspec.Struct):
    start: _Point
    end: _Point | None = None


class _PyrightItem(msgspec.Struct):
    file: str
    message: str
    severity: str
    range: _Range | None = None
    rule: str | None = None


class _Pyright(msgspec.Struct):
    generalDiagnostics: list[_PyrightItem]  # noqa: N815


class _RubocopOffense(msgspec.Struct):
    message: str
    location: _Point
    severity: str = "error"
    cop_name: str | None = None


class _RubocopFile(msgspec.Struct):
    path: str
    offenses: list[_RubocopOffense]


class _Rubocop(msgspec.Struct):
    files: list[_RubocopFile]


class _GolangciPosition(msgspec.Struct):
    Filename: str
    Line: int | None = None
    Column: int | None = None


class _GolangciIssue(msgspec.Struct):
    Text: str
    Pos: _GolangciPosition
    FromLinter: str | None = None


class _Golangci(msgspec.Struct):
    Issues: list[_GolangciIssue]


def _eslint(findings: Findings, files: list[_EslintFile]) -> None:
    for file in files:
        for each in file.messages:
            severity = _ESLINT.get(each.severity) or severity_of(str(each.severity))
            spot = Spot(file.filePath, each.line, each.column, each.endLine, each.endColumn)
            findings.add(severity, each.message, spot, code=each.ruleId, source="eslint")


def _stylelint(findings: Findings, files: list[_StylelintFile]) -> None:
    for file in files:
        for each in file.warnings:
            spot = Spot(file.source, each.line, each.column, each.endLine, each.endColumn)
            message = each.text.removesuffix(f" ({each.rule})")
            findings.add(severity_of(each.severity), message, spot, code=each.rule, source="stylelint")


def _ruff(findings: Findings, items: list[_Ruff]) -> None:
    for each in items:
        end = each.end_location or _Point()
        spot = Spot(each.filename, each.location.row, each.location.column, end.row, end.column)
        findings.add("error", each.message, spot, code=each.code, source="ruff")


def _pylint(findings: Findings, items: list[_Pylint]) -> None:
    for each in items:
        spot = Spot(each.path, each.line, from_zero(each.column), each.endLine, from_zero(each.endColumn))
        findings.add(severity_of(each.type), each.message, spot, code=each.message_id, source="pylint")


def _mypy(findings: Findings, each: _Mypy) -> None:
    spot = Spot(each.file, each.line, from_zero(each.column), each.end_line, each.end_column)
    findings.add(severity_of(each.severity), each.message, spot, code=each.code, source="mypy")


def _pyright(findings: Findings, document: _Pyright) -> None:
    for each in document.generalDiagnostics:
        start = each.range.start if each.range else _Point()
        end = (each.range.end if each.range else None) or _Point()
        places = (from_zero(value) for value in (start.line, start.character, end.line, end.character))
        findings.add(
            severity_of(each.severity), each.message, Spot(each.file, *places), code=each.rule, source="pyright"
        )


def _rubocop(findings: Findings, document: _Rubocop) -> None:
    for file in document.files:
        for each in file.offenses:
            at = each.location
            line = at.start_line or at.line
            spot = Spot(file.path, line, at.start_column or at.column, at.last_line, at.last_column)
            message = each.message.removeprefix(f"{each.cop_name}: ")
            findings.add(severity_of(each.severity, "warning"), message, spot, code=each.cop_name, source="rubocop")


def _golangci(findings: Findings, document: _Golangci) -> None:
    for each in document.Issues:
        spot = Spot(each.Pos.Filename, each.Pos.Line, each.Pos.Column)
        findings.add("error", each.Text, spot, code=each.FromLinter, source="golangci-lint")


ARRAYS: Final = (
    Form(list[_EslintFile], _eslint),
    Form(list[_Ruff], _ruff),
    Form(list[_Pylint], _pylint),
    Form(list[_StylelintFile], _stylelint),
)
"""The forms of arrays."""
OBJECTS: Final = (
    ('"generalDiagnostics"', Form(_Pyright, _pyright)),
    ('"offenses"', Form(_Rubocop, _rubocop)),
    ('"Issues"', Form(_Golangci, _golangci)),
    ('"location"', Form(_Ruff, lambda findings, each: _ruff(findings, [each]))),
    ('"severity"', Form(_Mypy, _mypy)),
)
"""The forms of objects, and what the text of each holds."""
