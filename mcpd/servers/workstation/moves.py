# SPDX-License-Identifier: LGPL-2.1-or-later
"""A lock that keeps directories and symlinks where they are while git or another command works in the roots.

What git was found to do no harm in is what it has to run in, and the git directories that are read-only for a command
are so at the paths where they were found. Git follows a symlink that takes the place of a directory in which it has
just written a file. All servers with the same state directory share the lock.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import Busy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.jail import Place
    from mcpd.servers.workstation.tool import Answer, Tool

PATIENCE: Final = 5.0
"""Seconds that moving a directory or symlink waits for commands."""
_FILE: Final = "moves.lock"
_ASKED_EVERY: Final = 0.02
"""Seconds between two attempts to take the lock."""


@contextmanager
def moving(call: Call, place: Place) -> Iterator[None]:
    """Move the directory or symlink at *place*.

    Raises :class:`~mcpd.errors.Busy` if commands go on for longer than :data:`PATIENCE`.
    """
    give_up = time.monotonic() + PATIENCE
    with _opened(call) as fd:
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
    with _opened(call) as fd:
        while not _is_taken(fd, fcntl.LOCK_SH):
            call.check()
            await asyncio.sleep(_ASKED_EVERY)
        yield


def while_nothing_moves(tool: Tool) -> Tool:
    """Return *tool* so that all directories and symlinks stay where they are while it runs."""

    async def run(call: Call, arguments: Any) -> Answer:
        async with nothing_moves(call):
            return await tool.run(call, arguments)

    return replace(tool, run=run)


@contextmanager
def _opened(call: Call) -> Iterator[int]:
    fd = os.open(call.settings.state / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
