# SPDX-License-Identifier: LGPL-2.1-or-later
"""Replacing a client's file, only if it still is what was read.

Clients write their files whenever they like and know no lock. So the new file changes places with the old one in one
step, and what comes out is looked at before it is dropped: if somebody wrote meanwhile, it goes back.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mcpd.cli.clients.attributes import copy_attributes, is_being_written
from mcpd.cli.clients.locations import real_place
from mcpd.cli.clients.target import NEW_MODE, READ, Snapshot, check, contents, digest, opened
from mcpd.errors import Busy, McpdError, from_oserror
from mcpd.store.files import TEMP_MARK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NO_REPLACE: Final = 1
_EXCHANGE: Final = 2
_UNSUPPORTED: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


def temp_name(path: Path) -> str:
    """A name, beside *path*, for a file that is to take its place."""
    return f".{path.name[:40]}.{secrets.token_hex(6)}{TEMP_MARK}"


def replace(before: Snapshot, data: bytes | None, *, mode: int | None = None, temp: str = "") -> None:
    """Put *data* in place of the file *before*, or remove it if *data* is None.

    The new file has the owner, group, permissions and extended attributes of the old one; *mode* says otherwise. *temp*
    is the name, from :func:`temp_name`, under which it is written. The caller holds the lock of the deployments and
    has made the directory. Whatever happens, the old or the new file is there whole.

    Raises :class:`~mcpd.errors.Busy` if the file is not *before* any more, which then stays as it is, and another
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
    """Whether a :func:`replace` that was killed had happened; None if that cannot be told any more.

    *old* and *new* are the digests of what was there and of what was to come, *written* that itself if it is known.
    What the killed one left under *temp* is removed, and put back if it is somebody's edit that was caught in between.
    """
    path = real_place(path)
    try:
        with opened(path.parent) as directory:
            change = _Change(directory, Snapshot(path, None, NEW_MODE, -1, -1, None), temp)
            return change.settle(old, new, written)
    except FileNotFoundError:  # The directory is not there.
        return True if new is None else False if old is None else None
    except (OSError, McpdError):  # What cannot be cleared away does no harm.
        return None


@dataclass(frozen=True, slots=True)
class _Change:
    """The steps of one replacement; OSError is the caller's."""

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
                swapped = self._rename(self.temp, self.name, _EXCHANGE)
                if not swapped:  # All that can be done on such a file system.
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
            if not self._rename(self.name, self.temp, _NO_REPLACE):
                os.rename(self.name, self.temp, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        except FileNotFoundError:
            raise self._busy() from None
        self._take_out(None)

    def _take_out(self, data: bytes | None) -> None:
        """Drop what came out under the temporary name if it is what was read, else put it back in place of *data*."""
        if self._rests(self.temp, self.before.digest):
            self._drop()
            return
        self._put_back(digest(data))
        raise self._busy()

    def _put_back(self, new: str | None) -> None:
        """Undo the step that put what has the digest *new* in place."""
        fault = "was written twice meanwhile by other programs"
        try:
            if new is None:
                self._move(self.temp, self.name)
                return
            self._rename(self.temp, self.name, _EXCHANGE)
            if self._rests(self.temp, new):
                self._drop()
                return
            self._rename(self.temp, self.name, _EXCHANGE)  # What was written last belongs there.
        except FileExistsError:
            pass
        except FileNotFoundError:
            if new is None:
                raise
            self._put_back(None)  # The client removed ours at once.
            return
        except OSError as error:
            fault = f"was written meanwhile by another program, and cannot be put back ({error.strerror})"
        raise McpdError(
            f"{self.before.path}: {fault}; what they wrote first is kept as {self.before.path.with_name(self.temp)}"
        )

    def _move(self, source: str, place: str) -> None:
        """Raises FileExistsError if there is something at *place*."""
        if not self._rename(source, place, _NO_REPLACE):
            os.link(source, place, src_dir_fd=self.directory, dst_dir_fd=self.directory, follow_symlinks=False)
            os.unlink(source, dir_fd=self.directory)

    def settle(self, old: str | None, new: str | None, written: bytes | None) -> bool | None:
        now, left = digest(self._content(self.name)), self._content(self.temp)
        if left is not None:
            if self._rests(self.temp, old):
                self._drop()
                return True
            if digest(left) == new:
                self._drop()
                return now == new
            if now == new:
                self._put_back(new)
                return False
            if written is not None and written.startswith(left):  # It was being written.
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
        """Raise Busy unless the file *descriptor* holds what was read."""
        if contents(descriptor) != self.before.data:
            raise self._busy()

    def _rests(self, name: str, content: str | None) -> bool:
        """Whether the file *name* is what has the digest *content*, and nobody is about to write to it."""
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
        """What the regular file *name* holds, None for anything else."""
        try:
            with self._open(name) as descriptor:
                return contents(descriptor) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
        except (OSError, Busy):
            return None

    def _rename(self, source: str, place: str, flags: int) -> bool:
        """Whether the file system could rename so; raises OSError if it failed."""
        libc = ctypes.CDLL(None, use_errno=True)
        here = self.directory
        if libc.renameat2(here, os.fsencode(source), here, os.fsencode(place), ctypes.c_uint(flags)) == 0:
            return True
        number = ctypes.get_errno()
        if number in _UNSUPPORTED:
            return False
        raise OSError(number, os.strerror(number))

    def _busy(self) -> Busy:
        return Busy(f"{self.before.path}: was changed meanwhile by another program, and stays as it is; try again")
