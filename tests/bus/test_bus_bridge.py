# SPDX-License-Identifier: LGPL-2.1-or-later
"""Spawn for the system's bridge, which names the user it serves."""

from __future__ import annotations

import grp
import os
import pwd
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from mcpd.bus.caller import find_user
from mcpd.bus.client import Client, variant
from mcpd.errors import InvalidArgument, NotAuthorized, NotFound, NotSupported
from mcpd.paths import Scope
from tests.bus.inside import served
from tests.bus.polkit_mock import SOMEBODY, TEMPLATE, people, polkitd

if TYPE_CHECKING:
    from tests.bus.harness import Machine

NOBODYS_UID = 2**31 - 7
SPAWN = "org.mcpd.mcp1.spawn"


@pytest.fixture
def shared(machine: Machine) -> Machine:
    machine.install("x", where=machine.paths.system.installed, scope="system")
    machine.install("s", where=machine.paths.system.installed, scope="system", runtime={"runAs": "system"})
    runtime = {"runAs": "system", "sharing": "all"}
    machine.install("all", where=machine.paths.system.installed, scope="system", runtime=runtime)
    return machine


async def test_only_the_bridge_names_another_caller(shared: Machine) -> None:
    async with (
        people(shared) as (bridge, user, uids, third),
        served(shared, scope=Scope.SYSTEM, uids=uids, bridge_uid=SOMEBODY) as core,
        polkitd(shared, third, TEMPLATE) as mock,
    ):
        await mock.answer(SPAWN, "yes")
        uids[third.unique_name] = 0
        for client in (user, Client(third, system=True)):
            for uid in (0, 1000, SOMEBODY):
                with pytest.raises(NotAuthorized, match="caller-uid"):
                    await client.spawn("s", options={"caller-uid": variant(uid, "u")})
        for value in (-1, 2**32 - 1, 2**40, True, "0"):
            with pytest.raises(InvalidArgument, match="caller-uid"):
                await bridge.spawn("s", options={"caller-uid": value})
        assert await mock.calls() == []
        assert core.sessions.list() == []


async def test_polkit_is_told_for_whom_the_bridge_starts_a_server(shared: Machine) -> None:
    async with (
        people(shared) as (bridge, _, uids, third),
        served(shared, scope=Scope.SYSTEM, uids=uids, bridge_uid=SOMEBODY) as core,
        polkitd(shared, third, TEMPLATE) as mock,
    ):
        with pytest.raises(NotAuthorized, match=SPAWN):
            await bridge.spawn("s", options={"caller-uid": variant(0, "u")})
        assert core.sessions.list() == []
        await mock.answer(SPAWN, "yes", bridge.connection.unique_name)
        _, ends = await bridge.spawn("s", options={"caller-uid": variant(1, "u")})
        assert [session.owner.uid for session in core.sessions.list()] == [1]
        assert len(await bridge.manager.call("ListSessions")) == 1
        told = [call[2] for call in await mock.calls()]
        for fd in ends.values():
            os.close(fd)
    for uid, details in zip((0, 1), told, strict=True):
        user = pwd.getpwuid(uid)
        assert {key: details[key] for key in ("id", "caller-uid", "caller-user")} == {
            "id": "s", "caller-uid": str(uid), "caller-user": user.pw_name,
        }  # fmt: skip
        names = [grp.getgrgid(gid).gr_name for gid in os.getgrouplist(user.pw_name, user.pw_gid)]
        assert details["caller-groups"] == f" {' '.join(sorted(set(names)))} "


async def test_nobody_stops_what_the_bridge_lets_all_its_callers_use(shared: Machine) -> None:
    async with (
        people(shared) as (bridge, user, uids, third),
        served(shared, scope=Scope.SYSTEM, uids=uids, bridge_uid=SOMEBODY),
        polkitd(shared, third, TEMPLATE) as mock,
    ):
        await mock.answer(SPAWN, "yes")
        uids[user.connection.unique_name] = 1
        for server, is_shared in (("s", False), ("all", True)):
            path, ends = await bridge.spawn(server, options={"caller-uid": variant(1, "u")})
            assert [s["server-id"] for s in await user.manager.call("ListSessions")] == [server]
            if is_shared:
                with pytest.raises(NotAuthorized, match="cancel-foreign"):
                    await user.session(path).call("Stop", "a{sv}", [{}])
            await (bridge if is_shared else user).session(path).call("Stop", "a{sv}", [{}])
            assert await user.manager.call("ListSessions") == []
            for fd in ends.values():
                os.close(fd)


async def test_the_bridge_starts_nothing_for_unknown_users_or_of_users(shared: Machine) -> None:
    async with (
        people(shared) as (bridge, _, uids, third),
        served(shared, scope=Scope.SYSTEM, uids=uids, bridge_uid=SOMEBODY) as core,
        polkitd(shared, third, TEMPLATE) as mock,
    ):
        await mock.answer(SPAWN, "yes")
        with pytest.raises(NotAuthorized, match=f"uid {NOBODYS_UID} does not exist"):
            await bridge.spawn("s", options={"caller-uid": variant(NOBODYS_UID, "u")})
        with pytest.raises(NotSupported, match="runs as its caller"):
            await bridge.spawn("x", options={"caller-uid": variant(0, "u")})
        with pytest.raises(NotFound):
            await bridge.spawn("nothing", options={"caller-uid": variant(0, "u")})
        assert await mock.calls() == []
        assert core.sessions.list() == []


async def test_the_bridge_is_asked_about_like_anybody_when_it_names_nobody(shared: Machine) -> None:
    async with (
        people(shared) as (bridge, _, uids, third),
        served(shared, scope=Scope.SYSTEM, uids=uids, bridge_uid=SOMEBODY),
        polkitd(shared, third, TEMPLATE) as mock,
    ):
        with pytest.raises(NotAuthorized, match=SPAWN):
            await bridge.spawn("s")
        assert [(call[1], call[2]) for call in await mock.calls()] == [(SPAWN, {"id": "s"})]


def test_a_group_with_white_space_cannot_pass_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grp, "getgrgid", lambda gid: SimpleNamespace(gr_name="x mcp y" if gid else "root"))
    monkeypatch.setattr(os, "getgrouplist", lambda _name, gid: [gid, 5])
    assert find_user(0) == ("root", ("root",))
