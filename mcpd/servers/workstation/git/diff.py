# SPDX-License-Identifier: LGPL-2.1-or-later
"""``git/diff``: what differs between work tree, index and commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydantic import Field

from mcpd.errors import InvalidArgument
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.git.arguments import PathsArguments
from mcpd.servers.workstation.git.changes import (
    MAX_PATCH_BYTES,
    PATCH_BYTES,
    Changes,
    changes_of,
    files_of,
    shown,
)
from mcpd.servers.workstation.git.revisions import commit_ids, selection
from mcpd.servers.workstation.git.running import find
from mcpd.servers.workstation.git.safety import MAX_REVISION
from mcpd.servers.workstation.tool import Answer, Tool

if TYPE_CHECKING:
    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.git.repository import Repository


class DiffArguments(PathsArguments):
    """What to compare."""

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
    ignore_whitespace: bool = Field(default=False, description="Leave out changes of white space only")
    max_bytes: int = Field(default=PATCH_BYTES, ge=1, le=MAX_PATCH_BYTES, description="Most bytes of the patch")


class DiffResult(Changes):
    """What differs."""

    repository: str = Field(description="Top of the repository")


async def _run(call: Call, arguments: DiffArguments) -> Answer:
    repository = await find(call, arguments.path)
    options = ["--ignore-all-space"] if arguments.ignore_whitespace else []
    options += [
        *await _compared(call, repository, arguments),
        "--",
        *(repository.pathspec(path) for path in arguments.paths),
    ]
    if arguments.stat:
        found = await files_of(call, repository, options)
    else:
        found = await changes_of(call, repository, options, context=arguments.context, most=arguments.max_bytes)
    result = DiffResult(repository=shown_name(repository.place.path), **dict(found))
    return Answer(result, ({"type": "text", "text": shown(found)},))


async def _compared(call: Call, repository: Repository, arguments: DiffArguments) -> list[str]:
    """What of git diff's arguments says which two states are compared."""
    staged, revision, to = arguments.staged, arguments.revision, arguments.to
    if to is not None:
        if revision is None or staged or ".." in revision:
            raise InvalidArgument("to needs revision, one commit, and excludes staged")
        return await commit_ids(call, repository, revision, to)
    if revision is not None and ".." in revision:
        if staged:
            raise InvalidArgument(f"staged compares the index with one commit; {revision[:100]!r} is a range")
        return [await selection(call, repository, revision)]
    if repository.bare:
        raise InvalidArgument(
            f"{repository.place.shown} is a bare repository, without a work tree and an index; say revision and to"
        )
    # Without a commit yet, the index is compared with nothing.
    commit = [] if revision is None else await commit_ids(call, repository, revision)
    return ["--cached", *commit] if staged else commit


DIFF: Final = Tool(
    name="git/diff",
    title="Show what differs",
    description="Compares the work tree with the index (default), the index with HEAD (staged), the work tree with a"
    " commit (revision), or two commits (revision and to). Gives the changed files and a unified diff. Untracked files"
    " are not in it: git/status lists them. Changes nothing.",
    arguments=DiffArguments,
    result=DiffResult,
    run=_run,
    read_only=True,
    idempotent=True,
)
