# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpd-exec`` as a child of this process: containers, tests, systems without systemd (design §6, launcher 3)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.errors import SpawnFailed
from mcpd.runtime.launch import Leash

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.runtime.launch import LaunchSpec

EXEC_FILE: Final = Path(__file__).parent / "exec" / "mcpd_exec.py"


def exec_command() -> tuple[str, ...]:
    """The argument list that starts ``mcpd-exec``."""
    return (sys.executable or "/usr/bin/python3", "-IS", str(EXEC_FILE))


class PlainLauncher:
    """Runs ``mcpd-exec`` in a session of its own; it and its tree die with this process by the leash's end."""

    name = "plain"

    async def launch(self, spec: LaunchSpec, fds: Mapping[int, int]) -> Leash:
        """See :meth:`mcpd.runtime.launch.Launcher.launch`."""
        ours, theirs = socket.socketpair()
        try:
            child = _Child(theirs.fileno())
        except OSError as error:
            ours.close()
            raise SpawnFailed(f"{spec.id}: mcpd-exec cannot be started: {error.strerror}") from error
        finally:
            theirs.close()
        return await Leash.start(ours, spec, fds, child)


class _Child:
    """One ``mcpd-exec`` process, reaped through a pidfd when it ends."""

    def __init__(self, leash: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._gone = asyncio.Event()
        command = exec_command()
        self._pid = os.posix_spawn(
            command[0],
            command,
            {"PATH": os.defpath, "LANG": "C.UTF-8"},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, leash, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD),
        )
        try:
            self._pidfd = os.pidfd_open(self._pid)
        except OSError:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            raise
        self._loop.add_reader(self._pidfd, self._reap)

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        os.waitpid(self._pid, 0)
        self._gone.set()

    def kill(self) -> None:
        """SIGKILL; again or afterwards it changes nothing."""
        if self._pidfd >= 0:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def gone(self) -> None:
        """Await that it is reaped."""
        await self._gone.wait()
