# SPDX-License-Identifier: LGPL-2.1-or-later
"""Permanent confinement of a thread and its descendants with landlock(7), without race conditions.

Standard library only, and fast to import, as the workers of scripts use it, too.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from dataclasses import dataclass
from typing import Final

from mcpd.servers import tree

_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
"""The numbers are the same on all architectures."""

_PATH_BENEATH: Final = 1
_EXECUTE: Final = 1 << 0
_WRITE_FILE: Final = 1 << 1
_READ_FILE: Final = 1 << 2
_READ_DIR: Final = 1 << 3
_REFER: Final = 1 << 13
_TRUNCATE: Final = 1 << 14
_IOCTL_DEV: Final = 1 << 15
_READ: Final = _EXECUTE | _READ_FILE | _READ_DIR
_OF_A_FILE: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_RIGHTS: Final = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of file rights in each version; later ones have as many as version 5."""
_TCP: Final = 1 << 0 | 1 << 1
_SCOPE_ABSTRACT_SOCKET: Final = 1 << 0
_SCOPE_SIGNAL: Final = 1 << 1

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Rules:
    """The permitted access. :attr:`files`, :attr:`tcp` and :attr:`signals` apply as far as the kernel supports them."""

    readable: tuple[int, ...] = ()
    """Descriptors of directories, with everything below, and files that may be read and executed."""
    writable: tuple[int, ...] = ()
    """Descriptors of those that may be changed, too."""
    files: bool = False
    """True to deny opening any other files."""
    tcp: bool = False
    """True to deny connecting to and listening on TCP ports (version 4)."""
    signals: bool = False
    """True to deny signals to processes outside the same rules (version 6)."""
    sockets: bool = False
    """True to deny abstract unix sockets of processes outside the same rules (version 6)."""


def version() -> int:
    """Return the version of Landlock in this kernel; 0 or less if there is none."""
    return int(_LIBC.syscall(ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(1)))


def restrict(rules: Rules) -> None:
    """Apply *rules* to this thread and its future descendants. Raises OSError if the kernel has no Landlock."""
    known = version()
    if known < 1:
        raise OSError(errno.EOPNOTSUPP, "this kernel has no Landlock")
    # Links and moves between directories require the right in every domain, even in one without rules for files.
    handled = (1 << _RIGHTS.get(known, 16)) - 1 if rules.files else _REFER if known >= 2 else 0
    net = _TCP if rules.tcp and known >= 4 else 0
    scoped = (_SCOPE_SIGNAL * rules.signals | _SCOPE_ABSTRACT_SOCKET * rules.sockets) if known >= 6 else 0
    attributes = struct.pack("=QQQ", handled, net, scoped)[: 8 if known < 4 else 16 if known < 6 else 24]
    made = _call(_CREATE_RULESET, ctypes.create_string_buffer(attributes, len(attributes)), len(attributes), 0)
    try:
        if handled == _REFER:
            root = os.open("/", os.O_PATH)
            try:
                _add(made, root, _REFER)
            finally:
                os.close(root)
        for fd in rules.readable:
            _add(made, fd, _READ & handled)
        for fd in rules.writable:
            _add(made, fd, handled)
        tree.prctl(tree.PR_SET_NO_NEW_PRIVS, 1)
        _call(_RESTRICT_SELF, made, 0)
    finally:
        os.close(made)


def _add(made: int, fd: int, rights: int) -> None:
    """Allow *rights* on *fd*; for a file, only those that apply to files."""
    allowed = rights if _is_directory(fd) else rights & _OF_A_FILE
    beneath = struct.pack("=Qi", allowed, fd)
    _call(_ADD_RULE, made, _PATH_BENEATH, ctypes.create_string_buffer(beneath, len(beneath)), 0)


def _is_directory(fd: int) -> bool:
    return os.fstat(fd).st_mode & 0o170000 == 0o040000


def _call(number: int, *arguments: object) -> int:
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = int(_LIBC.syscall(ctypes.c_long(number), *words))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
