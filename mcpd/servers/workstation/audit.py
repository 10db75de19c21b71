# SPDX-License-Identifier: LGPL-2.1-or-later
"""The audit log: ``audit.jsonl`` in the state directory, one JSON object a line for each call.

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
        """Return True if *fd* is what is called *name* now."""
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


NAME: Final = "audit.jsonl"
MAX_LOG: Final = 10 * 1024 * 1024
"""Bytes after which the record begins anew; the one before is kept as ``audit.jsonl.1``."""
PLACES: Final = ("path", "source", "destination")
"""Arguments that say where something is."""
_PATHS: Final = (*PLACES, "paths")
"""The same, and what there is looked at: from the top of a repository."""
_MOST_PATHS: Final = 20


class Audit:
    """The record in one directory, which other servers of the same user may write, too."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._trail = Trail(self._path)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="audit")

    def close(self) -> None:
        """Write what there is to be written."""
        self._writer.shutdown()
        self._trail.close()

    async def record(self, fields: Mapping[str, JsonValue], named: Named | None = None) -> None:
        """Add a line with *fields* and what *named* says of the arguments of one call; it is in the file then.

        Raises McpdError if it is not.
        """
        # Not in the loop: a digest of much content takes its time, and so may the disk.
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
    """What the record has of the arguments of one call."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        self._arguments = arguments
        self._digest = ""
        self.paths: dict[str, JsonValue] = {}
        """The paths in them, whole: as they were given, or absolute from :meth:`resolve` on."""
        for name in _PATHS:
            value = arguments.get(name)
            if isinstance(value, str):
                self.paths[name] = _bounded(value)
            elif isinstance(value, list):
                self.paths[name] = [_bounded(each) for each in value[:_MOST_PATHS] if isinstance(each, str)]

    @property
    def digest(self) -> str:
        """SHA-256 of them as JSON with sorted keys."""
        if not self._digest:
            self._digest = hashlib.sha256(json.dumps(self._arguments, sort_keys=True).encode()).hexdigest()
        return self._digest

    def resolve(self, jail: Jail) -> None:
        """Say where the paths are by their text in *jail*; what is in none of its roots stays as it is."""
        for name in PLACES:
            value = self.paths.get(name)
            if isinstance(value, str):
                try:
                    self.paths[name] = jail.place(value).path
                except (InvalidArgument, NotAuthorized):
                    # The tool refuses it, too, and says why.
                    continue


def _bounded(path: str) -> str:
    """At most :data:`~mcpd.servers.workstation.jail.MAX_PATH` bytes of *path*."""
    encoded = path[: MAX_PATH + 1].encode(errors="surrogatepass")
    return path if len(encoded) <= MAX_PATH else encoded[:MAX_PATH].decode(errors="ignore")
