# SPDX-License-Identifier: LGPL-2.1-or-later
"""HTTP beside POSTs: pages by Accept, errors, headers, keys."""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx2
import pytest

from mcpd.bridge.pages.snippets import snippets
from mcpd.bridge.pages.survey import MOST_PROBLEM, MOST_PROBLEMS, PROBLEMS, Offer
from mcpd.bridge.site import Site
from tests.bridge.bridge_harness import BOTH, COMMAND, PATIENCE, Bridge, call, descendants, eventually, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SERVER = Path(__file__).parent / "fixtures" / "pages_server.py"
NAMES = ("<b>\"&'", "a b?c#d%2f", "\u202eevil")
"""Names that a bridge of commands can have."""
TOOLS_LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    commands: dict[str, dict[str, Any]] = {
        name: {"command": sys.executable, "args": [str(SERVER)]} for name in ("weather", "asked", *NAMES)
    }
    commands["many"] = {"command": sys.executable, "args": [str(SERVER), "--tools", "5000"]}
    commands["endless"] = {"command": sys.executable, "args": [str(SERVER), "--endless"]}
    commands["broken"] = {"command": sys.executable, "args": [str(SERVER), "--broken"], "env": {"TOKEN": "s3cret"}}
    commands["gone"] = {"command": "/no/such/program", "args": ["--key=s3cret"]}
    directory = tmp_path_factory.mktemp("site")
    config = directory / "config.json"
    config.write_text(json.dumps({"mcpServers": commands}))
    bridge = Bridge(["--listen", "127.0.0.1:0", "--auth", "none", "--config", str(config)], {}, directory / "log")
    try:
        yield bridge
    finally:
        bridge.close()


def is_page(reply: httpx2.Response, status: int = 200) -> bool:
    return reply.status_code == status and reply.headers["content-type"] == "text/html; charset=utf-8"


# ---------------------------------------------------------------------------------------- which there are


@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
def test_the_overview_lists_the_servers(site: Bridge, path: str) -> None:
    reply = site.http().get(path, headers=HTML)
    assert is_page(reply)
    assert 'href="/mcp/weather"' in reply.text
    assert 'href="/mcp/meta/weather"' in reply.text
    assert 'href="https://modelcontextprotocol.io/' in reply.text
    assert 'href="/mcp/meta/%3Cb%3E%22%26%27"' in reply.text
    assert "<b>" not in reply.text
    assert "s3cret" not in reply.text


@pytest.mark.parametrize("path", ["/mcp/weather", "/mcp/weather/", "/mcp/meta/weather", "/mcp/meta/weather/"])
@pytest.mark.parametrize("accept", ["", "*/*", "text/html", "text/*;q=0.1, application/json"])
def test_T9_2_a_server_has_a_page(site: Bridge, path: str, accept: str) -> None:
    reply = site.http().get(path, headers={"Accept": accept})
    assert is_page(reply)
    assert "Connection test" in reply.text
    assert f"{site.url}/mcp/weather" in reply.text


@pytest.mark.parametrize("accept", ["application/json", "image/png", "text/html;q=0"])
def test_what_takes_no_page_is_told(site: Bridge, accept: str) -> None:
    assert site.http().get("/mcp/weather", headers={"Accept": accept}).status_code == 406


def test_a_stream_is_still_a_stream(bridge: Bridge) -> None:
    client = bridge.client().open()
    with client.listen() as messages:
        client.post(call("change"))
        assert next(messages)["method"].startswith("notifications/")


def test_head_is_a_page_without_its_body(site: Bridge) -> None:
    for path in ("/mcp", "/mcp/weather", "/mcp/meta/weather", "/assets/style.css", "/health"):
        reply = site.http().head(path)
        assert (reply.status_code, reply.content) == (200, b"")
        assert int(reply.headers["content-length"]) > 0


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/mcp"), ("DELETE", "/mcp/meta/weather"), ("PUT", "/mcp/weather"), ("POST", "/assets/style.css"),
     ("POST", "/health")],
)  # fmt: skip
def test_other_methods_are_refused(site: Bridge, method: str, path: str) -> None:
    reply = site.http().request(method, path)
    assert reply.status_code == 405
    assert "GET" in reply.headers["allow"]


# ---------------------------------------------------------------------------------------- no process by GET


def test_only_a_post_starts_a_server(site: Bridge) -> None:
    http, before = site.http(), descendants(site.pid)
    for path in ("/mcp", "/mcp/weather", "/mcp/meta/weather"):
        assert "Tells the weather" not in http.get(path).text
    assert descendants(site.pid) == before
    reply = http.post("/mcp/meta/weather", headers=HTML)
    assert is_page(reply)
    assert "Tells the weather" in reply.text
    eventually(lambda: descendants(site.pid) == before, "the session of the page has ended")
    assert "Tells the weather" in http.get("/mcp/weather").text
    assert descendants(site.pid) == before


def test_a_page_shows_what_a_client_was_told_without_asking(site: Bridge) -> None:
    before = descendants(site.pid)
    client = site.client("asked").open()
    listed = client.post({**TOOLS_LIST, "params": {}})
    assert "result" in listed.json()
    page = site.http().get("/mcp/meta/asked")
    assert is_page(page)
    assert "Tells the weather" in page.text
    assert "when it was last asked" in page.text
    assert "Prompts" not in page.text
    client.delete()
    eventually(lambda: descendants(site.pid) == before, "the client's process has ended")


def test_pages_of_others_cannot_start_it(site: Bridge) -> None:
    reply = site.http().post("/mcp/meta/many", headers={"Origin": "https://evil.example"})
    assert reply.status_code == 403
    assert "tool-1" not in site.http().get("/mcp/meta/many").text


def test_it_shows_schemas_resources_and_prompts(site: Bridge) -> None:
    text = site.http().post("/mcp/meta/weather").text
    for shown in ("place", "Name of a town", "one of celsius, fahrenheit", "at least 1", "default 3", "only reads",
                  "Log of today", "weather://{town}", "greet", "A person", "Ask for one place at a time.",
                  "temperature", "2025-11-25"):  # fmt: skip
        assert shown in text, shown


def test_a_server_of_the_modern_era_alone_is_asked_in_it(alone: Callable[..., Bridge]) -> None:
    bridge = alone("--server", f"m={sys.executable} {SERVER.with_name('modern_server.py')} modern")
    text = bridge.http().post("/mcp/meta/m").text
    assert "spoke 2026-07-28" in text
    assert "<code>echo</code>" in text


def test_T14_2_nothing_of_a_server_is_markup(site: Bridge) -> None:
    text = site.http().post("/mcp/meta/weather").text
    assert text.count("<script") == 1
    assert '<script src="/assets/page.js" defer></script>' in text
    assert "&lt;script&gt;document.title=" in text
    assert "<img src=x" not in text
    assert "{{ 7 * 7 }}" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    assert "‹U+202E›gnirts" in text


@pytest.mark.parametrize("name", NAMES)
def test_T14_2_nothing_of_a_name_is_markup(site: Bridge, name: str) -> None:
    segment = quote(name, safe="")
    text = site.http().get(f"/mcp/meta/{segment}").text
    assert f'data-endpoint="/mcp/{segment}"' in text
    assert "<b>" not in text
    assert "\u202e" not in text
    assert site.client(segment).ask(TOOLS_LIST)["result"]["tools"]


def test_a_server_with_thousands_of_tools_does_not_fill_the_page(site: Bridge) -> None:
    reply = site.http().post("/mcp/meta/many")
    assert "4804 more are not shown" in reply.text
    assert len(reply.content) < 1_000_000


def test_schemas_without_an_end_keep_nobody_waiting(site: Bridge) -> None:
    reply = site.http().post("/mcp/meta/endless")
    assert is_page(reply)
    assert "<code>endless</code>" in reply.text
    assert '<code class="name">deep</code>' in reply.text
    assert len(reply.content) < 200_000


def test_nonsense_is_shown_as_nothing(site: Bridge) -> None:
    reply = site.http().post("/mcp/meta/broken")
    assert is_page(reply)
    assert "s3cret" not in reply.text


def test_a_server_that_does_not_start_says_why(site: Bridge) -> None:
    reply = site.http().post("/mcp/meta/gone")
    assert is_page(reply)
    assert "/no/such/program" in reply.text
    assert "s3cret" not in reply.text


# ---------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("path", ["/mcp/nobody", "/mcp/meta/nobody", "/mcp/meta/..%2f", "/mcp/meta/", "/nothing"])
def test_T12_6_what_is_not_there_is_404_for_both(site: Bridge, path: str) -> None:
    assert is_page(site.http().get(path, headers=HTML), 404)
    reply = site.http().get(path)
    assert (reply.status_code, reply.headers["content-type"]) == (404, "application/json")
    assert reply.json()["error"]["message"]


def test_what_is_asked_for_is_not_markup(site: Bridge) -> None:
    assert "<script>" not in site.http().get("/mcp/<script>", headers=HTML).text


@pytest.mark.parametrize(
    "path", ["/.well-known/oauth-protected-resource", "/.well-known/oauth-authorization-server/mcp/s"]
)
def test_there_is_no_oauth(site: Bridge, path: str) -> None:
    reply = site.http().get(path)
    assert (reply.status_code, reply.json()["error"]) == (404, "not_found")


# ---------------------------------------------------------------------------------------- headers


def test_pages_allow_nothing_from_elsewhere(site: Bridge) -> None:
    for path in ("/mcp", "/mcp/weather", "/mcp/nobody"):
        headers = site.http().get(path, headers=HTML).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "same-origin"


def test_pages_are_for_no_other_site_to_read(site: Bridge) -> None:
    reply = site.http().get("/mcp/weather", headers={**HTML, "Origin": "http://localhost:9"})
    assert is_page(reply)
    assert "access-control-allow-origin" not in reply.headers
    assert site.http().get("/mcp", headers={**HTML, "Origin": "https://evil.example"}).status_code == 403
    assert is_page(site.http().get("/mcp", headers={**HTML, "Host": "evil.example"}), 421)


def test_a_preflight_lets_the_headers_of_every_revision_pass(site: Bridge) -> None:
    wanted = "authorization,mcp-method,mcp-name,mcp-param-Town,x-other"
    headers = {"Origin": "http://localhost:9", "Access-Control-Request-Headers": wanted}
    reply = site.http().options("/mcp/weather", headers=headers)
    allowed = reply.headers["access-control-allow-headers"].lower()
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (204, "http://localhost:9")
    assert all(name in allowed for name in ("authorization", "mcp-method", "mcp-name", "mcp-param-town"))
    assert "x-other" not in allowed


def test_without_the_token_a_page_says_how_to_come_in(start_bridge: Callable[..., Bridge], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret-token\n")
    token.chmod(0o600)
    bridge = start_bridge("--listen", "127.0.0.1:0", "--token-file", str(token), "--server", f"s={COMMAND}")
    for path in ("/mcp", "/mcp/s", "/mcp/meta/s"):
        reply = bridge.http().get(path, headers=HTML)
        assert is_page(reply, 401)
        assert reply.headers["www-authenticate"].startswith("Bearer")
        reply = bridge.http().get(path, headers={**HTML, "Authorization": "Bearer s3cret-token"})
        assert is_page(reply)
        assert "s3cret" not in reply.text
    assert bridge.http().post("/mcp/meta/s").status_code == 401
    assert bridge.http().get("/assets/style.css").status_code == 200
    assert bridge.http().post("/sign-in").status_code == 404
    assert bridge.http().get("/open/x", headers=HTML).status_code == 410


# ---------------------------------------------------------------------------------------- the key, HTTPS


RAW = bytes(range(32))
PUBLIC = (
    "-----BEGIN PUBLIC KEY-----\n"
    + base64.b64encode(bytes.fromhex("302a300506032b6570032100") + RAW).decode()
    + "\n-----END PUBLIC KEY-----\n"
)


@pytest.fixture
def user_bridge(tmp_path: Path) -> Iterator[Bridge]:
    environ = {f"XDG_{name}": str(tmp_path / name) for name in ("RUNTIME_DIR", "STATE_HOME", "CONFIG_HOME")}
    (tmp_path / "RUNTIME_DIR").mkdir(mode=0o700)
    environ |= {
        "HOME": str(tmp_path / "home"),
        "MCP_ROOT": str(tmp_path / "system"),
        "DBUS_SESSION_BUS_ADDRESS": f"unix:path={tmp_path}/no-bus",
    }
    bridge = Bridge(["--listen", "127.0.0.1:0"], environ, tmp_path / "log")
    try:
        yield bridge
    finally:
        bridge.close()


def test_the_verification_key_is_open_and_nothing_else_is(user_bridge: Bridge, tmp_path: Path) -> None:
    http, key = user_bridge.http(), tmp_path / "home/.mcp-orchestration/verification_key.pem"
    key.parent.mkdir(parents=True)
    path = "/keys/verification_key.pem"
    assert http.get(path).status_code == 404
    key.write_text(PUBLIC)
    reply = http.get(path)
    assert (reply.status_code, reply.text) == (200, PUBLIC)
    assert reply.headers["content-type"] == "application/x-pem-file"
    raw = http.get("/keys/verification_key.raw")
    assert (raw.status_code, raw.content) == (200, RAW)
    assert raw.headers["content-type"] == "application/octet-stream"
    # Whatever lies beside the key under the name of its bytes is not looked at.
    key.with_suffix(".raw").write_bytes(b"x" * 32)
    assert http.get("/keys/verification_key.raw").content == RAW
    for other in (PUBLIC.replace("MCow", "MCox"), PUBLIC.replace("AwQF", ""), PUBLIC.replace("AwQF", "Aw*F")):
        key.write_text(other)
        assert http.get("/keys/verification_key.raw").status_code == 404
    key.write_text(PUBLIC.replace("PUBLIC", "PRIVATE"))
    assert http.get("/keys/verification_key.raw").status_code == 404
    assert http.get(path).status_code == 404
    key.rename(key.with_name("other.pem"))
    key.with_name("other.pem").write_text(PUBLIC)
    key.symlink_to("other.pem")
    assert http.get(path).status_code == 404
    key.unlink()
    os.mkfifo(key)
    assert http.get(path).status_code == 404
    key.unlink()
    key.mkdir()
    assert http.get(path).status_code == 404
    assert http.get("/keys/bridge.token").status_code == 404


def certificate(directory: Path) -> tuple[Path, Path]:
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    files = directory / "cert.pem", directory / "key.pem"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


def test_with_a_certificate_everything_is_https(alone: Callable[..., Bridge], tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    bridge = alone("--tls-cert", str(cert), "--tls-key", str(key))
    assert bridge.url.startswith("https://127.0.0.1:")
    base = bridge.url.replace("127.0.0.1", "localhost")
    http = bridge.http(base_url=base, verify=ssl.create_default_context(cafile=str(cert)))
    reply = http.get("/mcp/s", headers=HTML)
    assert f"{base}/mcp/s" in reply.text
    page = {**BOTH, "Origin": base}
    assert text_of(http.post("/mcp/s", headers=page, json=call("echo", text="x")).json()) == "x"
    with pytest.raises(httpx2.TransportError):
        bridge.http(base_url=base.replace("https", "http")).get("/health")


def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    other = tmp_path / "other.pem"
    other.write_text("nothing")
    for files in ((key, cert), (cert, other), (tmp_path / "none.pem", key)):
        argv = [sys.executable, "-m", "mcpd.bridge.main", "--listen", "127.0.0.1:0", "--auth", "none",
                "--server", "s=cat", "--tls-cert", str(files[0]), "--tls-key", str(files[1])]  # fmt: skip
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, env=os.environ, check=False)
        assert done.returncode == 1
        assert str(files[0]) in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("kind", "uid", "scope"), [("user", 1000, []), ("user", 0, ["--user"]), ("system", 0, ["--system"])]
)
def test_examples_call_the_mcpctl_that_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, uid: int, scope: list[str]
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: uid)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (_, examples), *_ = snippets(Site(kind), "x")
    assert examples[-1].text == " ".join(["mcpctl", *scope, "run", "x"])
    program = tmp_path / "mcpctl"
    program.touch()
    (_, examples), *_ = snippets(Site(kind), "x")
    for each in examples:
        assert str(program) in each.text
        assert all(part in each.text for part in scope)


def test_what_is_to_be_pasted_names_the_address_that_was_asked(
    start_bridge: Callable[..., Bridge], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("s" * 32)
    token.chmod(0o600)
    page = start_bridge(
        "--listen=0.0.0.0:0", "--allow-remote", "--allow-host=mcp.example.com", f"--token-file={token}",
        f"--server=s={COMMAND}",
    ).client()  # fmt: skip
    headers = {"Accept": "text/html", "Host": "mcp.example.com:8443", "Authorization": "Bearer " + "s" * 32}
    text = page.http.get("/mcp/meta/s", headers=headers).text
    assert "http://mcp.example.com:8443/mcp/s" in text
    assert "0.0.0.0" not in text


def test_of_what_a_server_tells_is_wrong_with_it_so_much_is_shown() -> None:
    offer = Offer()
    for page in range(3):
        told = [f"{page} {number} {'x' * MOST_PROBLEM}" for number in range(MOST_PROBLEMS - 1)]
        for _ in range(2):
            offer.troubled({"_meta": {PROBLEMS: told}})
    assert len(offer.faults) == len(set(offer.faults)) == MOST_PROBLEMS
    assert {len(fault) for fault in offer.faults} == {MOST_PROBLEM}
    assert offer.faults[-1].startswith("1 0 ")
