# SPDX-License-Identifier: LGPL-2.1-or-later
"""The user's bridge in front of a real mcpd on a private session bus."""

from __future__ import annotations

import shutil
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from mcpd.paths import Scope, from_environment
from mcpd.store import Store
from tests.bridge.bridge_harness import PATIENCE, Bridge, call, descendants, eventually, initialize, is_alive, text_of
from tests.bridge.bridge_machine import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("dbus-daemon") is None, reason="needs dbus-daemon")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    found = Machine(tmp_path_factory.mktemp("machine"))
    try:
        found.boot()
        yield found
    finally:
        found.close()


def test_the_bridge_starts_without_mcpd_and_says_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    environ = {
        "HOME": str(tmp_path),
        "XDG_RUNTIME_DIR": str(tmp_path / "run"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "MCP_ROOT": str(tmp_path / "system"),
        "DBUS_SESSION_BUS_ADDRESS": f"unix:path={tmp_path}/run/bus",
    }
    bridge = Bridge(["--listen", "127.0.0.1:0"], environ, tmp_path / "bridge.log")
    try:
        eventually(lambda: "mcpd cannot be reached" in bridge.said(), "the warning")
        eventually(lambda: "token in" in bridge.said(), "the bridge listens")
        said = bridge.said()
        assert f"listening on the unix socket {tmp_path}/run/mcp/bridge.sock" in said
        assert f"send the token in {tmp_path}/state/mcp/bridge.token" in said
        assert bridge.http().get("/health").status_code == 200
        assert bridge.stop() == 0
    finally:
        bridge.close()


def test_an_installed_server_is_served_over_http(machine: Machine) -> None:
    client = machine.client("fix").open()
    assert text_of(client.ask(call("echo", "e", text="through mcpd"))) == "through mcpd"
    pid = int(text_of(client.ask(call("pid"))))
    assert is_alive(pid)
    assert client.delete().status_code == 204
    eventually(lambda: not is_alive(pid), "mcpd stopped the session's server")


def test_a_server_that_does_not_end_by_itself_is_stopped_by_mcpd(machine: Machine) -> None:
    client = machine.client("fix").open()
    pid = int(text_of(client.ask(call("pid"))))
    assert "reads nothing" in text_of(client.ask(call("deaf")))
    assert client.delete().status_code == 204
    eventually(lambda: not is_alive(pid), "mcpd stopped the server that ignores the end of its input")


def test_a_server_that_is_not_installed_is_404(machine: Machine) -> None:
    for message in (initialize("i"), call("echo", "i", text="x")):
        reply = machine.client("com.example.nothing").post(message)
        assert (reply.status_code, reply.json()["id"]) == (404, "i")


def test_a_server_that_cannot_be_reached_in_any_known_way_says_so(machine: Machine) -> None:
    machine.install("remote", {"transports": [{"type": "carrier-pigeon"}]})
    reply = machine.client("remote").post(initialize("i"))
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, -32603)


def test_the_page_of_a_server_shows_what_it_listed_when_it_was_installed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install("listed", {})
    page = "/mcp/meta/listed"
    http, before = machine.client("listed").http, descendants(machine.daemon.pid)
    assert "compute_pi" not in http.get(page, headers={"Accept": "text/html"}).text
    for name in ("HOME", "MCP_ROOT"):
        monkeypatch.setenv(name, machine.environ[name])
    tools = [{"name": "compute_pi", "description": "Digits of pi", "inputSchema": {"type": "object"}}]
    Store(from_environment(), Scope.USER).set_tools("listed", tools)
    shown = http.get(page, headers={"Accept": "text/html"}).text
    assert "<code>compute_pi</code>" in shown
    assert "when it was installed" in shown
    assert descendants(machine.daemon.pid) == before


def test_the_manifest_says_how_long_a_call_may_take(machine: Machine) -> None:
    machine.install("hasty", {"runtime": {"callTimeout": 1}})
    answer = machine.client("hasty").open().ask(call("hang"))
    assert answer["error"] == {"code": -32000, "message": "Tool execution timeout after 1 s"}


def test_a_server_of_mcpd_that_dies_is_there_again(machine: Machine) -> None:
    client = machine.client("fix").open()
    before = text_of(client.ask(call("pid")))
    assert client.ask(call("crash"))["error"]["code"] == -32603
    assert text_of(client.ask(call("pid"))) != before


def test_the_bridge_lives_on_without_mcpd_and_finds_it_again(machine: Machine) -> None:
    machine.daemon.send_signal(signal.SIGTERM)
    machine.daemon.wait(PATIENCE)
    assert machine.client("fix").post(initialize("i")).status_code == 503
    assert machine.client("fix").http.get("/health").status_code == 200
    machine.programs.remove(machine.daemon)
    machine.daemon = machine.start(sys.executable, "-m", "mcpd.daemon", "--user")
    eventually(lambda: machine.client("fix").post(initialize("i")).status_code == 200, "mcpd is found again")
    bus = machine.programs[0]
    bus.kill()
    bus.wait()
    (machine.runtime / "bus").unlink(missing_ok=True)
    machine.daemon.wait(PATIENCE)
    assert machine.client("fix").post(initialize("i")).status_code == 503
    machine.programs[:] = []
    machine.start_bus()
    machine.daemon = machine.start(sys.executable, "-m", "mcpd.daemon", "--user")
    eventually(lambda: machine.client("fix").post(initialize("i")).status_code == 200, "the new bus is found")


def test_sigterm_leaves_no_server_behind(machine: Machine) -> None:
    pid = int(text_of(machine.client("fix").open().ask(call("pid"))))
    assert machine.bridge is not None
    assert machine.bridge.stop() == 0
    eventually(lambda: not is_alive(pid), "the server ended with the bridge")
    assert not machine.socket.exists()
