# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is said of one thing in a directory: its type, size and times.

Standard library only, and no import from elsewhere: :mod:`.scanning` runs with it as a program of its own.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias

EntryType: TypeAlias = Literal["file", "directory", "symlink", "pipe", "socket", "device"]

MAX_TEXT: Final = 4 * 1024 * 1024
"""Bytes of names and paths, in JSON, that one answer has; they stand there twice."""

_TYPES: Final[dict[int, EntryType]] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def type_of(mode: int) -> EntryType:
    """What a file of *mode* is."""
    return _TYPES.get(stat.S_IFMT(mode), "device")


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in a directory."""

    type: EntryType | None = None
    """None if nothing is known of it."""
    size: int | None = None
    """Bytes of a file."""
    modified: int | None = None
    """Nanoseconds since 1970."""
    target: str | None = None
    """Where a symlink points, as ``os`` gives it."""
    error: str | None = None
    """Why nothing is known of it."""


def entry_at(directory: int, name: str) -> Entry | None:
    """What *name* in *directory* is, not followed if a symlink; None if it has gone meanwhile."""
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
    """The time, in nanoseconds since 1970, as RFC 3339 in UTC, cut to milliseconds.

    A time in a year that RFC 3339 cannot write becomes the first or the last one that it can.
    """
    try:
        moment = _EPOCH + timedelta(microseconds=nanoseconds // 1000)
    except OverflowError:
        moment = datetime.min if nanoseconds < 0 else datetime.max
    return f"{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
