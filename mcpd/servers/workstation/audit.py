# SPDX-License-Identifier: LGPL-2.1-or-later
"""Audit log of calls: ``audit.jsonl`` in the state directory, one JSON object per line.

It fails closed: a call that changes something does not begin, and no answer is given, if it cannot be recorded. Other
processes of the user may append to the file; each holds a lock beside it, so that none rotates the file while another
appends to it. Everything is kept open, and made writable again: without a sandbox, a command may change the modes of
the user's files.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import json
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidArgument, McpdError, NotAuthorized, from_oserror
from mcpd.paths import make_private
from mcpd.servers.workstation.jail import MAX_PATH

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mcpd.model import JsonValue
    from mcpd.servers.workstation.jail import Jail

LOCK: Final = ".lock"
"""Suffix of the lock file, appended to the name of the log."""
BEFORE: Final = ".1"
"""Suffix of the previous log."""
PATIENCE: Final = 10.0
"""Seconds to wait for another process that holds the lock."""
_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MODE: Final = 0o600


class Trail:
    """A log file, rotated by size."""

    def __init__(self, path: Path) -> None:
        """Open and create nothing: :meth:`add` does, with the first line."""
        self._path = path
        self._directory = self._lock = self._file = -1

    def close(self) -> None:
        """Close all descriptors."""
        for fd in (self._file, self._lock, self._directory):
            if fd >= 0:
                os.close(fd)
        self._directory = self._lock = self._file = -1

    def add(self, line: bytes, most: int) -> None:
        """Append *line*; rotate the file first if it would exceed *most* bytes.

        Raises OSError, and McpdError if the file is not a regular one or another process holds the lock.
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
        """Open the directory and the lock, again if they were removed."""
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
        """Open the file that *more* bytes are to be appended to, rotated if it would exceed *most* bytes."""
        name = self._path.name
        with suppress(FileNotFoundError):
            if os.stat(name, dir_fd=self._directory, follow_symlinks=False).st_size + more > most:
                os.rename(name, name + BEFORE, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        if self._file < 0 or not self._is(name, self._file):
            self._file = self._exchanged(self._file, name)
        if stat.S_IMODE(os.fstat(self._file).st_mode) != _MODE:
            os.fchmod(self._file, _MODE)

    def _is(self, name: str, fd: int) -> bool:
        """Return True if *name* currently refers to the file that *fd* has opened."""
        try:
            return os.path.samestat(os.stat(name, dir_fd=self._directory, follow_symlinks=False), os.fstat(fd))
        except FileNotFoundError:
            return False

    def _exchanged(self, fd: int, name: str) -> int:
        """Return a descriptor of the file *name*, created if missing, and close *fd*."""
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


NAME: Final = "audit.jsonl"
MAX_LOG: Final = 10 * 1024 * 1024
"""Maximum size of the log in bytes; the previous one is kept as ``audit.jsonl.1``."""
PLACES: Final = ("path", "source", "destination")
"""Arguments that name one path."""
_PATHS: Final = (*PLACES, "paths")
"""All arguments with paths; those in ``paths`` are relative to the top level of a repository and not resolved."""
_MOST_PATHS: Final = 20


class Audit:
    """The audit log in one directory; other servers of the same user may append to it as well."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._trail = Trail(self._path)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="audit")

    def close(self) -> None:
        """Write the pending lines and close the log."""
        self._writer.shutdown()
        self._trail.close()

    async def record(self, fields: Mapping[str, JsonValue], named: Named | None = None) -> None:
        """Append a line with *fields* and the details of the call's arguments, *named*; return when it is in the file.

        Raises McpdError if that fails.
        """
        # In a thread: hashing much content and writing to the disk take time.
        await asyncio.get_running_loop().run_in_executor(self._writer, self._add, dict(fields), named)

    def _add(self, fields: dict[str, JsonValue], named: Named | None) -> None:
        line = {
            "ts": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "uid": os.getuid(),
            "pid": os.getpid(),
            **fields,
            **({"arguments_sha256": named.digest, **named.paths} if named is not None else {}),
        }
        try:
            self._trail.add(json.dumps(line).encode("ascii") + b"\n", MAX_LOG)
        except OSError as error:
            raise from_oserror(error, f"recording the call in {self._path}") from error


class Named:
    """The paths and the digest of one call's arguments, as they are recorded."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        self._arguments = arguments
        self._digest = ""
        self.paths: dict[str, JsonValue] = {}
        """The paths by argument: as they were given, or absolute after :meth:`resolve`."""
        for name in _PATHS:
            value = arguments.get(name)
            if isinstance(value, str):
                self.paths[name] = _bounded(value)
            elif isinstance(value, list):
                self.paths[name] = [_bounded(each) for each in value[:_MOST_PATHS] if isinstance(each, str)]

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the arguments as JSON with sorted keys."""
        if not self._digest:
            self._digest = hashlib.sha256(json.dumps(self._arguments, sort_keys=True).encode()).hexdigest()
        return self._digest

    def resolve(self, jail: Jail) -> None:
        """Make the paths absolute, without following symlinks; those outside the roots of *jail* stay as they are."""
        for name in PLACES:
            value = self.paths.get(name)
            if isinstance(value, str):
                try:
                    self.paths[name] = jail.place(value).path
                except (InvalidArgument, NotAuthorized):
                    # The tool refuses it, too, and gives the reason.
                    continue


def _bounded(path: str) -> str:
    """Return *path*, cut to :data:`~mcpd.servers.workstation.jail.MAX_PATH` bytes."""
    encoded = path[: MAX_PATH + 1].encode(errors="surrogatepass")
    return path if len(encoded) <= MAX_PATH else encoded[:MAX_PATH].decode(errors="ignore")
