# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where artifacts lie: ``ROOT/ENSEMBLE/TIMESTAMP``, a directory for each run.

Artifacts come with cloned projects, too. So below a root each directory is opened from the one that it is in, no
symlink is followed, and what is no regular file is not read.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from mcpd.errors import NotFound
from mcpd.model import printable
from mcpd.servers.beneath import open_beneath
from mcpd.servers.ensembles.settings import DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXECUTION: Final = "execution.json"
"""The run: what went in, what came out."""
REPORT: Final = "execution.md"
"""The same to read."""
AGENTS: Final = "agents.jsonl"
"""While the run goes on: a line for each agent that has ended."""
LOCK: Final = "run.lock"
"""While the run goes on: locked by who runs it."""
LATEST: Final = "latest"
"""In the directory of an ensemble: a symlink to the newest run."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Of one of these files."""

_ENSEMBLE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_STAMP: Final = re.compile(r"\d{8}-\d{6}-\d{3}", re.ASCII)
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV})
"""What the kernel says where there is nothing of that name, or only a symlink in its place."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY
_FILE: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY


def is_ensemble(name: str) -> bool:
    """Return True if *name* can be the name of an ensemble."""
    return _ENSEMBLE.fullmatch(name) is not None


def is_stamp(name: str) -> bool:
    """Return True if *name* is that of a run's directory: ``YYYYMMDD-HHMMSS-mmm``."""
    return _STAMP.fullmatch(name) is not None


def bare(name: str) -> str:
    """The name of the ensemble that ``NAME`` or ``X/NAME`` is; its directory is called so."""
    return name.rpartition("/")[2]


def parts(artifact: str) -> tuple[str, str]:
    """The ensemble and the timestamp of the id *artifact*. Raises :class:`~mcpd.errors.NotFound` for others."""
    ensemble, _, stamp = artifact.rpartition("/")
    if not is_ensemble(bare(ensemble)) or not is_stamp(stamp):
        raise NotFound(f"{printable(artifact)}: no artifact; ids are like ensemble/20260131-120000-000")
    return ensemble, stamp


def is_absent(error: OSError) -> bool:
    """Return True if *error* says that there is nothing to be opened."""
    return error.errno in _ABSENT


def open_root(root: Path, *, make: bool = False) -> int:
    """A descriptor of the directory *root*, which is made with *make*.

    One in a project stays in the project, whatever symlinks came with that. Raises OSError.
    """
    if root.parent.name != DIRECTORY:
        if make:
            root.mkdir(parents=True, exist_ok=True)
        return os.open(root, _DIRECTORY | os.O_CLOEXEC)
    project = os.open(root.parent.parent, _DIRECTORY | os.O_CLOEXEC)
    try:
        if make:
            with suppress(FileExistsError):
                os.mkdir(DIRECTORY, dir_fd=project)
            above = open_beneath(project, DIRECTORY, _DIRECTORY)
            try:
                with suppress(FileExistsError):
                    os.mkdir(root.name, dir_fd=above)
            finally:
                os.close(above)
        return open_beneath(project, f"{DIRECTORY}/{root.name}", _DIRECTORY)
    finally:
        os.close(project)


@contextmanager
def opened(root: Path, *below: str) -> Iterator[int]:
    """A descriptor of the directory *below*, an ensemble and perhaps a timestamp, in *root*. Raises OSError."""
    top = open_root(root)
    try:
        directory = open_beneath(top, "/".join(below), _DIRECTORY, links=False) if below else os.dup(top)
    finally:
        os.close(top)
    try:
        yield directory
    finally:
        os.close(directory)


@contextmanager
def opened_file(directory: int, path: str) -> Iterator[int]:
    """A descriptor of the regular file *path* below *directory*. Raises OSError, EINVAL for what is none."""
    descriptor = open_beneath(directory, path, _FILE, links=False)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        yield descriptor
    finally:
        os.close(descriptor)


def read(descriptor: int, most: int) -> bytes:
    """At most *most* bytes of the file. Raises OSError."""
    with open(os.dup(descriptor), "rb") as file:  # noqa: PTH123 -- a descriptor
        return file.read(most)


def goes_on(directory: int) -> bool:
    """Return True if the run, whose directory that is, holds its lock."""
    try:
        with opened_file(directory, LOCK) as lock:
            # Two readers are not in each other's way.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        # Without a lock file, or on a file system without locks, nothing says that it does.
        return False
    return False


def names(directory: int) -> Iterator[str]:
    """The names of the directories in *directory*, but not symlinks to such."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield entry.name
