# SPDX-License-Identifier: LGPL-2.1-or-later
"""The JSON of compilers, and SARIF, which is the same for all (docs.oasis-open.org/sarif, version 2.1.0)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from mcpd.servers.workstation.ci.formats.findings import Spot, severity_of
from mcpd.servers.workstation.ci.formats.form import Form

if TYPE_CHECKING:
    from mcpd.servers.workstation.ci.formats.findings import Findings


class _GccCaret(msgspec.Struct):
    file: str
    line: int | None = None
    column: int | None = None


class _GccLocation(msgspec.Struct):
    caret: _GccCaret | None = None
    finish: _GccCaret | None = None


class _Gcc(msgspec.Struct):
    kind: str
    message: str
    locations: list[_GccLocation]
    option: str | None = None
    children: list[_Gcc] = []


class _SarifText(msgspec.Struct):
    text: str = ""


class _SarifArtifact(msgspec.Struct):
    uri: str | None = None


class _SarifRegion(msgspec.Struct):
    startLine: int | None = None  # noqa: N815
    startColumn: int | None = None  # noqa: N815
    endLine: int | None = None  # noqa: N815
    endColumn: int | None = None  # noqa: N815


class _SarifPhysical(msgspec.Struct):
    artifactLocation: _SarifArtifact = msgspec.field(default_factory=_SarifArtifact)  # noqa: N815
    region: _SarifRegion = msgspec.field(default_factory=_SarifRegion)


class _SarifLocation(msgspec.Struct):
    physicalLocation: _SarifPhysical = msgspec.field(default_factory=_SarifPhysical)  # noqa: N815


class _SarifResult(msgspec.Struct):
    message: _SarifText
    level: str = "warning"
    ruleId: str | None = None  # noqa: N815
    locations: list[_SarifLocation] = []


class _SarifDriver(msgspec.Struct):
    name: str | None = None


class _SarifTool(msgspec.Struct):
    driver: _SarifDriver = msgspec.field(default_factory=_SarifDriver)


class _SarifRun(msgspec.Struct):
    results: list[_SarifResult] = []
    tool: _SarifTool = msgspec.field(default_factory=_SarifTool)


class _Sarif(msgspec.Struct):
    runs: list[_SarifRun]


class _CargoCode(msgspec.Struct):
    code: str


class _CargoSpan(msgspec.Struct):
    file_name: str
    is_primary: bool = False
    line_start: int | None = None
    line_end: int | None = None
    column_start: int | None = None
    column_end: int | None = None


class _CargoMessage(msgspec.Struct):
    message: str
    level: str
    spans: list[_CargoSpan] = []
    code: _CargoCode | None = None


class _Cargo(msgspec.Struct):
    reason: str
    message: _CargoMessage


def _gcc(findings: Findings, items: list[_Gcc]) -> None:
    for each in items:
        first = each.locations[0] if each.locations else _GccLocation()
        caret = first.caret
        end = first.finish if first.finish and caret and first.finish.file == caret.file else None
        end = end or _GccCaret("")
        spot = Spot(caret.file, caret.line, caret.column, end.line, end.column) if caret else Spot()
        findings.add(severity_of(each.kind), each.message, spot, code=each.option, source="gcc")
        _gcc(findings, each.children)


def _sarif(findings: Findings, document: _Sarif) -> None:
    for run in document.runs:
        name = run.tool.driver.name
        for each in run.results:
            place = each.locations[0].physicalLocation if each.locations else _SarifPhysical()
            region = place.region
            spot = Spot(
                place.artifactLocation.uri, region.startLine, region.startColumn, region.endLine, region.endColumn
            )
            findings.add(severity_of(each.level), each.message.text, spot, code=each.ruleId, source=name)


def _cargo(findings: Findings, document: _Cargo) -> None:
    each = document.message
    if document.reason != "compiler-message" or (not each.spans and each.code is None):
        if each.level == "error":
            findings.last_resort(each.message, source="rustc")
        return
    span = next((span for span in each.spans if span.is_primary), each.spans[0] if each.spans else None)
    spot = Spot()
    if span is not None:
        spot = Spot(span.file_name, span.line_start, span.column_start, span.line_end, span.column_end)
    code = each.code.code if each.code else None
    findings.add(severity_of(each.level.partition(":")[0]), each.message, spot, code=code, source="rustc")


ARRAYS: Final = (Form(list[_Gcc], _gcc),)
"""The forms of arrays."""
OBJECTS: Final = (('"runs"', Form(_Sarif, _sarif)), ('"reason"', Form(_Cargo, _cargo)))
"""The forms of objects, and what the text of each holds."""
