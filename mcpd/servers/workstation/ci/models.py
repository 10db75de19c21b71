# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the arguments and the results of the tools that run something have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from pydantic import Field

from mcpd.servers.workstation.ci.ecosystems import NAMES
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.tool import Arguments, Result

if TYPE_CHECKING:
    from mcpd.servers.workstation.ci.running import Run


class ProjectArguments(Arguments):
    """Which project."""

    path: str = Field(".", description="The project's directory: absolute, or relative to the first root")


class CommandArguments(ProjectArguments):
    """Which of its commands, and for how long."""

    ecosystem: str | None = Field(
        None,
        description="Which to use where there are several; else the first that has the command",
        json_schema_extra={"enum": list(NAMES)},
    )
    timeout_seconds: int = Field(
        30, ge=1, description="How long it may take, up to the server's call timeout; builds often need more"
    )


class CommandResult(Result):
    """How a command ended."""

    ecosystem: str
    command: tuple[str, ...] = Field(description="What was run; if something that comes before it failed, that")
    directory: str = Field(description="Where it ran")
    exit_code: int = Field(description="128 + n if signal n ended it")
    success: bool = Field(description="Whether exit_code is 0")
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
    """How *run* ended."""
    return Ended(
        ecosystem=run.ecosystem,
        command=tuple(map(shown_name, run.argv)),
        directory=shown_name(run.directory),
        exit_code=run.exit_code,
        success=run.exit_code == 0,
        seconds=run.seconds,
    )
