# SPDX-License-Identifier: LGPL-2.1-or-later
"""A server on loopback that sends exactly what it is told to, and what the tests of the catalog ask."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from mcpd.catalog import Query

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

    from mcpd.catalog import Catalog
    from mcpd.paths import Paths

DATE = "Thu, 01 Jan 2026 00:00:00 GMT"


def registry(*ids: str, **more: Any) -> bytes:
    entries = [
        {
            "id": server_id,
            "name": server_id.title(),
            "summary": f"About {server_id}",
            "version": "1",
            "transports": [{"type": "sse", "url": "https://example.com/"}],
            **more,
        }
        for server_id in ids
    ]
    return json.dumps({"version": "1.0", "updated": "2026-01-01T00:00:00Z", "servers": entries}).encode()


def answer(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Server:
    """Sends exactly the bytes it is told to."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.hold = asyncio.Event()
        self.base = ""
        self._writers: set[asyncio.StreamWriter] = set()
        self._ended = False

    def end(self) -> None:
        """Let go of every connection: anyio 4.8 leaves one open whose maker is cancelled as it stands."""
        self._ended = True
        self.hold.set()
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        if self._ended:
            writer.close()
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            path = head[0].split(" ")[1]
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            self.requests.append((path, headers))
            data = self.answers.get(path, answer(b"", "404 Not Found"))
            if headers.get("if-none-match") == '"same"' or headers.get("if-modified-since") == DATE.lower():
                data = answer(b"", "304 Not Modified")
            writer.write(data)
            if path == "/slow":
                await self.hold.wait()
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


@asynccontextmanager
async def serving(context: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server()
    listener = await asyncio.start_server(server._serve, "127.0.0.1", 0, ssl=context)
    port = listener.sockets[0].getsockname()[1]
    server.base = f"https://localhost:{port}" if context is not None else f"http://127.0.0.1:{port}"
    try:
        yield server
    finally:
        listener.close()
        server.end()
        await listener.wait_closed()


def sources(paths: Paths, *urls: str) -> None:
    paths.user.sources_list.parent.mkdir(parents=True, exist_ok=True)
    paths.user.sources_list.write_text("\n".join(urls))


def ids(catalog: Catalog) -> list[str]:
    return [found.id for found in catalog.query(Query(), limit=1000)[0]]
