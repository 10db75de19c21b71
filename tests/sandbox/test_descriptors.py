# SPDX-License-Identifier: LGPL-2.1-or-later
"""A descriptor from outside gives a server nothing, whichever way it comes."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest
from world import OWNER, Client, World

from mcpd.errors import InvalidArgument
from mcpd.paths import Scope

if TYPE_CHECKING:
    from pathlib import Path

IDLE = "import sys; sys.stdin.read()"


async def _spawn(world: World, scope: Scope, fds: dict[int, int]) -> None:
    world.install("idle", IDLE, scope=scope)
    session = await world.sessions(scope=scope).spawn("idle", fds, owner=OWNER)
    await world.opened[-1].stop(session.number)


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_server_of_the_system_is_started_with_pipes_only(world: World, tmp_path: Path, number: int) -> None:
    client = Client(stderr=True)
    ours, theirs = socket.socketpair()
    with ours, theirs, (tmp_path / "file").open("w") as file:
        for fd in (theirs.fileno(), file.fileno()):
            with pytest.raises(InvalidArgument, match=f"descriptor {number} is neither a pipe nor /dev/null"):
                await _spawn(world, Scope.SYSTEM, client.fds | {number: fd})
    client.close()


async def test_a_server_of_the_system_is_started_with_dev_null(world: World) -> None:
    client, null = Client(), os.open(os.devnull, os.O_RDWR)
    await _spawn(world, Scope.SYSTEM, client.fds | {2: null})
    os.close(null)
    client.close()


async def test_a_users_server_is_not_started_with_a_directory(world: World, tmp_path: Path) -> None:
    client, directory = Client(), os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(InvalidArgument, match="descriptor 2 is a directory"):
        await _spawn(world, Scope.USER, client.fds | {2: directory})
    os.close(directory)
    client.close()


async def test_a_users_server_is_not_started_with_a_socket_on_which_a_descriptor_waits(world: World) -> None:
    client, (ours, theirs) = Client(), socket.socketpair()
    with ours, theirs:
        await _spawn(world, Scope.USER, client.fds | {0: theirs.fileno()})
        socket.send_fds(ours, [b"x"], [client.server_in])
        with pytest.raises(InvalidArgument, match="descriptor 0 is a socket on which descriptors wait"):
            await _spawn(world, Scope.USER, client.fds | {0: theirs.fileno()})
    client.close()
