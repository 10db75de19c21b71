# SPDX-License-Identifier: LGPL-2.1-or-later
"""Keep git away from git directories within the work tree, from hard links, and from submodules.

A commit can contain a git directory, as its files have harmless names; git would later obey its configuration, outside
the sandbox of the tools. Of a file with several names, one may be outside the roots, and git would store or show its
content; ``allow_hard_links`` permits that. In a submodule, git would start another git, which obeys the configuration
there.
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
"""Maximum size of the error messages that are kept, in bytes."""
_NOT_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""Errors for a missing directory, a file, or a symlink, which git replaces and never follows."""
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
"""Command that lists the files of the index that do not exist.

:data:`DIFF` omits those marked as unchanged (``git update-index --assume-unchanged``), which git writes all the same.
"""


async def check_written(
    call: Call, repository: Repository, *listings: Sequence[str], paths: Sequence[str] = (HERE,)
) -> None:
    """Raise NotAuthorized if a file that git is about to write belongs to a git directory, or would complete one.

    Each of *listings* is a git command that prints the files, one a line, from the top level; those outside *paths* are
    ignored.
    """
    written = _Written(paths)
    for listing in listings:
        await git(call, repository, *listing, most=_MOST_SAID, on_line=written.add)
    if written.parts:
        await call.in_thread(lambda: _check(call, repository, written.parts))


class _Written:
    """The parts of git directories that a git command is about to write."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.parts: dict[str, set[str]] = {}
        """Names by directory, from the top level, for all directories that are written to."""
        self._by_folded: dict[str, set[str]] = {}
        self._paths = frozenset(paths)

    def add(self, line: bytes) -> None:
        """Add the file that *line* of a listing names, if it is in the paths."""
        path = os.fsdecode(unquoted(line))
        if HERE not in self._paths and self._paths.isdisjoint((path, *_above(path))):
            return
        for directory in _above(path):
            part = git_part(path[len(directory) :].lstrip("/"))
            path = directory
            known = directory in self.parts
            if not known:
                # On case-insensitive file systems, directories with different names may be the same.
                key = "/".join(map(folded, directory.split("/")))
                self.parts[directory] = self._by_folded.setdefault(key, set())
            if part is not None:
                self.parts[directory].add(part)
            if known:
                break


def _above(path: str) -> Iterator[str]:
    """Yield the parent directories of *path*, innermost first; the last is the top level."""
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
"""Maximum number of files to examine."""
_UNCHANGED: Final = frozenset({b"H", b"S", b"M"})
"""Tags of ``git ls-files -v`` for files of the index; changed files are listed again with another tag."""
_NAMED: Final = 5
"""Maximum number of files named in an error."""
_NOT_READ: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.EACCES, errno.ENAMETOOLONG})
"""Errors for a file that was removed, is beyond a symlink or is inaccessible: git does not read it either."""


async def changed_links(
    call: Call,
    repository: Repository,
    paths: Sequence[str],
    *,
    untracked: bool = False,
    ignored: bool = False,
    assumed: bool = False,
) -> list[str]:
    """Return the files with several names below *paths* that differ from the index, from the top level, as ``os`` does.

    Includes untracked files with *untracked*, those excluded by .gitignore only with *ignored*, and files marked as
    unchanged with *assumed*. Files that equal the index are in the repository already. Raises
    :class:`~mcpd.errors.LimitExceeded` for too many files.
    """
    if call.settings.allow_hard_links:
        return []
    names: set[str] = set()

    def take(line: bytes) -> None:
        # Lower case marks files that are assumed to be unchanged.
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
    """Raise NotAuthorized if one of *paths* has several names, or :func:`changed_links` finds such a file below."""
    found = await changed_links(call, repository, paths, untracked=untracked, ignored=ignored, assumed=assumed)
    _refuse(repository, found)
    await check_files(call, repository, paths)


async def check_files(call: Call, repository: Repository, paths: Sequence[str], way_out: str = "") -> None:
    """Raise NotAuthorized if one of *paths* itself has several names; *way_out* tells the caller what else to do."""
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
"""Maximum number of submodules that a repository may name, as all are passed to each run of git."""
_MOST_LINKS: Final = 10_000
FROM_STDIN: Final = ("--pathspec-from-file=-", "--pathspec-file-nul")
"""Options for a command that reads the paths from stdin."""
# Matches more than sections: an additional match does no harm.
_SECTION: Final = re.compile(rb'\[\s*submodule(?:\s+"((?:\\.|[^"\\\n])*)"|\.([^\]\n]*))', re.IGNORECASE)
_ESCAPED: Final = re.compile(rb"\\(.)")
_LINK: Final = re.compile(rb"160000 [0-9a-f]+ \d\t(.*)", re.DOTALL)


async def closed(call: Call, repository: Repository, *revisions: str) -> Repository:
    """Return *repository* with all submodules closed that are named in the work tree, in HEAD or in *revisions*.

    Settings in ``.gitmodules`` for one submodule take precedence over a setting for all, so each is closed. Raises
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
    """Return the names of all submodules in *text*, which contains ``.gitmodules``."""
    found = set()
    for quoted, dotted in _SECTION.findall(text):
        name = _ESCAPED.sub(rb"\1", quoted) if quoted else dotted.lower()
        if name and b"\0" not in name:
            found.add(os.fsdecode(name))
    return found


async def links(call: Call, repository: Repository) -> list[str]:
    """Return the paths of all submodules in the index, decoded as by ``os``.

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
        # The file does not exist, or git does not read it either.
        return b""


def all_but(excluded: Iterable[str], paths: Iterable[str] = (".",)) -> bytes:
    """Return the input for :data:`FROM_STDIN`: *paths* without those *excluded*, all literal and from the top level."""
    return os.fsencode("\0".join(pathspecs_but(excluded, paths)))


def pathspecs_but(excluded: Iterable[str], paths: Iterable[str] = (".",)) -> list[str]:
    """Return the same as a list of pathspecs, for git with ``--no-literal-pathspecs``."""
    found = [f":(top,literal){path}" if path != "." else ":(top)" for path in paths]
    return [*found, *(f":(top,exclude,literal){path}" for path in excluded)]


def below(paths: Iterable[str], path: str) -> bool:
    """Return True if *path* is one of *paths* or below one of them, all from the top level."""
    return any(each in {".", path} or path.startswith(each + "/") for each in paths)
