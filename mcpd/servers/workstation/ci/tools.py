# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tools that build, test and lint a project."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypedDict

from pydantic import Field, StringConstraints

from mcpd.model import printable
from mcpd.servers.workstation.call import in_thread
from mcpd.servers.workstation.ci.ecosystems import NAMES
from mcpd.servers.workstation.ci.formats.findings import MAX_FOUND, RANKS, Diagnostic, Severity, worst
from mcpd.servers.workstation.ci.parsers import parse
from mcpd.servers.workstation.ci.projects import KINDS, Kind
from mcpd.servers.workstation.ci.running import Run, detect, last_lines, projects_below, run_kind, run_task
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.processes import MAX_OUTPUT
from mcpd.servers.workstation.tool import Answer, Arguments, Result, Tool

if TYPE_CHECKING:
    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.ci.running import Choice, Detection, Found, Run
    from mcpd.servers.workstation.tool import Run as Runner


class ProjectArguments(Arguments):
    """Arguments that name a project."""

    path: str = Field(".", description="The project's directory: absolute, or relative to the first root")


class CommandArguments(ProjectArguments):
    """Arguments that select a command and its time limit."""

    ecosystem: str | None = Field(
        None,
        description="Which to use if there are several; default: the first that has the command",
        json_schema_extra={"enum": list(NAMES)},
    )
    timeout_seconds: int = Field(
        30, ge=1, description="Time limit, up to the server's call timeout; builds often need more"
    )


class CommandResult(Result):
    """Result of a command."""

    ecosystem: str
    command: tuple[str, ...] = Field(description="The command that was run; if one before it failed, that one")
    directory: str = Field(description="Its working directory")
    exit_code: int = Field(description="128 + n if signal n ended it")
    success: bool = Field(description="True if exit_code is 0")
    seconds: float


class Ended(TypedDict):
    """The fields of :class:`CommandResult`."""

    ecosystem: str
    command: tuple[str, ...]
    directory: str
    exit_code: int
    success: bool
    seconds: float


def ended(run: Run) -> Ended:
    """Return the result fields of *run*."""
    return Ended(
        ecosystem=run.ecosystem,
        command=tuple(map(shown_name, run.argv)),
        directory=shown_name(run.directory),
        exit_code=run.exit_code,
        success=run.exit_code == 0,
        seconds=run.seconds,
    )


_MAX_DIAGNOSTICS: Final = 200
_MAX_TEXT: Final = 32 * 1024
"""Maximum length of the output in the text, in characters; a model reads all of it."""

_Argument = Annotated[str, StringConstraints(max_length=8192, pattern=r"^[^\x00]*$")]


class RunArguments(CommandArguments):
    """Arguments of all tools that run a command."""

    arguments: tuple[_Argument, ...] = Field(
        (), max_length=256, description="More arguments for the command, which no shell interprets"
    )
    max_output_bytes: int = Field(
        256 * 1024, ge=1024, le=4 * 1024 * 1024, description="Maximum size of the output, of which the end is kept"
    )


class TaskArguments(RunArguments):
    """Arguments of ci_task."""

    name: str = Field(min_length=1, max_length=200, description="A task as ci_detect lists it")


class OfferedCommand(Result):
    """The way to do something in a project."""

    kind: Kind
    command: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] | None = Field(None, description="Commands that are run first")
    available: bool = Field(description="True if all required programs are installed")
    missing: tuple[str, ...] | None = Field(None, description="Programs that are not installed")


class OfferedTask(Result):
    """A task that a project defines."""

    name: str = Field(description="For ci_task")
    command: tuple[str, ...]
    description: str | None = None


class EcosystemResult(Result):
    """One ecosystem of a project."""

    name: str = Field(description="For the argument ecosystem")
    title: str
    markers: tuple[str, ...] = Field(description="The files by which it was detected")
    commands: tuple[OfferedCommand, ...]
    tasks: tuple[OfferedTask, ...]


class DetectResult(Result):
    """Result of ci_detect."""

    path: str
    ecosystems: tuple[EcosystemResult, ...] = Field(description="The first one that has a command is its default")
    projects_below: tuple[str, ...] | None = Field(None, description="Directories in it that contain projects")
    problems: tuple[str, ...] | None = Field(None, description="Files that could not be read, and why")


class RunResult(CommandResult):
    """Result of the tools that run a command."""

    output: str = Field(description="The end of stdout and stderr, interleaved, without colours")
    output_truncated: bool
    diagnostics: tuple[Diagnostic, ...] = Field(description="Errors and warnings found in the output")
    diagnostics_truncated: bool


def _detect(call: Call, arguments: ProjectArguments) -> Answer:
    detection = detect(call, arguments.path)
    below = projects_below(call, detection.place)
    result = DetectResult(
        path=shown_name(detection.place.path),
        ecosystems=tuple(map(_ecosystem, detection.found)),
        projects_below=below or None,
        problems=tuple(map(shown_name, detection.problems)) or None,
    )
    return Answer(result, ({"type": "text", "text": "\n".join(_lines(detection, result))},))


def _ecosystem(found: Found) -> EcosystemResult:
    return EcosystemResult(
        name=found.ecosystem.name,
        title=found.ecosystem.title,
        markers=found.markers,
        commands=tuple(_command(kind, found.choices[kind]) for kind in KINDS if kind in found.choices),
        tasks=tuple(
            OfferedTask(name=task.name, command=task.recipe.argv, description=task.description or None)
            for task, _ in found.tasks
        ),
    )


def _command(kind: Kind, choice: Choice) -> OfferedCommand:
    return OfferedCommand(
        kind=kind,
        command=choice.recipe.argv,
        before=choice.recipe.before or None,
        available=not choice.missing,
        missing=choice.missing or None,
    )


def _lines(detection: Detection, result: DetectResult) -> list[str]:
    lines = []
    for each in result.ecosystems:
        lines.append(f"{each.title} [{each.name}]: {', '.join(each.markers)}")
        for command in each.commands:
            missing = f"  (not installed: {', '.join(command.missing)})" if command.missing else ""
            commands = " && ".join(map(shlex.join, (*(command.before or ()), command.command)))
            lines.append(f"  {command.kind}: {commands}{missing}")
        if each.tasks:
            lines.append(f"  tasks: {', '.join(task.name for task in each.tasks)}")
    if result.projects_below:
        lines.append(f"Projects in directories below: {', '.join(map(printable, result.projects_below))}")
    lines += result.problems or ()
    return lines or [f"{detection.place.shown} holds no project that is known"]


async def _answer(call: Call, run: Run) -> Answer:
    parsed = await call.in_thread(lambda: parse(run.ecosystem, run.output, run.directory, check=call.check))
    found = worst(parsed.diagnostics, _MAX_DIAGNOSTICS)
    result = RunResult(
        **ended(run),
        output=run.output,
        output_truncated=run.truncated,
        diagnostics=tuple(found),
        diagnostics_truncated=parsed.truncated or len(found) < len(parsed.diagnostics),
    )
    shown = last_lines(run.output, _MAX_TEXT)
    before = "…\n" if run.truncated or len(shown) < len(run.output) else ""
    text = f"{run.summary}\n{before}{shown}"
    return Answer(result, ({"type": "text", "text": text},))


def _runner(kind: Kind) -> Runner:
    async def run(call: Call, arguments: RunArguments) -> Answer:
        found = await run_kind(
            call,
            arguments.path,
            kind,
            ecosystem=arguments.ecosystem,
            arguments=arguments.arguments,
            most=arguments.max_output_bytes,
        )
        return await _answer(call, found)

    return run


async def _task(call: Call, arguments: TaskArguments) -> Answer:
    found = await run_task(
        call,
        arguments.path,
        arguments.name,
        ecosystem=arguments.ecosystem,
        arguments=arguments.arguments,
        most=arguments.max_output_bytes,
    )
    return await _answer(call, found)


_AFTER: Final = " ci_detect shows the command. If it fails, success is false."

DETECT: Final = Tool(
    name="ci_detect",
    title="Detect build tools",
    description=(
        "Show how the project in a directory is built, tested and linted (make, npm, cargo, go, Python, .NET, …):"
        " the commands, whether their programs are installed, and the tasks that the project defines. Runs nothing."
    ),
    arguments=ProjectArguments,
    result=DetectResult,
    run=in_thread(_detect),
    read_only=True,
    idempotent=True,
)
BUILD: Final = Tool(
    name="ci_build",
    title="Build",
    description="Build the project in a directory with its own build tool." + _AFTER,
    arguments=RunArguments,
    result=RunResult,
    run=_runner("build"),
)
TEST: Final = Tool(
    name="ci_test",
    title="Run tests",
    description="Run the tests of the project in a directory." + _AFTER,
    arguments=RunArguments,
    result=RunResult,
    run=_runner("test"),
)
LINT: Final = Tool(
    name="ci_lint",
    title="Lint",
    description="Run the linter of the project in a directory." + _AFTER,
    arguments=RunArguments,
    result=RunResult,
    run=_runner("lint"),
)
RESTORE: Final = Tool(
    name="ci_restore",
    title="Restore dependencies",
    description="Fetch the dependencies of the project in a directory; requires the setting allow_network." + _AFTER,
    arguments=RunArguments,
    result=RunResult,
    run=_runner("restore"),
    open_world=True,
)
TASK: Final = Tool(
    name="ci_task",
    title="Run a task",
    description=(
        "Run a task that the project in a directory defines: a make target, an npm script, a just recipe, a tox"
        " environment, …" + _AFTER
    ),
    arguments=TaskArguments,
    result=RunResult,
    run=_task,
)


_TAIL_LINES: Final = 20
_TAIL_CHARACTERS: Final = 4096


class DiagnosticsArguments(CommandArguments):
    """Arguments of ci_diagnostics."""

    kind: Literal["check", "build", "test", "lint"] = Field(
        "check", description="What to run; check examines the code without running it, if the ecosystem supports that"
    )
    severity: Severity = Field("note", description="The lowest severity to list")
    limit: int = Field(200, ge=1, le=1000, description="Maximum number to list, the most severe first")


class Counts(Result):
    """Number of diagnostics of each severity, listed or not."""

    error: int
    warning: int
    note: int


class DiagnosticsResult(CommandResult):
    """Result of ci_diagnostics."""

    counts: Counts = Field(description=f"Number of findings, listed or not; at most {MAX_FOUND} of each severity")
    diagnostics: tuple[Diagnostic, ...]
    truncated: bool = Field(description="True if some are not listed, or some output was not examined")
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
    """Return *diagnostic* in the format of compilers."""
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
    title="Report errors and warnings",
    description=(
        "Run a project's check, build, tests or linter and return the errors and warnings as a list with file, line,"
        " column, code and message. Prefer it to ci_build, ci_test and ci_lint if only these are needed."
    ),
    arguments=DiagnosticsArguments,
    result=DiagnosticsResult,
    run=_diagnostics,
)
