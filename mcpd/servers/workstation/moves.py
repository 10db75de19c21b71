# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locks between calls: moving directories, files written by git, running commands, and parts of git directories.

Git runs in the state in which it was checked to be harmless, and the git directories that are read-only for a command
are so at the paths where they were found. Git follows a symlink that replaces a directory in which it has just
written a file; a build could create one there. All servers with the same state directory share the locks.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import Busy, from_oserror

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.jail import Place
    from mcpd.servers.workstation.tool import Answer, Tool

PATIENCE: Final = 5.0
"""Seconds that moving a directory or symlink, or writing files with git, waits for commands."""
_MOVES: Final = "moves.lock"
_BUILDS: Final = "builds.lock"
_PARTS: Final = "parts.lock"
"""Name of the lock for adding a part of a git directory, so that two concurrent calls cannot complete one together."""
_ASKED_EVERY: Final = 0.02
"""Seconds between two attempts to take a lock."""


@contextmanager
def moving(call: Call, place: Place) -> Iterator[None]:
    """Exclude commands while the caller moves the directory or symlink at *place*.

    Raises :class:`~mcpd.errors.Busy` if commands still run after :data:`PATIENCE`.
    """
    give_up = time.monotonic() + PATIENCE
    with _opened(call.settings.state, _MOVES) as fd:
        while not _is_taken(fd, fcntl.LOCK_EX):
            call.check()
            if time.monotonic() > give_up:
                raise Busy(
                    f"{place.shown} is not a file, and stays where it is while git or a command of a ci tool runs; try"
                    " again when that has ended"
                )
            time.sleep(_ASKED_EVERY)
        yield


@asynccontextmanager
async def nothing_moves(call: Call) -> AsyncIterator[None]:
    """Prevent all directories and symlinks from being moved."""
    async with _held(call, _MOVES, fcntl.LOCK_SH):
        yield


@asynccontextmanager
async def nothing_builds(call: Call) -> AsyncIterator[None]:
    """Exclude commands of the ci tools while git writes files in a work tree.

    Raises :class:`~mcpd.errors.Busy` if one still runs after :data:`PATIENCE`.
    """
    busy = "a command of a ci tool runs, or git writes files for another call; try again when that has ended"
    async with _held(call, _BUILDS, fcntl.LOCK_EX, busy):
        yield


def while_nothing_moves(tool: Tool) -> Tool:
    """Return *tool*, wrapped so that no directory or symlink is moved while it runs."""

    async def run(call: Call, arguments: Any) -> Answer:
        async with nothing_moves(call):
            return await tool.run(call, arguments)

    return replace(tool, run=run)


def while_git_writes_no_files(tool: Tool) -> Tool:
    """Return *tool*, wrapped so that git writes no files in work trees while it runs."""

    async def run(call: Call, arguments: Any) -> Answer:
        async with _held(call, _BUILDS, fcntl.LOCK_SH):
            return await tool.run(call, arguments)

    return replace(tool, run=run)


@asynccontextmanager
async def _held(call: Call, name: str, kind: int, busy: str = "") -> AsyncIterator[None]:
    """Hold the lock *name*; wait as long as the call may take, or with *busy* raise that after :data:`PATIENCE`."""
    give_up = time.monotonic() + PATIENCE
    with _opened(call.settings.state, name) as fd:
        while not _is_taken(fd, kind):
            call.check()
            if busy and time.monotonic() > give_up:
                raise Busy(busy)
            await asyncio.sleep(_ASKED_EVERY)
        yield


@contextmanager
def adding_part(state: Path, place: Place, patience: float) -> Iterator[None]:
    """Exclude other calls while the caller adds a possible part of a git directory at *place*; *state* has the locks.

    Raises :class:`~mcpd.errors.Busy` if other calls hold the lock for longer than *patience* seconds.
    """
    give_up = time.monotonic() + patience
    with _opened(state, _PARTS) as fd:
        while not _is_taken(fd, fcntl.LOCK_EX):
            if time.monotonic() > give_up:
                raise Busy(f"{place.shown}: another call is changing what may be a git directory; try again")
            time.sleep(_ASKED_EVERY)
        yield


@asynccontextmanager
async def adding_parts(call: Call) -> AsyncIterator[None]:
    """Prevent other calls from adding parts of git directories, from the check of what git will write until it has."""
    async with _held(call, _PARTS, fcntl.LOCK_EX):
        yield


@contextmanager
def _opened(state: Path, name: str) -> Iterator[int]:
    path = state / name
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise from_oserror(error, f"opening {path}") from error
    try:
        yield fd
    finally:
        os.close(fd)


def _is_taken(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
