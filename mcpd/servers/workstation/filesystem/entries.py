# SPDX-License-Identifier: LGPL-2.1-or-later
"""Entries of directories: their types, sizes and times.

Standard library only, and no imports from other modules: :mod:`.scanning` uses this in a separate program.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias

EntryType: TypeAlias = Literal["file", "directory", "symlink", "pipe", "socket", "device"]

MAX_TEXT: Final = 4 * 1024 * 1024
"""Maximum size of the names and paths in one result as JSON, in bytes; a result contains them twice."""

_TYPES: Final[dict[int, EntryType]] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def type_of(mode: int) -> EntryType:
    """Return the type of a file of *mode*."""
    return _TYPES.get(stat.S_IFMT(mode), "device")


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a directory."""

    type: EntryType | None = None
    """None if it could not be examined."""
    size: int | None = None
    """Size of a file in bytes."""
    modified: int | None = None
    """Nanoseconds since 1970."""
    target: str | None = None
    """Target of a symlink, decoded as by ``os``."""
    error: str | None = None
    """The reason why it could not be examined."""


def entry_at(directory: int, name: str) -> Entry | None:
    """Return the entry *name* of *directory*, without following a symlink; None if it no longer exists."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        kind = type_of(status.st_mode)
        target = os.readlink(name, dir_fd=directory) if kind == "symlink" else None
    except FileNotFoundError:
        return None
    except OSError as error:
        return Entry(error=error.strerror)
    return Entry(kind, status.st_size if kind == "file" else None, status.st_mtime_ns, target)


def timestamp(nanoseconds: int) -> str:
    """Return a time in nanoseconds since 1970 as RFC 3339 in UTC, truncated to milliseconds.

    A time outside the years that RFC 3339 supports becomes the first or the last one that it does.
    """
    try:
        moment = _EPOCH + timedelta(microseconds=nanoseconds // 1000)
    except OverflowError:
        moment = datetime.min if nanoseconds < 0 else datetime.max
    return f"{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
