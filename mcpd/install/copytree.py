# SPDX-License-Identifier: LGPL-2.1-or-later
"""Copy a project that somebody else wrote, taking nothing along that points or reaches outside."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidManifest, SourceUnavailable, from_oserror

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Collection
    from pathlib import Path

_CHUNK: Final = 1024 * 1024
LEFT_OUT: Final = frozenset({".git", ".hg", ".svn", ".venv", "__pycache__"})
"""What is history, or is made anew for the copy."""


class Stopped(Exception):
    """The copy was told to stop."""


def copy_tree(
    source: Path,
    target: Path,
    *,
    stop: threading.Event,
    progress: Callable[[int], None],
    left_out: Collection[str] = LEFT_OUT,
) -> None:
    """Copy the content of the directory *source* into the existing directory *target*.

    *progress* hears how many bytes are done; *stop* ends the copy with :class:`Stopped`. Every directory is opened
    relative to its parent without following links, so a source that changes meanwhile cannot lead elsewhere.

    Raises :class:`~mcpd.errors.InvalidManifest` for a link that leads outside and for sockets, pipes and devices,
    :class:`~mcpd.errors.SourceUnavailable` for a source that cannot be read, and
    :class:`~mcpd.errors.NoSpace` for a full disk.
    """
    try:
        fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise SourceUnavailable(f"{source}: {error.strerror}") from error
    try:
        _Copy(source, stop, progress, frozenset(left_out)).directory(fd, target, "")
    except OSError as error:
        raise from_oserror(error, f"copying {source} to {target}") from error
    finally:
        os.close(fd)


def tree_bytes(source: Path, left_out: Collection[str] = LEFT_OUT) -> int:
    """Bytes that :func:`copy_tree` would copy."""
    total = 0
    for directory, names, files in os.walk(source):
        names[:] = [name for name in names if name not in left_out]
        for name in files:
            total += os.lstat(os.path.join(directory, name)).st_size  # noqa: PTH118 - thousands of them
    return total


class _Copy:
    def __init__(
        self, source: Path, stop: threading.Event, progress: Callable[[int], None], left_out: frozenset[str]
    ) -> None:
        self._source = source
        self._stop = stop
        self._progress = progress
        self._left_out = left_out
        self._done = 0

    def directory(self, fd: int, target: Path, relative: str) -> None:
        """Copy the directory open as *fd*, *relative* to the source, into *target*."""
        for name in sorted(os.listdir(fd)):
            if self._stop.is_set():
                raise Stopped
            if name in self._left_out:
                continue
            self._entry(fd, name, target / name, f"{relative}/{name}" if relative else name)

    def _entry(self, fd: int, name: str, target: Path, relative: str) -> None:
        mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            self._link(os.readlink(name, dir_fd=fd), target, relative)
        elif stat.S_ISDIR(mode):
            target.mkdir()
            child = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
            try:
                self.directory(child, target, relative)
            finally:
                os.close(child)
        elif stat.S_ISREG(mode):
            self._file(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=fd), target)
        else:
            raise InvalidManifest(f"{self._source}: {relative} is neither a file, a directory nor a link")

    def _link(self, points_at: str, target: Path, relative: str) -> None:
        if leads_outside(relative, points_at):
            raise InvalidManifest(f"{self._source}: the link {relative} leads outside the project, to {points_at}")
        target.symlink_to(points_at)

    def _file(self, fd: int, target: Path) -> None:
        with os.fdopen(fd, "rb") as reader:
            mode = os.fstat(fd).st_mode
            if not stat.S_ISREG(mode):
                raise InvalidManifest(f"{self._source}: {target.name} changed while it was copied")
            with target.open("xb") as writer:
                while chunk := reader.read(_CHUNK):
                    if self._stop.is_set():
                        raise Stopped
                    writer.write(chunk)
                    self._done += len(chunk)
                os.fchmod(writer.fileno(), 0o755 if mode & 0o100 else 0o644)
        self._progress(self._done)


def leads_outside(relative: str, points_at: str) -> bool:
    """Whether a link at *relative* (below a root, its parents being real directories) that reads *points_at* may leave.

    ``..`` is accepted only at the beginning: behind a name, which may be a link itself, it could lead anywhere.
    """
    parts = [part for part in points_at.split("/") if part not in {"", "."}]
    climbs = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    return points_at.startswith("/") or climbs > relative.count("/") or ".." in parts[climbs:]
