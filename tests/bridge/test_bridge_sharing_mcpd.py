# SPDX-License-Identifier: LGPL-2.1-or-later
"""What mcpd says of a server decides who shares its processes, and when they end."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.bridge.bridge_harness import PATIENCE, call, eventually, is_alive, text_of
from tests.bridge.bridge_machine import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bridge.bridge_harness import Client

pytestmark = pytest.mark.skipif(shutil.which("dbus-daemon") is None, reason="needs dbus-daemon")
PROGRAM = Path(__file__).parent / "fixtures" / "pool_server.py"
TRANSPORT = {"type": "stdio", "command": sys.executable, "args": [str(PROGRAM)]}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("home"))
    try:
        made.boot()
        yield made
    finally:
        made.close()


def pid(client: Client) -> int:
    return int(text_of(client.ask(call("pid"))))


def rewrite(machine: Machine, server: str, **changes: object) -> None:
    """Edit the manifest, as a person would, and have mcpd look at it."""
    path = machine.home / f".local/share/mcp/installed/{server}/manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    assert machine.start(sys.executable, "-m", "mcpd.cli.main", "list", "--user").wait(PATIENCE) == 0


def test_the_manifest_says_who_shares_a_process(machine: Machine) -> None:
    machine.install("own", {"transports": [TRANSPORT]})
    machine.install("common", {"transports": [TRANSPORT], "runtime": {"sharing": "caller"}})
    machine.install("everybodys", {"transports": [TRANSPORT], "runtime": {"sharing": "all"}})
    numbers = {name: [pid(machine.client(name).open()) for _ in range(2)] for name in ("own", "common", "everybodys")}
    assert [len(set(found)) for found in numbers.values()] == [2, 1, 1]


@pytest.mark.parametrize("sharing", ["session", "caller"])
def test_a_session_goes_on_with_a_process_of_the_changed_server(machine: Machine, sharing: str) -> None:
    name = f"changing-{sharing}"
    machine.install(name, {"transports": [TRANSPORT], "runtime": {"sharing": sharing}})
    client = machine.client(name).open()
    before = pid(client)
    assert pid(client) == before
    rewrite(machine, name, transports=[{**TRANSPORT, "args": [str(PROGRAM), "--version", "2"]}])
    eventually(lambda: not is_alive(before), "the process of the old manifest ends")
    assert pid(client) != before
    assert machine.client(name).open().opened["result"]["serverInfo"]["version"] == "2"


@pytest.mark.parametrize("sharing", ["session", "caller"])
def test_the_processes_of_a_disabled_server_end(machine: Machine, sharing: str) -> None:
    name = f"leaving-{sharing}"
    machine.install(name, {"transports": [TRANSPORT], "runtime": {"sharing": sharing}})
    client = machine.client(name).open()
    before = pid(client)
    rewrite(machine, name, disabled=True)
    eventually(lambda: not is_alive(before), "the process ends")
    reply = client.post(call("pid"))
    assert reply.status_code == 403
    assert "disabled" in reply.json()["error"]["message"]
    assert machine.client(name).post(call("pid")).status_code == 403


def test_an_edited_file_is_noticed_without_anybody_telling(machine: Machine) -> None:
    machine.install("edited", {"transports": [TRANSPORT]})
    client = machine.client("edited")
    pid(client)
    path = machine.home / ".local/share/mcp/installed/edited/manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "disabled": True}))
    eventually(lambda: client.post(call("pid")).status_code == 403, "requests are refused")
