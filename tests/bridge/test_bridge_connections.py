# SPDX-License-Identifier: LGPL-2.1-or-later
"""What connections may hold of the bridge, and for how long."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from mcpd.bridge.http import connection as connections
from mcpd.bridge.http.connection import MOST_HEADERS, SLICE, Connection
from tests.bridge.bridge_harness import COMMAND, PATIENCE, Bridge, eventually
from tests.bridge.fuzzing import rss
from tests.bridge.test_pages_http import certificate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

HEAD = b"POST /mcp/s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def connect(bridge: Bridge) -> socket.socket:
    host, port = bridge.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), PATIENCE)


def reply(connection: socket.socket) -> bytes:
    """One reply with a JSON body."""
    data = b""
    while not data.endswith(b"}"):
        piece = connection.recv(4096)
        assert piece, data
        data += piece
    return data


@pytest.fixture
def guarded(start_bridge: Callable[..., Bridge], tmp_path: Path) -> Bridge:
    """A bridge that wants a token."""
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("secret\n")
    return start_bridge("--listen", "127.0.0.1:0", "--token-file", str(token), "--server", f"s={COMMAND}")


def test_a_refused_request_whose_body_never_ends_loses_its_connection(guarded: Bridge) -> None:
    with connect(guarded) as client:
        client.sendall(HEAD % 1_000_000_000)
        assert reply(client).startswith(b"HTTP/1.1 401")
        client.sendall(b"x")
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""


def test_a_refused_request_whose_body_comes_late_keeps_its_connection(guarded: Bridge) -> None:
    with connect(guarded) as client:
        for _ in range(3):
            client.sendall(HEAD % 4)
            assert reply(client).startswith(b"HTTP/1.1 401")
            client.sendall(b"1234")
        client.sendall(HEALTH)
        assert reply(client).startswith(b"HTTP/1.1 200")


def test_connections_leave_descriptors_for_servers(alone: Callable[..., Bridge]) -> None:
    bridge = alone(prefix=["prlimit", "--nofile=64:128"])
    assert bridge.client().open().opened["result"]
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(bridge)) for _ in range(40)]
        refused = 0
        for client in clients:
            try:
                client.sendall(HEALTH)
                reply(client)
            except (OSError, AssertionError):
                refused += 1
        # A quarter of 128, less the one of the session.
        assert refused == 40 - 31
        assert bridge.fds() < 64
    eventually(lambda: bridge.http().get("/health").status_code == 200, "there is room again")


def test_connections_without_a_handshake_leave_descriptors_for_servers(
    alone: Callable[..., Bridge], tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path)
    bridge = alone("--tls-cert", str(cert), "--tls-key", str(key), prefix=["prlimit", "--nofile=64:128"])
    http = bridge.http(
        base_url=bridge.url.replace("127.0.0.1", "localhost"), verify=ssl.create_default_context(cafile=str(cert))
    )
    # The event loop opens a descriptor of its own for its first connection.
    assert http.get("/health", headers={"Connection": "close"}).status_code == 200
    before = bridge.fds()
    host, port = bridge.url.removeprefix("https://").split(":")
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection((host, int(port)), PATIENCE)) for _ in range(128)]
        for client in clients:
            # Those that have a place lose it when they do not begin the handshake in time.
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""
            assert bridge.fds() <= before + 128 // 4
    eventually(lambda: bridge.fds() <= before, "there is room again")
    assert http.get("/health").status_code == 200


def test_a_request_has_a_limited_number_of_headers(guarded: Bridge) -> None:
    for count, status in ((MOST_HEADERS - 4, b"401"), (MOST_HEADERS + 1, b"400")):
        with connect(guarded) as client:
            headers = b"".join(b"X%d:\r\n" % number for number in range(count))
            client.sendall((HEAD % 0)[:-2] + headers + b"\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 " + status)


def test_long_headers_of_strangers_are_not_remembered(guarded: Bridge) -> None:
    guarded.http().get("/health")
    before = rss(guarded.pid)
    for number in range(128):
        kinds = b",".join(b"%x" % kind for kind in range(number, number + 12_000))
        with connect(guarded) as client:
            client.sendall(HEALTH[:-2] + b"Accept: " + kinds + b"\r\n\r\n")
            assert reply(client).startswith(b"HTTP/1.1 200")
    assert rss(guarded.pid) < before + (50 << 20)


async def unread(parts: Sequence[bytes], requests: int) -> tuple[Connection, asyncio.Transport, socket.socket]:
    """A connection, whose client sent *requests* and has read none of the replies, of *parts* each."""

    async def reply_in_parts(_scope: object, _receive: object, send: Callable[..., Any]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(
        reply_in_parts, ws="none", lifespan="off", interface="asgi3", log_config=None, access_log=False
    )
    config.load()
    client, server = socket.socketpair()
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    # Neither a POST to a server nor a limit on connections.
    make = lambda: Connection(config, ServerState(), {}, loop, None, None)  # type: ignore[arg-type] # noqa: E731
    transport, connection = await loop.connect_accepted_socket(make, server)
    await loop.sock_sendall(client, HEALTH * requests)
    async with asyncio.timeout(PATIENCE):
        while not connection.flow.write_paused:
            await asyncio.sleep(0.01)
    return connection, transport, client


@pytest.mark.parametrize("parts", [[bytes(4 << 20)], [bytes(4 << 20), b"more"]], ids=["whole", "in-parts"])
async def test_who_reads_no_reply_loses_the_connection(parts: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "KEEP_ALIVE", 0.1)
    _, transport, client = await unread(parts, 3)
    with client:
        async with asyncio.timeout(PATIENCE):
            while not transport.is_closing():
                await asyncio.sleep(0.01)


async def test_who_reads_a_reply_slowly_keeps_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "KEEP_ALIVE", 0.5)
    _, transport, client = await unread([bytes(4 << 20)], 3)
    loop, size = asyncio.get_running_loop(), 0
    with client:
        while size < 3 * (4 << 20):
            size += len(await loop.sock_recv(client, 1 << 20))
            await asyncio.sleep(0.1)
        assert not transport.is_closing()
        transport.close()


async def test_what_waits_behind_an_unread_reply_is_not_parsed() -> None:
    requests = 4 * SLICE // len(HEALTH)
    connection, transport, client = await unread([bytes(1 << 20)], requests)
    with client:
        assert len(connection.pipeline) <= SLICE // len(HEALTH) + 1
        loop, size = asyncio.get_running_loop(), 0
        async with asyncio.timeout(PATIENCE):
            while size < requests << 20:
                size += len(await loop.sock_recv(client, 1 << 20))
        transport.close()
