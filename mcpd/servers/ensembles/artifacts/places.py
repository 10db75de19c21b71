# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locations of artifacts: ``ROOT/ENSEMBLE/TIMESTAMP``, a directory for each run.

Artifacts may come with cloned projects. So below a root each directory is opened from its parent, no symlink is
followed, and only regular files are read.
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
"""The run: its input and its results."""
REPORT: Final = "execution.md"
"""The same for people."""
AGENTS: Final = "agents.jsonl"
"""During the run: a line for each agent that has ended."""
LOCK: Final = "run.lock"
"""During the run: locked by the process that runs it."""
LATEST: Final = "latest"
"""In the directory of an ensemble: a symlink to the newest run."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of one of these files in bytes."""

_ENSEMBLE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_STAMP: Final = re.compile(r"\d{8}-\d{6}-\d{3}", re.ASCII)
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV})
"""Errors for a missing file or directory, or a symlink in its place."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY
_FILE: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY


def is_ensemble(name: str) -> bool:
    """Return True if *name* can be the name of an ensemble."""
    return _ENSEMBLE.fullmatch(name) is not None


def is_stamp(name: str) -> bool:
    """Return True if *name* is that of a run's directory: ``YYYYMMDD-HHMMSS-mmm``."""
    return _STAMP.fullmatch(name) is not None


def bare(name: str) -> str:
    """Return the name of the ensemble in ``NAME`` or ``X/NAME``, which is also that of its directory."""
    return name.rpartition("/")[2]


def parts(artifact: str) -> tuple[str, str]:
    """Return the ensemble and the timestamp in the id *artifact*. Raises :class:`~mcpd.errors.NotFound` if invalid."""
    ensemble, _, stamp = artifact.rpartition("/")
    if not is_ensemble(bare(ensemble)) or not is_stamp(stamp):
        raise NotFound(f"{printable(artifact)}: no artifact; ids are like ensemble/20260131-120000-000")
    return ensemble, stamp


def is_absent(error: OSError) -> bool:
    """Return True if *error* says that the file does not exist."""
    return error.errno in _ABSENT


def open_root(root: Path, *, make: bool = False) -> int:
    """Return a descriptor of the directory *root*, which is created with *make*.

    A root in a project cannot lead outside, whatever symlinks the project contains. Raises OSError.
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
    """Yield a descriptor of the directory *below*, an ensemble and maybe a timestamp, in *root*. Raises OSError."""
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
    """Yield a descriptor of the regular file *path* below *directory*. Raises OSError, EINVAL for other types."""
    descriptor = open_beneath(directory, path, _FILE, links=False)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        yield descriptor
    finally:
        os.close(descriptor)


def read(descriptor: int, most: int) -> bytes:
    """Return at most *most* bytes of the file. Raises OSError."""
    with open(os.dup(descriptor), "rb") as file:  # noqa: PTH123 -- a descriptor
        return file.read(most)


def goes_on(directory: int) -> bool:
    """Return True if the run in *directory* has not ended: its lock is held."""
    try:
        with opened_file(directory, LOCK) as lock:
            # A shared lock, so that readers do not block each other.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        # Without a lock file, or on a file system without locks, nothing indicates that the run goes on.
        return False
    return False


def names(directory: int) -> Iterator[str]:
    """Yield the names of the directories in *directory*, without symlinks."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield entry.name
