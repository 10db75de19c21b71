# SPDX-License-Identifier: LGPL-2.1-or-later
"""Conversations with servers, for ``mcpctl tools``, ``call`` and ``ensemble run``."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from mcpd.cli.output import note
from mcpd.cli.spawn import UseBridge, connect_bridge, spawned
from mcpd.errors import McpdError, TimedOut
from mcpd.mcp_client import Closed, ConnectionFault, McpClient

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator

    from mcpd.cli.spawn import Spawned
    from mcpd.mcp_client import Notified

_END_GRACE: Final = 2.0
"""Seconds for a server to end by itself."""


@asynccontextmanager
async def conversation(
    args: argparse.Namespace, server_id: str, seconds: float | None, on_notification: Notified | None = None
) -> AsyncIterator[McpClient]:
    """Start *server_id* and yield an initialized client; *seconds* limits the whole block.

    Raises :class:`~mcpd.errors.TimedOut`, and the errors of starting the server and of :class:`McpClient`, of which
    a :class:`~mcpd.mcp_client.ConnectionFault` becomes an :class:`~mcpd.errors.McpdError`.
    """

    def noise(count: int, line: bytes) -> None:
        if count == 1:  # thousands of notes would hide the answer
            note(f"{server_id} wrote something other than a message to its standard output: {line[:80]!r}")

    try:
        async with asyncio.timeout(seconds), AsyncExitStack() as stack:
            server: Spawned | None = None
            try:
                server = await stack.enter_async_context(spawned(args, server_id, {}))
                stdin, stdout = server.ends[0], server.ends[1]
            except UseBridge as found:
                connection = await asyncio.to_thread(connect_bridge, server_id, {}, system=found.system)
                stdin = stdout = connection.detach()
            async with McpClient(
                stdin, stdout, server_id, client="mcpctl", on_notification=on_notification, on_noise=noise
            ) as client:
                await client.initialize()
                yield client
            if server is not None:
                with suppress(TimeoutError):
                    # Its input is closed now. mcpd stops a server that is still running when we disconnect.
                    async with asyncio.timeout(_END_GRACE):
                        await server.wait()
    except Closed:
        raise McpdError(f"{server_id} exited without answering; 'mcpctl logs {server_id}' may show why") from None
    except ConnectionFault as fault:
        raise McpdError(f"{server_id} does not work: {fault}") from fault
    except TimeoutError:
        if seconds is None:
            raise
        more = "; --timeout allows more" if "timeout" in args else ""
        raise TimedOut(f"{server_id} did not answer within {seconds:g} s{more}") from None


async def names_of_tools(args: argparse.Namespace, server_id: str, seconds: float) -> list[str]:
    """Return the names of the tools of *server_id*. Raises the errors of :func:`conversation`."""
    async with conversation(args, server_id, seconds) as client:
        return [str(tool.get("name", "")) for tool in await client.tools()]
