# SPDX-License-Identifier: LGPL-2.1-or-later
"""Replace the file of an ensemble atomically: at any time there is either the old or the new file."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Final

from mcpd.errors import Busy, InvalidArgument, NotFound, ReadOnly, from_oserror
from mcpd.files import TEMP_MARK, is_missing, signature, sync_directory, write_new
from mcpd.model import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mcpd.servers.ensembles.engine.types import Origin

_MAX_BACKUPS: Final = 100
"""Maximum number of backups within one second."""
_LOCKED: Final = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})


def check_tier(origin: Origin) -> None:
    """Raise :class:`~mcpd.errors.ReadOnly` for an ensemble that was installed by a package."""
    if origin.tier == "shipped":
        raise ReadOnly(
            f"{origin.file} came with a package and stays as it is; copy it to ensembles/ of a project or of your own,"
            " with the scripts that it names, and change that"
        )


def write(path: Path, old: str, new: str, *, backup: bool) -> Path | None:
    """Replace the content of *path* with *new* if it still is *old*; mode and owner are kept. Blocks.

    With *backup* the old file is kept beside it as ``NAME.bak-YYYYMMDD-HHMMSS``, whose path is returned. Raises
    :class:`~mcpd.errors.Busy` if the file was changed meanwhile, :class:`~mcpd.errors.InvalidArgument` if it is not a
    regular file, :class:`~mcpd.errors.NotFound`, :class:`~mcpd.errors.ReadOnly` and :class:`~mcpd.errors.NoSpace`; the
    file is unchanged then.
    """
    try:
        with _directory(path) as directory, _locked(path, directory) as file:
            _check_content(path, file, old)
            kept = _backup(path, directory, file, old) if backup else None
            _replace(path, directory, file, new)
        sync_directory(path.parent)
    except OSError as error:
        raise from_oserror(error, f"writing {path}") from error
    return kept


@contextmanager
def _directory(path: Path) -> Iterator[int]:
    """Yield a descriptor of the directory of *path*, which stays the same if it is renamed."""
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _locked(path: Path, directory: int) -> Iterator[int]:
    """Yield a descriptor of the regular file *path*, locked against other calls of this module."""
    try:
        file = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InvalidArgument(f"{path} is a symlink; change the file that it leads to") from None
        if is_missing(error):
            raise NotFound(f"{path}: there is no such file any more") from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise InvalidArgument(f"{path} is not a regular file")
        if not os.access(path.name, os.W_OK, dir_fd=directory, effective_ids=True):
            raise ReadOnly(
                f"{path} is read-only: its permissions, or what it is mounted from, do not let it be written"
            )
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _LOCKED:
                raise Busy(f"{path} is being changed by another call; try again") from None
        yield file
    finally:
        os.close(file)


def _check_content(path: Path, file: int, old: str) -> None:
    expected = old.encode()
    if os.fstat(file).st_size != len(expected) or os.pread(file, len(expected) + 1, 0) != expected:
        raise _changed(path)


def _backup(path: Path, directory: int, file: int, old: str) -> Path:
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    for number in range(1, _MAX_BACKUPS + 1):
        name = f"{path.name}.bak-{stamp}" + (f"-{number}" if number > 1 else "")
        try:
            write_new(name, old.encode(), 0o600, directory)
        except FileExistsError:
            continue
        _keep(name, directory, file)
        return path.with_name(name)
    raise Busy(f"{printable(path.name)} has {_MAX_BACKUPS} backups of this second already; try again")


def _replace(path: Path, directory: int, file: int, new: str) -> None:
    temporary = f".{path.name[:100]}.{secrets.token_hex(6)}{TEMP_MARK}"
    before = os.fstat(file)
    try:
        # Until the permissions are set, nobody else may read the content.
        write_new(temporary, new.encode(), 0o600, directory)
        _keep(temporary, directory, file)
        now = os.stat(path.name, dir_fd=directory, follow_symlinks=False)
        if (now.st_dev, signature(now)) != (before.st_dev, signature(before)):
            raise _changed(path)
        os.rename(temporary, path.name, src_dir_fd=directory, dst_dir_fd=directory)
    except FileNotFoundError:
        raise _changed(path) from None
    finally:
        # After a success it no longer exists; after an error, that error is more important.
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory)


def _keep(name: str, directory: int, file: int) -> None:
    """Set the owner, as far as permitted, and the mode of *name* to those of *file*."""
    status = os.fstat(file)
    for owner, group in ((-1, status.st_gid), (status.st_uid, -1)):
        with suppress(OSError):
            os.chown(name, owner, group, dir_fd=directory, follow_symlinks=False)
    mode = stat.S_IMODE(status.st_mode) & 0o777
    made = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if made.st_gid != status.st_gid:
        # For the old file, members of our group were among the others.
        mode = mode & ~0o070 | (mode & 0o007) << 3
    os.chmod(name, mode, dir_fd=directory)


def _changed(path: Path) -> Busy:
    return Busy(f"{path} was changed meanwhile by another program, and stays as it is; read it and try again")
