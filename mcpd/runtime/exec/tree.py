# SPDX-License-Identifier: LGPL-2.1-or-later
# pathlib and contextlib take longer to load than this program runs:
# ruff: noqa: SIM105
"""Process trees: the interface for the supervisor, and the tree without a sandbox."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import time
from abc import ABC, abstractmethod

from mcpd.runtime.exec.proc import (
    PR_SET_PDEATHSIG,
    SIGKILL,
    SIGPIPE,
    SIGSTOP,
    SIGTERM,
    SIGXFSZ,
    descendants_of,
    prctl,
    reap_orphans,
    signal_pidfd,
)
from mcpd.runtime.exec.wire import MANIFEST_FD, Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mcpd.runtime.exec.wire import Request


class Tree(ABC):
    """A process tree whose top process is our child."""

    def __init__(self, request: Request, stderr: int) -> None:
        self.request = request
        self.fds = request.fds | {2: stderr}
        self.status = -1
        """Descriptor that is readable when :meth:`read_status` should be called; -1 if unused."""
        self.report = -1
        """Descriptor that is readable when :meth:`read_report` should be called; -1 if unused."""
        self.pid = 0
        """Process id of the program itself."""
        self.child = 0
        self.pidfd = -1
        """Pidfd of the top process; readable once the process has ended."""

    @abstractmethod
    def start(self) -> None:
        """Start the program; raise :class:`Failure` if that fails at once."""

    def read_status(self) -> bool:
        """Read the available part of the status; return False at the end of the stream."""
        return False

    def read_report(self) -> bool:
        """Read the available part of the report; return False at the end of the stream."""
        return False

    def executed(self) -> bool:
        """Return whether the program itself has been executed."""
        return True

    @abstractmethod
    def terminate(self) -> None:
        """Ask the program to end."""

    def kill(self) -> None:
        """Kill all processes; they are stopped first, so that none can fork in the meantime."""
        found: list[int] = []
        for sent in (SIGSTOP, SIGSTOP, SIGKILL):
            found = descendants_of(os.getpid())
            for pid in found:
                try:
                    os.kill(pid, sent)
                except ProcessLookupError:
                    pass

    def end_all(self) -> None:
        """Kill and reap until no process is left."""
        self.kill()
        while reap_orphans():
            time.sleep(0.002)
            self.kill()

    def failure(self, stderr: str | None) -> Failure:
        """Return the error for a program that was not executed; *stderr* is its output, None if that went elsewhere."""
        return Failure("SpawnFailed", f"{self.request.argv[0]} was not executed: {stderr}")

    def reap(self) -> int:
        """Reap the top process, which has ended, and return its exit status (128 + n for signal n)."""
        status = os.waitpid(self.child, 0)[1]
        return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


class Unconfined(Tree):
    """A tree without a sandbox; orphaned processes become our children and are killed."""

    def start(self) -> None:
        """Start the program in a new session."""
        read, write = os.pipe()
        self.child = self.pid = os.fork()
        if self.child == 0:
            try:
                os.setsid()
                prctl(PR_SET_PDEATHSIG, SIGKILL)
                null = os.open(os.devnull, os.O_RDWR)
                for number in (0, 1, 2):
                    os.dup2(self.fds.get(number, null), number)
                if self.request.manifest is not None:
                    # Last, since this number may have been that of another descriptor. If it is already the manifest's,
                    # dup2 does not make it inheritable.
                    os.dup2(self.request.manifest_fd, MANIFEST_FD)
                    os.set_inheritable(MANIFEST_FD, True)
                for ignored in (SIGPIPE, SIGXFSZ):
                    _signal.signal(ignored, _signal.SIG_DFL)
                os.chdir(self.request.cwd)
                os.execvpe(self.request.argv[0], self.request.argv, self.request.env)  # noqa: S606
            except OSError as error:
                os.write(write, (error.strerror or "?").encode())
            finally:
                os._exit(127)
        os.close(write)
        fault = os.read(read, 4096).decode()
        os.close(read)
        if fault:
            os.waitpid(self.child, 0)
            raise Failure("SpawnFailed", f"{self.request.argv[0]} cannot be executed in {self.request.cwd}: {fault}")
        self.pidfd = os.pidfd_open(self.child)

    def terminate(self) -> None:
        """Send SIGTERM to the program."""
        signal_pidfd(self.pidfd, SIGTERM)
