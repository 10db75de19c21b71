# SPDX-License-Identifier: LGPL-2.1-or-later
"""A file that is written as its bytes come: whole in the end, or not there."""

from __future__ import annotations

import asyncio
import hashlib
import os
from contextlib import asynccontextmanager, suppress
from threading import Lock
from typing import TYPE_CHECKING

from mcpd.errors import from_oserror
from mcpd.store.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from mcpd.errors import McpdError


class NewFile:
    """What :func:`new_file` makes. Disks are waited for in threads, the event loop never waits for one."""

    def __init__(self, path: Path) -> None:
        self.size = 0
        """Bytes that were written."""
        self.is_finished = False
        self._path = path
        self._hash = hashlib.sha256()
        # Who is cancelled leaves a thread behind that may be opening or writing the file still.
        self._lock = Lock()
        self._descriptor = -1
        self._is_made = False
        self._is_dropped = False

    async def open(self) -> None:
        """Make it. Raises what :meth:`write` does, also if there is a file of that name."""
        await asyncio.to_thread(self._open)

    async def write(self, data: bytes) -> None:
        """Append *data*. Raises :class:`~mcpd.errors.NoSpace` or another :class:`~mcpd.errors.McpdError`."""
        await asyncio.to_thread(self._write, data)
        self.size += len(data)

    async def finish(self) -> str:
        """Make what was written last; returns its sha256 in hexadecimal. Raises what :meth:`write` does."""
        await asyncio.to_thread(self._settle)
        self.is_finished = True
        return self._hash.hexdigest()

    async def close(self) -> None:
        """Nothing is made or written from here on, and a file that is not finished is gone."""
        self._is_dropped = True
        # A thread that has not begun to make it makes nothing any more, so it is not waited for.
        if not self.is_finished and (self._lock.locked() or self._is_made):
            await in_thread(self._remove)

    def _open(self) -> None:
        with self._lock:
            if self._is_dropped:
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                self._descriptor = os.open(self._path, flags, 0o600)
            except OSError as error:
                raise self._fault(error) from error
            self._is_made = True

    def _write(self, data: bytes) -> None:
        with self._lock:
            self._hash.update(data)
            rest = memoryview(data)
            try:
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError as error:
                raise self._fault(error) from error

    def _settle(self) -> None:
        with self._lock:
            try:
                os.fsync(self._descriptor)
            except OSError as error:
                raise self._fault(error) from error
            self._close()

    def _remove(self) -> None:
        with self._lock:
            self._close()
            if self._is_made:
                with suppress(OSError):
                    self._path.unlink()

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _fault(self, error: OSError) -> McpdError:
        return from_oserror(error, f"writing {self._path}")


@asynccontextmanager
async def new_file(path: Path) -> AsyncIterator[NewFile]:
    """The new file *path* (0600), which is gone after the ``async with`` block unless it was finished there.

    Raises what its methods do; one that is there already stays as it is.
    """
    file = NewFile(path)
    try:
        await file.open()
        yield file
    finally:
        await file.close()
