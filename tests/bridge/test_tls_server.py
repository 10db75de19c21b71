# SPDX-License-Identifier: LGPL-2.1-or-later
"""The HTTPS listener on its own."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.bridge.http import tls
from mcpd.bridge.http.listeners import Room
from mcpd.bridge.http.tls import TlsServer
from tests.bridge.bridge_harness import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Greeted(asyncio.Protocol):
    """A connection that only counts."""

    transport: asyncio.BaseTransport | None = None

    def __init__(self, room: Room) -> None:
        self.room = room

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def leave_room(self) -> None:
        self.room.leave(None)


class Listener(socket.socket):
    """A listener without descriptors for as many calls as *shortages* says."""

    shortages = 0

    def accept(self) -> tuple[socket.socket, Any]:
        if self.shortages:
            self.shortages -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


async def until_entered(room: Room, count: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while room.entered < count:
            await asyncio.sleep(0.001)


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    with Listener() as made:
        made.bind(("127.0.0.1", 0))
        made.listen()
        made.setblocking(False)
        yield made


def server(listener: socket.socket, room: Room) -> TlsServer:
    make: Any = lambda: Greeted(room)  # noqa: E731
    return TlsServer(make, listener, ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), room)


async def test_closing_ends_handshakes_and_gives_their_places_back(listener: Listener) -> None:
    room = Room(1, 1)
    made = server(listener, room)
    address = listener.getsockname()
    reader, writer = await asyncio.open_connection(*address)
    await until_entered(room, 1)
    await asyncio.sleep(0)  # the handshake begins
    made.close()
    async with asyncio.timeout(PATIENCE):
        assert await reader.read() == b""
    writer.close()
    assert room.enter(None)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)


async def test_a_shortage_of_descriptors_delays_connections(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "SHORTAGE_PAUSE", 0.01)
    listener.shortages = 2
    room = Room(1, 1)
    made = server(listener, room)
    _, writer = await asyncio.open_connection(*listener.getsockname())
    await until_entered(room, 1)
    assert listener.shortages == 0
    made.close()
    writer.close()


async def test_a_closed_listener_stays_closed_after_a_shortage(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "SHORTAGE_PAUSE", 0.01)
    listener.shortages = 1
    room = Room(1, 1)
    made = server(listener, room)
    _, writer = await asyncio.open_connection(*listener.getsockname())
    async with asyncio.timeout(PATIENCE):
        while listener.shortages:
            await asyncio.sleep(0.001)
    made.close()
    await asyncio.sleep(0.05)
    assert room.entered == 0
    writer.close()


async def test_a_closed_listener_can_be_opened_again(listener: Listener) -> None:
    room = Room(2, 2)
    for count in (1, 2):
        made = server(listener.dup(), room)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        await until_entered(room, count)
        made.close()
        async with asyncio.timeout(PATIENCE):
            assert await reader.read() == b""
        writer.close()
    assert [room.enter(None), room.enter(None)] == [True, True]
