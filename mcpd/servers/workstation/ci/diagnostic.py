# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a compiler, linter or test says about one place of a project."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from pydantic import Field

from mcpd.servers.workstation.tool import Result

Severity: TypeAlias = Literal["error", "warning", "note"]

RANKS: Final[dict[Severity, int]] = {"error": 2, "warning": 1, "note": 0}
"""The severities and how bad they are: the more, the worse."""


class Diagnostic(Result):
    """One thing a program found. Lines and columns count from 1."""

    file: str | None = Field(None, description="Relative to the project directory if it lies there, else as printed")
    line: int | None = Field(None, ge=1, description="Line, from 1")
    column: int | None = Field(None, ge=1, description="Column, from 1")
    end_line: int | None = Field(None, ge=1, description="Last line of the place, where the program says it")
    end_column: int | None = Field(None, ge=1, description="Column where the place ends, where the program says it")
    severity: Severity = Field(description="error, warning or note")
    code: str | None = Field(None, description="Rule, error number or exception, such as E0308, F401, TS2322")
    message: str = Field(description="What is wrong")
    source: str | None = Field(None, description="The program that says so, such as gcc, tsc, mypy, pytest")
