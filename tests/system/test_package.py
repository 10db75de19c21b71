# SPDX-License-Identifier: LGPL-2.1-or-later
"""The packages on a booted system: what they install, and what an upgrade, a removal and a purge leave."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

import pytest

from tests.system.image import DEBS, PROJECT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.system.machine import Inside, Machine

PLACES: Final = """
/usr/libexec/mcpd root:root 755
/usr/bin/mcpctl root:root 755
/usr/bin/mcpd-bridge root:root 755
/usr/lib/systemd/system/mcpd.service root:root 644
/usr/lib/systemd/system/mcpd-bridge.service root:root 644
/usr/lib/systemd/system/mcpd-bridge.socket root:root 644
/usr/lib/systemd/system/mcpd-bridge-tcp.socket root:root 644
/usr/lib/systemd/system/mcpd-spawn.socket root:root 644
/usr/lib/systemd/system/mcpd-spawn@.service root:root 644
/usr/lib/systemd/system/mcpd-build.socket root:root 644
/usr/lib/systemd/system/mcpd-build@.service root:root 644
/usr/lib/systemd/system/mcpd.slice root:root 644
/usr/lib/systemd/system-preset/90-mcpd.preset root:root 644
/usr/lib/systemd/user/mcpd.service root:root 644
/usr/lib/systemd/user/mcpd-bridge.service root:root 644
/usr/lib/systemd/user/mcpd-bridge.socket root:root 644
/usr/lib/systemd/user/mcpd-bridge-lost.service root:root 644
/usr/lib/sysusers.d/mcpd.conf root:root 644
/usr/lib/tmpfiles.d/mcpd.conf root:root 644
/usr/share/dbus-1/system.d/org.mcpd.Mcp1.conf root:root 644
/usr/share/dbus-1/system-services/org.mcpd.Mcp1.service root:root 644
/usr/share/dbus-1/services/org.mcpd.Mcp1.service root:root 644
/usr/share/dbus-1/interfaces/org.mcpd.Mcp1.Manager.xml root:root 644
/usr/share/dbus-1/interfaces/org.mcpd.Mcp1.Server.xml root:root 644
/usr/share/dbus-1/interfaces/org.mcpd.Mcp1.Job.xml root:root 644
/usr/share/dbus-1/interfaces/org.mcpd.Mcp1.Session.xml root:root 644
/usr/share/polkit-1/actions/org.mcpd.mcp1.policy root:root 644
/usr/share/polkit-1/rules.d/org.mcpd.mcp1.rules root:root 644
/usr/share/metainfo/org.mcpd.mcpd.metainfo.xml root:root 644
/usr/share/mcp/registry.json root:root 644
/usr/share/man/man1/mcpctl.1.gz root:root 644
/usr/share/man/man5/mcpd.toml.5.gz root:root 644
/usr/share/man/man5/mcp-manifest.5.gz root:root 644
/usr/share/man/man5/mcp-sources.list.5.gz root:root 644
/usr/share/man/man5/org.mcpd.Mcp1.5.gz root:root 644
/usr/share/man/man8/mcpd.8.gz root:root 644
/usr/share/man/man8/mcpd-bridge.8.gz root:root 644
/usr/share/bash-completion/completions/mcpctl root:root 644
/usr/share/zsh/vendor-completions/_mcpctl root:root 644
/usr/share/fish/vendor_completions.d/mcpctl.fish root:root 644
/etc/mcp root:root 755
/etc/mcp/sources.list root:root 644
/etc/mcp/sources.list.d mcpd:mcpd 755
/etc/mcp/keys.d mcpd:mcpd 755
/var/cache/mcp mcpd:mcpd 755
/var/lib/mcp root:root 755
/var/lib/mcp/installed mcpd:mcpd 755
/var/lib/mcp/generations mcpd:mcpd 755
/var/lib/mcp/secrets mcpd:mcpd 700
/var/lib/mcp/tokens mcpd-bridge:mcpd-bridge 700
/run/mcp root:root 755
/run/mcp/sessions mcpd:mcpd 700
/run/mcp/spawn.sock mcpd:mcpd 600
/run/mcp/build.sock mcpd:mcpd 600
/run/mcp/bridge.sock root:mcp 660
/run/mcp/stdio.sock root:mcp 660
"""
SOCKETS: Final = ("mcpd-spawn.socket", "mcpd-build.socket", "mcpd-bridge.socket")
SERVER: Final = """
import os

import mcpd.model
from mcp.server.mcpserver import MCPServer

app = MCPServer("sdk")


@app.tool()
def who() -> str:
    return f"{os.getuid()} {os.access('/etc/mcp', os.F_OK)} {os.access('/home/alice', os.F_OK)}"


app.run("stdio")
"""
CLIENTS: Final = {"cursor": ".cursor/mcp.json", "codex": ".codex/config.toml", "goose": ".config/goose/config.yaml"}
"""A client for each format of files, and its file below the home directory."""
MANIFEST: Final = """{
  "id": "sdk", "name": "SDK", "version": "1",
  "transports": [{
    "type": "stdio", "command": "/usr/lib/mcpd-servers/bin/python", "args": ["/usr/share/mcp/servers/sdk/server.py"]
  }]
}"""


pytestmark = pytest.mark.skipif(os.environ.get("MCPD_SYSTEM_FROM") == "tree", reason="there are no packages")


def packages() -> list[Path]:
    """What ``make deb`` left, which the machines have installed."""
    return sorted(DEBS.glob("*.deb"))


def carry(machine: Machine, debs: list[Path]) -> list[str]:
    """Copy *debs* into *machine* and return where they are."""
    for deb in debs:
        shutil.copy(deb, machine.root / "root")
    return [f"/root/{deb.name}" for deb in debs]


def bumped(deb: Path, directory: Path) -> Path:
    """*deb* again, one version higher."""
    tree = directory / deb.stem
    subprocess.run(["dpkg-deb", "--raw-extract", str(deb), str(tree)], check=True)
    control = tree / "DEBIAN/control"
    text, count = re.subn(r"^(Version: .*)$", r"\1+next", control.read_text(), flags=re.MULTILINE)
    assert count == 1
    control.write_text(text)
    made = directory / f"{deb.stem}-next.deb"
    pack = ("dpkg-deb", "--build", "--root-owner-group", "-Znone")
    subprocess.run([*pack, str(tree), str(made)], check=True, capture_output=True)
    return made


def ping(client: Inside, number: int) -> object:
    """Send a ping to the server that *client* runs, and return the id of its answer."""
    assert client.stdin
    assert client.stdout
    client.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": "ping"}).encode() + b"\n")
    client.stdin.flush()
    return json.loads(client.stdout.readline())["id"]


def test_everything_has_its_place_owner_and_mode(machine: Machine) -> None:
    paths = [line.split()[0] for line in PLACES.split("\n") if line]
    done = machine.run("stat", "--format=%n %U:%G %a", *paths, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [line for line in PLACES.split("\n") if line]


def test_installed_is_a_link_to_the_state(machine: Machine) -> None:
    assert machine.run("readlink", "/usr/share/mcp/installed").stdout.strip() == "/var/lib/mcp/installed"


def test_files_are_those_of_the_packages(machine: Machine) -> None:
    assert machine.run("dpkg", "--verify", "mcpd", "mcpd-servers").stdout == ""
    assert machine.run("dpkg", "--audit").stdout == ""


def test_mcpd_recommends_the_bundled_servers_and_npm(machine: Machine) -> None:
    recommended = machine.run("dpkg-query", "--show", "--showformat=${Recommends}", "mcpd").stdout.split(", ")
    assert {"mcpd-servers", "nodejs", "npm"} <= set(recommended)


def test_programs_ignore_the_callers_python_environment(machine: Machine) -> None:
    for program in ("/usr/libexec/mcpd", "/usr/bin/mcpctl", "/usr/bin/mcpd-bridge"):
        assert machine.run("head", "-n1", program).stdout == "#!/usr/bin/python3 -I\n"


def test_the_shipped_registry_is_a_source_from_the_start(machine: Machine) -> None:
    assert "mcp-server-time" in machine.mcpctl("search", "time").stdout


def test_only_the_sockets_are_enabled(machine: Machine) -> None:
    listed = machine.run("systemctl", "list-unit-files", "--no-legend", "--plain", "mcpd*").stdout.splitlines()
    states = {line.split()[0]: line.split()[1] for line in listed}
    assert {unit for unit, state in states.items() if state == "enabled"} == set(SOCKETS)
    assert states["mcpd-bridge-tcp.socket"] == "disabled"
    listed = machine.run(
        "systemctl", "--global", "list-unit-files", "--no-legend", "--plain", "mcpd*"
    ).stdout.splitlines()
    assert {line.split()[0] for line in listed if line.split()[1] == "enabled"} == {"mcpd-bridge.socket"}


def test_units_hold_what_systemd_expects(machine: Machine) -> None:
    done = machine.run("sh", "-c", "systemd-analyze verify /usr/lib/systemd/system/mcpd*")
    assert done.stdout + done.stderr == ""
    done = machine.run("sh", "-c", "systemd-analyze --user verify /usr/lib/systemd/user/mcpd*", user="alice")
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize(
    ("unit", "threshold"), [("mcpd.service", 15), ("mcpd-bridge.service", 15), ("mcpd-spawn@1.service", 31)]
)
def test_units_are_confined(machine: Machine, unit: str, threshold: int) -> None:
    machine.run("systemd-analyze", "security", "--no-pager", f"--threshold={threshold}", unit)


def test_bundled_environment_runs_a_server_with_the_sdk(fresh_machine: Callable[[], Machine]) -> None:
    machine = fresh_machine()
    machine.write("/usr/share/mcp/servers/sdk/server.py", SERVER)
    machine.write("/usr/share/mcp/servers/sdk/manifest.json", MANIFEST)
    assert "sdk" in machine.mcpctl("list").stdout
    answer = machine.mcpctl("call", "sdk", "who").stdout.strip()
    assert answer == f"{machine.uid('mcp-server')} False False"


def test_bundled_environment_is_whole_and_of_its_own(machine: Machine) -> None:
    python = "/usr/lib/mcpd-servers/bin/python"
    code = "import mcp, pydantic, mcpd.model, sys; print(mcp.__file__, pydantic.__file__, sys.prefix)"
    places = machine.run(python, "-I", "-c", code).stdout.split()
    assert all(place.startswith("/usr/lib/mcpd-servers") for place in places)
    assert machine.run(python, "-I", "-c", "import dbus_next", check=False).returncode == 1
    assert machine.run("/usr/bin/python3", "-I", "-c", "import mcp", check=False).returncode == 1


def test_smoke_test_of_the_packages_passes(machine: Machine) -> None:
    """The one that autopkgtest runs."""
    machine.write("/root/smoke", (PROJECT / "packaging/debian/tests/smoke").read_text(), mode=0o755)
    machine.run("/root/smoke", timeout=120)


def test_upgrade_keeps_everything_and_interrupts_no_server(
    fresh_machine: Callable[[], Machine], tmp_path: Path
) -> None:
    machine = fresh_machine()
    machine.mcpctl("install", "git+file:///srv/git/echo", "--id", "echo", "--yes", timeout=120)
    machine.write("/etc/mcp/mcpd.toml", "# the administrator's\n")
    secret = "/var/lib/mcp/secrets/kept.json"
    machine.write(secret, "{}", mode=0o600, owner="mcpd")
    before = machine.mcpctl("list", "--json").stdout
    pid = machine.property("mcpd.service", "MainPID")
    since = {socket: machine.property(socket, "ActiveEnterTimestampMonotonic") for socket in SOCKETS}
    pipe = subprocess.PIPE
    client = machine.popen("mcpctl", "run", "echo", stdin=pipe, stdout=pipe, stderr=pipe)
    assert ping(client, 1) == 1
    next_ones = [bumped(deb, tmp_path) for deb in packages()]

    machine.run("dpkg", "--install", *carry(machine, next_ones))

    status = machine.run("dpkg-query", "-W", "-f=${Version} ${Status}", "mcpd").stdout
    assert status.endswith("+next install ok installed")
    assert machine.property("mcpd.service", "MainPID") not in {pid, "0"}
    assert {socket: machine.property(socket, "ActiveEnterTimestampMonotonic") for socket in SOCKETS} == since
    assert ping(client, 2) == 2
    assert machine.mcpctl("list", "--json").stdout == before
    assert "echo" in machine.mcpctl("tools", "echo").stdout
    assert machine.read("/etc/mcp/mcpd.toml") == "# the administrator's\n"
    assert machine.run("stat", "--format=%U %a", secret).stdout == "mcpd 600\n"


def test_removal_keeps_what_is_the_administrators_and_purge_does_not(fresh_machine: Callable[[], Machine]) -> None:
    machine = fresh_machine()
    machine.mcpctl("install", "git+file:///srv/git/echo", "--id", "echo", "--yes", timeout=120)
    machine.write("/etc/mcp/mcpd.toml", "# the administrator's\n")
    pipe = subprocess.PIPE
    client = machine.popen("mcpctl", "run", "echo", stdin=pipe, stdout=pipe, stderr=pipe)
    machine.wait_until(lambda: '"echo"' in machine.mcpctl("ps", "--json").stdout, "the server runs")

    machine.run("dpkg", "--remove", "mcpd-servers", "mcpd")

    client.wait(30)
    assert machine.run("systemctl", "list-units", "--no-legend", "--plain", "mcpd*").stdout == ""
    assert machine.run("pgrep", "-u", "mcpd,mcp-server,mcpd-bridge", check=False).stdout == ""
    assert machine.run("sh", "-c", "find /run/mcp -type s").stdout == ""
    assert machine.run("busctl", "status", "org.mcpd.Mcp1", check=False).returncode != 0
    assert machine.run("sh", "-c", "ls -d /usr/lib/mcpd-servers /usr/share/mcp /usr/lib/python3/dist-packages/mcpd",
                       check=False).stdout == ""  # fmt: skip
    assert machine.read("/etc/mcp/mcpd.toml") == "# the administrator's\n"
    assert (machine.root / "var/lib/mcp/installed/index.json").exists()

    machine.run("apt-get", "install", *carry(machine, list(DEBS.glob("mcpd_*.deb"))))
    assert not (machine.root / "usr/lib/mcpd-servers").exists()
    machine.write("/home/alice/hello.py", "def greet() -> str:\n    return 'Hello'\n", owner="alice")
    machine.mcpctl("script", "add", "/home/alice/hello.py", user="alice")
    for name, written in CLIENTS.items():
        machine.mcpctl("client", "deploy", name, "--yes", user="alice")
        assert "hello" in machine.read(f"/home/alice/{written}")
        machine.mcpctl("client", "undo", name, user="alice")
    refused = machine.mcpctl("call", "hello", "greet", user="alice", check=False)
    assert "install the package mcpd-servers" in refused.stderr

    # Both, as the README prints it.
    carry(machine, packages())
    (printed,) = re.findall(r"^# (apt install .*)$", (PROJECT / "README.md").read_text(), re.MULTILINE)
    script = f"mkdir -p /root/build/deb && cd /root && mv *.deb build/deb && {printed}"
    machine.run("/bin/sh", "-c", script, input=b"y\n", timeout=120)
    assert machine.mcpctl("call", "hello", "greet", user="alice").stdout == "Hello\n"
    # The one that was installed, not the script of that name that comes with the packages.
    assert machine.mcpctl("call", "echo", "echo", "text=kept").stdout == "kept\n"

    machine.run("dpkg", "--purge", "mcpd-servers", "mcpd")
    for path in ("etc/mcp", "var/lib/mcp", "var/cache/mcp"):
        assert not (machine.root / path).exists()


TAMPER: Final = """
cd /var/lib/mcp
for place in installed generations overlay secrets state /var/cache/mcp /etc/mcp/keys.d /etc/mcp/sources.list.d; do
    mkdir -p "$place/deep/er" && ln -s /srv/victim "$place/deep/er/away" && ln -s /etc/shadow "$place/file"
    ln /etc/passwd "$place/hard" && echo "$place: a hard link"
done
for place in installed generations overlay secrets state tokens orchestration cas; do
    mv "$place" "$place.gone" && echo "$place moved"
    rmdir "$place" && echo "$place removed"
done
ln -s /srv/victim /var/lib/mcp/planted && echo "planted"
mv /var/cache/mcp /var/cache/gone && echo "the cache moved"
mv /etc/mcp/keys.d /etc/mcp/gone && echo "the keys moved"
true
"""
"""What a process of mcpd's user may try there; what succeeds, beside the first line of the first loop, is told."""
SWAPPING: Final = """
import os
os.chdir("/var/lib/mcp/state/swapping")
print("there", flush=True)
while True:
    for _ in range(1000):
        try:
            os.rename("place", "aside")
            os.symlink("/srv/victim", "place")
            os.unlink("place")
            os.rename("aside", "place")
        except OSError:
            pass
"""
VICTIMS: Final = (
    "stat",
    "--format=%n %i %U:%G %a %h %s",
    "/srv/victim",
    "/srv/victim/kept",
    "/etc/passwd",
    "/etc/shadow",
)


def test_an_upgrade_and_a_purge_follow_nothing_that_mcpd_or_a_server_left(
    fresh_machine: Callable[[], Machine], tmp_path: Path
) -> None:
    machine = fresh_machine()
    machine.write("/srv/victim/kept", "kept", mode=0o600)
    before = machine.run(*VICTIMS).stdout
    assert machine.run("/bin/sh", "-c", TAMPER, user="mcpd").stdout == ""
    machine.run("install", "-d", "-o", "mcp-server", "-g", "mcp-server", "/var/lib/mcp/state/swapping")
    machine.run("mkdir", "-p", "/var/lib/mcp/state/swapping/place/a/b/c", user="mcp-server")
    swapping = machine.popen("/usr/bin/python3", "-c", SWAPPING, user="mcp-server", stdout=subprocess.PIPE)
    assert swapping.stdout
    assert swapping.stdout.readline() == b"there\n"

    machine.run("dpkg", "--install", *carry(machine, [bumped(deb, tmp_path) for deb in packages()]))
    machine.run("systemd-tmpfiles", "--create", "mcpd.conf")
    assert machine.run(*VICTIMS).stdout == before
    lines = [line for line in PLACES.split("\n") if line.startswith(("/etc/mcp", "/var/"))]
    there = machine.run("stat", "--format=%n %U:%G %a", *(line.split()[0] for line in lines)).stdout
    assert there.splitlines() == lines

    machine.run("dpkg", "--purge", "mcpd-servers", "mcpd", check=False)
    assert machine.run(*VICTIMS).stdout == before
    swapping.kill()
    machine.run("dpkg", "--purge", "mcpd-servers", "mcpd")
    assert not (machine.root / "var/lib/mcp").exists()
    assert machine.read("/srv/victim/kept") == "kept"


def test_a_purge_leaves_what_an_administrator_has_mounted(fresh_machine: Callable[[], Machine]) -> None:
    machine = fresh_machine()
    machine.write("/srv/data/kept", "kept")
    machine.run("mkdir", "-p", "/var/lib/mcp/state/files")
    machine.run("mount", "--bind", "/srv/data", "/var/lib/mcp/state/files")
    done = machine.run("dpkg", "--purge", "mcpd-servers", "mcpd", check=False)
    assert "mounted below /var/lib/mcp: unmount it and purge again" in done.stderr
    assert machine.read("/srv/data/kept") == "kept"
    machine.run("umount", "/var/lib/mcp/state/files")
    machine.run("dpkg", "--purge", "mcpd")
    assert not (machine.root / "var/lib/mcp").exists()
    assert machine.read("/srv/data/kept") == "kept"


def test_usr_may_be_read_only(fresh_machine: Callable[[], Machine]) -> None:
    machine = fresh_machine()
    machine.run("sh", "-c", "mount --bind /usr /usr && mount -o remount,bind,ro /usr")
    assert machine.run("touch", "/usr/share/mcp/x", check=False).returncode == 1
    machine.mcpctl("install", "git+file:///srv/git/echo", "--id", "echo", "--yes", timeout=120)
    assert (machine.root / "var/lib/mcp/installed/echo").is_symlink()
    assert "echo" in machine.mcpctl("tools", "echo").stdout
