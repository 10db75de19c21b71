# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is said of one thing in a directory: its type and its times."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias

EntryType: TypeAlias = Literal["file", "directory", "symlink", "pipe", "socket", "device"]

MAX_TEXT: Final = 4 * 1024 * 1024
"""Characters of names and paths that one answer has."""

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


def timestamp(nanoseconds: int) -> str:
    """The time, in nanoseconds since 1970, as RFC 3339 in UTC, cut to milliseconds.

    A time in a year that RFC 3339 cannot write becomes the first or the last one that it can.
    """
    try:
        moment = _EPOCH + timedelta(microseconds=nanoseconds // 1000)
    except OverflowError:
        moment = datetime.min if nanoseconds < 0 else datetime.max
    return f"{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
