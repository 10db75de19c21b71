# SPDX-License-Identifier: LGPL-2.1-or-later
"""A client's file itself: which file may be replaced, and what it is now."""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mcpd.cli.clients.locations import real_place
from mcpd.errors import Busy, InvalidConfig, from_oserror
from mcpd.store.files import MAX_FILE, signature

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mcpd.store.files import Signature

NEW_MODE: Final = 0o600
"""Of a file that was not there: it may come to hold secrets."""
READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How it is opened: nothing is followed, and nothing waits."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A client's file as it was when it was read."""

    path: Path
    data: bytes | None = field(repr=False)
    """None if there was no file."""
    mode: int
    """Its permission bits; those that it will get, if there was none."""
    uid: int
    gid: int
    signature: Signature | None

    @property
    def digest(self) -> str | None:
        """The SHA-256 of the content, in hexadecimal."""
        return digest(self.data)


def digest(data: bytes | None) -> str | None:
    """The SHA-256 of *data*, in hexadecimal; None if there is none."""
    return None if data is None else hashlib.sha256(data).hexdigest()


def snapshot(path: Path) -> Snapshot:
    """The client's file at *path*, which may be missing.

    Raises :class:`~mcpd.errors.InvalidConfig` for a symlink, for what is not a regular file, has several names, is
    somebody else's or larger than 8 MiB, :class:`~mcpd.errors.Busy` if it is being written, and another
    :class:`~mcpd.errors.McpdError` if it cannot be read.
    """
    path = real_place(path)
    try:
        with opened(path.parent) as directory:
            data, status = _read(directory, path.name, path)
    except FileNotFoundError:
        return Snapshot(path, None, NEW_MODE, os.geteuid(), os.getegid(), None)
    except OSError as error:
        raise from_oserror(error, f"reading {path}") from error
    return Snapshot(path, data, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, signature(status))


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """The directory *path*, which has become no symlink since it was looked up; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read(directory: int, name: str, path: Path) -> tuple[bytes, os.stat_result]:
    # Looked at before it is opened, for opening a device may do something.
    check(os.stat(name, dir_fd=directory, follow_symlinks=False), path)
    descriptor = os.open(name, READ, dir_fd=directory)
    try:
        status = os.fstat(descriptor)
        check(status, path)
        data = contents(descriptor)
        if len(data) > MAX_FILE:
            raise _too_large(path)
        if signature(os.fstat(descriptor)) != signature(status):
            raise Busy(f"{path}: is being written by another program; try again")
        return data, status
    finally:
        os.close(descriptor)


def contents(descriptor: int) -> bytes:
    """What the file holds, as far as it is no larger than it may be, and one byte more; raises OSError."""
    parts, place = [], 0
    while place <= MAX_FILE and (part := os.pread(descriptor, MAX_FILE + 1 - place, place)):
        parts.append(part)
        place += len(part)
    return b"".join(parts)


def check(status: os.stat_result, path: Path) -> None:
    """Raise :class:`~mcpd.errors.InvalidConfig` unless the file is one that may be replaced."""
    if stat.S_ISLNK(status.st_mode):
        real = os.path.realpath(path)
        raise InvalidConfig(
            f"{path}: a symlink, which a new file would replace; --file {real} changes what it leads to"
        )
    if not stat.S_ISREG(status.st_mode):
        raise InvalidConfig(f"{path}: not a regular file; --file FILE names another one")
    if status.st_uid != os.geteuid():
        raise InvalidConfig(f"{path}: belongs to another user (uid {status.st_uid}); --file FILE names another one")
    if status.st_nlink > 1:
        raise InvalidConfig(
            f"{path}: a hard link, one of {status.st_nlink} names of a file, which a new file would part;"
            " make it a file of its own first, or name another one with --file"
        )
    if status.st_size > MAX_FILE:
        raise _too_large(path)


def _too_large(path: Path) -> InvalidConfig:
    return InvalidConfig(
        f"{path}: larger than {MAX_FILE >> 20} MiB, which no client's configuration is; --file FILE names another one"
    )
