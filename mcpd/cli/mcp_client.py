# SPDX-License-Identifier: LGPL-2.1-or-later
"""A small MCP client at message level, for ``mcpctl tools``, ``call`` and ``ensemble run``.

It speaks the handshake era (newline-delimited JSON-RPC over a server's stdin and stdout) and offers a server
nothing: no sampling, no roots, no elicitation. Unknown fields of results are kept.
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
from mcpd.cli.spawn import Between, spawned
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
"""Takes the method and the parameters of a notification, which are as the server sent them."""


class McpClient:
    """One conversation with a server. An async context manager; entering it shakes hands."""

    def __init__(self, to_server: int, from_server: int, name: str, on_notification: Notified | None = None) -> None:
        """Own the descriptors *to_server* (its stdin) and *from_server* (its stdout), or the one socket that is both.

        *name* is for messages; *on_notification* hears what the server tells unasked.
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
        """All tools, page by page."""
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
        """Call *tool*; its result, whatever that says.

        With *progress* the server is asked to tell how far it is. If the task is cancelled so is the call, after which
        the server has *grace* seconds to come to an end; there is no conversation any more then.
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
        """Cancel the request *number*, say that nothing more comes, and let the server end within *grace* seconds."""
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
        """Answer a request of the server: we are there, and can do nothing else."""
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
            if not self._noisy:  # one line tells whoever wrote the server, thousands would hide the answer
                note(f"{self._name} wrote to its standard output what is no message: {line[:80]!r}")
            self._noisy = True

    def _ended(self) -> McpdError:
        return McpdError(f"{self._name} ended without an answer; 'mcpctl logs {self._name}' may say why")

    def _close(self) -> None:
        self._writer.close()
        self._read.close()


def _file(fd: int, mode: str) -> Any:
    """What asyncio's pipe transports take for *fd*, which is a pipe or a socket."""
    if stat.S_ISSOCK(os.fstat(fd).st_mode):
        return socket.socket(fileno=fd)
    return os.fdopen(fd, mode, buffering=0)


_END_GRACE: Final = 2.0
"""Seconds that a server may take to end by itself."""


@asynccontextmanager
async def conversation(
    args: argparse.Namespace, server_id: str, seconds: float | None, on_notification: Notified | None = None
) -> AsyncIterator[McpClient]:
    """*server_id*, started and greeted; everything within *seconds*.

    Raises :class:`~mcpd.errors.TimedOut`, what starting it raises and what :class:`McpClient` raises.
    """
    try:
        async with asyncio.timeout(seconds), AsyncExitStack() as stack:
            server: Spawned | None = None
            try:
                server = await stack.enter_async_context(spawned(args, server_id, {}))
                stdin, stdout = server.ends[0], server.ends[1]
            except Between as found:
                from mcpd.cli import spawn  # noqa: PLC0415 -- few servers need it

                connection = await asyncio.to_thread(spawn.connect_bridge, server_id, {}, system=found.system)
                stdin = stdout = connection.detach()
            async with McpClient(stdin, stdout, server_id, on_notification) as client:
                yield client
            if server is not None:
                with suppress(TimeoutError):
                    # Its input is closed now. A server that does not end by itself is stopped when we leave the bus.
                    async with asyncio.timeout(_END_GRACE):
                        await server.wait()
    except TimeoutError:
        if seconds is None:
            raise
        more = "; --timeout gives it more" if "timeout" in args else ""
        raise TimedOut(f"{server_id} did not answer in {seconds:g} s{more}") from None


async def names_of_tools(args: argparse.Namespace, server_id: str, seconds: float) -> list[str]:
    """Return what *server_id* calls its tools. Raises as :func:`conversation`."""
    async with conversation(args, server_id, seconds) as client:
        return [str(tool.get("name", "")) for tool in await client.tools()]
