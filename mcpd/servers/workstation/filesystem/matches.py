# SPDX-License-Identifier: LGPL-2.1-or-later
"""The matches of a search: per file, with context lines, up to the limits."""

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
"""Maximum size of all matches as JSON, each line with its path, in bytes; a result contains them twice."""


@dataclass(slots=True)
class Found:
    """A matching line or name."""

    path: str
    """Path relative to the directory of the search, decoded as by ``os``."""
    type: EntryType = "file"
    line: int = 0
    column: int | None = None
    text: str = ""
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    last: int = 0
    """Number of its last line."""


class Matches:
    """Collects the matches of an engine, in order, until :attr:`full` is set."""

    def __init__(
        self,
        accepts: Callable[[str], bool],
        *,
        above: str,
        most: int,
        most_per_file: int | None = None,
        context: int = 0,
    ) -> None:
        """Collect matches in files that *accepts* returns True for. *above* is shown in front of each path."""
        self.found: list[Found] = []
        self.files = 0
        """Number of files with matches."""
        self.full = False
        """True if there are more matches than requested."""
        self._accepts = accepts
        self._most, self._most_per_file, self._context = most, most_per_file, context
        self._room = MOST_TEXT
        self._above = json_size(above)
        self._cost = 0
        """Size in bytes of the path that is repeated in each line."""
        self._path = ""
        self._accepted = False
        self._pending: list[Found] = []
        self._before: deque[tuple[int, str]] = deque(maxlen=context)

    @property
    def listens(self) -> bool:
        """True if matches in the current file are wanted."""
        return self._accepted and not self.full

    def begin(self, path: str) -> None:
        """Start the file *path*."""
        self._path = path
        self._cost = self._above + json_size(path)
        self._accepted = self._accepts(path)
        self._pending = []
        self._before.clear()

    def leave(self) -> None:
        """Ignore the rest of the file."""
        self._accepted = False

    def cut(self) -> None:
        """Note that the file contains more than can be reported."""
        self.full = self.full or self._accepted

    def name(self, path: str, kind: EntryType) -> None:
        """Add *path*, of the type *kind*, whose name matches."""
        self.begin(path)
        if self._accepted:
            self._add(Found(path, type=kind))
            self.end(binary=False)

    def line(self, number: int, text: str, *, column: int | None = None, match: bool) -> None:
        """Add the line *number*, or the lines from there that one match spans; without *match* it is a context line."""
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
        """Add the lines of *shown* to the matches that they follow closely."""
        for each in reversed(self._pending):
            if each.last + self._context < number:
                break
            for at, line in enumerate(shown.split("\n"), number):
                if each.last < at <= each.last + self._context and len(each.after) < self._context:
                    each.after.append(line)
                    self._spend(line)

    def end(self, *, binary: bool) -> None:
        """End the file; the matches in a *binary* one are discarded."""
        if self._pending and not binary:
            self.found += self._pending
            self.files += 1
        self._pending = []
        self._accepted = False

    def finish(self) -> None:
        """End the search, possibly before the end of a file."""
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
