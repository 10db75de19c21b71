# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tool ci_diagnostics: what is wrong in a project, without the rest of the output."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field

from mcpd.servers.workstation.ci.diagnostic import RANKS, Diagnostic, Severity, worst
from mcpd.servers.workstation.ci.formats.findings import MAX_FOUND
from mcpd.servers.workstation.ci.models import CommandArguments, CommandResult, ended
from mcpd.servers.workstation.ci.parsers import parse
from mcpd.servers.workstation.ci.running import run_kind
from mcpd.servers.workstation.processes import MAX_OUTPUT
from mcpd.servers.workstation.tool import Answer, Result, Tool

if TYPE_CHECKING:
    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.ci.running import Run

_TAIL_LINES: Final = 20
_TAIL_CHARACTERS: Final = 4096


class DiagnosticsArguments(CommandArguments):
    """What ci_diagnostics takes."""

    kind: Literal["check", "build", "test", "lint"] = Field(
        "check", description="What is run: check looks at the code without running it, where the ecosystem has a way to"
    )
    severity: Severity = Field("note", description="The least severity that is listed")
    limit: int = Field(200, ge=1, le=1000, description="How many are listed at most, the worst of them")


class Counts(Result):
    """How many there are of each severity, listed or not."""

    error: int
    warning: int
    note: int


class DiagnosticsResult(CommandResult):
    """What ci_diagnostics says."""

    counts: Counts = Field(description=f"How many were found, listed or not; of each severity {MAX_FOUND} at most")
    diagnostics: tuple[Diagnostic, ...]
    truncated: bool = Field(description="Whether some are not listed, or in output that was not looked at")
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
    parsed = await call.in_thread(lambda: parse(run.ecosystem, run.output, run.directory, check=call.check))
    found = parsed.diagnostics
    counted = Counter(each.severity for each in found)
    asked = [each for each in found if RANKS[each.severity] >= RANKS[arguments.severity]]
    listed = worst(asked, arguments.limit)
    result = DiagnosticsResult(
        **ended(run),
        counts=Counts(error=counted["error"], warning=counted["warning"], note=counted["note"]),
        diagnostics=tuple(listed),
        truncated=run.truncated or parsed.truncated or len(listed) < len(asked),
        output=None if run.exit_code == 0 or found else _end_of(run.output),
    )
    return Answer(result, ({"type": "text", "text": _text(run, result)},))


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
    more = "; not all are listed" if result.truncated else ""
    found = f"{counts.error} errors, {counts.warning} warnings, {counts.note} notes{more}"
    lines = [f"{run.summary}: {found}"]
    lines += map(line_of, result.diagnostics)
    if result.output is not None:
        lines += ["Nothing of the output was understood. Its end:", result.output]
    return "\n".join(lines)


DIAGNOSTICS: Final = Tool(
    name="ci_diagnostics",
    title="Find what is wrong",
    description=(
        "Run a project's check, build, tests or linter and return the errors and warnings as a list with file, line,"
        " column, code and message. Prefer it to ci_build, ci_test and ci_lint where only these are of interest."
    ),
    arguments=DiagnosticsArguments,
    result=DiagnosticsResult,
    run=_diagnostics,
)
