# SPDX-License-Identifier: LGPL-2.1-or-later
"""The process that forks keepers, :mod:`.keeper`, and their answers."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import SpawnFailed
from mcpd.servers.commands.keeper import MOST_DESCRIPTORS, TERMINATE, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

_MODULE: Final = "mcpd.servers.commands.keeper"
_ANSWER: Final = 4096


class Keepers:
    """Starts the process when it is first needed, and again if it has died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def close(self) -> None:
        """Let it exit. Running keepers end when their own sockets are closed."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.wait()
            self._process = None

    def ask(self, task: Task, fds: Sequence[int]) -> socket.socket:
        """Start a keeper that runs *task* with *fds*, see :mod:`.keeper`; return its socket. May start a process.

        Raises :class:`~mcpd.errors.SpawnFailed`.
        """
        if len(fds) > MOST_DESCRIPTORS - 2:
            raise SpawnFailed(f"{task.argv[0]} cannot be started: there are too many roots and toolchains; name fewer")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, ExitStack() as stack:
                file = stack.enter_context(os.fdopen(os.memfd_create("task"), "wb", buffering=0))
                file.write(task.encoded())
                with self._lock:
                    self._send([theirs.fileno(), file.fileno(), *fds])
        except OSError as error:
            ours.close()
            raise SpawnFailed(f"{task.argv[0]} cannot be started: {error.strerror or error}") from error
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        return ours

    def sweep(self) -> None:
        """End the processes whose keeper has died."""
        with self._lock, suppress(OSError):
            if self._socket is not None:
                self._socket.send(b"\0")

    def _send(self, fds: list[int]) -> None:
        if self._process is not None and self._process.poll() is not None:
            self._drop()
        if self._socket is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                try:
                    self._process = subprocess.Popen(
                        (sys.executable, "-I", "-B", "-X", "utf8", "-m", _MODULE),
                        stdin=theirs.fileno(),
                        stdout=subprocess.DEVNULL,
                        env={"LC_ALL": "C.UTF-8"},
                        start_new_session=True,
                    )
                except BaseException:
                    ours.close()
                    raise
            self._socket = ours
        socket.send_fds(self._socket, [b"\0"], fds)


class Keeping:
    """A running keeper, used in the loop's thread."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._loop = asyncio.get_running_loop()
        self.said: dict[str, Any] | None = None
        """Its answer; None if it died without one."""
        self.done = asyncio.Event()
        """Set at that time."""
        self._loop.add_reader(control, self._read)

    def terminate(self) -> None:
        """End the command with SIGTERM, and with SIGKILL after :data:`.keeper.GRACE`."""
        with suppress(OSError):
            self._control.send(TERMINATE)

    def close(self) -> None:
        """Close the socket: the rest of the command is killed at once."""
        self._loop.remove_reader(self._control)
        self._control.close()

    def _read(self) -> None:
        try:
            data = self._received()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.said = json.loads(data)
        self._loop.remove_reader(self._control)
        self.done.set()

    def _received(self) -> bytes:
        try:
            return self._control.recv(_ANSWER)
        except ConnectionResetError:
            # It exited without reading the byte that was sent meanwhile. Its answer follows this error.
            return self._control.recv(_ANSWER)
