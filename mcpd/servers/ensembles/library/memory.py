# SPDX-License-Identifier: LGPL-2.1-or-later
"""What was made of files, as long as these stay as they are."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.servers.ensembles.library.tiers import Signature

T = TypeVar("T")


class Memory(Generic[T]):
    """For each of at most *most* files what was made of it; what was put in first goes first. Any thread may use it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._made: dict[Path, tuple[Signature, T]] = {}

    def get(self, path: Path, signature: Signature) -> T | None:
        """What was made of *path*, if it is still what it was."""
        with self._lock:
            found = self._made.get(path)
        return found[1] if found is not None and found[0] == signature else None

    def put(self, path: Path, signature: Signature, made: T) -> None:
        """Remember *made*."""
        with self._lock:
            self._made.pop(path, None)
            self._made[path] = (signature, made)
            if len(self._made) > self._most:
                del self._made[next(iter(self._made))]
