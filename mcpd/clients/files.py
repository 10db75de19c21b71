# SPDX-License-Identifier: LGPL-2.1-or-later
"""The file of a client: where it is, whether it may be replaced, and its replacement if it has not changed.

Clients write their files at any time and know no lock. So the new file is exchanged with the old one in one step, and
the old one is examined before it is removed: if it was written in the meantime, it is restored.
"""

from __future__ import annotations

import errno
import fcntl
import grp
import hashlib
import os
import secrets
import shlex
import signal
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.errors import Busy, InvalidArgument, InvalidConfig, McpdError, NotSupported, ReadOnly, from_oserror
from mcpd.files import (
    MAX_FILE,
    RENAME_EXCHANGE,
    RENAME_NOREPLACE,
    TEMP_MARK,
    rename_with,
    signature,
    sync_directory,
)
from mcpd.model import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mcpd.clients.families import Family

_PRIVATE: Final = 0o700


def client_file(family: Family, home: Path, environ: Mapping[str, str], given: Path | None = None) -> Path:
    """Return the file of *family* for the user with the directory *home*: *given*, else the first that exists.

    *environ* has the variables that move it. Raises :class:`~mcpd.errors.NotSupported` for a client without a file on
    Linux.
    """
    if given is not None:
        return given
    places = family.linux_locations(home, environ)
    if not places:
        raise NotSupported(f"{family.name} has no file on Linux; specify one with --file FILE")
    return next((place for place in places if is_there(place)), places[0])


def is_there(path: Path) -> bool:
    """Return True if *path* exists, even as a dangling symlink."""
    return os.path.lexists(path)


def real_place(path: Path) -> Path:
    """Return *path* with symlinks in its directory resolved, so that a file has one history.

    The last part is not resolved, so that a symlink there is noticed. Raises :class:`~mcpd.errors.InvalidArgument` for
    an invalid name of a file.
    """
    text = str(path)
    if not path.name or path.name == ".." or "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise InvalidArgument(f"{text!a} is not a valid file name in UTF-8")
    return Path(os.path.realpath(path.parent)) / path.name


def missing_directories(path: Path, home: Path) -> list[Path]:
    """Return the directories to create for the file *path*, outermost first.

    Raises :class:`~mcpd.errors.InvalidConfig` if they are not below *home*, as a path elsewhere in a missing directory
    is a misspelt one, and if root would leave its own file in a user's directory.
    """
    missing = [parent for parent in path.parents if not is_there(parent)]
    above = missing[-1].parent if missing else path.parent
    with suppress(OSError):  # reported when the file is written
        owner = above.stat().st_uid
        if os.geteuid() == 0 and owner != 0:
            raise InvalidConfig(f"{path}: is in a directory owned by another user (uid {owner}); run this as that user")
    if missing and real_place(home / "x").parent not in missing[-1].parents:
        raise InvalidConfig(f"{path}: there is no directory {path.parent}; create it first, or specify another file")
    return missing[::-1]


def make_directories(directories: Iterable[Path]) -> None:
    """Create *directories*, accessible to their owner only. Raises :class:`~mcpd.errors.McpdError`."""
    for directory in directories:
        try:
            with suppress(FileExistsError):
                directory.mkdir(mode=_PRIVATE)
                sync_directory(directory.parent)
        except OSError as error:
            raise from_oserror(error, f"creating {directory}") from error


def remove_directories(directories: Sequence[Path]) -> None:
    """Remove the directories that :func:`make_directories` created, if they are empty."""
    for directory in reversed(directories):
        with suppress(OSError):  # not empty, or already removed
            directory.rmdir()


NEW_MODE: Final = 0o600
"""Mode of a new file, which may come to contain secrets."""
READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags for opening a client's file without following a symlink or blocking."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A client's file when it was read."""

    path: Path
    data: bytes | None = field(repr=False)
    """None if there was no file."""
    mode: int
    """Permissions of the file, or those that a new file will get."""

    @property
    def digest(self) -> str | None:
        """The SHA-256 of the content, in hexadecimal."""
        return digest(self.data)


def digest(data: bytes | None) -> str | None:
    """Return the SHA-256 of *data*, in hexadecimal; None for None."""
    return None if data is None else hashlib.sha256(data).hexdigest()


def snapshot(path: Path) -> Snapshot:
    """Return the client's file at *path*, which may be missing.

    Raises :class:`~mcpd.errors.InvalidConfig` for a symlink, for a file that is not regular, has several names, belongs
    to another user or is larger than 8 MiB, :class:`~mcpd.errors.Busy` if it is being written, and another
    :class:`~mcpd.errors.McpdError` if it cannot be read.
    """
    path = real_place(path)
    try:
        with opened(path.parent) as directory:
            data, status = _read(directory, path.name, path)
    except FileNotFoundError:
        return Snapshot(path, None, NEW_MODE)
    except OSError as error:
        raise from_oserror(error, f"reading {path}") from error
    return Snapshot(path, data, stat.S_IMODE(status.st_mode))


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open the directory *path*, which must not have become a symlink; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read(directory: int, name: str, path: Path) -> tuple[bytes, os.stat_result]:
    # Check the file before opening it, because opening a device may have side effects.
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
    """Return the content of the file up to the size limit, and one byte more; raises OSError."""
    parts, place = [], 0
    while place <= MAX_FILE and (part := os.pread(descriptor, MAX_FILE + 1 - place, place)):
        parts.append(part)
        place += len(part)
    return b"".join(parts)


def check(status: os.stat_result, path: Path) -> None:
    """Raise :class:`~mcpd.errors.InvalidConfig` unless the file may be replaced."""
    if stat.S_ISLNK(status.st_mode):
        real = os.path.realpath(path)
        raise InvalidConfig(
            f"{path}: a symlink, which a new file would replace; use --file {real} to change its target"
        )
    if not stat.S_ISREG(status.st_mode):
        raise InvalidConfig(f"{path}: not a regular file; specify another one with --file FILE")
    if status.st_uid != os.geteuid():
        raise InvalidConfig(
            f"{path}: belongs to another user (uid {status.st_uid}); specify another one with --file FILE"
        )
    if status.st_nlink > 1:
        raise InvalidConfig(
            f"{path}: has {status.st_nlink} hard links, which replacing it would separate; replace it with a copy"
            " first, or specify another one with --file"
        )
    if status.st_size > MAX_FILE:
        raise _too_large(path)


def _too_large(path: Path) -> InvalidConfig:
    return InvalidConfig(f"{path}: larger than {MAX_FILE >> 20} MiB, the limit; specify another one with --file FILE")


_OTHERS: Final = ("security.", "trusted.")
"""Prefixes of extended attributes that the system itself sets on new files."""
_NOT_MINE: Final = frozenset({errno.EPERM, errno.EACCES, errno.EINVAL})
"""Errors of giving a file to a group that the caller is not in, or that a container does not have."""


def is_being_written(descriptor: int) -> bool:
    """Return True if the file is open for writing; False if it is not, or if that is unknown."""
    try:
        # A lease break would kill this process by SIGIO; SIGURG is ignored.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def copy_attributes(source: int, target: int, path: Path) -> None:
    """Give *target* the group and the extended attributes, including access lists, of *source*, the file at *path*.

    Raises :class:`~mcpd.errors.ReadOnly` for a group that the caller may not give it, and OSError.
    """
    group = os.fstat(source).st_gid
    if os.fstat(target).st_gid != group:
        try:
            os.fchown(target, -1, group)
        except OSError as error:
            if error.errno not in _NOT_MINE:
                raise
            raise _not_in_group(path, group) from error
    given, wanted = _attributes(target), _attributes(source)
    for name in given.keys() - wanted.keys():
        with _tolerating(name):
            os.removexattr(target, name)
    for name, value in wanted.items():
        if given.get(name) != value:
            with _tolerating(name):
                os.setxattr(target, name, value)


def _not_in_group(path: Path, group: int) -> ReadOnly:
    return ReadOnly(
        f"{path}: belongs to the group {_name(group)}, which you are not a member of, so the new file cannot be given"
        f" to it; 'chgrp {_name(os.getegid())} {shlex.quote(str(path))}' changes it to your own group"
    )


def _name(group: int) -> str:
    try:
        return printable(grp.getgrgid(group).gr_name)
    except KeyError:
        return str(group)


def _attributes(descriptor: int) -> dict[str, bytes]:
    try:
        return {name: os.getxattr(descriptor, name) for name in os.listxattr(descriptor)}
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return {}
        raise


@contextmanager
def _tolerating(name: str) -> Iterator[None]:
    """Ignore the error if *name* is an attribute that the system sets and the user is not allowed to set it."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOTSUP) or not name.startswith(_OTHERS):
            raise


def temp_name(path: Path) -> str:
    """Return a temporary name for the replacement of *path*, in the same directory."""
    return f".{path.name[:40]}.{secrets.token_hex(6)}{TEMP_MARK}"


def replace(before: Snapshot, data: bytes | None, *, mode: int | None = None, temp: str = "") -> None:
    """Put *data* in place of the file *before*, or remove it if *data* is None.

    The new file has the owner, group, permissions (or *mode*) and extended attributes of the old one. *temp* is the
    name, from :func:`temp_name`, under which it is written. The caller holds the lock of the deployments and has
    created the directory. Even after a crash, either the complete old file or the complete new file exists.

    Raises :class:`~mcpd.errors.Busy`, and leaves the file unchanged, if its content differs from *before*, and another
    :class:`~mcpd.errors.McpdError` if it cannot be written.
    """
    path, temp = before.path, temp or temp_name(before.path)
    try:
        with opened(path.parent) as directory:
            change = _Change(directory, before, temp)
            if data is None:
                change.remove()
            elif before.data is None:
                change.create(data, before.mode if mode is None else mode)
            else:
                change.exchange(data, mode)
            os.fsync(directory)
    except OSError as error:
        raise from_oserror(error, f"writing {path}") from error


def settle(path: Path, temp: str, old: str | None, new: str | None, written: bytes | None) -> bool | None:
    """Return whether an interrupted :func:`replace` had put the new content in place; None if that is unknown.

    *old* and *new* are the digests of the old and the new content, *written* is the new content if known. The file that
    the killed process left as *temp* is removed, or restored if it is an edit by another program.
    """
    path = real_place(path)
    try:
        with opened(path.parent) as directory:
            change = _Change(directory, Snapshot(path, None, NEW_MODE), temp)
            return change.settle(old, new, written)
    except FileNotFoundError:  # no directory
        return True if new is None else False if old is None else None
    except (OSError, McpdError):  # a file that is left behind does no harm
        return None


@dataclass(frozen=True, slots=True)
class _Change:
    """The steps of one replacement; the caller handles OSError."""

    directory: int
    before: Snapshot
    temp: str

    @property
    def name(self) -> str:
        return self.before.path.name

    def create(self, data: bytes, mode: int) -> None:
        self._stage(data, mode, None)
        try:
            self._move(self.temp, self.name)
        except OSError as error:
            self._drop()
            if isinstance(error, FileExistsError):
                raise self._busy() from None
            raise

    def exchange(self, data: bytes, mode: int | None) -> None:
        with self._open(self.name) as source:
            status = os.fstat(source)
            check(status, self.before.path)
            self._expect(source)
            self._stage(data, stat.S_IMODE(status.st_mode) if mode is None else mode, source)
            try:
                swapped = rename_with(RENAME_EXCHANGE, self.temp, self.name, self.directory)
                if not swapped:  # the file system cannot exchange files
                    with self._open(self.name) as again:
                        self._expect(again)
                    os.rename(self.temp, self.name, src_dir_fd=self.directory, dst_dir_fd=self.directory)
            except (OSError, Busy) as error:
                self._drop()
                if isinstance(error, FileNotFoundError):
                    raise self._busy() from None
                raise
        if swapped:
            self._take_out(data)

    def remove(self) -> None:
        with self._open(self.name) as source:
            check(os.fstat(source), self.before.path)
            self._expect(source)
        try:
            if not rename_with(RENAME_NOREPLACE, self.name, self.temp, self.directory):
                os.rename(self.name, self.temp, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        except FileNotFoundError:
            raise self._busy() from None
        self._take_out(None)

    def _take_out(self, data: bytes | None) -> None:
        """Remove the old file after the exchange if it still has the content that was read, otherwise restore it."""
        if self._is_settled(self.temp, self.before.digest):
            self._drop()
            return
        self._put_back(digest(data))
        raise self._busy()

    def _put_back(self, new: str | None) -> None:
        """Undo the step that put the content with the digest *new* in place."""
        fault = "was written twice by other programs in the meantime"
        try:
            if new is None:
                self._move(self.temp, self.name)
                return
            rename_with(RENAME_EXCHANGE, self.temp, self.name, self.directory)
            if self._is_settled(self.temp, new):
                self._drop()
                return
            rename_with(RENAME_EXCHANGE, self.temp, self.name, self.directory)  # the last write wins
        except FileExistsError:
            pass
        except FileNotFoundError:
            if new is None:
                raise
            self._put_back(None)  # the client removed the new file
            return
        except OSError as error:
            fault = f"was written by another program in the meantime, and cannot be restored ({error.strerror})"
        raise McpdError(
            f"{self.before.path}: {fault}; its earlier version is kept as {self.before.path.with_name(self.temp)}"
        )

    def _move(self, source: str, place: str) -> None:
        """Rename; raises FileExistsError if there is something at *place*."""
        if not rename_with(RENAME_NOREPLACE, source, place, self.directory):
            os.link(source, place, src_dir_fd=self.directory, dst_dir_fd=self.directory, follow_symlinks=False)
            os.unlink(source, dir_fd=self.directory)

    def settle(self, old: str | None, new: str | None, written: bytes | None) -> bool | None:
        now, left = digest(self._content(self.name)), self._content(self.temp)
        if left is not None:
            if self._is_settled(self.temp, old):
                self._drop()
                return True
            if digest(left) == new:
                self._drop()
                return now == new
            if now == new:
                self._put_back(new)
                return False
            if written is not None and written.startswith(left):  # it was being written
                self._drop()
        if now == new:
            return True
        return False if now == old else None

    def _stage(self, data: bytes, mode: int, source: int | None) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.temp, flags, NEW_MODE, dir_fd=self.directory)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if source is not None:
                copy_attributes(source, descriptor, self.before.path)
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        except (OSError, McpdError):
            self._drop()
            raise
        finally:
            os.close(descriptor)

    def _drop(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self.temp, dir_fd=self.directory)

    @contextmanager
    def _open(self, name: str) -> Iterator[int]:
        try:
            descriptor = os.open(name, READ, dir_fd=self.directory)
        except FileNotFoundError:
            raise self._busy() from None
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _expect(self, descriptor: int) -> None:
        """Raise Busy unless the file *descriptor* has the content that was read."""
        if contents(descriptor) != self.before.data:
            raise self._busy()

    def _is_settled(self, name: str, content: str | None) -> bool:
        """Return True if the file *name* has the digest *content*, and nobody is about to write to it."""
        try:
            with self._open(name) as descriptor:
                return (
                    stat.S_ISREG(os.fstat(descriptor).st_mode)
                    and not is_being_written(descriptor)
                    and digest(contents(descriptor)) == content
                )
        except (OSError, Busy):
            return False

    def _content(self, name: str) -> bytes | None:
        """Return the content of the regular file *name*, None for anything else."""
        try:
            with self._open(name) as descriptor:
                return contents(descriptor) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
        except (OSError, Busy):
            return None

    def _busy(self) -> Busy:
        return Busy(
            f"{self.before.path}: was changed by another program in the meantime, and was not replaced; try again"
        )
