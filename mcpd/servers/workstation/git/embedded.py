# SPDX-License-Identifier: LGPL-2.1-or-later
"""Keep git from writing to git directories among the files of a work tree, and from completing one.

A commit may well contain one, as its files have harmless names. Git would obey its configuration later, outside the
sandbox of the tools.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from mcpd.errors import NotAuthorized
from mcpd.model import printable
from mcpd.servers.beneath import open_beneath
from mcpd.servers.git_directories import folded, git_part, is_git_directory
from mcpd.servers.workstation.git.changes import unquoted
from mcpd.servers.workstation.git.running import git
from mcpd.servers.workstation.jail import HERE, fault, has_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.git.repository import Repository

_MOST_SAID: Final = 16 * 1024
"""Bytes of git's error messages that are kept."""
_NOT_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""Errors where there is no directory yet: nothing, a file, or a symlink, which git replaces and never follows."""
DIFF: Final = (
    "diff",
    "--name-only",
    "--no-color",
    "--no-ext-diff",
    "--no-relative",
    "--no-renames",
    "--ignore-submodules=dirty",
    "-O/dev/null",
)
"""Command for :func:`check_written` that lists the files that differ."""
MISSING: Final = ("ls-files", "--deleted", "--")
"""Command that lists the files of the index that are not there.

:data:`DIFF` leaves out those that are marked as never changing (``git update-index --assume-unchanged``), which git
writes nevertheless.
"""


async def check_written(
    call: Call, repository: Repository, *listings: Sequence[str], paths: Sequence[str] = (HERE,)
) -> None:
    """Raise NotAuthorized if a file that is about to be written belongs to a git directory, or completes one.

    Each of *listings* is a command of git that prints the files, one a line, from the top level; only those in *paths*
    count.
    """
    written = _Written(paths)
    for listing in listings:
        await git(call, repository, *listing, most=_MOST_SAID, on_line=written.add)
    if written.parts:
        await call.in_thread(lambda: _check(call, repository, written.parts))


class _Written:
    """The parts of git directories that a command of git is about to write."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.parts: dict[str, set[str]] = {}
        """By the directory, from the top level, for all directories that are written to."""
        self._by_folded: dict[str, set[str]] = {}
        self._paths = frozenset(paths)

    def add(self, line: bytes) -> None:
        """Note the file that *line* of a listing names, if it is in the paths."""
        path = os.fsdecode(unquoted(line))
        if HERE not in self._paths and self._paths.isdisjoint((path, *_above(path))):
            return
        for directory in _above(path):
            part = git_part(path[len(directory) :].lstrip("/"))
            path = directory
            known = directory in self.parts
            if not known:
                # Where cases are not told apart, directories of several names become one.
                key = "/".join(map(folded, directory.split("/")))
                self.parts[directory] = self._by_folded.setdefault(key, set())
            if part is not None:
                self.parts[directory].add(part)
            if known:
                break


def _above(path: str) -> Iterator[str]:
    """The directories that *path* is in, innermost first, the last being the top level."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def _check(call: Call, repository: Repository, parts: Mapping[str, set[str]]) -> None:
    with call.jail.opened(repository.place, os.O_PATH | os.O_DIRECTORY) as top:
        for path, written in parts.items():
            call.check()
            if _is_git_directory(repository, top, path or HERE, written):
                raise NotAuthorized(
                    f"{repository.place.shown}: git would write to {printable(path or HERE)}, which is a git directory"
                    " or would become one, and its configuration may name programs that run outside of here; nothing"
                    " has changed; run git yourself if you trust it"
                )


def _is_git_directory(repository: Repository, top: int, path: str, written: set[str]) -> bool:
    place = repository.place.child(path)
    try:
        directory = open_beneath(top, path, os.O_PATH | os.O_DIRECTORY, links=False)
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise fault(error, place, "opening") from error
        return is_git_directory(written.__contains__)
    try:
        return is_git_directory(lambda part: part in written or has_name(directory, part))
    except OSError as error:
        raise fault(error, place, "opening") from error
    finally:
        os.close(directory)
