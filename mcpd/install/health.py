# SPDX-License-Identifier: LGPL-2.1-or-later
"""The health check: start a fresh server as clients do, and list its tools.

A second process, started alongside the first, is asked for the modern era, since a server that speaks both eras keeps
to the era of its first request. If the two cannot run at the same time, they run one after the other.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import McpdError, NotFound, Unhealthy
from mcpd.mcp_client import ConnectionFault, McpClient, Refused, limit_noise
from mcpd.model import check_json
from mcpd.runtime.sessions import Owner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcpd.runtime.launch import Exit
    from mcpd.runtime.sessions import Session, Sessions

MAX_BYTES: Final = 4 * 1024 * 1024
"""Maximum number of bytes that a server may write in total; its tools have to fit into a catalog file."""
PROBE_TIMEOUT: Final = 10.0
"""Seconds to wait for an answer in the modern era; a server that does not answer does not speak it."""
MAX_TOOLS: Final = 10_000
"""Maximum number of tools of one server."""
STDERR_TEXT: Final = 2000
"""Maximum number of characters of the server's stderr in the error message."""
OWNER_NAME: Final = "mcpd.install"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Protocol:
    """The protocol eras that a server speaks."""

    handshake: str
    """The revision in the server's answer to ``initialize``; empty if the server speaks only the modern era."""
    modern: bool

    def to_json(self) -> dict[str, str | bool]:
        """Return the eras in the format of the lock file."""
        return {"handshake": self.handshake, "modern": self.modern}


@dataclass(frozen=True, slots=True)
class Health:
    """The result of a successful health check."""

    tools: list[dict[str, Any]]
    protocol: Protocol


class HealthCheck:
    """One health check of one server."""

    def __init__(self, sessions: Sessions, server_id: str, owner_uid: int, timeout: float) -> None:
        """*timeout* limits the whole conversation in the handshake era, in seconds."""
        self._sessions = sessions
        self._server_id = server_id
        self._owner = Owner(owner_uid, OWNER_NAME, is_mcpd=True)
        self._timeout = timeout

    async def run(self) -> Health:
        """Start the server and return its tools and protocol.

        Raises :class:`~mcpd.errors.Unhealthy` with the end of the server's stderr, and the errors of
        :meth:`mcpd.runtime.sessions.Sessions.spawn`.
        """
        probe = asyncio.create_task(self._ask_modern(list_tools=False))
        try:
            try:
                handshake, tools = await self._handshake_era()
            except Unhealthy as error:
                if not _has_ended(error):
                    raise
                # The server may be unable to run twice at a time, for example because it locks a file or listens on a
                # fixed port.
                await asyncio.wait([probe])
                handshake, tools = await self._handshake_era()
            return Health(tools, Protocol(handshake, modern=await self._is_modern(probe)))
        except Refused as refusal:
            # The server may speak only the modern era.
            await asyncio.wait([probe])
            found = await self._modern_era(list_tools=True)
            if found is None:
                why = f"{refusal.reason} ({refusal.code})"
                raise Unhealthy(f"{self._server_id} refused to initialize: {why}") from refusal
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
        """Return the revision and the tools; raise :class:`Refused` if the server refuses ``initialize``."""
        async with self._conversation(self._timeout) as client:
            return await client.initialize(), await _list_tools(client)

    async def _modern_era(self, *, list_tools: bool) -> list[dict[str, Any]] | None:
        """Like :meth:`_ask_modern`, but also return None for an unhealthy server."""
        try:
            return await self._ask_modern(list_tools=list_tools)
        except Unhealthy as error:
            log.debug("%s does not support the modern era: %s", self._server_id, error)
            return None

    async def _ask_modern(self, *, list_tools: bool) -> list[dict[str, Any]] | None:
        """Return the tools of a modern-era server (empty unless *list_tools*); None if it refuses that era.

        Raises :class:`~mcpd.errors.Unhealthy`.
        """
        try:
            async with self._conversation(min(PROBE_TIMEOUT, self._timeout)) as client:
                if not await client.discover():
                    return None
                return await _list_tools(client) if list_tools else []
        except Refused as error:
            log.debug("%s does not support the modern era: %s", self._server_id, error)
            return None

    @asynccontextmanager
    async def _conversation(self, timeout: float) -> AsyncIterator[McpClient]:  # noqa: ASYNC109 - the message names the server
        stdin, to_server = os.pipe()
        from_server, stdout = os.pipe()
        async with McpClient(
            to_server, from_server, self._server_id, client="mcpd", max_bytes=MAX_BYTES, on_noise=limit_noise
        ) as client:
            try:
                session = await self._sessions.spawn(self._server_id, {0: stdin, 1: stdout}, owner=self._owner)
            finally:
                os.close(stdin)
                os.close(stdout)
            try:
                async with asyncio.timeout(timeout):
                    yield client
            except TimeoutError:
                raise await self._unhealthy(session, f"did not answer within {timeout:.0f} s") from None
            except ConnectionFault as fault:
                raise await self._unhealthy(session, f"does not work: {fault}") from fault
            finally:
                client.close_stdin()
                await self._stop(session)

    async def _unhealthy(self, session: Session, what: str) -> Unhealthy:
        tail = (await self._stop(session)).stderr_tail.strip()[-STDERR_TEXT:]
        return Unhealthy(f"{self._server_id} {what}" + (f"\nIts last output on stderr:\n{tail}" if tail else ""))

    async def _stop(self, session: Session) -> Exit:
        try:
            return await self._sessions.stop(session.number)
        except NotFound:
            return await session.wait()


def _has_ended(error: Unhealthy) -> bool:
    """Return whether the server of *error* ended or did not speak JSON-RPC, rather than staying silent."""
    return isinstance(error.__cause__, ConnectionFault)


async def _list_tools(client: McpClient) -> list[dict[str, Any]]:
    """Return the server's tools; raise :class:`ConnectionFault` if they are refused, invalid or over the limits."""
    try:
        tools = await client.tools()
        check_json(tools)
    except Refused as error:
        raise ConnectionFault(f"it refused tools/list: {error.reason} ({error.code})") from error
    except ValueError as error:
        raise ConnectionFault(f"its response to tools/list cannot be stored: {error}") from error
    if not all(tool.get("name") for tool in tools):
        raise ConnectionFault("it lists a tool without a name")
    if len(tools) > MAX_TOOLS:
        raise ConnectionFault(f"it lists more than {MAX_TOOLS} tools")
    if len(json.dumps(tools)) > MAX_BYTES:
        raise ConnectionFault(f"its tool definitions are larger than {MAX_BYTES >> 20} MiB")
    return tools
