# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bridge as a service: sockets that are passed to it, notifications, reload, idle exit, and many users."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from mcpd.cli.main import main as mcpctl
from tests.bridge.bridge_harness import BOTH, COMMAND, PATIENCE, ROOT, call, eventually, initialize, is_alive, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

BRIDGE = ("-m", "mcpd.bridge.main")
SHARED = (str(Path(__file__).parent / "fixtures" / "shared_bridge.py"),)
PASS = """
import os, sys
count = int(sys.argv[1])
for number, fd in enumerate(map(int, sys.argv[2:2 + count])):
    os.dup2(fd, 100 + number)
for number in range(count):
    os.dup2(100 + number, 3 + number)
    os.close(100 + number)
if count:
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(count))
os.execv(sys.executable, [sys.executable, *sys.argv[2 + count:]])
"""
NOBODY = 65533
"""A uid that is nobody here."""
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


class Program:
    """A program of the bridge, with a service manager that listens to it."""

    def __init__(
        self, home: Path, argv: Sequence[str], sockets: Sequence[socket.socket] = (), **environment: str
    ) -> None:
        self.home = home
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        (home / "notify").unlink(missing_ok=True)
        self.manager.bind(str(home / "notify"))
        self.manager.settimeout(PATIENCE)
        self.heard: list[str] = []
        fds = [each.fileno() for each in sockets]
        places = {f"XDG_{name}": str(home / name) for name in ("RUNTIME_DIR", "STATE_HOME", "CONFIG_HOME")}
        with (home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PASS, str(len(fds)), *map(str, fds), *argv],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stderr=log,
                cwd=ROOT,
                env={
                    **os.environ,
                    **places,
                    "MCP_ROOT": str(home / "root"),
                    "DBUS_SESSION_BUS_ADDRESS": f"unix:path={home}/no-bus",
                    "DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={home}/no-bus",
                    "NOTIFY_SOCKET": str(home / "notify"),
                    "PYTHONPATH": str(ROOT),
                    **environment,
                },
            )

    def hear(self, wanted: str) -> str:
        """Wait until it tells its service manager a line that begins with *wanted*."""
        while True:
            for number, line in enumerate(self.heard):
                if line.startswith(wanted):
                    del self.heard[: number + 1]
                    return line
            self.heard += self.manager.recv(65536).decode().splitlines()

    def said(self) -> str:
        return (self.home / "log").read_text()

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Start a program of the bridge with the given arguments and passed sockets; it ends with the test."""
    running: list[Program] = []
    for name in ("RUNTIME_DIR", "STATE_HOME", "CONFIG_HOME"):
        (tmp_path / name).mkdir(mode=0o700)

    def begin(*argv: str, sockets: Sequence[socket.socket] = (), **environment: str) -> Program:
        running.append(Program(tmp_path, argv, sockets, **environment))
        return running[-1]

    try:
        yield begin
    finally:
        for program in running:
            if program.process.poll() is None:
                program.process.kill()
                program.process.wait()
            program.manager.close()


@pytest.fixture
def passed(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket that a service manager listens on."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "bridge.sock"))
        listener.listen()
        yield listener


@contextlib.contextmanager
def over(path: str | Path) -> Iterator[httpx2.Client]:
    transport = httpx2.HTTPTransport(uds=str(path))
    with httpx2.Client(transport=transport, base_url="http://localhost", timeout=PATIENCE, trust_env=False) as http:
        yield http


# ---------------------------------------------------------------------------------------- the service manager


def test_the_service_manager_hears_how_far_it_is(start: Callable[..., Program], passed: socket.socket) -> None:
    bridge = start(*BRIDGE, sockets=[passed], WATCHDOG_USEC="200000")
    bridge.hear("READY=1")
    bridge.hear("STATUS=0 sessions")
    bridge.hear("WATCHDOG=1")
    bridge.hear("WATCHDOG=1")
    bridge.process.terminate()
    bridge.hear("STOPPING=1")
    assert bridge.process.wait(PATIENCE) == 0
    assert Path(passed.getsockname()).exists()


def test_unused_it_ends_and_the_next_client_finds_its_socket(
    start: Callable[..., Program], passed: socket.socket
) -> None:
    path = passed.getsockname()
    with socket.socket(socket.AF_UNIX) as early:
        early.connect(path)
        bridge = start(*BRIDGE, sockets=[passed], MCPD_BRIDGE_IDLE_EXIT="0.5")
        bridge.hear("READY=1")
        # A client that stays is use enough.
        with pytest.raises(subprocess.TimeoutExpired):
            bridge.process.wait(1.5)
        with over(path) as http:
            assert http.get("/health").status_code == 200
    assert bridge.process.wait(PATIENCE) == 0
    assert "exiting after 0.5 s without use" in bridge.said()
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect(path)
        waiting.settimeout(PATIENCE)
        waiting.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        start(*BRIDGE, sockets=[passed])
        assert waiting.recv(100).startswith(b"HTTP/1.1 200 ")


def test_a_bridge_that_opened_its_sockets_itself_stays(start: Callable[..., Program], tmp_path: Path) -> None:
    bridge = start(*BRIDGE, MCPD_BRIDGE_IDLE_EXIT="0.2")
    bridge.hear("READY=1")
    with pytest.raises(subprocess.TimeoutExpired):
        bridge.process.wait(1.5)
    with over(tmp_path / "RUNTIME_DIR/mcp/bridge.sock") as http:
        assert http.get("/health").status_code == 200


def test_sighup_takes_new_settings_over_and_drops_nobody(
    start: Callable[..., Program], passed: socket.socket, tmp_path: Path
) -> None:
    settings = tmp_path / "CONFIG_HOME/mcp/mcpd.toml"
    settings.parent.mkdir()
    bridge = start(*BRIDGE, sockets=[passed])
    bridge.hear("READY=1")
    page = {**BOTH, "Origin": "https://app.example"}
    body = {**PING, "params": {"filler": "x" * 3000}}
    with over(passed.getsockname()) as http:
        assert http.post("/mcp/s", headers=page, json=body).status_code == 403
        settings.write_text('[bridge]\nallowed_origins = ["https://app.example"]\nmax_body = 1024\n')
        bridge.process.send_signal(signal.SIGHUP)
        assert bridge.hear("RELOADING=1")
        assert int(bridge.hear("MONOTONIC_USEC=").partition("=")[2]) > 0
        bridge.hear("READY=1")
        assert http.post("/mcp/s", headers=page, json=body).status_code == 413
        # One it cannot use changes nothing, and is named.
        settings.write_text("[bridge]\nmax_body = 0\n")
        bridge.process.send_signal(signal.SIGHUP)
        bridge.hear("RELOADING=1")
        bridge.hear("READY=1")
        assert http.post("/mcp/s", headers=page, json=body).status_code == 413
        bridge.hear("STATUS=0 sessions, 1 connections")
    assert "the settings were not changed" in bridge.said()
    assert f"{settings}: bridge.max_body" in bridge.said()


def test_the_time_until_it_leaves_can_be_set_while_it_runs(
    start: Callable[..., Program], passed: socket.socket, tmp_path: Path
) -> None:
    settings = tmp_path / "CONFIG_HOME/mcp/mcpd.toml"
    settings.parent.mkdir()
    settings.write_text("[bridge]\nidle_exit = 8\n")
    bridge = start(*BRIDGE, sockets=[passed])
    bridge.hear("READY=1")
    for seconds in (0, 0.2):
        settings.write_text(f"[bridge]\nidle_exit = {seconds}\n")
        bridge.process.send_signal(signal.SIGHUP)
        bridge.hear("READY=1")
    assert bridge.process.wait(PATIENCE) == 0


# ---------------------------------------------------------------------------------------- the system's bridge


def test_the_systems_bridge_hands_a_token_to_those_on_its_socket(
    start: Callable[..., Program], passed: socket.socket, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as web:
        url = f"http://127.0.0.1:{web.getsockname()[1]}"
        bridge = start(*BRIDGE, "--system", sockets=[passed, web])
        bridge.hear("READY=1")
        with over(passed.getsockname()) as own, httpx2.Client(base_url=url, trust_env=False, timeout=PATIENCE) as tcp:
            reply = own.get("/token")
            token = reply.json()["token"]
            assert (reply.status_code, reply.headers["cache-control"]) == (200, "no-store")
            assert token.startswith(f"{os.getuid()}.")
            assert own.get("/token").json()["token"] == token
            authorized = {**BOTH, "Authorization": f"Bearer {token}"}
            for method in ("GET", "POST"):
                assert tcp.request(method, "/token", headers=authorized).status_code == 404
            assert own.delete("/token").status_code == 405
            assert tcp.post("/mcp/s", headers=BOTH, json=PING).status_code == 401
            # There is no bus here, so who was let in learns that mcpd cannot be reached.
            assert tcp.post("/mcp/s", headers=authorized, json=PING).status_code == 503
            assert own.post("/mcp/s", headers=BOTH, json=PING).status_code == 503
            assert own.post("/token").json()["token"] != token
            assert tcp.post("/mcp/s", headers=authorized, json=PING).status_code == 401
        assert bridge.end() == 0
        assert token not in bridge.said()
        assert [file.name for file in (tmp_path / "root/var/lib/mcp/tokens").iterdir()] == [str(os.getuid())]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--user", "--system"], "not allowed with"),
        (["--system", "--auth", "none"], "--auth requires"),
        (["--system", "--token-file", "x"], "--token-file requires"),
        (["--system", "--listen", "0.0.0.0:0"], "loopback"),
        (["--system", "--server", "s=cat"], "omit --server"),
    ],
)
def test_what_the_systems_bridge_does_not_do_is_refused(
    start: Callable[..., Program], passed: socket.socket, arguments: list[str], hint: str
) -> None:
    bridge = start(*BRIDGE, *arguments, sockets=[passed])
    assert bridge.process.wait(PATIENCE) != 0
    assert hint in bridge.said()
    assert "Traceback" not in bridge.said()


def test_mcpctl_prints_and_renews_the_users_token(
    start: Callable[..., Program], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bridge = start(*BRIDGE, "--listen", "127.0.0.1:0")
    bridge.hear("READY=1")
    eventually((tmp_path / "RUNTIME_DIR/mcp/bridge.url").exists, "the URL is told")
    url = (tmp_path / "RUNTIME_DIR/mcp/bridge.url").read_text().strip()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "STATE_HOME"))

    def token(*arguments: str) -> str:
        assert mcpctl(["token", "--user", *arguments]) == 0
        return capsys.readouterr().out.strip()

    def status(shown: str) -> int:
        headers = {**BOTH, "Authorization": f"Bearer {shown}"}
        return httpx2.post(f"{url}/mcp/s", headers=headers, json=PING, trust_env=False, timeout=PATIENCE).status_code

    first = token()
    assert token() == first
    assert status(first) == 503
    second = token("--renew")
    assert (status(first), status(second)) == (401, 503)


def test_mcpctl_says_why_the_system_gives_no_token(
    start: Callable[..., Program], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "root/run/mcp/bridge.sock"
    path.parent.mkdir(parents=True)
    monkeypatch.setenv("MCP_ROOT", str(tmp_path / "root"))
    assert mcpctl(["token", "--system"]) == 1
    assert "systemctl enable --now mcpd-bridge.socket" in capsys.readouterr().err
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        start(*BRIDGE, "--system", sockets=[listener])
        assert mcpctl(["token", "--system"]) == 0
        first = capsys.readouterr().out.strip()
        assert mcpctl(["token", "--system", "--renew"]) == 0
        assert first.startswith(f"{os.getuid()}.")
        assert first != capsys.readouterr().out.strip()


# ---------------------------------------------------------------------------------------- many users

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be several users")
ASK = """
import http.client, json, socket, sys
path, requests = sys.argv[1], json.loads(sys.argv[2])
answers, session = [], ""
for method, target, body, headers in requests:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(path)
    headers = {name: value or session for name, value in headers.items()}
    connection.request(method, target, json.dumps(body) if body else None, headers)
    reply = connection.getresponse()
    session = reply.getheader("mcp-session-id") or session
    text = reply.read().decode()
    answers.append([reply.status, json.loads(text) if text else None, session])
print(json.dumps(answers))
"""


def ask_as(uid: int, path: Path, *requests: tuple[str, str, object, dict[str, str]]) -> list[Any]:
    argv = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "/usr/bin/python3", "-c", ASK]
    done = subprocess.run([*argv, str(path), json.dumps(requests)], capture_output=True, text=True, check=True, cwd="/")
    answers: list[Any] = json.loads(done.stdout)
    return answers


def post(message: object, session: str | None = None) -> tuple[str, str, object, dict[str, str]]:
    return "POST", "/mcp/s", message, BOTH if session is None else {**BOTH, "Mcp-Session-Id": session}


@needs_root
def test_users_share_no_server_no_session_and_no_limit(start: Callable[..., Program]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        path = Path(place) / "bridge.sock"
        bridge = start(*SHARED, str(path), f"{place}/tokens", COMMAND)
        bridge.hear("READY=1")
        (status, opened, session), (_, pid, _) = ask_as(2001, path, post(initialize()), post(call("pid"), ""))
        assert (status, opened["id"]) == (200, 0)
        own = int(text_of(pid))
        # Another user cannot reach it, even who knows the id of the session.
        stolen = ("DELETE", "/mcp/s", None, {"Mcp-Session-Id": session})
        listening = ("GET", "/mcp/s", None, {"Mcp-Session-Id": session, "Accept": "text/event-stream"})
        answers = ask_as(2002, path, post(call("pid"), session), stolen, listening)
        assert [status for status, _, _ in answers] == [404, 404, 404]
        assert is_alive(own)
        # Without a session, each has a process of its own; it is the same one for the same user.
        pooled = [int(text_of(ask_as(uid, path, post(call("pid")))[0][1])) for uid in (2001, 2002, 2001)]
        assert len({own, *pooled}) == 3
        assert pooled[0] == pooled[2]
        # The limit of two sessions is each user's.
        assert [status for status, _, _ in ask_as(2001, path, post(initialize()), post(initialize()))] == [200, 429]
        assert [status for status, _, _ in ask_as(2002, path, post(initialize()))] == [200]
        # A token is its user's on TCP, too.
        token = ask_as(2001, path, ("GET", "/token", None, {}))[0][1]["token"]
        url = bridge.said().split("listening on ")[1].split("/mcp/NAME")[0]
        headers = {**BOTH, "Authorization": f"Bearer {token}"}
        reply = httpx2.post(f"{url}/mcp/s", headers=headers, json=call("pid"), trust_env=False, timeout=PATIENCE)
        assert int(text_of(reply.json())) == pooled[0]
        assert bridge.end() == 0
        eventually(lambda: not any(map(is_alive, [own, *pooled])), "the servers ended with the bridge")


CROWD = """
import socket, sys
crowd = [socket.socket(socket.AF_UNIX) for _ in range(200)]
for each in crowd:
    each.connect(sys.argv[1])
print("there", flush=True)
sys.stdin.read()
"""


@needs_root
def test_one_user_cannot_take_all_connections(start: Callable[..., Program]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        path = Path(place) / "bridge.sock"
        # A quarter of the descriptors is for such connections: 128.
        bridge = start(*SHARED, str(path), f"{place}/tokens", COMMAND, "512", WATCHDOG_USEC="200000")
        bridge.hear("READY=1")
        argv = ["setpriv", "--reuid=2001", "--regid=2001", "--clear-groups", "/usr/bin/python3", "-c", CROWD, str(path)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/") as crowd:
            assert crowd.stdout is not None
            assert crowd.stdout.readline() == b"there\n"
            assert [status for status, _, _ in ask_as(2002, path, ("GET", "/health", None, {}))] == [200]
            bridge.hear("STATUS=0 sessions, 16 connections")
            crowd.communicate()
        assert [status for status, _, _ in ask_as(2001, path, ("GET", "/health", None, {}))] == [200]


# ------------------------------------------------------------------------------------- an address that is taken


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    """A port of loopback at which a program of this user listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def squatted(taken: socket.socket) -> socket.socket:
    """A port of loopback at which another user listens."""
    os.fchown(taken.fileno(), NOBODY, -1)
    return taken


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """The file with the token that the user's clients send."""
    file = tmp_path / "STATE_HOME/mcp/bridge.token"
    file.parent.mkdir(parents=True)
    file.write_text("captured-captured-captured\n")
    file.chmod(0o600)
    return file


def address(listener: socket.socket) -> str:
    return "{}:{}".format(*listener.getsockname())


def status(listener: str, token: str) -> int:
    headers = {**BOTH, "Authorization": f"Bearer {token.strip()}"}
    return httpx2.post(
        f"http://{listener}/mcp/s", headers=headers, json=PING, trust_env=False, timeout=PATIENCE
    ).status_code


@needs_root
def test_a_bridge_whose_address_another_user_has_serves_its_unix_sockets_and_withdraws_the_token(
    start: Callable[..., Program], passed: socket.socket, squatted: socket.socket, token: Path
) -> None:
    captured = token.read_text()
    bridge = start(*BRIDGE, sockets=[passed], MCPD_BRIDGE_LISTEN=address(squatted))
    bridge.hear("READY=1")
    with over(passed.getsockname()) as http:
        assert http.get("/health").status_code == 200
    assert f"{address(squatted)} belongs to uid {NOBODY}" in bridge.said()
    assert not token.exists()
    assert bridge.end() == 0
    squatted.close()
    url = token.parents[2] / "RUNTIME_DIR/mcp/bridge.url"
    url.parent.mkdir()
    again = start(*BRIDGE, sockets=[passed], MCPD_BRIDGE_LISTEN="127.0.0.1:0")
    again.hear("READY=1")
    eventually(lambda: url.exists() and url.read_text(), "the URL is told")
    free = url.read_text().strip().removeprefix("http://")
    assert [status(free, shown) for shown in (captured, token.read_text())] == [401, 503]


def test_a_bridge_whose_address_its_own_user_has_serves_its_unix_sockets_and_keeps_the_token(
    start: Callable[..., Program], passed: socket.socket, taken: socket.socket, token: Path
) -> None:
    before = token.read_text()
    bridge = start(*BRIDGE, sockets=[passed], MCPD_BRIDGE_LISTEN=address(taken))
    bridge.hear("READY=1")
    with over(passed.getsockname()) as http:
        assert http.get("/health").status_code == 200
    assert f"{address(taken)} is in use by another program of yours" in bridge.said()
    assert token.read_text() == before


def test_an_address_on_the_command_line_that_is_taken_is_an_error(
    start: Callable[..., Program], passed: socket.socket, taken: socket.socket
) -> None:
    bridge = start(*BRIDGE, "--listen", address(taken), sockets=[passed])
    assert bridge.process.wait(PATIENCE) == 1
    assert "is in use by another program" in bridge.said()


def test_a_bridge_without_tcp_makes_no_token_and_leaves_no_url(
    start: Callable[..., Program], passed: socket.socket, tmp_path: Path
) -> None:
    url = tmp_path / "RUNTIME_DIR/mcp/bridge.url"
    url.parent.mkdir()
    url.write_text("http://127.0.0.1:1\n")
    bridge = start(*BRIDGE, sockets=[passed])
    bridge.hear("READY=1")
    assert not (tmp_path / "STATE_HOME/mcp/bridge.token").exists()
    eventually(lambda: not url.exists(), "the URL is withdrawn")
