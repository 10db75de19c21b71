# SPDX-License-Identifier: LGPL-2.1-or-later
"""``filesystem_list``: what is in one directory, page by page, however much that is."""

from __future__ import annotations

import base64
import binascii
import heapq
import os
import stat
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from pydantic import Field

from mcpd.errors import InvalidArgument
from mcpd.servers.workstation.call import in_thread
from mcpd.servers.workstation.filesystem.entries import MAX_TEXT, EntryType, entry_at, timestamp
from mcpd.servers.workstation.filesystem.names import is_addressable, json_size, shown_name
from mcpd.servers.workstation.jail import HERE, translated
from mcpd.servers.workstation.tool import Answer, Arguments, Result, Tool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.servers.workstation.call import Call

Sort: TypeAlias = Literal["name", "size", "modified"]
Key: TypeAlias = tuple[int, bytes]
"""What entries are sorted by: a number, then the bytes of the name."""


class ListArguments(Arguments):
    """What is listed."""

    path: str = Field(default=HERE, description="Absolute, or relative to the first root")
    hidden: bool = Field(default=False, description="Also names that begin with a dot")
    sort: Sort = Field(default="name", description="By size: largest first; by modified: newest first")
    limit: int = Field(default=1000, ge=1, le=10_000, description="Most entries to return")
    cursor: str | None = Field(default=None, max_length=4000, description="next_cursor of the result before")


class ListEntry(Result):
    """One entry."""

    name: str = Field(description="With U+FFFD for what is not UTF-8")
    type: EntryType | None = Field(default=None, description="What it is")
    size: int | None = Field(default=None, description="Bytes of a file")
    modified: str | None = Field(default=None, description="When its content changed: RFC 3339, UTC")
    target: str | None = Field(default=None, description="Where a symlink points")
    addressable: Literal[False] | None = Field(
        default=None, description="false: its name is not UTF-8, so no path leads to it"
    )
    error: str | None = Field(default=None, description="Why no more is known of it")


class ListResult(Result):
    """What is in a directory."""

    path: str = Field(description="Absolute")
    entries: list[ListEntry] = Field(description="What is in it")
    total: int = Field(description="How many entries it has, hidden ones only if asked for")
    hidden: int | None = Field(default=None, description="How many hidden entries were left out")
    next_cursor: str | None = Field(default=None, description="The cursor to list on from, if there is more")


def _list(call: Call, arguments: ListArguments) -> Answer:
    after = None if arguments.cursor is None else _key(arguments.cursor, arguments.sort)
    place = call.jail.place(arguments.path)
    with call.jail.directory(place) as fd, translated(place, "listing"):
        names = _Names(call, fd, arguments)
        # No more is held than is answered, whatever the directory holds.
        found = heapq.nsmallest(arguments.limit + 1, names.after(after))
        entries, last = [], None
        text = 0
        for key in found[: arguments.limit]:
            entry = _entry(call, fd, os.fsdecode(key[1]))
            last = key
            if entry is not None:
                entries.append(entry)
                text += json_size(entry.name) + json_size(entry.target or "")
            if text > MAX_TEXT:
                break
    return Answer(
        ListResult(
            path=shown_name(place.path),
            entries=entries,
            total=names.total,
            hidden=names.hidden or None,
            next_cursor=None if last is None or last == found[-1] else _cursor(last, arguments.sort),
        )
    )


class _Names:
    """The names in a directory, counted while they are gone through."""

    def __init__(self, call: Call, fd: int, arguments: ListArguments) -> None:
        self._call = call
        self._fd = fd
        self._arguments = arguments
        self.total = 0
        self.hidden = 0

    def after(self, after: Key | None) -> Iterator[Key]:
        """The keys of those that come later than *after*, in no order. Raises OSError."""
        with os.scandir(self._fd) as entries:
            for entry in entries:
                self._call.check()
                if entry.name.startswith(".") and not self._arguments.hidden:
                    self.hidden += 1
                    continue
                self.total += 1
                key = (self._rank(entry.name), os.fsencode(entry.name))
                if after is None or key > after:
                    yield key

    def _rank(self, name: str) -> int:
        if self._arguments.sort == "name":
            return 0
        try:
            status = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except OSError:
            return 1
        if self._arguments.sort == "modified":
            return -status.st_mtime_ns
        return -status.st_size if stat.S_ISREG(status.st_mode) else 1


def _entry(call: Call, fd: int, name: str) -> ListEntry | None:
    """What is said of *name* in *fd*; None if it has gone meanwhile."""
    call.check()
    entry = entry_at(fd, name)
    if entry is None:
        return None
    return ListEntry(
        name=shown_name(name),
        type=entry.type,
        size=entry.size,
        modified=None if entry.modified is None else timestamp(entry.modified),
        target=None if entry.target is None else shown_name(entry.target),
        addressable=None if is_addressable(name) else False,
        error=entry.error,
    )


def _cursor(key: Key, sort: Sort) -> str:
    rank, name = key
    return base64.urlsafe_b64encode(f"{sort} {rank} ".encode() + name).decode()


def _key(cursor: str, sort: Sort) -> Key:
    """The key that *cursor* was made of. Raises :class:`~mcpd.errors.InvalidArgument`."""
    try:
        sorted_by, rank, name = base64.b64decode(cursor, altchars=b"-_", validate=True).split(b" ", 2)
        number = int(rank)
    except (binascii.Error, ValueError):
        raise InvalidArgument("the cursor is none of next_cursor; list without a cursor to begin anew") from None
    if sorted_by != sort.encode():
        raise InvalidArgument("the cursor belongs to another 'sort'; list without a cursor to begin anew")
    return number, name


LIST: Final = Tool(
    name="filesystem_list",
    title="List a directory",
    description="List what is in a directory. Symlinks are shown, not followed. A long listing goes on with cursor.",
    arguments=ListArguments,
    result=ListResult,
    run=in_thread(_list),
    read_only=True,
    idempotent=True,
)
