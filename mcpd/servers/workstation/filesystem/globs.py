# SPDX-License-Identifier: LGPL-2.1-or-later
"""Globs as gitignore(5) writes them, matched in time that grows with the name, not with what a glob can be led to try.

Standard library only, and no import from elsewhere: :mod:`.scanning` runs with it as a program of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
        """Whether it is about *path*, relative and without ``.``."""
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
        """Whether one is about *path*."""
        return any(each.matches(path, directory=directory) for each in self._globs)

    def covers(self, path: str) -> bool:
        """Whether one is about the file *path* or a directory that it is in."""
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
