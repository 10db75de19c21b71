# SPDX-License-Identifier: LGPL-2.1-or-later
"""git_checkout: switch to another branch or commit, or restore files."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from pydantic import Field

from mcpd.errors import InvalidArgument, McpdError
from mcpd.model import printable
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.git.changes import RepositoryArguments
from mcpd.servers.workstation.git.committing import MAX_PATHS
from mcpd.servers.workstation.git.guards import DIFF, FROM_STDIN, MISSING, check_written, closed
from mcpd.servers.workstation.git.revisions import HEADS, empty_tree, head, look_up, unknown
from mcpd.servers.workstation.git.running import MAX_REVISION, failed, find, git, revision
from mcpd.servers.workstation.moves import adding_parts, nothing_builds
from mcpd.servers.workstation.tool import Answer, Result, Tool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.git.repository import Repository
    from mcpd.servers.workstation.git.revisions import Object

_NAMED: Final = 5
"""Maximum number of files named in an error."""
_NO_BRANCH: Final = re.compile(r"[\^~:]|\.\.|@\{")
"""Matches syntax of revisions that cannot be part of a branch name."""
_IN_THE_WAY: Final = ("would be overwritten by checkout", "would be removed by checkout", "would lose untracked files")


class CheckoutArguments(RepositoryArguments):
    """Arguments of git_checkout."""

    revision: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_REVISION,
        description="The branch to switch to, or a tag or commit; with paths: the revision to restore them from"
        " instead of the index",
    )
    create: bool = Field(default=False, description="Create revision as a new branch and switch to it")
    start_point: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_REVISION,
        description="Where the new branch begins: a branch, tag or commit; HEAD if absent",
    )
    detach: bool = Field(default=False, description="Check out the commit of revision with a detached HEAD")
    paths: list[str] = Field(
        default_factory=list,
        max_length=MAX_PATHS,
        description="Restore only these files or directories, and stay on the branch: from the top of the repository",
    )
    force: bool = Field(default=False, description="Overwrite local changes and untracked files that are in the way")


class CheckoutResult(Result):
    """Result of git_checkout: the new and the previous HEAD."""

    repository: str = Field(description="Top of the repository")
    branch: str | None = Field(default=None, description="The branch that HEAD is on; absent if it is detached")
    commit: str | None = Field(default=None, description="The commit at HEAD; absent before the first one")
    detached: bool = Field(description="True if HEAD is detached")
    previous_branch: str | None = Field(default=None, description="The previous branch")
    previous_commit: str | None = Field(default=None, description="The previous commit, to return to")
    created: bool | None = Field(default=None, description="True if the branch is new")
    restored: list[str] | None = Field(default=None, description="The paths that were restored")


async def _run(call: Call, arguments: CheckoutArguments) -> Answer:
    _check(arguments)
    revisions = [revision(each) for each in (arguments.start_point, arguments.revision) if each is not None]
    # A branch that is to be created does not name a revision yet.
    known = [] if arguments.create and arguments.start_point is None else revisions[:1]
    repository = await find(call, arguments.path)
    if repository.bare:
        raise InvalidArgument(f"{repository.place.shown} is a bare repository, without a working tree")
    async with adding_parts(call), nothing_builds(call):
        return await _check_out(call, repository, arguments, known)


async def _check_out(call: Call, repository: Repository, arguments: CheckoutArguments, known: list[str]) -> Answer:
    # An unknown name may be a remote's branch. Git prefers a branch to a tag of the same name.
    branches = [] if arguments.paths else [HEADS + each for each in known if not _NO_BRANCH.search(each)]
    found = await look_up(call, repository, *known, *branches) if known else []
    repository = await closed(call, repository, *known)
    before = now = await head(call, repository)
    paths = [repository.pathspec(path) for path in arguments.paths]
    if paths:
        if None in found:
            raise unknown(repository, known[0], "nothing")
        source = [f"{each.id}^{{tree}}" for each in found if each is not None]
        await _restore(call, repository, paths, source, force=arguments.force)
    else:
        if known:
            targets = await _targets(call, repository, known[0], found)
        else:
            targets = [before.commit] if before.commit and arguments.force else []
        # Without force, git only writes files that differ between the commits.
        froms = (
            [] if arguments.force else [before.commit or empty_tree(target.partition("^")[0]) for target in targets[:1]]
        )
        written = [(*DIFF, *froms, target, "--") for target in targets]
        await check_written(call, repository, *written, *([MISSING] if arguments.force else []))
        await _switch(call, repository, arguments)
        now = await head(call, repository)
    return Answer(
        CheckoutResult(
            repository=shown_name(repository.place.path),
            branch=now.branch,
            commit=now.commit,
            detached=now.branch is None,
            previous_branch=before.branch,
            previous_commit=before.commit,
            created=arguments.create or None,
            restored=[shown_name(path) for path in paths] or None,
        )
    )


def _check(arguments: CheckoutArguments) -> None:
    if arguments.paths and (arguments.create or arguments.detach or arguments.start_point is not None):
        raise InvalidArgument("paths are restored without leaving the branch: leave out create, start_point and detach")
    if not arguments.paths and arguments.revision is None:
        raise InvalidArgument("say revision, a branch or commit to go to, or paths to restore")
    if arguments.start_point is not None and not arguments.create:
        raise InvalidArgument("start_point is where a new branch begins: say create as well")
    if arguments.create and arguments.detach:
        raise InvalidArgument("create and detach exclude each other; say one of them")


async def _targets(call: Call, repository: Repository, name: str, found: Sequence[Object | None]) -> list[str]:
    """Return the commits that git may switch to for *name*; *found* has the objects of that revision and branch.

    Empty if it is not a commit, which git refuses. Raises :class:`~mcpd.errors.NotFound` if there is no such revision.
    """
    if "@{" in name:
        # It may stand for the name of a branch, such as @{-1} and @{upstream}.
        done = await git(call, repository, "check-ref-format", "--branch", name, accept=(0, 128))
        if not done.code:
            found = [*found, *await look_up(call, repository, HEADS + os.fsdecode(done.stdout).strip())]
    best = next((each for each in reversed(found) if each is not None), None)
    if best is not None:
        return [f"{best.id}^{{commit}}"] if best.kind in {"commit", "tag"} else []
    # Git creates a local branch for a remote's branch.
    guessed = await git(call, repository, "for-each-ref", "--format=%(objectname)", f"refs/**/{name}")
    if not guessed.stdout:
        raise unknown(repository, name)
    return guessed.stdout.decode().split()


async def _switch(call: Call, repository: Repository, arguments: CheckoutArguments) -> None:
    options = ["--quiet", "--force"] if arguments.force else ["--quiet", "--no-overwrite-ignore"]
    target = arguments.revision or ""
    if arguments.create:
        names = ["-b", target, *([] if arguments.start_point is None else [arguments.start_point])]
    else:
        names = ["--detach" if arguments.detach else "--guess", target]
    done = await git(call, repository, "checkout", *options, *names, "--", writes=True, accept=(0, 1, 128))
    if done.code:
        raise _explained(failed(repository, ("checkout",), done))


def _explained(fault: McpdError) -> McpdError:
    if any(part in fault.message for part in _IN_THE_WAY):
        return InvalidArgument(
            f"{fault.message}; nothing has changed: git_commit or git_stash them, or say force to lose them"
        )
    return fault


async def _restore(call: Call, repository: Repository, paths: list[str], source: list[str], *, force: bool) -> None:
    """Restore *paths* from *source*, a list with one object id, or from the index if it is empty."""
    if not force:
        lost = await _would_lose(call, repository, paths, *source)
        if lost:
            named = ", ".join(printable(path) for path in lost[:_NAMED])
            more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
            raise InvalidArgument(
                f"local changes would be lost in {named}{more}; nothing has changed: git_commit or git_stash them, or"
                " say force to lose them"
            )
    await check_written(call, repository, (*DIFF, *source, "--"), MISSING, paths=paths)
    await git(
        call,
        repository,
        "checkout",
        "--quiet",
        *source,
        *FROM_STDIN,
        writes=True,
        stdin=os.fsencode("\0".join(paths)),
    )


async def _would_lose(call: Call, repository: Repository, paths: list[str], source: str | None = None) -> list[str]:
    """Return the files of *paths* whose content is stored nowhere else and would be overwritten from *source*."""
    done = await git(
        call,
        repository,
        "status",
        "--porcelain=v1",
        "-z",
        "--no-renames",
        "--ignore-submodules=dirty",
        "--untracked-files=all",
        "--ignored=matching" if source is not None else "--ignored=no",
        "--",
        *paths,
    )
    if done.truncated:
        raise InvalidArgument(
            "too many files differ to tell whether any change would be lost; say force, or fewer paths"
        )
    changed, untracked = [], []
    for entry in done.stdout.decode("utf-8", "surrogateescape").split("\0"):
        index, work, name = entry[:1], entry[1:2], entry[3:]
        if index in {"?", "!"}:
            untracked.append(name)
        elif work not in {" ", "", "D"} or (source is not None and index not in {" ", "", "D"}):
            changed.append(name)
    if source is None or not untracked:
        return changed
    listed = await git(call, repository, "ls-tree", "-r", "--name-only", "-z", source, "--", *paths)
    there = listed.stdout.decode("utf-8", "surrogateescape").split("\0")
    names = frozenset(there)
    in_the_way = [name for name in untracked if name in names or (name.endswith("/") and _holds(name, there))]
    return changed + (untracked if listed.truncated else in_the_way)


def _holds(directory: str, names: list[str]) -> bool:
    return any(name.startswith(directory) for name in names)


CHECKOUT: Final = Tool(
    name="git_checkout",
    title="Check out",
    description=(
        "Switch to a branch, a new branch (create) or a commit, or restore files (paths) from the index or a"
        " revision. Refuses to overwrite local changes unless force is set."
    ),
    arguments=CheckoutArguments,
    result=CheckoutResult,
    run=_run,
    destructive=True,
)
