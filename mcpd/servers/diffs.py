# SPDX-License-Identifier: LGPL-2.1-or-later
"""Unified diffs from known changed ranges.

Finding the common parts of two whole files may take minutes; here the time is that of reading both once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

CONTEXT: Final = 3
"""Number of context lines before and after each change."""
_FINE: Final = 200
"""Maximum number of lines of a change, in either text, within which unchanged lines are searched for."""
_BUDGET: Final = 400_000
"""Maximum sum, over these changes of a diff, of the old lines multiplied by the new lines."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the characters from *start* to *end* in the old text to *new_start* to *new_end* in the new one."""

    start: int
    end: int
    new_start: int
    new_end: int


@dataclass(frozen=True, slots=True)
class Diff:
    """A unified diff."""

    text: str
    added: int
    """Number of added lines, including those cut off."""
    removed: int
    truncated: bool
    """True if :attr:`text` was cut off after a line."""


def compose(first: Sequence[Change], second: Sequence[Change]) -> list[Change]:
    """Return the changes from A to C, given *first*, from A to B, and *second*, from B to C, sorted and disjoint."""
    # Each as a range of B, with the number of characters by which A, or C, is longer than B.
    ranges = sorted(
        [(c.new_start, c.new_end, (c.end - c.start) - (c.new_end - c.new_start), 0) for c in first]
        + [(c.start, c.end, 0, (c.new_end - c.new_start) - (c.end - c.start)) for c in second]
    )
    composed: list[Change] = []
    to_old = to_new = 0
    position = 0
    while position < len(ranges):
        start, end, _, _ = ranges[position]
        old_start, new_start = start + to_old, start + to_new
        while position < len(ranges) and ranges[position][0] <= end:
            end = max(end, ranges[position][1])
            to_old += ranges[position][2]
            to_new += ranges[position][3]
            position += 1
        composed.append(Change(old_start, end + to_old, new_start, end + to_new))
    return composed


def unified(
    old: str, new: str, changes: Iterable[Change], path: str, *, most: int, check: Callable[[], None] = lambda: None
) -> Diff:
    """Return the diff of the file *path* from *old* to *new*, given the *changes* between them, sorted and disjoint.

    *most* is its maximum length in characters; *check* is called regularly, and may raise. Lines end with U+000A only,
    as for git and patch. Without changes the diff is empty.
    """
    writer = _Writer(old, new, most)
    refine = _Refiner(old, new)
    hunk: list[Change] = []
    for block in _blocks(old, new, changes):
        check()
        for piece in refine(block):
            if hunk and _lines_within(old, hunk[-1].end, piece.start, 2 * CONTEXT) is None:
                writer.hunk(hunk, path)
                hunk = []
            hunk.append(piece)
    if hunk:
        writer.hunk(hunk, path)
    return Diff("".join(writer.parts), writer.added, writer.removed, writer.is_full)


def _blocks(old: str, new: str, changes: Iterable[Change]) -> Iterator[Change]:
    """Yield *changes* extended to whole lines."""
    ends = _LineEnds(old)
    start = new_start = end = new_end = 0
    behind = -1  # End of the current lines; changes before it belong to the same block.
    for change in changes:
        is_begun = behind >= 0
        if not (is_begun and (change.start < behind or (change.start == behind and not _begins(old, behind)))):
            if is_begun:
                yield Change(start, behind, new_start, new_end + behind - end)
            start = old.rfind("\n", max(behind, 0), change.start) + 1 or max(behind, 0)
            new_start = change.new_start - (change.start - start)
        end, new_end = change.end, change.new_end
        behind = end if _begins(old, end) and _begins(new, new_end) else ends.after(end)
    if behind >= 0:
        yield Change(start, behind, new_start, new_end + behind - end)


def _begins(text: str, position: int) -> bool:
    """Return True if a line begins at *position*."""
    return position == 0 or text[position - 1] == "\n"


class _LineEnds:
    """Positions of line ends, cached so that long lines are not searched repeatedly."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._from = self._to = -1

    def after(self, position: int) -> int:
        """Return the end of the line that contains *position*."""
        if not self._from <= position < self._to:
            self._from, self._to = position, _line_end(self._text, position, len(self._text))
        return self._to


def _line_end(text: str, position: int, most: int) -> int:
    return text.find("\n", position, most) + 1 or most


class _Refiner:
    """Finds unchanged lines within a change."""

    def __init__(self, old: str, new: str) -> None:
        self._old = old
        self._new = new
        self._budget = _BUDGET

    def __call__(self, block: Change) -> Iterator[Change]:
        """Yield the changes within *block*, in whole lines; none if there are none."""
        block = self._trimmed(block)
        removed = _at_most(self._old, block.start, block.end)
        added = _at_most(self._new, block.new_start, block.new_end)
        cost = 0 if removed is None or added is None else len(removed) * len(added)
        if removed is None or added is None or cost > self._budget or not cost:
            if block.start < block.end or block.new_start < block.new_end:
                yield block
            return
        self._budget -= cost
        old_at, new_at = _offsets(removed, block.start), _offsets(added, block.new_start)
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, removed, added, autojunk=False).get_opcodes():
            if tag != "equal":
                yield Change(old_at[i1], old_at[i2], new_at[j1], new_at[j2])

    def _trimmed(self, block: Change) -> Change:
        """Return *block* without equal lines at its beginning and end."""
        old, new = self._old, self._new
        start, end, new_start, new_end = block.start, block.end, block.new_start, block.new_end
        while start < end and new_start < new_end:
            stop, new_stop = _line_end(old, start, end), _line_end(new, new_start, new_end)
            if stop - start != new_stop - new_start or old[start:stop] != new[new_start:new_stop]:
                break
            start, new_start = stop, new_stop
        while start < end and new_start < new_end:
            first = old.rfind("\n", start, end - 1) + 1 or start
            new_first = new.rfind("\n", new_start, new_end - 1) + 1 or new_start
            if end - first != new_end - new_first or old[first:end] != new[new_first:new_end]:
                break
            end, new_end = first, new_first
        return Change(start, end, new_start, new_end)


def _at_most(text: str, start: int, end: int) -> list[str] | None:
    """Return the lines from *start* to *end*, or None if they are too many to compare."""
    lines: list[str] = []
    for line in _lines(text, start, end):
        if len(lines) == _FINE:
            return None
        lines.append(line)
    return lines


def _lines(text: str, start: int, end: int) -> Iterator[str]:
    while start < end:
        stop = _line_end(text, start, end)
        yield text[start:stop]
        start = stop


def _offsets(lines: Sequence[str], start: int) -> list[int]:
    found = [start]
    for line in lines:
        found.append(found[-1] + len(line))
    return found


def _lines_within(text: str, start: int, end: int, most: int) -> int | None:
    """Return the number of lines from *start* to *end*, or None if more than *most*."""
    for count in range(most + 1):
        if start >= end:
            return count
        start = _line_end(text, start, end)
    return None


@dataclass(slots=True)
class _Writer:
    """Writes consecutive hunks."""

    old: str
    new: str
    room: int
    parts: list[str] = field(default_factory=list)
    added: int = 0
    removed: int = 0
    is_full: bool = False
    _counted: int = 0
    _line: int = 1
    """Number of the line of the old text that begins at :attr:`_counted`."""

    def hunk(self, pieces: Sequence[Change], path: str) -> None:
        """Write the changes *pieces*, which are close together, as a hunk."""
        start = self._before(pieces[0].start)
        end = pieces[-1].end
        for _ in range(CONTEXT):
            end = _line_end(self.old, end, len(self.old))
        self._line += self.old.count("\n", self._counted, start)
        self._counted = start
        shift = self.added - self.removed
        removed = sum(_count(self.old, piece.start, piece.end) for piece in pieces)
        added = sum(_count(self.new, piece.new_start, piece.new_end) for piece in pieces)
        before = _count(self.old, start, end)
        header = f"@@ -{_range(self._line, before)} +{_range(self._line + shift, before - removed + added)} @@\n"
        if not self.added and not self.removed:
            header = f"--- {_name('a', path)}\n+++ {_name('b', path)}\n{header}"
        self.added += added
        self.removed += removed
        self._write([header])
        self._write(self._body(pieces, start, end))

    def _write(self, texts: Iterable[str]) -> None:
        for text in texts:
            if self.is_full or len(text) > self.room:
                self.is_full = True
                return
            self.room -= len(text)
            self.parts.append(text)

    def _before(self, position: int) -> int:
        """Return the start of the context of a change at *position*."""
        for _ in range(CONTEXT):
            if position:
                position = self.old.rfind("\n", 0, position - 1) + 1
        return position

    def _body(self, pieces: Sequence[Change], start: int, end: int) -> Iterator[str]:
        for piece in pieces:
            yield from _marked(" ", self.old, start, piece.start)
            yield from _marked("-", self.old, piece.start, piece.end)
            yield from _marked("+", self.new, piece.new_start, piece.new_end)
            start = piece.end
        yield from _marked(" ", self.old, start, end)


def _count(text: str, start: int, end: int) -> int:
    """Return the number of lines from *start* to *end*."""
    return text.count("\n", start, end) + (start < end and text[end - 1] != "\n")


def _marked(mark: str, text: str, start: int, end: int) -> Iterator[str]:
    for line in _lines(text, start, end):
        yield f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"


def _range(line: int, count: int) -> str:
    """Return a range in the form of a hunk's header; an empty one has the number of the preceding line."""
    if count == 1:
        return str(line)
    return f"{line if count else line - 1},{count}"


def _name(side: str, path: str) -> str:
    """Return a file name in git's form: quoted if necessary, and followed by a tab if it contains blanks."""
    name = f"{side}/{path}"
    if any(c in '"\\' or not c.isprintable() for c in name):
        data = name.encode(errors="surrogateescape")
        return '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03o}" for b in data) + '"'
    return f"{name}\t" if " " in name else name
