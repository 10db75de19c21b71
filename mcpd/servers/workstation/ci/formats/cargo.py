# SPDX-License-Identifier: LGPL-2.1-or-later
"""What ``cargo --message-format=json`` says, one object a line (doc.rust-lang.org/cargo, "External Tools")."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, FailFast, ValidationError

from mcpd.servers.workstation.ci.formats.findings import NOWHERE, Reader, Spot, severity_of

_START: Final = '{"reason":"'
_MESSAGE: Final = '{"reason":"compiler-message",'
_MAX_LINE: Final = 256 * 1024
"""Characters of a line that is decoded, which other threads wait for."""


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
    """Whether *line* is one of cargo's, which writes the reason first."""
    return line.startswith(_START)


class Cargo(Reader):
    """Reads them."""

    def read(self, line: str) -> bool:
        """Whether *line*, a whole one, is cargo's."""
        if not is_cargo(line):
            return False
        if line.startswith(_MESSAGE) and len(line) <= _MAX_LINE:
            try:
                self._take(_Line.model_validate_json(line).message)
            except ValidationError:
                # Cut off, or of something else that looks like it: there is nothing to be had of it.
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
