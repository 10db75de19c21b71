# SPDX-License-Identifier: LGPL-2.1-or-later
"""Git directories among the files that commands may change: their hooks and configuration name programs that git runs.

The search covers the directories up to :data:`LEVELS` below each root, below the working directory of a command, and
below the top of each work tree around that; symlinks are not followed. Anything named ``.git`` counts, and any
directory that git would accept as a git directory.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mcpd.errors import LimitExceeded, NotAuthorized
from mcpd.model import printable
from mcpd.servers.git_directories import git_part, is_dot_git, is_git_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LEVELS: Final = 4
MOST_DIRECTORIES: Final = 100_000
"""Maximum number of directories that are searched for one command."""
SETTING: Final = "commands_write_git"
_SETTLED: Final = 2_000_000_000
"""Nanoseconds after which another change gives a directory a different time."""


@dataclass(frozen=True, slots=True)
class Protected:
    """Paths that a command must not change: absolute, without symlinks except for the last part."""

    read_only: tuple[str, ...] = ()
    """Git directories, and anything else named ``.git``."""
    fixed: tuple[str, ...] = ()
    """The directories between the roots and those, which must not be renamed or removed."""
    required: bool = True
    """True if a command is refused where the kernel cannot protect these."""


@dataclass(frozen=True, slots=True)
class _Directory:
    """The content of a directory."""

    stamp: tuple[int, int, int]
    """Device, inode and time of the last change."""
    git: tuple[str, ...]
    """The read-only paths in it; its own path if it is a git directory."""
    below: tuple[str, ...] = ()
    """The paths of its other subdirectories."""


class Repositories:
    """Finds git directories; only changed directories are read again. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[str, _Directory] = {}

    def find(self, roots: Sequence[str], directory: str | None = None, own: Sequence[str] = ()) -> Protected:
        """Return those in *roots*, for a command that is started in *directory*; all are real paths.

        *own* are the git directories that a git command changes. It may run even if others cannot be protected from it.

        Raises :class:`~mcpd.errors.LimitExceeded` if there is too much to search, and
        :class:`~mcpd.errors.NotAuthorized` for a directory of the user's whose mode does not let the user read it.
        """
        around = [path for path in _upwards(directory or "/") if any(_lies_in(path, root) for root in roots)]
        tops = [path for path in around if self._looked_into(path).git]
        found: set[str] = set()
        seen: dict[str, _Directory] = {}
        for start in dict.fromkeys((*roots, *tops, *around[:1])):
            self._walk(start, found, seen)
        if len(self._known) > 2 * MOST_DIRECTORIES:
            self._known = seen
        found = {path for path in found if not any(_lies_in(each, path) for each in own)}
        fixed = {
            above
            for path in found
            for above in list(_upwards(path))[1:]
            if any(_lies_in(above, root) and above != root for root in roots)
        }
        return Protected(tuple(sorted(found)), tuple(sorted(fixed)), required=not own)

    def first_lost(self, old: str, old_root: str, new: str, new_root: str) -> str | None:
        """Return the first in *old* that is found in *old_root* now, but not in *new_root* after a move to *new*."""
        for path in self.find([old]).read_only:
            above, _, name = path.rpartition("/")
            around = above if is_dot_git(name) else path
            if _level(around, old_root) <= LEVELS < _level(new + around[len(old) :], new_root):
                return path
        return None

    def _walk(self, start: str, found: set[str], seen: dict[str, _Directory]) -> None:
        level = [start]
        for _ in range(LEVELS + 1):
            following: list[str] = []
            for path in level:
                if (there := seen.get(path)) is None:
                    there = seen[path] = self._looked_into(path)
                    if len(seen) > MOST_DIRECTORIES:
                        raise LimitExceeded(
                            f"there are more than {MOST_DIRECTORIES} directories to search for repositories, which"
                            f" commands must not write to; configure fewer or smaller directories, or set {SETTING}"
                        )
                found.update(there.git)
                following += there.below
            level = following

    def _looked_into(self, path: str) -> _Directory:
        """Return the content of the directory *path*; nothing if it is not one."""
        try:
            status = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - many of them
        except OSError:
            return _Directory((0, 0, 0), ())
        if status.st_uid == os.geteuid() and status.st_mode & 0o500 != 0o500 and stat.S_ISDIR(status.st_mode):
            # A command could change the mode.
            raise NotAuthorized(
                f"{printable(path)} cannot be read, so repositories in it cannot be protected from commands;"
                f" make it readable (chmod u+rx), or set {SETTING}"
            )
        stamp = (status.st_dev, status.st_ino, status.st_ctime_ns)
        known = self._known.get(path)
        if known is not None and known.stamp == stamp:
            return known
        now = time.time_ns()
        there = _read(path, stamp)
        if now - status.st_ctime_ns > _SETTLED:
            self._known[path] = there
        return there


def _read(path: str, stamp: tuple[int, int, int]) -> _Directory:
    try:
        with os.scandir(path) as entries:
            found = [(entry.name, entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except OSError:
        # A directory of another user, in which known paths may be accessible nevertheless.
        git = f"{path}/.git"
        return _Directory(stamp, (git,) if os.path.lexists(git) else ())
    names = {git_part(name) for name, _, _ in found}
    git_paths = tuple(path for name, path, _ in found if is_dot_git(name))
    below = tuple(path for name, path, is_dir in found if is_dir and not is_dot_git(name))
    if is_git_directory(names.__contains__):
        # A build may have put repositories into it, which stay read-only where git changes this one.
        return _Directory(stamp, (path, *git_paths), below)
    return _Directory(stamp, git_paths, below)


def _upwards(path: str) -> Iterable[str]:
    """Yield *path* and the directories above it."""
    while path != "/":
        yield path
        path = os.path.dirname(path)  # noqa: PTH120 - many of them


def _lies_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")


def _level(path: str, root: str) -> int:
    """Return how many directories *path* is below *root*."""
    return path.removeprefix(root).count("/")
