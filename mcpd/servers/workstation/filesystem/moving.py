# SPDX-License-Identifier: LGPL-2.1-or-later
"""filesystem_move."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from pydantic import Field

from mcpd.errors import InvalidArgument, McpdError, NotFound
from mcpd.servers.workstation.call import in_thread
from mcpd.servers.workstation.filesystem import trash
from mcpd.servers.workstation.filesystem.entries import EntryType, type_of
from mcpd.servers.workstation.filesystem.locking import locked
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.filesystem.renaming import (
    check_holds_no_root,
    check_keeps_repositories,
    is_mounted_read_only,
    mounted_read_only,
    real_path,
    rename_new,
    status_at,
    sync,
)
from mcpd.servers.workstation.jail import fault, translated
from mcpd.servers.workstation.moves import moving
from mcpd.servers.workstation.tool import Answer, Arguments, Result, Tool

if TYPE_CHECKING:
    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.jail import Place


class MoveArguments(Arguments):
    """What filesystem_move takes."""

    source: str = Field(description="Absolute, or relative to the first root")
    destination: str = Field(description="The new path in full, with the name")
    overwrite: bool = Field(default=False, description="Replace a file that is there; a directory never is")


class MoveResult(Result):
    """What filesystem_move says."""

    source: str = Field(description="Where it was")
    destination: str = Field(description="Where it is")
    type: EntryType = Field(description="What was moved")
    replaced: bool = Field(description="Whether a file was replaced")


def _move(call: Call, arguments: MoveArguments) -> Answer:
    """Rename at once. A symlink is moved, or replaced, itself; nothing happens to what it points to."""
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
    """By the real paths *old* and *new*."""
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
    description="Move or rename a file or a directory, over nothing that is there unless asked to. A symlink is"
    " moved itself.",
    arguments=MoveArguments,
    result=MoveResult,
    run=in_thread(_move),
    destructive=True,
)
