# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a search goes through: a directory and all below it, without what is hidden or in ``.gitignore``.

Standard library only, and no import from elsewhere: :mod:`.scanning` runs with it as a program of its own.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from .entries import EntryType, type_of
from .globs import Globs, Ignored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MAX_DEPTH: Final = 200
"""How deep directories are searched: each level holds a descriptor."""
_MAX_RULES: Final = 1024 * 1024
_EVERY: Final = 1000

Rules: TypeAlias = "tuple[tuple[str, Ignored], ...]"
"""What the ``.gitignore`` files so far say, each with what leads from its directory to the one at hand."""


@dataclass(frozen=True, slots=True)
class Query:
    """What is searched."""

    pattern: str
    literal: bool
    ignore_case: bool
    multiline: bool
    names: bool
    """Whether names are searched instead of contents."""
    include: list[str]
    exclude: list[str]
    hidden: bool
    ignored: bool
    context: int
    max_per_file: int | None
    max_size: int
    """Bytes of a file above which it is left out."""
    hard_links: bool
    only: str
    """The one file that is searched; empty for all."""
    root: str
    """The absolute path of the directory from which on ``.gitignore`` files count."""


def with_contents(include: Iterable[str]) -> list[str]:
    """*include* with all that is below for each that names a directory."""
    return [f"{each}**" if each.endswith("/") else each for each in include]


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a directory."""

    directory: int
    """The descriptor of the directory."""
    name: str
    path: str
    """From the directory of the search."""
    type: EntryType


class Walk:
    """All that a query asks for, in the order of the bytes of the names."""

    def __init__(self, query: Query, report: Callable[[int], None]) -> None:
        """*report* is told every now and then how many names were seen."""
        self._query = query
        self._report = report
        self._include = Globs(with_contents(query.include))
        self._exclude = Globs(query.exclude)
        self._seen = 0

    def entries(self) -> Iterator[Entry]:
        """Each with the descriptor of its directory, which is closed when the next is asked for."""
        rules: Rules = ()
        here = os.getcwd()  # noqa: PTH109
        for above in _above(here, self._query.root):
            try:
                directory = os.open(above, os.O_RDONLY | os.O_DIRECTORY)
            except OSError:
                continue
            try:
                rules = self._rules(directory, rules, f"{os.path.relpath(here, above)}/")
            finally:
                os.close(directory)
        top = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield from self._below(top, "", rules, 0)
        finally:
            os.close(top)

    def _rules(self, directory: int, rules: Rules, below: str) -> Rules:
        """*rules* and those of *directory*, from which *below* leads to the directory that is searched.

        Of those above a repository none counts in it.
        """
        if self._query.ignored:
            return ()
        if _exists(directory, ".git"):
            rules = ()
        text = _small(directory, ".gitignore")
        return (*rules, (below, Ignored(text))) if text else rules

    def _below(self, directory: int, prefix: str, above: Rules, depth: int) -> Iterator[Entry]:
        rules = self._rules(directory, above, "")
        try:
            with os.scandir(directory) as found:
                listed = sorted(((each.name, _type_of(each)) for each in found), key=lambda each: os.fsencode(each[0]))
        except OSError:
            return
        for name, kind in listed:
            self._seen += 1
            if self._seen % _EVERY == 0:
                self._report(self._seen)
            entry = Entry(directory, name, prefix + name, kind)
            if self._is_left_out(entry, rules):
                continue
            if kind == "directory":
                if not self._include or self._include.matches(entry.path, directory=True):
                    yield entry
                if depth + 1 < MAX_DEPTH:
                    yield from self._inside(entry, rules, depth)
            elif not self._include or self._include.matches(entry.path, directory=False):
                yield entry

    def _inside(self, entry: Entry, rules: Rules, depth: int) -> Iterator[Entry]:
        try:
            inner = os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=entry.directory)
        except OSError:
            return
        try:
            longer = tuple((f"{below}{entry.name}/", each) for below, each in rules)
            yield from self._below(inner, f"{entry.path}/", longer, depth + 1)
        finally:
            os.close(inner)

    def _is_left_out(self, entry: Entry, rules: Rules) -> bool:
        directory = entry.type == "directory"
        if entry.name == ".git" or (entry.name.startswith(".") and not self._query.hidden):
            return True
        if self._exclude.matches(entry.path, directory=directory):
            return True
        for below, each in reversed(rules):
            verdict = each.verdict(below + entry.name, directory=directory)
            if verdict is not None:
                return verdict
        return False


def _above(path: str, root: str) -> list[str]:
    """The directories that *path* is in, from *root* on."""
    if not f"{path}/".startswith(f"{root.rstrip('/')}/"):
        return []
    above = path
    found = []
    while above != root:
        above = os.path.dirname(above)  # noqa: PTH120
        found.append(above)
    return found[::-1]


def _exists(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return True


def opened(directory: int, name: str) -> int:
    """A descriptor of *name*, whatever it is; no symlink is followed, and nothing is waited for. Raises OSError."""
    return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=directory)


def _small(directory: int, name: str) -> str:
    """What the file *name* holds, if it is one."""
    try:
        fd = opened(directory, name)
    except OSError:
        return ""
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return file.read(_MAX_RULES).decode("utf-8", "surrogateescape")


def _type_of(entry: os.DirEntry[str]) -> EntryType:
    """Without looking at the thing itself, where the directory tells."""
    if entry.is_symlink():
        return "symlink"
    try:
        if entry.is_dir(follow_symlinks=False):
            return "directory"
        if entry.is_file(follow_symlinks=False):
            return "file"
        return type_of(entry.stat(follow_symlinks=False).st_mode)
    except OSError:
        return "device"
