# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl run``: the command that MCP clients start.

The server gets the standard streams of the client, so no data passes through mcpctl. There are two exceptions: servers
that are used through the bridge, and system servers, which accept only pipes, if the streams are something else.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from mcpd.cli.output import clean, note
from mcpd.cli.spawn import UseBridge, connect_bridge, join, spawned
from mcpd.cli.streams import CLOSED
from mcpd.errors import InvalidArgument, McpdError, NotFound, ServiceUnavailable

if TYPE_CHECKING:
    import argparse

    from mcpd.cli.spawn import Spawned

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run(args: argparse.Namespace) -> int:
    """``mcpctl run``; returns the exit code of the server. SIGTERM, SIGINT and SIGHUP stop it."""
    environment = _environment()
    try:
        return asyncio.run(_direct(args, environment))
    except UseBridge as found:
        return join(connect_bridge(args.id, environment, system=found.system))


async def _direct(args: argparse.Namespace, environment: dict[str, str]) -> int:
    async with AsyncExitStack() as stack:
        server = await _started(stack, args, environment)
        if server.relay is None:
            _release_stdio()
        stopping: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        for number in _FORWARDED:
            loop.add_signal_handler(number, lambda: stopping.add(loop.create_task(_stop(server))))
        code = await server.wait()
        for task in stopping:
            task.cancel()
        if server.relay is not None:
            await asyncio.to_thread(server.relay.drain)
        return code


async def _started(stack: AsyncExitStack, args: argparse.Namespace, environment: dict[str, str]) -> Spawned:
    """Start the server until *stack* is closed.

    Without ``--system``, root gets a server of its own if the system has none of that name or no mcpd, because the
    configurations of clients do not name the scope.
    """
    fds = _standard_fds()
    try:
        return await stack.enter_async_context(spawned(args, args.id, fds, environment))
    except (NotFound, ServiceUnavailable) as error:
        if not args.system or "asks_system" in args:
            raise
        args.system = False
        try:
            return await stack.enter_async_context(spawned(args, args.id, fds, environment))
        except (NotFound, ServiceUnavailable):
            raise error from None


async def _stop(server: Spawned) -> None:
    try:
        await server.stop()
    except McpdError as error:
        note(f"mcpctl: the server was not stopped: {clean(error.message)}")


def _standard_fds() -> dict[int, int]:
    """Return our standard streams for the server; if 2 is missing, its standard error goes to the journal."""
    for fd, name in ((0, "input"), (1, "output")):
        if fd in CLOSED:
            raise InvalidArgument(f"standard {name} is closed, so the server cannot talk to its client")
    return {fd: fd for fd in (0, 1, 2) if fd not in CLOSED}


def _environment() -> dict[str, str]:
    """Return our environment without variables that are not UTF-8, which D-Bus cannot carry.

    mcpd removes variables of the dynamic loader and of the session.
    """
    return {name: value for name, value in os.environ.items() if _is_text(name) and _is_text(value)}


def _is_text(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _release_stdio() -> None:
    """Release our stdin and stdout, so that client and server notice at once when the other one closes them."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
