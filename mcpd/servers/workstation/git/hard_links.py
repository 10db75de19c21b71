# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files of the working tree that have several names, of which one may lie outside of the roots.

Git would take their text into the repository, or show it. ``allow_hard_links`` permits that.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Final

from mcpd.errors import LimitExceeded, NotAuthorized
from mcpd.model import printable
from mcpd.servers.beneath import open_beneath
from mcpd.servers.workstation.git.changes import unquoted
from mcpd.servers.workstation.git.running import git
from mcpd.servers.workstation.jail import fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.git.repository import Repository

_MOST_CHANGED: Final = 100_000
"""Files that are looked at."""
_UNCHANGED: Final = frozenset({b"H", b"S", b"M"})
"""What ``git ls-files -v`` calls files of the index; one that has changed is listed once more, as such."""
_NAMED: Final = 5
"""How many files an error names."""
_NOT_READ: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.EACCES, errno.ENAMETOOLONG})
"""Gone meanwhile, beyond a symlink, or out of reach: git reads no such file either."""


async def changed_links(
    call: Call,
    repository: Repository,
    paths: Sequence[str],
    *,
    untracked: bool = False,
    ignored: bool = False,
    assumed: bool = False,
) -> list[str]:
    """The files with several names below *paths* that differ from the index, from the top level, as ``os`` takes them.

    With *untracked* also those that git does not know, of which those that .gitignore excludes only with *ignored*;
    with *assumed* also those that git has been told to take for unchanged. What is as in the index is in the repository
    anyway. Raises :class:`~mcpd.errors.LimitExceeded` for too many files.
    """
    if call.settings.allow_hard_links:
        return []
    names: set[str] = set()

    def take(line: bytes) -> None:
        # Small letters are for what is taken for unchanged.
        if line[:1] not in _UNCHANGED and len(names) <= _MOST_CHANGED:
            names.add(os.fsdecode(unquoted(line[2:])))

    options = ["--modified"]
    if untracked:
        options += ["--others", *([] if ignored else ["--exclude-standard"])]
    if assumed:
        options.append("--cached")
    await git(call, repository, "ls-files", "-v", *options, "--", *paths, most=1, on_line=take)
    if len(names) > _MOST_CHANGED:
        raise LimitExceeded(
            f"more than {_MOST_CHANGED} files have changed in {repository.place.shown}; name some of them in paths, or"
            " have build products in .gitignore"
        )
    return await call.in_thread(lambda: _linked(call, repository, names))


async def check_links(
    call: Call,
    repository: Repository,
    paths: Sequence[str],
    *,
    untracked: bool = False,
    ignored: bool = False,
    assumed: bool = False,
) -> None:
    """Raise NotAuthorized if one of *paths*, or what :func:`changed_links` finds below them, has several names."""
    found = await changed_links(call, repository, paths, untracked=untracked, ignored=ignored, assumed=assumed)
    _refuse(repository, found)
    await check_files(call, repository, paths)


async def check_files(call: Call, repository: Repository, paths: Sequence[str], way_out: str = "") -> None:
    """Raise NotAuthorized if one of *paths* itself has several names; *way_out* says what else to do."""
    if not call.settings.allow_hard_links:
        _refuse(repository, await call.in_thread(lambda: _linked(call, repository, paths)), way_out)


def _refuse(repository: Repository, found: Sequence[str], way_out: str = "") -> None:
    if not found:
        return
    named = ", ".join(printable(name) for name in found[:_NAMED])
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    raise NotAuthorized(
        f"hard links in {repository.place.shown}: {named}{more}; another name of such a file may lie outside the roots;"
        f" {way_out or 'leave them out (paths, .gitignore)'}, or set allow_hard_links"
    )


def _linked(call: Call, repository: Repository, names: Iterable[str]) -> list[str]:
    with call.jail.opened(repository.place, os.O_PATH | os.O_DIRECTORY) as top:
        found = []
        for name in sorted(names):
            call.check()
            try:
                fd = open_beneath(top, name, os.O_PATH | os.O_NOFOLLOW, links=False)
            except OSError as error:
                if error.errno not in _NOT_READ:
                    raise fault(error, repository.place.child(name), "opening") from error
                continue
            try:
                status = os.fstat(fd)
            finally:
                os.close(fd)
            if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                found.append(name)
        return found
