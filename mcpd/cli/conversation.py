# SPDX-License-Identifier: LGPL-2.1-or-later
"""A small MCP client at message level, for ``mcpctl tools``, ``call`` and ``ensemble run``.

It speaks the handshake era (newline-delimited JSON-RPC over a server's stdin and stdout) and has no client
capabilities: no sampling, roots or elicitation. Unknown fields of results are kept.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import stat
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from mcpd import __version__
from mcpd.cli.output import note
from mcpd.cli.spawn import UseBridge, connect_bridge, spawned
from mcpd.errors import McpdError, TimedOut, UnknownMethod

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator, Callable, Mapping

    from mcpd.cli.spawn import Spawned

REVISION: Final = "2025-11-25"
MAX_LINE: Final = 64 * 1024 * 1024
"""Bytes of one message from a server."""
MAX_PAGES: Final = 1000
_METHOD_NOT_FOUND: Final = -32601

Notified: TypeAlias = "Callable[[str, dict[str, Any]], None]"
"""A callback for notifications, with the method and the parameters."""


class McpClient:
    """A connection to a server, as an async context manager; entering it does the handshake."""

    def __init__(self, to_server: int, from_server: int, name: str, on_notification: Notified | None = None) -> None:
        """Own the descriptors *to_server* (its stdin) and *from_server* (its stdout), or the one socket that is both.

        *name* is for messages; *on_notification* is called with the notifications of the server.
        """
        self._fds = (to_server, from_server)
        self._on_notification = on_notification
        self._name = name
        self._noisy = False
        self._ids = itertools.count(1)
        self.initialized: dict[str, Any] = {}
        """The server's answer to ``initialize``."""

    async def __aenter__(self) -> Self:
        await self._connect()
        try:
            self.initialized = await self.request(
                "initialize",
                {
                    "protocolVersion": REVISION,
                    "capabilities": {},
                    "clientInfo": {"name": "mcpctl", "version": __version__},
                },
            )
            await self._send({"method": "notifications/initialized"})
        except BaseException:
            self._close()
            raise
        return self

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        to_server, from_server = self._fds
        if to_server == from_server:
            both = socket.socket(fileno=to_server)
            self._reader, self._writer = await asyncio.open_unix_connection(sock=both, limit=MAX_LINE)
            self._read: asyncio.BaseTransport = self._writer.transport
            return
        self._reader = asyncio.StreamReader(limit=MAX_LINE)
        self._read, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._reader), _file(from_server, "rb")
        )
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.streams.FlowControlMixin(loop=loop), _file(to_server, "wb")
        )
        self._writer = asyncio.StreamWriter(transport, protocol, None, loop)

    async def __aexit__(self, *_: object) -> None:
        self._close()

    async def tools(self) -> list[dict[str, Any]]:
        """Return all tools, from all pages."""
        found: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        for _ in range(MAX_PAGES):
            page = await self.request("tools/list", params)
            tools = page.get("tools")
            if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
                raise McpdError(f"{self._name}: the answer to tools/list holds no list of tools")
            found += tools
            if not page.get("nextCursor"):
                return found
            params = {"cursor": page["nextCursor"]}
        raise McpdError(f"{self._name}: tools/list does not end after {MAX_PAGES} pages")

    async def call(
        self, tool: str, arguments: Mapping[str, object], *, progress: bool = False, grace: float = 0.0
    ) -> dict[str, Any]:
        """Call *tool* and return its result, which may have ``isError``.

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
        """Send a request and wait for its result.

        Raises :class:`~mcpd.errors.UnknownMethod` if the server does not know *method*,
        :class:`~mcpd.errors.McpdError` if it answers with another error, ends or does not speak MCP.
        """
        return await self._exchange(next(self._ids), method, params)

    async def _exchange(self, number: int, method: str, params: Mapping[str, object]) -> dict[str, Any]:
        await self._send({"id": number, "method": method, "params": params})
        while True:
            message = await self._receive()
            if "method" in message:
                await self._answer(message)
            elif message.get("id") == number:
                return self._result(method, message)

    async def _cancel(self, number: int, grace: float) -> None:
        """Cancel the request *number*, close our direction, and wait up to *grace* seconds for the server to end."""
        cancelled = {"requestId": number, "reason": "the user has interrupted it"}
        with suppress(McpdError, OSError, TimeoutError):
            self._write({"method": "notifications/cancelled", "params": cancelled})
            self._writer.write_eof()
            async with asyncio.timeout(grace):
                while True:  # until it ends
                    await self._receive()

    def _result(self, method: str, message: Mapping[str, Any]) -> dict[str, Any]:
        error = message.get("error")
        if isinstance(error, dict):
            kind = UnknownMethod if error.get("code") == _METHOD_NOT_FOUND else McpdError
            fault = kind(f"{self._name}: {method}: {error.get('message', '')} (JSON-RPC error {error.get('code')})")
            fault.data = error["data"] if isinstance(error.get("data"), dict) else None
            raise fault
        result = message.get("result")
        if not isinstance(result, dict):
            raise McpdError(f"{self._name}: the answer to {method} holds neither a result nor an error")
        return result

    async def _answer(self, message: Mapping[str, Any]) -> None:
        """Handle a notification, or answer a request of the server: only ``ping`` is supported."""
        if "id" not in message:
            params = message.get("params")
            if self._on_notification is not None and isinstance(message["method"], str) and isinstance(params, dict):
                self._on_notification(message["method"], params)
        elif message["method"] == "ping":
            await self._send({"id": message["id"], "result": {}})
        else:
            error = {"code": _METHOD_NOT_FOUND, "message": "mcpctl offers nothing to servers"}
            await self._send({"id": message["id"], "error": error})

    async def _send(self, message: Mapping[str, object]) -> None:
        self._write(message)
        try:
            await self._writer.drain()
        except ConnectionError:
            raise self._ended() from None

    def _write(self, message: Mapping[str, object]) -> None:
        self._writer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def _receive(self) -> dict[str, Any]:
        while True:
            try:
                line = await self._reader.readline()
            except ValueError:
                raise McpdError(f"{self._name} sent a message of more than {MAX_LINE} bytes") from None
            if not line.endswith(b"\n"):
                raise self._ended()
            if not line.strip():
                continue
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if isinstance(message, dict):
                return message
            if not self._noisy:  # once, as thousands of notes would hide the answer
                note(f"{self._name} wrote something other than a message to its standard output: {line[:80]!r}")
            self._noisy = True

    def _ended(self) -> McpdError:
        return McpdError(f"{self._name} ended without an answer; 'mcpctl logs {self._name}' may say why")

    def _close(self) -> None:
        self._writer.close()
        self._read.close()


def _file(fd: int, mode: str) -> Any:
    """Return a file object for *fd*, a pipe or a socket, for the pipe transports of asyncio."""
    if stat.S_ISSOCK(os.fstat(fd).st_mode):
        return socket.socket(fileno=fd)
    return os.fdopen(fd, mode, buffering=0)


_END_GRACE: Final = 2.0
"""Seconds for a server to end by itself."""


@asynccontextmanager
async def conversation(
    args: argparse.Namespace, server_id: str, seconds: float | None, on_notification: Notified | None = None
) -> AsyncIterator[McpClient]:
    """Start *server_id* and yield an initialized client; all within *seconds*.

    Raises :class:`~mcpd.errors.TimedOut`, and the errors of starting the server and of :class:`McpClient`.
    """
    try:
        async with asyncio.timeout(seconds), AsyncExitStack() as stack:
            server: Spawned | None = None
            try:
                server = await stack.enter_async_context(spawned(args, server_id, {}))
                stdin, stdout = server.ends[0], server.ends[1]
            except UseBridge as found:
                connection = await asyncio.to_thread(connect_bridge, server_id, {}, system=found.system)
                stdin = stdout = connection.detach()
            async with McpClient(stdin, stdout, server_id, on_notification) as client:
                yield client
            if server is not None:
                with suppress(TimeoutError):
                    # Its input is closed now. mcpd stops a server that is still running when we disconnect.
                    async with asyncio.timeout(_END_GRACE):
                        await server.wait()
    except TimeoutError:
        if seconds is None:
            raise
        more = "; --timeout allows more" if "timeout" in args else ""
        raise TimedOut(f"{server_id} did not answer in {seconds:g} s{more}") from None


async def names_of_tools(args: argparse.Namespace, server_id: str, seconds: float) -> list[str]:
    """Return the names of the tools of *server_id*. Raises the errors of :func:`conversation`."""
    async with conversation(args, server_id, seconds) as client:
        return [str(tool.get("name", "")) for tool in await client.tools()]
