# SPDX-License-Identifier: LGPL-2.1-or-later
"""Write lock across threads and processes."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Final

from mcpd.errors import Busy, from_oserror
from mcpd.store.files import make_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAIT: Final = 10.0
"""Seconds to wait for another writer."""
_PAUSE: Final = 0.02


class WriteLock:
    """Reentrant lock of the writer of one directory tree."""

    def __init__(self, path: Path, wait: float = WAIT) -> None:
        """*path* is the lock file, *wait* the seconds to wait for another holder."""
        self._path = path
        self._wait = wait
        self._thread = RLock()
        self._depth = 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock; raises :class:`~mcpd.errors.Busy` if another holder keeps it too long."""
        if not self._thread.acquire(timeout=self._wait):
            raise Busy(f"{self._path.parent}: another change is going on; try again when it has finished")
        try:
            if self._depth:
                yield from self._entered()
                return
            descriptor = self._lock_file()
            try:
                yield from self._entered()
            finally:
                os.close(descriptor)
        finally:
            self._thread.release()

    def _entered(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _lock_file(self) -> int:
        make_directory(self._path.parent)
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise from_oserror(error, f"locking {self._path}") from error
        deadline = time.monotonic() + self._wait
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(_PAUSE)
                    continue
                os.close(descriptor)
                raise Busy(
                    f"{self._path.parent}: another process is changing it; try again when it has finished"
                ) from None
            except OSError as error:
                os.close(descriptor)
                raise from_oserror(error, f"locking {self._path}") from error
            return descriptor
