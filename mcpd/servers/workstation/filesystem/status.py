# SPDX-License-Identifier: LGPL-2.1-or-later
"""``filesystem/stat``: what the kernel knows of one file, directory or other thing, and a digest of a file."""

from __future__ import annotations

import ctypes
import grp
import hashlib
import os
import pwd
import stat
import struct
from typing import TYPE_CHECKING, Final

from pydantic import Field

from mcpd.errors import InvalidArgument
from mcpd.servers.workstation.call import in_thread
from mcpd.servers.workstation.filesystem.entries import EntryType, timestamp, type_of
from mcpd.servers.workstation.filesystem.media import UNKNOWN, type_of_name
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.filesystem.texts import CHUNK
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

    path: str = Field(description="What to look at: absolute, or relative to the first root")
    follow: bool = Field(default=False, description="If it is a symlink, look at what it points to")
    digest: bool = Field(default=False, description="Also the SHA-256 of a file, all of which is read")


class StatResult(Result):
    """What is known of it."""

    path: str = Field(description="What was looked at")
    type: EntryType = Field(description="What it is")
    size: int = Field(description="Bytes")
    mode: str = Field(description="Permissions in octal, such as 0644")
    permissions: str = Field(description="Permissions in letters, such as rw-r--r--")
    uid: int = Field(description="Number of the owner")
    gid: int = Field(description="Number of the group")
    owner: str | None = Field(default=None, description="Name of the owner, where known")
    group: str | None = Field(default=None, description="Name of the group, where known")
    modified: str = Field(description="When the content changed: RFC 3339, UTC")
    accessed: str = Field(description="When it was read last, as far as that is recorded")
    changed: str = Field(description="When content, permissions, owner or names changed")
    created: str | None = Field(default=None, description="When it was made, where the file system knows")
    hard_links: int = Field(description="How many names it has")
    inode: int = Field(description="Its number in its file system")
    device: str = Field(description="The file system it is in, as major:minor")
    target: str | None = Field(default=None, description="Where a symlink points, as it is written")
    mime_type: str | None = Field(default=None, description="What a file should be by its name, where that tells")
    sha256: str | None = Field(default=None, description="The digest, if it was asked for")


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
        sha256 = _digest(call, fd, os.fstat(fd).st_size)
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


def _digest(call: Call, fd: int, size: int) -> str:
    """The SHA-256 of what can be read from *fd*, about *size* bytes. Raises OSError."""
    digest, done = hashlib.sha256(), 0
    while True:
        call.check()
        part = os.pread(fd, CHUNK, done)
        if not part:
            return digest.hexdigest()
        digest.update(part)
        done += len(part)
        call.report(done, max(done, size), "reading")


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
    name="filesystem/stat",
    title="Look at a file",
    description="Say what a path is: type, size, permissions, owner, times, where a symlink points, and with digest the"
    " SHA-256 of a file.",
    arguments=StatArguments,
    result=StatResult,
    run=in_thread(_stat),
    read_only=True,
    idempotent=True,
)
