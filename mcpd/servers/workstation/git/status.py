# SPDX-License-Identifier: LGPL-2.1-or-later
"""``git_status``: the changes since the last commit, and the state of the branch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field

from mcpd.errors import InvalidArgument
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.git.changes import STATUSES, PathsArguments, Status, one_line, os_names
from mcpd.servers.workstation.git.repository import present
from mcpd.servers.workstation.git.revisions import look_up
from mcpd.servers.workstation.git.running import find, git
from mcpd.servers.workstation.tool import Answer, Result, Tool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.git.repository import Repository

Operation = Literal["merge", "cherry-pick", "revert", "rebase", "am", "bisect"]

_CONFLICTS: Final = {
    "DD": "both deleted",
    "AU": "added by us",
    "UD": "deleted by them",
    "UA": "added by them",
    "DU": "deleted by us",
    "AA": "both added",
    "UU": "both modified",
}
_OPERATIONS: Final[tuple[tuple[str, Operation], ...]] = (
    ("MERGE_HEAD", "merge"),
    ("rebase-apply/applying", "am"),
    ("rebase-apply", "rebase"),
    ("rebase-merge", "rebase"),
    ("CHERRY_PICK_HEAD", "cherry-pick"),
    ("REVERT_HEAD", "revert"),
    ("BISECT_LOG", "bisect"),
)
"""Files in the git directory during each operation, in the order in which git checks them."""
_REFTABLE: Final = "reftable"
_INITIAL: Final = "(initial)"
_DETACHED: Final = "(detached)"


class StatusArguments(PathsArguments):
    """Arguments of git_status."""

    untracked: Literal["no", "normal", "all"] = Field(
        default="normal", description="normal: untracked directories as one entry; all: each file in them; no: none"
    )
    ignored: bool = Field(default=False, description="Also list what .gitignore excludes")
    limit: int = Field(default=1000, ge=1, le=10000, description="Maximum number of entries")


class Entry(Result):
    """One file that has changed."""

    path: str = Field(description="From the top of the repository")
    old_path: str | None = Field(default=None, description="Its previous name, if it was renamed or copied")
    status: Status
    submodule: bool | None = None


class Conflict(Result):
    """One file with a merge conflict."""

    path: str = Field(description="From the top of the repository")
    status: str = Field(description="What both sides did: both modified, deleted by us, …")


class StatusResult(Result):
    """Result of git_status."""

    repository: str = Field(description="Top of the repository")
    branch: str | None = Field(default=None, description="The current branch; absent if HEAD is detached")
    detached: bool = Field(description="True if HEAD is detached")
    commit: str | None = Field(default=None, description="The current commit; absent before the first one")
    upstream: str | None = Field(default=None, description="The branch that it follows: origin/main")
    ahead: int | None = Field(default=None, description="Commits that upstream lacks")
    behind: int | None = Field(default=None, description="Commits that only upstream has")
    upstream_gone: bool | None = Field(default=None, description="True if upstream is gone")
    stashes: int = Field(description="Number of stash entries")
    operation: Operation | None = Field(default=None, description="The operation that is in progress")
    clean: bool = Field(description="True if nothing but ignored files is listed")
    staged: list[Entry] = Field(description="Changes in the index, which a commit would include")
    unstaged: list[Entry] = Field(description="Changes in the work tree that are not staged")
    conflicts: list[Conflict]
    untracked: list[str] = Field(description="Untracked files; directories end with /")
    ignored: list[str] | None = Field(default=None, description="Files that .gitignore excludes, if requested")
    truncated: bool = Field(description="True if there are more than are listed")


@dataclass
class _Found:
    """The parsed output of git."""

    headers: dict[str, str] = field(default_factory=dict)
    staged: list[Entry] = field(default_factory=list)
    unstaged: list[Entry] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    untracked: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """The entries in the format of ``git status --short``."""


async def _run(call: Call, arguments: StatusArguments) -> Answer:
    repository = await find(call, arguments.path)
    if repository.bare:
        raise InvalidArgument(f"{repository.place.shown} is a bare repository, without a work tree; git_log reads it")
    done = await git(
        call,
        repository,
        "status",
        "--porcelain=v2",
        "-z",
        "--branch",
        "--show-stash",
        "--ahead-behind",
        "--find-renames",
        "--ignore-submodules=dirty",
        f"--untracked-files={arguments.untracked}",
        f"--ignored={'traditional' if arguments.ignored else 'no'}",
        "--",
        *(repository.pathspec(path) for path in arguments.paths),
    )
    found = _Found()
    more = _take(found, os_names(done.stdout.rpartition(b"\0")[0].split(b"\0")), arguments.limit)
    headers = found.headers
    ahead, behind = (abs(int(number)) for number in headers.get("branch.ab", "+0 -0").split(" "))
    upstream = headers.get("branch.upstream")
    counted = "branch.ab" in headers
    branch = headers.get("branch.head", "")
    commit = headers.get("branch.oid", _INITIAL)
    result = StatusResult(
        repository=shown_name(repository.place.path),
        branch=None if branch == _DETACHED else shown_name(branch),
        detached=branch == _DETACHED,
        commit=None if commit == _INITIAL else commit,
        upstream=None if upstream is None else shown_name(upstream),
        ahead=ahead if counted else None,
        behind=behind if counted else None,
        upstream_gone=True if upstream is not None and not counted and commit != _INITIAL else None,
        stashes=int(headers.get("stash", "0")),
        operation=await _operation(call, repository),
        clean=not (found.staged or found.unstaged or found.conflicts or found.untracked),
        staged=found.staged,
        unstaged=found.unstaged,
        conflicts=found.conflicts,
        untracked=found.untracked,
        ignored=found.ignored if arguments.ignored else None,
        truncated=more or done.truncated,
    )
    return Answer(result, ({"type": "text", "text": _shown(result, found.lines)},))


async def _operation(call: Call, repository: Repository) -> Operation | None:
    names = (_REFTABLE, *(name for name, _ in _OPERATIONS))
    there = await call.in_thread(lambda: present(call.jail, repository.git_directory, names))
    if _REFTABLE in there:
        # With the reftable format, these two are not files.
        refs = ("CHERRY_PICK_HEAD", "REVERT_HEAD")
        there |= {name for name, found in zip(refs, await look_up(call, repository, *refs), strict=True) if found}
    return next((operation for name, operation in _OPERATIONS if name in there), None)


def _take(found: _Found, fields: Iterator[str], limit: int) -> bool:
    """Add the entries in *fields* of ``--porcelain=v2 -z`` to *found*; return True if there are more than *limit*."""
    for line in fields:
        kind, _, rest = line.partition(" ")
        if kind == "#":
            name, _, value = rest.partition(" ")
            found.headers[name] = value
            continue
        if len(found.lines) == limit:
            return True
        if kind in {"1", "2"}:
            _take_change(found, kind, rest, fields)
        elif kind == "u":
            state, *_, path = rest.split(" ", 9)
            found.conflicts.append(Conflict(path=shown_name(path), status=_CONFLICTS.get(state, "unmerged")))
            found.lines.append(f"{state} {one_line(path)}")
        elif kind in {"?", "!"}:
            (found.untracked if kind == "?" else found.ignored).append(shown_name(rest))
            found.lines.append(f"{kind}{kind} {one_line(rest)}")
    return False


def _take_change(found: _Found, kind: str, rest: str, fields: Iterator[str]) -> None:
    """Add a changed file: ``XY sub mH mI mW hH hI [Xscore] path``, followed by the old path if it was renamed."""
    state, submodule, *_, path = rest.split(" ", 8 if kind == "2" else 7)
    old = next(fields, None) if kind == "2" else None
    for letter, entries in zip(state, (found.staged, found.unstaged), strict=True):
        if letter != ".":
            renamed = letter in "RC" and old is not None
            entries.append(
                Entry(
                    path=shown_name(path),
                    old_path=shown_name(old) if renamed and old is not None else None,
                    status=STATUSES.get(letter, "modified"),
                    submodule=submodule.startswith("S") or None,
                )
            )
    name = one_line(path) if old is None else f"{one_line(old)} -> {one_line(path)}"
    found.lines.append(f"{state.replace('.', ' ')} {name}")


def _shown(result: StatusResult, lines: list[str]) -> str:
    """Return *result* and *lines* in the format of ``git status --short --branch``."""
    head = "## HEAD (no branch)" if result.branch is None else f"## {one_line(result.branch)}"
    if result.commit is None:
        head = f"## No commits yet on {one_line(result.branch or '')}"
    if result.upstream is not None:
        head += f"...{one_line(result.upstream)}"
    counts = [f"{word} {number}" for word, number in (("ahead", result.ahead), ("behind", result.behind)) if number]
    if result.upstream_gone:
        counts.append("gone")
    if counts:
        head += f" [{', '.join(counts)}]"
    said = [head]
    if result.operation:
        said.append(f"## {result.operation} under way")
    if result.clean:
        said.append("Nothing to commit, the work tree is clean.")
    more = ["[There is more than is listed.]"] if result.truncated else []
    return "\n".join([*said, *lines, *more]) + "\n"


STATUS: Final = Tool(
    name="git_status",
    title="Show what has changed",
    description="Show the current branch, how far it is ahead of and behind its upstream, and the staged, unstaged,"
    " conflicting and untracked files. Changes nothing.",
    arguments=StatusArguments,
    result=StatusResult,
    run=_run,
    read_only=True,
    idempotent=True,
)
