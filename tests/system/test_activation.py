# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpd and its sockets are there when somebody needs them, set up as the package ships them."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.system.machine import Machine

MANAGER = ("org.mcpd.Mcp1", "/org/mcpd/Mcp1", "org.mcpd.Mcp1.Manager")


def test_a_call_on_the_system_bus_starts_mcpd(machine: Machine) -> None:
    machine.run("systemctl", "stop", "mcpd.service")
    assert machine.property("mcpd.service", "ActiveState") == "inactive"
    scope = machine.run("busctl", "get-property", *MANAGER, "Scope", user="alice").stdout
    assert scope.strip() == 's "system"'
    assert machine.property("mcpd.service", "ActiveState") == "active"
    pid = machine.property("mcpd.service", "MainPID")
    assert machine.run("ps", "-o", "user=", "-p", pid).stdout.strip() == "mcpd"


def test_a_call_on_the_session_bus_starts_the_users_own_mcpd(machine: Machine) -> None:
    machine.run("systemctl", "--user", "stop", "mcpd.service", user="alice")
    scope = machine.run("busctl", "--user", "get-property", *MANAGER, "Scope", user="alice").stdout
    assert scope.strip() == 's "user"'
    pid = machine.property("mcpd.service", "MainPID", "--user", user="alice")
    assert machine.run("ps", "-o", "user=", "-p", pid).stdout.strip() == "alice"


@pytest.mark.parametrize(
    ("unit", "path", "owner", "group", "mode"),
    [
        ("mcpd-spawn.socket", "/run/mcp/spawn.sock", "mcpd", None, 0o600),
        ("mcpd-build.socket", "/run/mcp/build.sock", "mcpd", None, 0o600),
        ("mcpd-bridge.socket", "/run/mcp/bridge.sock", "root", "mcp", 0o660),
    ],
)
def test_sockets_listen_for_those_they_are_for(
    machine: Machine, unit: str, path: str, owner: str, group: str | None, mode: int
) -> None:
    assert machine.property(unit, "ActiveState") == "active"
    said = machine.run("stat", "-c", "%f %U %G", path).stdout.split()
    assert stat.S_ISSOCK(int(said[0], 16))
    assert stat.S_IMODE(int(said[0], 16)) == mode
    assert said[1] == owner
    assert group in {None, said[2]}
    # Flag 10000 says that it accepts connections.
    assert any(f" {path}" in line and " 00010000 " in line for line in machine.read("/proc/net/unix").splitlines())


def test_presets_decide_what_is_enabled(machine: Machine) -> None:
    def states(*scope: str, user: str) -> dict[str, str]:
        listed = machine.run("systemctl", *scope, "list-unit-files", "--no-legend", "mcpd*.socket", user=user).stdout
        return {line.split()[0]: line.split()[1] for line in listed.splitlines()}

    assert states(user="root") == {
        "mcpd-spawn.socket": "enabled", "mcpd-build.socket": "enabled", "mcpd-bridge.socket": "enabled",
        "mcpd-bridge-tcp.socket": "disabled",
    }  # fmt: skip
    assert states("--user", user="alice") == {"mcpd-bridge.socket": "enabled", "mcpd-bridge-tcp.socket": "disabled"}


def test_nothing_listens_on_the_network(machine: Machine) -> None:
    for table in ("tcp", "tcp6"):
        for line in machine.read(f"/proc/net/{table}").splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            ports = (7411, *(20_000 + machine.uid(user) for user in ("alice", "bob", "carol")))
            assert (state, local.rpartition(":")[2]) not in {("0A", f"{port:04X}") for port in ports}


def test_the_first_connection_starts_the_users_bridge(machine: Machine) -> None:
    assert machine.property("mcpd-bridge.socket", "ActiveState", "--user", user="alice") == "active"
    machine.run("systemctl", "--user", "stop", "mcpd-bridge.service", user="alice")
    code = """
import http.client, os, socket
class Unix(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(os.environ["XDG_RUNTIME_DIR"] + "/mcp/bridge.sock")
bridge = Unix("localhost", timeout=120)
bridge.request("GET", "/health")
print(bridge.getresponse().status)
"""
    assert machine.python(code, "alice").strip() == "200"
    assert machine.property("mcpd-bridge.service", "ActiveState", "--user", user="alice") == "active"


def test_a_second_mcpd_does_not_get_the_name(machine: Machine) -> None:
    machine.run("busctl", "get-property", *MANAGER, "Scope")
    claim = "from dbus_next import Message, BusType; import asyncio; from dbus_next.aio import MessageBus\n"
    claim += "async def main():\n"
    claim += "    bus = await MessageBus(bus_type=BusType.SYSTEM).connect()\n"
    claim += "    try: print(await bus.request_name('org.mcpd.Mcp1'))\n"
    claim += "    except Exception as error: print(error)\n"
    claim += "asyncio.run(main())"
    assert "not allowed to own the service" in machine.python(claim, "alice")
    assert "not allowed to own the service" in machine.python(claim, "mcp-server")
