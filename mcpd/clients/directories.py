# SPDX-License-Identifier: LGPL-2.1-or-later
"""Going into and writing in directories that somebody else may exchange for symlinks at any moment.

Each directory is opened from the one that it is in, without following anything, and what is done in it is done by its
descriptor: it may be moved meanwhile, and yet is the one that was looked at.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from mcpd.errors import InvalidConfig, from_oserror
from mcpd.files import TEMP_MARK, is_missing, write_new

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_INTO: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Staged:
    """A file written beside its place in a tree and put there by :meth:`commit`, which needs no more space.

    Leaving the ``with`` block removes what was not committed.
    """

    def __init__(self, directory: int, path: Path, data: bytes, mode: int) -> None:
        """*directory* is a descriptor of the one that *path* is in, and is closed in the end."""
        self._directory = directory
        self._path = path
        self._temp = f".{path.name}.{secrets.token_hex(6)}{TEMP_MARK}"
        try:
            write_new(self._temp, data, mode, directory)
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
        """Put it in place."""
        try:
            os.rename(self._temp, self._path.name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            os.fsync(self._directory)
        except OSError as error:
            raise from_oserror(error, f"writing {self._path}") from error

    def _drop(self) -> None:
        try:
            with suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(self._temp, dir_fd=self._directory)
        finally:
            os.close(self._directory)


def walk(root: Path, directory: Path, access: int, doing: str, mode: int | None = None) -> int:
    """A descriptor of *directory*, opened for *access* one by one from *root* down; the caller closes it.

    With a *mode* what is missing below the root is made; without one that is a FileNotFoundError. Raises
    :class:`~mcpd.errors.InvalidConfig` for a symlink, the root itself included, another
    :class:`~mcpd.errors.McpdError` that begins with *doing*.
    """
    if not directory.is_relative_to(root) or ".." in (names := directory.relative_to(root).parts):
        raise InvalidConfig(f"{directory}: not in {root}")
    here, current = root, -1
    try:
        current = os.open(root, access | _INTO)
        for name in names:
            here = here / name
            current = _step(current, name, access, mode)
    except OSError as error:
        try:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                _refuse(root, here, current)
        finally:
            if current >= 0:
                os.close(current)
        if is_missing(error) and mode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
        raise from_oserror(error, doing) from error
    return current


def _refuse(root: Path, path: Path, parent: int) -> None:
    """Say why *path*, in the open directory *parent*, was not entered, unless it is simply no directory."""
    try:
        status = path.lstat() if parent < 0 else os.stat(path.name, dir_fd=parent, follow_symlinks=False)
    except OSError:
        return
    if stat.S_ISDIR(status.st_mode):
        raise InvalidConfig(f"{path}: was no directory a moment ago; see what changes it, then try again")
    if stat.S_ISLNK(status.st_mode) and path == root:
        raise InvalidConfig(f"{path}: a symlink, which is not followed; put the directory itself in its place")
    if stat.S_ISLNK(status.st_mode):
        raise InvalidConfig(f"{path}: a symlink, which leads out of {root}; move it away")


def _step(current: int, name: str, access: int, mode: int | None) -> int:
    """Open the directory *name* in *current*, which is closed then; with a *mode* it is made if it is missing."""
    try:
        following = os.open(name, access | _INTO, dir_fd=current)
    except FileNotFoundError:
        if mode is None:
            raise
        following = _make(current, name, access, mode)
    os.close(current)
    return following


def _make(current: int, name: str, access: int, mode: int) -> int:
    try:
        os.mkdir(name, mode, dir_fd=current)
    except FileExistsError:  # Who was faster chose its mode.
        return os.open(name, access | _INTO, dir_fd=current)
    following = os.open(name, access | _INTO, dir_fd=current)
    try:
        os.fchmod(following, mode)
        os.fsync(current)
    except OSError:
        os.close(following)
        raise
    return following
