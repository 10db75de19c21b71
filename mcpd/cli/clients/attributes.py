# SPDX-License-Identifier: LGPL-2.1-or-later
"""What belongs to a file beside its content, and whether somebody is about to write to it."""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import shlex
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from mcpd.errors import ReadOnly
from mcpd.model import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_OTHERS: Final = ("security.", "trusted.")
"""Attributes that the system sets on new files as it sees fit."""
_NOT_MINE: Final = frozenset({errno.EPERM, errno.EACCES, errno.EINVAL})
"""What giving a file to a group ends with that one is not in, or that a container does not have."""


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


def copy_attributes(source: int, target: int, path: Path) -> None:
    """Give *target* the group and the extended attributes, access lists among them, of *source*, the file at *path*.

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
        f"{path}: belongs to the group {_name(group)}, which you are not in and so cannot give a new file to;"
        f" 'chgrp {_name(os.getegid())} {shlex.quote(str(path))}' gives it to your own group"
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
    """Go on where a user may not set the attribute *name*."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOTSUP) or not name.startswith(_OTHERS):
            raise
