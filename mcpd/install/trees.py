# SPDX-License-Identifier: LGPL-2.1-or-later
"""Open, walk and copy untrusted file trees, within limits and without leaving them."""

from __future__ import annotations

import os
import stat
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from mcpd.errors import InvalidManifest, from_oserror
from mcpd.install.unpack import leads_outside
from mcpd.threads import in_thread

if TYPE_CHECKING:
    import threading
    from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterable, Sequence
    from pathlib import Path

Identity: TypeAlias = tuple[int, int]
"""Device and inode."""

_FLAGS: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Pinned:
    """A directory held open, so that it stays the same even if its path is replaced."""

    path: Path
    """Path of the directory, for messages; never opened again."""
    fd: int
    """Descriptor, open for reading; closed by the caller of :func:`pin`."""
    way: tuple[Identity, ...]
    """Every directory from ``/`` down to this one."""


def pin(path: Path) -> Pinned:
    """Open the directory *path*, which is absolute and resolved, without following links.

    Raises OSError; ENOTDIR can also mean that a component of *path* became a link.
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
    """Call *find* in a thread, yield the directory that it pins, and close it at the end."""
    found: list[Pinned] = []
    try:
        await in_thread(lambda: found.append(find()))
        yield found[0]
    finally:
        for one in found:
            os.close(one.fd)


def overlap(path: Path, way: Sequence[Identity], others: Iterable[Path]) -> Path | None:
    """Return the first of *others* that is, contains or is inside *path*; *way* detects it at other mount points."""
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
"""Maximum number of nested directories; one descriptor is open for each."""
MAX_ENTRIES: Final = 500_000
"""Maximum number of files, directories and links in one tree."""
_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class TreeItem:
    """A file, directory or link in an untrusted tree."""

    parent: int
    """Descriptor of the parent directory, open until the next item is requested."""
    name: str
    relative: str
    """Path from the root of the tree."""
    status: os.stat_result
    """From lstat(2)."""


def walk(root: int, origin: str, excluded: Collection[str] = ()) -> Generator[TreeItem]:
    """Yield everything below the directory descriptor *root* except the names *excluded*, directories first.

    Every directory is opened relative to its parent without following links, so that a tree that changes during the
    walk cannot lead elsewhere. The generator has to be closed.

    Raises OSError, and :class:`~mcpd.errors.InvalidManifest` that names *origin* for a tree over the limits.
    """
    count = 0
    opened: list[int] = []
    try:
        opened.append(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root))
        waiting = [("", iter(_names(opened[0], excluded)))]
        while waiting:
            above, names = waiting[-1]
            name = next(names, None)
            if name is None:
                waiting.pop()
                os.close(opened.pop())
                continue
            count += 1
            if count > MAX_ENTRIES:
                raise InvalidManifest(f"{origin} contains more than {MAX_ENTRIES:,} files and directories")
            relative = f"{above}/{name}" if above else name
            status = os.stat(name, dir_fd=opened[-1], follow_symlinks=False)
            yield TreeItem(opened[-1], name, relative, status)
            if stat.S_ISDIR(status.st_mode):
                if len(opened) > MAX_DEPTH:
                    raise InvalidManifest(f"{origin} contains more than {MAX_DEPTH} nested directories")
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                opened.append(os.open(name, flags, dir_fd=opened[-1]))
                waiting.append((relative, iter(_names(opened[-1], excluded))))
    finally:
        for fd in opened:
            os.close(fd)


def _names(fd: int, excluded: Collection[str]) -> list[str]:
    with os.scandir(fd) as entries:
        names = (entry.name for entry in entries if entry.name not in excluded)
        return sorted(islice(names, MAX_ENTRIES + 1))


def open_root(path: Path) -> int:
    """Open the directory *path* for :func:`walk`; its parents are trusted. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def readable(name: str) -> str:
    """Return the untrusted *name* for a message: without control characters, and shortened."""
    shown = name if name.isprintable() else ascii(name)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


_CHUNK: Final = 1024 * 1024
MAX_BYTES: Final = 4 * 1024**3
"""Maximum size of a project in bytes; a sparse file counts in full, since it is copied in full."""
EXCLUDED: Final = frozenset({".git", ".hg", ".svn", ".venv", "__pycache__"})
"""Names that are not copied: version control data, and files that are created again for the copy."""


class Stopped(Exception):
    """The copy was stopped."""


def copy_tree(
    source: Pinned,
    target: Path,
    *,
    stop: threading.Event,
    progress: Callable[[int], None],
    excluded: Collection[str] = EXCLUDED,
) -> None:
    """Copy the content of the directory *source* into the existing directory *target*.

    *progress* is called with the number of bytes done; *stop* ends the copy with :class:`Stopped`.

    Raises :class:`~mcpd.errors.InvalidManifest` for a link that leads outside, for sockets, pipes and devices and for a
    source over the limits, :class:`~mcpd.errors.NoSpace` for a full disk, and other
    :class:`~mcpd.errors.McpdError` for files that cannot be read or that change during the copy.
    """
    try:
        with closing(walk(source.fd, str(source.path), excluded)) as found:
            _Copy(source.path, target, stop, progress).take(found)
    except OSError as error:
        raise from_oserror(error, f"copying {source.path} to {target}") from error


def tree_bytes(source: Pinned, excluded: Collection[str] = EXCLUDED) -> int:
    """Return the number of bytes that :func:`copy_tree` would copy; raise its errors that are known beforehand."""
    total = 0
    try:
        with closing(walk(source.fd, str(source.path), excluded)) as found:
            for item in found:
                if stat.S_ISREG(item.status.st_mode):
                    total += item.status.st_size
                    _check_size(source.path, total)
    except OSError as error:
        raise from_oserror(error, f"reading {source.path}") from error
    return total


def _check_size(source: Path, total: int) -> None:
    if total > MAX_BYTES:
        raise InvalidManifest(f"{source} is larger than {MAX_BYTES / 1024**3:g} GiB; keep data elsewhere")


class _Copy:
    def __init__(self, source: Path, target: Path, stop: threading.Event, progress: Callable[[int], None]) -> None:
        self._source = source
        self._target = target
        self._stop = stop
        self._progress = progress
        self._done = 0

    def take(self, found: Iterable[TreeItem]) -> None:
        """Copy all items of *found*."""
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
