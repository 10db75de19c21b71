# SPDX-License-Identifier: LGPL-2.1-or-later
"""What an installed server can see and do on a real machine, and what it leaves behind."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.system.conversation import install, running, sessions

if TYPE_CHECKING:
    from tests.system.machine import Machine

SECRETS = {"TOKEN": "s3cr3t-of-the-environment", "pin": "s3cr3t-of-the-manifest"}
LOOK = """
import json, os, socket
mounts = [line.split() for line in open("/proc/self/mountinfo")]
def takes_writes(path):
    try:
        name = os.path.join(path, "probe")
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.unlink(name)
        return True
    except OSError:
        return False
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
places = ["/home", "/home/alice", "/root", "/var/lib/mcp/secrets", "/var/lib/mcp/tokens", "/var/lib/mcp/state/other",
          "/var/lib/mcp/generations/other", "/run/mcp", "/run/dbus", "/run/systemd", "/etc/shadow", "/etc/mcp", "/sys"]
print(json.dumps({
    "uids": os.getresuid(), "groups": os.getgroups(), "seen": [place for place in places if os.path.lexists(place)],
    "states": os.listdir("/var/lib/mcp/state"), "devices": [name for _, name in socket.if_nameindex()],
    "capabilities": {key: int(status[key], 16) for key in ("CapPrm", "CapEff", "CapBnd", "CapAmb", "CapInh")},
    "no new privileges": int(status["NoNewPrivs"]), "seccomp": int(status["Seccomp"]),
    "writable": sorted({m[4] for m in mounts if os.path.isdir(m[4]) and takes_writes(m[4])}),
    "processes": [int(name) for name in os.listdir("/proc") if name.isdigit()], "net": os.readlink("/proc/self/ns/net"),
}))
"""


OFFER = """
import os
home = os.environ["HOME"]
with open(home + "/offered", "w") as file:
    file.write("private")
    os.chmod(file.fileno(), 0o666)
try:
    os.chmod(home, 0o777)
except PermissionError:
    print("not its own", end=" ")
print(home)
"""


def install_vault(machine: Machine, user: str = "root") -> None:
    """A server with a secret of each kind."""
    properties = [
        {"key": "TOKEN", "sensitive": True, "target": "env"},
        {"key": "pin", "sensitive": True},
    ]
    install(machine, "vault", user, configurableProperties=properties)
    for key, value in SECRETS.items():
        machine.mcpctl("secret", "set", "vault", key, user=user, input=value.encode())


def units_of(machine: Machine, pattern: str, *options: str, user: str = "root") -> list[str]:
    listed = machine.run("systemctl", *options, "list-units", "--all", "--plain", "--no-legend", pattern, user=user)
    return [line.split()[0] for line in listed.stdout.splitlines()]


def no_units(machine: Machine, pattern: str = "mcpd-spawn@*", *options: str, user: str = "root") -> None:
    machine.wait_until(lambda: not units_of(machine, pattern, *options, user=user), f"no {pattern} is left")


def test_server_is_confined(machine: Machine, echo: str) -> None:
    install(machine, "other")
    with running(machine, "other"), running(machine, echo) as server:
        seen = json.loads(server.python(LOOK))
    uid = int(machine.run("id", "-u", "mcp-server").stdout)
    assert seen["uids"] == [uid] * 3
    assert seen["seen"] == []
    assert seen["states"] == [echo]
    assert seen["devices"] == ["lo"]
    assert set(seen["capabilities"].values()) == {0}
    assert seen["no new privileges"] == 1
    assert seen["seccomp"] == 2
    assert seen["writable"] == sorted(["/dev", f"/var/lib/mcp/state/{echo}", "/run/mcp-server", "/tmp", "/var/tmp"])
    assert len(seen["processes"]) <= 3
    assert seen["net"] != machine.run("readlink", "/proc/1/ns/net").stdout.strip()


def test_state_is_the_servers_own_and_stays(machine: Machine, echo: str) -> None:
    with running(machine, echo) as server:
        server.python("open('/var/lib/mcp/state/echo/kept', 'w').write('kept')")
        server.python("open('/tmp/passing', 'w').write('passing')")
    with running(machine, echo) as server:
        text = server.python(
            "import os; print(open('/var/lib/mcp/state/echo/kept').read(), os.path.exists('/tmp/passing'))"
        )
    machine.run("rm", "/var/lib/mcp/state/echo/kept")
    assert text == "kept False\n"
    assert machine.run("stat", "-c", "%U %G %a", "/var/lib/mcp/state/echo").stdout in {
        "mcpd mcp-server 770\n",
        "mcpd mcp-server 2770\n",
    }
    assert machine.run("ls", "/var/lib/mcp/state", user="alice", check=False).returncode != 0


PLANT = """
import os, sys
for minor in range(9, 20):
    site = os.path.expanduser(f"~/.local/lib/python3.{minor}/site-packages")
    os.makedirs(site)
    with open(site + "/usercustomize.py", "w") as file:
        file.write("import os; open(os.path.expanduser('~/leak'), 'a').write(os.environ.get('TOKEN', 'nothing'))")
os.makedirs(os.path.expanduser("~/closed/inner"))
os.chmod(os.path.expanduser("~/closed/inner"), 0o500)
os.chmod(os.path.expanduser("~/closed"), 0)
os.symlink("/var/lib/mcp/state", os.path.expanduser("~/way-out"))
"""


@pytest.mark.parametrize(("user", "state"), [("root", "/var/lib/mcp/state"), ("alice", "/home/alice/.local/state/mcp")])
@pytest.mark.parametrize("keep", [False, True])
def test_code_of_a_removed_server_does_not_get_the_secrets_of_the_next(
    machine: Machine, user: str, state: str, keep: bool
) -> None:
    install(machine, "vault", user)
    with running(machine, "vault", user) as server:
        server.python(PLANT)
    machine.mcpctl("remove", "vault", *(["--keep-config"] if keep else []), user=user)
    left = machine.run("find", state, "-mindepth", "1", "-maxdepth", "1", "-printf", "%f ").stdout.split()
    assert sorted(name for name in left if "vault" in name) == ([".vault~kept", "vault"] if keep else [])
    install_vault(machine, user)
    with running(machine, "vault", user) as server:
        found = server.python("import os; print(os.environ['TOKEN'], sorted(os.listdir(os.path.expanduser('~'))))")
    assert found.startswith(SECRETS["TOKEN"])
    assert ("closed" in found) == keep
    assert "leak" not in found


def test_server_cannot_take_all_memory_or_processes(machine: Machine, echo: str) -> None:
    with running(machine, echo):
        unit = sessions(machine)[0]["unit"]
        limits = {name: int(machine.property(unit, name)) for name in ("MemoryMax", "MemorySwapMax", "TasksMax")}
    assert limits == {"MemoryMax": 4 << 30, "MemorySwapMax": 1 << 30, "TasksMax": 512}


def test_temporary_files_of_a_server_have_a_limit(machine: Machine, echo: str) -> None:
    places = ["/tmp", "/var/tmp", "/run/mcp-server"]
    look = f"import os; print([s.f_blocks * s.f_frsize for s in map(os.statvfs, {places})])"
    with running(machine, echo) as server:
        assert json.loads(server.python(look)) == [1 << 30] * 3


def test_network_is_there_where_it_is_granted(machine: Machine) -> None:
    install(machine, "online", permissions=["network"])
    with running(machine, "online") as server:
        assert (
            server.python("import os; print(os.readlink('/proc/self/ns/net'))")
            == machine.run("readlink", "/proc/1/ns/net").stdout
        )


def test_servers_cannot_reach_one_another(machine: Machine, echo: str) -> None:
    install(machine, "other")
    attack = """
import ctypes, json, os
libc = ctypes.CDLL(None, use_errno=True)
def tried(pid):
    found = []
    for kill in (0, 9):
        try:
            os.kill(pid, kill)
            found.append("signal")
        except OSError:
            pass
    if libc.ptrace(16, pid, 0, 0) == 0:
        found.append("ptrace")
    if os.path.exists(f"/proc/{pid}/environ"):
        found.append("proc")
    return found
print(json.dumps([tried(pid) for pid in PIDS]))
"""
    with running(machine, "other") as victim, running(machine, echo) as server:
        other = next(one for one in sessions(machine) if one["server-id"] == "other")
        pid, main = other["pid"], int(machine.property(other["unit"], "MainPID"))
        assert json.loads(server.python(f"PIDS = [{pid}, {main}, {main + 1}]\n{attack}")) == [[], [], []]
        assert victim.python("print('alive')") == "alive\n"


@pytest.mark.parametrize("place", ["/home/alice", "/tmp"])
def test_system_instance_sees_no_homes(machine: Machine, place: str) -> None:
    mode = machine.run("stat", "-c", "%a", place).stdout.strip()
    machine.run("cp", "-r", "/srv/src/echo", f"{place}/homely")
    machine.run("chmod", "o+rx", place)
    refused = machine.mcpctl("install", f"{place}/homely", "--command", "mcp-echo", "--yes", check=False)
    machine.run("chmod", mode, place)
    machine.run("rm", "-r", f"{place}/homely")
    assert refused.returncode == 1
    assert f"{place}/homely cannot be read by the system's mcpd" in refused.stderr


PROCESSES = """
import os
for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
    try:
        command = open(f"/proc/{pid}/cmdline", "rb").read()
        print(pid, command)
        # Its own environment is where a server finds a secret with the target env.
        if b"mcp-echo" not in command or b"bwrap" in command:
            print(open(f"/proc/{pid}/environ", "rb").read())
    except OSError:
        pass
"""
FILES = """
cat /run/systemd/transient/* /run/user/*/systemd/transient/* /run/mcp/sessions/* /run/user/*/mcp/sessions/* \\
    /var/lib/mcp/generations/vault/*/manifest.json /home/*/.local/share/mcp/generations/vault/*/manifest.json \\
    2>/dev/null
true
"""


def everything_told(machine: Machine, *options: str, user: str = "root") -> dict[str, str]:
    """All that systemd, mcpd and /proc tell about what runs, without looking into the server's own process."""
    bus = "--user" if options else "--system"
    mcpd = ("busctl", bus, "--json=short", "call", "org.mcpd.Mcp1", "/org/mcpd/Mcp1", "org.mcpd.Mcp1.Manager")
    return {
        "properties": machine.run("systemctl", *options, "show", "*", "--all", user=user).stdout,
        "files": machine.run("/bin/sh", "-c", FILES).stdout,
        "processes": machine.python(PROCESSES),
        "processes as others see them": machine.python(PROCESSES, "bob"),
        "journal": json.dumps(machine.journal()),
        **{
            method: machine.run(*mcpd, method, *arguments, user=user).stdout
            for method, *arguments in (("GetServer", "s", "vault"), ("GetConfig", "s", "vault"), ("ListSessions",))
        },
    }


@pytest.mark.parametrize(("user", "options"), [("root", ()), ("alice", ("--user",))])
def test_secrets_reach_the_server_and_nobody_else(machine: Machine, user: str, options: tuple[str, ...]) -> None:
    install_vault(machine, user)
    with running(machine, "vault", user) as server:
        found = server.python(
            "import json, os; print(os.environ['TOKEN'], json.load(open('manifest.json'))['config']['pin'])"
        )
        told = everything_told(machine, *options, user=user)
    assert found.split() == list(SECRETS.values())
    assert "vault" in told["ListSessions"]
    assert "TOKEN" in told["GetConfig"]
    assert [(where, key) for where, text in told.items() for key, value in SECRETS.items() if value in text] == []


def test_stderr_is_in_the_journal_under_the_servers_id(machine: Machine, echo: str) -> None:
    machine.mcpctl("call", echo, "stderr", "text=a word\nand another")
    entries = machine.journal(f"MCP_SERVER_ID={echo}", "SYSLOG_IDENTIFIER=mcp-server")[-2:]
    assert [entry["MESSAGE"] for entry in entries] == ["a word", "and another"]
    assert all(entry["_SYSTEMD_UNIT"].startswith("mcpd-spawn@") for entry in entries)


def test_unit_says_which_server_it_is(machine: Machine, echo: str) -> None:
    with running(machine, echo):
        session = sessions(machine)[0]
        status = machine.property(session["unit"], "StatusText")
        group = machine.property(session["unit"], "ControlGroup")
    assert status == f"{echo}, process {session['pid']}"
    assert group == f"/mcpd.slice/mcpd-servers.slice/{session['unit']}"


def test_users_server_is_a_unit_of_the_users_manager(machine: Machine) -> None:
    install(machine, "mine", "alice")
    with running(machine, "mine", "alice") as server:
        session = sessions(machine, "alice")[0]
        group = machine.property(session["unit"], "ControlGroup", "--user", user="alice")
        seen = json.loads(server.python(LOOK.replace("/var/lib/mcp/state", "/home/alice/.local/state/mcp")))
    assert re.fullmatch(r".*/app\.slice/app-mcp\.slice/mcp-mine-[0-9a-f]+\.service", group)
    assert seen["uids"] == [machine.uid("alice")] * 3
    assert set(seen["seen"]) <= {"/home", "/home/alice"}
    assert seen["states"] == ["mine"]
    assert seen["devices"] == ["lo"]
    assert "/home/alice" not in seen["writable"]
    no_units(machine, "mcp-mine-*", "--user", user="alice")


MANY = """
import asyncio, os, sys
from mcpd.bus.connection import Connection, bus_address

async def one(connection, limit):
    async with limit:
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        where = ("org.mcpd.Mcp1", "/org/mcpd/Mcp1", "org.mcpd.Mcp1.Manager", "Spawn", "sa{uh}ta{sv}")
        reply = await connection.call(*where, [sys.argv[1], {0: 0, 1: 1}, 0, {}], fds=[theirs_in, theirs_out])
        reply.fds.close()
        for fd in (theirs_in, theirs_out, ours_in, ours_out):
            os.close(fd)

async def main():
    async with await Connection.open(bus_address(system=True)) as connection:
        limit = asyncio.Semaphore(8)
        await asyncio.gather(*(one(connection, limit) for _ in range(int(sys.argv[2]))))

asyncio.run(main())
"""


def left_behind(machine: Machine) -> dict[str, Any]:
    """What a leak would show in."""
    fds = f"/proc/{machine.property('mcpd.service', 'MainPID')}/fd"
    return {
        "units": units_of(machine, "mcpd-*@*"),
        "processes": machine.run("ps", "-u", "mcp-server", "-o", "args=", check=False).stdout,
        "descriptors": len(machine.run("ls", fds).stdout.split()),
        "stored": machine.property("mcpd.service", "NFileDescriptorStore"),
        "mounts": machine.python("print(len(open('/proc/1/mountinfo').readlines()))"),
        "records": machine.run("ls", "/run/mcp/sessions").stdout,
        "directories": machine.run("ls", "/tmp", "/var/tmp", "/var/lib/mcp", "/var/lib/mcp/state", "/run/mcp").stdout,
        "sessions": machine.mcpctl("ps", "--json").stdout,
    }  # fmt: skip


def test_three_hundred_spawns_and_hang_ups_leave_nothing(machine: Machine, echo: str) -> None:
    machine.python(MANY, "root", echo, "4")
    no_units(machine)
    before = left_behind(machine)
    machine.run("/usr/bin/python3", "-c", MANY, echo, "300", timeout=150)
    no_units(machine)
    machine.wait_until(lambda: left_behind(machine) == before, f"all is as before: {before}")


def test_killed_mcpd_exec_takes_all_with_it(machine: Machine, echo: str) -> None:
    no_units(machine)
    before = left_behind(machine)
    with running(machine, echo) as server:
        unit = sessions(machine)[0]["unit"]
        machine.run("kill", "-KILL", machine.property(unit, "MainPID"))
        assert server.program.stdout
        assert server.program.stdout.read() == b""
    no_units(machine)
    machine.wait_until(lambda: left_behind(machine) == before, f"all is as before: {before}")


def test_a_server_cannot_offer_its_state_to_other_users(machine: Machine) -> None:
    install(machine, "generous", "carol")
    with running(machine, "generous", "carol") as server:
        state = server.python(OFFER).strip()
    places = ("/home/carol", "/home/carol/.local", "/home/carol/.local/state")
    modes = machine.run("stat", "--format=%a", *places).stdout.split()
    machine.run("chmod", "a+rx", *places)
    assert machine.run("cat", f"{state}/offered", user="carol").stdout == "private"
    assert "Permission denied" in machine.run("cat", f"{state}/offered", user="bob", check=False).stderr
    for mode, place in zip(modes, places, strict=True):
        machine.run("chmod", mode, place)


def test_a_server_of_the_system_cannot_offer_its_state_to_users(machine: Machine, echo: str) -> None:
    with running(machine, echo) as server:
        said, _, state = server.python(OFFER).strip().rpartition(" ")
    assert said == "not its own"
    assert machine.run("cat", f"{state}/offered").stdout == "private"
    assert "Permission denied" in machine.run("cat", f"{state}/offered", user="bob", check=False).stderr


def test_no_server_gets_the_users_service_manager(machine: Machine) -> None:
    asked = {"id": "manager", "name": "m", "transports": [{"type": "stdio", "command": "mcp-echo"}],
             "source": {"type": "git", "url": "file:///srv/git/echo"},
             "permissions": ["session-bus:talk:org.freedesktop.systemd1"]}  # fmt: skip
    machine.write("/tmp/manager.json", json.dumps(asked), owner="carol")
    refused = machine.mcpctl("install", "/tmp/manager.json", "--yes", user="carol", check=False)
    assert refused.returncode == 1
    assert "is never granted: org.freedesktop.systemd1 starts any program as the user" in refused.stderr
