# SPDX-License-Identifier: LGPL-2.1-or-later
"""A small MCP client at message level, for the health check, mcpctl and llm-orc.

It speaks both eras as newline-delimited JSON-RPC over a server's stdin and stdout, and has no client capabilities: no
sampling, roots or elicitation. Unknown fields of results are kept.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from mcpd import __version__
from mcpd.errors import McpdError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HANDSHAKE: Final = "2025-11-25"
"""Newest revision of the handshake era."""
MODERN: Final = "2026-07-28"
"""Revision of the modern era."""
MAX_LINE: Final = 64 * 1024 * 1024
"""Maximum bytes of one message from a server."""
MAX_PAGES: Final = 200
MAX_REASON: Final = 500
"""Maximum characters kept of the message in an error object."""
MAX_NOISE: Final = 200
"""Maximum number of lines that are not JSON-RPC, for :func:`limit_noise`."""
METHOD_NOT_FOUND: Final = -32601

Notified: TypeAlias = "Callable[[str, dict[str, Any]], None]"
"""A callback for notifications, with the method and the parameters."""


class ConnectionFault(Exception):
    """The server does not speak MCP, or ended; the message describes the fault."""


class Closed(ConnectionFault):
    """The server has closed its stdin or stdout."""


class TooMuch(ConnectionFault):
    """The server wrote more than is allowed."""


class Refused(McpdError):
    """The server answered with an error object."""

    def __init__(self, what: str, error: Mapping[str, Any]) -> None:
        """*what* names the server and the method that was refused; *error* is the error object."""
        code = error.get("code")
        self.code = code if isinstance(code, int) else 0
        self.reason = str(error.get("message", ""))[:MAX_REASON]
        super().__init__(f"{what}: {self.reason} (JSON-RPC error {code})")
        self.data = error["data"] if isinstance(error.get("data"), dict) else None


class McpClient:
    """A connection to a server, as an async context manager; :meth:`initialize` or :meth:`discover` comes first."""

    def __init__(
        self,
        to_server: int,
        from_server: int,
        name: str,
        *,
        client: str,
        max_bytes: int | None = None,
        on_notification: Notified | None = None,
        on_noise: Callable[[int, bytes], None] | None = None,
    ) -> None:
        """Take ownership of *to_server* (the server's stdin) and *from_server* (its stdout), which may be one socket.

        *name* identifies the server in error messages; *client* is the name sent to the server. The server may write
        *max_bytes* in total. *on_notification* is called for each notification, *on_noise* for each line that is not
        JSON-RPC, with the number of such lines so far and the line.
        """
        self._fds = (to_server, from_server)
        self._name = name
        self._client = {"name": client, "version": __version__}
        self._max_line = min(MAX_LINE, max_bytes or MAX_LINE)
        self._max_bytes, self._received = max_bytes, 0
        self._on_notification = on_notification
        self._on_noise = on_noise
        self._noise = 0
        self._ids = itertools.count(1)
        self._meta: dict[str, object] = {}
        self.about: dict[str, Any] = {}
        """The server's answer to ``initialize`` or ``server/discover``."""

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        to_server, from_server = self._fds
        if to_server == from_server:
            both = socket.socket(fileno=to_server)
            self._reader, self._writer = await asyncio.open_unix_connection(sock=both, limit=self._max_line)
            self._read: asyncio.BaseTransport = self._writer.transport
            return self
        self._reader = asyncio.StreamReader(limit=self._max_line)
        self._read, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._reader), _file(from_server, "rb")
        )
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.streams.FlowControlMixin(loop=loop), _file(to_server, "wb")
        )
        self._writer = asyncio.StreamWriter(transport, protocol, None, loop)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        self._read.close()

    def close_stdin(self) -> None:
        """Close the server's stdin, which ends the requests."""
        self._writer.write_eof()

    async def initialize(self) -> str:
        """Begin in the handshake era; return the revision that the server chose. Raises like :meth:`request`."""
        self.about = await self.request(
            "initialize", {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": self._client}
        )
        await self._send({"method": "notifications/initialized"})
        return str(self.about.get("protocolVersion", ""))

    async def discover(self) -> bool:
        """Begin in the modern era; return whether the server supports :data:`MODERN`. Raises like :meth:`request`."""
        prefix = "io.modelcontextprotocol"
        self._meta = {
            f"{prefix}/protocolVersion": MODERN,
            f"{prefix}/clientInfo": self._client,
            f"{prefix}/clientCapabilities": {},
        }
        self.about = await self.request("server/discover", {})
        versions = self.about.get("supportedVersions")
        return isinstance(versions, list) and MODERN in versions

    async def tools(self) -> list[dict[str, Any]]:
        """Return all tools from all pages; an empty list if the server lacks the capability and the method."""
        found: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        for _ in range(MAX_PAGES):
            try:
                page = await self.request("tools/list", params)
            except Refused as error:
                if error.code == METHOD_NOT_FOUND and "tools" not in (self.about.get("capabilities") or {}):
                    return []
                raise
            tools = page.get("tools")
            if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
                raise ConnectionFault("its response to tools/list is not a list of tools")
            found += tools
            if not page.get("nextCursor"):
                return found
            params = {"cursor": page["nextCursor"]}
        raise ConnectionFault(f"its tools/list has more than {MAX_PAGES} pages")

    async def call(
        self, tool: str, arguments: Mapping[str, object], *, progress: bool = False, grace: float = 0.0
    ) -> dict[str, Any]:
        """Call *tool* and return its result, which may contain ``isError``.

        With *progress*, ask the server for progress notifications. If the task is cancelled, cancel the call and wait
        up to *grace* seconds for the server to end; the connection cannot be used after that.
        """
        params: dict[str, object] = {"name": tool, "arguments": arguments}
        number = next(self._ids)
        if progress:
            params["_meta"] = {"progressToken": number}
        try:
            return await self._exchange(number, "tools/call", params)
        except asyncio.CancelledError:
            await self._cancel(number, grace)
            raise

    async def request(self, method: str, params: Mapping[str, object]) -> dict[str, Any]:
        """Send a request and wait for its result. Other messages that arrive before it are answered or ignored.

        Raises :class:`Refused` for an error response, and :class:`ConnectionFault` if the server ends or does not write
        JSON-RPC.
        """
        if self._meta:
            params = {**params, "_meta": self._meta}
        return await self._exchange(next(self._ids), method, params)

    async def _exchange(self, number: int, method: str, params: Mapping[str, object]) -> dict[str, Any]:
        await self._send({"id": number, "method": method, "params": params})
        while True:
            message = await self._receive()
            if "method" in message:
                await self._answer(message)
            elif message.get("id") == number:
                if isinstance(error := message.get("error"), dict):
                    raise Refused(f"{self._name}: {method}", error)
                if isinstance(result := message.get("result"), dict):
                    return dict(result)
                raise ConnectionFault(f"its response to {method} contains neither a result nor an error")

    async def _cancel(self, number: int, grace: float) -> None:
        """Cancel request *number*, close the server's stdin, and wait up to *grace* seconds for the server to end."""
        cancelled = {"requestId": number, "reason": "the user interrupted it"}
        with suppress(ConnectionFault, OSError, TimeoutError):
            self._write({"method": "notifications/cancelled", "params": cancelled})
            self.close_stdin()
            async with asyncio.timeout(grace):
                while True:  # until it ends
                    await self._receive()

    async def _answer(self, message: Mapping[str, Any]) -> None:
        """Handle a notification, or answer a request from the server; only ``ping`` is supported."""
        if "id" not in message:
            params = message.get("params")
            if self._on_notification is not None and isinstance(message["method"], str) and isinstance(params, dict):
                self._on_notification(message["method"], params)
        elif message["method"] == "ping":
            await self._send({"id": message["id"], "result": {}})
        else:
            error = {"code": METHOD_NOT_FOUND, "message": f"{self._client['name']} offers nothing to servers"}
            await self._send({"id": message["id"], "error": error})

    async def _send(self, message: Mapping[str, object]) -> None:
        self._write(message)
        try:
            await self._writer.drain()
        except ConnectionError as error:
            raise Closed("it closed its stdin") from error

    def _write(self, message: Mapping[str, object]) -> None:
        self._writer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def _receive(self) -> dict[str, Any]:
        while True:
            try:
                line = await self._reader.readline()
            except ValueError as error:
                raise TooMuch(f"it wrote a line of more than {self._max_line // 1024**2} MiB to its stdout") from error
            except ConnectionError:  # a socket whose other end closed with unread data
                line = b""
            self._received += len(line)
            if self._max_bytes is not None and self._received > self._max_bytes:
                raise TooMuch(f"it wrote more than {self._max_bytes // 1024**2} MiB to its stdout")
            if not line.endswith(b"\n"):
                suffix = f" after {self._noise} lines that are not JSON-RPC" if self._noise else ""
                raise Closed(f"it closed its stdout{suffix}")
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if isinstance(message, dict) and message.get("jsonrpc") == "2.0":
                return message
            if line.strip():
                self._noise += 1
                if self._on_noise is not None:
                    self._on_noise(self._noise, line)


def limit_noise(count: int, _line: bytes) -> None:
    """Raise :class:`TooMuch` if *count* exceeds :data:`MAX_NOISE`; a callback for *on_noise*."""
    if count > MAX_NOISE:
        raise TooMuch("its stdout is not JSON-RPC; log messages belong on stderr")


def _file(fd: int, mode: str) -> Any:
    """Return a file object for *fd*, a pipe or a socket, for the pipe transports of asyncio."""
    if stat.S_ISSOCK(os.fstat(fd).st_mode):
        return socket.socket(fileno=fd)
    return os.fdopen(fd, mode, buffering=0)
