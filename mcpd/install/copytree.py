# SPDX-License-Identifier: LGPL-2.1-or-later
"""Copy a project that somebody else wrote, taking nothing along that points or reaches outside."""

from __future__ import annotations

import os
import stat
from contextlib import closing
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidManifest, from_oserror
from mcpd.install.unpack import leads_outside
from mcpd.install.walk import readable, walk

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from mcpd.install.pinned import Pinned
    from mcpd.install.walk import Found

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
