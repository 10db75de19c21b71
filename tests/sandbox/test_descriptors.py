# SPDX-License-Identifier: LGPL-2.1-or-later
"""A descriptor from outside gives a server nothing, whichever way it comes."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import InvalidArgument
from mcpd.paths import Scope
from tests.sandbox.world import OWNER, Client, World, talk

if TYPE_CHECKING:
    from pathlib import Path

IDLE = "import sys; sys.stdin.read()"
OPEN_THROUGH = """
import os
def through(directory):
    for path in ("etc/hostname", "etc/passwd"):
        try:
            print(os.open(path, os.O_RDONLY, dir_fd=directory) and "opened", flush=True)
        except OSError as error:
            print(error.strerror, flush=True)
"""
RECEIVES = OPEN_THROUGH + "import socket; through(socket.recv_fds(socket.socket(fileno=0), 1, 1)[1][0])"
CONNECTS = (
    OPEN_THROUGH
    + """
import json, pathlib, socket
name = json.loads(pathlib.Path("manifest.json").read_text())["config"]["name"]
with socket.socket(socket.AF_UNIX) as sock:
    try:
        sock.connect("\\0" + name)
        through(socket.recv_fds(sock, 1, 1)[1][0])
    except OSError as error:
        print(error.strerror)
"""
)


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


async def test_a_directory_that_a_server_is_sent_later_opens_nothing(world: World) -> None:
    world.install("receives", RECEIVES)
    client, root, (ours, theirs) = Client(), os.open("/", os.O_RDONLY), socket.socketpair()
    session = await world.sessions().spawn("receives", {0: theirs.fileno(), 1: client.server_out}, owner=OWNER)
    theirs.close()
    client.started()
    socket.send_fds(ours, [b"x"], [root])
    assert (await client.read()).decode().splitlines() == ["Permission denied"] * 2
    await session.wait()
    ours.close()
    os.close(root)
    client.close()


async def test_a_directory_that_another_user_offers_over_an_abstract_socket_opens_nothing(world: World) -> None:
    name = f"mcp-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        listener.listen()
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        world.install("connects", CONNECTS, values={"name": name}, permissions=["network"])
        client = Client()
        session = await world.sessions().spawn("connects", client.fds, owner=OWNER)
        client.started()
        accepting = asyncio.create_task(loop.sock_accept(listener))
        reading = asyncio.create_task(client.read())
        await asyncio.wait({accepting, reading}, return_when=asyncio.FIRST_COMPLETED)
        # Where the kernel limits abstract sockets to the domain, the server does not even get there.
        if accepting.done():
            peer, _ = accepting.result()
            root = os.open("/", os.O_RDONLY)
            with peer:
                socket.send_fds(peer, [b"x"], [root])
            os.close(root)
        accepting.cancel()
        output = (await reading).decode().splitlines()
        await session.wait()
    client.close()
    assert set(output) <= {"Permission denied", "Operation not permitted"}
    assert output


async def test_a_file_passed_as_stderr_can_be_opened_again(world: World, tmp_path: Path) -> None:
    world.install("again", "print('said', file=open('/dev/stderr', 'w'))")
    client = Client()
    with (tmp_path / "log").open("w") as log:
        session = await world.sessions().spawn("again", client.fds | {2: log.fileno()}, owner=OWNER)
        client.started()
        await session.wait()
    client.close()
    assert (tmp_path / "log").read_text() == "said\n"


SET_ID = """
import ctypes, os, platform
from pathlib import Path
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"

def attempt(name, number, *arguments):
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    if number is not None and libc.syscall(ctypes.c_long(number), *words) >= 0:
        print(name, "succeeded")

os.chdir(os.environ["HOME"])
Path("file").write_text("x")
fd = os.open("file", os.O_RDWR)
for bit in (0o4755, 0o2755):
    attempt("chmod", 90 if x86 else None, b"file", bit)
    attempt("fchmod", 91 if x86 else 52, fd, bit)
    attempt("fchmodat", 268 if x86 else 53, -100, b"file", bit)
    attempt("fchmodat2", 452, -100, b"file", bit, 0)
    attempt("creat", 85 if x86 else None, b"creat%o" % bit, bit)
    attempt("open", 2 if x86 else None, b"open%o" % bit, os.O_CREAT | os.O_RDWR, bit)
    attempt("openat", 257 if x86 else 56, -100, b"openat%o" % bit, os.O_CREAT | os.O_RDWR, bit)
    attempt("tmpfile", 257 if x86 else 56, -100, b".", os.O_TMPFILE | os.O_RDWR, bit)
    attempt("mknod", 133 if x86 else None, b"mknod%o" % bit, 0o100000 | bit, 0)
    attempt("mknodat", 259 if x86 else 33, -100, b"mknodat%o" % bit, 0o100000 | bit, 0)
    how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_RDWR, bit, 0)
    attempt("openat2", 437, -100, b"openat2%o" % bit, ctypes.byref(how), 24)
    attempt("x32 chmod", 0x40000000 + 90 if x86 else None, b"file", bit)
attempt("io_uring_setup", 425, 1, ctypes.create_string_buffer(120))
attempt("userfaultfd", 323 if x86 else 282, 1)
for path in Path().iterdir():
    if path.stat().st_mode & 0o6000:
        print(path, "has the bit")
os.chmod("file", 0o755)
os.close(os.open("new", os.O_CREAT | os.O_RDWR, 0o750))
print("done")
"""


async def test_a_server_cannot_make_a_set_user_id_file(world: World) -> None:
    world.install("setter", SET_ID)
    output, ended, _ = await talk(world.sessions(), "setter")
    assert output.decode() == "done\n", ended.stderr_tail


KEYS = """
import ctypes, json, os, platform
from pathlib import Path
key = json.loads(Path("manifest.json").read_text())["config"]["key"]
libc = ctypes.CDLL(None, use_errno=True)
add_key, _, keyctl = (248, 249, 250) if platform.machine() == "x86_64" else (217, 218, 219)
found = ctypes.create_string_buffer(64)
READ, SEARCH, LINK, SESSION, USER = 11, 10, 8, -3, -4
if libc.syscall(keyctl, READ, key, found, 64) >= 0:
    print("read by its number")
for ring in (SESSION, USER):
    if libc.syscall(keyctl, SEARCH, ring, b"user", b"mcpd-test", 0) >= 0:
        print("found in", ring)
if libc.syscall(add_key, b"user", b"planted", b"x", 1, USER) >= 0:
    print("added")
if "mcpd-test" in (Path("/proc/keys").read_text() if os.path.exists("/proc/keys") else ""):
    print("listed")
print("done")
"""


async def test_a_server_gets_nothing_of_the_users_keyrings(world: World) -> None:
    import ctypes  # for this test only
    import platform

    add_key, keyctl = (248, 250) if platform.machine() == "x86_64" else (217, 219)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(keyctl, 1, None) < 0:
        pytest.skip("no keyrings here")
    session_keyring = -3
    key = libc.syscall(add_key, b"user", b"mcpd-test", b"TGT-SECRET", 10, session_keyring)
    assert key > 0
    world.install("thief", KEYS, values={"key": key})
    output, ended, _ = await talk(world.sessions(), "thief")
    assert output.decode() == "done\n", ended.stderr_tail
