# SPDX-License-Identifier: LGPL-2.1-or-later
"""The client's side of HTTP/1.1, as little as measuring takes: a general client would cost more than the bridge."""

from __future__ import annotations

import json
import socket
import time
from typing import Any, Final
from urllib.parse import urlsplit

READ_SIZE: Final = 65536
"""Larger reads cost the allocator a mapping each."""
_IN_HEAD: Final = -2
_CHUNKED: Final = -1


class Wrong(Exception):
    """An answer that is not the one to the call, or none."""


class Connection:
    """One connection that is kept alive; *extra* are header lines that go with every request."""

    def __init__(self, url: str, timeout: float = 30) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._path = parts.path
        self._timeout = timeout
        self.extra = b""
        self.sock: socket.socket | None = None
        self.token = b""
        self.reset()

    def connect(self) -> socket.socket:
        """Open it anew."""
        self.close()
        self.sock = socket.create_connection((self._host, self._port), self._timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reset()
        return self.sock

    def close(self) -> None:
        """Close it, if it is open."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None

    def reset(self) -> None:
        """Expect another reply."""
        self.buffer = bytearray()
        self.head = b""
        self.status = 0
        self.arrived = 0.0
        self._need = _IN_HEAD

    def request(self, body: bytes, method: bytes = b"POST", extra: bytes = b"") -> bytes:
        """A request as bytes."""
        form = (
            b"%b %b HTTP/1.1\r\nHost: %b:%d\r\nContent-Type: application/json\r\n"
            b"Accept: application/json, text/event-stream\r\n%b%bContent-Length: %d\r\n\r\n%b"
        )
        return form % (
            method, self._path.encode(), self._host.encode(), self._port, self.extra, extra, len(body), body,
        )  # fmt: skip

    def feed(self, data: bytes) -> bool:
        """Take what came; true once the whole reply is there."""
        if not data:
            raise Wrong(f"the connection was closed in a reply, after {len(self.buffer)} bytes")
        self.buffer += data
        if self._need == _IN_HEAD and not self._read_head():
            return False
        if self._need >= 0:
            return len(self.buffer) >= self._need
        if not self.arrived and self.token and self.token in self.buffer:
            # On a stream the message is there before the end.
            self.arrived = time.perf_counter()
        return self.buffer.endswith(b"\r\n0\r\n\r\n")

    def _read_head(self) -> bool:
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        self.head = bytes(self.buffer[: end + 2])
        self.status = int(self.head[9:12])
        lines = self.head.lower()
        length = lines.find(b"\r\ncontent-length:")
        if self.status == 204:
            self._need = end + 4
        elif length >= 0:
            self._need = end + 4 + int(lines[length + 17 : lines.index(b"\r\n", length + 2)])
        elif b"\r\ntransfer-encoding: chunked" in lines:
            self._need = _CHUNKED
        else:
            raise Wrong(f"a reply without a length: {self.head!r}")
        return True

    def exchange(self, raw: bytes, token: bytes = b"") -> float:
        """Send *raw* and wait for the reply; returns the seconds until the message was there."""
        sock = self.sock or self.connect()
        self.reset()
        self.token = token
        start = time.perf_counter()
        sock.sendall(raw)
        while not self.feed(sock.recv(READ_SIZE)):
            pass
        took = (self.arrived or time.perf_counter()) - start
        if b"\r\nconnection: close" in self.head.lower():
            self.close()
        return took

    def check(self, token: bytes) -> None:
        """Raise :class:`Wrong` unless the reply is a result with *token* in it."""
        found = self.status == 200 and token in self.buffer
        if not found or b'"isError":true' in self.buffer or b'"isError": true' in self.buffer:
            raise Wrong(f"HTTP {self.status}: {bytes(self.buffer[-300:])!r}")

    def message(self) -> dict[str, Any]:
        """The last JSON-RPC message of the reply."""
        raw = bytes(self.buffer[len(self.head) + 2 :])
        if self._need == _CHUNKED:
            raw = _unchunked(raw)
        if b"text/event-stream" in self.head.lower():
            raw = next(
                line[5:] for line in reversed(raw.splitlines()) if line.startswith(b"data:") and line[5:].strip()
            )
        found: dict[str, Any] = json.loads(raw)
        return found


def _unchunked(raw: bytes) -> bytes:
    pieces: list[bytes] = []
    at = 0
    while True:
        end = raw.index(b"\r\n", at)
        size = int(raw[at:end].split(b";")[0], 16)
        if not size:
            return b"".join(pieces)
        pieces.append(raw[end + 2 : end + 2 + size])
        at = end + 4 + size
