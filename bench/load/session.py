# SPDX-License-Identifier: LGPL-2.1-or-later
"""Clients of the echo server: over HTTP in either era, and directly on its pipe, which all others are compared with.

Every call carries a token that its answer has to bring back, under an id that other clients of the same load use too.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

from bench.load.wire import READ_SIZE, Connection, Wrong

MODERN: Final = "2026-07-28"
HANDSHAKE: Final = "2025-11-25"
_CLIENT: Final = {"name": "bench", "version": "1"}
_META: Final = "io.modelcontextprotocol/"
_MARK: Final = b"7777777777"
_ID_MARK: Final = 6666666666
_TOKEN: Final = "tok7777777777z"

Maker: TypeAlias = Callable[[int, int], tuple[bytes, bytes]]
"""From the number of a call and its id to the request and the token of its answer."""
FIRST_ID: Final = 1_000_000_000
"""Ids are as long as the mark that stands for them, or lengths would be wrong."""


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _arguments(tool: str, size: int) -> dict[str, Any]:
    arguments: dict[str, dict[str, Any]] = {
        "echo": {"text": _TOKEN + "y" * size},
        "blob": {"size": size, "tag": _TOKEN},
        "count": {"text": "y" * size, "tag": _TOKEN},
    }
    return arguments[tool]


def _maker(raw: bytes) -> Maker:
    """Cut *raw* at its marks, one for the id and one for the token."""
    head, middle = raw.split(b"%d" % _ID_MARK)
    middle, tail = middle.split(_MARK)

    def make(number: int, identity: int) -> tuple[bytes, bytes]:
        token = b"%d" % (FIRST_ID + number)
        return b"".join((head, b"%d" % (FIRST_ID + identity), middle, token, tail)), b"tok%bz" % token

    return make


def has_id(reply: bytes | bytearray, identity: int) -> bool:
    """Whether *reply* is the one to the call with that id."""
    return b'"id":%d' % (FIRST_ID + identity) in reply.replace(b'"id": ', b'"id":')


class Client:
    """A session over HTTP, or in the modern era what stands for one."""

    def __init__(self, url: str, headers: tuple[str, ...] = (), revision: str = HANDSHAKE) -> None:
        self.http = Connection(url)
        self._url = url
        self._base = b"".join(b"%b\r\n" % line.encode() for line in headers)
        self._headers = headers
        self._revision = revision
        self.session = b""
        self.http.extra = self._base + b"MCP-Protocol-Version: %b\r\n" % revision.encode()

    @property
    def is_modern(self) -> bool:
        """Whether it needs no handshake."""
        return self._revision == MODERN

    def open(self) -> Client:
        """Do the handshake, if there is one."""
        if self.is_modern:
            return self
        self.http.extra = self._base
        params = {"protocolVersion": self._revision, "capabilities": {}, "clientInfo": _CLIENT}
        self.http.exchange(self.http.request(_json(_request(0, "initialize", params))))
        if self.http.status != 200:
            raise Wrong(f"initialize: HTTP {self.http.status} {bytes(self.http.buffer[-300:])!r}")
        revision = self.http.message()["result"]["protocolVersion"]
        for line in self.http.head.split(b"\r\n"):
            if line.lower().startswith(b"mcp-session-id:"):
                self.session = line.partition(b":")[2].strip()
        self._set_headers(revision)
        self.http.exchange(self.http.request(b'{"jsonrpc":"2.0","method":"notifications/initialized"}'))
        if self.http.status not in {200, 202, 204}:
            raise Wrong(f"notifications/initialized: HTTP {self.http.status}")
        return self

    def _set_headers(self, revision: str) -> None:
        session = b"Mcp-Session-Id: %b\r\n" % self.session if self.session else b""
        self.http.extra = self._base + session + b"MCP-Protocol-Version: %b\r\n" % revision.encode()

    def another(self) -> Client:
        """Another connection of the same session."""
        other = Client(self._url, self._headers, self._revision)
        other.session = self.session
        other.http.extra = self.http.extra
        return other

    def maker(self, tool: str = "echo", size: int = 0) -> Maker:
        """What makes calls of *tool* with *size* more bytes."""
        params: dict[str, Any] = {"name": tool, "arguments": _arguments(tool, size)}
        extra = b""
        if self.is_modern:
            params["_meta"] = {
                f"{_META}protocolVersion": MODERN,
                f"{_META}clientInfo": _CLIENT,
                f"{_META}clientCapabilities": {},
            }
            extra = b"Mcp-Method: tools/call\r\nMcp-Name: %b\r\n" % tool.encode()
        body = _json(_request(_ID_MARK, "tools/call", params))
        return _maker(self.http.request(body, extra=extra))

    def call(self, raw: bytes, token: bytes) -> float:
        """Make a call; the seconds it took."""
        took = self.http.exchange(raw, token)
        self.http.check(token)
        return took

    def close(self) -> None:
        """End the session."""
        if self.session:
            with suppress(OSError, Wrong):
                self.http.exchange(self.http.request(b"", b"DELETE"))
        self.http.close()


class Direct:
    """The server's own pipe: one write and one read for a call."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        if self._process.stdin is None or self._process.stdout is None:
            raise Wrong("the server has no pipes")
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def open(self) -> Direct:
        """Do the handshake."""
        params = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": _CLIENT}
        self.call(_json(_request(0, "initialize", params)) + b"\n", b'"result"')
        self._stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        return self

    def maker(self, tool: str = "echo", size: int = 0) -> Maker:
        """See :meth:`Client.maker`."""
        params = {"name": tool, "arguments": _arguments(tool, size)}
        return _maker(_json(_request(_ID_MARK, "tools/call", params)) + b"\n")

    def call(self, raw: bytes, token: bytes) -> float:
        """See :meth:`Client.call`."""
        start = time.perf_counter()
        left = memoryview(raw)
        while left:
            left = left[os.write(self._stdin.fileno(), left) :]
        pieces: list[bytes] = []
        while not pieces or pieces[-1][-1:] != b"\n":
            piece = os.read(self._stdout.fileno(), READ_SIZE)
            if not piece:
                raise Wrong("the server ended")
            pieces.append(piece)
        took = time.perf_counter() - start
        if token not in b"".join(pieces):
            raise Wrong("another call's answer")
        return took

    def close(self) -> None:
        """End the server."""
        self._stdin.close()
        self._process.wait(10)
        self._stdout.close()


def _request(identity: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": identity, "method": method, "params": params}
