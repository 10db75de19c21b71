# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locks between calls: what moves, what git writes in a work tree, what else runs, and parts of git directories.

What git was found to do no harm in is what it has to run in, and the git directories that are read-only for a command
are so at the paths where they were found. Git follows a symlink that takes the place of a directory in which it has
just written a file; a build could put one there, too. All servers with the same state directory share the locks.
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
"""The lock for adding a part of a git directory, so that no two calls complete one between them."""
_ASKED_EVERY: Final = 0.02
"""Seconds between two attempts to take the lock."""


@contextmanager
def moving(call: Call, place: Place) -> Iterator[None]:
    """Move the directory or symlink at *place*.

    Raises :class:`~mcpd.errors.Busy` if commands go on for longer than :data:`PATIENCE`.
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
    """Keep all directories and symlinks where they are."""
    async with _held(call, _MOVES, fcntl.LOCK_SH):
        yield


@asynccontextmanager
async def nothing_builds(call: Call) -> AsyncIterator[None]:
    """Let git write files in a work tree while no command of a ci tool runs.

    Raises :class:`~mcpd.errors.Busy` if one goes on for longer than :data:`PATIENCE`.
    """
    busy = "a command of a ci tool runs, or git writes files for another call; try again when that has ended"
    async with _held(call, _BUILDS, fcntl.LOCK_EX, busy):
        yield


def while_nothing_moves(tool: Tool) -> Tool:
    """Return *tool* so that all directories and symlinks stay where they are while it runs."""

    async def run(call: Call, arguments: Any) -> Answer:
        async with nothing_moves(call):
            return await tool.run(call, arguments)

    return replace(tool, run=run)


def while_git_writes_no_files(tool: Tool) -> Tool:
    """Return *tool* so that git writes no files in work trees while it runs."""

    async def run(call: Call, arguments: Any) -> Answer:
        async with _held(call, _BUILDS, fcntl.LOCK_SH):
            return await tool.run(call, arguments)

    return replace(tool, run=run)


@asynccontextmanager
async def _held(call: Call, name: str, kind: int, busy: str = "") -> AsyncIterator[None]:
    """Hold the lock *name*; with *busy*, raise that after :data:`PATIENCE`, else wait as long as the call may take."""
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
    """Add what may be a part of a git directory at *place*; the locks are in *state*.

    Raises :class:`~mcpd.errors.Busy` if other calls add some for longer than *patience* seconds.
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
    """Let no other call add parts of git directories, from before it is checked what git will write until it has."""
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
