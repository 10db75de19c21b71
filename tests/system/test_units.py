# SPDX-License-Identifier: LGPL-2.1-or-later
"""The units that are shipped: how little they expose, and what happens when somebody loosens them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.system.conversation import install, running

if TYPE_CHECKING:
    from tests.system.machine import Machine

EXPOSURE = {"mcpd.service": 1.5, "mcpd-spawn@x.service": 3.1, "mcpd-build@x.service": 3.1}
"""At most, as systemd-analyze security rates units."""
DROP_IN = "/run/systemd/system/mcpd-spawn@.service.d/test.conf"

WRITES = """
import os, sys
for place in sys.argv[1:]:
    try:
        os.close(os.open(place + "/probe", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.unlink(place + "/probe")
        print(place)
    except OSError:
        pass
"""


def test_mcpd_itself_writes_its_own_files_only(machine: Machine) -> None:
    machine.mcpctl("list")
    own = ["/etc/mcp/sources.list.d", "/etc/mcp/keys.d", "/var/cache/mcp", "/run/mcp/sessions"]
    own += [f"/var/lib/mcp/{name}" for name in ("installed", "generations", "secrets", "state", "overlay")]
    others = ["/etc/mcp", "/etc", "/usr/share/mcp", "/run/mcp", "/run", "/var/lib", "/home"]
    others += ["/var/lib/mcp", "/var/lib/mcp/tokens"]
    pid = machine.property("mcpd.service", "MainPID")
    place = ("nsenter", "-t", pid, "-m", "setpriv", "--reuid=mcpd", "--regid=mcpd", "--init-groups")
    assert machine.run(*place, "/usr/bin/python3", "-c", WRITES, *own, *others).stdout.splitlines() == own
    groups = machine.run("grep", "^Groups:", f"/proc/{pid}/status").stdout.split()
    assert machine.run("id", "-g", "mcp-server").stdout.strip() in groups
    assert machine.run("id", "-nG", "mcpd").stdout == "mcpd\n"
    replaced = machine.run(*place, "mv", "/var/lib/mcp/tokens", "/var/lib/mcp/state/tokens", check=False)
    assert replaced.returncode != 0
    assert machine.run("stat", "-c", "%U %a", "/var/lib/mcp/secrets").stdout == "mcpd 700\n"


@pytest.mark.parametrize("unit", EXPOSURE)
def test_units_expose_little(machine: Machine, unit: str) -> None:
    machine.mcpctl("list")
    rated = machine.run("systemd-analyze", "security", "--no-pager", unit).stdout
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", rated)
    assert found
    assert float(found[1]) <= EXPOSURE[unit], rated


def test_units_are_in_order(machine: Machine) -> None:
    system = machine.run(
        "sh", "-c", "cd /usr/lib/systemd/system && ls mcpd.service mcpd-*.s* mcpd.slice"
    ).stdout.split()
    units = [unit.replace("@.", "@x.") for unit in system]
    assert len(units) >= 7
    said = machine.run("systemd-analyze", "verify", "--man=no", *units)
    assert "mcp" not in said.stderr
    said = machine.run(
        "systemd-analyze", "verify", "--user", "--man=no", "/usr/lib/systemd/user/mcpd.service", user="alice"
    )
    assert "mcp" not in said.stderr


def test_directory_is_written_where_manifest_and_unit_allow_it(machine: Machine) -> None:
    machine.run("install", "-d", "-o", "mcp-server", "/srv/shared")
    refused = machine.mcpctl("install", "/srv/src/echo", "--id", "writer", "--command", "mcp-echo",
                             "--permission", "filesystem:rw:/srv/shared", "--yes", check=False)  # fmt: skip
    assert refused.returncode == 1
    assert "ReadWritePaths=" in refused.stderr
    machine.write(DROP_IN, "[Service]\nReadWritePaths=/srv/shared\n")
    try:
        machine.run("systemctl", "daemon-reload")
        install(machine, "writer", permissions=["filesystem:rw:/srv/shared"])
        with running(machine, "writer") as server:
            server.python("open('/srv/shared/word', 'w').write('written')")
    finally:
        machine.run("rm", "-r", DROP_IN.rpartition("/")[0])
        machine.run("systemctl", "daemon-reload")
    assert machine.read("/srv/shared/word") == "written"
    machine.mcpctl("remove", "writer")
    machine.run("rm", "-r", "/srv/shared")


LOOSE = """#!/usr/bin/python3 -IS
import os, sys
args = os.read(int(sys.argv[2]), 1 << 20).decode().split("\\0")
args[-4:-4] = ["--ro-bind", "/home", "/home"]
fd = os.memfd_create("args")
os.write(fd, "\\0".join(args).encode())
os.lseek(fd, 0, os.SEEK_SET)
os.set_inheritable(fd, True)
os.execv("/usr/bin/bwrap", ["bwrap", "--args", str(fd), *sys.argv[3:]])
"""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("Environment=PATH=/usr/local/libexec/loose:/usr/bin", "it can see /home"),
        ("RestrictNamespaces=yes", "the sandbox cannot be built"),
        ("User=nobody", "it runs as uid"),
    ],
)
def test_sandbox_that_does_not_hold_starts_nothing(machine: Machine, echo: str, change: str, reason: str) -> None:
    machine.write("/usr/local/libexec/loose/bwrap", LOOSE, 0o755)
    machine.write(DROP_IN, f"[Service]\n{change}\n")
    try:
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "stop", "mcpd.service")
        refused = machine.mcpctl("call", echo, "echo", "text=hello", check=False)
    finally:
        machine.run("rm", "-r", DROP_IN.rpartition("/")[0], "/usr/local/libexec/loose")
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "stop", "mcpd.service")
    assert refused.returncode == 1
    assert reason in refused.stderr
    assert machine.mcpctl("call", echo, "echo", "text=hello").stdout == "hello\n"
