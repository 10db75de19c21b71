# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers with the permission ``mcp`` call others."""

from __future__ import annotations

import base64
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from mcpd.paths import calls_key, calls_socket
from mcpd.runtime.calls import Calls, Pass, issue, read
from tests.bridge.bridge_harness import BOTH, PATIENCE, Client, call, eventually, initialize, text_of
from tests.bridge.bridge_machine import Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("dbus-daemon") is None, reason="needs dbus-daemon")

ASKER = r"""
import http.client, json, os, socket, sys

class Other(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(os.environ["MCPD_SOCKET"])

def ask(server, message):
    other = Other("localhost")
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
               "Authorization": "Bearer " + os.environ["MCPD_SOCKET_TOKEN"]}
    other.request("POST", "/mcp/" + server, json.dumps(message), headers)
    reply = other.getresponse()
    return {"status": reply.status, "body": json.loads(reply.read())}

for line in sys.stdin:
    m = json.loads(line)
    if m.get("method") == "initialize":
        information = {"name": "asker", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": information}
    elif m.get("method") == "tools/call":
        arguments = m["params"]["arguments"]
        result = {"content": [{"type": "text", "text": json.dumps(ask(arguments["server"], arguments["message"]))}]}
    elif "id" in m:
        result = {}
    if "id" in m:
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": result}), flush=True)
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    found = Machine(tmp_path_factory.mktemp("machine"))
    try:
        found.install("other", {})
        found.install("narrow", {})
        path = found.home / ".config/mcp/mcps.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"narrow": {"disallowed_tools": ["echo"]}}))
        found.boot()
        yield found
    finally:
        found.close()


@pytest.fixture
def as_server(machine: Machine) -> Iterator[Callable[..., Client]]:
    """Clients that speak for a server."""
    clients: list[httpx2.Client] = []

    def make(server: str, target: str, *allowed: str, token: str | None = None) -> Client:
        runtime = machine.runtime / "mcp"
        token = Calls(runtime)(server, allowed).token if token is None else token
        transport = httpx2.HTTPTransport(uds=str(calls_socket(runtime)))
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        http = httpx2.Client(
            transport=transport, base_url="http://localhost", timeout=PATIENCE, trust_env=False, headers=headers
        )
        clients.append(http)
        return Client(http, target)

    yield make
    for client in clients:
        client.close()


def test_a_server_calls_another_one(as_server: Callable[..., Client]) -> None:
    client = as_server("caller", "fix").open()
    assert text_of(client.ask(call("echo", text="x"))) == "x"
    assert text_of(as_server("caller", "fix", "fix").ask(call("echo", text="y"))) == "y"


def test_only_what_its_manifest_names(as_server: Callable[..., Client]) -> None:
    reply = as_server("caller", "other", "fix").post(initialize())
    assert reply.status_code == 403
    assert "mcp:other" in reply.json()["error"]["message"]
    assert as_server("caller", "other").post(initialize()).status_code == 200


def test_never_itself(as_server: Callable[..., Client]) -> None:
    for allowed in ((), ("fix",)):
        assert as_server("fix", "fix", *allowed).post(call("echo", text="x")).status_code == 403


def test_the_map_holds_for_servers_too(as_server: Callable[..., Client]) -> None:
    assert as_server("caller", "narrow").ask(call("echo", text="x"))["result"]["isError"]


def test_its_sessions_are_its_own(machine: Machine, as_server: Callable[..., Client]) -> None:
    mine = as_server("caller", "fix").open()
    session = mine.headers["Mcp-Session-Id"]
    for stranger in (as_server("another", "fix"), machine.client("fix")):
        reply = stranger.post(call("echo", text="x"), **{"Mcp-Session-Id": session})
        assert reply.status_code == 404


@pytest.mark.parametrize("path", ["/mcp", "/mcp/meta/fix", "/token", "/metrics", "/sign-in", "/nothing"])
def test_there_is_nothing_but_servers(as_server: Callable[..., Client], path: str) -> None:
    http = as_server("caller", "fix").http
    assert http.get(path).status_code in {403, 404, 405}
    assert http.post(path, headers=BOTH, content=b"{}").status_code in {403, 404, 405}


def test_a_page_of_a_server_is_for_people(as_server: Callable[..., Client]) -> None:
    assert as_server("caller", "fix").http.get("/mcp/fix", headers={"Accept": "text/html"}).status_code == 403


def forged(machine: Machine) -> list[str]:
    runtime = machine.runtime / "mcp"
    good = Calls(runtime)("caller", ()).token
    body, mark = good.split(".")
    other = base64.urlsafe_b64encode(json.dumps([0, "root", []]).encode()).rstrip(b"=").decode()
    return ["", "x", ".", good[:-1], f"{other}.{mark}", f"{body}.", good + "A", issue(Pass(0, "c", ()), b"k" * 32)]


@pytest.mark.parametrize("number", range(8))
def test_without_a_pass_nobody_is_let_in(machine: Machine, as_server: Callable[..., Client], number: int) -> None:
    reply = as_server("caller", "fix", token=forged(machine)[number]).post(initialize())
    assert reply.status_code == 401


def test_a_pass_is_none_at_the_other_sockets(machine: Machine) -> None:
    runtime = machine.runtime / "mcp"
    assert oct(calls_key(runtime).stat().st_mode & 0o777) == "0o600"
    assert oct(calls_socket(runtime).stat().st_mode & 0o777) == "0o600"
    assert oct(calls_socket(runtime).parent.stat().st_mode & 0o777) == "0o700"


def test_what_is_no_key_is_replaced_and_a_key_stays(tmp_path: Path) -> None:
    calls_key(tmp_path).write_bytes(b"short")
    way = Calls(tmp_path)("asker", ("other",))
    key = calls_key(tmp_path).read_bytes()
    assert read(way.token.encode(), key) == Pass(os.getuid(), "asker", ("other",))
    assert read(Calls(tmp_path)("asker", ()).token.encode(), key) == Pass(os.getuid(), "asker", ())
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [calls_key(tmp_path).name]


def test_a_pass_says_what_it_was_issued_for() -> None:
    key = b"k" * 32
    about = Pass(7, "s", ("a", "b"))
    assert read(issue(about, key).encode(), key) == about
    assert read(issue(about, key).encode(), b"l" * 32) is None
    assert read(issue(about, b"").encode(), b"") is None


# ---------------------------------------------------------------------------------------- hops


@pytest.mark.parametrize(("given", "seen"), [(None, 1), (0, 1), (7, 8)])
def test_each_server_on_the_way_is_counted(as_server: Callable[..., Client], given: int | None, seen: int) -> None:
    meta: dict[str, Any] = {"kept": [1]} if given is None else {"org.mcpd/hops": given, "kept": [1]}
    answer = as_server("caller", "fix").open().ask(call("meta", 1, meta))
    told = json.loads(text_of(answer))
    assert (told["org.mcpd/hops"], told["kept"]) == (seen, [1])


@pytest.mark.parametrize("given", [8, 9, 10**30, -1, "3", 1.5, True, None, [1]])
def test_a_circle_of_servers_ends(as_server: Callable[..., Client], given: object) -> None:
    answer = as_server("caller", "fix").open().ask(call("echo", 1, {"org.mcpd/hops": given}, text="x"))
    assert answer["error"]["code"] == -32005


def test_nothing_is_counted_for_other_clients(machine: Machine) -> None:
    answer = machine.client("fix").open().ask(call("meta", 1, {"kept": 1}))
    assert "org.mcpd/hops" not in json.loads(text_of(answer))


# ---------------------------------------------------------------------------------------- with everything real


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_a_confined_server_calls_what_it_may(tmp_path_factory: pytest.TempPathFactory) -> None:
    machine = Machine(tmp_path_factory.mktemp("confined"), sandbox="on")
    try:
        for name in ("other", "asker", "mute"):
            machine.install(name, {"permissions": ["mcp:fix"] if name == "asker" else []})
        for name in ("asker", "mute"):
            (machine.home / f".local/share/mcp/installed/{name}/server.py").write_text(ASKER)
        machine.boot()
        client = machine.client("asker").open()

        def ask(server: str) -> Any:
            message = call("echo", 1, {"org.mcpd/hops": 2}, text="from a server")
            return json.loads(text_of(client.ask(call("ask", server=server, message=message))))

        answer = ask("fix")
        assert (answer["status"], text_of(answer["body"])) == (200, "from a server")
        assert [ask(server)["status"] for server in ("other", "asker", "nothing")] == [403, 403, 403]
        eventually(lambda: machine.client("mute").post(initialize()).status_code == 200, "the server without it runs")
        assert machine.client("mute").open().post(call("ask", server="fix", message={})).json()["error"]
    finally:
        machine.close()
