# SPDX-License-Identifier: LGPL-2.1-or-later
"""The mcps map on the bus: what a server's keys say of it, and who may start one that it changes (docs/mcps.md)."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from mcpd.bus.client import Client, variant
from mcpd.bus.names import MANAGER, PROPERTIES
from mcpd.errors import Disabled, NeedsBridge, SystemInstanceOnly
from mcpd.paths import Scope
from tests.bus.harness import connected, next_signal
from tests.bus.inside import served
from tests.bus.polkit_mock import SOMEBODY, TEMPLATE, people, polkitd

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.bus.harness import Machine

SPAWN = "org.mcpd.mcp1.spawn"
NARROW = {"disallowed_tools": ["x*"], "tools": {"a": {"name": "b"}}}
DIRECT = {"direct": variant(True, "b")}


def write(path: Path, data: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))


async def start(
    client: Client, server: str, options: Mapping[str, object], fds: Mapping[int, int] | None = None
) -> None:
    """Start it, and let go of it."""
    _, ends = await client.spawn(server, fds or {}, options=dict(options))
    for fd in ends.values():
        os.close(fd)


async def test_the_map_shows_in_a_servers_keys_and_is_signalled(machine: Machine) -> None:
    machine.install("x", where=machine.paths.user.installed)
    async with (
        served(machine, scope=Scope.USER, uids={}, only_uid=os.getuid()),
        connected(machine.bus) as connection,
    ):
        client = Client(connection, system=False)
        server, _ = await client.manager.call("GetServer", "s", ["x"])
        assert (server["state"], "policy" in server) == ("installed", False)
        async with client.signals(interface=MANAGER) as told, client.signals(interface=PROPERTIES) as changed:
            entry = {**NARROW, "summary": "Less of it", "description": "Much less"}
            write(machine.paths.user.mcps, {"x": entry})
            server, _ = await client.manager.call("GetServer", "s", ["x"])
            assert (await next_signal(told, "CatalogChanged")).args == []
            assert (await next_signal(changed, "PropertiesChanged")).args[1]["Summary"] == "Less of it"
        assert json.loads(server["policy"]) == [NARROW]
        assert (server["summary"], server["description"]) == ("Less of it", "Much less")
        write(machine.paths.system.mcps, {"x": {"enabled": False}})
        server, _ = await client.manager.call("GetServer", "s", ["x"])
        assert server["state"] == "disabled"
        with pytest.raises(Disabled, match=str(machine.paths.system.mcps)):
            await start(client, "x", {})
        write(machine.paths.system.mcps, {"x": {"enabled": "no"}})
        server, _ = await client.manager.call("GetServer", "s", ["x"])
        assert server["state"] == "disabled"
        assert "x" in server["problem"]
        assert str(machine.paths.system.mcps) in server["problem"]


async def test_who_stands_for_a_client_is_sent_to_the_bridge(machine: Machine) -> None:
    for name, runtime in (("x", {}), ("n", {}), ("c", {"sharing": "caller"}), ("s", {"runAs": "system"})):
        machine.install(name, where=machine.paths.user.installed, runtime=runtime)
    write(machine.paths.user.mcps, {"n": NARROW, "s": NARROW, "x": {"summary": "only described"}})
    async with (
        served(machine, scope=Scope.USER, uids={}, only_uid=os.getuid()) as core,
        connected(machine.bus) as connection,
    ):
        client = Client(connection, system=False)
        for server in ("x", "n", "c"):
            await start(client, server, {})
        null = os.open(os.devnull, os.O_RDWR)
        try:
            for fds in ({}, {0: null, 1: null}):
                await start(client, "x", DIRECT, fds)
                with pytest.raises(NeedsBridge, match="n must be used through the bridge"):
                    await start(client, "n", DIRECT, fds)
                with pytest.raises(SystemInstanceOnly):
                    await start(client, "s", DIRECT, fds)
            # A program of its own may talk to a process of its own.
            await start(client, "c", DIRECT)
            with pytest.raises(NeedsBridge, match="shared"):
                await start(client, "c", DIRECT, {0: null, 1: null})
        finally:
            os.close(null)
        assert {session.server_id for session in core.sessions.list()} <= {"x", "n", "c"}


async def test_nobody_gets_around_the_systems_map(machine: Machine) -> None:
    for name in ("s", "n"):
        machine.install(name, where=machine.paths.system.installed, scope="system", runtime={"runAs": "system"})
    write(machine.paths.system.mcps, {"n": NARROW})
    async with (
        people(machine) as (bridge, user, uids, third),
        served(machine, scope=Scope.SYSTEM, uids=uids, bridge_uid=SOMEBODY),
        polkitd(machine, third, TEMPLATE) as mock,
    ):
        await mock.answer(SPAWN, "yes")
        await start(user, "s", {})
        for options in ({}, DIRECT):
            with pytest.raises(NeedsBridge):
                await start(user, "n", options)
        await start(bridge, "n", {"caller-uid": variant(1, "u")})
        uids[third.unique_name] = 0
        await start(Client(third, system=True), "n", {})
