# SPDX-License-Identifier: LGPL-2.1-or-later
"""A server reaches neither the user's display, where it could type what the user can, nor the user's terminals."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import InvalidManifest
from tests.sandbox.world import World, talk

if TYPE_CHECKING:
    from collections.abc import Iterator

SOCKETS = Path("/tmp/.X11-unix")
CONNECT = """
import json, pathlib, socket
with socket.socket(socket.AF_UNIX) as sock:
    try:
        sock.connect(json.loads(pathlib.Path("manifest.json").read_text())["config"]["socket"])
        print("connected")
    except OSError as error:
        print(error.strerror)
"""


@pytest.fixture
def display() -> Iterator[Path]:
    """The socket of something that listens as an X server does."""
    if not SOCKETS.exists():
        # systemd makes it, where it runs.
        SOCKETS.mkdir()
        SOCKETS.chmod(0o1777)
    path = SOCKETS / f"X{secrets.randbelow(1 << 30) + 1000}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield path
    path.unlink()


@pytest.mark.parametrize("permissions", [[], ["network"], ["filesystem:ro:/tmp"]])
async def test_the_socket_of_a_display_is_out_of_reach(world: World, display: Path, permissions: list[str]) -> None:
    world.install("connects", CONNECT, values={"socket": str(display)}, permissions=permissions)
    output, ended, _ = await talk(world.sessions(), "connects")
    assert output == b"No such file or directory\n", ended.stderr_tail


@pytest.mark.parametrize("place", ["", "/{name}"])
async def test_the_socket_of_a_display_cannot_be_granted(world: World, display: Path, place: str) -> None:
    path = f"{SOCKETS}{place.format(name=display.name)}"
    world.install("connects", CONNECT, values={"socket": str(display)}, permissions=[f"filesystem:ro:{path}"])
    with pytest.raises(InvalidManifest, match="never shown to a server"):
        await talk(world.sessions(), "connects")


TERMINALS = """
import os
for directory in ("/dev/pts", "/dev/shm"):
    print(directory, os.listdir(directory))
print("null" in os.listdir("/dev"))
"""


async def test_a_server_with_devices_has_none_of_the_users_terminals(world: World) -> None:
    world.install("looks", TERMINALS, permissions=["devices"])
    ours, theirs = os.openpty()
    output, ended, _ = await talk(world.sessions(), "looks")
    for fd in (ours, theirs):
        os.close(fd)
    assert output.decode().splitlines() == ["/dev/pts []", "/dev/shm []", "True"], ended.stderr_tail
