# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpd-exec: starts one process tree in its sandbox, watches it, and ends it when the leash is closed.

fd 0 is the leash, a unix socket; ``argv[1]``, if given, is the user whose mcpd may hold it (default: our own). The
protocol is described in docs/launch-protocol.md. This package uses only modules of the standard library that load fast:
``json``, ``socket``, ``signal`` and ``re`` would each take longer than everything this program does.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import os
import resource
import select
import stat
import sys
import time
from _json import encode_basestring_ascii

from mcpd.runtime.exec.confined import Confined
from mcpd.runtime.exec.proc import (
    PR_SET_CHILD_SUBREAPER,
    SIGINT,
    SIGTERM,
    close_inherited,
    join_session_keyring,
    notify_status,
    prctl,
    unit,
)
from mcpd.runtime.exec.stderr import Stderr, log_refusal
from mcpd.runtime.exec.tree import Tree, Unconfined
from mcpd.runtime.exec.wire import Failure, Refusal, check_peer, peer_uid, receive, unsuitable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from mcpd.runtime.exec.wire import Request

GRACE: Final = 3.0
"""Seconds between SIGTERM and SIGKILL."""
POLLRDHUP: Final = 0x2000


class Supervisor:
    """One launch, from the request to the report of its end."""

    def __init__(self, leash: _socket.socket, request: Request) -> None:
        self._leash = leash
        self._request = request
        self._stderr = Stderr(request.id) if 2 not in request.fds else None
        self._poll = select.poll()
        self._started = False
        self._deadline: float | None = None
        self._killed = False

    def run(self) -> None:
        """Start the program, report its start, and supervise it until it has ended."""
        wake, wake_write = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(wake_write, False)
        _signal.set_wakeup_fd(wake_write)
        for number in (SIGTERM, SIGINT):
            _signal.signal(number, lambda *_: None)
        kind = Confined if self._request.confined else Unconfined
        self._tree: Tree = kind(self._request, self._stderr.writer if self._stderr else self._request.fds[2])
        try:
            try:
                self._tree.start()
            finally:
                stdin = self._close_passed()
            stderr = self._stderr.fd if self._stderr else -1
            for fd in (0, wake, self._tree.pidfd, self._tree.status, self._tree.report, stderr):
                if fd >= 0:
                    self._poll.register(fd, select.POLLIN)
            if self._tree.executed():
                self._report_started()
            while self._step(wake):
                pass
            self._finish(stdin)
        finally:
            self._tree.end_all()

    def _close_passed(self) -> int:
        """Close our copies of the server's descriptors; return stdin if it is a pipe, to detect a hangup, or -1."""
        stdin = -1
        if self._stderr:
            os.close(self._stderr.writer)
        for number, fd in self._request.fds.items():
            if number == 0 and stat.S_ISFIFO(os.fstat(fd).st_mode):
                stdin = fd
            else:
                os.close(fd)
        return stdin

    def _timeout(self) -> float | None:
        if self._deadline is not None and not self._killed:
            return max(0.0, self._deadline - time.monotonic()) * 1000 + 1
        return None

    def _step(self, wake: int) -> bool:
        """Wait for events and handle them; return False once the top process of the tree has ended."""
        events = [fd for fd, _ in self._poll.poll(self._timeout())]
        stop = False
        if 0 in events:
            stop = not self._read_leash()
        if wake in events:
            os.read(wake, 64)
            stop = True
        if self._tree.status in events and not self._tree.read_status():
            self._poll.unregister(self._tree.status)
        if self._tree.report in events and not self._tree.read_report():
            self._poll.unregister(self._tree.report)
        if self._stderr and self._stderr.fd in events and not self._stderr.pump():
            self._poll.unregister(self._stderr.fd)
        if not self._started and self._tree.executed():
            self._report_started()
        if stop and self._deadline is None:
            self._deadline = time.monotonic() + GRACE
            self._tree.terminate()
        if self._deadline is not None and not self._killed and time.monotonic() >= self._deadline:
            self._killed = True
            self._tree.kill()
        return self._tree.pidfd not in events

    def _read_leash(self) -> bool:
        """Read from the leash, whose only expected event is its end; return False at the end."""
        try:
            if self._leash.recv(4096):
                return True
        except OSError:
            pass
        self._poll.unregister(0)
        return False

    def _report_started(self) -> None:
        self._started = True
        write_line(self._leash, f'{{"started":{{"pid":{self._tree.pid},"unit":{encode_basestring_ascii(unit())}}}}}')
        notify_status(f"{self._request.id}, process {self._tree.pid}")

    def _finish(self, stdin: int) -> None:
        code = self._tree.reap()
        hangup = stdin >= 0 and _hung_up(stdin)
        self._tree.end_all()
        if self._tree.status >= 0:
            self._tree.read_status()
        if self._tree.report >= 0:
            self._tree.read_report()
        tail = ""
        if self._stderr:
            tail = self._stderr.tail()
            self._stderr.close()
        if not self._started and not self._tree.executed():
            raise self._tree.failure(tail if self._stderr else None)
        if not self._started:
            self._report_started()
        flag = "true" if hangup else "false"
        write_line(self._leash, f'{{"exit":{code},"hangup":{flag},"stderr-tail":{encode_basestring_ascii(tail)}}}')


def _hung_up(stdin: int) -> bool:
    """Return whether the client had closed its end of the server's stdin."""
    poll = select.poll()
    poll.register(stdin, select.POLLIN | POLLRDHUP)
    return any(event & (select.POLLHUP | POLLRDHUP) for _, event in poll.poll(0))


def write_line(leash: _socket.socket, line: str) -> None:
    """Write one line to the leash; errors are ignored, including the timeout of a peer that does not read."""
    try:
        leash.settimeout(GRACE)
        leash.sendall(line.encode() + b"\n")
    except OSError:
        pass


def main() -> None:
    """Run one launch; the exit status is 0 if the program was started, else 1."""
    close_inherited()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    join_session_keyring()
    # Our memory, and a server's, may contain secrets.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    leash = _socket.socket(fileno=0)
    status = 0
    try:
        user = sys.argv[1] if len(sys.argv) > 1 else ""
        check_peer(leash, user)
        request = receive(leash)
        for number, fd in request.fds.items():
            # mcpd has already checked them. A user is given only in the units of the system instance.
            if fault := unsuitable(fd, pipes=bool(user)):
                raise Refusal(f"descriptor {number} of {request.id} {fault}")
        Supervisor(leash, request).run()
    except Failure as failure:
        if isinstance(failure, Refusal):
            log_refusal(peer_uid(leash), str(failure))
        name, message = encode_basestring_ascii(failure.name), encode_basestring_ascii(str(failure))
        write_line(leash, f'{{"error":{{"name":{name},"message":{message}}}}}')
        status = 1
    # Skip the interpreter's shutdown, which would keep a unit alive for longer.
    os._exit(status)
