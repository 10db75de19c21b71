# SPDX-License-Identifier: LGPL-2.1-or-later
"""``filesystem_stat``: what the kernel knows of one file, directory or other thing, and a digest of a file."""

from __future__ import annotations

import ctypes
import grp
import os
import pwd
import stat
import struct
from typing import TYPE_CHECKING, Final

from pydantic import Field

from mcpd.errors import InvalidArgument
from mcpd.servers.workstation.call import in_thread
from mcpd.servers.workstation.filesystem.chunks import digest
from mcpd.servers.workstation.filesystem.entries import EntryType, timestamp, type_of
from mcpd.servers.workstation.filesystem.media import UNKNOWN, type_of_name
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.jail import kind, translated
from mcpd.servers.workstation.tool import Answer, Arguments, Result, Tool

if TYPE_CHECKING:
    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.jail import Place

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_EMPTY_PATH: Final = 0x1000
_BTIME: Final = 0x800
_STATX_SIZE: Final = 256
_STATX_BTIME_AT: Final = 80


class StatArguments(Arguments):
    """What is looked at."""

    path: str = Field(description="Absolute, or relative to the first root")
    follow: bool = Field(default=False, description="Of a symlink: look at what it points to")
    digest: bool = Field(default=False, description="Also the SHA-256 of a file")


class StatResult(Result):
    """What is known of it."""

    path: str = Field(description="Absolute")
    type: EntryType = Field(description="What it is")
    size: int = Field(description="Bytes")
    mode: str = Field(description="In octal: 0644")
    permissions: str = Field(description="In letters: rw-r--r--")
    uid: int = Field(description="Of the owner")
    gid: int = Field(description="Of the group")
    owner: str | None = Field(default=None, description="Name, if known")
    group: str | None = Field(default=None, description="Name, if known")
    modified: str = Field(description="When the content changed: RFC 3339, UTC")
    accessed: str = Field(description="When it was last read, as far as recorded")
    changed: str = Field(description="When content or metadata changed")
    created: str | None = Field(default=None, description="When it was created, if known")
    hard_links: int = Field(description="How many names it has")
    inode: int = Field(description="Its number in the file system")
    device: str = Field(description="The file system, as major:minor")
    target: str | None = Field(default=None, description="Where a symlink points")
    mime_type: str | None = Field(default=None, description="Of a file, by its name")
    sha256: str | None = Field(default=None, description="If asked for with digest")


def _stat(call: Call, arguments: StatArguments) -> Answer:
    place = call.jail.place(arguments.path)
    flags = os.O_PATH if arguments.follow else os.O_PATH | os.O_NOFOLLOW
    with call.jail.opened(place, flags) as fd, translated(place, "looking at"):
        status = os.fstat(fd)
        if not arguments.digest:
            return Answer(_result(place, fd, status))
        if stat.S_ISLNK(status.st_mode):
            raise InvalidArgument(f"{place.shown} is {kind(status.st_mode)}, which has no digest; set follow as well")
    # Everything is said of the one file that is read, which may have taken the place of the other.
    with call.jail.file(place) as fd, translated(place, "reading"):
        sha256 = digest(call, fd)
        return Answer(_result(place, fd, os.fstat(fd), sha256))


def _result(place: Place, fd: int, status: os.stat_result, sha256: str | None = None) -> StatResult:
    """What is said of *fd*. Raises OSError."""
    found = type_of(status.st_mode)
    mime_type = type_of_name(place.relative.rpartition("/")[2]) if found == "file" else UNKNOWN
    return StatResult(
        path=shown_name(place.path),
        type=found,
        size=status.st_size,
        mode=f"{stat.S_IMODE(status.st_mode):04o}",
        permissions=stat.filemode(status.st_mode)[1:],
        uid=status.st_uid,
        gid=status.st_gid,
        owner=_owner(status.st_uid),
        group=_group(status.st_gid),
        modified=timestamp(status.st_mtime_ns),
        accessed=timestamp(status.st_atime_ns),
        changed=timestamp(status.st_ctime_ns),
        created=_created(fd),
        hard_links=status.st_nlink,
        inode=status.st_ino,
        device=f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}",
        target=shown_name(os.readlink("", dir_fd=fd)) if found == "symlink" else None,
        mime_type=None if mime_type == UNKNOWN else mime_type,
        sha256=sha256,
    )


def _owner(number: int) -> str | None:
    try:
        return shown_name(pwd.getpwuid(number).pw_name)
    except KeyError:
        return None


def _group(number: int) -> str | None:
    try:
        return shown_name(grp.getgrgid(number).gr_name)
    except KeyError:
        return None


def _created(fd: int) -> str | None:
    """When *fd* was made: statx(2), which Python does not have. None where that is not known."""
    answer = ctypes.create_string_buffer(_STATX_SIZE)
    if _LIBC.statx(fd, b"", _EMPTY_PATH, _BTIME, answer) != 0:
        return None
    known = struct.unpack_from("=I", answer, 0)[0]
    if not known & _BTIME:
        return None
    seconds, nanoseconds = struct.unpack_from("=qI", answer, _STATX_BTIME_AT)
    return timestamp(seconds * 1_000_000_000 + nanoseconds)


STAT: Final = Tool(
    name="filesystem_stat",
    title="Look at a file",
    description="Say what a path is: type, size, permissions, owner, times, where a symlink points, and with digest the"
    " SHA-256 of a file.",
    arguments=StatArguments,
    result=StatResult,
    run=in_thread(_stat),
    read_only=True,
    idempotent=True,
)
