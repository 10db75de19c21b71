# SPDX-License-Identifier: LGPL-2.1-or-later
"""Directories for the temporary files of programs; those that a killed server leaves are removed by the next one.

Each is locked (flock(2)) by the server that has made it. Who makes one, or looks whether one is locked, holds the
directory they are in meanwhile, as it is there before it is locked. Where a file system has no such locks, nothing is
taken for left.
"""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mcpd.errors import from_oserror
from mcpd.files import remove_tree
from mcpd.paths import make_private
from mcpd.servers.commands.waiting import to_its_end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

log = logging.getLogger("llm-orc")


@dataclass(frozen=True, slots=True)
class _Made:
    path: Path
    lock: int
    """A descriptor."""


class TemporaryDirectories:
    """Those that one server makes in *parent*."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self._cleared = False

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Path]:
        """A directory that is gone with all in it when the context ends. Raises McpdError if there cannot be one."""
        made, cancelled = await to_its_end(self._make)
        try:
            if cancelled is not None:
                raise cancelled
            yield made.path
        finally:
            _, cancelled = await to_its_end(_remove, made)
            if cancelled is not None:
                raise cancelled

    def _make(self) -> _Made:
        try:
            make_private(self._parent)
            if not self._cleared:
                self._cleared = True
                self._clear()
            with _held(self._parent, fcntl.LOCK_SH):
                path = Path(tempfile.mkdtemp(prefix="", dir=self._parent))
                try:
                    lock = _opened(path)
                except OSError:
                    path.rmdir()
                    raise
                with suppress(OSError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return _Made(path, lock)
        except OSError as error:
            raise from_oserror(error, "making a directory for temporary files") from error

    def _clear(self) -> None:
        """Remove what nobody has locked."""
        for path in list(self._parent.iterdir()):
            with suppress(OSError):
                with _held(self._parent, fcntl.LOCK_EX):
                    lock = _opened(path)
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BaseException:
                        os.close(lock)
                        raise
                _remove(_Made(path, lock))


def _opened(directory: Path) -> int:
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


@contextmanager
def _held(directory: Path, how: int) -> Iterator[None]:
    """Hold *directory*, as far as its file system has locks; others hold it for no longer than it takes to look."""
    fd = _opened(directory)
    try:
        with suppress(OSError):
            fcntl.flock(fd, how)
        yield
    finally:
        os.close(fd)


def _remove(made: _Made) -> None:
    try:
        remove_tree(made.path)
    except OSError as error:
        log.warning("%s was not removed: %s", made.path, error.strerror)
    finally:
        os.close(made.lock)
