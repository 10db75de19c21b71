# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names in directories that are held open: what they are, where they lie, and how one becomes another."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from mcpd.errors import NotAuthorized, ReadOnly
from mcpd.model import printable
from mcpd.servers.beneath import open_beneath
from mcpd.servers.commands.repositories import LEVELS, SETTING, Repositories
from mcpd.servers.workstation.jail import path_of, translated

if TYPE_CHECKING:
    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.jail import Place

_RENAME_NOREPLACE: Final = 1
_UNSUPPORTED: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
_NO_LINKS: Final = _UNSUPPORTED | {errno.EPERM, errno.EMLINK}
"""Directories have none, some file systems know none, and not everybody may give a file another name."""

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def status_at(directory: int, name: str) -> os.stat_result | None:
    """What *name* in *directory* is, not followed if a symlink; None if it is missing. Raises OSError."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def real_path(directory: int, name: str) -> str:
    """Where *name* in *directory* lies: absolute, without symlinks on the way."""
    return os.path.join(path_of(directory), name)  # noqa: PTH118 - may be no UTF-8


def is_mounted_read_only(directory: int, name: str) -> bool:
    """Whether *name* in *directory* is, by itself or with what is around it, mounted so that nothing can change it."""
    try:
        fd = open_beneath(directory, name, os.O_PATH | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return bool(os.fstatvfs(fd).f_flag & os.ST_RDONLY)
    finally:
        os.close(fd)


def mounted_read_only(place: Place) -> ReadOnly:
    """The error of *place* if it is so."""
    return ReadOnly(f"{place.shown} is mounted read-only, in mcpd's sandbox or by the system, and stays as it is")


def check_holds_no_root(call: Call, place: Place, directory: int, name: str) -> None:
    """Raise :class:`~mcpd.errors.NotAuthorized` if *name* in *directory* is a root, or one is in it."""
    real = real_path(directory, name)
    for root in call.jail.roots:
        if f"{root.path}/".startswith(f"{real}/"):
            raise NotAuthorized(f"{place.shown} is or holds the root {printable(root.path)}, which stays where it is")


def check_keeps_repositories(call: Call, place: Place, new: Place, old_path: str, new_path: str) -> None:
    """Raise NotAuthorized if a repository in *place* would not be found in *new*, hence not protected from commands.

    See :mod:`~mcpd.servers.commands.repositories`. *old_path* and *new_path* are the real paths of both.
    """
    if call.settings.commands_write_git:
        return
    roots = [each.root.within or each.root.path for each in (place, new)]
    lost = Repositories().first_lost(old_path, roots[0], new_path, roots[1])
    if lost is not None:
        raise NotAuthorized(
            f"{printable(lost)} would be more than {LEVELS} directories below the root in {new.shown}, where it is not"
            f" protected from commands; set {SETTING} if it need not be"
        )


def rename_new(from_directory: int, source: str, to_directory: int, name: str) -> None:
    """Rename, where nothing is called *name* yet; the kernel sees to that, whoever creates what meanwhile.

    Raises OSError; FileExistsError if something is there.
    """
    failed = _LIBC.renameat2(
        ctypes.c_int(from_directory),
        ctypes.c_char_p(os.fsencode(source)),
        ctypes.c_int(to_directory),
        ctypes.c_char_p(os.fsencode(name)),
        ctypes.c_uint(_RENAME_NOREPLACE),
    )
    if not failed:
        return
    number = ctypes.get_errno()
    if number not in _UNSUPPORTED:
        raise OSError(number, os.strerror(number), name)
    rename_new_portably(from_directory, source, to_directory, name)


def rename_new_portably(from_directory: int, source: str, to_directory: int, name: str) -> None:
    """What :func:`rename_new` does, for file systems that cannot do it at once, as NFS."""
    try:
        os.link(source, name, src_dir_fd=from_directory, dst_dir_fd=to_directory, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        rename_reserved(from_directory, source, to_directory, name)
    else:
        os.unlink(source, dir_fd=from_directory)


def rename_reserved(from_directory: int, source: str, to_directory: int, name: str) -> None:
    """What :func:`rename_new` does, for directories, and where there are no hard links either: *name* is taken first.

    An empty directory is replaced by one, and only as long as it is empty; anything else replaces an empty file.
    """
    if stat.S_ISDIR(os.stat(source, dir_fd=from_directory, follow_symlinks=False).st_mode):
        os.mkdir(name, 0o700, dir_fd=to_directory)
        release = os.rmdir
    else:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=to_directory))
        release = os.unlink
    try:
        os.rename(source, name, src_dir_fd=from_directory, dst_dir_fd=to_directory)
    except OSError:
        with suppress(OSError):
            release(name, dir_fd=to_directory)
        raise


def sync(place: Place, directory: int) -> None:
    """Make the names in *directory*, which *place* is in, last. One that may not be read cannot be synced."""
    with translated(place, "writing"), suppress(PermissionError):
        fd = open_beneath(directory, ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
