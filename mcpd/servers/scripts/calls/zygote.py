# SPDX-License-Identifier: LGPL-2.1-or-later
"""The zygote: a small process that forks keepers and workers, as the server itself is too large to fork.

fd 0 is its control socket. The first frame is the script: JSON with ``path``, ``kind``, ``source`` and ``digest``.
Then each byte with descriptors is a request, see :mod:`.frames`. It ends when the server closes the socket, or dies.
It only uses the standard library, loaded once for all workers.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mcpd.servers import tree
from mcpd.servers.scripts.calls import frames, worker
from mcpd.servers.scripts.calls.keeper import Keeper, refusal
from mcpd.servers.scripts.calls.worker import Script

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.servers.scripts.calls.keeper import Ends


class Zygote:
    """Forks a keeper, which forks a worker, for each request of the server."""

    def __init__(self, control: socket.socket, work: Callable[[Ends], NoReturn], *, clean: bool) -> None:
        self._control = control
        self._work = work
        self._clean = clean
        """True if all children that are not keepers were left behind by killed ones."""
        self._keepers: set[int] = set()
        self._poll = select.poll()
        self._wake = _wake_for_children()
        self._poll.register(control, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        gc.collect()
        gc.freeze()

    def serve(self) -> None:
        """Handle requests until the server closes the control socket."""
        while True:
            ready = [fd for fd, _ in self._poll.poll()]
            if self._wake in ready:
                self._reap()
            if self._control.fileno() in ready and not self._hear():
                return

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wake, 4096)
        for keeper in tuple(self._keepers):
            if os.waitpid(keeper, os.WNOHANG) != (0, 0):
                self._keepers.remove(keeper)
        while self._clean and (strays := [pid for pid in tree.children_of(os.getpid()) if pid not in self._keepers]):
            for stray in strays:
                tree.kill_below(stray)
                tree.send(stray, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(stray, 0)

    def _hear(self) -> bool:
        """Handle a request of the server; return False if the server has closed the connection."""
        try:
            wish, fds, *_ = socket.recv_fds(self._control, 1, 2)
        except OSError:
            return False
        if not fds:
            return bool(wish)
        parent = os.getpid()
        try:
            keeper = os.fork()
        except OSError as error:
            with suppress(OSError):
                os.write(fds[0], refusal(error))
        else:
            if keeper == 0:
                self._become_keeper(parent, fds)
            self._keepers.add(keeper)
        for fd in fds:
            os.close(fd)
        return True

    def _become_keeper(self, parent: int, fds: list[int]) -> NoReturn:
        try:
            os.setsid()
            tree.prctl(tree.PR_SET_PDEATHSIG, signal.SIGTERM)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            os.close(self._wake)
            if os.getppid() == parent:
                self._keep(socket.socket(fileno=fds[0]), fds[1] if len(fds) > 1 else -1)
        except BaseException as error:  # noqa: BLE001 -- a boundary: nothing may go on as a second zygote
            os.write(2, f"a call had no keeper: {error!r}\n".encode())
        finally:
            os._exit(0)

    def _keep(self, channel: socket.socket, control: int) -> None:
        try:
            keeper = Keeper(channel, self._work, control)
        except OSError as error:
            with suppress(OSError):
                channel.send(refusal(error))
        else:
            keeper.run()


def _wake_for_children() -> int:
    """Return a descriptor that becomes readable when a child has ended."""
    wake, write = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return wake


def _script(control: socket.socket) -> Script:
    """Return the script, which the server sends first."""
    said = _exactly(control, frames.HEADER.size)
    length: int = frames.HEADER.unpack(said)[1]
    fields = json.loads(_exactly(control, length))
    return Script(fields["path"], fields["kind"], fields["source"], fields["digest"])


def _exactly(control: socket.socket, length: int) -> bytes:
    data = control.recv(length, socket.MSG_WAITALL)
    if len(data) < length:
        os._exit(0)
    return data


def tasks_of_user() -> int:
    """Return the number of this user's threads, as counted by RLIMIT_NPROC."""
    count, uid = 0, os.getuid()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if process.stat().st_uid == uid:
                count += int((process / "stat").read_text(errors="replace").rpartition(")")[2].split()[17])
    return count


def main() -> None:
    """Handle the requests of the server connected to fd 0."""
    # A script must not trace this process or read its memory.
    tree.prctl(tree.PR_SET_DUMPABLE, 0)
    tree.prctl(tree.PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o077)
    control = socket.socket(fileno=0)
    script = _script(control)
    if "async " in script.source:
        # Half of the time that an asynchronous function would take.
        importlib.import_module("asyncio")
    if script.digest:
        importlib.import_module("hashlib")
    base = tasks_of_user()

    def work(ends: Ends) -> NoReturn:
        worker.run(script, ends, base, Zygote)

    Zygote(control, work, clean=True).serve()
    tree.end_all()
    os._exit(0)


if __name__ == "__main__":
    main()
