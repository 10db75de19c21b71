# SPDX-License-Identifier: LGPL-2.1-or-later
# pathlib and contextlib take longer to load than all this program does:
# ruff: noqa: SIM105
"""The process tree below us, as the supervisor sees it; and the one without a sandbox."""

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
    """A process tree below one child of ours."""

    def __init__(self, request: Request, stderr: int) -> None:
        self.request = request
        self.fds = request.fds | {2: stderr}
        self.status = -1
        """Becomes readable when :meth:`read_status` has something to do."""
        self.report = -1
        """The same for :meth:`read_report`."""
        self.pid = 0
        """The program itself."""
        self.child = 0
        self.pidfd = -1
        """Becomes readable when the tree's top has ended."""

    @abstractmethod
    def start(self) -> None:
        """Start the program; :class:`Failure` if that is known to be impossible."""

    def read_status(self) -> bool:
        """Take what is there; False once there will be no more."""
        return False

    def read_report(self) -> bool:
        """Take what is there; False once there will be no more."""
        return False

    def executed(self) -> bool:
        """Return whether the program itself runs, or has run."""
        return True

    @abstractmethod
    def terminate(self) -> None:
        """Ask the program to end."""

    def kill(self) -> None:
        """SIGKILL for all; stopped first, so that none can fork away from the sweep."""
        found: list[int] = []
        for sent in (SIGSTOP, SIGSTOP, SIGKILL):
            found = descendants_of(os.getpid())
            for pid in found:
                try:
                    os.kill(pid, sent)
                except ProcessLookupError:
                    pass

    def end_all(self) -> None:
        """Sweep until nothing is left."""
        self.kill()
        while reap_orphans():
            time.sleep(0.002)
            self.kill()

    def failure(self, stderr: str | None) -> Failure:
        """Why the program never ran; *stderr* is what was written there, None if it went elsewhere."""
        return Failure("SpawnFailed", f"{self.request.argv[0]} was not executed: {stderr}")

    def reap(self) -> int:
        """The exit status, once the tree's top has ended."""
        status = os.waitpid(self.child, 0)[1]
        return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


class Unconfined(Tree):
    """No sandbox; whatever the program leaves behind is adopted by us and killed."""

    def start(self) -> None:
        """Start the program in a session of its own."""
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
                    # Last, as one of the others may have been there; inheritable by hand, as it may be there itself.
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
        """SIGTERM for the program."""
        signal_pidfd(self.pidfd, SIGTERM)
