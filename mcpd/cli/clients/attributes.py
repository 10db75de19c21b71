# SPDX-License-Identifier: LGPL-2.1-or-later
"""What belongs to a file beside its content, and whether somebody is about to write to it."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_OTHERS: Final = ("security.", "trusted.")
"""Attributes that the system sets on new files as it sees fit."""


def is_being_written(descriptor: int) -> bool:
    """Whether anybody has the file open for writing; False also where that cannot be asked."""
    try:
        # Whoever opened it right now would end this process by SIGIO; nobody minds SIGURG.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def copy_attributes(source: int, target: int) -> None:
    """Give *target* the group and the extended attributes, access lists among them, of *source*."""
    group = os.fstat(source).st_gid
    if os.fstat(target).st_gid != group:
        os.fchown(target, -1, group)
    given, wanted = _attributes(target), _attributes(source)
    for name in given.keys() - wanted.keys():
        with _tolerating(name):
            os.removexattr(target, name)
    for name, value in wanted.items():
        if given.get(name) != value:
            with _tolerating(name):
                os.setxattr(target, name, value)


def _attributes(descriptor: int) -> dict[str, bytes]:
    try:
        return {name: os.getxattr(descriptor, name) for name in os.listxattr(descriptor)}
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return {}
        raise


@contextmanager
def _tolerating(name: str) -> Iterator[None]:
    """Go on where a user may not set the attribute *name*."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOTSUP) or not name.startswith(_OTHERS):
            raise
