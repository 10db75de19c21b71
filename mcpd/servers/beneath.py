# SPDX-License-Identifier: LGPL-2.1-or-later
"""openat2(2): the kernel resolves a path below a directory and never leaves it, even with concurrent renames.

Anything mounted below the directory belongs to it: a network file system, or what a sandbox binds there.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Final

_OPENAT2: Final = 437
"""The number is the same on all architectures of Debian."""
_NO_MAGICLINKS: Final = 0x02
_NO_SYMLINKS: Final = 0x04
_BENEATH: Final = 0x08
_ATTEMPTS: Final = 1000

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def open_beneath(directory: int, path: str, flags: int, *, mode: int = 0, links: bool = True) -> int:
    """Return a descriptor of *path*, relative to and below the descriptor *directory*; close-on-exec.

    Symlinks are followed if they stay below it; without *links* none are. Raises OSError: EXDEV for a path that leads
    out, ELOOP for a symlink without *links*, EINVAL for a path with NUL, where the kernel would end it.
    """
    if "\0" in path:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    resolve = _BENEATH | _NO_MAGICLINKS | (0 if links else _NO_SYMLINKS)
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, resolve)
    name = ctypes.c_char_p(os.fsencode(path))
    # The kernel fails with EAGAIN if a concurrent rename could lead out.
    for _ in range(_ATTEMPTS):
        made = _LIBC.syscall(
            ctypes.c_long(_OPENAT2),
            ctypes.c_int(directory),
            name,
            ctypes.create_string_buffer(how, len(how)),
            ctypes.c_size_t(len(how)),
        )
        if made >= 0:
            return int(made)
        error = ctypes.get_errno()
        if error not in {errno.EAGAIN, errno.EINTR}:
            raise OSError(error, os.strerror(error), path)
    raise OSError(errno.EBUSY, "something on the way is renamed all the time", path)
