# SPDX-License-Identifier: LGPL-2.1-or-later
"""The files that a search visits: those below a directory, without hidden and ignored ones.

Globs are those of gitignore(5); matching time is proportional to the length of the name, whatever the glob is.

Standard library only, and no imports from other modules: :mod:`.scanning` uses this in a separate program.
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
"""Maximum number of globs in total, with braces expanded."""
_ANY_DEPTH: Final = "**"
_DIRECTORIES: Final = "(?:[^/]+/)*"
_SIMPLE: Final = re.compile(r"[A-Za-z0-9_.@+*?-]+(?:/[A-Za-z0-9_.@+*?-]+)*/?")


@dataclass(frozen=True, slots=True)
class Glob:
    """A glob without braces."""

    pattern: re.Pattern[str]
    only_directories: bool

    def matches(self, path: str, *, directory: bool) -> bool:
        """Return True if it matches *path*, relative and without ``.``."""
        return (directory or not self.only_directories) and self.pattern.fullmatch(path) is not None


def parse(glob: str) -> Glob:
    """Parse *glob*: without a slash at its beginning or in the middle it matches names at any depth.

    Raises ValueError if it is invalid.
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
    """Return the regular expression for a path of *parts*.

    Atomic groups fix the first match of the parts between two ``**``: any later one leaves less for the rest.
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
    """Return the regular expression for one name; the first match of the text between two stars is fixed, too."""
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
    """Yield regular expressions for the single characters of *part*, and ``*``."""
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
    """Return the set that begins at *index*, after its bracket, and the index where it ends."""
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
    """Return the globs that *glob* expands to, one for each combination of its ``{a,b}``. Raises ValueError."""
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
    """Return *globs* without braces, or None if programs interpret some of them differently. Raises ValueError."""
    written = [each for glob in globs for each in expand(glob)]
    return written if all(_SIMPLE.fullmatch(each) for each in written) else None


def _braces(glob: str) -> tuple[int, list[int], int] | None:
    """Return the index of the first opening brace, of its commas, and of the closing brace; None without braces."""
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
    """A list of globs, of which any one has to match."""

    def __init__(self, globs: Iterable[str]) -> None:
        """Parse *globs*. Raises ValueError with the invalid glob and the fault."""
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
        """Return True if any glob matches *path*."""
        return any(each.matches(path, directory=directory) for each in self._globs)

    def covers(self, path: str) -> bool:
        """Return True if any glob matches the file *path* or a directory above it."""
        return self._covers_directory(path.rpartition("/")[0]) or self.matches(path, directory=False)

    def _covers_directory(self, path: str) -> bool:
        known = self._covered.get(path)
        if known is None:
            known = self._covers_directory(path.rpartition("/")[0]) or self.matches(path, directory=True)
            self._covered[path] = known
        return known


class Ignored:
    """The rules of one ``.gitignore``."""

    def __init__(self, text: str) -> None:
        """Parse *text*; invalid lines are ignored, as git does."""
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
        """Return True if *path*, relative to the ``.gitignore``, is ignored, False if not, None if no rule matches."""
        for glob, included in reversed(self._rules):
            if glob.matches(path, directory=directory):
                return not included
        return None


def _without_trailing_spaces(line: str) -> str:
    bare = line.rstrip(" ")
    slashes = len(bare) - len(bare.rstrip("\\"))
    return bare + " " if bare != line and slashes % 2 else bare


MAX_DEPTH: Final = 200
"""Maximum depth of directories to search: each level takes a descriptor."""
_MAX_RULES: Final = 1024 * 1024
_EVERY: Final = 1000

Rules: TypeAlias = "tuple[tuple[str, Ignored], ...]"
"""Rules of the ``.gitignore`` files above, each with the path from its directory to the directory of the search."""


@dataclass(frozen=True, slots=True)
class Query:
    """The parameters of a search."""

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
    """Maximum size in bytes of files to search."""
    hard_links: bool
    only: str
    """The only file to search; empty for all."""
    root: str
    """The absolute path of the topmost directory whose ``.gitignore`` applies."""


def with_contents(include: Iterable[str]) -> list[str]:
    """Return *include*, with ``**`` appended to each glob that names a directory."""
    return [f"{each}**" if each.endswith("/") else each for each in include]


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a directory."""

    directory: int
    """Descriptor of the directory."""
    name: str
    path: str
    """Path relative to the directory of the search."""
    type: EntryType


class Walk:
    """Iterates over the entries that a query selects, sorted by the bytes of the names."""

    def __init__(self, query: Query, report: Callable[[int], None]) -> None:
        """Call *report* regularly with the number of names seen."""
        self._query = query
        self._report = report
        self._include = Globs(with_contents(query.include))
        self._exclude = Globs(query.exclude)
        self._seen = 0

    def entries(self) -> Iterator[Entry]:
        """Yield the entries; the descriptor of an entry's directory is only open until the next one is requested."""
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
        """Return *rules* and those of *directory*; *below* is the path from there to the directory of the search.

        Rules above a repository do not apply within it.
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
    """Return the parent directories of *path*, from *root* on."""
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
    """Return a descriptor of *name*, of any type, without following a symlink or blocking. Raises OSError."""
    return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=directory)


def _small(directory: int, name: str) -> str:
    """Return the content of the file *name*, or an empty string if it is not a readable regular file."""
    try:
        fd = opened(directory, name)
    except OSError:
        return ""
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return file.read(_MAX_RULES).decode("utf-8", "surrogateescape")


def _type_of(entry: os.DirEntry[str]) -> EntryType:
    """Return the type of *entry*, from the directory itself if it tells."""
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
