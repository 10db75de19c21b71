# SPDX-License-Identifier: LGPL-2.1-or-later
"""Revisions given by callers, resolved to object ids before other git commands get them, and commits.

Revisions are passed to git on its standard input, where they cannot be mistaken for options.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final

from pydantic import Field

from mcpd.errors import InvalidArgument, LimitExceeded, McpdError, NotFound
from mcpd.model import printable
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.git.running import check_search, failed, git
from mcpd.servers.workstation.tool import Result

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.git.repository import Repository

HEAD: Final = "HEAD"
_FAILED: Final = 128
_ID: Final = "[0-9a-f]{40}|[0-9a-f]{64}"
_OBJECT: Final = re.compile(rf"({_ID}) (commit|tree|blob|tag) ([0-9]+)\n".encode())
_WITHOUT: Final = (b" missing\n", b" ambiguous\n")
_AT_HEAD: Final = re.compile(rf"({_ID})\n(?:(.+)\n)?".encode())
HEADS: Final = "refs/heads/"
REMOTES: Final = "refs/remotes/"
_RANGE: Final = re.compile(r"(.*?)(\.{2,3})(.*)", re.DOTALL)
_EMPTY_TREES: Final = {
    40: "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    64: "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}
"""Ids of the empty tree by their length; git knows them even if they are not in the repository."""


@dataclass(frozen=True, slots=True)
class Object:
    """An object that a revision names."""

    id: str
    kind: str
    """``commit``, ``tree``, ``blob`` or ``tag``."""
    size: int
    """Size of its content in bytes."""


@dataclass(frozen=True, slots=True)
class Head:
    """The branch and commit of HEAD."""

    reference: str | None
    """The full name of the branch; None if HEAD is detached."""
    commit: str | None
    """The id of the commit; None before the first one."""

    @property
    def branch(self) -> str | None:
        """The short name of the branch, for results."""
        return None if self.reference is None else short_name(self.reference)


def short_name(reference: str) -> str:
    """Return the name of a branch without ``refs/heads/`` or ``refs/remotes/``, for results."""
    prefix = next((each for each in (HEADS, REMOTES) if reference.startswith(each)), "")
    return shown_name(reference.removeprefix(prefix))


async def head(call: Call, repository: Repository) -> Head:
    """Return the current HEAD."""
    done = await git(call, repository, "rev-parse", HEAD, "--symbolic-full-name", HEAD, accept=(0, _FAILED))
    match = _AT_HEAD.fullmatch(done.stdout)
    commit = match[1].decode() if match else None
    name = match[2] if match else None
    if name is None:
        # There is no commit yet, or a branch is named HEAD.
        done = await git(call, repository, "symbolic-ref", "--quiet", HEAD, accept=(0, 1))
        name = done.stdout.removesuffix(b"\n") or HEAD.encode()
    return Head(None if name == HEAD.encode() else os.fsdecode(name), commit)


async def look_up(call: Call, repository: Repository, *revisions: str) -> list[Object | None]:
    """Return the object for each of *revisions* (gitrevisions(7)), or None if there is none.

    Raises :class:`~mcpd.errors.InvalidArgument` for an invalid revision and for one that searches messages, and
    McpdError if git fails.
    """
    for revision in revisions:
        if not revision or "\0" in revision:
            raise InvalidArgument(f"'{printable(revision)}': a revision is not empty and holds no NUL")
        check_search(revision)
    arguments = ("cat-file", "-z", "--batch-check")
    asked = [revision.encode() for revision in revisions]
    stdin = b"".join(each + b"\0" for each in asked)
    done = await git(call, repository, *arguments, stdin=stdin, accept=(0, _FAILED))
    found = list(_objects(done.stdout, asked))
    if done.code == _FAILED:
        # Git exits at some well-formed revisions, such as the upstream of a branch that has none.
        fault = failed(repository, arguments, done)
        if type(fault) is McpdError and len(found) < len(revisions):
            raise InvalidArgument(f"'{printable(revisions[len(found)])}': {fault.message}")
        raise fault
    return found


def _objects(output: bytes, asked: Sequence[bytes]) -> Iterator[Object | None]:
    """Yield the objects in *output*, in the order *asked*; for missing ones git repeats the name, newlines included."""
    at = 0
    for each in asked:
        if at == len(output):
            return
        without = next((each + end for end in _WITHOUT if output.startswith(each + end, at)), None)
        match = None if without else _OBJECT.match(output, at)
        at = match.end() if match else at + len(without or output[at:].partition(b"\n")[0] + b"\n")
        yield Object(match[1].decode(), match[2].decode(), int(match[3])) if match else None


async def commit_ids(call: Call, repository: Repository, *revisions: str) -> list[str]:
    """Return the ids of the commits that *revisions* name, directly or by a tag.

    Raises :class:`~mcpd.errors.NotFound` for the first that does not name a commit, and the errors of :func:`look_up`.
    """
    for revision in revisions:
        check_search(revision)
    asked = [f"{revision}^{{commit}}" if revision else revision for revision in revisions]
    ids = []
    for revision, commit in zip(revisions, await look_up(call, repository, *asked), strict=True):
        if commit is None:
            raise unknown(repository, revision)
        ids.append(commit.id)
    return ids


async def selection(call: Call, repository: Repository, revision: str) -> str:
    """Return *revision*, one commit or a range like ``A..B`` or ``A...B``, with ids instead of names.

    Raises the errors of :func:`commit_ids`.
    """
    between = _RANGE.fullmatch(revision)
    if between is None:
        return (await commit_ids(call, repository, revision))[0]
    first, dots, last = between.groups()
    one, other = await commit_ids(call, repository, first or HEAD, last or HEAD)
    return f"{one}{dots}{other}"


def unknown(repository: Repository, revision: str, what: str = "no commit") -> NotFound:
    """Return the error for a *revision* that does not name the expected object; *what* completes "it names …"."""
    way_out = "git_branches and git_log show what there is"
    if revision == HEAD:
        way_out = "nothing has been committed yet, or HEAD is damaged"
    elif ":" in revision:
        way_out = "REVISION:DIRECTORY in git_show lists what there is"
    elif ".." in revision:
        way_out = "one revision is expected here, no range"
    return NotFound(f"'{printable(revision)}' names {what} in {repository.place.shown}: {way_out}")


def empty_tree(commit: str) -> str:
    """Return the id of the empty tree in the hash format of the id *commit*."""
    return _EMPTY_TREES[len(commit)]


_FIELDS: Final = ("%H", "%h", "%P", "%aN", "%aE", "%aI", "%cN", "%cE", "%cI", "%s", "%D", "%b")
"""Fields of a commit, long ones last, so that an incomplete commit lacks only their end."""
_SHORT: Final = 9
"""Number of fields that are always short."""
_DECORATED: Final = tuple(f"--decorate-refs={each}" for each in ("HEAD", "refs/heads", "refs/remotes", "refs/tags"))
"""Explicit options, as otherwise the repository's log.excludeDecoration applies."""
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
        """Return the commit in the format of ``git log``."""
        lines = [f"commit {self.commit}" + (f" ({', '.join(self.refs)})" if self.refs else "")]
        if len(self.parents) > 1:
            lines.append("Merge: " + " ".join(parent[: len(self.abbreviated)] for parent in self.parents))
        lines += [f"Author: {self.author} <{self.author_email}>", f"Date:   {self.date}", "", f"    {self.subject}"]
        if self.body:
            lines += ["", *(f"    {line}".rstrip() for line in self.body.splitlines())]
        return "\n".join(lines) + "\n"


async def read_commits(call: Call, repository: Repository, *arguments: str) -> tuple[list[Commit], bool]:
    """Return the commits listed by ``git log`` with *arguments*, and whether there are more than a result may contain.

    Raises McpdError if git fails, and :class:`~mcpd.errors.LimitExceeded` for a single commit that is too long.
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
        # The first commit alone exceeds the limit: show the part that was received.
        fields += [""] * (len(_FIELDS) + 1 - len(fields))
    commits = list(_parsed(fields))
    if done.truncated and not commits:
        raise LimitExceeded(
            f"the first of these commits in {repository.place.shown} is larger than an answer may be; leave it out"
            " with skip"
        )
    return commits, done.truncated


def _parsed(fields: list[str]) -> Iterator[Commit]:
    """Yield the commits in *fields*, whose last element follows the last commit; an incomplete commit is omitted."""
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
    """Return the date that git stores as *seconds* since 1970 and *zone*, like ``+0130``; 1970 if it is invalid."""
    sign = -1 if zone.startswith("-") else 1
    digits = zone.lstrip("+-")
    try:
        offset = timezone(sign * timedelta(hours=int(digits[:-2]), minutes=int(digits[-2:])))
        return datetime.fromtimestamp(int(seconds), offset).isoformat()
    except (ValueError, OverflowError, OSError):
        # Commits can contain invalid dates; git shows the same date for them.
        return datetime.fromtimestamp(0, UTC).isoformat()
