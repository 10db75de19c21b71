# SPDX-License-Identifier: LGPL-2.1-or-later
"""Replace files atomically: at any time there is either the old or the new file.

Only one call at a time changes a name, so that what was examined under the lock is what is replaced. This holds between
the calls of one process; changes by other programs are detected (:func:`differs`), except between the last check and
the rename.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import stat
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from mcpd.errors import Busy, InvalidArgument, NotAuthorized, NotFound, ReadOnly
from mcpd.model import printable
from mcpd.servers.beneath import open_beneath
from mcpd.servers.commands.repositories import LEVELS, SETTING, Repositories
from mcpd.servers.workstation.filesystem.texts import CHUNK, digest
from mcpd.servers.workstation.jail import kind, path_of, translated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.jail import Place

_RENAME_NOREPLACE: Final = 1
_UNSUPPORTED: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
_NO_LINKS: Final = _UNSUPPORTED | {errno.EPERM, errno.EMLINK}
"""Errors of link(2) for directories, for file systems without hard links, and without the permission to create them."""

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def status_at(directory: int, name: str) -> os.stat_result | None:
    """Return the status of *name* in *directory* itself if it is a symlink; None if it is missing. Raises OSError."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def real_path(directory: int, name: str) -> str:
    """Return the absolute path of *name* in *directory*, whose own path has no symlinks."""
    return os.path.join(path_of(directory), name)  # noqa: PTH118 - may be no UTF-8


def is_mounted_read_only(directory: int, name: str) -> bool:
    """Return True if *name* in *directory* is mounted read-only, by itself or with a directory above it."""
    try:
        fd = open_beneath(directory, name, os.O_PATH | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return bool(os.fstatvfs(fd).f_flag & os.ST_RDONLY)
    finally:
        os.close(fd)


def mounted_read_only(place: Place) -> ReadOnly:
    """Return the error for the read-only *place*."""
    return ReadOnly(f"{place.shown} is mounted read-only, in mcpd's sandbox or by the system, and stays as it is")


def check_holds_no_root(call: Call, place: Place, directory: int, name: str) -> None:
    """Raise :class:`~mcpd.errors.NotAuthorized` if *name* in *directory* is a root or contains one."""
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
    """Rename *source* to *name*, which must not exist; the kernel guarantees that, even with concurrent calls.

    Raises OSError; FileExistsError if *name* exists.
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
    """Do the same as :func:`rename_new` on file systems that do not support it, such as NFS."""
    try:
        os.link(source, name, src_dir_fd=from_directory, dst_dir_fd=to_directory, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        rename_reserved(from_directory, source, to_directory, name)
    else:
        os.unlink(source, dir_fd=from_directory)


def rename_reserved(from_directory: int, source: str, to_directory: int, name: str) -> None:
    """Do the same as :func:`rename_new` for directories, and without hard links, by creating *name* first.

    A directory then replaces an empty directory, and only as long as that is empty; a file replaces an empty file.
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
    """Sync the directory *directory*, which contains *place*, to disk, unless it is not readable."""
    with translated(place, "writing"), suppress(PermissionError):
        fd = open_beneath(directory, ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


_Key: TypeAlias = tuple[int, int, str]
_ASKED_EVERY: Final = 0.1
"""Seconds between two checks whether the call is over."""


@dataclass(slots=True)
class _Held:
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    """Number of calls that hold the lock or wait for it; without any, it is discarded."""


_GUARD: Final = threading.Lock()
HELD: Final[dict[_Key, _Held]] = {}
"""Locks of the names that are being changed."""


@contextmanager
def locked(call: Call, *names: tuple[int, str]) -> Iterator[None]:
    """Hold the locks of *names*, each with the descriptor of its directory, whichever paths other calls use for them.

    Must not be nested, or two calls could wait for each other. Raises the errors of ``call.check`` while it waits, and
    OSError.
    """
    with ExitStack() as stack:
        # The order must be the same in all calls.
        for key in sorted({_key(directory, name) for directory, name in names}):
            stack.enter_context(_one(call, key))
        yield


def _key(directory: int, name: str) -> _Key:
    status = os.fstat(directory)
    # On case-insensitive file systems the names are the same; elsewhere one only waits for the other.
    return status.st_dev, status.st_ino, name.casefold()


@contextmanager
def _one(call: Call, key: _Key) -> Iterator[None]:
    with _GUARD:
        held = HELD.setdefault(key, _Held())
        held.users += 1
    try:
        while not held.lock.acquire(timeout=_ASKED_EVERY):
            call.check()
        try:
            yield
        finally:
            held.lock.release()
    finally:
        with _GUARD:
            held.users -= 1
            if not held.users:
                del HELD[key]


SHA256: Final = r"^[0-9A-Fa-f]{64}$"
"""Pattern of an argument that is a SHA-256."""
_NAMED: Final = 100
"""Bytes of a file's name that are repeated in the name of its temporary file; some file systems allow only 143."""
_ACCESS: Final = "system.posix_acl_access"
_EXECUTE: Final = 0o111
_NAMELESS: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS})
"""Errors of file systems that do not support files without a name (O_TMPFILE)."""
_UNLINKABLE: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV, errno.ENOENT, errno.EINVAL, errno.ENOSYS})
"""Errors of file systems that cannot give such a file a name later."""


@dataclass(frozen=True, slots=True)
class Target:
    """The place of a regular file, which may be missing, with an open descriptor of its directory."""

    place: Place
    directory: int
    name: str
    status: os.stat_result | None
    """The status when it was examined; None if it was missing."""

    @property
    def present(self) -> os.stat_result:
        """The status. Raises :class:`~mcpd.errors.NotFound` if the file is missing."""
        if self.status is None:
            raise NotFound(f"{self.place.shown}: there is no such file")
        return self.status


@contextmanager
def target(call: Call, place: Place) -> Iterator[Target]:
    """Yield *place* as the target of a write, locked against writes by other calls.

    Raises :class:`~mcpd.errors.InvalidArgument` for a symlink and anything else that is not a regular file, in addition
    to the errors of :meth:`.jail.Jail.parent`.
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
    """Yield a descriptor of the existing regular file *found*, opened with *flags*; nothing else is ever opened."""
    with _seen(found) as way:
        with translated(found.place, "opening"):
            fd = os.open(way, flags | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            yield fd
        finally:
            os.close(fd)


@contextmanager
def _seen(found: Target) -> Iterator[str]:
    """Yield a path under /proc that leads to the regular file *found* and nothing else, without opening that."""
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
    """Yield a descriptor of the file *found*, open for reading.

    Raises :class:`~mcpd.errors.NotAuthorized` for a file with other names, unless those are allowed.
    """
    call.jail.check_file(found.place, found.present)
    with opened_at(found, os.O_RDONLY) as fd:
        call.jail.check_file(found.place, os.fstat(fd))
        yield fd


def check_digest(call: Call, found: Target, expected: str) -> None:
    """Raise :class:`~mcpd.errors.InvalidArgument` unless *expected* is the SHA-256 of the file *found*."""
    with readable(call, found) as fd, translated(found.place, "reading"):
        compare_digests(found.place, digest(call, fd), expected)


def compare_digests(place: Place, actual: str, expected: str) -> None:
    """Raise :class:`~mcpd.errors.InvalidArgument` unless *actual*, the SHA-256 of *place*, is the *expected* one."""
    if actual != expected.lower():
        raise InvalidArgument(
            f"{place.shown} is not what expected_sha256 says: it is {actual} now; read it again before changing it"
        )


def put(call: Call, found: Target, data: bytes, *, executable: bool | None = None, overwrite: bool = True) -> None:
    """Replace the content of the file *found* with *data*; on any error, it stays unchanged.

    The mode is kept, except setuid and setgid, which every write clears; *executable* sets or clears the execute
    bits. Owner, group, access list and the user's extended attributes are kept as far as permitted; if the group cannot
    be kept, the new group gets the permissions of others. Of a file with several names only this one is changed: the
    others keep the old content.

    Raises :class:`~mcpd.errors.InvalidArgument` if the file exists without *overwrite*, :class:`~mcpd.errors.ReadOnly`
    if it may not be written, and :class:`~mcpd.errors.Busy` if it was changed since it was examined.
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
    """Return *mode* with the execute bits set for all who may read, cleared, or unchanged if *executable* is None."""
    if executable is None:
        return mode
    return mode | (mode & 0o444) >> 2 if executable else mode & ~_EXECUTE


def _put_nameless(call: Call, found: Target, data: bytes, executable: bool | None) -> bool:
    """Write a new file that has no name until it is complete: if the process is killed, nothing is left of it.

    Return False, without any effect, if the file system does not support that.
    """
    try:
        fd = os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o666, dir_fd=found.directory)
    except OSError as error:
        if error.errno in _NAMELESS:
            return False
        raise
    try:
        _fill(call, fd, found, data, executable)
        # Without following the symlink in /proc, the symlink itself would be linked.
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
    # Until the permissions are set, nobody else may read the content.
    fd = os.open(temporary, flags, 0o600 if found.status else 0o666, dir_fd=found.directory)
    try:
        try:
            _fill(call, fd, found, data, executable)
        finally:
            os.close(fd)
        _rename(found, temporary)
    finally:
        # After a success it no longer exists; after an error, that error is more important.
        with suppress(OSError):
            os.unlink(temporary, dir_fd=found.directory)


def _fill(call: Call, fd: int, found: Target, data: bytes, executable: bool | None) -> None:
    """Write *data* to *fd*, the new file that replaces *found*, and set its permissions and attributes."""
    if found.status is not None:
        _keep(fd, found)
    status = found.status or os.fstat(fd)
    mode = with_execute(stat.S_IMODE(status.st_mode) & 0o777, executable)
    if os.fstat(fd).st_gid != status.st_gid:
        # For the old file, members of our group were among the others.
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
    """Copy the owner, group, access list and extended attributes of *found* to *fd*, as far as permitted."""
    status = found.present
    # Without the right to change the owner, the group can often be set. In a user namespace some owners have no number.
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
    """Raise :class:`~mcpd.errors.ReadOnly` if the existing file *found* may not be written.

    Write permission for the directory would be enough to replace such a file, which nobody intends.
    """
    if is_mounted_read_only(found.directory, found.name):
        raise mounted_read_only(found.place)
    if not os.access(found.name, os.W_OK, dir_fd=found.directory, effective_ids=True, follow_symlinks=False):
        raise ReadOnly(f"{found.place.shown} is read-only: its permissions do not let it be written")


def _temporary(name: str) -> str:
    return f".{os.fsencode(name)[:_NAMED].decode(errors='ignore')}.{secrets.token_hex(8)}~"


def _rename(found: Target, temporary: str) -> None:
    """Rename *temporary* to the name of *found*, if that is still the same file."""
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
    """Return True if *now* is another file than *before*, or its content was changed."""

    def signature(status: os.stat_result) -> tuple[int, ...]:
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    return now is None or signature(before) != signature(now)


def changed(place: Place) -> Busy:
    """Return the error for a file that another program has changed since it was examined."""
    return Busy(f"{place.shown} was changed meanwhile by another program, and stays as it is; read it and try again")
