# SPDX-License-Identifier: LGPL-2.1-or-later
"""An mcpd that changes nothing: who says so, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.bus import contract
from mcpd.bus.client import Client
from mcpd.bus.codec import split
from mcpd.bus.names import JOB, MANAGER, ROOT, SESSION
from mcpd.errors import ReadOnly
from mcpd.runtime.launch import memory_file
from mcpd.settings import load
from tests.bus.harness import PATIENCE, connected
from tests.bus.test_bus_contract import METHODS

if TYPE_CHECKING:
    from mcpd.bus.connection import Connection
    from tests.bus.harness import Daemon, Machine

UNCHANGING = {
    *((MANAGER, name) for name in ("ListServers", "GetServer", "GetManifestPath", "ListAvailable", "ListSources")),
    (MANAGER, "GetTools"),
    *((MANAGER, name) for name in ("GetConfig", "ListSessions", "CheckUpdates", "Refresh", "Spawn", "Verify")),
    *((MANAGER, name) for name in ("GetAvailable", "GetIcon", "GetEntry", "GetHistory", "GetPending", "ListKeys")),
    (JOB, "Cancel"),
    (SESSION, "Stop"),
}
"""All that a read-only mcpd does."""
ON, OFF = "[daemon]\nread_only = true\n", "[daemon]\nread_only = false\n"
VARIABLE = "MCPD_DAEMON_READ_ONLY"


# --- who says so ---


@pytest.mark.parametrize("system", [None, ON, OFF])
@pytest.mark.parametrize("user", [None, ON, OFF])
@pytest.mark.parametrize("variable", [None, "true", "false"])
def test_one_place_is_enough_and_none_takes_it_back(
    tmp_path: Path, system: str | None, user: str | None, variable: str | None
) -> None:
    files = tmp_path / "system.toml", tmp_path / "user.toml"
    for file, text in zip(files, (system, user), strict=True):
        if text is not None:
            file.write_text(text)
    environ = {} if variable is None else {VARIABLE: variable}
    said = ON in (system, user) or variable == "true"
    assert load(files, environ).daemon.read_only is said
    assert load(files, {**environ, "MCPD_DAEMON_IDLE_EXIT": "7"}).daemon.idle_exit == 7


class Files:
    """The two files of a machine, and the mcpd that reads them."""

    def __init__(self, machine: Machine) -> None:
        self.system = machine.root / "system/etc/mcp/mcpd.toml"
        self.user = machine.root / "home/.config/mcp/mcpd.toml"
        for file in (self.system, self.user):
            file.parent.mkdir(parents=True, exist_ok=True)


async def reloaded(daemon: Daemon) -> None:
    """Have *daemon* read its settings again, and wait until it has."""
    before = daemon.log().count("settings")
    daemon.process.send_signal(signal.SIGHUP)
    async with asyncio.timeout(PATIENCE):
        while daemon.log().count("settings") == before:
            await asyncio.sleep(0.01)


async def is_read_only(client: Client) -> bool:
    """Whether mcpd says so, and does so: what is configured already is set again."""
    refused = False
    try:
        await client.manager.call("SetConfig", "sa{sv}a{sv}", ["x", {}, {}])
    except ReadOnly as error:
        refused = "read_only = true" in error.message
    assert ("read-only" in (await client.manager.properties())["Features"]) is refused
    return refused


async def test_a_reload_takes_it_over_and_the_user_does_not_undo_it(machine: Machine) -> None:
    machine.install("x")
    files = Files(machine)
    machine.settings[VARIABLE] = "false"
    daemon = await machine.serve("--user")
    async with connected(machine.bus) as connection:
        client = Client(connection, system=False)
        assert not await is_read_only(client)
        files.system.write_text(ON)
        await reloaded(daemon)
        assert await is_read_only(client)
        files.user.write_text(OFF)
        await reloaded(daemon)
        assert await is_read_only(client)
        files.system.unlink()
        await reloaded(daemon)
        assert not await is_read_only(client)
        files.user.write_text(ON)
        await reloaded(daemon)
        assert await is_read_only(client)


async def test_settings_that_cannot_be_used_allow_no_change(machine: Machine) -> None:
    machine.install("x")
    files = Files(machine)
    files.system.write_text(ON)
    files.user.write_text("[daemon\n")
    daemon = await machine.serve("--user")
    async with connected(machine.bus) as connection:
        client = Client(connection, system=False)
        assert await is_read_only(client)
        files.system.unlink()
        files.user.write_text("")
        await reloaded(daemon)
        assert not await is_read_only(client)


# --- what it refuses ---


def test_every_method_says_whether_it_changes_something() -> None:
    assert {method for method, handler in METHODS.items() if not handler.changes} == UNCHANGING


def argument(signature: str) -> Any:
    """Something of the type *signature*; which does not matter."""
    return {"s": "x", "as": ["x"], "a{sv}": {}, "h": 0, "b": True}[signature]


async def call(connection: Connection, path: str, interface: str, member: str) -> None:
    """Call any method with arguments of its signature."""
    signature = contract.interfaces()[interface].methods[member].in_signature
    client = Client(connection, system=False)
    on = client.manager if path == ROOT else client.job(path)
    with Path(os.devnull).open("rb") as file:
        fds = [file.fileno()] if "h" in signature else []
        await on.call(member, signature, [argument(each) for each in split(signature)], fds=fds)


CHANGES = sorted(method for method, handler in METHODS.items() if handler.changes)


async def test_every_change_is_refused(machine: Machine) -> None:
    directory = machine.install("x")
    before = (directory / "manifest.json").read_bytes()
    await machine.serve("--user", "--read-only")
    async with connected(machine.bus) as connection:
        client = Client(connection, system=False)
        job = await client.manager.call("Refresh", "a{sv}", [{}])
        for interface, member in CHANGES:
            with pytest.raises(ReadOnly, match=f"^{member}: .*--read-only"):
                await call(connection, ROOT if interface == MANAGER else job, interface, member)
        (listed,) = await client.manager.call("ListServers", "a{sv}", [{}])
        assert listed["id"] == "x"
    assert (directory / "manifest.json").read_bytes() == before


async def test_an_installation_that_waits_can_only_be_cancelled(machine: Machine, tmp_path: Path) -> None:
    files = Files(machine)
    source = tmp_path / "source"
    source.mkdir()
    (source / "run.sh").write_text("cat\n")
    manifest = {
        "id": "w",
        "name": "W",
        "version": "1",
        "source": {"type": "local", "path": str(source)},
        "transports": [{"type": "stdio", "command": "sh", "args": ["run.sh"]}],
        "permissions": ["network"],
    }
    daemon = await machine.serve("--user")
    async with connected(machine.bus) as connection:
        client = Client(connection, system=False)
        document = memory_file("w.json", json.dumps(manifest).encode())
        try:
            path = await client.manager.call("InstallManifest", "ha{sv}", [0, {}], fds=[document])
        finally:
            os.close(document)
        job = client.job(path)
        async with asyncio.timeout(PATIENCE):
            while (state := (await job.properties())["State"]) != "needs-consent":
                assert state not in {"failed", "done"}, daemon.log()
                await asyncio.sleep(0.01)
        files.system.write_text(ON)
        await reloaded(daemon)
        for member in ("Proceed", "SetConfig", "SetSecret"):
            with pytest.raises(ReadOnly, match=f"^{member}: "):
                await call(connection, path, JOB, member)
        assert (await job.properties())["State"] == "needs-consent"
        await job.call("Cancel", "a{sv}", [{}])
        async with asyncio.timeout(PATIENCE):
            while (await job.properties())["State"] != "cancelled":
                await asyncio.sleep(0.01)
        assert await client.manager.call("ListServers", "a{sv}", [{}]) == []
