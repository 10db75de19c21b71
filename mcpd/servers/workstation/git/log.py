# SPDX-License-Identifier: LGPL-2.1-or-later
"""``git_log``: the history, newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydantic import Field

from mcpd.errors import InvalidArgument, McpdError
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.git.arguments import NO_NUL, PathsArguments
from mcpd.servers.workstation.git.commits import Commit, read_commits
from mcpd.servers.workstation.git.revisions import HEAD, head, selection
from mcpd.servers.workstation.git.running import find
from mcpd.servers.workstation.git.safety import MAX_REVISION
from mcpd.servers.workstation.tool import Answer, Result, Tool

if TYPE_CHECKING:
    from mcpd.servers.workstation.call import Call

_WORDS: Final = 1000


class LogArguments(PathsArguments):
    """Which commits."""

    revision: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_REVISION,
        description="Where to start, or a range: main, v1.0, HEAD~3, v1.0..main, main...topic. Default HEAD",
    )
    all: bool = Field(default=False, description="Start from all branches and tags instead")
    follow: bool = Field(default=False, description="Follow the one file in paths through renames")
    limit: int = Field(default=10, ge=1, le=1000, description="Most commits to list")
    skip: int = Field(default=0, ge=0, le=10_000_000, description="Commits to leave out first; next_skip goes on")
    author: str | None = Field(
        default=None,
        min_length=1,
        max_length=_WORDS,
        pattern=NO_NUL,
        description="Only authors whose name or address contains this",
    )
    grep: str | None = Field(
        default=None,
        min_length=1,
        max_length=_WORDS,
        pattern=NO_NUL,
        description="Only messages that contain this text",
    )
    ignore_case: bool = Field(default=False, description="author and grep do not tell cases apart")
    since: str | None = Field(
        default=None,
        min_length=1,
        max_length=_WORDS,
        pattern=NO_NUL,
        description="Only newer ones: 2026-01-31, 2 weeks ago",
    )
    until: str | None = Field(
        default=None, min_length=1, max_length=_WORDS, pattern=NO_NUL, description="Only older ones, as since"
    )
    merges: bool | None = Field(default=None, description="true: only merges; false: no merges. Default: both")


class LogResult(Result):
    """The commits."""

    repository: str = Field(description="Top of the repository")
    commits: list[Commit] = Field(description="Newest first")
    truncated: bool = Field(description="Whether there are more")
    next_skip: int | None = Field(default=None, description="The value of skip that shows them")


async def _run(call: Call, arguments: LogArguments) -> Answer:
    if arguments.follow and len(arguments.paths) != 1:
        raise InvalidArgument("follow needs exactly one file in paths")
    if arguments.all and arguments.revision is not None:
        raise InvalidArgument("all and revision exclude each other; leave one of them out")
    repository = await find(call, arguments.path)
    paths = [repository.pathspec(path) for path in arguments.paths]
    if arguments.all:
        # A history without any ref and commit is no error.
        start = "--all"
    elif arguments.revision is not None:
        start = await selection(call, repository, arguments.revision)
    else:
        start = HEAD
    try:
        commits, cut = await read_commits(call, repository, *_options(arguments), start, "--", *paths)
    except McpdError:
        if start != HEAD or (await head(call, repository)).commit is not None:
            raise
        # Nothing has been committed yet, which is no error here either.
        commits, cut = [], False
    listed = commits[: arguments.limit]
    truncated = cut or len(commits) > len(listed)
    following = arguments.skip + len(listed) if truncated else None
    more = f"\n[More commits follow: skip={following}]\n" if truncated else ""
    text = "\n".join(commit.shown() for commit in listed) + more or "No commits.\n"
    return Answer(
        LogResult(
            repository=shown_name(repository.place.path), commits=listed, truncated=truncated, next_skip=following
        ),
        ({"type": "text", "text": text},),
    )


def _options(arguments: LogArguments) -> list[str]:
    options = [
        f"--max-count={arguments.limit + 1}",
        f"--skip={arguments.skip}",
        "--fixed-strings",
        "--follow" if arguments.follow else "--no-follow",
    ]
    options += [
        f"--{name}={value}"
        for name, value in (
            ("author", arguments.author),
            ("grep", arguments.grep),
            ("since", arguments.since),
            ("until", arguments.until),
        )
        if value is not None
    ]
    if arguments.ignore_case:
        options.append("--regexp-ignore-case")
    if arguments.merges is not None:
        options.append("--merges" if arguments.merges else "--no-merges")
    return options


LOG: Final = Tool(
    name="git_log",
    title="Show the history",
    description="List commits, newest first: ids, authors, dates and messages. Filters by range, path, author, date"
    " and text. Changes nothing.",
    arguments=LogArguments,
    result=LogResult,
    run=_run,
    read_only=True,
    idempotent=True,
)
