# SPDX-License-Identifier: LGPL-2.1-or-later
"""Real servers are installed, for the system and for a user, by mcpctl and by hand over D-Bus, and answer."""

from __future__ import annotations

import json
import re
import subprocess
from typing import IO, TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.machine import Machine

MANAGER = ("org.mcpd.Mcp1", "/org/mcpd/Mcp1", "org.mcpd.Mcp1.Manager")
SOURCES = {
    "git": "git+file:///srv/git/echo",
    "wheel": "pypi:mcp-echo",
    "directory": "/srv/src/echo",
}
WHO = "code=import os; print(os.getuid())"


@pytest.fixture(params=["root", "alice"])
def who(machine: Machine, request: pytest.FixtureRequest) -> Iterator[str]:
    """Who installs: root for the system, alice for herself. Nothing stays."""
    user = str(request.param)
    before = _ids(machine, user)
    yield user
    for server in _ids(machine, user) - before:
        machine.mcpctl("remove", server, user=user)


def _ids(machine: Machine, user: str) -> set[str]:
    return {server["id"] for server in _listed(machine, user)}


def _listed(machine: Machine, user: str) -> list[dict[str, str]]:
    servers: list[dict[str, str]] = json.loads(machine.mcpctl("list", "--json", user=user).stdout)["servers"]
    return servers


def _runs(machine: Machine, server: str, user: str) -> None:
    """*server* of *user* is listed, tells its tools, and answers as the user it is to run as."""
    (found,) = [one for one in _listed(machine, user) if one["id"] == server]
    scope, runs_as = ("system", "mcp-server") if user == "root" else ("user", user)
    assert (found["state"], found["scope"], found["version"]) == ("installed", scope, "1.0")
    tools = json.loads(machine.mcpctl("tools", server, "--json", user=user).stdout)["tools"]
    assert [tool["name"] for tool in tools] == ["echo", "python", "stderr"]
    assert machine.mcpctl("call", server, "echo", "text=héllo", user=user).stdout == "héllo\n"
    assert machine.mcpctl("call", server, "python", WHO, user=user).stdout.strip() == str(machine.uid(runs_as))


@pytest.mark.parametrize("source", SOURCES)
def test_install_by_mcpctl(machine: Machine, who: str, source: str) -> None:
    done = machine.mcpctl("install", SOURCES[source], "--id", f"from-{source}", "--yes", user=who)
    scope = "system" if who == "root" else "user"
    assert done.stdout == f"Installed from-{source} 1.0 ({scope}).\n"
    _runs(machine, f"from-{source}", who)
    place = "/usr/share/mcp/installed" if who == "root" else f"/home/{who}/.local/share/mcp/installed"
    manifest = json.loads(machine.read(f"{place}/from-{source}/manifest.json"))
    assert manifest["id"] == f"from-{source}"
    machine.mcpctl("remove", f"from-{source}", user=who)
    assert f"from-{source}" not in _ids(machine, who)
    assert machine.run("test", "-e", f"{place}/from-{source}", check=False).returncode == 1


INSTALL_MANIFEST = """
import asyncio, json, os, sys
from dbus_next import BusType, Message, MessageType, Variant
from dbus_next.aio import MessageBus

async def main():
    bus = await MessageBus(bus_type=BusType[sys.argv[1]], negotiate_unix_fd=True).connect()
    seen = asyncio.Queue()
    bus.add_message_handler(lambda m: seen.put_nowait(m) if m.message_type is MessageType.SIGNAL else None)
    await bus.call(Message("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "AddMatch",
                           signature="s", body=["sender='org.mcpd.Mcp1'"]))
    fd = os.memfd_create("manifest")
    os.write(fd, json.dumps({"id": sys.argv[2], "name": "By hand", "source": {"type": "git",
             "url": "file:///srv/git/echo"}}).encode())
    os.lseek(fd, 0, os.SEEK_SET)
    reply = await bus.call(Message("org.mcpd.Mcp1", "/org/mcpd/Mcp1", "org.mcpd.Mcp1.Manager", "InstallManifest",
                                   signature="ha{sv}", body=[0, {"consent": Variant("b", True)}], unix_fds=[fd]))
    (job,) = reply.body
    states = []
    while True:
        signal = await asyncio.wait_for(seen.get(), 60)
        if signal.path == job and signal.member == "PropertiesChanged" and "State" in signal.body[1]:
            states.append(signal.body[1]["State"].value)
        if signal.member == "JobRemoved" and signal.body[0] == job:
            print(json.dumps([states, signal.body]))
            return

asyncio.run(main())
"""


def test_install_by_hand_over_dbus(machine: Machine, who: str) -> None:
    """A frontend's way: a manifest as a file, a Job that is followed to its end."""
    bus = "SYSTEM" if who == "root" else "SESSION"
    states, removed = json.loads(machine.python(INSTALL_MANIFEST, who, bus, "by-hand"))
    assert [state for state in states if state in {"fetching", "building", "activating", "done"}] == [
        "fetching", "building", "activating", "done",
    ]  # fmt: skip
    assert removed[1:] == ["done", "", ""]
    _runs(machine, "by-hand", who)


def test_install_from_a_registry_with_busctl_and_gdbus(machine: Machine, who: str) -> None:
    entry = {"id": "listed", "name": "Listed", "version": "1.0", "summary": "From a registry",
             "transports": [{"type": "stdio", "command": "mcp-echo"}],
             "source": {"type": "pypi", "package": "mcp-echo", "version": "1.0"}}  # fmt: skip
    machine.write("/srv/registry.json", json.dumps({"version": "1.0", "servers": [entry]}))
    busctl = ("busctl", "--system" if who == "root" else "--user")
    gdbus = ("gdbus", "call", "--system" if who == "root" else "--session", "-d", MANAGER[0], "-o", MANAGER[1], "-m")

    def call(member: str, *args: str) -> str:
        return machine.run(*gdbus, f"{MANAGER[2]}.{member}", *args, user=who).stdout

    def finished(job: str) -> bool:
        state = machine.run(*busctl, "get-property", MANAGER[0], job, "org.mcpd.Mcp1.Job", "State", user=who).stdout
        assert "failed" not in state
        return state == 's "done"\n'

    def followed(said: str) -> None:
        job = re.search(r"/org/mcpd/Mcp1/job/\d+", said)
        assert job is not None, said
        machine.wait_until(lambda: finished(job[0]), "the job is done")

    call("AddSource", "file:///srv/registry.json", "{}")
    try:
        followed(call("Refresh", "{}"))
        assert "'listed'" in call("ListAvailable", "{}", "")
        options = ("sa{sv}", "listed", "1", "consent", "b", "true")
        followed(machine.run(*busctl, "call", *MANAGER, "Install", *options, user=who).stdout)
        assert '"listed"' in machine.run(*busctl, "call", *MANAGER, "ListServers", "a{sv}", "0", user=who).stdout
        _runs(machine, "listed", who)
    finally:
        call("RemoveSource", "file:///srv/registry.json", "{}")


def test_what_the_system_has_is_everybodys(machine: Machine, echo: str) -> None:
    """A server of the system is listed by a user's own instance, and runs as that user."""
    (found,) = [server for server in _listed(machine, "bob") if server["id"] == echo]
    assert found["scope"] == "system"
    assert machine.mcpctl("call", echo, "python", WHO, user="bob").stdout.strip() == str(machine.uid("bob"))


def test_what_a_user_has_is_nobody_elses(machine: Machine) -> None:
    machine.mcpctl("install", "pypi:mcp-echo", "--id", "of-alice", "--yes", user="alice")
    try:
        assert "of-alice" in _ids(machine, "alice")
        assert "of-alice" not in _ids(machine, "bob") | _ids(machine, "root")
    finally:
        machine.mcpctl("remove", "of-alice", user="alice")


REGISTRY: Final = """
import base64, hashlib, http.server, io, json, socket, tarfile, threading

listener = socket.create_server(("127.0.0.1", 0))
elsewhere = f"127.0.0.1:{listener.getsockname()[1]}"

def listen():
    while True:
        connection, _ = listener.accept()
        print("elsewhere", connection.recv(100).split(b"\\r\\n")[0].decode(), flush=True)
        connection.close()

def package(name, dependencies, lock):
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        files = {"package.json": {"name": name, "version": "1.0.0", "bin": "i.js", "dependencies": dependencies}}
        if lock:
            files["npm-shrinkwrap.json"] = lock
        for file, content in (files | {"i.js": ""}).items():
            data = json.dumps(content).encode()
            member = tarfile.TarInfo(f"package/{file}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return held.getvalue()

NEEDS = {
    "by-url": {"needed": f"http://{elsewhere}/needed.tgz"},
    "by-git": {"needed": f"git+http://{elsewhere}/needed.git"},
    "by-lock": {"needed": "1.0.0"},
}
LOCK = {"name": "by-lock", "version": "1.0.0", "lockfileVersion": 3, "requires": True, "packages": {
    "": {"name": "by-lock", "version": "1.0.0", "dependencies": NEEDS["by-lock"]},
    "node_modules/needed": {"version": "1.0.0", "resolved": f"http://{elsewhere}/needed.tgz"},
}}
ARCHIVES = {name: package(name, needs, LOCK if name == "by-lock" else None) for name, needs in NEEDS.items()}

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.path.strip("/").removesuffix(".tgz")
        if name not in NEEDS:
            self.send_error(404)
            return
        print(name, flush=True)
        body = ARCHIVES[name]
        if not self.path.endswith(".tgz"):
            integrity = "sha512-" + base64.b64encode(hashlib.sha512(body).digest()).decode()
            dist = {"tarball": f"http://{self.headers['Host']}/{name}.tgz", "integrity": integrity}
            version = {"name": name, "version": "1.0.0", "bin": {name: "i.js"}, "dependencies": NEEDS[name],
                       "dist": dist, "_hasShrinkwrap": name == "by-lock"}
            body = json.dumps({"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=listen, daemon=True).start()
print(server.server_address[1], elsewhere, flush=True)
server.serve_forever()
"""
"""A registry of npm, and a listener beside it; it prints their addresses, and then what each is asked."""


@pytest.fixture
def npm_registry(machine: Machine) -> Iterator[tuple[IO[bytes], str]]:
    """What :data:`REGISTRY` prints of requests, and the address of its listener; alice's npm uses the registry."""
    running = machine.popen("/usr/bin/python3", "-c", REGISTRY, user="bob", stdout=subprocess.PIPE)
    assert running.stdout
    port, elsewhere = running.stdout.readline().decode().split()
    machine.write("/home/alice/.npmrc", f"registry=http://127.0.0.1:{port}/\n", owner="alice")
    yield running.stdout, elsewhere
    machine.run("rm", "/home/alice/.npmrc")
    running.kill()
    running.wait()


@pytest.mark.parametrize("package", ["by-url", "by-git", "by-lock"])
def test_npm_of_the_distribution_asks_no_address_that_a_package_names(
    machine: Machine, npm_registry: tuple[IO[bytes], str], package: str
) -> None:
    printed, elsewhere = npm_registry
    done = machine.mcpctl("install", f"npm:{package}", "--yes", user="alice", check=False, timeout=120)
    assert done.returncode == 1
    assert f"{elsewhere}/needed." in done.stderr
    machine.run("curl", "-s", f"http://{elsewhere}/by-the-test", user="alice", check=False)
    asked = list(iter(lambda: printed.readline().decode().strip(), "elsewhere GET /by-the-test HTTP/1.1"))
    assert asked
    assert set(asked) == {package}
