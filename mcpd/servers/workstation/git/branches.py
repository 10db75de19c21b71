# SPDX-License-Identifier: LGPL-2.1-or-later
"""``git_branches`` and ``git_current_branch``: all branches, and the current one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field

from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.git.changes import RepositoryArguments, one_line
from mcpd.servers.workstation.git.revisions import HEADS, REMOTES, Head, commit_ids, head, short_name
from mcpd.servers.workstation.git.running import MAX_REVISION, find, git
from mcpd.servers.workstation.tool import Answer, Result, Tool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.git.repository import Repository

_FIELDS: Final = (
    "%(refname)",
    "%(symref)",
    "%(objectname)",
    "%(committerdate:iso-strict)",
    "%(contents:subject)",
    "%(upstream)",
    "%(upstream:track,nobracket)",
)
_FORMAT: Final = "".join(f"{field}%00" for field in _FIELDS)
_COUNT: Final = re.compile(r"(ahead|behind) ([0-9]+)")


class Branch(Result):
    """One branch."""

    name: str = Field(description="main, or origin/main for a remote one")
    remote: bool = Field(description="True if it is a remote branch, as of the last fetch")
    current: bool = Field(description="True if it is checked out")
    commit: str | None = None
    date: str | None = Field(default=None, description="When that was committed, RFC 3339")
    subject: str | None = Field(default=None, description="First paragraph of its message, in one line")
    stands_for: str | None = Field(default=None, description="The branch for which this name is an alias")
    upstream: str | None = Field(default=None, description="The branch that it follows")
    ahead: int | None = Field(default=None, description="Commits that upstream lacks")
    behind: int | None = Field(default=None, description="Commits that only upstream has")
    upstream_gone: bool | None = Field(default=None, description="True if upstream is gone")

    def shown(self) -> str:
        """Return a line in the format of ``git branch -vv``."""
        name = one_line(self.name)
        if self.stands_for is not None:
            return f"  {name} -> {one_line(self.stands_for)}"
        about = f"{name} {(self.commit or '')[:10]}{self.follows()} {self.subject or ''}"
        return f"{'*' if self.current else ' '} {about}".rstrip()

    def follows(self) -> str:
        """Return the upstream branch and the distance from it, in brackets; empty without one."""
        if self.upstream is None:
            return ""
        counts = [f"{word} {number}" for word, number in (("ahead", self.ahead), ("behind", self.behind)) if number]
        if self.upstream_gone:
            counts.append("gone")
        return f" [{one_line(self.upstream)}{': ' if counts else ''}{', '.join(counts)}]"


class BranchesArguments(RepositoryArguments):
    """Arguments of git_branches."""

    remotes: bool = Field(default=False, description="List remote branches instead of local ones")
    all: bool = Field(default=False, description="Local and remote branches")
    contains: str | None = Field(
        default=None, min_length=1, max_length=MAX_REVISION, description="Only branches that contain this commit"
    )
    merged: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_REVISION,
        description="Only branches that are merged into this commit",
    )
    not_merged: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_REVISION,
        description="Only branches that are not merged into this commit",
    )
    sort: Literal["name", "date"] = Field(default="name", description="date: the newest commit first")
    limit: int = Field(default=200, ge=1, le=5000, description="Maximum number of branches")


class BranchesResult(Result):
    """Result of git_branches."""

    repository: str = Field(description="Top of the repository")
    current: str | None = Field(default=None, description="The current branch; absent if HEAD is detached")
    detached: bool = Field(description="True if HEAD is detached")
    branches: list[Branch] = Field(description="The branches that have commits")
    truncated: bool = Field(description="True if there are more")


class CurrentBranchResult(Result):
    """Result of git_current_branch."""

    repository: str = Field(description="Top of the repository")
    branch: str | None = Field(default=None, description="The current branch; absent if HEAD is detached")
    detached: bool = Field(description="True if HEAD is detached")
    unborn: bool = Field(description="True if the branch has no commits yet")
    commit: str | None = Field(default=None, description="The current commit; absent on an unborn branch")
    upstream: str | None = Field(default=None, description="The branch that it follows")
    ahead: int | None = Field(default=None, description="Commits that upstream lacks")
    behind: int | None = Field(default=None, description="Commits that only upstream has")
    upstream_gone: bool | None = Field(default=None, description="True if upstream is gone")


async def _list(call: Call, repository: Repository, at: Head, *arguments: str) -> tuple[list[Branch], bool]:
    """Return the branches listed by ``git for-each-ref`` with *arguments*, and whether the list was cut off."""
    done = await git(call, repository, "for-each-ref", f"--format={_FORMAT}", *arguments)
    fields = done.stdout.decode(errors="surrogateescape").split("\0")
    return list(_parsed(fields, at)), done.truncated


def _parsed(fields: list[str], at: Head) -> Iterator[Branch]:
    for start in range(0, len(fields) - len(_FIELDS), len(_FIELDS)):
        reference, symbolic, commit, date, subject, upstream, track = fields[start : start + len(_FIELDS)]
        reference = reference.removeprefix("\n")
        counts = {word: int(number) for word, number in _COUNT.findall(track)}
        counted = bool(upstream) and track != "gone"
        yield Branch(
            name=short_name(reference),
            remote=reference.startswith(REMOTES),
            current=reference == at.reference,
            commit=commit or None,
            date=date or None,
            subject=shown_name(subject),
            stands_for=short_name(symbolic) if symbolic else None,
            upstream=short_name(upstream) if upstream else None,
            ahead=counts.get("ahead", 0) if counted else None,
            behind=counts.get("behind", 0) if counted else None,
            upstream_gone=track == "gone" or None,
        )


async def _branches(call: Call, arguments: BranchesArguments) -> Answer:
    repository = await find(call, arguments.path)
    at = await head(call, repository)
    key = "refname" if arguments.sort == "name" else "-committerdate"
    options = [f"--count={arguments.limit + 1}", f"--sort={key}"]
    filters = {"--contains": arguments.contains, "--merged": arguments.merged, "--no-merged": arguments.not_merged}
    given = {option: revision for option, revision in filters.items() if revision is not None}
    if given:
        ids = await commit_ids(call, repository, *given.values())
        options += [f"{option}={commit}" for option, commit in zip(given, ids, strict=True)]
    if arguments.all or not arguments.remotes:
        options.append(HEADS)
    if arguments.all or arguments.remotes:
        options.append(REMOTES)
    found, cut = await _list(call, repository, at, *options)
    result = BranchesResult(
        repository=shown_name(repository.place.path),
        current=at.branch,
        detached=at.reference is None,
        branches=found[: arguments.limit],
        truncated=cut or len(found) > arguments.limit,
    )
    lines = [branch.shown() for branch in result.branches] or ["No branches."]
    if result.detached:
        lines.insert(0, "* (HEAD detached)")
    if result.truncated:
        lines.append("[There are more branches.]")
    return Answer(result, ({"type": "text", "text": "\n".join(lines) + "\n"},))


async def _current(call: Call, arguments: RepositoryArguments) -> Answer:
    repository = await find(call, arguments.path)
    at = await head(call, repository)
    found: list[Branch] = []
    if at.reference is not None and at.commit is not None:
        found, _ = await _list(call, repository, at, at.reference)
    branch = next((each for each in found if each.current), None)
    result = CurrentBranchResult(
        repository=shown_name(repository.place.path),
        branch=at.branch,
        detached=at.reference is None,
        unborn=at.commit is None,
        commit=at.commit,
        upstream=branch.upstream if branch else None,
        ahead=branch.ahead if branch else None,
        behind=branch.behind if branch else None,
        upstream_gone=branch.upstream_gone if branch else None,
    )
    if result.detached:
        text = f"HEAD is detached at {at.commit}"
    else:
        follows = branch.follows() if branch else ""
        text = one_line(result.branch or "") + follows + (" (no commits yet)" if result.unborn else "")
    return Answer(result, ({"type": "text", "text": text + "\n"},))


BRANCHES: Final = Tool(
    name="git_branches",
    title="List branches",
    description="List local branches, or remote ones, with their commits and upstreams, and how far they are ahead"
    " and behind. Changes nothing and fetches nothing.",
    arguments=BranchesArguments,
    result=BranchesResult,
    run=_branches,
    read_only=True,
    idempotent=True,
)

CURRENT_BRANCH: Final = Tool(
    name="git_current_branch",
    title="Show the current branch",
    description="Show which branch is checked out, its commit, and how far it is ahead of and behind its upstream."
    " Changes nothing.",
    arguments=RepositoryArguments,
    result=CurrentBranchResult,
    run=_current,
    read_only=True,
    idempotent=True,
)
