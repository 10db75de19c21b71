# SPDX-License-Identifier: LGPL-2.1-or-later
"""Trees of files that somebody else made: opened, walked and copied within limits, without leaving them."""

from __future__ import annotations

import os
import stat
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from mcpd.errors import InvalidManifest, from_oserror
from mcpd.install.unpack import leads_outside
from mcpd.store.threads import in_thread

if TYPE_CHECKING:
    import threading
    from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterable, Sequence
    from pathlib import Path

Identity: TypeAlias = tuple[int, int]
"""Device and inode."""

_FLAGS: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Pinned:
    """A directory that stays the same, whatever happens to its name."""

    path: Path
    """Where it was found; for messages, never to be opened again."""
    fd: int
    """Open for reading; whoever pinned it closes it."""
    way: tuple[Identity, ...]
    """Every directory from the root of the file system down to this one."""


def pin(path: Path) -> Pinned:
    """Open the directory *path*, which is absolute and resolved, and follow no link on the way.

    Raises OSError; ENOTDIR also where a part of *path* became a link.
    """
    way: list[Identity] = []
    current = os.open("/", os.O_PATH | _FLAGS)
    try:
        way.append(_identity(os.fstat(current)))
        for name in path.parts[1:]:
            following = os.open(name, os.O_PATH | _FLAGS, dir_fd=current)
            os.close(current)
            current = following
            way.append(_identity(os.fstat(current)))
        return Pinned(path, os.open(".", os.O_RDONLY | _FLAGS, dir_fd=current), tuple(way))
    finally:
        os.close(current)


@asynccontextmanager
async def pinning(find: Callable[[], Pinned]) -> AsyncIterator[Pinned]:
    """What *find*, called in a thread, pins; closed at the end."""
    found: list[Pinned] = []
    try:
        await in_thread(lambda: found.append(find()))
        yield found[0]
    finally:
        for one in found:
            os.close(one.fd)


def overlap(path: Path, way: Sequence[Identity], others: Iterable[Path]) -> Path | None:
    """The first of *others* that is *path*, holds it or lies in it; by *way* also if a mount gives it another name."""
    for other in others:
        real = other.resolve()
        if path.is_relative_to(real) or real.is_relative_to(path):
            return other
        if way and (_found(real) & set(way) or any(_found(place) & {way[-1]} for place in real.parents)):
            return other
    return None


def _found(path: Path) -> set[Identity]:
    with suppress(OSError):
        return {_identity(path.stat())}
    return set()


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


MAX_DEPTH: Final = 128
"""Directories in each other; one descriptor is open for each."""
MAX_ENTRIES: Final = 500_000
"""Files, directories and links in one tree."""
_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class Found:
    """Something in the tree."""

    parent: int
    """Descriptor of the directory it is in, open until the next one is asked for."""
    name: str
    relative: str
    """Path from the root of the tree."""
    status: os.stat_result
    """Of itself, not of what a link points at."""


def walk(root: int, origin: str, left_out: Collection[str] = ()) -> Generator[Found]:
    """Everything below the directory open as *root* but the names *left_out*, a directory before what it holds.

    Every directory is opened relative to its parent without following links, so a tree that changes meanwhile cannot
    lead elsewhere. The iterator has to be closed.

    Raises :class:`~mcpd.errors.InvalidManifest` that names *origin* for a tree over the limits, and OSError.
    """
    count = 0
    opened: list[int] = []
    try:
        opened.append(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root))
        waiting = [("", iter(_names(opened[0], left_out)))]
        while waiting:
            above, names = waiting[-1]
            name = next(names, None)
            if name is None:
                waiting.pop()
                os.close(opened.pop())
                continue
            count += 1
            if count > MAX_ENTRIES:
                raise InvalidManifest(f"{origin} holds more than {MAX_ENTRIES:,} files and directories")
            relative = f"{above}/{name}" if above else name
            status = os.stat(name, dir_fd=opened[-1], follow_symlinks=False)
            yield Found(opened[-1], name, relative, status)
            if stat.S_ISDIR(status.st_mode):
                if len(opened) > MAX_DEPTH:
                    raise InvalidManifest(f"{origin} holds more than {MAX_DEPTH} directories in each other")
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                opened.append(os.open(name, flags, dir_fd=opened[-1]))
                waiting.append((relative, iter(_names(opened[-1], left_out))))
    finally:
        for fd in opened:
            os.close(fd)


def _names(fd: int, left_out: Collection[str]) -> list[str]:
    with os.scandir(fd) as entries:
        names = (entry.name for entry in entries if entry.name not in left_out)
        return sorted(islice(names, MAX_ENTRIES + 1))


def open_root(path: Path) -> int:
    """The directory *path*, to be given to :func:`walk`; the way there is trusted. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def readable(name: str) -> str:
    """*name*, which a stranger chose, fit for a message: without control characters, and not long."""
    shown = name if name.isprintable() else ascii(name)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


_CHUNK: Final = 1024 * 1024
MAX_BYTES: Final = 4 * 1024**3
"""Bytes of a project; a file with holes counts in full, for it is copied in full."""
LEFT_OUT: Final = frozenset({".git", ".hg", ".svn", ".venv", "__pycache__"})
"""What is history, or is made anew for the copy."""


class Stopped(Exception):
    """The copy was told to stop."""


def copy_tree(
    source: Pinned,
    target: Path,
    *,
    stop: threading.Event,
    progress: Callable[[int], None],
    left_out: Collection[str] = LEFT_OUT,
) -> None:
    """Copy the content of the directory *source* into the existing directory *target*.

    *progress* hears how many bytes are done; *stop* ends the copy with :class:`Stopped`.

    Raises :class:`~mcpd.errors.InvalidManifest` for a link that leads outside, for sockets, pipes and devices and for a
    source over the limits, :class:`~mcpd.errors.NoSpace` for a full disk, and another
    :class:`~mcpd.errors.McpdError` for what cannot be read or changes too much meanwhile.
    """
    try:
        with closing(walk(source.fd, str(source.path), left_out)) as found:
            _Copy(source.path, target, stop, progress).take(found)
    except OSError as error:
        raise from_oserror(error, f"copying {source.path} to {target}") from error


def tree_bytes(source: Pinned, left_out: Collection[str] = LEFT_OUT) -> int:
    """Bytes that :func:`copy_tree` would copy; raises what it raises, as far as that can be told beforehand."""
    total = 0
    try:
        with closing(walk(source.fd, str(source.path), left_out)) as found:
            for item in found:
                if stat.S_ISREG(item.status.st_mode):
                    total += item.status.st_size
                    _check_size(source.path, total)
    except OSError as error:
        raise from_oserror(error, f"reading {source.path}") from error
    return total


def _check_size(source: Path, total: int) -> None:
    if total > MAX_BYTES:
        raise InvalidManifest(
            f"{source} is larger than {MAX_BYTES / 1024**3:g} GiB; a server is installed without data"
        )


class _Copy:
    def __init__(self, source: Path, target: Path, stop: threading.Event, progress: Callable[[int], None]) -> None:
        self._source = source
        self._target = target
        self._stop = stop
        self._progress = progress
        self._done = 0

    def take(self, found: Iterable[Found]) -> None:
        """Copy everything that was *found*."""
        for item in found:
            if self._stop.is_set():
                raise Stopped
            mode, target = item.status.st_mode, self._target / item.relative
            if stat.S_ISLNK(mode):
                self._link(os.readlink(item.name, dir_fd=item.parent), target, item.relative)
            elif stat.S_ISDIR(mode):
                target.mkdir()
            elif stat.S_ISREG(mode):
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                self._file(os.open(item.name, flags, dir_fd=item.parent), target)
            else:
                what = f"{self._source}: {readable(item.relative)}"
                raise InvalidManifest(f"{what} is neither a file, a directory nor a link")

    def _link(self, points_at: str, target: Path, relative: str) -> None:
        if leads_outside(relative, points_at):
            raise InvalidManifest(
                f"{self._source}: the link {readable(relative)} leads outside the project, to {readable(points_at)}"
            )
        target.symlink_to(points_at)

    def _file(self, fd: int, target: Path) -> None:
        with os.fdopen(fd, "rb") as reader:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise InvalidManifest(f"{self._source}: {readable(target.name)} changed while it was copied")
            _check_size(self._source, self._done + status.st_size)
            with target.open("xb") as writer:
                while chunk := reader.read(_CHUNK):
                    if self._stop.is_set():
                        raise Stopped
                    self._done += len(chunk)
                    _check_size(self._source, self._done)
                    writer.write(chunk)
                os.fchmod(writer.fileno(), 0o755 if status.st_mode & 0o100 else 0o644)
        self._progress(self._done)
