# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tools that build, test and lint a project."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field, StringConstraints

from mcpd.model import printable
from mcpd.servers.workstation.call import in_thread
from mcpd.servers.workstation.ci.detection import detect, projects_below
from mcpd.servers.workstation.ci.diagnostic import Diagnostic, worst
from mcpd.servers.workstation.ci.escapes import last_lines
from mcpd.servers.workstation.ci.models import CommandArguments, CommandResult, ProjectArguments, ended
from mcpd.servers.workstation.ci.parsers import parse
from mcpd.servers.workstation.ci.recipes import KINDS, Kind
from mcpd.servers.workstation.ci.running import Run, run_kind, run_task
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.tool import Answer, Result, Tool

if TYPE_CHECKING:
    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.ci.detection import Choice, Detection, Found
    from mcpd.servers.workstation.tool import Run as Runner

_MAX_DIAGNOSTICS: Final = 200
_MAX_TEXT: Final = 32 * 1024
"""Characters of output in the text, which a model reads as a whole."""

_Argument = Annotated[str, StringConstraints(max_length=8192, pattern=r"^[^\x00]*$")]


class RunArguments(CommandArguments):
    """What all take that run something."""

    arguments: tuple[_Argument, ...] = Field(
        (), max_length=256, description="Further arguments of the command, each as it is: no shell reads them"
    )
    max_output_bytes: int = Field(
        256 * 1024, ge=1024, le=4 * 1024 * 1024, description="How much of the output's end is kept"
    )


class TaskArguments(RunArguments):
    """What ci_task takes."""

    name: str = Field(min_length=1, max_length=200, description="A task as ci_detect lists it")


class OfferedCommand(Result):
    """How something is done in a project."""

    kind: Kind
    command: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] | None = Field(None, description="Commands that are run first")
    available: bool = Field(description="Whether all programs that it takes are there")
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
    markers: tuple[str, ...] = Field(description="The files that tell it")
    commands: tuple[OfferedCommand, ...]
    tasks: tuple[OfferedTask, ...]


class DetectResult(Result):
    """What ci_detect says."""

    path: str
    ecosystems: tuple[EcosystemResult, ...] = Field(description="The first that has a command is the default for it")
    projects_below: tuple[str, ...] | None = Field(None, description="Directories in it that hold projects")
    problems: tuple[str, ...] | None = Field(None, description="Files that could not be read, and why")


class RunResult(CommandResult):
    """What comes of a command."""

    output: str = Field(description="The end of stdout and stderr in their order, without colours")
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


_AFTER: Final = " ci_detect shows which command that is. One that fails is a result with success=false."

DETECT: Final = Tool(
    name="ci_detect",
    title="Detect build tools",
    description=(
        "Show what a project's directory is built, tested and looked over with (make, npm, cargo, go, Python, .NET, …):"
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
    description="Fetch what the project in a directory depends on; needs the setting allow_network." + _AFTER,
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
