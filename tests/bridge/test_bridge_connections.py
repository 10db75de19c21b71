# SPDX-License-Identifier: LGPL-2.1-or-later
"""What connections may hold of the bridge, and for how long."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from tests.bridge.bridge_harness import COMMAND, PATIENCE, Bridge, eventually

if TYPE_CHECKING:
    from collections.abc import Callable
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
