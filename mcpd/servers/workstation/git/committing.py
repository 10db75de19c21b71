# SPDX-License-Identifier: LGPL-2.1-or-later
"""``git_add`` and ``git_commit``."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from pydantic import Field

from mcpd.errors import ConfigMissing, InvalidArgument, McpdError
from mcpd.model import printable
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.git.changes import NO_NUL, Change, RepositoryArguments, files_of
from mcpd.servers.workstation.git.guards import FROM_STDIN, all_but, below, check_links, closed, links
from mcpd.servers.workstation.git.revisions import HEAD, head
from mcpd.servers.workstation.git.running import failed, find, git
from mcpd.servers.workstation.moves import adding_parts
from mcpd.servers.workstation.tool import Answer, Result, Tool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.git.repository import Repository
    from mcpd.servers.workstation.processes import Completed

MAX_PATHS: Final = 1000
"""Maximum number of paths in one call."""


class AddArguments(RepositoryArguments):
    """Arguments of git_add."""

    paths: list[str] = Field(
        default_factory=list,
        max_length=MAX_PATHS,
        description="Files and directories to add, no globs: from the top of the repository, or absolute",
    )
    all: bool = Field(default=False, description="Add all changes, including new and deleted files")
    update: bool = Field(default=False, description="Add only files that git already tracks: changes and deletions")
    intent_to_add: bool = Field(
        default=False, description="Record only that the files will be added, without their content"
    )
    force: bool = Field(default=False, description="Also add files that .gitignore excludes")


class AddResult(Result):
    """Result of git_add."""

    repository: str = Field(description="Top of the repository")
    staged: list[Change] = Field(description="What the next commit would contain of the paths, at most 1000 files")
    truncated: bool | None = Field(default=None, description="True if more files are staged than are listed")


async def _run_add(call: Call, arguments: AddArguments) -> Answer:
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
    """Run ``git add`` with *options* on *paths* from the top level; the submodules of *repository* must be closed.

    For a submodule only its commit is staged: git would run the submodule's own git to see whether it has changed.
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
        "Add changes of the work tree to the index, for the next commit. Filters that are only defined in the"
        " repository's own configuration are not run; files that need one are refused."
    ),
    arguments=AddArguments,
    result=AddResult,
    run=_run_add,
    idempotent=True,
)


MAX_MESSAGE: Final = 100_000
"""Maximum length of a message in characters."""
_NUMBER: Final = re.compile(r" (\d+) (file|insertion|deletion)")
_NOTHING: Final = re.compile(
    rb"nothing to commit|nothing added to commit|no changes added to commit|would make\s+it empty"
)
_NOBODY: Final = re.compile(rb"tell me who you are|empty ident name|no (email|name) was given")
_AUTHOR: Final = re.compile(r"[^<>\x00-\x1f]+ <[^<>\x00-\x1f]*>")
_UNSIGNED: Final = re.compile(rb"failed to sign|cannot run gpg|failed to write commit object.*sign", re.DOTALL)


class CommitArguments(RepositoryArguments):
    """Arguments of git_commit."""

    message: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_MESSAGE,
        pattern=NO_NUL,
        description="The message: a subject line, an empty line, the rest; with amend the old one if absent",
    )
    all: bool = Field(default=False, description="Stage all changes of tracked files first, but no new files")
    paths: list[str] = Field(
        default_factory=list,
        max_length=MAX_PATHS,
        description="Commit only these tracked files, as they are on disk: from the top of the repository, or absolute",
    )
    amend: bool = Field(default=False, description="Replace the last commit")
    allow_empty: bool = Field(default=False, description="Commit even if nothing has changed")
    author: str | None = Field(
        default=None,
        max_length=500,
        pattern=NO_NUL,
        description="A different author: Name <name@example.org>",
    )
    no_gpg_sign: bool = Field(default=False, description="Do not sign, even if the configuration asks for it")


class CommitResult(Result):
    """Result of git_commit."""

    repository: str = Field(description="Top of the repository")
    commit: str
    abbreviated: str
    branch: str | None = Field(default=None, description="The branch it is on; absent if HEAD is detached")
    author: str = Field(description="Its author: Name <name@example.org>")
    subject: str = Field(description="The first line of its message")
    files_changed: int = Field(description="Number of files that differ from the previous commit")
    insertions: int
    deletions: int


async def _run_commit(call: Call, arguments: CommitArguments) -> Answer:
    if arguments.message is None and not arguments.amend:
        raise InvalidArgument("message is missing; only amend keeps the message that is there")
    if arguments.message is not None and not arguments.message.strip():
        raise InvalidArgument("message is blank; say what the commit changes")
    if arguments.all and arguments.paths:
        raise InvalidArgument("all and paths exclude each other; say one of them")
    if arguments.author is not None and not _AUTHOR.fullmatch(arguments.author):
        raise InvalidArgument(f"author: '{printable(arguments.author)}' is not written as: Name <name@example.org>")
    repository = await closed(call, await find(call, arguments.path))
    if repository.bare:
        raise InvalidArgument(f"{repository.place.shown} is a bare repository, without a working tree to commit from")
    paths = [repository.pathspec(path) for path in arguments.paths]
    if paths or arguments.all:
        # Files in paths are committed even if they are marked as unchanged (assume-unchanged).
        await check_links(call, repository, paths or ["."], assumed=bool(paths))
    # Keep lines that begin with '#': there are no comments, as no editor is shown.
    options = ["--cleanup=whitespace", "--no-status", "--no-verbose"]
    options += ["--no-edit"] if arguments.message is None else ["--file=-"]
    options += [
        option
        for option, wanted in (
            ("--all", arguments.all),
            ("--amend", arguments.amend),
            ("--allow-empty", arguments.allow_empty),
            ("--no-gpg-sign", arguments.no_gpg_sign),
        )
        if wanted
    ]
    if arguments.author is not None:
        options.append(f"--author={arguments.author}")
    # A concurrent git_checkout must find the branch at the commit that it has checked.
    async with adding_parts(call):
        done = await git(
            call,
            repository,
            "commit",
            *options,
            "--",
            *paths,
            writes=True,
            stdin=(arguments.message or "").encode(),
            accept=(0, 1, 128),
        )
    if done.code:
        raise _fault(repository, arguments, done)
    return Answer(await _made(call, repository))


def _fault(repository: Repository, arguments: CommitArguments, done: Completed) -> McpdError:
    """Return the error for a commit that git refused, with advice."""
    said = done.stdout + done.stderr
    if _NOTHING.search(said):
        what = "the files in paths have not changed" if arguments.paths else "nothing is staged"
        return InvalidArgument(
            f"nothing to commit in {repository.place.shown}: {what}; stage changes with git_add, say all for those of"
            " tracked files, or allow_empty"
        )
    if _NOBODY.search(said):
        return ConfigMissing(
            f"git does not know who commits in {repository.place.shown}; set user.name and user.email in ~/.gitconfig:"
            " git config --global user.name 'Your Name'; git config --global user.email you@example.org"
        )
    fault = failed(repository, ("commit",), done)
    if _UNSIGNED.search(said):
        return McpdError(f"{fault.message}; keys are out of reach here: say no_gpg_sign, or commit in a terminal")
    return fault


async def _made(call: Call, repository: Repository) -> CommitResult:
    """Return the details of the commit at HEAD."""
    shown = await git(
        call,
        repository,
        "show",
        "--no-color",
        "--no-ext-diff",
        "--no-textconv",
        "--no-notes",
        "--no-relative",
        "--find-renames",
        "--root",
        "--diff-merges=first-parent",
        "--shortstat",
        "--format=%H%x00%h%x00%an <%ae>%x00%s%x00",
        HEAD,
    )
    commit, abbreviated, author, subject, numbers = shown.stdout.decode("utf-8", "replace").split("\0", 4)
    counts = {what: int(number) for number, what in _NUMBER.findall(numbers)}
    return CommitResult(
        repository=shown_name(repository.place.path),
        commit=commit,
        abbreviated=abbreviated,
        branch=(await head(call, repository)).branch,
        author=author,
        subject=subject,
        files_changed=counts.get("file", 0),
        insertions=counts.get("insertion", 0),
        deletions=counts.get("deletion", 0),
    )


COMMIT: Final = Tool(
    name="git_commit",
    title="Commit",
    description=(
        "Commit the staged changes, the files in paths or, with all, all changes of tracked files. Hooks are not"
        " run unless allow_hooks is set."
    ),
    arguments=CommitArguments,
    result=CommitResult,
    run=_run_commit,
)
