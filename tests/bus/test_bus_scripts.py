# SPDX-License-Identifier: LGPL-2.1-or-later
"""Script servers on the bus: how they are listed, and how their edits are signalled."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.bus import service
from mcpd.bus.client import Client
from mcpd.bus.names import MANAGER, SERVER, server_path
from mcpd.errors import InvalidConfig, NotSupported, UnknownObject
from mcpd.paths import Scope
from mcpd.scripts.servers import ScriptDirectory
from tests.bus.harness import PATIENCE, connected, next_signal
from tests.bus.inside import served

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.store import Store
    from tests.bus.harness import Machine


def put(directory: Path, name: str, text: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(text)
    return path


async def test_a_script_is_listed_and_its_edits_are_signalled(machine: Machine) -> None:
    path = put(machine.paths.user.scripts, "x.py", '"""Does it."""\n')
    async with (
        served(machine, scope=Scope.USER, uids={}, only_uid=os.getuid()),
        connected(machine.bus) as connection,
    ):
        client = Client(connection, system=False)
        (listed,) = await client.manager.call("ListServers", "a{sv}", [{}])
        assert (listed["id"], listed["summary"], listed["state"]) == ("x", "Does it.", "installed")
        assert (listed["sharing"], listed["scope"], listed["origin"]) == ("caller", "user", str(path))
        server, _ = await client.manager.call("GetServer", "s", ["x"])
        assert server["protocols"] == ["handshake", "modern"]
        before = server["digest"]
        async with client.signals(interface=MANAGER) as told:
            # Nobody asks: mcpd looks by itself.
            path.write_text('"""Does it better."""\n')
            assert (await next_signal(told, "CatalogChanged")).args == []
        server, _ = await client.manager.call("GetServer", "s", ["x"])
        assert (server["summary"], server["digest"] != before) == ("Does it better.", True)
        path.write_text("def f(:\n")
        server, _ = await client.manager.call("GetServer", "s", ["x"])
        assert server["state"] == "broken"
        assert server["problem"].startswith(f"{path}:1: ")
        with pytest.raises(NotSupported):
            await client.manager.call("GetManifestPath", "s", ["x"])


async def test_a_script_that_an_installed_server_hides_is_told_of(machine: Machine) -> None:
    machine.install("x", where=machine.paths.user.installed)
    path = put(machine.paths.user.scripts, "x.py", "")
    async with (
        served(machine, scope=Scope.USER, uids={}, only_uid=os.getuid()),
        connected(machine.bus) as connection,
    ):
        client = Client(connection, system=False)
        (listed,) = await client.manager.call("ListServers", "a{sv}", [{}])
        assert (listed["state"], listed["summary"]) == ("installed", "The server x")
        assert str(path) in listed["problem"]


async def test_scripts_are_not_looked_at_by_the_thread_that_answers(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(machine.paths.user.scripts, "x.py", "")
    seen: set[threading.Thread] = set()
    real = ScriptDirectory.scan

    def scan(self: ScriptDirectory) -> Any:
        seen.add(threading.current_thread())
        return real(self)

    monkeypatch.setattr(ScriptDirectory, "scan", scan)
    async with (
        served(machine, scope=Scope.USER, uids={}, only_uid=os.getuid()),
        connected(machine.bus) as connection,
    ):
        manager = Client(connection, system=False).manager
        await manager.call("ListServers", "a{sv}", [{}])
        await manager.call("GetServer", "s", ["x"])
        assert await manager.call("GetConfig", "s", ["x"]) == ({}, [])
        with pytest.raises(NotSupported):
            await manager.call("GetManifestPath", "s", ["x"])
    assert seen
    assert threading.main_thread() not in seen


def offer(machine: Machine, *ids: str) -> None:
    """Have a registry offer servers with these *ids*."""
    registry = machine.root / "registry.json"
    entry = {"name": "Offered", "version": "2", "transports": [{"type": "stdio", "command": "cat"}]}
    registry.write_text(json.dumps({"servers": [{"id": each, **entry} for each in ids]}))
    listed = machine.paths.user.sources_list
    listed.parent.mkdir(parents=True, exist_ok=True)
    listed.write_text(f"file://{registry}\n")


async def test_what_a_registry_offers_is_not_installed_because_a_script_has_its_id(machine: Machine) -> None:
    put(machine.paths.user.scripts, "x.py", "")
    machine.install("y", where=machine.paths.user.installed)
    offer(machine, "x", "y")
    async with (
        served(machine, scope=Scope.USER, uids={}, only_uid=os.getuid()),
        connected(machine.bus) as connection,
    ):
        client = Client(connection, system=False)
        await client.run_job("Refresh", "a{sv}", [{}])
        found, _ = await client.manager.call("ListAvailable", "a{sv}s", [{}, ""])
        assert {each["id"]: each["state"] for each in found} == {"x": "available", "y": "installed"}
        (script,) = await client.manager.call("ListServers", "a{sv}", [{"id": "x"}])
        assert script["state"] == "installed"


class Faults:
    """Has the store meet faults of its own when it is asked for edits, or for the listing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: Store, name: str) -> None:
        self.left: list[Exception] = []
        self.met = asyncio.Event()
        real, loop = getattr(store, name), asyncio.get_running_loop()

        def faulty(**how: Any) -> object:
            if self.left:
                fault = self.left.pop(0)
                if not self.left:
                    loop.call_soon_threadsafe(self.met.set)
                raise fault
            return real(**how)

        monkeypatch.setattr(store, name, faulty)


@pytest.mark.parametrize("asked", ["edits", "list"])
async def test_edits_are_signalled_after_whatever_a_look_meets(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, asked: str
) -> None:
    monkeypatch.setattr(service, "SCAN_INTERVAL", 0.01)
    path = put(machine.paths.user.scripts, "x.py", "")
    async with (
        served(machine, scope=Scope.USER, uids={}, only_uid=os.getuid()) as core,
        connected(machine.bus) as connection,
    ):
        faults = Faults(monkeypatch, core.store, asked)
        client = Client(connection, system=False)
        async with client.signals(interface=MANAGER) as told:
            faults.left = [*[RuntimeError("odd")] * 5, RuntimeError("odder"), InvalidConfig("no such thing")]
            if asked == "edits":
                # A look that began before could still see what is edited now. What is listed is so after a look only.
                await asyncio.wait_for(faults.met.wait(), PATIENCE)
            path.write_text('"""Edited."""\n')
            await next_signal(told, "CatalogChanged")
    assert faults.met.is_set()
    said = [r for r in caplog.records if r.getMessage().startswith("The installed servers cannot be listed")]
    assert [(r.levelname, str(r.exc_info[1]) if r.exc_info else r.getMessage()) for r in said] == [
        ("ERROR", "odd"),
        ("ERROR", "odder"),
        ("WARNING", "The installed servers cannot be listed: no such thing"),
    ]


async def test_what_ends_a_job_is_told_whatever_the_store_meets(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        served(machine, scope=Scope.USER, uids={}, only_uid=os.getuid()) as core,
        connected(machine.bus) as connection,
    ):

        def faulty(**_how: Any) -> object:
            raise RuntimeError("odd")

        monkeypatch.setattr(core.store, "list", faulty)
        monkeypatch.setattr(core.installer, "updates", dict)
        async with asyncio.timeout(PATIENCE):
            assert (await Client(connection, system=False).run_job("Refresh", "a{sv}", [{}]))[0] == "done"


async def test_clients_are_answered_while_new_scripts_are_read(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install("y", where=machine.paths.user.installed)
    put(machine.paths.user.scripts, "x.py", '"""Does it."""\n')
    go_on = threading.Event()
    real = ScriptDirectory.scan

    def slow(self: ScriptDirectory) -> Any:
        if not go_on.wait(60):
            go_on.set()
        return real(self)

    monkeypatch.setattr(ScriptDirectory, "scan", slow)
    monkeypatch.setattr(service, "FIRST_SCAN_TIMEOUT", 0.05)
    try:
        async with (
            served(machine, scope=Scope.USER, uids={}, only_uid=os.getuid()),
            connected(machine.bus) as connection,
        ):
            client = Client(connection, system=False)
            assert (await client.server("y").properties())["Summary"] == "The server y"
            with pytest.raises(UnknownObject):
                await client.server("x").properties()
            async with client.signals() as told:
                assert not go_on.is_set()
                go_on.set()
                # Nobody asks: the look comes in when it is done.
                while (signal := await next_signal(told, "InterfacesAdded")).args[0] != server_path("x"):
                    pass
                assert signal.args[1][SERVER]["Summary"] == "Does it."
            listed = await client.manager.call("ListServers", "a{sv}", [{}])
            assert {each["id"]: each["state"] for each in listed} == {"x": "installed", "y": "installed"}
    finally:
        go_on.set()
