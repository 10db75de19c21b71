# SPDX-License-Identifier: LGPL-2.1-or-later
"""Revisions as callers write them, made object ids before any other command of git sees them.

They reach git on its standard input, where nothing can become an option.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidArgument, McpdError, NotFound
from mcpd.model import printable
from mcpd.servers.workstation.git.running import failed, git

if TYPE_CHECKING:
    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.git.repository import Repository

HEAD: Final = "HEAD"
_FAILED: Final = 128
_OBJECT: Final = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64}) (commit|tree|blob|tag) ([0-9]+)\n")
_RANGE: Final = re.compile(r"(.*?)(\.{2,3})(.*)", re.DOTALL)
_EMPTY_TREES: Final = {
    40: "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    64: "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}
"""By the length of an id: git knows them, whether they are in the repository or not."""


@dataclass(frozen=True, slots=True)
class Object:
    """What a revision names."""

    id: str
    kind: str
    """``commit``, ``tree``, ``blob`` or ``tag``."""
    size: int
    """Bytes of its content."""


async def look_up(call: Call, repository: Repository, revision: str) -> Object | None:
    """What *revision*, gitrevisions(7), names; None if there is nothing of that name.

    Raises :class:`~mcpd.errors.InvalidArgument` for what is no revision, and McpdError if git does.
    """
    if not revision or "\0" in revision:
        raise InvalidArgument(f"{printable(revision)!r}: a revision is not empty and holds no NUL")
    arguments = ("cat-file", "-z", "--batch-check")
    done = await git(call, repository, *arguments, stdin=f"{revision}\0".encode(), accept=(0, _FAILED))
    if done.code == _FAILED:
        # It ends so at what is a revision by its form, like one of an upstream that the branch does not have.
        fault = failed(repository, arguments, done)
        raise InvalidArgument(f"{printable(revision)!r}: {fault.message}") if type(fault) is McpdError else fault
    match = _OBJECT.fullmatch(done.stdout)
    return Object(match[1].decode(), match[2].decode(), int(match[3])) if match else None


async def look_up_commit(call: Call, repository: Repository, revision: str) -> str | None:
    """The id of the commit that *revision* names or, as a tag does, leads to; None if there is none."""
    found = await look_up(call, repository, f"{revision}^{{commit}}" if revision else revision)
    return found.id if found else None


async def commit_id(call: Call, repository: Repository, revision: str) -> str:
    """The same; raises :class:`~mcpd.errors.NotFound` if there is none."""
    found = await look_up_commit(call, repository, revision)
    if found is None:
        raise unknown(repository, revision)
    return found


async def selection(call: Call, repository: Repository, revision: str) -> str:
    """*revision*, one commit or a range like ``A..B`` or ``A...B``, with ids for names. Raises as :func:`commit_id`."""
    between = _RANGE.fullmatch(revision)
    if between is None:
        return await commit_id(call, repository, revision)
    first, dots, last = between.groups()
    one = await commit_id(call, repository, first or HEAD)
    other = await commit_id(call, repository, last or HEAD)
    return f"{one}{dots}{other}"


def unknown(repository: Repository, revision: str, what: str = "no commit") -> NotFound:
    """The error for a *revision* that names no such thing as is asked for, which *what* says."""
    way_out = "git/branches and git/log show what there is"
    if revision == HEAD:
        way_out = "nothing has been committed yet, or HEAD is damaged"
    elif ":" in revision:
        way_out = "REVISION:DIRECTORY in git/show lists what there is"
    elif ".." in revision:
        way_out = "one revision is expected here, no range"
    return NotFound(f"{printable(revision)!r} names {what} in {repository.place.shown}: {way_out}")


def empty_tree(commit: str) -> str:
    """The id of the tree without files, in the kind of ids that *commit* is one of."""
    return _EMPTY_TREES[len(commit)]
