# SPDX-License-Identifier: LGPL-2.1-or-later
"""Descriptors, keys and set-user-ID files that would lead out of a sandbox."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.system.conversation import install, running

if TYPE_CHECKING:
    from tests.system.machine import Machine

SPAWN_WITH = """
import asyncio, os, socket, sys
from mcpd.bus.client import connect
from mcpd.errors import McpdError

async def main():
    server, kind, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    ours, theirs = socket.socketpair()
    given = os.open("/", os.O_RDONLY) if kind == "directory" else theirs.fileno()
    stdin, stdout = os.pipe(), os.pipe()
    async with connect(system=True) as client:
        try:
            await client.spawn(server, fds={0: stdin[0], 1: stdout[1]} | {number: given})
            print("started")
        except McpdError as error:
            print(error.message)

asyncio.run(main())
"""
LISTEN = """
import os, socket
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0" + "bobs-helper")
listener.listen()
print("listening", flush=True)
peer, _ = listener.accept()
socket.send_fds(peer, [b"x"], [os.open("/", os.O_RDONLY)])
peer.recv(1)
"""
CONNECT = """
import os, socket
sock = socket.socket(socket.AF_UNIX)
try:
    sock.connect("\\0" + "bobs-helper")
    root = socket.recv_fds(sock, 9, 1)[1][0]
    print(os.read(os.open("home/carol/diary", os.O_RDONLY, dir_fd=root), 99))
except PermissionError as error:
    print("denied:", error.strerror)
"""
MODES = """
import os
os.chdir(os.environ["HOME"])
open("shell", "w").close()
for mode in (0o4755, 0o2755):
    try:
        os.chmod("shell", mode)
    except PermissionError:
        print("refused")
os.unlink("shell")
"""
ADD_KEY = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
key = libc.syscall({add_key}, b"user", b"ticket", b"secret", 6, -4)
assert key > 0, ctypes.get_errno()
print(key)
"""
READ_KEY = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
found = ctypes.create_string_buffer(99)
print(libc.syscall({keyctl}, 11, {key}, found, 99), libc.syscall({keyctl}, 10, -4, b"user", b"ticket", 0),
      "ticket" in open("/proc/keys").read() if os.path.exists("/proc/keys") else False)
"""


@pytest.mark.parametrize("kind", ["socket", "directory"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_server_of_the_system_takes_pipes_only(machine: Machine, echo: str, kind: str, number: int) -> None:
    answer = machine.python(SPAWN_WITH, "carol", echo, kind, str(number))
    assert f"descriptor {number} is neither a pipe nor /dev/null" in answer


@pytest.mark.parametrize("user", ["root", "carol"])
def test_a_server_leaves_no_file_that_runs_as_its_user(machine: Machine, echo: str, user: str) -> None:
    if user == "carol":
        install(machine, "own", user)
    with running(machine, "own" if user == "carol" else echo, user) as server:
        assert server.python(MODES) == "refused\nrefused\n"


def test_another_users_directory_opens_nothing_for_a_server_with_the_network(machine: Machine) -> None:
    machine.write("/home/carol/diary", "private", mode=0o600, owner="carol")
    install(machine, "online", "carol", permissions=["network"])
    bob = machine.popen("/usr/bin/python3", "-c", LISTEN, user="bob", stdout=subprocess.PIPE)
    assert bob.stdout
    assert bob.stdout.readline() == b"listening\n"
    with running(machine, "online", "carol") as server:
        assert server.python(CONNECT).startswith("denied: ")


def test_a_server_reads_none_of_its_users_keys(machine: Machine) -> None:
    x86 = machine.run("uname", "-m").stdout.strip() == "x86_64"
    key = machine.python(ADD_KEY.format(add_key=248 if x86 else 217), "carol").strip()
    install(machine, "own", "carol")
    with running(machine, "own", "carol") as server:
        assert server.python(READ_KEY.format(key=key, keyctl=250 if x86 else 219)) == "-1 -1 False\n"
