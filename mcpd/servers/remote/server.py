# SPDX-License-Identifier: LGPL-2.1-or-later
"""The program ``mcpd-remote``: a stdio server that forwards to a remote server.

It reads the private manifest that every server finds in its working directory, and carries JSON-RPC messages between
its client and the remote server unchanged.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd import __version__
from mcpd.errors import McpdError, from_oserror
from mcpd.model import TransportType
from mcpd.servers.remote.messages import MAX_MESSAGE, error, parse
from mcpd.servers.remote.target import read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcpd.servers.remote.lanes import Lanes
    from mcpd.servers.remote.stdio import Input, Output
    from mcpd.servers.remote.target import Remote

MANIFEST: Final = "manifest.json"
LAST_ANSWERS: Final = 10.0
"""Seconds for pending answers after the end of stdin, unless SIGTERM is received."""
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600

log = logging.getLogger("mcpd-remote")


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until the end of stdin or SIGTERM; return the exit status."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="mcpd-remote: %(message)s")
    try:
        remote = _remote(arguments.manifest_fd)
        asyncio.run(_serve(remote))
    except McpdError as fault:
        print(f"mcpd-remote: {fault.message}", file=sys.stderr)  # noqa: T201 - a usage message
        return fault.exit_code
    # A thread may be blocked by a stdout that nobody reads.
    os._exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcpd-remote",
        description="Connect stdio to the remote MCP server in the manifest.json of the working directory.",
    )
    parser.add_argument("--version", action="version", version=f"mcpd-remote {__version__}", help="print the version")
    parser.add_argument("--manifest-fd", metavar="N", type=int, help="read the manifest from this descriptor")
    return parser


def _remote(fd: int | None) -> Remote:
    try:
        if fd is None:
            return read(Path(MANIFEST).read_bytes(), MANIFEST)
        with os.fdopen(fd, "rb") as file:
            return read(file.read(), "the manifest")
    except OSError as fault:
        raise from_oserror(fault, "reading the manifest") from fault


async def _serve(remote: Remote) -> None:
    from mcpd.servers.remote.stdio import Input, Output  # like the transport, imported only after reading the manifest

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    output = Output(1)
    lanes = _lanes(remote, output)
    feeding = asyncio.create_task(_feed(lanes, Input(0), output))
    stopping = asyncio.create_task(stop.wait())
    ends: set[asyncio.Future[Any]] = {stopping, output.gone}
    await asyncio.wait({feeding, *ends}, return_when=asyncio.FIRST_COMPLETED)
    if feeding.done():
        feeding.result()
        settling = asyncio.create_task(lanes.settled())
        await asyncio.wait({settling, *ends}, timeout=LAST_ANSWERS, return_when=asyncio.FIRST_COMPLETED)
        settling.cancel()
    feeding.cancel()
    stopping.cancel()
    await lanes.close()


def _lanes(remote: Remote, output: Output) -> Lanes:
    """Return the transport to *remote*; only its own libraries are imported."""
    if remote.type is TransportType.STREAMABLE_HTTP:
        from mcpd.servers.remote.streamable import StreamableHttp

        return StreamableHttp(remote, output)
    if remote.type is TransportType.SSE:
        from mcpd.servers.remote.sse import Sse

        return Sse(remote, output)
    from mcpd.servers.remote.websocket import WebSocket

    return WebSocket(remote, output)


async def _feed(lanes: Lanes, client: Input, output: Output) -> None:
    """Carry the client's messages until the end of stdin."""
    async for line in client.lines():
        if not isinstance(line, bytes):
            await output.write(error(None, INVALID_REQUEST, f"a line over {MAX_MESSAGE} bytes was not read"))
            continue
        try:
            messages = parse(line)
        except ValueError as fault:
            await output.write(error(None, PARSE_ERROR, f"a line was no message: {fault}"))
            continue
        for message in messages:
            await lanes.take(message)


if __name__ == "__main__":
    sys.exit(main())
