# SPDX-License-Identifier: LGPL-2.1-or-later
"""The files that a search goes through: those below a directory, without hidden and ignored ones.

Globs are those of gitignore(5), matched in time that grows with the name, not with what a glob can be made to try.

Only the standard library, and no import from elsewhere: :mod:`.scanning` runs with this module as a separate program.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

from .entries import EntryType, type_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MAX_GLOBS: Final = 256
"""How many globs there may be in all, those that braces stand for included."""
_ANY_DEPTH: Final = "**"
_DIRECTORIES: Final = "(?:[^/]+/)*"
_SIMPLE: Final = re.compile(r"[A-Za-z0-9_.@+*?-]+(?:/[A-Za-z0-9_.@+*?-]+)*/?")


@dataclass(frozen=True, slots=True)
class Glob:
    """One glob without braces."""

    pattern: re.Pattern[str]
    only_directories: bool

    def matches(self, path: str, *, directory: bool) -> bool:
        """Return True if it is about *path*, relative and without ``.``."""
        return (directory or not self.only_directories) and self.pattern.fullmatch(path) is not None


def parse(glob: str) -> Glob:
    """Read *glob*: without a slash in its beginning or middle it is about names at any depth.

    Raises ValueError for what is none.
    """
    only_directories = glob.endswith("/") and not glob.endswith("\\/")
    parts = (glob[:-1] if only_directories else glob).split("/")
    if len(parts) == 1:
        parts.insert(0, _ANY_DEPTH)
    elif not parts[0]:
        del parts[0]
    if not all(parts):
        raise ValueError("it is empty, or has two slashes together")
    return Glob(re.compile(_whole(parts), re.DOTALL), only_directories)


def _whole(parts: list[str]) -> str:
    """The regular expression for a path of *parts*.

    What stands between two ``**`` is taken where it comes first, for good: any later place leaves less to the rest.
    """
    runs: list[list[str]] = [[]]
    for part in parts:
        if part == _ANY_DEPTH:
            runs.append([])
        else:
            runs[-1].append(_segment(part))
    first, *others = runs
    if not others:
        return "/".join(first)
    made = "".join(f"{each}/" for each in first)
    *middle, last = others
    for run in middle:
        if run:
            made += f"(?>{_DIRECTORIES}?{'/'.join(run)}/)"
    return made + (_DIRECTORIES + "/".join(last) if last else ".+")


def _segment(part: str) -> str:
    """The regular expression for one name; what stands between two stars is taken where it comes first, too."""
    pieces = [""]
    for each in _tokens(part):
        if each == "*":
            pieces.append("")
        else:
            pieces[-1] += each
    first, *others = pieces
    if not others:
        return first
    *middle, last = others
    return first + "".join(f"(?>[^/]*?{each})" for each in middle if each) + "[^/]*" + last


def _tokens(part: str) -> Iterator[str]:
    """Regular expressions for the single characters of *part*, and ``*``."""
    index = 0
    while index < len(part):
        char = part[index]
        index += 1
        if char == "*":
            yield "*"
        elif char == "?":
            yield "[^/]"
        elif char == "[":
            token, index = _set(part, index)
            yield token
        elif char != "\\":
            yield re.escape(char)
        elif index == len(part):
            raise ValueError("it ends in a backslash")
        else:
            yield re.escape(part[index])
            index += 1


def _set(part: str, index: int) -> tuple[str, int]:
    """The set that begins at *index*, after its bracket, and where it ends."""
    negated = part[index : index + 1] in {"!", "^"}
    index += negated
    items: list[str] = []
    while not (items and part[index : index + 1] == "]"):
        low, index = _item(part, index)
        high = low
        if part[index : index + 1] == "-" and part[index + 1 : index + 2] not in {"]", ""}:
            high, index = _item(part, index + 1)
        if low > high:
            raise ValueError(f"{low}-{high} is no range")
        items.append(f"{re.escape(low)}-{re.escape(high)}")
    return f"(?!/)[{'^' * negated}{''.join(items)}]", index + 1


def _item(part: str, index: int) -> tuple[str, int]:
    escaped = part[index : index + 1] == "\\"
    index += escaped
    if index >= len(part):
        raise ValueError("a [ in it is not closed")
    return part[index], index + 1


def expand(glob: str) -> list[str]:
    """What *glob* stands for: one for each way through its ``{a,b}``. Raises ValueError."""
    found: list[str] = []
    waiting = [glob]
    while waiting:
        each = waiting.pop()
        braces = _braces(each)
        if braces is None:
            found.append(each)
        else:
            start, commas, end = braces
            cuts = (start, *commas, end)
            options = [each[a + 1 : b] for a, b in pairwise(cuts)]
            waiting += [each[:start] + option + each[end + 1 :] for option in reversed(options)]
        if len(found) + len(waiting) > MAX_GLOBS:
            raise ValueError(f"it stands for more than {MAX_GLOBS} globs")
    return found


def simple(globs: Iterable[str]) -> list[str] | None:
    """What *globs* stand for, without braces, if every program reads all of them alike. Raises ValueError."""
    written = [each for glob in globs for each in expand(glob)]
    return written if all(_SIMPLE.fullmatch(each) for each in written) else None


def _braces(glob: str) -> tuple[int, list[int], int] | None:
    """Where the first braces open, their commas, and where they close."""
    start, depth, commas = -1, 0, []
    index = 0
    while index < len(glob):
        char = glob[index]
        if char == "\\":
            index += 1
        elif char == "[":
            _, index = _set(glob, index + 1)
            continue
        elif char == "{":
            start = index if depth == 0 else start
            depth += 1
        elif char == "," and depth == 1:
            commas.append(index)
        elif char == "}" and depth:
            depth -= 1
            if depth == 0:
                return start, commas, index
        index += 1
    if depth:
        raise ValueError("a { in it is not closed")
    return None


class Globs:
    """Globs of a caller, of which one has to match."""

    def __init__(self, globs: Iterable[str]) -> None:
        """Raises ValueError that names the glob and what is wrong with it."""
        self._globs: list[Glob] = []
        self._covered: dict[str, bool] = {"": False}
        for glob in globs:
            try:
                self._globs += map(parse, expand(glob))
            except (ValueError, re.error) as error:
                raise ValueError(f"the glob {glob!r} cannot be used: {error}") from None
            if len(self._globs) > MAX_GLOBS:
                raise ValueError(f"the globs stand for more than {MAX_GLOBS}: one for each way through their braces")

    def __bool__(self) -> bool:
        return bool(self._globs)

    def matches(self, path: str, *, directory: bool) -> bool:
        """Return True if one is about *path*."""
        return any(each.matches(path, directory=directory) for each in self._globs)

    def covers(self, path: str) -> bool:
        """Return True if one is about the file *path* or a directory that it is in."""
        return self._covers_directory(path.rpartition("/")[0]) or self.matches(path, directory=False)

    def _covers_directory(self, path: str) -> bool:
        known = self._covered.get(path)
        if known is None:
            known = self._covers_directory(path.rpartition("/")[0]) or self.matches(path, directory=True)
            self._covered[path] = known
        return known


class Ignored:
    """What one ``.gitignore`` says."""

    def __init__(self, text: str) -> None:
        """Read *text*; lines that cannot be used say nothing, as git has it."""
        self._rules: list[tuple[Glob, bool]] = []
        for line in text.split("\n"):
            written = _without_trailing_spaces(line.removesuffix("\r"))
            if not written or written.startswith("#"):
                continue
            included = written.startswith("!")
            try:
                self._rules.append((parse(written[included:]), included))
            except (ValueError, re.error):
                continue

    def verdict(self, path: str, *, directory: bool) -> bool | None:
        """Whether *path*, from the directory of the file, is ignored; None if nothing is said."""
        for glob, included in reversed(self._rules):
            if glob.matches(path, directory=directory):
                return not included
        return None


def _without_trailing_spaces(line: str) -> str:
    bare = line.rstrip(" ")
    slashes = len(bare) - len(bare.rstrip("\\"))
    return bare + " " if bare != line and slashes % 2 else bare


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
    """True if names are searched instead of contents."""
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
