# SPDX-License-Identifier: LGPL-2.1-or-later
"""Authorization: polkit, with python-dbusmock in its place."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.bus.client import Client
from mcpd.bus.connection import Match
from mcpd.bus.names import OBJECT_MANAGER, PROPERTIES, ROOT
from mcpd.errors import (
    InteractionRequired,
    InvalidConfig,
    McpdError,
    NotAuthorized,
    NotFound,
)
from mcpd.journal import POLKIT_DECISION
from mcpd.paths import Scope
from tests.bus.inside import served
from tests.bus.polkit_mock import SOMEBODY, TEMPLATE, people, polkitd

if TYPE_CHECKING:
    from tests.bus.harness import Machine

SET_CONFIG = ("SetConfig", "sa{sv}a{sv}", ["x", {"level": "high"}, {}])
CONFIGURE = "org.mcpd.mcp1.configure"


@pytest.fixture
def system(machine: Machine) -> Machine:
    machine.install(
        "x",
        where=machine.paths.system.installed,
        scope="system",
        configurableProperties=[{"key": "level"}, {"key": "k", "sensitive": True}],
    )
    return machine


async def test_reading_asks_nobody_and_changing_asks_polkit(system: Machine) -> None:
    async with (
        people(system) as (one, _, uids, third),
        served(system, scope=Scope.SYSTEM, uids=uids) as core,
        polkitd(system, third, TEMPLATE) as mock,
    ):
        assert len(await one.manager.call("ListServers", "a{sv}", [{}])) == 1
        assert await one.manager.call("GetConfig", "s", ["x"]) == ({}, [])
        assert await mock.calls() == []
        with pytest.raises(NotAuthorized, match=r"org\.mcpd\.mcp1\.configure is not allowed"):
            await one.manager.call(*SET_CONFIG)
        assert core.store.config("x").values == {}
        await mock.answer(CONFIGURE, "yes")
        await one.manager.call(*SET_CONFIG)
        assert core.store.config("x").values == {"level": "high"}
        (refused, granted) = await mock.calls()
    assert refused[0] == ("system-bus-name", {"name": one.connection.unique_name})
    assert refused[1:4] == [CONFIGURE, {"id": "x", "keys": "level"}, 0]
    assert refused[4], "an empty id cannot be cancelled"
    assert refused[4] != granted[4]


@pytest.mark.parametrize("way", ["flag", "option", "neither"])
async def test_the_caller_is_asked_only_if_it_allows_that(system: Machine, way: str) -> None:
    async with (
        people(system) as (one, _, uids, third),
        served(system, scope=Scope.SYSTEM, uids=uids),
        polkitd(system, third, TEMPLATE) as mock,
    ):
        await mock.answer(CONFIGURE, "challenge")
        one.interactive = way == "flag"
        options = {"interactive": True} if way == "option" else {}
        with pytest.raises(NotAuthorized) as caught:
            await one.manager.call("SetConfig", "sa{sv}a{sv}", ["x", {}, options])
        assert [call[3] for call in await mock.calls()] == ([0] if way == "neither" else [0, 1])
    assert CONFIGURE in caught.value.message
    assert isinstance(caught.value, InteractionRequired) == (way == "neither")


async def test_a_dismissed_prompt_is_a_refusal(system: Machine) -> None:
    async with (
        people(system) as (one, _, uids, third),
        served(system, scope=Scope.SYSTEM, uids=uids),
        polkitd(system, third, TEMPLATE) as mock,
    ):
        await mock.answer(CONFIGURE, "dismissed")
        one.interactive = True
        with pytest.raises(NotAuthorized, match=rf"{CONFIGURE}.*dismissed"):
            await one.manager.call(*SET_CONFIG)


async def test_a_wrong_password_is_told_from_a_prohibition(system: Machine) -> None:
    async with (
        people(system) as (one, _, uids, third),
        served(system, scope=Scope.SYSTEM, uids=uids),
        polkitd(system, third, TEMPLATE) as mock,
    ):
        one.interactive = True
        for answer, told in (("wrong password", "authentication failed"), ("no", "not allowed for this user")):
            await mock.answer(CONFIGURE, answer)
            with pytest.raises(NotAuthorized, match=told):
                await one.manager.call(*SET_CONFIG)


async def test_an_answer_is_for_its_subject_only(system: Machine) -> None:
    async with (
        people(system) as (one, two, uids, third),
        served(system, scope=Scope.SYSTEM, uids=uids),
        polkitd(system, third, TEMPLATE) as mock,
    ):
        await mock.answer(CONFIGURE, "yes", one.connection.unique_name)
        await one.manager.call(*SET_CONFIG)
        with pytest.raises(NotAuthorized):
            await two.manager.call(*SET_CONFIG)


async def test_an_open_prompt_holds_up_nobody_and_ends_with_its_caller(system: Machine) -> None:
    async with (
        people(system) as (one, two, uids, third),
        served(system, scope=Scope.SYSTEM, uids=uids) as core,
        polkitd(system, third, TEMPLATE) as mock,
    ):
        await mock.answer(CONFIGURE, "hang", one.connection.unique_name)
        await mock.answer(CONFIGURE, "yes", two.connection.unique_name)
        pending = asyncio.create_task(one.manager.call(*SET_CONFIG))
        await mock.waiting(1)
        await two.manager.call("SetConfig", "sa{sv}a{sv}", ["x", {"level": "low"}, {}])
        await one.manager.call("ListServers", "a{sv}", [{}])
        one.connection.close()
        await mock.waiting(0)
        with pytest.raises(McpdError):
            await pending
        asked, cancelled = (await mock.calls())[0][4], await mock.calls("CancelCheckAuthorization")
    assert cancelled == [[asked]]
    assert core.store.config("x").values == {"level": "low"}


async def test_without_polkit_only_root_may_change_anything(system: Machine) -> None:
    async with (
        people(system) as (one, _, uids, root),
        served(system, scope=Scope.SYSTEM, uids=uids) as core,
    ):
        with pytest.raises(NotAuthorized, match=CONFIGURE):
            await one.manager.call(*SET_CONFIG)
        assert core.store.config("x").values == {}
        uids[root.unique_name] = 0
        await Client(root, system=True).manager.call(*SET_CONFIG)
        assert core.store.config("x").values == {"level": "high"}


async def test_the_template_of_dbusmock_gives_the_same(system: Machine) -> None:
    async with (
        people(system) as (one, _, uids, third),
        served(system, scope=Scope.SYSTEM, uids=uids),
        polkitd(system, third, "polkitd") as mock,
    ):
        with pytest.raises(NotAuthorized):
            await one.manager.call(*SET_CONFIG)
        await mock.call("SetAllowed", "as", [CONFIGURE])
        await one.manager.call(*SET_CONFIG)
        await mock.call("SimulateHangActions", "as", [CONFIGURE])
        pending = asyncio.create_task(one.manager.call(*SET_CONFIG))
        await one.manager.call("ListServers", "a{sv}", [{}])
        assert not pending.done()
        await mock.call("ReleaseHangingCalls")
        await pending


ASKED = [
    ("Update", "asa{sv}", [["x"], {}], "update", {"id": "x"}),
    ("Approve", "sa{sv}", ["nothing", {}], "approve", {"id": "nothing"}),
    ("SetPinned", "sba{sv}", ["nothing", True, {}], "configure", {"id": "nothing"}),
    ("Verify", "asa{sv}", [["x"], {}], "refresh", {}),
    ("AddKey", "ssa{sv}", ["friend", "", {}], "manage-sources", {"key": "friend"}),
    ("RemoveKey", "sa{sv}", ["friend", {}], "manage-sources", {"key": "friend"}),
    ("Uninstall", "sa{sv}", ["nothing", {}], "uninstall", {"id": "nothing"}),
    ("Rollback", "sa{sv}", ["nothing", {}], "rollback", {"id": "nothing"}),
    ("CheckUpdates", "a{sv}", [{}], "refresh", {}),
    ("Refresh", "a{sv}", [{}], "refresh", {}),
    (
        "AddSource",
        "sa{sv}",
        ["https://example.com/r.json", {}],
        "manage-sources",
        {"source": "https://example.com/r.json"},
    ),
    ("RemoveSource", "sa{sv}", ["https://example.com/", {}], "manage-sources", {"source": "https://example.com/"}),
    ("Spawn", "sa{uh}ta{sv}", ["nothing", {}, 0, {}], "spawn", {"id": "nothing"}),
]


@pytest.mark.parametrize(("member", "signature", "args", "action", "details"), ASKED, ids=[row[0] for row in ASKED])
async def test_each_method_asks_for_its_action(
    system: Machine, member: str, signature: str, args: list[Any], action: str, details: dict[str, str]
) -> None:
    async with (
        people(system) as (one, _, uids, third),
        served(system, scope=Scope.SYSTEM, uids=uids),
        polkitd(system, third, TEMPLATE) as mock,
    ):
        with pytest.raises(NotAuthorized, match=rf"org\.mcpd\.mcp1\.{action} "):
            await one.manager.call(member, signature, args)
        assert [(call[1], call[2]) for call in await mock.calls()] == [(f"org.mcpd.mcp1.{action}", details)]


@pytest.mark.parametrize("member", ["SetSecret", "InstallManifest"])
async def test_what_comes_in_fds_is_not_read_before_the_answer(system: Machine, member: str) -> None:
    read, write = os.pipe()
    call = (
        (member, "ssha{sv}", ["x", "k", 0, {}]) if member == "SetSecret" else (member, "ha{sv}", [0, {}])
    )  # fmt: skip
    async with (
        people(system) as (one, _, uids, third),
        served(system, scope=Scope.SYSTEM, uids=uids),
        polkitd(system, third, TEMPLATE),
    ):
        with pytest.raises(NotAuthorized):
            await one.manager.call(*call, fds=[read])
    os.close(read)
    with pytest.raises(BrokenPipeError):
        os.write(write, b"x")
    os.close(write)


async def test_another_users_session_needs_cancel_foreign(system: Machine) -> None:
    async with (
        people(system) as (one, two, uids, third),
        served(system, scope=Scope.SYSTEM, uids=uids) as core,
        polkitd(system, third, TEMPLATE) as mock,
    ):
        await mock.answer("org.mcpd.mcp1.spawn", "yes")
        path, ends = await one.spawn("x")
        with pytest.raises(NotAuthorized, match="cancel-foreign"):
            await two.session(path).call("Stop", "a{sv}", [{}])
        assert await two.manager.call("ListSessions") == []
        assert [s["server-id"] for s in await one.manager.call("ListSessions")] == ["x"]
        await one.session(path).call("Stop", "a{sv}", [{}])
        assert core.sessions.list() == []
        for fd in ends.values():
            os.close(fd)


async def test_sessions_and_jobs_of_others_are_not_shown(system: Machine) -> None:
    async with (
        people(system) as (one, two, uids, third),
        served(system, scope=Scope.SYSTEM, uids=uids),
        polkitd(system, third, TEMPLATE) as mock,
    ):
        uids[third.unique_name] = 0
        root = Client(third, system=True)
        added: list[Any] = []
        await two.connection.subscribe(Match(member="InterfacesAdded"), added.append)
        for action in ("spawn", "refresh"):
            await mock.answer(f"org.mcpd.mcp1.{action}", "yes")
        session, ends = await one.spawn("x")
        job = await one.manager.call("Refresh", "a{sv}", [{}])
        for client, sees in ((one, True), (root, True), (two, False)):
            managed, _ = await client.invoke(ROOT, OBJECT_MANAGER, "GetManagedObjects", "", [], [], None)
            assert ({session, job} <= set(managed), {session, job}.isdisjoint(managed)) == (sees, not sees)
        for remote, name in ((two.session(session), "Pid"), (two.job(job), "ServerId")):
            with pytest.raises(NotAuthorized, match="another user"):
                await remote.properties()
            with pytest.raises(NotAuthorized, match="another user"):
                await two.invoke(remote.path, PROPERTIES, "Get", "ss", [remote.interface, name], [], None)
        assert (await one.session(session).properties())["ServerId"] == "x"
        assert (await root.job(job).properties())["OwnerUid"] == SOMEBODY
        assert [list(signal.args[1].values()) for signal in added if signal.args[0] in (session, job)] == [[{}], [{}]]
        for fd in ends.values():
            os.close(fd)


async def test_the_session_instance_serves_its_own_user_and_asks_nobody(machine: Machine) -> None:
    machine.install("x", where=machine.paths.user.installed, configurableProperties=[{"key": "level"}])
    async with (
        people(machine) as (one, _, uids, third),
        served(machine, scope=Scope.USER, uids=uids, only_uid=os.getuid()) as core,
    ):
        with pytest.raises(NotAuthorized, match="own session"):
            await one.manager.call("ListServers", "a{sv}", [{}])
        me = Client(third, system=False)
        await me.manager.call(*SET_CONFIG)
        assert core.store.config("x").values == {"level": "high"}
        with pytest.raises(NotFound):
            await me.manager.call("SetConfig", "sa{sv}a{sv}", ["no", {}, {}])
        with pytest.raises(InvalidConfig):
            await me.manager.call("SetConfig", "sa{sv}a{sv}", ["x", {"unknown": 1}, {}])
        with pytest.raises(McpdError):
            await me.job("/org/mcpd/Mcp1/job/77").properties()


async def test_every_decision_is_logged_with_fields(system: Machine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "mcpd.bus.authorization")
    async with (
        people(system) as (one, _, uids, third),
        served(system, scope=Scope.SYSTEM, uids=uids),
        polkitd(system, third, TEMPLATE) as mock,
    ):
        with pytest.raises(NotAuthorized):
            await one.manager.call(*SET_CONFIG)
        await mock.answer(CONFIGURE, "yes")
        await one.manager.call(*SET_CONFIG)
    refused, granted = [vars(record) for record in caplog.records if record.name == "mcpd.bus.authorization"]
    name, uid = one.connection.unique_name, uids[one.connection.unique_name]
    assert [refused["message"], granted["message"]] == [
        f"uid {uid} ({name}) may not {CONFIGURE}",
        f"uid {uid} ({name}) may {CONFIGURE}",
    ]
    for entry in (refused, granted):
        assert (entry["MESSAGE_ID"], entry["POLKIT_ACTION"]) == (POLKIT_DECISION, CONFIGURE)
        assert (entry["CALLER_UID"], entry["MCP_SERVER_ID"]) == (uid, "x")
