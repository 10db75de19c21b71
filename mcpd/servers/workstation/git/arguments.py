# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the tools that read a repository take in common."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from mcpd.servers.workstation.tool import Arguments

NO_NUL: Final = r"^[^\x00]*$"
"""The pattern of text that git is given: no argument of a program holds a NUL, nor does a commit."""


class RepositoryArguments(Arguments):
    """Which repository."""

    path: str = Field(
        default=".", description="The repository, or anything in it; absolute, or relative to the first root"
    )


class PathsArguments(RepositoryArguments):
    """Which repository, and which part of it."""

    paths: list[str] = Field(
        default=[],
        max_length=200,
        description="Only these files or directories: from the top of the repository, or absolute",
    )
