# SPDX-License-Identifier: LGPL-2.1-or-later
"""Replace files atomically: at every moment there is the old or the new one.

One call at a time changes a name, so that what was examined under the lock is what is replaced. This holds between the
calls of one process; changes by other programs are noticed (:func:`differs`), except between the last look and the
rename.
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


_Key: TypeAlias = tuple[int, int, str]
_ASKED_EVERY: Final = 0.1
"""Seconds between two questions whether anybody still waits."""


@dataclass(slots=True)
class _Held:
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    """Who has it or waits for it: as long as there is one, it is kept."""


_GUARD: Final = threading.Lock()
HELD: Final[dict[_Key, _Held]] = {}
"""What is being changed, or waited for, in this moment."""


@contextmanager
def locked(call: Call, *names: tuple[int, str]) -> Iterator[None]:
    """Change *names*, each with the descriptor of its directory, alone, by whatever path others come to them.

    No second one may be taken within, or two calls could wait for each other. Raises what ``call.check`` raises while
    it waits, and OSError.
    """
    with ExitStack() as stack:
        # All take them in the same order.
        for key in sorted({_key(directory, name) for directory, name in names}):
            stack.enter_context(_one(call, key))
        yield


def _key(directory: int, name: str) -> _Key:
    status = os.fstat(directory)
    # Some file systems do not tell cases apart; where they do, such names only wait for each other.
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
    """Return True if *now* is another file than *before*, or its content was changed."""

    def signature(status: os.stat_result) -> tuple[int, ...]:
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    return now is None or signature(before) != signature(now)


def changed(place: Place) -> Busy:
    """The error of a file that another program has changed while it was looked at."""
    return Busy(f"{place.shown} was changed meanwhile by another program, and stays as it is; read it and try again")
