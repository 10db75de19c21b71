# SPDX-License-Identifier: LGPL-2.1-or-later
"""File operations that survive power loss, full disks and hostile directory trees, and a lock for writers."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import secrets
import stat
import time
from contextlib import contextmanager, suppress
from threading import RLock
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from mcpd.errors import Busy, InvalidManifest, from_oserror

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

TEMP_MARK: Final = "~tmp"
"""Suffix of the names of temporary files. It cannot occur in a server id, which must not contain ``~``."""
TEMP_NAME: Final = re.compile(rf"\.(.+)\.[0-9a-f]{{12}}{TEMP_MARK}", re.DOTALL)
"""Name of a temporary file; the group is the name of the file it will replace."""
MAX_FILE: Final = 8 * 1024 * 1024
"""Maximum bytes of a manifest or index."""

RENAME_NOREPLACE: Final = 1
RENAME_EXCHANGE: Final = 2
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_PUBLIC: Final = 0o755
_TICK: Final = 50_000_000
"""Nanoseconds after which a file system clock has certainly advanced."""

Signature: TypeAlias = tuple[int, int, int, int]


def write_atomic(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write *data* to *path* so that every reader, even after a power loss, sees the whole old or new file.

    A symlink at *path* is replaced, not followed. Raises :class:`~mcpd.errors.NoSpace` or another
    :class:`~mcpd.errors.McpdError` and leaves the old file unchanged.
    """
    with Staged(path, data, mode) as staged:
        staged.commit()


class Staged:
    """A file or symlink written under a temporary name; :meth:`commit` renames it, which needs no disk space.

    To change several files, stage all of them before committing the first, so that a full disk cannot interrupt the
    change halfway. Leaving the ``with`` block removes the temporary file if it was not committed.
    """

    def __init__(self, path: Path, content: bytes | str, mode: int = 0o644, directory: int | None = None) -> None:
        """*content* is the content of the file or, as ``str``, the target of the symlink.

        *directory* is an open descriptor of the parent of *path*, which this object closes; by default it opens one.
        """
        self._path = path
        self._temp = f".{path.name}.{secrets.token_hex(6)}{TEMP_MARK}"
        self._directory = -1
        try:
            self._directory = os.open(path.parent, _DIRECTORY) if directory is None else directory
            if isinstance(content, str):
                os.symlink(content, self._temp, dir_fd=self._directory)
            else:
                write_new(self._temp, content, mode, self._directory)
        except OSError as error:
            self._drop()
            raise from_oserror(error, f"writing {path}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()

    def commit(self) -> None:
        """Rename the temporary file to its final path."""
        try:
            os.rename(self._temp, self._path.name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            os.fsync(self._directory)
        except OSError as error:
            raise from_oserror(error, f"writing {self._path}") from error

    def exchange(self) -> Path | None:
        """Exchange the temporary file with the directory at its final path.

        Returns the new path of the directory, or None if the exchange failed or is not supported.
        """
        try:
            if not rename_with(RENAME_EXCHANGE, self._temp, self._path.name, self._directory):
                return None
        except OSError:
            return None
        os.fsync(self._directory)
        return self._path.with_name(self._temp)

    def _drop(self) -> None:
        if self._directory < 0:
            return
        try:
            with suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(self._temp, dir_fd=self._directory)
        finally:
            os.close(self._directory)
            self._directory = -1


def rename_with(flags: int, source: str, target: str, directory: int) -> bool:
    """Rename *source* to *target* in the open *directory* with *flags* of renameat2(2).

    Returns False if the file system does not support the flags.

    Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(source), os.fsencode(target)
    if libc.renameat2(directory, names[0], directory, names[1], ctypes.c_uint(flags)) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number))


def write_new(path: Path | str, data: bytes, mode: int, directory: int | None = None) -> None:
    """Create a file with *data* and flush it to disk; *path* is relative to the open *directory*, if given.

    Raises OSError.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600, dir_fd=directory)
    try:
        os.fchmod(descriptor, mode)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Flush the directory *path*, with renames and new names in it, to disk."""
    descriptor = os.open(path, _DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Flush everything below *path* to disk, with one syncfs(2) of the whole file system.

    Raises :class:`~mcpd.errors.McpdError` if that fails.
    """
    descriptor = os.open(path, _DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise from_oserror(OSError(number, os.strerror(number)), f"writing {path}")
    finally:
        os.close(descriptor)


def make_directory(path: Path, mode: int = 0o755) -> None:
    """Create the directory *path* with *mode*, and its missing parents.

    The parents of a directory with mode 0755 get that mode too, regardless of the umask.
    """
    try:
        if not path.is_dir():
            for parent in reversed([each for each in path.parents if not each.exists()]):
                with suppress(FileExistsError):  # another process created it and chose its mode
                    parent.mkdir()
                    if mode == _PUBLIC:
                        parent.chmod(_PUBLIC)
            path.mkdir(mode=mode, exist_ok=True)
            path.chmod(mode)
            sync_directory(path.parent)
    except OSError as error:
        raise from_oserror(error, f"creating {path}") from error


def read_file(path: Path, limit: int = MAX_FILE) -> bytes:
    """Return the content of the regular file *path*. Raises FileNotFoundError if it is missing.

    Raises :class:`~mcpd.errors.InvalidManifest` if it is not a regular file (opening a FIFO would hang) or larger than
    *limit* bytes, and OSError if it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidManifest(f"{path}: not a regular file")
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
        data: bytes | None = file.read(limit + 1)
    if data is None:  # Reading would block: some kernel files look regular and are streams.
        raise InvalidManifest(f"{path}: not a regular file")
    if len(data) > limit:
        raise InvalidManifest(f"{path}: larger than {limit} bytes")
    return data


def signature(status: os.stat_result) -> Signature:
    """Return the values of *status* that change whenever the file changes."""
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def settled_signature(path: Path) -> Signature | None:
    """Return the :func:`signature` of *path*; None if it is missing or not yet :func:`settled`."""
    try:
        status = path.stat()
    except OSError:
        return None
    return signature(status) if settled(status) else None


def settled(status: os.stat_result) -> bool:
    """Return whether the last change is old enough for the next one to change the :func:`signature`.

    File system clocks tick every few milliseconds; two changes within one tick may look like one.
    """
    return time.time_ns() - status.st_mtime_ns > _TICK


def remove_tree(path: Path) -> None:
    """Remove *path*: a directory with its content, a file, or a symlink (but not its target).

    Raises OSError. A missing *path* is fine.
    """
    with suppress(FileNotFoundError):
        parent = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if stat.S_ISDIR(os.stat(path.name, dir_fd=parent, follow_symlinks=False).st_mode):
                _remove_directories(parent, path.name)
                os.rmdir(path.name, dir_fd=parent)
            else:
                os.unlink(path.name, dir_fd=parent)
        finally:
            os.close(parent)


def _remove_directories(parent: int, name: str) -> None:
    """Empty the directory *name* in *parent*, however deeply nested.

    Two descriptors suffice for any depth, and no path exceeds the system's limit of 4,096 bytes: to ascend, open ``..``
    and check that it is the directory that was left when descending.
    """
    current = _open_directory(parent, name)
    try:
        waiting = [_clear(current)]
        above: list[tuple[str, tuple[int, int]]] = []
        while waiting:
            if waiting[-1]:
                child, identity = waiting[-1].pop(), _identity(current)
                with suppress(FileNotFoundError):
                    current = _step(current, child)
                    above.append((child, identity))
                    waiting.append(_clear(current))
                continue
            waiting.pop()
            if above:
                child, identity = above.pop()
                current = _step(current, "..")
                if _identity(current) != identity:
                    raise OSError(errno.ESTALE, "was moved while it was being removed", child)
                with suppress(FileNotFoundError):
                    os.rmdir(child, dir_fd=current)
    finally:
        os.close(current)


def _step(current: int, name: str) -> int:
    """Open the directory *name* in the directory *current*, close *current*, and return the new descriptor."""
    following = _open_directory(current, name)
    os.close(current)
    return following


def _clear(directory: int) -> list[str]:
    """Unlink all files in *directory*; return the names of its subdirectories."""
    names = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                names.append(entry.name)
            else:
                with suppress(FileNotFoundError):
                    os.unlink(entry.name, dir_fd=directory)
    return names


def _open_directory(parent: int, name: str) -> int:
    """Open the directory *name* for removal of its content.

    Adds missing permissions of the owner first, as some package managers create read-only directories.
    """
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(name, os.O_PATH | flags, dir_fd=parent)
    try:
        status = os.fstat(handle)
        if status.st_mode & stat.S_IRWXU != stat.S_IRWXU and status.st_uid == os.geteuid():
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IRWXU)  # noqa: PTH101 - a descriptor for paths has no other way
        return os.open(".", os.O_RDONLY | flags, dir_fd=handle)
    finally:
        os.close(handle)


def _identity(directory: int) -> tuple[int, int]:
    status = os.fstat(directory)
    return status.st_dev, status.st_ino


def is_missing(error: OSError) -> bool:
    """Return whether *error* means that the file does not exist."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR)


WAIT: Final = 10.0
"""Seconds to wait for another writer."""
_PAUSE: Final = 0.02


class WriteLock:
    """Reentrant lock, across threads and processes, for changes to one directory tree."""

    def __init__(self, path: Path, wait: float = WAIT) -> None:
        """*path* is the lock file, *wait* the seconds to wait for another holder."""
        self._path = path
        self._wait = wait
        self._thread = RLock()
        self._depth = 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock. Raises :class:`~mcpd.errors.Busy` if another holder keeps it longer than the wait time."""
        if not self._thread.acquire(timeout=self._wait):
            raise Busy(f"{self._path.parent}: another change is in progress; try again when it has finished")
        try:
            if self._depth:
                yield from self._entered()
                return
            descriptor = self._lock_file()
            try:
                yield from self._entered()
            finally:
                os.close(descriptor)
        finally:
            self._thread.release()

    def _entered(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _lock_file(self) -> int:
        make_directory(self._path.parent)
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise from_oserror(error, f"locking {self._path}") from error
        deadline = time.monotonic() + self._wait
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(_PAUSE)
                    continue
                os.close(descriptor)
                raise Busy(
                    f"{self._path.parent}: another process is changing it; try again when it has finished"
                ) from None
            except OSError as error:
                os.close(descriptor)
                raise from_oserror(error, f"locking {self._path}") from error
            return descriptor
