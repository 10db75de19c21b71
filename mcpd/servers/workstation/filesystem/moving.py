# SPDX-License-Identifier: LGPL-2.1-or-later
"""``filesystem_move`` and ``filesystem_delete``."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import Field

from mcpd.errors import InvalidArgument, McpdError, NotFound
from mcpd.model import printable
from mcpd.servers.beneath import open_beneath
from mcpd.servers.workstation.call import in_thread
from mcpd.servers.workstation.filesystem import trash
from mcpd.servers.workstation.filesystem.atomic import (
    check_holds_no_root,
    check_keeps_repositories,
    is_mounted_read_only,
    locked,
    mounted_read_only,
    real_path,
    rename_new,
    status_at,
    sync,
)
from mcpd.servers.workstation.filesystem.entries import EntryType, type_of
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.jail import fault, path_of, translated
from mcpd.servers.workstation.moves import moving
from mcpd.servers.workstation.tool import Answer, Arguments, Result, Tool

if TYPE_CHECKING:
    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.jail import Place


class MoveArguments(Arguments):
    """Arguments of filesystem_move."""

    source: str = Field(description="Absolute, or relative to the first root")
    destination: str = Field(description="The new path in full, with the name")
    overwrite: bool = Field(default=False, description="Replace an existing file, but never a directory")


class MoveResult(Result):
    """Result of filesystem_move."""

    source: str = Field(description="Where it was")
    destination: str = Field(description="Where it is")
    type: EntryType = Field(description="What was moved")
    replaced: bool = Field(description="True if a file was replaced")


def _move(call: Call, arguments: MoveArguments) -> Answer:
    """Rename atomically. A symlink itself is moved or replaced, not its target."""
    source = call.jail.place(arguments.source)
    destination = call.jail.place(arguments.destination)
    with ExitStack() as stack:
        from_directory, old = stack.enter_context(call.jail.parent(source, adds=False))
        to_directory, new = stack.enter_context(call.jail.parent(destination))
        with translated(source, "moving"):
            stack.enter_context(locked(call, (from_directory, old), (to_directory, new)))
            moved = status_at(from_directory, old)
        if moved is None:
            raise NotFound(f"{source.shown}: there is no such file or directory")
        if not stat.S_ISREG(moved.st_mode):
            stack.enter_context(moving(call, source))
        check_holds_no_root(call, source, from_directory, old)
        _check_nesting(source, destination, real_path(from_directory, old), real_path(to_directory, new))
        check_keeps_repositories(
            call, source, destination, real_path(from_directory, old), real_path(to_directory, new)
        )
        with translated(destination, "moving to"):
            replaced = status_at(to_directory, new)
        if replaced is not None:
            _check_replaced(destination, moved, replaced, overwrite=arguments.overwrite)
        call.check()
        try:
            if replaced is None:
                rename_new(from_directory, old, to_directory, new)
            else:
                os.rename(old, new, src_dir_fd=from_directory, dst_dir_fd=to_directory)
        except OSError as error:
            if is_mounted_read_only(from_directory, old):
                raise mounted_read_only(source) from error
            if replaced is not None and is_mounted_read_only(to_directory, new):
                raise mounted_read_only(destination) from error
            raise _fault(error, source, destination) from error
        sync(source, from_directory)
        sync(destination, to_directory)
        trash.forget(call, from_directory, old)
    return Answer(
        MoveResult(
            source=shown_name(source.path),
            destination=shown_name(destination.path),
            type=type_of(moved.st_mode),
            replaced=replaced is not None,
        )
    )


def _check_nesting(source: Place, destination: Place, old: str, new: str) -> None:
    """Raise InvalidArgument if the real paths *old* and *new* are the same, or *new* is in *old*."""
    if old == new:
        raise InvalidArgument(f"{source.shown} and {destination.shown} are the same")
    if new.startswith(f"{old}/"):
        raise InvalidArgument(f"{source.shown} cannot be moved into itself: {destination.shown} is in it")


def _check_replaced(destination: Place, moved: os.stat_result, replaced: os.stat_result, *, overwrite: bool) -> None:
    if stat.S_ISDIR(replaced.st_mode):
        raise InvalidArgument(
            f"{destination.shown} is a directory that is there already; name the full new path, with the name in it"
        )
    if not overwrite:
        raise InvalidArgument(f"{destination.shown} is there already; overwrite replaces it")
    if stat.S_ISDIR(moved.st_mode):
        raise InvalidArgument(f"{destination.shown} is there already, and a directory does not replace it")
    if (moved.st_dev, moved.st_ino) == (replaced.st_dev, replaced.st_ino):
        raise InvalidArgument(f"{destination.shown} is the same file by another name; delete one of the names")


def _fault(error: OSError, source: Place, destination: Place) -> McpdError:
    if error.errno == errno.EXDEV:
        return InvalidArgument(
            f"{source.shown} and {destination.shown} are on different file systems, or in roots that are mounted apart;"
            " write a copy there and delete the original"
        )
    if error.errno == errno.EBUSY:
        return InvalidArgument(
            f"{source.shown} or {destination.shown} is where something is mounted, and stays where it is"
        )
    if error.errno in {errno.EEXIST, errno.ENOTEMPTY}:
        return InvalidArgument(f"{destination.shown} has just been created by somebody else")
    return fault(error, source, "moving")


MOVE: Final = Tool(
    name="filesystem_move",
    title="Move or rename",
    description="Move or rename a file or a directory. Replaces an existing file only with overwrite. Symlinks are"
    " not followed.",
    arguments=MoveArguments,
    result=MoveResult,
    run=in_thread(_move),
    destructive=True,
)


_AT_ONCE: Final = 1000
"""Names to read from a directory before they are removed."""
_DEEPEST: Final = 64
"""Maximum number of nested directories to hold open."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY
_MOUNTS: Final = Path("/proc/self/mountinfo")
_OCTAL: Final = re.compile(rb"\\([0-7]{3})")


class DeleteArguments(Arguments):
    """Arguments of filesystem_delete."""

    path: str = Field(description="Absolute, or relative to the first root")
    permanent: bool = Field(default=False, description="Delete permanently instead of moving to the trash")
    recursive: bool = Field(
        default=False,
        description="With permanent: also a directory that is not empty",
    )


class DeleteResult(Result):
    """Result of filesystem_delete."""

    path: str = Field(description="Absolute")
    type: EntryType = Field(description="What it was")
    trashed_to: str | None = Field(default=None, description="Where it is now; filesystem_move brings it back")
    removed: int | None = Field(default=None, description="With permanent: number of files and directories")


def _delete(call: Call, arguments: DeleteArguments) -> Answer:
    place = call.jail.place(arguments.path)
    with ExitStack() as stack:
        directory, name = stack.enter_context(call.jail.parent(place, adds=False))
        taken = [(directory, name)] if arguments.permanent else [(directory, name), trash.name_of(place.root)]
        with translated(place, "deleting"):
            stack.enter_context(locked(call, *taken))
            status = status_at(directory, name)
        if status is None:
            raise NotFound(f"{place.shown}: there is no such file or directory")
        check_holds_no_root(call, place, directory, name)
        trashed, removed = None, None
        if arguments.permanent:
            removal = _Removal(call, place)
            removal.remove(directory, name, status, recursive=arguments.recursive)
            sync(place, directory)
            trash.forget(call, directory, name)
            removed = removal.count
        else:
            if not stat.S_ISREG(status.st_mode):
                stack.enter_context(moving(call, place))
            trashed = shown_name(trash.put_in_trash(call, place, directory, name).path)
    return Answer(
        DeleteResult(path=shown_name(place.path), type=type_of(status.st_mode), trashed_to=trashed, removed=removed)
    )


class _Removal:
    """Removes files and directories through descriptors only, so that no symlink is ever followed."""

    def __init__(self, call: Call, place: Place) -> None:
        self.count = 0
        self._call = call
        self._place = place

    def remove(self, directory: int, name: str, status: os.stat_result, *, recursive: bool) -> None:
        """Remove *name* in *directory*, which has *status*."""
        with translated(self._place, "deleting"):
            try:
                self._remove(directory, name, status, recursive=recursive)
            except OSError as error:
                if error.errno in {errno.EBUSY, errno.EROFS} and is_mounted_read_only(directory, name):
                    raise mounted_read_only(self._place) from error
                raise
        self.count += 1

    def _remove(self, directory: int, name: str, status: os.stat_result, *, recursive: bool) -> None:
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=directory)
        elif recursive:
            self._check_mounts(real_path(directory, name))
            self._remove_tree(directory, name, status)
        else:
            self._remove_empty(directory, name)

    def _remove_empty(self, directory: int, name: str) -> None:
        try:
            os.rmdir(name, dir_fd=directory)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
            raise InvalidArgument(
                f"{self._place.shown} is a directory that is not empty; recursive deletes all that is in it"
            ) from None

    def _remove_tree(self, directory: int, name: str, status: os.stat_result) -> None:
        fd = open_beneath(directory, name, _DIRECTORY, links=False)
        try:
            self._check_device(fd, status.st_dev)
            self._empty(fd, fd, status.st_dev, 1)
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=directory)

    def _empty(self, top: int, directory: int, device: int, depth: int) -> None:
        """Remove everything in *directory*, which is *depth* levels below *top*."""
        while names := _some_names(directory):
            for name in names:
                self._call.check()
                try:
                    os.unlink(name, dir_fd=directory)
                except FileNotFoundError:
                    continue
                except IsADirectoryError:
                    if not self._descend(top, directory, name, device, depth):
                        continue
                self.count += 1
                if not self.count % _AT_ONCE:
                    self._call.report(self.count, None, f"{self.count} deleted")

    def _descend(self, top: int, directory: int, name: str, device: int, depth: int) -> bool:
        """Remove the directory *name*; return False if it was only moved to *top*, at the maximum depth."""
        if depth >= _DEEPEST:
            os.rename(name, f".{secrets.token_hex(8)}~", src_dir_fd=directory, dst_dir_fd=top)
            return False
        fd = open_beneath(directory, name, _DIRECTORY, links=False)
        try:
            self._check_device(fd, device)
            self._empty(top, fd, device, depth + 1)
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=directory)
        return True

    def _check_mounts(self, path: str) -> None:
        """Raise if anything is mounted at or below *path*, before anything is removed."""
        for line in _MOUNTS.read_bytes().splitlines():
            mounted = os.fsdecode(_OCTAL.sub(lambda found: bytes([int(found[1], 8)]), line.split()[4]))
            if f"{mounted}/".startswith(f"{path}/"):
                raise self._mounted(mounted)

    def _check_device(self, fd: int, device: int) -> None:
        """Raise if *fd* is on another file system, which was mounted meanwhile."""
        if os.fstat(fd).st_dev != device:
            raise self._mounted(path_of(fd))

    def _mounted(self, path: str) -> McpdError:
        return InvalidArgument(
            f"{self._place.shown}: another file system is mounted at {printable(path)}; unmount it, or delete what is"
            " around it"
        )


def _some_names(directory: int) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in islice(entries, _AT_ONCE)]


DELETE: Final = Tool(
    name="filesystem_delete",
    title="Delete",
    description="Move a file or a directory to the trash, or with permanent, delete it permanently. Symlinks are"
    " not followed.",
    arguments=DeleteArguments,
    result=DeleteResult,
    run=in_thread(_delete),
    destructive=True,
)
