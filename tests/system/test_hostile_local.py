# SPDX-License-Identifier: LGPL-2.1-or-later
"""Local users, and root as the wrong user, at the sockets that start things."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from mcpd.journal import LEASH_REFUSED

if TYPE_CHECKING:
    from tests.system.machine import Machine

SOCKETS = ["spawn", "build"]

TALK = """
import json, os, pwd, socket, sys, time
path, user, kind, marker = sys.argv[1:]
if user != "root":
    who = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(who.pw_gid)
    os.setuid(who.pw_uid)
line = json.dumps({"v": 1, "id": "x", "argv": ["/usr/bin/touch", marker], "cwd": "/", "env": {}, "permissions": [],
                   "fds": [], "mounts": [], "manifest": None, "confined": False}).encode() + b"\\n"
leash = socket.socket(socket.AF_UNIX)
try:
    leash.connect(path)
except PermissionError:
    sys.exit("not even connected")
try:
    if kind == "half a line":
        leash.sendall(line[:40])
        leash.shutdown(socket.SHUT_WR)
    elif kind == "ten megabytes":
        leash.sendall(b"x" * 10_000_000)
    elif kind == "closed early":
        leash.sendall(line[:40])
        leash.close()
        sys.exit()
    elif kind == "wrong descriptors":
        socket.send_fds(leash, [line], [0, 1, 2])
    elif kind == "a flood of descriptors":
        socket.send_fds(leash, [line], [0] * 200)
    elif kind == "no JSON":
        leash.sendall(b"\\xff" + line)
    elif kind != "nothing at all":
        leash.sendall(line)
except OSError:
    pass
leash.settimeout(120)
answer = b""
try:
    while chunk := leash.recv(65536):
        answer += chunk
except ConnectionResetError:
    pass
print(answer.decode())
"""

KINDS = [
    "half a line", "ten megabytes", "closed early", "wrong descriptors", "a flood of descriptors", "no JSON",
    "nothing at all",
]  # fmt: skip


def refusals(machine: Machine) -> int:
    return len(machine.journal(f"MESSAGE_ID={LEASH_REFUSED}"))


def marker_of(machine: Machine, socket: str) -> str:
    """A file that only something started behind *socket* could make."""
    if socket == "build":
        return "/var/lib/mcp/generations/marker"
    machine.run("install", "-d", "-o", "mcp-server", "/var/lib/mcp/state/hostile")
    return "/var/lib/mcp/state/hostile/marker"


def exists(machine: Machine, path: str) -> bool:
    return machine.run("test", "-e", path, check=False).returncode == 0


def nothing_is_left(machine: Machine, socket: str) -> None:
    units = ("systemctl", "list-units", "--all", "--plain", "--no-legend", f"mcpd-{socket}@*")
    machine.wait_until(lambda: not machine.run(*units).stdout, "no unit is left")
    assert machine.property(f"mcpd-{socket}.socket", "ActiveState") == "active"


def talk(machine: Machine, socket: str, user: str, kind: str) -> str:
    return machine.python(TALK, "root", f"/run/mcp/{socket}.sock", user, kind, marker_of(machine, socket))


@pytest.mark.parametrize("socket", SOCKETS)
def test_mcpd_itself_is_served(machine: Machine, socket: str) -> None:
    assert '"started"' in talk(machine, socket, "mcpd", "a proper line")
    marker = marker_of(machine, socket)
    assert exists(machine, marker)
    machine.run("rm", marker)
    nothing_is_left(machine, socket)


@pytest.mark.parametrize("socket", SOCKETS)
@pytest.mark.parametrize("user", ["alice", "carol", "mcp-server", "mcpd-bridge"])
def test_other_users_cannot_connect(machine: Machine, socket: str, user: str) -> None:
    path = f"/run/mcp/{socket}.sock"
    refused = machine.run("/usr/bin/python3", "-c", TALK, path, user, "a proper line", "/tmp/x", check=False)
    assert "not even connected" in refused.stderr
    assert machine.run("stat", "-c", "%U %a", path).stdout == "mcpd 600\n"


@pytest.mark.parametrize("socket", SOCKETS)
def test_who_gets_past_the_sockets_mode_is_refused(machine: Machine, socket: str) -> None:
    before = refusals(machine)
    answer = json.loads(talk(machine, socket, "root", "a proper line"))
    assert "held by uid 0" in answer["error"]["message"]
    nothing_is_left(machine, socket)
    assert not exists(machine, marker_of(machine, socket))
    assert refusals(machine) == before + 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_launch_is_refused_and_logged_once(machine: Machine, kind: str) -> None:
    before = refusals(machine)
    answer = talk(machine, "spawn", "mcpd", kind)
    machine.wait_until(lambda: refusals(machine) > before, "the refusal is logged")
    nothing_is_left(machine, "spawn")
    assert refusals(machine) == before + 1
    assert not exists(machine, marker_of(machine, "spawn"))
    if kind not in {"closed early", "ten megabytes"}:
        assert json.loads(answer)["error"]["name"] == "SpawnFailed"
    last = machine.journal(f"MESSAGE_ID={LEASH_REFUSED}")[-1]
    assert int(last["CALLER_UID"]) == machine.uid("mcpd")
    assert last["PRIORITY"] == "4"


FLOOD = """
import os, pwd, socket, sys
who = pwd.getpwnam("mcpd")
os.setgid(who.pw_gid)
os.setuid(who.pw_uid)
for _ in range(300):
    leash = socket.socket(socket.AF_UNIX)
    leash.connect("/run/mcp/spawn.sock")
    leash.close()
"""


def test_flood_of_connections_does_not_end_the_socket(machine: Machine, echo: str) -> None:
    machine.python(FLOOD)
    # Each connection has a unit of its own; a start that comes behind them all would wait its turn.
    nothing_is_left(machine, "spawn")
    assert machine.mcpctl("call", echo, "echo", "text=still here", timeout=120).stdout == "still here\n"
    nothing_is_left(machine, "spawn")
    assert not machine.run("systemctl", "--failed", "--plain", "--no-legend").stdout
