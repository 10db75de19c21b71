# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commits as ``git log`` tells them, in a format of our own in which no message can be mistaken for anything else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final

from pydantic import Field

from mcpd.errors import LimitExceeded
from mcpd.servers.workstation.git.running import git
from mcpd.servers.workstation.tool import Result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.git.repository import Repository

_FIELDS: Final = ("%H", "%h", "%P", "%aN", "%aE", "%aI", "%cN", "%cE", "%cI", "%s", "%D", "%b")
"""The long ones come last: what is cut off at the end is cut off there."""
_SHORT: Final = 9
"""Fields that are never long."""
_DECORATED: Final = tuple(f"--decorate-refs={each}" for each in ("HEAD", "refs/heads", "refs/remotes", "refs/tags"))
"""Said, as the repository's log.excludeDecoration counts otherwise."""
_FORMAT: Final = "".join(f"{field}%x00" for field in _FIELDS)


class Commit(Result):
    """One commit."""

    commit: str
    abbreviated: str
    parents: list[str] = Field(description="Full ids of its parents; two or more for a merge")
    author: str
    author_email: str
    date: str = Field(description="When it was written, RFC 3339")
    committer: str
    committer_email: str
    committed: str = Field(description="When it was committed, RFC 3339")
    refs: list[str] = Field(description="Branches and tags that point at it, as git log shows them")
    subject: str = Field(description="First paragraph of the message, in one line")
    body: str = Field(description="The rest of the message; empty if there is none")

    def shown(self) -> str:
        """As ``git log`` prints it."""
        lines = [f"commit {self.commit}" + (f" ({', '.join(self.refs)})" if self.refs else "")]
        if len(self.parents) > 1:
            lines.append("Merge: " + " ".join(parent[: len(self.abbreviated)] for parent in self.parents))
        lines += [f"Author: {self.author} <{self.author_email}>", f"Date:   {self.date}", "", f"    {self.subject}"]
        if self.body:
            lines += ["", *(f"    {line}".rstrip() for line in self.body.splitlines())]
        return "\n".join(lines) + "\n"


async def read_commits(call: Call, repository: Repository, *arguments: str) -> tuple[list[Commit], bool]:
    """The commits that ``git log`` with *arguments* lists, and whether there was more than an answer may hold.

    Raises McpdError if git does, and :class:`~mcpd.errors.LimitExceeded` for a commit that alone is too much.
    """
    done = await git(
        call,
        repository,
        "log",
        f"--format=tformat:{_FORMAT}",
        "--encoding=UTF-8",
        "--decorate=short",
        *_DECORATED,
        "--no-color",
        "--no-show-signature",
        "--no-patch",
        *arguments,
    )
    fields = done.stdout.decode(errors="replace").split("\0")
    if done.truncated and _SHORT < len(fields) <= len(_FIELDS):
        # The first commit alone is more than an answer may hold: it is shown as far as it is there.
        fields += [""] * (len(_FIELDS) + 1 - len(fields))
    commits = list(_parsed(fields))
    if done.truncated and not commits:
        raise LimitExceeded(
            f"the first of these commits in {repository.place.shown} is larger than an answer may be; leave it out"
            " with skip"
        )
    return commits, done.truncated


def _parsed(fields: list[str]) -> Iterator[Commit]:
    """The commits that all *fields*, with what follows the last of them, are of; one that is cut off is left out."""
    for start in range(0, len(fields) - len(_FIELDS), len(_FIELDS)):
        commit, short, parents, author, email, date, committer, mail, committed, subject, refs, body = fields[
            start : start + len(_FIELDS)
        ]
        yield Commit(
            commit=commit.strip(),
            abbreviated=short,
            parents=parents.split(),
            author=author,
            author_email=email,
            date=date,
            committer=committer,
            committer_email=mail,
            committed=committed,
            refs=refs.split(", ") if refs else [],
            subject=subject,
            body=body.rstrip("\n"),
        )


def rfc3339(seconds: str, zone: str) -> str:
    """The date that git stores as *seconds* since 1970 and *zone*, like ``+0130``; 1970 if that is no date."""
    sign = -1 if zone.startswith("-") else 1
    digits = zone.lstrip("+-")
    try:
        offset = timezone(sign * timedelta(hours=int(digits[:-2]), minutes=int(digits[-2:])))
        return datetime.fromtimestamp(int(seconds), offset).isoformat()
    except (ValueError, OverflowError, OSError):
        # Nothing keeps a commit from saying nonsense; git shows the same date then.
        return datetime.fromtimestamp(0, UTC).isoformat()
