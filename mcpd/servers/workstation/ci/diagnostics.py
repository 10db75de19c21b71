# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tool ci/diagnostics: what is wrong in a project, without the rest of the output."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field

from mcpd.servers.workstation.ci.diagnostic import RANKS, Diagnostic, Severity
from mcpd.servers.workstation.ci.ecosystems import NAMES
from mcpd.servers.workstation.ci.formats.findings import MAX_FOUND
from mcpd.servers.workstation.ci.parsers import parse
from mcpd.servers.workstation.ci.running import run_kind
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.processes import MAX_OUTPUT
from mcpd.servers.workstation.tool import Answer, Arguments, Result, Tool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.ci.running import Run

_TAIL_LINES: Final = 20
_TAIL_CHARACTERS: Final = 4096


class DiagnosticsArguments(Arguments):
    """What ci/diagnostics takes."""

    path: str = Field(".", description="The project's directory: absolute, or relative to the first root")
    ecosystem: str | None = Field(
        None,
        description="Which to use where there are several; else the first that has the command",
        json_schema_extra={"enum": list(NAMES)},
    )
    kind: Literal["check", "build", "test", "lint"] = Field(
        "check", description="What is run: check looks at the code without running it, where the ecosystem has a way to"
    )
    timeout_seconds: int = Field(
        30, ge=1, description="How long it may take, up to the server's call timeout; builds often need more"
    )
    severity: Severity = Field("note", description="The least severity that is listed")
    limit: int = Field(200, ge=1, le=MAX_FOUND, description="How many are listed at most, the worst first")


class Counts(Result):
    """How many there are of each severity, listed or not."""

    error: int = Field(description="Errors")
    warning: int = Field(description="Warnings")
    note: int = Field(description="Notes")


class DiagnosticsResult(Result):
    """What ci/diagnostics says."""

    ecosystem: str = Field(description="Whose command was run")
    command: tuple[str, ...] = Field(description="The program and its arguments")
    directory: str = Field(description="Where it ran, which relative files are relative to")
    exit_code: int = Field(description="Its exit status; 128 + n if signal n ended it")
    success: bool = Field(description="Whether the exit status is 0")
    seconds: float = Field(description="How long it took")
    counts: Counts = Field(description=f"How many were found of each severity, among the first {MAX_FOUND}")
    diagnostics: tuple[Diagnostic, ...] = Field(description="What is wrong and where, in the order it was said")
    truncated: bool = Field(description="Whether some are not listed, or output was lost in which there may be more")
    output: str | None = Field(None, description="The end of the output, if the command failed and nothing was found")


async def _diagnostics(call: Call, arguments: DiagnosticsArguments) -> Answer:
    run = await run_kind(
        call,
        arguments.path,
        arguments.kind,
        ecosystem=arguments.ecosystem,
        arguments=(),
        most=MAX_OUTPUT,
        machine=True,
    )
    found = await call.in_thread(lambda: parse(run.ecosystem, run.output, run.directory))
    counted = Counter(each.severity for each in found)
    asked = [each for each in found if RANKS[each.severity] >= RANKS[arguments.severity]]
    listed = worst(asked, arguments.limit)
    result = DiagnosticsResult(
        ecosystem=run.ecosystem,
        command=tuple(map(shown_name, run.argv)),
        directory=shown_name(run.directory),
        exit_code=run.exit_code,
        success=run.success,
        seconds=run.seconds,
        counts=Counts(error=counted["error"], warning=counted["warning"], note=counted["note"]),
        diagnostics=tuple(listed),
        truncated=run.truncated or len(listed) < len(asked) or len(found) >= MAX_FOUND,
        output=None if run.success or found else _end_of(run.output),
    )
    return Answer(result, ({"type": "text", "text": _text(run, result)},))


def worst(found: Sequence[Diagnostic], limit: int) -> list[Diagnostic]:
    """The *limit* worst of *found*, in their order; of equally bad ones the first."""
    ranked = sorted(range(len(found)), key=lambda index: (-RANKS[found[index].severity], index))
    return [found[index] for index in sorted(ranked[:limit])]


def line_of(diagnostic: Diagnostic) -> str:
    """*diagnostic* as a compiler prints it."""
    numbers = (diagnostic.line, diagnostic.column) if diagnostic.line else ()
    place = ":".join(str(part) for part in (diagnostic.file, *numbers) if part is not None)
    code = f" [{diagnostic.code}]" if diagnostic.code else ""
    message = diagnostic.message.replace("\n", "\n    ")
    return f"{place + ': ' if place else ''}{diagnostic.severity}: {message}{code}"


def _end_of(output: str) -> str | None:
    return "\n".join(output[-_TAIL_CHARACTERS:].rstrip().splitlines()[-_TAIL_LINES:]) or None


def _text(run: Run, result: DiagnosticsResult) -> str:
    counts = result.counts
    how = "succeeded" if run.success else f"failed with exit status {run.exit_code}"
    more = "; not all are listed" if result.truncated else ""
    found = f"{counts.error} errors, {counts.warning} warnings, {counts.note} notes{more}"
    lines = [f"{shown_name(shlex.join(run.argv))} {how} after {run.seconds:g} s: {found}"]
    lines += map(line_of, result.diagnostics)
    if result.output is not None:
        lines += ["Nothing of the output was understood. Its end:", result.output]
    return "\n".join(lines)


DIAGNOSTICS: Final = Tool(
    name="ci/diagnostics",
    title="Find what is wrong",
    description=(
        "Run a project's check, build, tests or linter and return the errors and warnings as a list with file, line,"
        " column, code and message. Prefer it to ci/build, ci/test and ci/lint where only these are of interest."
    ),
    arguments=DiagnosticsArguments,
    result=DiagnosticsResult,
    run=_diagnostics,
)
