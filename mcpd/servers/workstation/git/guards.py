# SPDX-License-Identifier: LGPL-2.1-or-later
"""Keep git from files that are not the work tree's own: git directories among them, hard links, submodules.

A commit may well contain a git directory, as its files have harmless names; git would obey its configuration later,
outside the sandbox of the tools. Of a file with several names, one may be outside the roots, and git would take its
text into the repository, or show it; ``allow_hard_links`` permits that. In a submodule, git would start another git,
which obeys the configuration there.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidArgument, LimitExceeded, NotAuthorized, NotFound
from mcpd.model import printable
from mcpd.servers.beneath import open_beneath
from mcpd.servers.git_directories import folded, git_part, is_git_directory
from mcpd.servers.workstation.git.changes import unquoted
from mcpd.servers.workstation.git.repository import content_of
from mcpd.servers.workstation.git.running import git
from mcpd.servers.workstation.jail import HERE, fault, has_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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


_MODULES: Final = ".gitmodules"
_MOST: Final = 1024 * 1024
_MOST_NAMES: Final = 500
"""How many submodules a repository may name: all are handed over with each run of git."""
_MOST_LINKS: Final = 10_000
FROM_STDIN: Final = ("--pathspec-from-file=-", "--pathspec-file-nul")
"""Options for a command whose paths are its input."""
# More than the sections: what only looks like one does no harm.
_SECTION: Final = re.compile(rb'\[\s*submodule(?:\s+"((?:\\.|[^"\\\n])*)"|\.([^\]\n]*))', re.IGNORECASE)
_ESCAPED: Final = re.compile(rb"\\(.)")
_LINK: Final = re.compile(rb"160000 [0-9a-f]+ \d\t(.*)", re.DOTALL)


async def closed(call: Call, repository: Repository, *revisions: str) -> Repository:
    """*repository* with all submodules closed that are named now, in HEAD or in *revisions*.

    What ``.gitmodules`` says of each has a higher precedence than what is set for all. Raises
    :class:`~mcpd.errors.NotAuthorized` for too many.
    """
    if call.settings.allow_hooks:
        return repository
    asked = "".join(f"{revision}:{_MODULES}\0" for revision in ("", "HEAD", *revisions))
    blobs = await git(call, repository, "cat-file", "-z", "--batch", stdin=asked.encode(), most=_MOST)
    texts = [blobs.stdout]
    if not repository.bare:
        texts.append(await call.in_thread(lambda: _read(call, repository)))
    if blobs.truncated:
        raise LimitExceeded(f"{repository.place.shown}: its {_MODULES} has more than {_MOST} bytes")
    names = {name for text in texts for name in named(text)}
    if len(names) > _MOST_NAMES:
        raise NotAuthorized(
            f"{repository.place.shown}: its {_MODULES} names more than {_MOST_NAMES} submodules, which cannot all be"
            " closed; set allow_hooks if you trust the repository"
        )
    return replace(
        repository,
        hook_safe=tuple(
            {**dict(repository.hook_safe), **{f"submodule.{name}.ignore": "dirty" for name in names}}.items()
        ),
    )


def named(text: bytes) -> set[str]:
    """The names of all submodules in *text*, which is that of ``.gitmodules`` among other things."""
    found = set()
    for quoted, dotted in _SECTION.findall(text):
        name = _ESCAPED.sub(rb"\1", quoted) if quoted else dotted.lower()
        if name and b"\0" not in name:
            found.add(os.fsdecode(name))
    return found


async def links(call: Call, repository: Repository) -> list[str]:
    """The paths of all submodules that are in the index, as ``os`` takes them.

    Raises :class:`~mcpd.errors.LimitExceeded` for too many.
    """
    found: list[str] = []

    def take(line: bytes) -> None:
        match = _LINK.fullmatch(line)
        if match is not None and len(found) <= _MOST_LINKS:
            found.append(os.fsdecode(unquoted(match[1])))

    await git(call, repository, "ls-files", "--stage", most=1, on_line=take)
    if len(found) > _MOST_LINKS:
        raise LimitExceeded(f"{repository.place.shown} has more than {_MOST_LINKS} submodules")
    return found


def _read(call: Call, repository: Repository) -> bytes:
    try:
        return content_of(call.jail, repository.place.child(_MODULES), _MOST)
    except (NotFound, InvalidArgument):
        # There is none, or what git does not read either.
        return b""


def all_but(excluded: Iterable[str], paths: Iterable[str] = (".",)) -> bytes:
    """The input for :data:`FROM_STDIN`: *paths*, all literal, without those *excluded*; all from the top level."""
    return os.fsencode("\0".join(pathspecs_but(excluded, paths)))


def pathspecs_but(excluded: Iterable[str], paths: Iterable[str] = (".",)) -> list[str]:
    """The same as arguments, for a git that is run with ``--no-literal-pathspecs``."""
    found = [f":(top,literal){path}" if path != "." else ":(top)" for path in paths]
    return [*found, *(f":(top,exclude,literal){path}" for path in excluded)]


def below(paths: Iterable[str], path: str) -> bool:
    """Return True if *path* is one of *paths* or in one of them, all from the top level."""
    return any(each in {".", path} or path.startswith(each + "/") for each in paths)
