# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bridge under systemd: who comes in, for whom servers run, and when it is there."""

from __future__ import annotations

import json
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.machine import Machine

SERVER: Final = Path(__file__).parents[1] / "bridge/fixtures/stdio_server.py"
SOCKET: Final = "/run/mcp/bridge.sock"
WEB: Final = "127.0.0.1:7411"
SERVICE: Final = "mcpd-bridge.service"
PORT: Final = "mcpd-bridge-tcp.socket"
LOST: Final = "mcpd-bridge-lost.service"
MANAGER: Final = ("org.mcpd.Mcp1", "/org/mcpd/Mcp1", "org.mcpd.Mcp1.Manager")
DROP_IN: Final = f"/run/systemd/system/{SERVICE}.d/50-test.conf"
ASK: Final = """
import http.client, json, socket, sys
where, requests = sys.argv[1], json.loads(sys.argv[2])
answers, session = [], ""
for method, target, body, headers in requests:
    connection = http.client.HTTPConnection("localhost" if where.startswith("/") else where, timeout=120)
    if where.startswith("/"):
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(120)
        connection.sock.connect(where)
    kinds = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    if session:
        kinds["Mcp-Session-Id"] = session
    connection.request(method, target, json.dumps(body) if body else None, kinds | headers)
    reply = connection.getresponse()
    session = reply.getheader("mcp-session-id") or session
    text = reply.read().decode()
    answers.append([reply.status, json.loads(text) if text else None])
print(json.dumps(answers))
"""
MANY: Final = """
import http.client, random, socket, sys, time
chance = random.Random(7)
for number in range(25):
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(120)
    connection.sock.connect(sys.argv[1])
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200, number
    connection.close()
    time.sleep(chance.uniform(0.2, 0.4))
print("all answered")
"""
TAKE: Final = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
    print("taken", flush=True)
    while True:
        client, _ = listener.accept()
        with client:
            print(client.recv(65536).decode().partition("Bearer ")[2].partition("\\r\\n")[0], flush=True)
            client.sendall(b"HTTP/1.1 503 -\\r\\nContent-Length: 0\\r\\n\\r\\n")
"""
GREET: Final = """
import socket, sys
with socket.socket(socket.AF_UNIX) as client:
    client.settimeout(120)
    client.connect(sys.argv[1])
    client.sendall(b'{"server": "own"}\\n')
    print(client.recv(65536).decode())
"""
SPAWN: Final = """
import asyncio, sys
from mcpd.bus.client import connect, variant
from mcpd.errors import McpdError

async def main():
    options = {"caller-uid": variant(int(sys.argv[2]), "u")} if sys.argv[2:] else {}
    async with connect(system=True) as client:
        try:
            await client.spawn(sys.argv[1], options=options)
        except McpdError as error:
            print(error.dbus_name, error.message)

asyncio.run(main())
"""
INITIALIZE: Final = {
    "jsonrpc": "2.0", "id": 0, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}  # fmt: skip

Request = tuple[str, str, object, dict[str, str]]


def call(tool: str, server: str = "shared", token: str = "", **arguments: object) -> Request:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    return "POST", f"/mcp/{server}", message, {"Authorization": f"Bearer {token}"} if token else {}


HEALTH: Final[Request] = ("GET", "/health", None, {})


def ask(machine: Machine, user: str, where: str, *requests: Request) -> list[tuple[int, Any]]:
    """What the bridge answers *user*, who sends one request after the other."""
    answers = json.loads(machine.python(ASK, user, where, json.dumps(requests)))
    return [(status, body) for status, body in answers]


def text_of(answer: tuple[int, Any]) -> str:
    status, body = answer
    assert status == 200, body
    return str(body["result"]["content"][0]["text"])


def state(machine: Machine, unit: str) -> str:
    return machine.property(unit, "ActiveState")


def sessions(machine: Machine) -> list[dict[str, Any]]:
    shown = machine.run("busctl", "--json=short", "call", *MANAGER, "ListSessions").stdout
    return [{key: value["data"] for key, value in each.items()} for each in json.loads(shown)["data"][0]]


def install(machine: Machine, name: str, run_as: str) -> None:
    """Put a server where mcpd finds it, as a tool would that builds an image."""
    place = f"/var/lib/mcp/generations/{name}/1"
    transport = {"type": "stdio", "command": "/usr/bin/python3", "args": ["server.py"]}
    manifest = {
        "id": name, "name": name, "summary": "-", "version": "1", "scope": "system", "transports": [transport],
        "installDir": f"/usr/share/mcp/installed/{name}", "runtime": {"runAs": run_as},
    }  # fmt: skip
    machine.write(f"{place}/server.py", SERVER.read_text(encoding="utf-8"))
    machine.write(f"{place}/manifest.json", json.dumps(manifest))
    machine.run("ln", "-sfn", f"../generations/{name}/1", f"/var/lib/mcp/installed/{name}")
    machine.run("chown", "-Rh", "mcpd:mcpd", f"/var/lib/mcp/generations/{name}", f"/var/lib/mcp/installed/{name}")


@pytest.fixture
def shared(machine: Machine) -> Iterator[Machine]:
    """The machine with its bridge's socket and two servers: ``shared`` runs as the system, ``own`` as its user."""
    install(machine, "shared", "system")
    install(machine, "own", "user")
    machine.run("systemctl", "start", "mcpd-bridge.socket")
    try:
        yield machine
    finally:
        machine.run("rm", "-f", DROP_IN)
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "stop", SERVICE, "mcpd-bridge-tcp.socket", check=False)
        for name in ("shared", "own"):
            machine.run("rm", "-rf", f"/var/lib/mcp/installed/{name}", f"/var/lib/mcp/generations/{name}")


def set_up(machine: Machine, **settings: object) -> None:
    """Start the bridge anew the next time, with *settings* in its environment."""
    lines = "".join(f"Environment=MCPD_BRIDGE_{name.upper()}={value}\n" for name, value in settings.items())
    machine.write(DROP_IN, f"[Unit]\nStartLimitIntervalSec=0\n[Service]\n{lines}")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "stop", SERVICE)


def test_a_client_starts_the_bridge(shared: Machine) -> None:
    shared.run("systemctl", "stop", SERVICE)
    assert state(shared, SERVICE) == "inactive"
    assert ask(shared, "carol", SOCKET, HEALTH) == [(200, {"status": "ok"})]
    assert state(shared, SERVICE) == "active"
    pid = shared.property(SERVICE, "MainPID")
    assert shared.run("stat", "-c", "%U", f"/proc/{pid}").stdout.strip() == "mcpd-bridge"
    assert shared.run("stat", "-c", "%a %U %G", SOCKET).stdout.strip() == "660 root mcp"


def test_only_members_of_the_group_come_to_the_bridge(shared: Machine) -> None:
    for user in ("alice", "bob", "admin"):
        done = shared.run("/usr/bin/python3", "-c", ASK, SOCKET, json.dumps([HEALTH]), user=user, check=False)
        assert "PermissionError" in done.stderr
        refused = shared.mcpctl("token", "--system", user=user, check=False)
        assert refused.returncode == 3
        assert "usermod -aG mcp" in refused.stderr
    for user in ("carol", "root"):
        assert ask(shared, user, SOCKET, HEALTH)[0][0] == 200


def test_a_member_calls_a_server_of_the_system(shared: Machine) -> None:
    opened, answer = ask(shared, "carol", SOCKET, ("POST", "/mcp/shared", INITIALIZE, {}), call("echo", text="hello"))
    assert opened[0] == 200
    assert text_of(answer) == "hello"
    (session,) = [each for each in sessions(shared) if each["server-id"] == "shared"]
    assert session["owner-uid"] == shared.uid("carol")
    user = shared.run("stat", "-c", "%U", f"/proc/{session['pid']}").stdout.strip()
    assert user == "mcp-server"
    decisions = shared.journal("_SYSTEMD_UNIT=mcpd.service")
    assert not [entry for entry in decisions if "Traceback" in str(entry.get("MESSAGE"))]


def test_users_have_processes_of_their_own(shared: Machine) -> None:
    for user in ("carol", "root"):
        text_of(ask(shared, user, SOCKET, call("pid"))[0])
    owners = {each["owner-uid"]: each["pid"] for each in sessions(shared) if each["server-id"] == "shared"}
    assert owners.keys() == {0, shared.uid("carol")}
    assert len(set(owners.values())) == 2


def test_a_server_of_its_users_is_refused_with_the_way_to_it(shared: Machine) -> None:
    ((status, body),) = ask(shared, "carol", SOCKET, call("pid", "own"))
    assert status == 501
    assert "systemctl --user enable --now mcpd-bridge.socket" in body["error"]["message"]
    assert [each for each in sessions(shared) if each["server-id"] == "own"] == []


def spawn(machine: Machine, user: str, server: str, caller: int | None = None) -> str:
    """What a Spawn of *user* fails with, who names *caller*; empty if it does not."""
    return machine.python(SPAWN, user, server, *([] if caller is None else [str(caller)])).strip()


def test_nobody_but_the_bridge_names_a_caller(shared: Machine) -> None:
    carol = shared.uid("carol")
    for user in ("root", "alice", "carol", "mcp-server", "mcpd"):
        assert "AccessDenied Spawn: only the system bridge" in spawn(shared, user, "shared", carol)
    assert spawn(shared, "mcpd-bridge", "shared", carol) == ""


def test_the_rules_decide_for_whom_the_bridge_starts_servers(shared: Machine) -> None:
    # The group of administrators is a choice at build time.
    privileged = '" sudo "' in shared.read("/usr/share/polkit-1/rules.d/org.mcpd.mcp1.rules")
    for user, may in {"carol": True, "admin": privileged, "root": True, "alice": False, "mcpd-bridge": False}.items():
        error = spawn(shared, "mcpd-bridge", "shared", shared.uid(user))
        assert (user, "org.mcpd.mcp1.spawn" in error, error == "") == (user, not may, may)
    assert "uid 54321 does not exist" in spawn(shared, "mcpd-bridge", "shared", 54321)
    assert "runs as its caller" in spawn(shared, "mcpd-bridge", "own", 0)
    assert "org.mcpd.mcp1.spawn" in spawn(shared, "mcpd-bridge", "shared")


def test_a_token_tells_over_tcp_who_calls(shared: Machine) -> None:
    assert shared.run("systemctl", "is-enabled", "mcpd-bridge-tcp.socket", check=False).stdout.strip() == "disabled"
    token = shared.mcpctl("token", "--system", user="carol").stdout.strip()
    shared.run("systemctl", "stop", SERVICE)
    shared.run("systemctl", "start", "mcpd-bridge-tcp.socket")
    answers = ask(shared, "alice", WEB, call("pid"), call("pid", token="x"), call("pid", token=token))
    assert [status for status, _ in answers] == [401, 401, 200]
    assert [each["owner-uid"] for each in sessions(shared) if each["server-id"] == "shared"] == [shared.uid("carol")]
    renewed = shared.mcpctl("token", "--system", "--renew", user="carol").stdout.strip()
    answers = ask(shared, "alice", WEB, call("pid", token=token), call("pid", token=renewed))
    assert [status for status, _ in answers] == [401, 200]
    # Who left the group starts nothing any more, whatever token there is.
    shared.run("gpasswd", "-d", "carol", "mcp")
    try:
        shared.run("systemctl", "stop", SERVICE)
        assert ask(shared, "alice", WEB, call("pid", token=renewed))[0][0] == 403
    finally:
        shared.run("gpasswd", "-a", "carol", "mcp")
    kept = shared.run("stat", "-c", "%a %U", f"/var/lib/mcp/tokens/{shared.uid('carol')}").stdout.strip()
    assert kept == "600 mcpd-bridge"
    assert shared.run("cat", f"/var/lib/mcp/tokens/{shared.uid('carol')}", user="alice", check=False).returncode


def test_unused_it_ends_leaves_its_socket_and_loses_no_request(shared: Machine) -> None:
    set_up(shared, idle_exit=0.2, idle_timeout=0.2)
    assert text_of(ask(shared, "carol", SOCKET, call("echo", text="x"))[0]) == "x"
    shared.wait_until(lambda: state(shared, SERVICE) == "inactive", "the bridge ends")
    assert shared.property(SERVICE, "Result") == "success"
    assert state(shared, "mcpd-bridge.socket") == "active"
    assert shared.run("stat", "-c", "%a %U %G", SOCKET).stdout.strip() == "660 root mcp"
    assert [each for each in sessions(shared) if each["server-id"] == "shared"] == []
    assert (
        shared.run("/usr/bin/python3", "-c", MANY, SOCKET, user="carol", timeout=120).stdout.strip() == "all answered"
    )
    starts = [entry for entry in shared.journal(f"UNIT={SERVICE}") if str(entry["MESSAGE"]).startswith("Started ")]
    assert len(starts) > 3


def test_a_stop_ends_also_servers_that_do_not_listen(shared: Machine) -> None:
    answers = ask(shared, "carol", SOCKET, call("deaf"))
    assert "reads nothing" in text_of(answers[0])
    (session,) = [each for each in sessions(shared) if each["server-id"] == "shared"]
    # Five seconds are all that TimeoutStopSec= gives it.
    assert shared.property(SERVICE, "TimeoutStopUSec") == "5s"
    shared.run("systemctl", "stop", SERVICE)
    assert shared.property(SERVICE, "Result") == "success"
    gone = lambda: not Path(f"{shared.root}/proc/{session['pid']}").exists()  # noqa: E731
    shared.wait_until(gone, "the server ended")


def test_a_reload_takes_settings_over_in_the_same_process(shared: Machine) -> None:
    page = ("GET", "/health", None, {"Origin": "https://app.example"})
    assert [status for status, _ in ask(shared, "carol", SOCKET, HEALTH, page)] == [200, 403]
    before = shared.property(SERVICE, "MainPID")
    shared.write("/etc/mcp/mcpd.toml", '[bridge]\nallowed_origins = ["https://app.example"]\n')
    try:
        shared.run("systemctl", "reload", SERVICE)
        assert ask(shared, "carol", SOCKET, page)[0][0] == 200
    finally:
        shared.run("rm", "/etc/mcp/mcpd.toml")
    assert shared.property(SERVICE, "MainPID") == before


def test_the_units_are_right_and_confined(shared: Machine) -> None:
    units = (SERVICE, "mcpd-bridge.socket", "mcpd-bridge-tcp.socket")
    for scope, user in (("--system", "root"), ("--user", "alice")):
        done = shared.run("systemd-analyze", "verify", "--man=no", scope, *units, user=user)
        assert "mcpd" not in done.stdout + done.stderr
    shown = shared.run("systemd-analyze", "security", "--no-pager", "--json=short", SERVICE, check=False)
    assert shown.returncode == 0, shown.stderr
    told = shared.run("systemd-analyze", "security", "--no-pager", SERVICE).stdout
    overall = told.rpartition("exposure level for ")[2].split(": ")[1].split()[0]
    assert float(overall) <= 1.5
    ask(shared, "carol", SOCKET, HEALTH)
    inside = ("nsenter", "-t", shared.property(SERVICE, "MainPID"), "-m", "-n", "--")
    for path in ("/var/lib/mcp/secrets", "/var/lib/mcp/generations", "/var/lib/mcp/state", "/home"):
        mode = shared.run(*inside, "stat", "-c", "%a", path).stdout.strip()
        assert (path, mode) in {(path, "0"), (path, "000"), (path, "755")}
        assert shared.run(*inside, "ls", "-A", path, check=False).stdout == ""
    networks = "import socket; print([name for _, name in socket.if_nameindex()])"
    assert shared.run(*inside, "/usr/bin/python3", "-c", networks).stdout.strip() == "['lo']"


def test_a_users_bridge_starts_by_its_socket_and_serves_its_user_alone(shared: Machine) -> None:
    uid = shared.uid("alice")
    path = f"/run/user/{uid}/mcp/bridge.sock"
    shared.run("systemctl", "--user", "stop", SERVICE, user="alice")
    shared.run("systemctl", "--user", "start", "mcpd-bridge.socket", user="alice")
    try:
        assert shared.property(SERVICE, "ActiveState", "--user", user="alice") == "inactive"
        assert shared.run("stat", "-c", "%a %U", path).stdout.strip() == "600 alice"
        opened, answer = ask(
            shared, "alice", path, ("POST", "/mcp/own", INITIALIZE, {}), call("echo", "own", text="hi")
        )
        assert (opened[0], text_of(answer)) == (200, "hi")
        assert shared.property(SERVICE, "ActiveState", "--user", user="alice") == "active"
        ((status, body),) = ask(shared, "alice", path, call("pid"))
        assert status == 403
        assert SOCKET in body["error"]["message"] or "system" in body["error"]["message"]
        ((status, body),) = ask(shared, "root", path, call("pid", "own"))
        assert (status, "you are uid 0" in body["error"]["message"]) == (403, True)
        denied = shared.run("/usr/bin/python3", "-c", ASK, path, json.dumps([HEALTH]), user="bob", check=False)
        assert "PermissionError" in denied.stderr
        shared.run("systemctl", "--user", "reload", SERVICE, user="alice")
        shared.run("systemctl", "--user", "stop", SERVICE, user="alice")
        assert shared.property(SERVICE, "Result", "--user", user="alice") == "success"
        assert shared.run("stat", "-c", "%F", path).stdout.strip() == "socket"
        assert ask(shared, "alice", path, HEALTH)[0][0] == 200
    finally:
        shared.run("systemctl", "--user", "stop", SERVICE, user="alice", check=False)


def log_out(machine: Machine, user: str) -> None:
    machine.run("systemctl", "stop", f"user@{machine.uid(user)}.service")


def log_in(machine: Machine, user: str) -> None:
    machine.run("systemctl", "start", f"user@{machine.uid(user)}.service")


@pytest.fixture
def on_tcp(shared: Machine) -> Iterator[Machine]:
    """The machine with a carol whose bridge has its own port."""
    shared.run("systemctl", "--user", "enable", PORT, user="carol")
    log_out(shared, "carol")
    log_in(shared, "carol")
    try:
        yield shared
    finally:
        log_in(shared, "carol")
        shared.run("systemctl", "--user", "disable", PORT, user="carol")
        log_out(shared, "carol")
        shared.run("rm", "-f", "/home/carol/.local/state/mcp/bridge.token")
        log_in(shared, "carol")


def of_carol(machine: Machine, unit: str) -> str:
    return machine.property(unit, "ActiveState", "--user", user="carol")


@contextmanager
def taken_by_bob(machine: Machine, port: int) -> Iterator[Iterator[str]]:
    """Have bob listen at *port*; the tokens that he is sent."""
    taking = machine.popen("/usr/bin/python3", "-c", TAKE, str(port), user="bob", stdout=subprocess.PIPE)
    try:
        lines = (line.decode().strip() for line in taking.stdout or ())
        assert next(lines) == "taken"
        yield lines
    finally:
        taking.terminate()
        taking.wait()


def test_a_users_port_is_held_from_login_on(on_tcp: Machine) -> None:
    port = 20_000 + on_tcp.uid("carol")
    assert (of_carol(on_tcp, PORT), of_carol(on_tcp, SERVICE)) == ("active", "inactive")
    taking = on_tcp.run("/usr/bin/python3", "-c", TAKE, str(port), user="bob", check=False)
    assert "Address already in use" in taking.stderr
    token = on_tcp.mcpctl("--user", "token", user="carol").stdout.strip()
    answers = ask(on_tcp, "carol", f"127.0.0.1:{port}", call("pid", "own"), call("pid", "own", token=token))
    assert [status for status, _ in answers] == [401, 200]


def test_who_takes_a_users_port_before_the_login_gets_nothing_that_is_of_use(on_tcp: Machine) -> None:
    bob, port = on_tcp.uid("bob"), 20_000 + on_tcp.uid("carol")
    where, file = f"127.0.0.1:{port}", "/home/carol/.local/state/mcp/bridge.token"
    runtime = f"/run/user/{on_tcp.uid('carol')}/mcp"
    token = on_tcp.mcpctl("--user", "token", user="carol").stdout.strip()
    log_out(on_tcp, "carol")
    with taken_by_bob(on_tcp, port) as captured:
        ask(on_tcp, "carol", where, ("GET", "/mcp/own", None, {"Authorization": f"Bearer {token}"}))
        assert next(captured) == token
        log_in(on_tcp, "carol")
        assert of_carol(on_tcp, PORT) == "failed"
        on_tcp.wait_until(lambda: of_carol(on_tcp, LOST) == "failed", "the token is withdrawn")
        told = " ".join(str(entry["MESSAGE"]) for entry in on_tcp.journal(f"_SYSTEMD_USER_UNIT={LOST}"))
        assert f"{where} belongs to uid {bob} (bob)" in told
        assert "the old one is revoked" in told
        assert token not in told
        assert on_tcp.run("test", "-e", file, check=False).returncode
        assert text_of(ask(on_tcp, "carol", f"{runtime}/bridge.sock", call("echo", "own", text="hi"))[0]) == "hi"
        assert json.loads(on_tcp.python(GREET, "carol", f"{runtime}/stdio.sock")) == {"ok": True}
        refused = on_tcp.mcpctl("--user", "token", user="carol", check=False)
        assert (refused.returncode, refused.stdout, f"uid {bob} (bob)" in refused.stderr) == (1, "", True)
        doctor = on_tcp.mcpctl("--user", "doctor", user="carol", check=False)
        assert f"fail  bridge port: {where} belongs to uid {bob} (bob)" in doctor.stdout
    on_tcp.run("systemctl", "--user", "stop", SERVICE, user="carol")
    on_tcp.run("systemctl", "--user", "restart", PORT, user="carol")
    renewed = on_tcp.mcpctl("--user", "token", user="carol").stdout.strip()
    answers = ask(on_tcp, "bob", where, call("pid", "own", token=token))
    answers += ask(on_tcp, "carol", where, call("pid", "own", token=renewed))
    assert [status for status, _ in answers] == [401, 200]


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 4\r\nContent-Length: 4\r\n\r\n",
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"Content-Length : 4\r\n\r\n",
        b"X: y\nContent-Length: 4\r\n\r\n",
        b"X: y\r\n Content-Length: 4\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}XX0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n2\n{}\r\n0\r\n\r\n",
    ],
)
def test_the_parser_of_the_distribution_is_held_to_the_rules(shared: Machine, framing: bytes) -> None:
    request = b"POST /mcp/shared HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + framing + b"null"
    code = (
        "import socket, sys\n"
        "client = socket.socket(socket.AF_UNIX)\n"
        "client.settimeout(120)\n"
        f"client.connect({SOCKET!r})\n"
        f"client.sendall({request + b'GET /health HTTP/1.1' + bytes([13, 10, 13, 10])!r})\n"
        "received = b''\n"
        "while data := client.recv(10_000): received += data\n"
        "print(*[part[:3].decode() for part in received.split(b'HTTP/1.1 ') if part[:3].isdigit()])\n"
    )
    assert shared.python(code, "carol").split() == ["400"]
