# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a compiler, linter or test says about one place of a project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from pydantic import Field

from mcpd.servers.workstation.tool import Result

if TYPE_CHECKING:
    from collections.abc import Sequence

Severity: TypeAlias = Literal["error", "warning", "note"]

RANKS: Final[dict[Severity, int]] = {"error": 2, "warning": 1, "note": 0}
"""The severities and how bad they are: the more, the worse."""


class Diagnostic(Result):
    """One thing a program found. Lines and columns count from 1."""

    file: str | None = Field(None, description="Relative to the project directory if it lies there")
    line: int | None = Field(None, ge=1)
    column: int | None = Field(None, ge=1)
    end_line: int | None = Field(None, ge=1)
    end_column: int | None = Field(None, ge=1)
    severity: Severity
    code: str | None = Field(None, description="Rule, error number or exception, such as E0308, F401, TS2322")
    message: str
    source: str | None = Field(None, description="The program that says so, such as gcc, tsc, mypy, pytest")


def worst(found: Sequence[Diagnostic], limit: int) -> list[Diagnostic]:
    """The *limit* worst of *found*, in their order; of equally bad ones the first."""
    ranked = sorted(range(len(found)), key=lambda index: (-RANKS[found[index].severity], index))
    return [found[index] for index in sorted(ranked[:limit])]
