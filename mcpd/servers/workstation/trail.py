# SPDX-License-Identifier: LGPL-2.1-or-later
"""A file that lines are added to, which begins anew when it is full; other processes of the user may add to it, too.

Whoever adds to it holds a lock beside it, so that none moves away what another has just begun. Everything is held open,
and made writable again: without a sandbox a command may take the modes of the user's files away.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from mcpd.errors import McpdError
from mcpd.paths import make_private

if TYPE_CHECKING:
    from pathlib import Path

LOCK: Final = ".lock"
"""What the lock has in its name after that of the file."""
BEFORE: Final = ".1"
"""The same for the file before."""
PATIENCE: Final = 10.0
"""Seconds that another process may hold the lock."""
_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MODE: Final = 0o600


class Trail:
    """The file at one path."""

    def __init__(self, path: Path) -> None:
        """Nothing is opened, or made, before the first line."""
        self._path = path
        self._directory = self._lock = self._file = -1

    def close(self) -> None:
        """Close what is open."""
        for fd in (self._file, self._lock, self._directory):
            if fd >= 0:
                os.close(fd)
        self._directory = self._lock = self._file = -1

    def add(self, line: bytes, most: int) -> None:
        """Add *line*; where the file would have more than *most* bytes then, it begins anew with it.

        Raises OSError, and McpdError for what is no file and for a lock that somebody holds.
        """
        self._open()
        self._hold()
        try:
            self._turn(len(line), most)
            # One write; a part of one, on a full disk, is an error.
            if os.write(self._file, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _open(self) -> None:
        """Have the directory and the lock open, again if they were removed."""
        if self._directory >= 0 and os.fstat(self._directory).st_nlink == 0:
            self.close()
        if self._directory < 0:
            make_private(self._path.parent)
            self._directory = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        mode = stat.S_IMODE(os.fstat(self._directory).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(_again(self._directory), mode | stat.S_IRWXU)  # noqa: PTH101 - a descriptor
        name = self._path.name + LOCK
        if self._lock < 0 or not self._is(name, self._lock):
            self._lock = self._exchanged(self._lock, name)

    def _hold(self) -> None:
        ends = time.monotonic() + PATIENCE
        while True:
            with suppress(BlockingIOError):
                return fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.monotonic() > ends:
                raise McpdError(f"the call cannot be recorded: another process holds {self._path}{LOCK}; end it")
            time.sleep(0.005)

    def _turn(self, more: int, most: int) -> None:
        """Have the file open that *more* bytes are to go to."""
        name = self._path.name
        with suppress(FileNotFoundError):
            if os.stat(name, dir_fd=self._directory, follow_symlinks=False).st_size + more > most:
                os.rename(name, name + BEFORE, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        if self._file < 0 or not self._is(name, self._file):
            self._file = self._exchanged(self._file, name)
        if stat.S_IMODE(os.fstat(self._file).st_mode) != _MODE:
            os.fchmod(self._file, _MODE)

    def _is(self, name: str, fd: int) -> bool:
        """Whether *fd* is what is called *name* now."""
        try:
            return os.path.samestat(os.stat(name, dir_fd=self._directory, follow_symlinks=False), os.fstat(fd))
        except FileNotFoundError:
            return False

    def _exchanged(self, fd: int, name: str) -> int:
        """A descriptor of the file *name*, made if need be, in place of *fd*."""
        made = self._opened(name)
        if not stat.S_ISREG(os.fstat(made).st_mode):
            os.close(made)
            raise McpdError(f"the call cannot be recorded: {name} is not a regular file; move it away")
        if fd >= 0:
            os.close(fd)
        return made

    def _opened(self, name: str) -> int:
        flags = os.O_WRONLY | os.O_APPEND | _FLAGS
        with suppress(PermissionError):
            return os.open(name, flags | os.O_CREAT, _MODE, dir_fd=self._directory)
        found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._directory)
        try:
            os.chmod(_again(found), _MODE)  # noqa: PTH101 - a descriptor
            return os.open(_again(found), flags & ~os.O_NOFOLLOW)
        finally:
            os.close(found)


def _again(fd: int) -> str:
    return f"/proc/self/fd/{fd}"
