# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpd-remote`` as a process, servers elsewhere that behave, and one that does what a test tells it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.preloaded import python

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

FAR_SERVER = "tests.servers.fixtures.far_server"
PATIENCE = 120.0
MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def initialize(identity: object = 0, version: str = "2025-11-25") -> dict[str, Any]:
    client = {"name": "test", "version": "1"}
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": client}
    return request("initialize", identity, **params)


def request(method: str, identity: object = 1, /, **params: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": identity, "method": method, "params": params}


def call(tool: str, identity: object = 1, /, meta: object = None, **arguments: object) -> dict[str, Any]:
    extra = {} if meta is None else {"_meta": meta}
    return request("tools/call", identity, name=tool, arguments=arguments, **extra)


def answer(identity: object, result: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": identity, "result": result}


def text_of(message: dict[str, Any]) -> str:
    return str(message["result"]["content"][0]["text"])


@dataclass
class Client:
    """The client of a running ``mcpd-remote``."""

    process: asyncio.subprocess.Process
    log: Path

    async def send(self, *messages: object) -> None:
        """Each as a line; bytes as they are."""
        assert self.process.stdin is not None
        for message in messages:
            self.process.stdin.write((message if isinstance(message, bytes) else json.dumps(message).encode()) + b"\n")
        await self.process.stdin.drain()

    async def line(self) -> bytes:
        """The next line as it is."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            line = await self.process.stdout.readline()
        assert line, f"mcpd-remote has ended:\n{self.log.read_text()}"
        return line

    async def receive(self) -> dict[str, Any]:
        """The next message."""
        found = json.loads(await self.line())
        assert isinstance(found, dict)
        return found

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send *message*; the next message that comes."""
        await self.send(message)
        return await self.receive()

    async def greet(self) -> dict[str, Any]:
        """The handshake; the answer to ``initialize``."""
        found = await self.ask(initialize())
        await self.send(INITIALIZED)
        return found

    async def end(self) -> int:
        """Close stdin and await the end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()


@asynccontextmanager
async def remote(
    directory: Path, transport: dict[str, Any], *, environ: dict[str, str] | None = None, **manifest: Any
) -> AsyncIterator[Client]:
    """A running ``mcpd-remote`` for the *transport* of a manifest."""
    found = {"id": "far", "name": "Far", "transports": [transport], **manifest}
    (directory / "manifest.json").write_text(json.dumps(found))
    log = directory / "remote.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            python(), "-I", "-m", "mcpd.servers.remote",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=directory, limit=2**27,
            env={**os.environ, **(environ or {})},
        )  # fmt: skip
    try:
        yield Client(process, log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@contextmanager
def far_server(kind: str, *token: str) -> Iterator[FarServer]:
    """A server of the SDK; with a *token* it lets in only who has it."""
    process = subprocess.Popen([python(), "-m", FAR_SERVER, kind, *token], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield FarServer(f"http://127.0.0.1:{port}/{'sse' if kind == 'sse' else 'mcp'}", process)
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.communicate()


@dataclass
class FarServer:
    """A running server of the SDK."""

    url: str
    process: subprocess.Popen[str]

    def says(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


# ---------------------------------------------------------------------------------------- the scripted server


@dataclass
class Asked:
    """One HTTP request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def message(self) -> dict[str, Any]:
        found = json.loads(self.body)
        assert isinstance(found, dict)
        return found

    async def write(self, data: bytes | str) -> None:
        self.writer.write(data if isinstance(data, bytes) else data.encode())
        await self.writer.drain()

    async def reply(self, status: int = 202, body: bytes | str = b"", **headers: str) -> None:
        """A whole answer; underscores in names of headers become hyphens."""
        data = body if isinstance(body, bytes) else body.encode()
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(data)}", "Connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    async def json(self, message: object, **headers: str) -> None:
        await self.reply(200, json.dumps(message), Content_Type="application/json", **headers)

    async def events(self) -> None:
        """Begin a stream of events, which ends with the connection."""
        await self.write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")

    async def event(self, message: object, **fields: object) -> None:
        lines = [f"{name}: {value}" for name, value in fields.items()]
        await self.write("\n".join([*lines, f"data: {json.dumps(message)}"]) + "\n\n")

    async def gone(self) -> None:
        """Wait until the client lets go of the connection."""
        async with asyncio.timeout(PATIENCE):
            while await self.reader.read(1024):
                pass


@dataclass
class Scripted:
    """A server that answers as the test wants."""

    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    heard: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def transport(self) -> dict[str, Any]:
        return {"type": "streamable-http", "url": f"{self.origin}/mcp"}

    async def until(self, method: str, count: int = 1) -> Asked:
        """The *count*-th request of the HTTP *method*."""

        def found() -> list[Asked]:
            return [asked for asked in self.asked if asked.method == method]

        async with asyncio.timeout(PATIENCE), self.heard:
            await self.heard.wait_for(lambda: len(found()) >= count)
        return found()[count - 1]


@asynccontextmanager
async def scripted(respond: Callable[[Asked], Awaitable[None]]) -> AsyncIterator[Scripted]:
    """A server for which *respond* answers each request; what it leaves open is closed after it."""
    server = Scripted()
    tasks: set[asyncio.Task[None]] = set()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            asked = await _read(reader, writer)
            async with server.heard:
                server.asked.append(asked)
                server.heard.notify_all()
            await respond(asked)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    listening = await asyncio.start_server(connection, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, path, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(method, path, headers, body, reader, writer)


def handshake(respond: Callable[[Asked], Awaitable[None]], session: str = "s-1") -> Callable[[Asked], Awaitable[None]]:
    """Answers what belongs to a session; *respond* gets the other requests."""

    async def inner(asked: Asked) -> None:
        method = asked.message.get("method") if asked.method == "POST" else ""
        if method == "initialize":
            result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
            await asked.json(answer(asked.message["id"], result), Mcp_Session_Id=session)
        elif method == "notifications/initialized" or asked.method == "DELETE":
            await asked.reply(202)
        elif asked.method == "GET" and "last-event-id" not in asked.headers:
            await asked.reply(405)
        else:
            await respond(asked)

    return inner
