# SPDX-License-Identifier: LGPL-2.1-or-later
"""The health check: start a fresh server as clients do, and list its tools.

A second process, beside the first, is asked for the modern era: a server that speaks both eras keeps to the one that it
is first asked in. If the two cannot run at the same time, they run one after the other.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from mcpd import __version__
from mcpd.errors import McpdError, NotFound, Unhealthy
from mcpd.model import check_json
from mcpd.runtime.sessions import Owner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from mcpd.runtime.launch import Exit
    from mcpd.runtime.sessions import Session, Sessions

MAX_BYTES: Final = 4 * 1024 * 1024
"""Bytes that a server may write in total; its tools have to fit into a catalog file."""
MAX_INVALID_LINES: Final = 200
"""Lines that are not JSON-RPC messages, after which the check fails."""


class ConnectionFault(Exception):
    """The server does not speak JSON-RPC, or has closed its stdin or stdout."""


class Refused(Exception):
    """The server answered with an error object."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code


class StdioConnection:
    """A JSON-RPC connection to a server: the client's ends of its stdin and stdout."""

    def __init__(self) -> None:
        stdin_read, self._stdin = os.pipe()
        self._stdout, stdout_write = os.pipe()
        self.fds: Mapping[int, int] = {0: stdin_read, 1: stdout_write}
        """The server's ends, by descriptor number in the server; :meth:`close_server_ends` closes them."""
        self._reader = asyncio.StreamReader(limit=MAX_BYTES)
        self._writer: asyncio.StreamWriter | None = None
        self._transport: asyncio.ReadTransport | None = None
        self._next_id = 0
        self._invalid_lines = 0
        self._received = 0

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._reader), os.fdopen(self._stdout, "rb", buffering=0)
        )
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(self._stdin, "wb", buffering=0)
        )
        self._writer = asyncio.StreamWriter(transport, protocol, None, loop)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close_server_ends()
        if self._writer is not None:
            self._writer.close()
        if self._transport is not None:
            self._transport.close()

    def close_server_ends(self) -> None:
        """Close our copies of the server's ends, once the server has them."""
        for fd in self.fds.values():
            os.close(fd)
        self.fds = {}

    def close_stdin(self) -> None:
        """Close the server's stdin: there are no more requests."""
        if self._writer is not None:
            self._writer.close()

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return its ``result``.

        Raises :class:`Refused` for an error response, and :class:`ConnectionFault` if the server ends or does not write
        JSON-RPC. Other messages are answered or ignored meanwhile.
        """
        self._next_id += 1
        await self._send({"jsonrpc": "2.0", "id": self._next_id, "method": method, "params": params})
        while True:
            message = await self._receive()
            if "method" in message:
                await self._answer(message)
            elif message.get("id") == self._next_id:
                return _result(message)

    async def notify(self, method: str) -> None:
        """Send a notification without parameters."""
        await self._send({"jsonrpc": "2.0", "method": method})

    async def _answer(self, message: Mapping[str, Any]) -> None:
        """Answer a request of the server: a ping, or an error for anything else, as no capability was offered."""
        if "id" not in message:
            return
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if message["method"] == "ping":
            reply["result"] = {}
        else:
            reply["error"] = {"code": -32601, "message": "not available while a server is being installed"}
        await self._send(reply)

    async def _send(self, message: Mapping[str, Any]) -> None:
        if self._writer is None:
            raise RuntimeError("the wire is not connected")
        self._writer.write(json.dumps(message).encode() + b"\n")
        try:
            await self._writer.drain()
        except ConnectionError as error:
            raise ConnectionFault("it closed its stdin") from error

    async def _receive(self) -> dict[str, Any]:
        while True:
            try:
                line = await self._reader.readline()
            except ValueError as error:
                raise ConnectionFault(f"it wrote a line of more than {MAX_BYTES} bytes to its stdout") from error
            self._received += len(line)
            if self._received > MAX_BYTES:
                raise ConnectionFault(f"it wrote more than {MAX_BYTES} bytes to its stdout")
            if not line:
                suffix = f" after {self._invalid_lines} lines that are not JSON-RPC" if self._invalid_lines else ""
                raise ConnectionFault(f"it closed its stdout{suffix}")
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if isinstance(message, dict) and message.get("jsonrpc") == "2.0":
                return message
            if line.strip():
                self._invalid_lines += 1
            if self._invalid_lines > MAX_INVALID_LINES:
                raise ConnectionFault("its stdout is not JSON-RPC; log messages belong on stderr")


def _result(message: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(message.get("result"), dict):
        return dict(message["result"])
    error = message.get("error")
    if isinstance(error, dict):
        code = error.get("code")
        raise Refused(code if isinstance(code, int) else 0, str(error.get("message", ""))[:500])
    raise ConnectionFault("it sent an answer with neither result nor error")


HANDSHAKE: Final = "2025-11-25"
"""Newest revision of the handshake era."""
MODERN: Final = "2026-07-28"
"""Revision of the modern era."""
PROBE_TIMEOUT: Final = 10.0
"""Seconds for an answer in the modern era; no answer means that the server does not speak it."""
CLIENT: Final = {"name": "mcpd", "version": __version__}
MAX_PAGES: Final = 200
MAX_TOOLS: Final = 10_000
"""Tools of one server."""
STDERR_TEXT: Final = 2000
"""Characters of the server's stderr in the error message."""
OWNER_NAME: Final = "mcpd.install"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Protocol:
    """The protocol eras that a server speaks."""

    handshake: str
    """The revision in its answer to ``initialize``; empty for a server of the modern era only."""
    modern: bool

    def to_json(self) -> dict[str, str | bool]:
        """Return the eras as in the lock file."""
        return {"handshake": self.handshake, "modern": self.modern}


@dataclass(frozen=True, slots=True)
class Health:
    """The result of a successful health check."""

    tools: list[dict[str, Any]]
    protocol: Protocol


class HealthCheck:
    """One health check of one server."""

    def __init__(self, sessions: Sessions, server_id: str, owner_uid: int, timeout: float) -> None:
        """*timeout* is in seconds, for all answers of the handshake era."""
        self._sessions = sessions
        self._server_id = server_id
        self._owner = Owner(owner_uid, OWNER_NAME, is_mcpd=True)
        self._timeout = timeout

    async def run(self) -> Health:
        """Start the server and return its tools and protocol.

        Raises :class:`~mcpd.errors.Unhealthy` with the end of the server's stderr, and what
        :meth:`mcpd.runtime.sessions.Sessions.spawn` raises.
        """
        probe = asyncio.create_task(self._ask_modern(list_tools=False))
        try:
            try:
                handshake, tools = await self._handshake_era()
            except Unhealthy as error:
                if not _has_ended(error):
                    raise
                # It may not run twice at a time, for example because it locks a file or listens on a fixed port.
                await asyncio.wait([probe])
                handshake, tools = await self._handshake_era()
            return Health(tools, Protocol(handshake, modern=await self._is_modern(probe)))
        except Refused as refusal:
            # It may speak the modern era only.
            await asyncio.wait([probe])
            found = await self._modern_era(list_tools=True)
            if found is None:
                raise Unhealthy(f"{self._server_id} refused to initialise: {refusal}") from refusal
            return Health(found, Protocol("", modern=True))
        finally:
            probe.cancel()
            await asyncio.gather(probe, return_exceptions=True)

    async def _is_modern(self, probe: asyncio.Task[list[dict[str, Any]] | None]) -> bool:
        """Return whether *probe* found the modern era; ask again if the two processes could not run together."""
        try:
            return await probe is not None
        except McpdError as error:
            if isinstance(error, Unhealthy) and not _has_ended(error):
                return False
        return await self._modern_era(list_tools=False) is not None

    async def _handshake_era(self) -> tuple[str, list[dict[str, Any]]]:
        """Return revision and tools after ``initialize``; raise :class:`Refused` if the server refuses it."""
        refused: Refused | None = None
        async with self._conversation(self._timeout) as wire:
            try:
                answer = await wire.request(
                    "initialize", {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": CLIENT}
                )
            except Refused as error:
                refused = error
            else:
                await wire.notify("notifications/initialized")
                return str(answer.get("protocolVersion", "")), await _list_tools(wire, answer, {})
        raise refused

    async def _modern_era(self, *, list_tools: bool) -> list[dict[str, Any]] | None:
        """As :meth:`_ask_modern`, but return None for an unhealthy server, too."""
        try:
            return await self._ask_modern(list_tools=list_tools)
        except Unhealthy as error:
            log.debug("%s does not speak the modern era: %s", self._server_id, error)
            return None

    async def _ask_modern(self, *, list_tools: bool) -> list[dict[str, Any]] | None:
        """Return the tools (empty unless *list_tools*) of a server of the modern era, None for one that refuses.

        Raises :class:`~mcpd.errors.Unhealthy`.
        """
        meta = {
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientInfo": CLIENT,
                "io.modelcontextprotocol/clientCapabilities": {},
            }
        }
        try:
            async with self._conversation(min(PROBE_TIMEOUT, self._timeout)) as wire:
                answer = await wire.request("server/discover", meta)
                versions = answer.get("supportedVersions")
                if not isinstance(versions, list) or MODERN not in versions:
                    return None
                return await _list_tools(wire, answer, meta) if list_tools else []
        except Refused as error:
            log.debug("%s does not speak the modern era: %s", self._server_id, error)
            return None

    @asynccontextmanager
    async def _conversation(self, timeout: float) -> AsyncIterator[StdioConnection]:  # noqa: ASYNC109 - the message names the server
        async with StdioConnection() as wire:
            session = await self._sessions.spawn(self._server_id, wire.fds, owner=self._owner)
            wire.close_server_ends()
            try:
                async with asyncio.timeout(timeout):
                    yield wire
            except TimeoutError:
                raise await self._unhealthy(session, f"did not answer within {timeout:.0f} s") from None
            except ConnectionFault as fault:
                raise await self._unhealthy(session, f"does not work: {fault}") from fault
            finally:
                wire.close_stdin()
                await self._stop(session)

    async def _unhealthy(self, session: Session, what: str) -> Unhealthy:
        tail = (await self._stop(session)).stderr_tail.strip()[-STDERR_TEXT:]
        return Unhealthy(f"{self._server_id} {what}" + (f"\nThe last it wrote to stderr:\n{tail}" if tail else ""))

    async def _stop(self, session: Session) -> Exit:
        try:
            return await self._sessions.stop(session.number)
        except NotFound:
            return await session.wait()


def _has_ended(error: Unhealthy) -> bool:
    """Return whether the server of *error* ended or did not speak JSON-RPC, rather than staying silent."""
    return isinstance(error.__cause__, ConnectionFault)


async def _list_tools(
    wire: StdioConnection, about: Mapping[str, Any], params: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return all pages of ``tools/list``; empty for a server without the ``tools`` capability that refuses it."""
    tools: list[dict[str, Any]] = []
    cursor: str | None = None
    size = 0
    for _ in range(MAX_PAGES):
        try:
            page = await wire.request("tools/list", {**params, **({"cursor": cursor} if cursor is not None else {})})
        except Refused as error:
            if error.code == -32601 and "tools" not in (about.get("capabilities") or {}):
                return []
            raise ConnectionFault(f"it refused tools/list: {error}") from error
        found = page.get("tools")
        if not isinstance(found, list) or not all(isinstance(tool, dict) and tool.get("name") for tool in found):
            raise ConnectionFault("its answer to tools/list is not a list of tools")
        try:
            check_json(found)
        except ValueError as error:
            raise ConnectionFault(f"its answer to tools/list cannot be kept: {error}") from error
        tools += found
        size += len(json.dumps(found))
        if size > MAX_BYTES:
            raise ConnectionFault(f"its tool definitions are larger than {MAX_BYTES >> 20} MiB")
        cursor = page.get("nextCursor")
        if not cursor:
            return tools
        if len(tools) > MAX_TOOLS:
            break
    raise ConnectionFault(f"it lists more than {MAX_TOOLS} tools, or more than {MAX_PAGES} pages")
