# SPDX-License-Identifier: LGPL-2.1-or-later
"""Going through a tree that somebody else made, within limits."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidManifest

if TYPE_CHECKING:
    from collections.abc import Collection, Generator
    from pathlib import Path

MAX_DEPTH: Final = 128
"""Directories in each other; one descriptor is open for each."""
MAX_ENTRIES: Final = 500_000
"""Files, directories and links in one tree."""
_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class Found:
    """Something in the tree."""

    parent: int
    """Descriptor of the directory it is in, open until the next one is asked for."""
    name: str
    relative: str
    """Path from the root of the tree."""
    status: os.stat_result
    """Of itself, not of what a link points at."""


def walk(root: int, origin: str, left_out: Collection[str] = ()) -> Generator[Found]:
    """Everything below the directory open as *root* but the names *left_out*, a directory before what it holds.

    Every directory is opened relative to its parent without following links, so a tree that changes meanwhile cannot
    lead elsewhere. The iterator has to be closed.

    Raises :class:`~mcpd.errors.InvalidManifest` that names *origin* for a tree over the limits, and OSError.
    """
    count = 0
    opened: list[int] = []
    try:
        opened.append(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root))
        waiting = [("", iter(_names(opened[0], left_out)))]
        while waiting:
            above, names = waiting[-1]
            name = next(names, None)
            if name is None:
                waiting.pop()
                os.close(opened.pop())
                continue
            count += 1
            if count > MAX_ENTRIES:
                raise InvalidManifest(f"{origin} holds more than {MAX_ENTRIES:,} files and directories")
            relative = f"{above}/{name}" if above else name
            status = os.stat(name, dir_fd=opened[-1], follow_symlinks=False)
            yield Found(opened[-1], name, relative, status)
            if stat.S_ISDIR(status.st_mode):
                if len(opened) > MAX_DEPTH:
                    raise InvalidManifest(f"{origin} holds more than {MAX_DEPTH} directories in each other")
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                opened.append(os.open(name, flags, dir_fd=opened[-1]))
                waiting.append((relative, iter(_names(opened[-1], left_out))))
    finally:
        for fd in opened:
            os.close(fd)


def _names(fd: int, left_out: Collection[str]) -> list[str]:
    with os.scandir(fd) as entries:
        names = (entry.name for entry in entries if entry.name not in left_out)
        return sorted(islice(names, MAX_ENTRIES + 1))


def open_root(path: Path) -> int:
    """The directory *path*, to be given to :func:`walk`; the way there is trusted. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def readable(name: str) -> str:
    """*name*, which a stranger chose, fit for a message: without control characters, and not long."""
    shown = name if name.isprintable() else ascii(name)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
