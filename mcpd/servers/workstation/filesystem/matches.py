# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a search has found so far: as much of it as is asked for, file by file, with the lines around."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.filesystem.names import json_size
from mcpd.servers.workstation.filesystem.scanning import cut

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.servers.workstation.filesystem.entries import EntryType

MOST_TEXT: Final = 2 * 1024 * 1024
"""Bytes, in JSON, of all that is found, each line with its path; they stand in an answer twice."""


@dataclass(slots=True)
class Found:
    """One line that matches, or one name."""

    path: str
    """From the directory of the search, as ``os`` gives it."""
    type: EntryType = "file"
    line: int = 0
    column: int | None = None
    text: str = ""
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    last: int = 0
    """The number of its last line."""


class Matches:
    """Is told what an engine finds, in its order. Nothing is wanted any more once :attr:`full` is set."""

    def __init__(
        self,
        accepts: Callable[[str], bool],
        *,
        above: str,
        most: int,
        most_per_file: int | None = None,
        context: int = 0,
    ) -> None:
        """Files that it does not *accept* do not count. *above* is what is shown in front of each path."""
        self.found: list[Found] = []
        self.files = 0
        """In which something was found."""
        self.full = False
        """Whether there is more than is asked for."""
        self._accepts = accepts
        self._most, self._most_per_file, self._context = most, most_per_file, context
        self._room = MOST_TEXT
        self._above = json_size(above)
        self._cost = 0
        """Of the path in each line."""
        self._path = ""
        self._accepted = False
        self._pending: list[Found] = []
        self._before: deque[tuple[int, str]] = deque(maxlen=context)

    @property
    def listens(self) -> bool:
        """True if anything that is said of the file can count."""
        return self._accepted and not self.full

    def begin(self, path: str) -> None:
        """The lines of the file *path* come now."""
        self._path = path
        self._cost = self._above + json_size(path)
        self._accepted = self._accepts(path)
        self._pending = []
        self._before.clear()

    def leave(self) -> None:
        """Nothing more of the file counts."""
        self._accepted = False

    def cut(self) -> None:
        """There is more in the file than can be told."""
        self.full = self.full or self._accepted

    def name(self, path: str, kind: EntryType) -> None:
        """*path*, of the type *kind*, has a name that matches."""
        self.begin(path)
        if self._accepted:
            self._add(Found(path, type=kind))
            self.end(binary=False)

    def line(self, number: int, text: str, *, column: int | None = None, match: bool) -> None:
        """The line *number* of the file, or several that one match spans."""
        if not self.listens:
            return
        shown = cut(text, column or 1)
        self._follow(number, shown)
        if match and (self._most_per_file is None or len(self._pending) < self._most_per_file):
            before = [each for at, each in self._before if number - self._context <= at < number]
            last = number + shown.count("\n")
            self._add(Found(self._path, "file", number, column, shown, before, [], last))
            for each in before:
                self._spend(each)
        if self._context:
            self._before.extend(enumerate(shown.split("\n"), number))

    def _follow(self, number: int, shown: str) -> None:
        """Give *shown* to the matches that it comes soon after."""
        for each in reversed(self._pending):
            if each.last + self._context < number:
                break
            for at, line in enumerate(shown.split("\n"), number):
                if each.last < at <= each.last + self._context and len(each.after) < self._context:
                    each.after.append(line)
                    self._spend(line)

    def end(self, *, binary: bool) -> None:
        """That was all of the file; in a *binary* one nothing counts."""
        if self._pending and not binary:
            self.found += self._pending
            self.files += 1
        self._pending = []
        self._accepted = False

    def finish(self) -> None:
        """Nothing more comes, though the file may not have come to its end."""
        self.end(binary=False)

    def _add(self, found: Found) -> None:
        if len(self.found) + len(self._pending) == self._most:
            self.full = True
            return
        self._pending.append(found)
        self._spend(found.text)

    def _spend(self, line: str) -> None:
        self._room -= json_size(line) + self._cost
        self.full = self.full or self._room < 0
