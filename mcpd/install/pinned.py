# SPDX-License-Identifier: LGPL-2.1-or-later
"""Directories of somebody who may rename and replace them while they are read: opened once, then used by descriptor."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from mcpd.store.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from pathlib import Path

Identity: TypeAlias = tuple[int, int]
"""Device and inode."""

_FLAGS: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Pinned:
    """A directory that stays the same, whatever happens to its name."""

    path: Path
    """Where it was found; for messages, never to be opened again."""
    fd: int
    """Open for reading; whoever pinned it closes it."""
    way: tuple[Identity, ...]
    """Every directory from the root of the file system down to this one."""


def pin(path: Path) -> Pinned:
    """Open the directory *path*, which is absolute and resolved, and follow no link on the way.

    Raises OSError; ENOTDIR also where a part of *path* became a link.
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
    """What *find*, called in a thread, pins; closed at the end."""
    found: list[Pinned] = []
    try:
        await in_thread(lambda: found.append(find()))
        yield found[0]
    finally:
        for one in found:
            os.close(one.fd)


def overlap(path: Path, way: Sequence[Identity], others: Iterable[Path]) -> Path | None:
    """The first of *others* that is *path*, holds it or lies in it; by *way* also if a mount gives it another name."""
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
