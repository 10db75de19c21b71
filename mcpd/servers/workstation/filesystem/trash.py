# SPDX-License-Identifier: LGPL-2.1-or-later
"""The trash of each root, as desktops have it for each file system.

According to the FreeDesktop.org Trash specification 1.0: in ``.Trash-$uid`` of the top directory, ``files`` has the
deleted files and ``info`` their original paths and deletion times.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from mcpd.errors import InvalidArgument, McpdError, NotAuthorized
from mcpd.servers.beneath import open_beneath
from mcpd.servers.git_directories import git_part
from mcpd.servers.workstation.filesystem.atomic import (
    check_keeps_repositories,
    is_mounted_read_only,
    mounted_read_only,
    real_path,
    rename_new,
    status_at,
    sync,
)
from mcpd.servers.workstation.jail import Place, fault, path_of, translated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.jail import Root

_FILES: Final = "files"
_INFO: Final = "info"
_IGNORE: Final = ".gitignore"
_SUFFIX: Final = ".trashinfo"
_LONGEST: Final = 200
"""Maximum number of bytes kept of a name, so that a suffix can be appended."""
_NUMBERS: Final = 100
"""Maximum number of equal names distinguished by numbers; then random suffixes are used."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY


def trash_name() -> str:
    """Return the name of the trash directory of a root."""
    return f".Trash-{os.geteuid()}"


def name_of(root: Root) -> tuple[int, str]:
    """Return the trash of *root*, in the form that :func:`.atomic.locked` accepts."""
    return root.fd, trash_name()


def is_in_trash(root: Root, directory: int, name: str) -> bool:
    """Return True if *name* in *directory*, by its real path, is the trash of *root* or in it."""
    return f"{real_path(directory, name)}/".startswith(f"{real_path(*name_of(root))}/")


def put_in_trash(call: Call, place: Place, directory: int, name: str) -> Place:
    """Move *name* in *directory*, which is at *place*, to the trash; return its place there.

    The caller must hold the locks of both.

    Raises :class:`~mcpd.errors.InvalidArgument` if it is in the trash, is a mount point, or is on another file system
    than the trash, :class:`~mcpd.errors.ReadOnly` if it is mounted read-only, and
    :class:`~mcpd.errors.NotAuthorized` if others may own or write the trash.
    """
    if is_in_trash(place.root, directory, name):
        raise InvalidArgument(f"{place.shown} is in the trash already; permanent deletes it for good")
    with _trash(place.root) as (files, info):
        top = Place(place.root, f"{trash_name()}/{_FILES}")
        check_keeps_repositories(call, place, top, real_path(directory, name), real_path(files, name))
        for trashed in _names(name):
            call.check()
            noted = trashed + _SUFFIX
            with translated(place, "moving to the trash"):
                if not _noted(info, noted, place):
                    continue
            try:
                rename_new(directory, name, files, trashed)
            except OSError as error:
                with suppress(OSError):
                    os.unlink(noted, dir_fd=info)
                if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:
                    raise _fault(error, place, directory, name) from error
            else:
                found = Place(place.root, f"{trash_name()}/{_FILES}/{trashed}")
                sync(found, files)
                sync(place, directory)
                return found
    raise McpdError(f"{place.shown}: no name is left for it in the trash; empty it")


def forget(call: Call, directory: int, name: str) -> None:
    """Remove the trash info of *name* in *directory*, if that is a trash: the file was moved out of it, or deleted.

    The real path counts, as a symlink may have led there.
    """
    real = path_of(directory)
    for root in call.jail.roots:
        if real != f"{real_path(*name_of(root))}/{_FILES}":
            continue
        noted = Place(root, f"{trash_name()}/{_INFO}/{name}{_SUFFIX}")
        # The requested change was made; a leftover info file is harmless, as desktops ignore it.
        with suppress(McpdError), call.jail.parent(noted, adds=False) as (info, entry), translated(noted, "deleting"):
            os.unlink(entry, dir_fd=info)


@contextmanager
def _trash(root: Root) -> Iterator[tuple[int, int]]:
    """Yield descriptors of ``files`` and ``info`` in the trash of *root*, which are created if missing.

    A newly created trash is removed again if nothing was moved into it.
    """
    top = Place(root, trash_name())
    is_new = status_at(*name_of(root)) is None
    with ExitStack() as stack:
        found = stack.enter_context(_own(root.fd, top))
        try:
            _hide_from_git(found, top)
            yield (
                stack.enter_context(_own(found, top.child(_FILES))),
                stack.enter_context(_own(found, top.child(_INFO))),
            )
        except BaseException:
            if is_new:
                _remove(root, found)
            raise


def _remove(root: Root, found: int) -> None:
    """Remove the trash *found* of *root* if it is empty."""
    with suppress(OSError):
        for name in (_INFO, _FILES):
            with suppress(FileNotFoundError):
                os.rmdir(name, dir_fd=found)
        os.unlink(_IGNORE, dir_fd=found)
        os.rmdir(trash_name(), dir_fd=root.fd)


def _hide_from_git(directory: int, place: Place) -> None:
    """Prevent ``git add`` in a surrounding repository from adding the trash."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with translated(place, "writing .gitignore in"), suppress(FileExistsError):
        fd = os.open(_IGNORE, flags, 0o600, dir_fd=directory)
        try:
            os.write(fd, b"*\n")
        finally:
            os.close(fd)


@contextmanager
def _own(directory: int, place: Place) -> Iterator[int]:
    """Yield a descriptor of the directory *place* in *directory*; it must be ours and not writable for others."""
    name = place.relative.rpartition("/")[2]
    with translated(place, "opening"):
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=directory)
        fd = open_beneath(directory, name, _DIRECTORY, links=False)
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
            raise NotAuthorized(
                f"{place.shown}, the trash, belongs to somebody else or can be written by others; permanent deletes"
                " without it"
            )
        yield fd
    finally:
        os.close(fd)


def _names(name: str) -> Iterator[str]:
    short = os.fsencode(name)[:_LONGEST].decode(errors="ignore")
    # Parts of git directories that are deleted one by one must not form one in the trash.
    if git_part(short) is None:
        yield short
    for number in range(2, _NUMBERS):
        yield f"{short}.{number}"
    for _ in range(_NUMBERS):
        yield f"{short}.{secrets.token_hex(8)}"


def _noted(info: int, name: str, place: Place) -> bool:
    """Write the info file *name* for *place*; return False if it exists already. Raises OSError."""
    now = datetime.now().astimezone().replace(tzinfo=None)
    path = quote(os.fsencode(place.relative))
    text = f"[Trash Info]\nPath={path}\nDeletionDate={now.isoformat(timespec='seconds')}\n"
    try:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=info)
    except FileExistsError:
        return False
    try:
        os.write(fd, text.encode())
        os.fsync(fd)
    except OSError:
        with suppress(OSError):
            os.unlink(name, dir_fd=info)
        raise
    finally:
        os.close(fd)
    return True


def _fault(error: OSError, place: Place, directory: int, name: str) -> McpdError:
    if is_mounted_read_only(directory, name):
        return mounted_read_only(place)
    if error.errno in {errno.EXDEV, errno.EBUSY}:
        return InvalidArgument(
            f"{place.shown} is on another file system than the trash of its root; permanent deletes it for good"
        )
    return fault(error, place, "moving to the trash")
