# SPDX-License-Identifier: LGPL-2.1-or-later
"""What polkit is asked for depends on what is going to be done, and that alone is done then."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.bus.codec import Variant
from mcpd.bus.names import PROPERTIES
from mcpd.errors import BuildFailed, Busy, InvalidArgument, NotAuthorized, NotFound, SignatureInvalid
from mcpd.install.job import Job, JobKind, JobState, Need
from mcpd.install.lockfile import write_lock
from mcpd.install.options import Answers
from mcpd.install.sources.base import Outcome
from mcpd.model import Entry, Manifest
from mcpd.paths import Scope
from mcpd.store import Store
from mcpd.trust.keys import fingerprint_of
from mcpd.trust.signing import new_key, sign
from tests.bus.harness import next_signal
from tests.bus.inside import served
from tests.bus.polkit_mock import SOMEBODY, TEMPLATE, people, polkitd
from tests.bus.test_bus_catalog import entry, refreshed, write

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mcpd.bus.client import Client
    from mcpd.bus.core import Core
    from tests.bus.harness import Machine

PREFIX = "org.mcpd.mcp1."
ASKED = [{"key": "token", "sensitive": True}, {"key": "level"}]


@pytest.fixture
def signed(machine: Machine, tmp_path: Path) -> bytes:
    """A registry of the system that a key signed which the administrator trusts; the private key."""
    secret, public = new_key()
    registry = tmp_path / "signed.json"
    summary = {
        "id": "org.test.summary", "name": "Summary", "summary": "What is behind it is fetched later", "version": "1.0",
        "manifest": "https://x.example/m.json", "integrity": {"manifestSha256": "c" * 64},
    }  # fmt: skip
    local = {"type": "local", "path": str(tmp_path)}
    data = write(registry, entry("pinned"), entry("floating", source={"type": "npm", "package": "floating"}),
                 entry("bundle", transports=[], source={"type": "mcpb", "url": "https://x.example/x.mcpb",
                                                        "sha256": "a" * 64}),
                 entry("near", source=local), summary)  # fmt: skip
    registry.with_name("signed.json.sig").write_bytes(sign(data, secret))
    unsigned = tmp_path / "unsigned.json"
    write(unsigned, entry("other"))
    sources = machine.paths.system.sources_list
    sources.parent.mkdir(parents=True, exist_ok=True)
    sources.write_text(f"{registry.as_uri()}\n{unsigned.as_uri()}\n")
    keys = machine.paths.system.trusted_keys
    keys.mkdir(parents=True)
    (keys / "admin.pem").write_bytes(public)
    return secret


async def asked(
    machine: Machine, call: tuple[str, str, Sequence[Any]], fds: Sequence[int] = ()
) -> list[tuple[str, dict[str, str]]]:
    async with (
        people(machine) as (one, _, uids, third),
        served(machine, scope=Scope.SYSTEM, uids=uids) as core,
        polkitd(machine, third, TEMPLATE) as mock,
    ):
        await core.catalog.refresh()
        with pytest.raises(NotAuthorized):
            await one.manager.call(*call, fds=fds)
        return [(asking[1].rpartition(".")[2], asking[2]) for asking in await mock.calls()]


@pytest.mark.parametrize(
    ("name", "options", "action"),
    [
        ("pinned", {}, "install-trusted"),
        ("pinned", {"version": "1.0.0"}, "install-trusted"),
        ("pinned", {"version": "2.0.0"}, "install-untrusted"),
        ("floating", {}, "install-untrusted"),
        ("near", {}, "install-untrusted"),
        ("bundle", {}, "install-trusted"),
        ("other", {}, "install-untrusted"),
        ("summary", {}, "install-untrusted"),
    ],
)
async def test_less_is_asked_for_what_a_key_vouches_for(
    machine: Machine, signed: bytes, name: str, options: dict[str, Any], action: str
) -> None:
    assert signed
    ((found, details),) = await asked(machine, ("Install", "sa{sv}", [f"org.test.{name}", options]))
    assert found == action
    assert details["id"] == f"org.test.{name}"
    assert details["version"] == options.get("version", "1.0")
    assert details.get("signed-by", "") == ("admin" if action == "install-trusted" else "")
    assert details["source"].endswith("signed.json")


async def test_who_is_asked_about_a_key_sees_its_fingerprint(machine: Machine) -> None:
    _, public = new_key()
    fingerprint = {"fingerprint": fingerprint_of(public.decode())}
    for pem, shown in ((public.decode(), fingerprint), ("no key", {}), ("x" * 20_000, {})):
        ((action, details),) = await asked(machine, ("AddKey", "ssa{sv}", ["friend", pem, {}]))
        assert (action, details) == ("manage-sources", {"key": "friend", **shown})


async def test_a_signed_manifest_is_vouched_for(machine: Machine, signed: bytes) -> None:
    data = json.dumps(entry("brought")).encode()
    for signature, action in ((sign(data, signed), "install-trusted"), (b"", "install-untrusted")):
        read, write_end = os.pipe()
        os.write(write_end, data)
        os.close(write_end)
        options = {"signature": signature.decode()} if signature else {}
        async with (
            people(machine) as (one, _, uids, third),
            served(machine, scope=Scope.SYSTEM, uids=uids),
            polkitd(machine, third, TEMPLATE) as mock,
        ):
            with pytest.raises(NotAuthorized):
                await one.manager.call("InstallManifest", "ha{sv}", [0, options], fds=[read])
            assert [asking[1].rpartition(".")[2] for asking in await mock.calls()] == [action]
        os.close(read)


async def test_a_manifest_signed_by_a_stranger_is_refused(core: Core, client: Client) -> None:
    data = json.dumps(entry("brought")).encode()
    stranger, _ = new_key()
    read, write_end = os.pipe()
    os.write(write_end, data)
    os.close(write_end)
    with pytest.raises(SignatureInvalid, match="not signed by a trusted key"):
        await client.manager.call(
            "InstallManifest", "ha{sv}", [0, {"signature": sign(data, stranger).decode()}], fds=[read]
        )
    os.close(read)
    assert core.installer.jobs.list() == []


async def test_a_bundle_that_a_signed_registry_pins_is_vouched_for(machine: Machine, signed: bytes) -> None:
    assert signed
    read, write_end = os.pipe()
    for sha256, action in (("a" * 64, "install-trusted"), ("b" * 64, "install-untrusted")):
        ((found, _),) = await asked(machine, ("InstallBundle", "ha{sv}", [0, {"sha256": sha256}]), [read])
        assert found == action
    os.close(read)
    os.close(write_end)


@pytest.mark.parametrize(
    ("fields", "options"),
    [({}, {"version": "0.9.0"}), ({"source": {"type": "npm", "package": "floating"}}, {})],
    ids=["another version", "no version"],
)
async def test_a_signature_vouches_for_what_a_manifest_pins_alone(
    machine: Machine, signed: bytes, fields: dict[str, Any], options: dict[str, Any]
) -> None:
    data = json.dumps(entry("brought", **fields)).encode()
    read, write_end = os.pipe()
    os.write(write_end, data)
    os.close(write_end)
    given = {"signature": sign(data, signed).decode(), **options}
    async with (
        people(machine) as (one, _, uids, third),
        served(machine, scope=Scope.SYSTEM, uids=uids),
        polkitd(machine, third, TEMPLATE) as mock,
    ):
        with pytest.raises(NotAuthorized):
            await one.manager.call("InstallManifest", "ha{sv}", [0, given], fds=[read])
        assert [asking[1] for asking in await mock.calls()] == [PREFIX + "install-untrusted"]
    os.close(read)


@pytest.mark.parametrize(
    ("name", "options", "action"),
    [
        ("pinned", {}, "update"),
        ("pinned", {"reinstall": True}, "install-untrusted"),
        ("pinned", {"consent": True}, "install-trusted"),
        ("pinned", {"version": "0.9.0"}, "install-untrusted"),
        ("floating", {}, "install-untrusted"),
    ],
)
async def test_least_is_asked_for_an_update_that_is_vouched_for(
    machine: Machine, signed: bytes, tmp_path: Path, name: str, options: dict[str, Any], action: str
) -> None:
    assert signed
    origin = {"registry": (tmp_path / "signed.json").as_uri()}
    machine.install(
        f"org.test.{name}", where=machine.paths.system.installed, scope="system", version="0.5", origin=origin
    )
    ((found, details),) = await asked(machine, ("Update", "asa{sv}", [[f"org.test.{name}"], options]))
    assert (found, details) == (action, {"id": f"org.test.{name}"})


@pytest.mark.parametrize("named", [True, False])
async def test_who_is_asked_about_several_updates_is_told_their_ids(
    machine: Machine, signed: bytes, tmp_path: Path, *, named: bool
) -> None:
    assert signed
    origin = {"registry": (tmp_path / "signed.json").as_uri()}
    ids = ["org.test.bundle", "org.test.pinned"]
    for server_id in ids:
        machine.install(server_id, where=machine.paths.system.installed, scope="system", version="0.5", origin=origin)
    ((_, details),) = await asked(machine, ("Update", "asa{sv}", [ids if named else [], {}]))
    assert details == {"ids": "org.test.bundle, org.test.pinned"}


async def test_who_is_asked_about_going_back_is_told_where_to(machine: Machine) -> None:
    store = Store(machine.paths, Scope.SYSTEM)
    for version in ("1", "2", "3"):
        generation = store.new_generation("x")
        write_lock(generation.path, Entry.parse({"id": "x"}, version), Outcome(), registry="", content=version)
        store.activate(generation, Manifest.parse({"id": "x", "version": version}, "test"))
    for options, expected in (
        ({}, "2"),
        ({"generation": Variant("u", 1)}, "1"),
        ({"generation": Variant("u", 7)}, "7"),
    ):
        ((action, details),) = await asked(machine, ("Rollback", "sa{sv}", ["x", options]))
        assert (action, details) == ("rollback", {"id": "x", "generation": expected})


async def test_an_update_changes_no_configuration(core: Core, client: Client) -> None:
    with pytest.raises(InvalidArgument, match="SetConfig"):
        await client.manager.call("Update", "asa{sv}", [["x"], {"config": {"level": "high"}}])
    with pytest.raises(InvalidArgument, match="applies to a single server"):
        await client.manager.call("Update", "asa{sv}", [[], {"version": "1"}])
    assert core.installer.jobs.list() == []


def waiting(core: Core, kind: JobKind) -> tuple[Job, str]:
    """A job of :data:`SOMEBODY` about two servers that want the same permission agreed to, and its object."""

    async def work(job: Job) -> None:
        for index, server_id in enumerate(("x", "y")):
            job.begin_part(index, 2, server_id)
            await job.ask_consent([Need("permission", "network")])

    job = core.installer.jobs.start(kind, ["x", "y"], SOMEBODY, work)
    return job, f"/org/mcpd/Mcp1/job/{job.number}"


async def test_what_an_update_asks_is_not_for_anybody_to_answer(machine: Machine) -> None:
    async with (
        people(machine) as (one, _, uids, third),
        served(machine, scope=Scope.SYSTEM, uids=uids) as core,
        polkitd(machine, third, TEMPLATE) as mock,
    ):
        job, path = waiting(core, JobKind.UPDATE)
        await one.manager.call("ListServers", "a{sv}", [{}])
        with pytest.raises(NotAuthorized, match="install-trusted"):
            await one.job(path).call("Proceed", "a{sv}", [{}])
        with pytest.raises(NotAuthorized, match="configure"):
            await one.job(path).call("SetConfig", "a{sv}a{sv}", [{"level": "high"}, {}])
        with pytest.raises(NotAuthorized, match="set-secret"):
            await one.job(path).call("SetSecret", "sha{sv}", ["k", 0, {}], fds=[0])
        assert job.state is JobState.NEEDS_CONSENT
        await one.job(path).call("Cancel", "a{sv}", [{}])
        await job.wait()
        # Who installs was asked for that already.
        asked_before = len(await mock.calls())
        job, path = waiting(core, JobKind.INSTALL)
        await one.manager.call("ListServers", "a{sv}", [{}])
        await one.job(path).call("Proceed", "a{sv}", [{}])
        assert len(await mock.calls()) == asked_before


async def test_nobody_agrees_to_what_came_up_while_they_were_asked(machine: Machine) -> None:
    async with (
        people(machine) as (one, _, uids, third),
        served(machine, scope=Scope.SYSTEM, uids=uids) as core,
        polkitd(machine, third, TEMPLATE) as mock,
    ):
        await mock.answer(PREFIX + "install-trusted", "hang")
        job, path = waiting(core, JobKind.UPDATE)
        await one.manager.call("ListServers", "a{sv}", [{}])
        call = asyncio.create_task(one.job(path).call("Proceed", "a{sv}", [{}]))
        await mock.waiting(1)
        job.proceed()
        await one.manager.call("ListServers", "a{sv}", [{}])
        assert (job.server_id, [need.key for need in job.needs]) == ("y", ["network"])
        await mock.call("Release")
        with pytest.raises(InvalidArgument, match="is now working on y and no longer waits"):
            await call
        assert job.state is JobState.NEEDS_CONSENT


async def test_what_is_given_for_a_server_reaches_no_other(core: Core, client: Client) -> None:
    go_on = asyncio.Event()

    async def work(job: Job) -> None:
        for index, server_id in enumerate(("x", "y")):
            job.begin_part(index, 2, server_id)
            job.answers = Answers(Manifest.parse({"id": server_id, "configurableProperties": ASKED}, "test"))
            await go_on.wait()
            go_on.clear()

    job = core.installer.jobs.start(JobKind.INSTALL, ["x", "y"], os.getuid(), work)
    remote = client.job(f"/org/mcpd/Mcp1/job/{job.number}")
    read, write_end = os.pipe()
    try:
        late = asyncio.create_task(remote.call("SetSecret", "sha{sv}", ["token", 0, {}], fds=[read]))
        await client.manager.call("ListServers", "a{sv}", [{}])
        go_on.set()
        while job.server_id != "y":
            await asyncio.sleep(0)
        os.write(write_end, b"secret of x")
    finally:
        os.close(write_end)
        os.close(read)
    with pytest.raises(InvalidArgument, match="is now working on y"):
        await late
    with pytest.raises(InvalidArgument, match="is now working on y"):
        await remote.call("SetConfig", "a{sv}a{sv}", [{"level": "high"}, {"server-id": "x"}])
    assert job.answers.given() == {}
    await remote.call("SetConfig", "a{sv}a{sv}", [{"level": "high"}, {"server-id": "y"}])
    assert job.answers.given() == {"level": "high"}
    with pytest.raises(Busy, match="working on x"):
        await client.manager.call("SetPinned", "sba{sv}", ["x", True, {}])


async def test_who_names_the_server_agrees_to_no_other(core: Core, client: Client) -> None:
    async def work(job: Job) -> None:
        for index, server_id in enumerate(("x", "y")):
            job.begin_part(index, 2, server_id)
            await job.ask_consent([Need("permission", "network")])

    job = core.installer.jobs.start(JobKind.INSTALL, ["x", "y"], os.getuid(), work)
    remote = client.job(f"/org/mcpd/Mcp1/job/{job.number}")
    async with client.signals(interface=PROPERTIES) as signals:
        await remote.call("Proceed", "a{sv}", [{"server-id": "x"}])
        while (await next_signal(signals, "PropertiesChanged")).args[1].get("ServerId") != "y":
            pass
    with pytest.raises(InvalidArgument, match="ServerId"):
        await remote.call("Proceed", "a{sv}", [{"server-id": "x"}])
    assert ((await remote.properties())["ServerId"], job.state) == ("y", JobState.NEEDS_CONSENT)
    await remote.call("Proceed", "a{sv}", [{"server-id": "y"}])
    await job.wait()
    assert (await remote.properties())["ServerId"] == ""


async def test_the_update_that_waited_at_first_is_approved_of(
    core: Core, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    held = iter([3, 4])

    def approve(_server_id: str, _uid: int, *, generation: int | None, drop: bool) -> None:
        assert not drop
        seen.append(generation)
        raise NotFound("no such pending update")

    monkeypatch.setattr(type(core.store), "held", lambda _store, _server_id: next(held))
    monkeypatch.setattr(core.installer, "approve", approve)
    with pytest.raises(NotFound):
        await client.manager.call("Approve", "sa{sv}", ["x", {}])
    assert seen == [3]


async def test_a_user_verifies_once_at_a_time(core: Core, client: Client) -> None:
    async def work(_job: Job) -> None:
        await asyncio.Event().wait()

    core.installer.jobs.start(JobKind.VERIFY, [], os.getuid() + 1, work)
    await client.manager.call("Verify", "asa{sv}", [[], {}])
    core.installer.jobs.start(JobKind.VERIFY, [], os.getuid(), work)
    with pytest.raises(Busy, match="is already verifying"):
        await client.manager.call("Verify", "asa{sv}", [[], {}])


async def test_few_icons_are_fetched_at_once(
    core: Core, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "r.json", entry("clock", icon="https://icons.example/i.png"))
    await client.manager.call("AddSource", "sa{sv}", [(tmp_path / "r.json").as_uri(), {}])
    await refreshed(client)
    fetching = most = 0
    go_on = asyncio.Event()

    async def icon(_url: str, _registry: str) -> None:
        nonlocal fetching, most
        fetching += 1
        most = max(most, fetching)
        await go_on.wait()
        fetching -= 1
        raise NotFound("no icon")

    monkeypatch.setattr(core.catalog, "icon", icon)
    calls = [client.manager.call("GetIcon", "sa{sv}", ["org.test.clock", {}]) for _ in range(20)]
    ended = asyncio.gather(*calls, return_exceptions=True)
    while fetching < 8:
        await asyncio.sleep(0.01)
    go_on.set()
    assert [type(error) for error in await ended] == [NotFound] * 20
    assert most == 8


async def test_what_a_job_says_reaches_its_owner_only(machine: Machine) -> None:
    go_on = asyncio.Event()

    async def work(job: Job) -> None:
        await go_on.wait()
        job.enter(JobState.NEEDS_CONSENT)
        raise BuildFailed("it did not build\napi_key=sk-1")

    async with (
        people(machine) as (one, two, uids, _),
        served(machine, scope=Scope.SYSTEM, uids=uids) as core,
        one.signals() as heard,
        two.signals() as overheard,
    ):
        for client in (one, two):
            await client.manager.call("ListServers", "a{sv}", [{}])
        job = core.installer.jobs.start(JobKind.INSTALL, ["x"], SOMEBODY, work)
        path = f"/org/mcpd/Mcp1/job/{job.number}"
        with pytest.raises(NotAuthorized):
            await two.job(path).properties()
        go_on.set()
        while (changed := (await next_signal(heard, "PropertiesChanged")).args[1]).get("State") != "failed":
            pass
        assert changed["Detail"] == "api_key=sk-1"
        assert (await next_signal(heard, "JobRemoved")).args[0] == path
        # What was sent before the answer has come before it.
        await two.manager.call("ListServers", "a{sv}", [{}])
        members = {overheard.get_nowait().member for _ in range(overheard.qsize())}
        assert members <= {"InterfacesAdded", "CatalogChanged"}
