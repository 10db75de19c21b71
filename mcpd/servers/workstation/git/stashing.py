# SPDX-License-Identifier: LGPL-2.1-or-later
"""git_stash: save, list, show, restore and drop stashes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field

from mcpd.errors import InvalidArgument, NotFound
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.git.changes import NO_NUL, Change, RepositoryArguments, changes_of, files_of, shown
from mcpd.servers.workstation.git.guards import (
    DIFF,
    FROM_STDIN,
    MISSING,
    all_but,
    check_links,
    check_written,
    closed,
    links,
)
from mcpd.servers.workstation.git.revisions import HEAD, look_up
from mcpd.servers.workstation.git.running import failed, find, git
from mcpd.servers.workstation.moves import adding_parts, nothing_builds
from mcpd.servers.workstation.tool import Answer, Result, Tool

if TYPE_CHECKING:
    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.git.repository import Repository

MAX_INDEX: Final = 100_000
MOST_STASHES: Final = 200
"""Maximum number of stashes listed."""
MAX_MESSAGE: Final = 1000
_IN_THE_WAY: Final = ("would be overwritten by merge", "already exists, no checkout", "Cannot apply")


class StashArguments(RepositoryArguments):
    """Arguments of git_stash."""

    action: Literal["push", "list", "show", "apply", "pop", "drop"] = Field(
        description="push: stash changes; apply: restore them; pop: apply and drop; drop: delete them"
    )
    message: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_MESSAGE,
        pattern=NO_NUL,
        description="For push: its message, in one line",
    )
    include_untracked: bool = Field(default=False, description="For push: also stash untracked files")
    keep_index: bool = Field(default=False, description="For push: leave staged changes in place")
    index: int = Field(
        default=0, ge=0, le=MAX_INDEX, description="For show, apply, pop and drop: which one; 0 is the newest"
    )
    restore_index: bool = Field(default=False, description="For apply and pop: stage what was staged")


class Stash(Result):
    """One stash."""

    index: int = Field(description="Its current number; 0 is the newest")
    commit: str = Field(description="The id of its commit, which stays the same")
    created: str = Field(description="When it was made, RFC 3339")
    message: str


class StashResult(Result):
    """Result of git_stash."""

    repository: str = Field(description="Top of the repository")
    action: str
    stashes: list[Stash] = Field(description="The stashes after the call, newest first, at most 200")
    saved: bool | None = Field(default=None, description="For push: false if there was nothing to stash")
    commit: str | None = Field(
        default=None,
        description="The id of the stash, by which a dropped stash can be found until git collects garbage",
    )
    dropped: bool | None = Field(default=None, description="True if the stash was removed from the list")
    conflicts: list[str] | None = Field(default=None, description="Files with conflict markers; the stash is kept")
    files: list[Change] | None = Field(default=None, description="For show: the files that it changes")
    patch: str | None = Field(default=None, description="For show: the patch; invalid UTF-8 is replaced")
    truncated: bool | None = Field(default=None, description="For show: true if files or patch were truncated")


async def _run(call: Call, arguments: StashArguments) -> Answer:
    _check(arguments)
    repository = await find(call, arguments.path)
    if repository.bare:
        raise InvalidArgument(f"{repository.place.shown} is a bare repository, without a working tree")
    if arguments.action == "list":
        return await _answer(call, repository, arguments)
    if arguments.action == "push":
        repository = await closed(call, repository)
        async with adding_parts(call), nothing_builds(call):
            return await _push(call, repository, arguments)
    name, commit = await _found(call, repository, arguments.index)
    if arguments.action == "show":
        return await _show(call, repository, arguments, commit)
    repository = await closed(call, repository, commit)
    if arguments.action == "drop":
        await git(call, repository, "stash", "drop", "--quiet", name, writes=True)
        return await _answer(call, repository, arguments, commit=commit, dropped=True)
    async with adding_parts(call), nothing_builds(call):
        return await _apply(call, repository, arguments, commit)


def _check(arguments: StashArguments) -> None:
    pushes = arguments.message is not None or arguments.include_untracked or arguments.keep_index
    if pushes and arguments.action != "push":
        raise InvalidArgument("message, include_untracked and keep_index are for push only; leave them out")
    if arguments.restore_index and arguments.action not in {"apply", "pop"}:
        raise InvalidArgument("restore_index is for apply and pop only; leave it out")
    if arguments.index and arguments.action in {"push", "list"}:
        raise InvalidArgument("index is for show, apply, pop and drop only; leave it out")
    if arguments.message is not None and not arguments.message.isprintable():
        raise InvalidArgument("message: the name of a stash is one line of text")


async def _push(call: Call, repository: Repository, arguments: StashArguments) -> Answer:
    await check_links(call, repository, ["."], untracked=arguments.include_untracked)
    before = await _stashes(call, repository, 1)
    options = [
        option
        for option, wanted in (
            ("--include-untracked", arguments.include_untracked),
            ("--keep-index", arguments.keep_index),
            (f"--message={arguments.message}", arguments.message is not None),
        )
        if wanted
    ]
    # Git would enter a submodule without a name, whatever is configured for all.
    inside = [] if call.settings.allow_hooks else await links(call, repository)
    if (await look_up(call, repository, HEAD))[0] is not None:
        staged = [(*DIFF, "--")] if arguments.keep_index else []
        await check_written(call, repository, (*DIFF, HEAD, "--"), MISSING, *staged)
    # The git commands that it runs name all files as ":/", which is not a literal path.
    await git(
        call,
        repository,
        "--no-literal-pathspecs",
        "stash",
        "push",
        *options,
        *(FROM_STDIN if inside else ()),
        writes=True,
        stdin=all_but(inside) if inside else b"",
    )
    after = await _stashes(call, repository)
    saved = after[:1] != before
    commit = after[0].commit if saved and after else None
    return await _answer(call, repository, arguments, stashes=after, saved=saved, commit=commit)


async def _show(call: Call, repository: Repository, arguments: StashArguments, commit: str) -> Answer:
    changes = await changes_of(call, repository, (commit,), command=("stash", "show", "--include-untracked"))
    answer = await _answer(
        call,
        repository,
        arguments,
        commit=commit,
        files=changes.files,
        patch=changes.patch,
        truncated=changes.truncated or changes.files_truncated or False,
    )
    return Answer(answer.result, ({"type": "text", "text": shown(changes)},))


async def _apply(call: Call, repository: Repository, arguments: StashArguments, commit: str) -> Answer:
    """Apply the stash by its commit, so that it is the one that was checked; drop it only on success."""
    base, untracked = await look_up(call, repository, f"{commit}^1", f"{commit}^3")
    if base is not None:
        # Changes of a file that was renamed since are applied to its new name.
        renamed = (*DIFF, "--cached", "--diff-filter=A", base.id, "--")
        more = [] if untracked is None else [("ls-tree", "-r", "--name-only", untracked.id)]
        await check_written(call, repository, (*DIFF, base.id, commit, "--"), renamed, *more)
    # Explicit options, as otherwise the repository's stash.index applies.
    option = "--index" if arguments.restore_index else "--no-index"
    done = await git(
        call,
        repository,
        "--no-literal-pathspecs",
        "stash",
        "apply",
        "--quiet",
        option,
        commit,
        writes=True,
        accept=(0, 1),
    )
    unmerged = await files_of(call, repository, ("--diff-filter=U", "--"))
    conflicts = [each.path for each in unmerged.files or ()]
    if done.code and not conflicts:
        fault = failed(repository, ("stash", "apply"), done)
        if any(part in fault.message for part in _IN_THE_WAY):
            raise InvalidArgument(
                f"{fault.message}; the stash is kept: git_commit or git_stash what is in the way first"
            )
        raise fault
    dropped = False
    if arguments.action == "pop" and not done.code:
        name, now = await _found(call, repository, arguments.index)
        if now == commit:
            await git(call, repository, "stash", "drop", "--quiet", name, writes=True)
            dropped = True
    return await _answer(
        call, repository, arguments, commit=commit, dropped=dropped, conflicts=conflicts if done.code else None
    )


async def _found(call: Call, repository: Repository, index: int) -> tuple[str, str]:
    """Return the name and the commit of the stash number *index*."""
    name = f"stash@{{{index}}}"
    done = await git(call, repository, "rev-parse", "--quiet", "--verify", f"refs/{name}", accept=(0, 1, 128))
    # For some versions of git, a number beyond the oldest means the oldest, with a warning.
    if b"log for" in done.stderr or (done.code and not done.stderr):
        raise NotFound(f"there is no {name} in {repository.place.shown}; the action list shows what there is")
    if done.code:
        raise failed(repository, ("rev-parse",), done)
    return name, done.stdout.decode().strip()


async def _stashes(call: Call, repository: Repository, most: int = MOST_STASHES) -> list[Stash]:
    options = (f"--max-count={most}", "-z", "--no-color", "--no-show-signature", "--no-patch")
    done = await git(call, repository, "stash", "list", *options, "--format=tformat:%H%x1f%cI%x1f%gs")
    found = []
    for index, entry in enumerate(done.stdout.rpartition(b"\0")[0].split(b"\0") if done.stdout else ()):
        commit, created, message = (*entry.decode(errors="replace").split("\x1f", 2), "", "")[:3]
        found.append(Stash(index=index, commit=commit, created=created, message=message))
    return found


async def _answer(
    call: Call,
    repository: Repository,
    arguments: StashArguments,
    stashes: list[Stash] | None = None,
    **fields: bool | str | list[Change] | list[str] | None,
) -> Answer:
    said = {
        "repository": shown_name(repository.place.path),
        "action": arguments.action,
        "stashes": await _stashes(call, repository) if stashes is None else stashes,
        **fields,
    }
    return Answer(StashResult.model_validate(said))


STASH: Final = Tool(
    name="git_stash",
    title="Stash changes",
    description="Stash local changes (push), list and show stashes, restore them (apply, pop) or delete them (drop).",
    arguments=StashArguments,
    result=StashResult,
    run=_run,
    destructive=True,
)
