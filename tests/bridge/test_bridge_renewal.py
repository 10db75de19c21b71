# SPDX-License-Identifier: LGPL-2.1-or-later
"""What clients hear when another process takes a server's place that may offer something else: its lists changed."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from tests.bridge.bridge_harness import PATIENCE, eventually, is_alive, text_of
from tests.bridge.bridge_harness import call as call_tool
from tests.bridge.bridge_machine import Machine
from tests.bridge.modern_client import FIXTURE as MODERN_SERVER
from tests.bridge.modern_client import SUBSCRIPTION, ModernClient, request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHANGED = "notifications/tools/list_changed"
RESOURCES_CHANGED = "notifications/resources/list_changed"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    found = Machine(tmp_path_factory.mktemp("machine"))
    try:
        found.install("pooled", {"runtime": {"sharing": "caller"}})
        program = {"type": "stdio", "command": "/usr/bin/python3", "args": ["server.py", "handshake", "modern"]}
        for name, sharing in (("modern", "caller"), ("modern-alone", "session")):
            found.install(name, {"runtime": {"sharing": sharing}, "transports": [program]})
            shutil.copy(MODERN_SERVER, found.home / ".local/share/mcp/installed" / name / "server.py")
        found.boot()
        yield found
    finally:
        found.close()


@pytest.fixture
def entries(machine: Machine) -> Iterator[Path]:
    path = machine.home / ".config/mcp/mcps.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    yield path
    path.unlink(missing_ok=True)


class Breaking:
    """Puts one server out of order, in one of two ways, and in order again."""

    def __init__(self, machine: Machine, entries: Path, server: str, way: str) -> None:
        self.server = server
        self.way = way
        self._machine = machine
        self._entries = entries
        self._manifest = machine.home / ".local/share/mcp/installed" / server / "manifest.json"
        self._said = self._manifest.read_text()

    def end(self) -> None:
        """Break the server."""
        if self.way == "disabled":
            self._entries.write_text(json.dumps({self.server: {"enabled": False}}))
        else:
            self._write(self._said[:-1])

    def mend(self) -> None:
        """Have it as it was before."""
        if self.way == "disabled":
            self._entries.write_text("{}")
        else:
            self._write(self._said)

    def restore(self) -> None:
        """Leave nothing broken behind."""
        if self._manifest.read_text() != self._said:
            self._write(self._said)

    def _write(self, text: str) -> None:
        self._manifest.write_text(text)
        # mcpd looks at installed servers when it is asked.
        assert self._machine.start(sys.executable, "-m", "mcpd.cli.main", "list", "--user").wait(PATIENCE) == 0


@pytest.fixture
def breaking(machine: Machine, entries: Path, server: str, way: str) -> Iterator[Breaking]:
    found = Breaking(machine, entries, server, way)
    yield found
    found.restore()


def call_echo() -> object:
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "x"}}}


@pytest.mark.parametrize("server", ["fix", "pooled"])
def test_a_client_of_the_handshake_hears_that_its_tools_changed(machine: Machine, entries: Path, server: str) -> None:
    client = machine.client(server).open()
    assert text_of(client.ask(call_echo())) == "x"
    with client.listen() as stream:
        entries.write_text(json.dumps({server: {"disallowed_tools": ["echo"]}}))
        # The fixture tells that its tools may change, and nothing of its prompts and resources.
        assert next(stream)["method"] == CHANGED
    assert client.ask(call_echo())["result"]["isError"] is True


@pytest.mark.parametrize("server", ["pooled", "modern"])
def test_a_modern_client_hears_it_before_its_subscription_ends(machine: Machine, entries: Path, server: str) -> None:
    client = ModernClient(machine.client(server).http, server)
    listen = request(
        "subscriptions/listen", "mine", notifications={"toolsListChanged": True, "promptsListChanged": True}
    )
    with client.streaming(listen) as stream:
        assert next(stream)["params"]["notifications"]["toolsListChanged"] is True
        entries.write_text(json.dumps({server: {"disallowed_tools": ["mirror"]}}))
        assert next(stream) == {"jsonrpc": "2.0", "method": CHANGED, "params": {"_meta": {SUBSCRIPTION: "mine"}}}
        # The fixture says that it tells of prompts, too, whoever asked for it.
        assert [each["id"] for each in stream if "id" in each] == ["mine"]


def listing() -> object:
    return {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("way", ["disabled", "broken"])
@pytest.mark.parametrize("server", ["fix", "pooled"])
def test_a_client_hears_that_a_server_is_in_order_again(machine: Machine, breaking: Breaking, asks: bool) -> None:
    client = machine.client(breaking.server).open()
    pid = int(text_of(client.ask(call_tool("pid"))))
    with client.listen() as stream:
        breaking.end()
        eventually(lambda: not is_alive(pid), "its process ends")
        if breaking.way == "broken":
            assert next(stream)["method"] == CHANGED
        if asks:
            assert "error" in client.ask(listing())
        breaking.mend()
        assert next(stream)["method"] == CHANGED
        assert any(tool["name"] == "echo" for tool in client.ask(listing())["result"]["tools"])


@pytest.mark.parametrize("way", ["disabled", "broken"])
@pytest.mark.parametrize("server", ["pooled", "modern"])
def test_a_modern_client_can_listen_again_when_a_server_is_in_order_again(machine: Machine, breaking: Breaking) -> None:
    client = ModernClient(machine.client(breaking.server).http, breaking.server)
    listen = request("subscriptions/listen", "mine", notifications={"toolsListChanged": True})
    told = {"jsonrpc": "2.0", "method": CHANGED, "params": {"_meta": {SUBSCRIPTION: "mine"}}}
    with client.streaming(listen) as stream:
        assert next(stream)["method"] == ACKNOWLEDGED
        breaking.end()
        *heard, last = stream
    # Of a server that is gone there is no other list to ask for.
    assert heard == ([told] if breaking.way == "broken" else [])
    assert last["id"] == "mine"
    assert "error" in client.ask(listen)
    breaking.mend()
    eventually(lambda: "result" in client.ask(request("tools/list")), "the server is in order again")
    with client.streaming(listen) as stream:
        assert next(stream)["method"] == ACKNOWLEDGED
        breaking.end()
        *heard, last = stream
    assert heard == ([told] if breaking.way == "broken" else [])


@pytest.mark.parametrize("server", ["modern", "modern-alone"])
def test_a_client_hears_that_a_facility_goes_and_comes(machine: Machine, entries: Path, server: str) -> None:
    client = machine.client(server).open()
    both = {CHANGED, RESOURCES_CHANGED}
    assert "result" in client.ask(listing())
    with client.listen() as stream:
        entries.write_text(json.dumps({server: {"resources": False}}))
        assert {next(stream)["method"], next(stream)["method"]} == both
        # Who knows that they are gone hears nothing of them, until they are back.
        entries.write_text(json.dumps({server: {"resources": False, "disallowed_tools": ["echo"]}}))
        assert next(stream)["method"] == CHANGED
        entries.write_text("{}")
        assert {next(stream)["method"], next(stream)["method"]} == both


@pytest.mark.parametrize("server", ["modern", "modern-alone"])
def test_a_modern_client_hears_that_a_facility_goes(machine: Machine, entries: Path, server: str) -> None:
    client = ModernClient(machine.client(server).http, server)
    wanted = {"toolsListChanged": True, "resourcesListChanged": True}
    with client.streaming(request("subscriptions/listen", 1, notifications=wanted)) as stream:
        assert next(stream)["params"]["notifications"] == wanted
        entries.write_text(json.dumps({server: {"resources": False}}))
        assert {next(stream)["method"], next(stream)["method"]} == {CHANGED, RESOURCES_CHANGED}
        assert [each["id"] for each in stream] == [1]


@pytest.mark.parametrize("server", ["modern", "modern-alone"])
def test_who_was_told_that_a_facility_is_not_there_hears_nothing_of_it(
    machine: Machine, entries: Path, server: str
) -> None:
    entries.write_text(json.dumps({server: {"resources": False}}))
    eventually(
        lambda: "resources" not in machine.client(server).open().opened["result"]["capabilities"], "it is not there"
    )
    client = machine.client(server).open()
    with client.listen() as stream:
        for changed in ({"resources": False, "disallowed_tools": ["y"]}, {}, {"disallowed_tools": ["x"]}):
            entries.write_text(json.dumps({server: changed}))
            assert next(stream)["method"] == CHANGED
