# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who may use the bridge (T14.4)."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from mcpd import __version__
from tests.bridge.bridge_harness import BOTH, COMMAND, PATIENCE, ROOT, Client, call, eventually, initialize, text_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.bridge.bridge_harness import Bridge

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


# ---------------------------------------------------------------------------------------- Host and Origin


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:9", "[::1]", "[::1]:65535"])
def test_names_of_loopback_are_served(bridge: Bridge, host: str) -> None:
    assert bridge.client().post(PING, Host=host).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "localhost@evil.example", "127.0.0.2",
     "localhost:80:80", "localhost evil", "[::1", "10.0.0.1"],
)  # fmt: skip
def test_dns_rebinding_is_misdirected(bridge: Bridge, host: str) -> None:
    assert bridge.client().post(PING, Host=host).status_code == 421
    assert bridge.http().get("/health", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("origin", ["http://localhost", "http://127.0.0.1:3000", "https://[::1]:8443"])
def test_T9_6_T14_4_pages_of_loopback_get_cors_headers(bridge: Bridge, origin: str) -> None:
    reply = bridge.client().post(PING, Origin=origin)
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == origin
    assert "Mcp-Session-Id" in reply.headers["access-control-expose-headers"]
    assert reply.headers["vary"] == "Origin"


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost.evil.example", "file://", "http://localhost@evil.x"]
)
def test_T14_4_foreign_pages_are_refused(bridge: Bridge, origin: str) -> None:
    for method in ("POST", "GET", "OPTIONS", "DELETE"):
        reply = bridge.http().request(method, "/mcp/s", headers={**BOTH, "Origin": origin}, content=json.dumps(PING))
        assert reply.status_code == 403, method
        assert "access-control-allow-origin" not in reply.headers


def test_T14_4_configured_origins_are_served(alone: Callable[..., Bridge]) -> None:
    client = alone("--allow-origin", "https://app.example").client()
    assert client.post(PING, Origin="https://app.example").status_code == 200
    assert client.post(PING, Origin="https://app.example.evil").status_code == 403


def test_T9_6_a_preflight_needs_no_token(start_bridge: Callable[..., Bridge], token_file: Path) -> None:
    bridge = start_bridge("--listen", "127.0.0.1:0", "--token-file", str(token_file), "--server", f"s={COMMAND}")
    headers = {"Origin": "http://localhost:5173", "Access-Control-Request-Method": "POST"}
    reply = bridge.http().options("/mcp/s", headers=headers)
    assert reply.status_code == 204
    assert "Authorization" in reply.headers["access-control-allow-headers"]
    assert "DELETE" in reply.headers["access-control-allow-methods"]


# ---------------------------------------------------------------------------------------- the token


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("s3cret-token\n")
    file.chmod(0o600)
    return file


@pytest.mark.parametrize("header", ["", "Bearer wrong", "Bearer s3cret-toke", "Basic s3cret-token", "s3cret-token",
                                    "Bearer s3cret-tokenx", "Bearer", "Bearer \xe9"])  # fmt: skip
def test_without_the_token_nobody_comes_in(start_bridge: Callable[..., Bridge], token_file: Path, header: str) -> None:
    bridge = start_bridge("--listen", "127.0.0.1:0", "--token-file", str(token_file), "--server", f"s={COMMAND}")
    for method in ("POST", "GET", "DELETE"):
        headers: Any = {**BOTH, **({"Authorization": header.encode("latin-1")} if header else {})}
        reply = bridge.http().request(method, "/mcp/s", headers=headers, content=json.dumps(PING))
        assert reply.status_code == 401
        assert reply.headers["www-authenticate"].startswith("Bearer")
    assert bridge.http().get("/health").status_code == 200
    assert bridge.http().get("/.well-known/oauth-authorization-server").status_code == 404


def test_with_the_token_one_does(start_bridge: Callable[..., Bridge], token_file: Path) -> None:
    bridge = start_bridge("--listen", "127.0.0.1:0", "--token-file", str(token_file), "--server", f"s={COMMAND}")
    for header in ("Bearer s3cret-token", "bearer  s3cret-token"):
        assert bridge.client().post(PING, Authorization=header).status_code == 200
    assert "s3cret-token" not in bridge.said()


# ---------------------------------------------------------------------------------------- where it listens


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--listen", "0.0.0.0:0", "--auth", "none"], "--allow-remote"),
        (["--listen", "[::]:0", "--token-file", "TOKEN"], "--allow-remote"),
        (["--listen", "0.0.0.0:0", "--auth", "none", "--allow-remote"], "--auth none"),
        (["--listen", "127.0.0.1:0"], "--token-file"),
        (["--listen", "127.0.0.1:0", "--auth", "none", "--token-file", "TOKEN"], "either"),
        (["--auth", "none"], "--listen"),
        ([], "--listen 127.0.0.1:7411; specify who may connect: either --token-file FILE or --auth none"),
        (["--listen", "example.com:80", "--auth", "none"], "HOST:PORT"),
        (["--listen", "127.0.0.1:99999", "--auth", "none"], "HOST:PORT"),
        (["--listen", "127.0.0.1:0", "--auth", "none", "--server", "s=x"], "twice"),
        (["--listen", "127.0.0.1:0", "--auth", "none", "--server", "meta=x"], "meta"),
        (["--listen", "127.0.0.1:0", "--auth", "none", "--server", "a/b=x"], "a/b"),
        (["--listen", "127.0.0.1:0", "--auth", "none", "--server", "q='"], "quotation"),
        (["--listen", "127.0.0.1:0", "--auth", "none", "--config", "/nonexistent"], "/nonexistent"),
        (["--listen", "127.0.0.1:0", "--auth", "none", "--call-timeout", "0"], "--call-timeout"),
        (["--listen", "127.0.0.1:0", "--auth", "none", "--allow-origin", "*"], "is not an origin"),
        (["--listen", "127.0.0.1:0", "--auth", "none", "--allow-origin", "https://a.example/"], "is not an origin"),
        (["--listen", "127.0.0.1:0", "--auth", "none", "--allow-host", "https://a.example"], "is not a host name"),
    ],
)
def test_unsafe_or_unclear_arguments_are_refused(token_file: Path, arguments: list[str], hint: str) -> None:
    given = [str(token_file) if argument == "TOKEN" else argument for argument in arguments]
    command = [sys.executable, "-m", "mcpd.bridge.main", "--server", "s=cat", *given]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode != 0
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_token_that_others_can_write_is_refused(token_file: Path, mode: int) -> None:
    token_file.chmod(mode)
    done = _run("--server", "s=cat", "--listen", "127.0.0.1:0", "--token-file", str(token_file))
    assert done.returncode == 1
    assert f"chmod 600 {token_file}" in done.stderr
    assert "s3cret" not in done.stderr


def test_options_of_the_other_form_are_told_apart() -> None:
    done = _run("--auth", "none")
    assert done.returncode == 2
    assert "mcpd.toml" in done.stderr


def test_the_programs_tell_their_version() -> None:
    for module, name in (("mcpd.bridge.main", "mcpd-bridge"), ("mcpd.daemon", "mcpd")):
        command = [sys.executable, "-m", module, "--version"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=True)
        assert done.stdout == f"{name} {__version__}\n"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mcpd.bridge.main", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_a_remote_listener_needs_the_flag_and_answers_to_addresses(
    start_bridge: Callable[..., Bridge], token_file: Path
) -> None:
    bridge = start_bridge(
        "--listen", "0.0.0.0:0", "--allow-remote", "--allow-host", "Box.example", "--token-file", str(token_file),
        "--server", f"s={COMMAND}",
    )  # fmt: skip
    port = bridge.url.rpartition(":")[2]
    http = bridge.http(base_url=f"http://127.0.0.1:{port}")
    hosts = {"192.0.2.7:80": 200, "box.example": 200, "[2001:db8::1]": 200, "evil.example": 421}
    assert {host: http.get("/health", headers={"Host": host}).status_code for host in hosts} == hosts
    assert "WITHOUT TLS: the token and all calls travel unencrypted" in bridge.said()


def test_the_root_leads_to_the_pages(start_bridge: Callable[..., Bridge], token_file: Path) -> None:
    bridge = start_bridge("--listen", "127.0.0.1:0", "--token-file", str(token_file), "--server", f"s={COMMAND}")
    reply = bridge.http(base_url=bridge.url).get("/")
    assert (reply.status_code, reply.headers["location"]) == (303, "/mcp")
    assert "WITHOUT TLS" not in bridge.said()


# ---------------------------------------------------------------------------------------- the user's bridge


@pytest.fixture
def user_environment(tmp_path: Path) -> dict[str, str]:
    places = {name: tmp_path / name for name in ("RUNTIME_DIR", "STATE_HOME", "CONFIG_HOME", "DATA_HOME", "CACHE_HOME")}
    for place in places.values():
        place.mkdir(mode=0o700)
    return {
        **{f"XDG_{name}": str(place) for name, place in places.items()},
        "MCP_ROOT": str(tmp_path / "root"),
        "DBUS_SESSION_BUS_ADDRESS": f"unix:path={tmp_path}/no-bus",
    }


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def over_unix(path: Path) -> httpx2.Client:
    transport = httpx2.HTTPTransport(uds=str(path))
    return httpx2.Client(transport=transport, base_url="http://localhost", timeout=PATIENCE, trust_env=False)


def test_the_users_bridge_has_a_private_socket_and_token(
    start_bridge: Callable[..., Bridge], user_environment: dict[str, str], tmp_path: Path
) -> None:
    bridge = start_bridge("--user", "--listen", "127.0.0.1:0", **user_environment)
    url = bridge.wait_url()
    runtime = tmp_path / "RUNTIME_DIR" / "mcp"
    token = tmp_path / "STATE_HOME" / "mcp" / "bridge.token"
    assert [mode(runtime), mode(runtime / "bridge.sock"), mode(token)] == [0o700, 0o600, 0o600]
    assert (runtime / "bridge.url").read_text().strip() == url
    secret = token.read_text().strip()
    assert len(secret) >= 43
    with over_unix(runtime / "bridge.sock") as local, bridge.http() as tcp:
        assert local.get("/health").status_code == 200
        # There is no bus here, so whoever was let in learns that mcpd cannot be reached.
        assert local.post("/mcp/s", json=PING, headers=BOTH).status_code == 503
        assert tcp.post("/mcp/s", json=PING, headers=BOTH).status_code == 401
        authorized = {**BOTH, "Authorization": f"Bearer {secret}"}
        assert tcp.post("/mcp/s", json=PING, headers=authorized).status_code == 503
    assert secret not in bridge.said()
    assert bridge.stop() == 0
    assert not (runtime / "bridge.url").exists()
    assert not (runtime / "bridge.sock").exists()


def test_the_token_is_kept_unless_others_could_read_it(
    start_bridge: Callable[..., Bridge], user_environment: dict[str, str], tmp_path: Path
) -> None:
    token = tmp_path / "STATE_HOME" / "mcp" / "bridge.token"
    found = []
    for change in (None, None, 0o644):
        if change is not None:
            token.chmod(change)
        bridge = start_bridge("--listen", "127.0.0.1:0", **user_environment)
        bridge.wait_url()
        bridge.stop()
        found.append(token.read_text())
    assert found[0] == found[1] != found[2]
    assert mode(token) == 0o600


def test_a_dead_socket_is_replaced_and_a_live_one_respected(
    start_bridge: Callable[..., Bridge], user_environment: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "RUNTIME_DIR" / "mcp" / "bridge.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    first = start_bridge("--listen", "127.0.0.1:0", **user_environment)
    first.wait_url()
    second = start_bridge("--listen", "127.0.0.1:0", **user_environment)
    assert second.process.wait(PATIENCE) != 0
    assert "another bridge" in second.said()
    with over_unix(path) as http:
        assert http.get("/health").status_code == 200


def test_sockets_from_systemd_are_used(user_environment: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "passed.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        starter = (
            "import os, sys\n"
            f"os.dup2({listener.fileno()}, 3)\n"
            "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')\n"
            "os.execv(sys.executable, [sys.executable, '-m', 'mcpd.bridge.main'])\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", starter],
            cwd=ROOT,
            env={**os.environ, **user_environment},
            pass_fds=[listener.fileno(), 3] if listener.fileno() != 3 else [3],
            stderr=subprocess.DEVNULL,
        )
    try:
        with over_unix(path) as http:
            assert http.get("/health").json() == {"status": "ok"}
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0
    assert path.exists()


# ---------------------------------------------------------------------------------------- slow clients


def test_connections_without_a_request_are_closed(bridge: Bridge) -> None:
    host, port = bridge.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), PATIENCE) as client:
        client.sendall(b"POST /mcp/s HTTP/1.1\r\nHost: localhost\r\n")
        assert client.recv(1) == b""


def test_headers_without_end_are_refused(bridge: Bridge) -> None:
    host, port = bridge.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), PATIENCE) as client:
        client.sendall(b"POST /mcp/s HTTP/1.1\r\nHost: localhost\r\n")
        try:
            for number in range(4000):
                client.sendall(b"X-%d: %b\r\n" % (number, b"y" * 100))
            refused = client.recv(1000).startswith(b"HTTP/1.1 400")
        except ConnectionError:
            refused = True
        assert refused
    with socket.create_connection((host, int(port)), PATIENCE) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            answer += client.recv(1000) or pytest.fail("closed before its answer was whole")
        assert answer.startswith(b"HTTP/1.1 200")
        client.sendall(b"GET /health HTTP/1.1\r\nX-Slow:")
        assert client.recv(1) == b""


def test_broken_requests_cost_only_themselves(bridge: Bridge) -> None:
    host, port = bridge.url.removeprefix("http://").split(":")
    for junk in (b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"POST /mcp/s HTTP/1.1\r\nContent-Length: x\r\n\r\n"):
        with socket.create_connection((host, int(port)), PATIENCE) as client:
            client.sendall(junk)
            assert client.recv(100)[:12] in {b"HTTP/1.1 400", b""}
    assert text_of(bridge.client().ask(call("echo", text="fine"))) == "fine"


@pytest.mark.parametrize(
    "framing",
    [b"Content-Length: 4\r\nTransfer-Encoding: chunked", b"Content-Length: 4\r\nContent-Length: 61",
     b"Transfer-Encoding: xchunked", b"Content-Length: +61",
     b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 61"],
)  # fmt: skip
def test_a_body_is_never_taken_for_a_request(bridge: Bridge, framing: bytes) -> None:
    host, port = bridge.url.removeprefix("http://").split(":")
    head = b"POST /mcp/s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port)), PATIENCE) as client:
        client.sendall(head + framing + b"\r\n\r\n")
        received = client.recv(1)
        try:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while data := client.recv(10_000):
                received += data
        except ConnectionError:
            pass
    assert received.startswith(b"HTTP/1.1 400 ")
    assert received.count(b"HTTP/1.1 ") == 1


def test_a_client_that_does_not_read_disturbs_nobody(bridge: Bridge) -> None:
    host, port = bridge.url.removeprefix("http://").split(":")
    body = json.dumps(call("big", size=16 * 1024 * 1024)).encode()
    head = "POST /mcp/s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    with socket.create_connection((host, int(port)), PATIENCE) as client:
        client.sendall(head.encode() + b"%d\r\n\r\n" % len(body) + body)
        other = Client(bridge.http(), "s")
        for number in range(20):
            assert text_of(other.ask(call("echo", number, text="x"))) == "x"


def test_opening_a_session_nobody_waits_for_leaves_none(alone: Callable[..., Bridge]) -> None:
    bridge = alone("--max-sessions", "1")
    host, port = bridge.url.removeprefix("http://").split(":")
    body = json.dumps(initialize()).encode()
    head = b"POST /mcp/s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection((host, int(port)), PATIENCE) as client:
        client.sendall(head % len(body) + body)
    eventually(lambda: bridge.client().post(initialize()).status_code == 200, "the abandoned session is gone")
