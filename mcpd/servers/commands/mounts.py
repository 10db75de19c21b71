# SPDX-License-Identifier: LGPL-2.1-or-later
# importing pathlib takes long:
# ruff: noqa: PTH109, PTH115, PTH116
"""A mount namespace with read-only paths, as Landlock cannot revoke rights below a directory that it grants.

Standard library only, and fast to import, as keepers use it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import TYPE_CHECKING, Final

from mcpd.servers import tree

if TYPE_CHECKING:
    from collections.abc import Iterable

_CLONE_NEWNS: Final = 0x00020000
_CLONE_NEWUSER: Final = 0x10000000
_OPEN_TREE: Final = 428
_MOVE_MOUNT: Final = 429
_MOUNT_SETATTR: Final = 442
"""The numbers are the same on all architectures."""
_OPEN_TREE_CLONE: Final = 1
_AT_EMPTY_PATH: Final = 0x1000
_AT_RECURSIVE: Final = 0x8000
_FROM_AND_TO_DESCRIPTORS: Final = 0x04 | 0x40
_READ_ONLY: Final = struct.pack("=QQQQ", 1, 0, 0, 0)
"""struct mount_attr that sets MOUNT_ATTR_RDONLY."""
_PR_SET_SECUREBITS: Final = 28
_NOROOT_LOCKED: Final = 3

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class NoNamespaces(OSError):
    """User namespaces cannot be created; nothing was changed."""


def enter(fixed: Iterable[str], read_only: Iterable[str]) -> None:
    """Move this process, which must have one thread, into user and mount namespaces of its own.

    In them *read_only* cannot be changed, renamed or removed; *fixed* cannot be renamed or removed. Both are absolute
    paths without symlinks, except for the last part: a symlink there is covered itself. Programs executed later stay in
    the namespaces, without capabilities even as root.

    Raises :class:`NoNamespaces`, and OSError, with the path as ``filename`` if one does not exist or was moved.
    """
    uid, gid = os.getuid(), os.getgid()
    directory, before = os.getcwd(), os.stat(".")
    if os.statvfs("/proc/self").f_flag & os.ST_RDONLY:
        # The id maps of a new namespace could not be written.
        raise NoNamespaces(errno.EROFS, os.strerror(errno.EROFS))
    if _LIBC.unshare(_CLONE_NEWUSER | _CLONE_NEWNS):
        raise NoNamespaces(*_error().args)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid} {uid} 1")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")
    tree.prctl(_PR_SET_SECUREBITS, _NOROOT_LOCKED)
    # Mounts in the first mount namespace of a user namespace are not visible elsewhere (mount_namespaces(7)).
    covers = dict.fromkeys(fixed, False) | dict.fromkeys(read_only, True)
    # Parents first, as their mounts would hide those below.
    for path in sorted(covers):
        _cover(path, read_only=covers[path])
    # The directory that was current before is not below the new mounts.
    os.chdir(directory)
    if not os.path.samestat(before, os.stat(".")):
        raise OSError(0, "it has been moved", directory)


def _cover(path: str, *, read_only: bool) -> None:
    """Bind-mount *path* over itself."""
    there = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.readlink(f"/proc/self/fd/{there}") != path:
            raise OSError(0, "it has been moved", path)
        copy = _call(_OPEN_TREE, there, b"", _OPEN_TREE_CLONE | _AT_EMPTY_PATH | _AT_RECURSIVE | os.O_CLOEXEC)
        try:
            if read_only:
                given = ctypes.create_string_buffer(_READ_ONLY, len(_READ_ONLY))
                _call(_MOUNT_SETATTR, copy, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, given, len(_READ_ONLY))
            _call(_MOVE_MOUNT, copy, b"", there, b"", _FROM_AND_TO_DESCRIPTORS)
        finally:
            os.close(copy)
    finally:
        os.close(there)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _call(number: int, *arguments: object) -> int:
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = int(_LIBC.syscall(ctypes.c_long(number), *words))
    if result < 0:
        raise _error()
    return result


def _error() -> OSError:
    error = ctypes.get_errno()
    return OSError(error, os.strerror(error))
