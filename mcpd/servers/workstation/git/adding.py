# SPDX-License-Identifier: LGPL-2.1-or-later
"""git_add: changes of the working tree taken into the index."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from pydantic import Field

from mcpd.errors import InvalidArgument
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.git.arguments import RepositoryArguments
from mcpd.servers.workstation.git.changes import Change, files_of
from mcpd.servers.workstation.git.hard_links import check_links
from mcpd.servers.workstation.git.running import find, git
from mcpd.servers.workstation.git.submodules import FROM_STDIN, all_but, below, closed, links
from mcpd.servers.workstation.tool import Answer, Result, Tool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.git.repository import Repository

MAX_PATHS: Final = 1000
"""Paths of one call."""


class AddArguments(RepositoryArguments):
    """What git_add takes."""

    paths: list[str] = Field(
        default_factory=list,
        max_length=MAX_PATHS,
        description="Files and directories to add, no globs: from the top of the repository, or absolute",
    )
    all: bool = Field(default=False, description="Add all that has changed, new and deleted files as well")
    update: bool = Field(default=False, description="Add only files that git already tracks: changes and deletions")
    intent_to_add: bool = Field(default=False, description="Only note that the files will be added, not their content")
    force: bool = Field(default=False, description="Add files that .gitignore excludes, too")


class AddResult(Result):
    """What is staged afterwards."""

    repository: str = Field(description="Top of the repository")
    staged: list[Change] = Field(description="What the next commit would hold of the paths, at most 1000 files")
    truncated: bool | None = Field(default=None, description="True if more files are staged than are listed")


async def _run(call: Call, arguments: AddArguments) -> Answer:
    if arguments.all and arguments.update:
        raise InvalidArgument("all and update exclude each other; say one of them")
    if not (arguments.paths or arguments.all or arguments.update):
        raise InvalidArgument("there is nothing to add; say paths, or all, or update")
    repository = await closed(call, await find(call, arguments.path))
    if repository.bare:
        raise InvalidArgument(f"{repository.place.shown} is a bare repository, without a working tree to add from")
    paths = [repository.pathspec(path) for path in arguments.paths] or ["."]
    await check_links(call, repository, paths, untracked=not arguments.update, ignored=arguments.force)
    options = [
        option
        for option, wanted in (
            ("--all", arguments.all),
            ("--update", arguments.update),
            ("--intent-to-add", arguments.intent_to_add),
            ("--force", arguments.force),
        )
        if wanted
    ]
    await _add(call, repository, options, paths)
    found = await files_of(call, repository, ("--cached", "--ita-visible-in-index", "--", *paths))
    result = AddResult(
        repository=shown_name(repository.place.path), staged=found.files or [], truncated=found.files_truncated
    )
    return Answer(result)


async def _add(call: Call, repository: Repository, options: Sequence[str], paths: Sequence[str]) -> None:
    """``git add`` *options* of *paths*, from the top level, in a *repository* whose submodules are closed.

    Of a submodule only its commit is taken: git would ask the submodule's own git whether it has changed.
    """
    inside = [] if call.settings.allow_hooks else [link for link in await links(call, repository) if below(paths, link)]
    if not inside:
        await git(call, repository, "add", *options, *FROM_STDIN, writes=True, stdin=_joined(paths))
        return
    rest = [path for path in paths if path not in inside]
    if rest:
        stdin = all_but(inside, rest)
        await git(call, repository, "--no-literal-pathspecs", "add", *options, *FROM_STDIN, writes=True, stdin=stdin)
    if "--intent-to-add" not in options:
        await git(call, repository, "update-index", "--remove", "-z", "--stdin", writes=True, stdin=_joined(inside))


def _joined(paths: Sequence[str]) -> bytes:
    return os.fsencode("\0".join(paths))


ADD: Final = Tool(
    name="git_add",
    title="Stage changes",
    description=(
        "Take changes of the working tree into the index, for the next commit. Filters that only the repository's own"
        " configuration names are not run; files that need one are refused."
    ),
    arguments=AddArguments,
    result=AddResult,
    run=_run,
    idempotent=True,
)
