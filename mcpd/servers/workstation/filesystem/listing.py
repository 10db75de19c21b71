# SPDX-License-Identifier: LGPL-2.1-or-later
"""``filesystem_list`` and ``filesystem_tree``: the entries of a directory, and those below it.

A tree is read level by level, so that the deepest entries are omitted first.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import heapq
import os
import re
import stat
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

from pydantic import Field

from mcpd.errors import InvalidArgument
from mcpd.servers.beneath import open_beneath
from mcpd.servers.workstation.call import in_thread
from mcpd.servers.workstation.filesystem.entries import MAX_TEXT, Entry, EntryType, entry_at, timestamp
from mcpd.servers.workstation.filesystem.names import is_addressable, json_size, one_line, shown_name
from mcpd.servers.workstation.jail import HERE, translated
from mcpd.servers.workstation.tool import Answer, Arguments, Result, Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mcpd.servers.workstation.call import Call

Sort: TypeAlias = Literal["name", "size", "modified"]
Key: TypeAlias = tuple[int, bytes]
"""Sort key of an entry: a number, then the bytes of the name."""


class ListArguments(Arguments):
    """Arguments of filesystem_list."""

    path: str = Field(default=HERE, description="Absolute, or relative to the first root")
    hidden: bool = Field(default=False, description="Include names that begin with a dot")
    sort: Sort = Field(default="name", description="By size: largest first; by modified: newest first")
    limit: int = Field(default=1000, ge=1, le=10_000, description="Maximum number of entries")
    cursor: str | None = Field(default=None, max_length=4000, description="next_cursor of the previous result")


class ListEntry(Result):
    """One entry."""

    name: str = Field(description="With U+FFFD in place of bytes that are not UTF-8")
    type: EntryType | None = Field(default=None, description="What it is")
    size: int | None = Field(default=None, description="Bytes of a file")
    modified: str | None = Field(default=None, description="Time of the last change of its content: RFC 3339, UTC")
    target: str | None = Field(default=None, description="Where a symlink points")
    addressable: Literal[False] | None = Field(
        default=None, description="false: its name is not UTF-8, so it cannot be passed as a path"
    )
    error: str | None = Field(default=None, description="Why nothing else is known about it")


class ListResult(Result):
    """Result of filesystem_list."""

    path: str = Field(description="Absolute")
    entries: list[ListEntry] = Field(description="What is in it")
    total: int = Field(description="Number of entries; hidden ones count only if requested")
    hidden: int | None = Field(default=None, description="Number of hidden entries that were omitted")
    next_cursor: str | None = Field(default=None, description="The cursor with which to continue, if there is more")


def _list(call: Call, arguments: ListArguments) -> Answer:
    after = None if arguments.cursor is None else _key(arguments.cursor, arguments.sort)
    place = call.jail.place(arguments.path)
    with call.jail.directory(place) as fd, translated(place, "listing"):
        names = _Names(call, fd, arguments)
        # Memory is bounded by the limit, however large the directory is.
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
    """The names in a directory, counted during iteration."""

    def __init__(self, call: Call, fd: int, arguments: ListArguments) -> None:
        self._call = call
        self._fd = fd
        self._arguments = arguments
        self.total = 0
        self.hidden = 0

    def after(self, after: Key | None) -> Iterator[Key]:
        """Yield the keys that sort after *after*, in any order. Raises OSError."""
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
    """Return the entry *name* of the directory *fd*, or None if it no longer exists."""
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
    """Return the key in *cursor*. Raises :class:`~mcpd.errors.InvalidArgument`."""
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
    description="List the entries of a directory. Symlinks are shown, not followed. To continue a long listing,"
    " pass cursor.",
    arguments=ListArguments,
    result=ListResult,
    run=in_thread(_list),
    read_only=True,
    idempotent=True,
)


EXCLUDED: Final = (".git", "node_modules", "__pycache__", ".venv", "target", ".Trash-*")
_MOST_OF_TARGET: Final = 200
"""Maximum number of characters drawn of the target of a symlink."""
_CUT: Final = {"type": "text", "text": "[cut: there is more; give a path further down, exclude more or raise limit]"}
"""Note for clients that show only the text of a result."""
_STEP: Final = 15
"""Maximum number of names of 255 bytes in one path for the kernel."""


class TreeArguments(Arguments):
    """Arguments of filesystem_tree."""

    path: str = Field(default=HERE, description="Absolute, or relative to the first root")
    depth: int = Field(default=3, ge=1, le=32, description="Number of levels; 1: only the directory itself")
    hidden: bool = Field(default=False, description="Include names that begin with a dot")
    exclude: list[Annotated[str, Field(max_length=255)]] = Field(
        default=list(EXCLUDED), max_length=100, description="Globs of names to omit, with everything below them"
    )
    limit: int = Field(default=2000, ge=1, le=20_000, description="Maximum number of entries")


class TreeEntry(Result):
    """One entry."""

    path: str = Field(description="From the directory, with U+FFFD in place of bytes that are not UTF-8")
    type: EntryType | None = Field(default=None, description="What it is")
    size: int | None = Field(default=None, description="Bytes of a file")
    error: str | None = Field(default=None, description="Why it, or what is in it, could not be read")


class TreeResult(Result):
    """Result of filesystem_tree."""

    path: str = Field(description="Absolute")
    entries: list[TreeEntry] = Field(description="As they are drawn")
    directories: int = Field(description="How many")
    files: int = Field(description="How many")
    others: int = Field(description="Number of entries of other types")
    hidden: int = Field(description="Number of hidden entries that were omitted")
    excluded: int = Field(description="Number of entries that exclude omitted")
    truncated: bool = Field(description="True if entries were omitted because of the limit")


@dataclass(slots=True)
class _Node:
    """An entry with its children."""

    name: str
    entry: Entry
    error: str | None = None
    """The reason why the entry, or its children, could not be read."""
    left_out: int = 0
    """Number of its children that exceed the limit."""
    children: list[_Node] = field(default_factory=list)


def _tree(call: Call, arguments: TreeArguments) -> Answer:
    place = call.jail.place(arguments.path)
    top = _Node(place.path, Entry("directory"))
    walk = _Walk(call, arguments)
    with call.jail.directory(place) as fd, translated(place, "listing"):
        walk.fill(fd, top)
    entries, lines = [], [one_line(place.path)]
    for path, drawn, node in _drawn(top):
        call.check()
        lines.append(drawn)
        if node is not None:
            entries.append(
                TreeEntry(path=shown_name(path), type=node.entry.type, size=node.entry.size, error=node.error)
            )
    directories = sum(entry.type == "directory" for entry in entries)
    files = sum(entry.type == "file" for entry in entries)
    result = TreeResult(
        path=shown_name(place.path),
        entries=entries,
        directories=directories,
        files=files,
        others=len(entries) - directories - files,
        hidden=walk.hidden,
        excluded=walk.excluded,
        truncated=walk.truncated,
    )
    drawing = {"type": "text", "text": "\n".join(lines)}
    return Answer(result, (drawing, _CUT) if walk.truncated else (drawing,))


class _Walk:
    """One traversal of a directory tree."""

    def __init__(self, call: Call, arguments: TreeArguments) -> None:
        self._call = call
        self._depth = arguments.depth
        self._shows_hidden = arguments.hidden
        self._left = arguments.limit
        self._text_left = MAX_TEXT
        self._excludes = _matcher(arguments.exclude)
        self._directories = 0
        self._met = 0
        """Number of matching names in the current directory."""
        self.hidden = 0
        self.excluded = 0
        self.truncated = False

    def fill(self, fd: int, top: _Node) -> None:
        """Fill *top*, the directory *fd*, with all entries to show. Raises OSError if *top* itself cannot be read."""
        waiting: deque[tuple[tuple[str, ...], _Node]] = deque()
        self._read(fd, top, 0)
        waiting.extend(_subdirectories((), top))
        while waiting and self._left:
            self._call.check()
            parts, node = waiting.popleft()
            if len(parts) >= self._depth:
                break
            self._directories += 1
            self._call.report(self._directories, message=one_line("/".join(parts)[:200]))
            try:
                below = _open_below(fd, parts)
                try:
                    self._read(below, node, sum(map(json_size, parts)))
                finally:
                    os.close(below)
            except OSError as error:
                # A directory that cannot be read, or was replaced meanwhile, does not prevent showing the rest.
                node.error = error.strerror
            waiting.extend(_subdirectories(parts, node))
        self.truncated |= any(len(parts) < self._depth for parts, _ in waiting)

    def _read(self, fd: int, node: _Node, above: int) -> None:
        """Add the children of *node*, the directory *fd*; its path takes *above* bytes in JSON."""
        self._met = 0
        names = heapq.nsmallest(self._left, self._names(fd), key=os.fsencode)
        costs = list(accumulate(above + json_size(name) for name in names))
        names = names[: bisect_right(costs, self._text_left)]
        node.left_out = self._met - len(names)
        if node.left_out:
            self.truncated = True
            self._left = 0
        else:
            self._left -= len(names)
            self._text_left -= costs[-1] if costs else 0
        node.children = [found for name in names if (found := self._node(fd, name)) is not None]

    def _names(self, fd: int) -> Iterator[str]:
        with os.scandir(fd) as entries:
            for entry in entries:
                self._call.check()
                if self._excludes(entry.name):
                    self.excluded += 1
                elif entry.name.startswith(".") and not self._shows_hidden:
                    self.hidden += 1
                else:
                    self._met += 1
                    yield entry.name

    def _node(self, fd: int, name: str) -> _Node | None:
        self._call.check()
        entry = entry_at(fd, name)
        return None if entry is None else _Node(name, entry, entry.error)


def _subdirectories(parts: tuple[str, ...], node: _Node) -> Iterator[tuple[tuple[str, ...], _Node]]:
    return (((*parts, child.name), child) for child in node.children if child.entry.type == "directory")


def _open_below(fd: int, parts: tuple[str, ...]) -> int:
    """Return a descriptor of the directory *parts* below *fd*; no symlink is followed. Raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY
    below = open_beneath(fd, "/".join(parts[:_STEP]), flags, links=False)
    for start in range(_STEP, len(parts), _STEP):
        try:
            further = open_beneath(below, "/".join(parts[start : start + _STEP]), flags, links=False)
        finally:
            os.close(below)
        below = further
    return below


def _matcher(globs: list[str]) -> Callable[[str], bool]:
    patterns = [re.compile(fnmatch.translate(glob)) for glob in globs]
    return lambda name: any(pattern.match(name) for pattern in patterns)


def _drawn(node: _Node, above: str = "", indent: str = "") -> Iterator[tuple[str, str, _Node | None]]:
    """Yield path, line and node of each entry below *node*; the node is None for a line about omitted entries."""
    for index, child in enumerate(node.children):
        is_last = index + 1 == len(node.children) and not node.left_out
        path = f"{above}{child.name}"
        yield path, f"{indent}{'└── ' if is_last else '├── '}{_label(child)}", child
        yield from _drawn(child, f"{path}/", indent + ("    " if is_last else "│   "))
    if node.left_out:
        yield above, f"{indent}└── … {node.left_out} more", None


def _label(node: _Node) -> str:
    name = one_line(node.name)
    if node.entry.type == "directory":
        name += "/"
    elif node.entry.target is not None:
        name += f" -> {one_line(node.entry.target)[:_MOST_OF_TARGET]}"
    elif node.entry.type not in {None, "file"}:
        name += f" [{node.entry.type}]"
    return f"{name} [{node.error}]" if node.error else name


TREE: Final = Tool(
    name="filesystem_tree",
    title="Draw a directory tree",
    description="Draw the tree of files and directories below a directory. Symlinks are shown, not followed.",
    arguments=TreeArguments,
    result=TreeResult,
    run=in_thread(_tree),
    read_only=True,
    idempotent=True,
)
