# SPDX-License-Identifier: LGPL-2.1-or-later
"""Signing a browser in by a link that works once: ``mcpctl open`` and what the bridge makes of it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
from typing import TYPE_CHECKING

import httpx2
import pytest

from tests.bridge.bridge_harness import BOTH, PATIENCE, ROOT, Bridge, eventually, initialize
from tests.bridge.bridge_machine import Machine
from tests.bridge.browser import LOOKS, check_look, chromium, keep, visiting
from tests.bridge.test_bridge_service import BRIDGE, Program
from tests.bridge.test_pages_http import certificate
from tests.preloaded import python

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

HTML = {"Accept": "text/html"}
MCPCTL = "mcpctl --user" if os.getuid() == 0 else "mcpctl"
"""How it is called here for the user's own servers."""
NOBODY = 65533
"""A uid that is nobody here."""


class Home:
    """A user's directories, and the bridge in front of no mcpd."""

    def __init__(self, path: Path, *arguments: str) -> None:
        self.path = path
        self.runtime = path / "run"
        self.runtime.mkdir(mode=0o700)
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "MCP"))} | {
            "HOME": str(path),
            "XDG_RUNTIME_DIR": str(self.runtime),
            "MCP_ROOT": str(path / "system"),
            "DBUS_SESSION_BUS_ADDRESS": f"unix:path={path}/no-bus",
        }
        self.bridge = Bridge(["--user", *arguments], self.environ, path / "log")
        eventually((self.runtime / "mcp/bridge.sock").exists, "the bridge listens")

    def unix(self) -> httpx2.Client:
        transport = httpx2.HTTPTransport(uds=str(self.runtime / "mcp/bridge.sock"))
        return self.bridge.http(transport=transport, base_url="http://localhost")

    def link(self) -> str:
        return str(self.unix().post("/sign-in").json()["url"])

    def http(self, link: str) -> httpx2.Client:
        """A browser that has nothing yet."""
        return self.bridge.http(base_url=link.partition("/open/")[0])

    def signed_in(self) -> httpx2.Client:
        link = self.link()
        http = self.http(link)
        assert http.get(link).status_code == 303
        return http


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    yield found
    found.bridge.close()


def mcpctl(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [python(), "-m", "mcpd.cli.main", *arguments]
    return subprocess.run(argv, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)


# ---------------------------------------------------------------------------------------- the link


def test_mcpctl_open_prints_a_link_that_signs_in_once(home: Home) -> None:
    done = mcpctl(home.environ, "--user", "open", "--print")
    assert done.returncode == 0, done.stderr
    link = done.stdout.strip()
    assert link.startswith("http://127.0.0.1:")
    http = home.http(link)
    assert http.get("/mcp", headers=HTML).status_code == 401
    reply = http.get(link, headers=HTML)
    assert (reply.status_code, reply.headers["location"], reply.content) == (303, "/mcp", b"")
    cookie = reply.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert "domain" not in cookie.lower()
    assert http.get("/mcp", headers=HTML).status_code == 200
    other = home.http(link)
    reply = other.get(link, headers=HTML)
    assert reply.status_code == 410
    assert f"{MCPCTL} open" in reply.text
    assert "set-cookie" not in reply.headers
    assert other.get("/mcp").status_code == 401


def test_the_port_is_opened_when_it_is_asked_for_and_told(home: Home) -> None:
    told = home.runtime / "mcp/bridge.url"
    assert not told.exists()
    first, second = home.link(), home.link()
    assert first != second
    assert told.read_text().strip() == first.partition("/open/")[0] == second.partition("/open/")[0]
    home.bridge.stop()
    assert not told.exists()


def test_a_socket_activated_bridge_stays_while_a_browser_is_signed_in(tmp_path: Path) -> None:
    settings = tmp_path / "CONFIG_HOME/mcp/mcpd.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("[bridge]\nidle_exit = 0.4\n")
    for name in ("RUNTIME_DIR", "STATE_HOME"):
        (tmp_path / name).mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as passed:
        passed.bind(str(tmp_path / "socket"))
        passed.listen()
        program = Program(tmp_path, [*BRIDGE, "--user"], [passed])
        transport = httpx2.HTTPTransport(uds=passed.getsockname())
        try:
            with httpx2.Client(
                transport=transport, base_url="http://localhost", trust_env=False, timeout=PATIENCE
            ) as unix:
                link = unix.post("/sign-in").json()["url"]
            own = link.partition("/open/")[0]
            with httpx2.Client(base_url=own, trust_env=False, timeout=PATIENCE) as http:
                assert http.get(link).status_code == 303
                cookies = dict(http.cookies)
            with pytest.raises(subprocess.TimeoutExpired):
                program.process.wait(2)
            with httpx2.Client(base_url=own, cookies=cookies, trust_env=False, timeout=PATIENCE) as http:
                assert http.get("/mcp").status_code == 200
                assert http.post("/sign-out", headers={"Origin": own}).status_code == 303
            assert program.process.wait(PATIENCE) == 0
            assert not (tmp_path / "RUNTIME_DIR/mcp/bridge.url").exists()
        finally:
            program.process.kill()
            program.process.wait()
            program.manager.close()


def test_a_configured_port_is_used(tmp_path: Path) -> None:
    home = Home(tmp_path, "--listen", "127.0.0.1:0")
    try:
        assert home.link().startswith(home.runtime.joinpath("mcp/bridge.url").read_text().strip())
    finally:
        home.bridge.close()


def test_with_a_certificate_links_and_cookies_are_for_https(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    settings = tmp_path / ".config/mcp/mcpd.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f'[bridge]\ntls_certificate = "{cert}"\ntls_key = "{key}"\n')
    home = Home(tmp_path)
    try:
        link = home.link()
        assert link.startswith("https://127.0.0.1:")
        first = ssl.create_default_context(cafile=str(cert))
        base = link.partition("/open/")[0].replace("127.0.0.1", "localhost")
        reply = home.bridge.http(base_url=base, verify=first).get(f"/open/{link.rpartition('/')[2]}")
        assert reply.status_code == 303
        assert "; Secure" in reply.headers["set-cookie"]
        # A new certificate without its key is of no use, and the old one stays.
        old_key = (tmp_path / "key.pem").read_bytes()
        certificate(tmp_path)
        new_key = (tmp_path / "key.pem").read_bytes()
        (tmp_path / "key.pem").write_bytes(old_key)
        home.bridge.process.send_signal(signal.SIGHUP)
        eventually(lambda: "the settings were not changed" in home.bridge.said(), "the certificate is refused")
        assert home.bridge.http(base_url=base, verify=first).get("/health").status_code == 200
        (tmp_path / "key.pem").write_bytes(new_key)
        second = ssl.create_default_context(cafile=str(cert))
        with pytest.raises(httpx2.ConnectError):
            home.bridge.http(base_url=base, verify=second).get("/health")
        home.bridge.process.send_signal(signal.SIGHUP)
        eventually(lambda: "reloaded the settings" in home.bridge.said(), "the certificate is read again")
        assert home.bridge.http(base_url=base, verify=second).get("/health").status_code == 200
    finally:
        home.bridge.close()


def test_mcpctl_open_starts_the_browser_of_the_desktop(home: Home, tmp_path: Path) -> None:
    opener = tmp_path / "bin/xdg-open"
    opener.parent.mkdir()
    opener.write_text(f'#!/bin/sh\necho "$1" >{tmp_path}/opened\n')
    opener.chmod(0o755)
    desktop = {**home.environ, "PATH": f"{opener.parent}:{home.environ['PATH']}", "DISPLAY": ":7"}
    done = mcpctl(desktop, "--user", "open")
    assert (done.returncode, done.stdout) == (0, "")
    link = (tmp_path / "opened").read_text().strip()
    assert home.http(link).get(link).status_code == 303
    opener.write_text("#!/bin/sh\nexit 4\n")
    assert "/open/" in mcpctl(desktop, "--user", "open").stdout


def test_mcpctl_open_says_what_is_missing(tmp_path: Path) -> None:
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = mcpctl(environ, "--user", "open", "--print")
    assert done.returncode == 1
    assert "systemctl --user enable --now mcpd-bridge.socket" in done.stderr
    done = mcpctl(environ, "--system", "open")
    assert done.returncode == 1
    assert "--user open" in done.stderr


@pytest.mark.parametrize(
    "headers",
    [{"Sec-Purpose": "prefetch"}, {"Purpose": "prefetch"}, {"Sec-Fetch-Mode": "no-cors"},
     {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "cross-site"}],
)  # fmt: skip
def test_who_looks_ahead_does_not_use_it_up(home: Home, headers: dict[str, str]) -> None:
    link = home.link()
    http = home.http(link)
    assert http.get(link, headers=headers).status_code == 403
    assert http.head(link).status_code == 405
    assert http.get(link).status_code == 303


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")
def test_links_and_cookies_are_of_no_use_to_other_users(home: Home) -> None:
    def as_nobody(url: str, **headers: str) -> int:
        options = [part for name, value in headers.items() for part in ("-H", f"{name}: {value}")]
        argv = ["setpriv", f"--reuid={NOBODY}", "--clear-groups", "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}"]
        return int(subprocess.run([*argv, *options, url], capture_output=True, text=True, check=True).stdout)

    link = home.link()
    assert as_nobody(link) == 410
    http = home.http(link)
    assert http.get(link).status_code == 303
    cookie = f"mcpd-bridge={http.cookies['mcpd-bridge']}"
    url = f"{link.partition('/open/')[0]}/mcp"
    assert httpx2.get(url, headers={"Cookie": cookie}, trust_env=False, timeout=PATIENCE).status_code == 200
    assert as_nobody(url, Cookie=cookie) == 401


def test_only_so_many_links_wait(home: Home) -> None:
    links = [home.link() for _ in range(20)]
    http = home.http(links[0])
    assert [http.get(link).status_code for link in (links[0], links[-1])] == [410, 303]


def test_links_are_made_at_the_unix_socket_only(home: Home) -> None:
    http = home.signed_in()
    for headers in ({}, {"Origin": str(http.base_url).rstrip("/")}):
        assert http.post("/sign-in", headers=headers).status_code == 404


# ---------------------------------------------------------------------------------------- the cookie


def test_a_page_of_the_bridge_may_post_and_no_other(home: Home) -> None:
    http = home.signed_in()
    own = str(http.base_url).rstrip("/")
    port = own.rpartition(":")[2]

    def post(**headers: str) -> int:
        sent = {**BOTH, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return http.post("/mcp/s", content=json.dumps(initialize()), headers=sent).status_code

    # There is no mcpd behind it, which is found out only once the caller is known.
    assert post(Origin=own) == 503
    assert post(Origin=own, Sec_Fetch_Site="same-origin") == 503
    assert post() == 401
    assert post(Origin="http://127.0.0.1:1") == 401
    assert post(Origin=f"http://localhost:{port}") == 401
    assert post(Origin=own, Sec_Fetch_Site="same-site") == 401
    assert post(Origin="https://evil.example") == 403
    assert http.post("/mcp/meta/s").status_code == 401
    assert http.delete("/mcp/s").status_code == 401


def test_pages_of_others_cannot_read_with_it(home: Home) -> None:
    http = home.signed_in()
    for site, status in (("none", 200), ("same-origin", 200), ("same-site", 401), ("cross-site", 401)):
        assert http.get("/mcp", headers={**HTML, "Sec-Fetch-Site": site}).status_code == status
    assert http.get("/mcp", headers={**HTML, "Origin": "http://127.0.0.1:1"}).status_code == 401


@pytest.mark.parametrize(
    "cookie", ["mcpd-bridge=", "mcpd-bridge=x", "mcpd-bridge", "=", "\xff", 'a=b; mcpd-bridge="x"']
)
def test_other_cookies_are_worth_nothing(home: Home, cookie: str) -> None:
    http = home.http(home.link())
    assert http.get("/mcp", headers={b"Cookie": cookie.encode("latin-1")}).status_code == 401


def test_the_cookies_of_other_ports_do_not_matter(home: Home) -> None:
    http = home.signed_in()
    cookie = f'odd={{"a": [1, "b"]}}; =; \xff; mcpd-bridge={http.cookies["mcpd-bridge"]}; last'
    http.cookies.clear()
    assert http.get("/mcp", headers={b"Cookie": cookie.encode("latin-1")}).status_code == 200


def test_a_cookie_of_another_port_that_comes_first_signs_nobody_out(home: Home) -> None:
    http = home.signed_in()
    own = str(http.base_url).rstrip("/")
    both = {"Cookie": f"mcpd-bridge=x; mcpd-bridge={http.cookies['mcpd-bridge']}"}
    http.cookies.clear()
    assert http.get("/mcp", headers=both).status_code == 200
    assert http.post("/sign-out", headers={**both, "Origin": own}).status_code == 303
    http.cookies.clear()
    assert http.get("/mcp", headers=both).status_code == 401


@pytest.mark.parametrize("host", ["localhost:9999", "127.0.0.1:9999", "localhost"])
def test_a_cookie_counts_at_its_own_port_only(home: Home, host: str) -> None:
    http = home.signed_in()
    port = str(http.base_url).rstrip("/").rpartition(":")[2]
    for given, status in ((host, 401), (f"localhost:{port}", 503)):
        sent = {**BOTH, "Host": given, "Origin": f"http://{given}"}
        assert http.post("/mcp/s", content=json.dumps(initialize()), headers=sent).status_code == status


def test_a_cookie_ends_with_the_bridge_and_by_signing_out(home: Home) -> None:
    http = home.signed_in()
    cookie = {"Cookie": f"mcpd-bridge={http.cookies['mcpd-bridge']}"}
    own = str(http.base_url).rstrip("/")
    assert http.post("/sign-out").status_code == 403
    assert http.get("/mcp", headers=HTML).status_code == 200
    assert "Sign out" in http.get("/mcp", headers=HTML).text
    reply = http.post("/sign-out", headers={"Origin": own})
    assert (reply.status_code, reply.headers["location"]) == (303, "/mcp")
    assert "Max-Age=0" in reply.headers["set-cookie"]
    assert httpx2.get(f"{own}/mcp", headers=cookie, trust_env=False, timeout=PATIENCE).status_code == 401


def test_the_token_still_works_beside_it(home: Home) -> None:
    http = home.http(home.link())
    token = mcpctl(home.environ, "--user", "token").stdout.strip()
    assert http.get("/mcp", headers={"Authorization": f"Bearer {token}"}).status_code == 200
    assert token not in home.unix().get("/mcp").text


# ---------------------------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    found = Machine(tmp_path_factory.mktemp("machine"))
    try:
        found.install("off", {"disabled": True})
        found.install("system-wide", {"runtime": {"runAs": "system"}})
        found.boot()
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.mark.parametrize("look", LOOKS)
def test_a_browser_is_signed_in_uses_a_server_and_signs_out(
    machine: Machine, browser: Browser, look: str, tmp_path: Path
) -> None:
    link = mcpctl(machine.environ, "--user", "open", "--print", "fix").stdout.strip()
    with visiting(browser, expected=(401, 410), **LOOKS[look]) as page:
        page.goto(link)
        assert page.url.endswith("/mcp/meta/fix")
        page.get_by_role("button", name="Test the connection").click()
        page.get_by_text("Works: fixture").first.wait_for()
        page.get_by_text("Connecting").wait_for(state="detached")
        page.get_by_role("button", name=re.compile("Ask the server( again)?")).click()
        page.get_by_role("heading", name=re.compile(r"Tools \d+")).wait_for()
        page.get_by_text("Claude Desktop").click()
        snippet = json.loads(page.locator("details.snippet pre").first.inner_text())["mcpServers"]["fix"]
        # The root user's own servers are not those that mcpctl means by default.
        assert [word for word in snippet["args"] if word != "--user"] == ["run", "fix"]
        check_look(page)
        keep(page, f"signed-in-{look}", tmp_path)
        page.get_by_role("link", name="All servers").click()
        assert page.get_by_role("link", name="fix", exact=True).is_visible()
        assert page.get_by_text("mcps.json").first.is_visible()
        assert not page.get_by_role("link", name="system-wide").count()
        check_look(page)
        keep(page, f"signed-in-servers-{look}", tmp_path)
        page.get_by_role("button", name="Sign out").click()
        assert page.get_by_text(f"{MCPCTL} open").is_visible()
        check_look(page)
        keep(page, f"signed-out-{look}", tmp_path)
        page.goto(link)
        assert page.get_by_role("heading", name="This link is of no use any more").is_visible()


def test_T14_3_a_disabled_server_has_no_page(machine: Machine) -> None:
    http = machine.client("off").http
    for path in ("/mcp/off", "/mcp/meta/off"):
        reply = http.get(path, headers=HTML)
        assert (reply.status_code, "text/html" in reply.headers["content-type"]) == (403, True)
        assert "disabled" in reply.text
        assert http.get(path).json()["error"]["code"] < 0
    assert "/mcp/meta/off" in http.get("/mcp").text
    assert mcpctl(machine.environ, "--user", "open", "--print", "nobody").returncode == 4


def test_the_page_of_a_unix_socket_knows_its_own_ways(machine: Machine) -> None:
    text = machine.client("fix").http.get("/mcp/fix").text
    assert f"unix://{machine.socket}#/mcp/fix" in text
    assert f"{MCPCTL} run fix" in text
    assert f"{MCPCTL} token" in text
    assert "Sign out" not in text
