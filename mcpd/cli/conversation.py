# SPDX-License-Identifier: LGPL-2.1-or-later
"""A server that is started for one command, spoken with and ended."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from mcpd.cli.mcp_client import McpClient
from mcpd.cli.spawn import Between, spawned
from mcpd.errors import TimedOut

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator

    from mcpd.cli.mcp_client import Notified
    from mcpd.cli.spawn import Spawned

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
                from mcpd.cli import pump  # noqa: PLC0415 -- few servers need it

                connection = await asyncio.to_thread(pump.connect, server_id, {}, system=found.system)
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
