# SPDX-License-Identifier: LGPL-2.1-or-later
"""A server's stderr, unless the client takes it: logged to the journal, and its last 64 KiB kept."""

from __future__ import annotations

import _socket
import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

TAIL: Final = 64 * 1024
LINES_PER_SECOND: Final = 1000
BYTES_PER_SECOND: Final = 1024 * 1024
MAX_LOG_LINE: Final = 16 * 1024
JOURNAL: Final = "/run/systemd/journal/socket"
LEASH_REFUSED: Final = "d676dce6287345458a17dc9dd63df8bf"
"""Message id, as in :mod:`mcpd.journal`."""


def journal() -> _socket.socket | None:
    """Return a non-blocking connection to the journal; None if there is no journal."""
    found = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
    try:
        found.connect(JOURNAL)
    except OSError:
        found.close()
        return None
    found.setblocking(False)
    return found


def log_refusal(uid: int, message: str) -> None:
    """Log that a request of the user *uid* over the leash was refused."""
    text = " ".join(message.split())
    fields = f"PRIORITY=4\nSYSLOG_IDENTIFIER=mcpd-exec\nMESSAGE_ID={LEASH_REFUSED}\nCALLER_UID={uid}\nMESSAGE={text}\n"
    sock = journal()
    try:
        if sock is None:
            os.write(2, f"mcpd-exec: {text}\n".encode())
        else:
            sock.send(fields.encode())
    except OSError:
        pass


def _takes(fd: int) -> bool:
    """Return whether a short line can be written to *fd* without blocking."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return any(events & select.POLLOUT for _, events in poll.poll(0))


class Stderr:
    """The server's stderr: collects its last 64 KiB, and logs its lines to the journal, with a rate limit.

    Without a journal the lines are written to our own stderr, which is that of mcpd.
    """

    def __init__(self, server_id: str) -> None:
        self.fd, self.writer = os.pipe()
        os.set_blocking(self.fd, False)
        self._tail, self._partial = bytearray(), b""
        self._second, self._lines, self._bytes, self._dropped = 0, 0, 0, 0
        fields = f"PRIORITY=6\nSYSLOG_IDENTIFIER=mcp-server\nMCP_SERVER_ID={server_id}\nMESSAGE="
        self._journal = journal()
        self._head = (fields if self._journal is not None else f"{server_id}: ").encode()

    def pump(self) -> bool:
        """Read the available output; return False once the other end is closed."""
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError:
            return True
        if not data:
            return False
        self._tail += data
        if len(self._tail) > 2 * TAIL:
            del self._tail[:-TAIL]
        *lines, self._partial = (self._partial + data).split(b"\n")
        while len(self._partial) > MAX_LOG_LINE:
            lines.append(self._partial[:MAX_LOG_LINE])
            self._partial = self._partial[MAX_LOG_LINE:]
        for line in lines:
            self._log(line[:MAX_LOG_LINE])
        return True

    def _log(self, line: bytes) -> None:
        second = int(time.monotonic())
        if second != self._second:
            dropped, self._second, self._lines, self._bytes, self._dropped = self._dropped, second, 0, 0, 0
            if dropped:
                self._send(b"mcpd-exec: %d lines of stderr were dropped: the server writes too many" % dropped)
        self._lines += 1
        self._bytes += len(line)
        flood = self._lines > LINES_PER_SECOND or self._bytes > BYTES_PER_SECOND
        if not line or flood or not self._send(line):
            self._dropped += bool(line)

    def _send(self, line: bytes) -> bool:
        try:
            if self._journal is not None:
                self._journal.send(self._head + line + b"\n")
            elif not _takes(2):
                return False
            else:
                os.write(2, (self._head + line)[: select.PIPE_BUF - 1] + b"\n")
        except OSError:
            return False
        return True

    def tail(self) -> str:
        """Return the last 64 KiB, including what is still in the pipe, whose other end a descendant may hold open."""
        for _ in range(64):
            if not self.pump():
                break
        if self._partial:
            self._log(self._partial)
        return self._tail[-TAIL:].decode(errors="replace")

    def close(self) -> None:
        """Close the pipe's reading end and the journal."""
        os.close(self.fd)
        if self._journal is not None:
            self._journal.close()
