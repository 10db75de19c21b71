# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files written beside their place and put there when they are whole: at every moment there is the old or the new."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mcpd.errors import Busy, InvalidArgument, NotFound, ReadOnly
from mcpd.model import printable
from mcpd.servers.beneath import open_beneath
from mcpd.servers.workstation.filesystem.chunks import CHUNK, digest
from mcpd.servers.workstation.filesystem.locking import locked
from mcpd.servers.workstation.filesystem.renaming import (
    is_mounted_read_only,
    mounted_read_only,
    real_path,
    rename_new,
    status_at,
    sync,
)
from mcpd.servers.workstation.jail import kind, translated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.jail import Place

SHA256: Final = r"^[0-9A-Fa-f]{64}$"
"""What an argument that is a SHA-256 looks like."""
_NAMED: Final = 100
"""Bytes of a file's name that the name of what is written beside it repeats; some file systems allow only 143."""
_ACCESS: Final = "system.posix_acl_access"
_EXECUTE: Final = 0o111
_NAMELESS: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS})
"""What file systems say that have no files without a name."""
_UNLINKABLE: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV, errno.ENOENT, errno.EINVAL, errno.ENOSYS})
"""What they say that cannot give them a name later."""


@dataclass(frozen=True, slots=True)
class Target:
    """The place of a regular file, which may be missing, in a directory that is held open."""

    place: Place
    directory: int
    name: str
    status: os.stat_result | None
    """What there was when it was looked at; None if it was missing."""

    @property
    def present(self) -> os.stat_result:
        """The status of what is there. Raises :class:`~mcpd.errors.NotFound` if nothing is."""
        if self.status is None:
            raise NotFound(f"{self.place.shown}: there is no such file")
        return self.status


@contextmanager
def target(call: Call, place: Place) -> Iterator[Target]:
    """*place* as what a file can be written to; no other call writes to it meanwhile.

    Raises :class:`~mcpd.errors.InvalidArgument` for a symlink and whatever else is no regular file, besides what
    :meth:`.jail.Jail.parent` raises.
    """
    with ExitStack() as stack:
        directory, name = stack.enter_context(call.jail.parent(place))
        with translated(place, "writing"):
            stack.enter_context(locked(call, (directory, name)))
            status = status_at(directory, name)
        if status is not None and stat.S_ISLNK(status.st_mode):
            with translated(place, "reading"):
                leads = os.readlink(name, dir_fd=directory)
            leads = os.path.normpath(real_path(directory, leads))
            raise InvalidArgument(f"{place.shown} is a symlink; name the file it points to instead: {printable(leads)}")
        if status is not None and not stat.S_ISREG(status.st_mode):
            raise InvalidArgument(f"{place.shown} is {kind(status.st_mode)}, not a file that can be written")
        yield Target(place, directory, name, status)


@contextmanager
def opened_at(found: Target, flags: int) -> Iterator[int]:
    """A descriptor of the regular file *found*, which is there, opened with *flags*; nothing else is ever opened."""
    with _seen(found) as way:
        with translated(found.place, "opening"):
            fd = os.open(way, flags | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            yield fd
        finally:
            os.close(fd)


@contextmanager
def _seen(found: Target) -> Iterator[str]:
    """A path that leads to the regular file *found* and nothing else, though it is not opened."""
    with translated(found.place, "opening"):
        fd = open_beneath(found.directory, found.name, os.O_PATH, links=False)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise changed(found.place)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


@contextmanager
def readable(call: Call, found: Target) -> Iterator[int]:
    """A descriptor of the file *found*, which can be read.

    Raises :class:`~mcpd.errors.NotAuthorized` for a file with other names, unless those are allowed.
    """
    call.jail.check_file(found.place, found.present)
    with opened_at(found, os.O_RDONLY) as fd:
        call.jail.check_file(found.place, os.fstat(fd))
        yield fd


def check_digest(call: Call, found: Target, expected: str) -> None:
    """Raise :class:`~mcpd.errors.InvalidArgument` unless *expected* is the SHA-256 of what is there."""
    with readable(call, found) as fd, translated(found.place, "reading"):
        compare_digests(found.place, digest(call, fd), expected)


def compare_digests(place: Place, actual: str, expected: str) -> None:
    """Raise :class:`~mcpd.errors.InvalidArgument` unless *actual*, the SHA-256 of *place*, is the *expected* one."""
    if actual != expected.lower():
        raise InvalidArgument(
            f"{place.shown} is not what expected_sha256 says: it is {actual} now; read it again before changing it"
        )


def put(call: Call, found: Target, data: bytes, *, executable: bool | None = None, overwrite: bool = True) -> None:
    """Make *data* all that the file *found* holds; whatever goes wrong, it stays as it was.

    The permissions stay, but for setuid and setgid, which no write keeps; *executable* sets or clears those to execute.
    So do owner, group, access list and the user's extended attributes, as far as we may set them; where the group
    cannot stay, ours may do what others may. Of a file that has several names only this one is changed: the others keep
    the old content.

    Raises :class:`~mcpd.errors.InvalidArgument` for a file that is there without *overwrite*,
    :class:`~mcpd.errors.ReadOnly` for one that may not be written and :class:`~mcpd.errors.Busy` for one that was
    changed since it was looked at.
    """
    place = found.place
    if found.status is not None:
        if not overwrite:
            raise InvalidArgument(f"{place.shown} is there already; overwrite replaces it")
        check_writable(found)
    with translated(place, "writing"):
        if found.status is not None or not _put_nameless(call, found, data, executable):
            _put_renamed(call, found, data, executable)
    sync(place, found.directory)


def with_execute(mode: int, executable: bool | None) -> int:
    """The permissions *mode* with those to execute as *executable* says: for whoever may read, nobody, or as it is."""
    if executable is None:
        return mode
    return mode | (mode & 0o444) >> 2 if executable else mode & ~_EXECUTE


def _put_nameless(call: Call, found: Target, data: bytes, executable: bool | None) -> bool:
    """Write a new file that has no name until it is whole: nothing is left of it, even if we are killed meanwhile.

    Says whether the file system can do that; if not, nothing has happened.
    """
    try:
        fd = os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o666, dir_fd=found.directory)
    except OSError as error:
        if error.errno in _NAMELESS:
            return False
        raise
    try:
        _fill(call, fd, found, data, executable)
        # Without following what /proc has there it would be the link in /proc that gets the name.
        os.link(f"/proc/self/fd/{fd}", found.name, dst_dir_fd=found.directory, follow_symlinks=True)
    except FileExistsError:
        raise changed(found.place) from None
    except OSError as error:
        if error.errno in _UNLINKABLE:
            return False
        raise
    finally:
        os.close(fd)
    return True


def _put_renamed(call: Call, found: Target, data: bytes, executable: bool | None) -> None:
    temporary = _temporary(found.name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    # Nobody else may read meanwhile what nobody else could read before.
    fd = os.open(temporary, flags, 0o600 if found.status else 0o666, dir_fd=found.directory)
    try:
        try:
            _fill(call, fd, found, data, executable)
        finally:
            os.close(fd)
        _rename(found, temporary)
    finally:
        # It is not there any more if all went well; else what went wrong says more than what this would.
        with suppress(OSError):
            os.unlink(temporary, dir_fd=found.directory)


def _fill(call: Call, fd: int, found: Target, data: bytes, executable: bool | None) -> None:
    """Write *data* to *fd*, a new file that is to be *found*, and give it what belongs to that."""
    if found.status is not None:
        _keep(fd, found)
    status = found.status or os.fstat(fd)
    mode = with_execute(stat.S_IMODE(status.st_mode) & 0o777, executable)
    if os.fstat(fd).st_gid != status.st_gid:
        # For the file our group was among the others.
        mode = mode & ~0o070 | (mode & 0o007) << 3
    if found.status is not None or executable is not None:
        os.fchmod(fd, mode)
    rest = memoryview(data)
    while rest:
        call.check()
        rest = rest[os.write(fd, rest[:CHUNK]) :]
    os.fsync(fd)
    call.check()


def _keep(fd: int, found: Target) -> None:
    """Give *fd* what else the file *found* has, as far as that can be."""
    status = found.present
    # Who may not give a file away may often give it to a group. In a user namespace some owners have no number.
    for owner, group in ((-1, status.st_gid), (status.st_uid, -1)):
        with suppress(OSError):
            os.fchown(fd, owner, group)
    with _seen(found) as old, suppress(OSError):
        names = os.listxattr(old)
        if _ACCESS not in names and _ACCESS in os.listxattr(fd):
            os.removexattr(fd, _ACCESS)
        for name in names:
            if name.startswith("user.") or name == _ACCESS:
                os.setxattr(fd, name, os.getxattr(old, name))


def check_writable(found: Target) -> None:
    """Raise :class:`~mcpd.errors.ReadOnly` if the file *found*, which is there, may not be written.

    A directory that may be written lets us replace what we may not write; nobody means that.
    """
    if is_mounted_read_only(found.directory, found.name):
        raise mounted_read_only(found.place)
    if not os.access(found.name, os.W_OK, dir_fd=found.directory, effective_ids=True, follow_symlinks=False):
        raise ReadOnly(f"{found.place.shown} is read-only: its permissions do not let it be written")


def _temporary(name: str) -> str:
    return f".{os.fsencode(name)[:_NAMED].decode(errors='ignore')}.{secrets.token_hex(8)}~"


def _rename(found: Target, temporary: str) -> None:
    """Put *temporary* in the place of what was there, if that is still there."""
    directory, name = found.directory, found.name
    if found.status is None:
        try:
            rename_new(directory, temporary, directory, name)
        except FileExistsError:
            raise changed(found.place) from None
    elif differs(found.status, status_at(directory, name)):
        raise changed(found.place)
    else:
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)


def differs(before: os.stat_result, now: os.stat_result | None) -> bool:
    """Whether *now* is another file than *before*, or its content was changed."""

    def signature(status: os.stat_result) -> tuple[int, ...]:
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    return now is None or signature(before) != signature(now)


def changed(place: Place) -> Busy:
    """The error of a file that another program has changed while it was looked at."""
    return Busy(f"{place.shown} was changed meanwhile by another program, and stays as it is; read it and try again")
