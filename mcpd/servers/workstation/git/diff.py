# SPDX-License-Identifier: LGPL-2.1-or-later
"""``git_diff``: the differences between work tree, index and commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydantic import Field

from mcpd.errors import InvalidArgument, LimitExceeded
from mcpd.model import printable
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.git.changes import (
    MAX_PATCH_BYTES,
    PATCH_BYTES,
    Changes,
    PathsArguments,
    changes_of,
    files_of,
    one_line,
    shown,
)
from mcpd.servers.workstation.git.guards import changed_links, pathspecs_but
from mcpd.servers.workstation.git.revisions import commit_ids, selection
from mcpd.servers.workstation.git.running import MAX_REVISION, find
from mcpd.servers.workstation.jail import HERE
from mcpd.servers.workstation.tool import Answer, Tool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.git.repository import Repository

_COMMAND: Final = ("--no-literal-pathspecs", "diff")
_MOST_LEFT_OUT: Final = 1000


class DiffArguments(PathsArguments):
    """Arguments of git_diff."""

    staged: bool = Field(default=False, description="Compare the index with HEAD, or with revision")
    revision: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_REVISION,
        description="Compare the work tree with this commit; a range like A..B, or A...B, compares two",
    )
    to: str | None = Field(
        default=None, min_length=1, max_length=MAX_REVISION, description="Compare revision with this commit instead"
    )
    context: int = Field(default=3, ge=0, le=1000, description="Unchanged lines around each change")
    stat: bool = Field(default=False, description="Only the files with their numbers of lines, no patch")
    ignore_whitespace: bool = Field(default=False, description="Omit changes of whitespace only")
    max_bytes: int = Field(
        default=PATCH_BYTES, ge=1, le=MAX_PATCH_BYTES, description="Maximum size of the patch, in bytes"
    )


class DiffResult(Changes):
    """Result of git_diff."""

    repository: str = Field(description="Top of the repository")
    left_out: list[str] | None = Field(
        default=None,
        description="Changed files that are not shown: hard links, whose other names may be outside the roots",
    )


async def _run(call: Call, arguments: DiffArguments) -> Answer:
    repository = await find(call, arguments.path)
    compared = await _compared(call, repository, arguments)
    paths = [repository.pathspec(path) for path in arguments.paths] or [HERE]
    left_out = await _left_out(call, repository, paths) if _reads_work_tree(arguments) else []
    options = ["--ignore-all-space"] if arguments.ignore_whitespace else []
    options += [*compared, "--", *pathspecs_but(left_out, paths)]
    if arguments.stat:
        found = await files_of(call, repository, options, command=_COMMAND)
    else:
        found = await changes_of(
            call, repository, options, context=arguments.context, most=arguments.max_bytes, command=_COMMAND
        )
    result = DiffResult(
        repository=shown_name(repository.place.path),
        left_out=[shown_name(name) for name in left_out] or None,
        **dict(found),
    )
    text = shown(found)
    if left_out:
        text += f"[Left out, as they are hard links: {', '.join(map(one_line, left_out))}]\n"
    return Answer(result, ({"type": "text", "text": text},))


def _reads_work_tree(arguments: DiffArguments) -> bool:
    return not arguments.staged and arguments.to is None and ".." not in (arguments.revision or "")


async def _left_out(call: Call, repository: Repository, paths: Sequence[str]) -> list[str]:
    found = await changed_links(call, repository, paths)
    if len(found) > _MOST_LEFT_OUT:
        raise LimitExceeded(
            f"more than {_MOST_LEFT_OUT} changed files in {repository.place.shown} are hard links; name others in"
            " paths, or set allow_hard_links"
        )
    return found


async def _compared(call: Call, repository: Repository, arguments: DiffArguments) -> list[str]:
    """Return the arguments of ``git diff`` that select the two states."""
    staged, revision, to = arguments.staged, arguments.revision, arguments.to
    if to is not None:
        if revision is None or staged or ".." in revision:
            raise InvalidArgument("to needs revision, one commit, and excludes staged")
        return await commit_ids(call, repository, revision, to)
    if revision is not None and ".." in revision:
        if staged:
            raise InvalidArgument(f"staged compares the index with one commit; '{printable(revision)}' is a range")
        return [await selection(call, repository, revision)]
    if repository.bare:
        raise InvalidArgument(
            f"{repository.place.shown} is a bare repository, without a work tree and an index; say revision and to"
        )
    # Before the first commit, the index is compared with an empty tree.
    commit = [] if revision is None else await commit_ids(call, repository, revision)
    return ["--cached", *commit] if staged else commit


DIFF: Final = Tool(
    name="git_diff",
    title="Show what differs",
    description="Compare the work tree with the index (default), the index with HEAD (staged), the work tree with a"
    " commit (revision), or two commits (revision and to). Gives the changed files and a unified diff. Untracked files"
    " are not in it: git_status lists them. Changes nothing.",
    arguments=DiffArguments,
    result=DiffResult,
    run=_run,
    read_only=True,
    idempotent=True,
)
