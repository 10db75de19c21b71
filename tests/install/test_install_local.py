# SPDX-License-Identifier: LGPL-2.1-or-later
"""Installing from a directory: the whole pipeline without a network."""

from __future__ import annotations

import asyncio
import json
import os
import select
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import (
    Busy,
    InvalidConfig,
    NoSpace,
    NotFound,
    Unhealthy,
)
from mcpd.install import InstallOptions, JobState, read_lock
from mcpd.runtime.sessions import Owner
from tests.install.install_parts import World, local, make_world, project, reach
from tests.servers.remote_harness import far_server

if TYPE_CHECKING:
    from pathlib import Path

SECRET = {"key": "api_key", "label": "API key", "sensitive": True, "required": True}
REGION = {"key": "region", "label": "Region", "required": True, "type": "string"}
ROUNDS = {"key": "rounds", "type": "integer", "default": 3}


async def test_project_and_manifest_are_in_the_install_directory(world: World, tmp_path: Path) -> None:
    source = project(tmp_path / "src", {"lib/helper.py": "x = 1\n", ".git/config": "[core]\n"})
    job = await world.install(local(source))
    assert job.error is None
    directory = world.paths.user.installed / "org.test.hello"
    assert (directory / "server.py").is_file()
    assert (directory / "lib/helper.py").is_file()
    assert not (directory / ".git").exists()
    manifest = json.loads((directory / "manifest.json").read_text())
    assert manifest["installDir"] == str(directory)
    assert manifest["transports"] == local(source)["transports"]
    assert world.left_over() == []


async def test_the_tools_are_kept_and_the_eras_recorded(world: World, tmp_path: Path) -> None:
    await world.install(local(project(tmp_path / "src"), "pages"))
    assert [tool["name"] for tool in world.store.tools("org.test.hello") or []] == ["t0", "t1", "t2", "t3", "t4"]
    lock = read_lock(world.store.get("org.test.hello").generation)
    assert lock["protocol"] == {"handshake": "2025-11-25", "modern": False}
    assert lock["source"] == {"type": "local", "path": str(tmp_path / "src")}


@pytest.mark.parametrize(
    ("mode", "handshake", "modern"),
    [
        ("dual", "2025-11-25", True),
        ("modern-only", "", True),
        ("banner", "2025-11-25", False),
        ("alone", "2025-11-25", False),
        ("dual-busy", "2025-11-25", True),
    ],
)
async def test_eras_of_a_server(world: World, tmp_path: Path, mode: str, handshake: str, *, modern: bool) -> None:
    job = await world.install(local(project(tmp_path / "src"), mode))
    assert job.error is None
    lock = read_lock(world.store.get("org.test.hello").generation)
    assert lock["protocol"] == {"handshake": handshake, "modern": modern}
    assert [tool["name"] for tool in world.store.tools("org.test.hello") or []] == ["hello"]


async def test_a_server_is_installed_where_only_one_more_may_run(tmp_path: Path) -> None:
    async with make_world(max_sessions=1) as world:
        job = await world.install(local(project(tmp_path / "src"), "dual"))
        assert job.error is None
        lock = read_lock(world.store.get("org.test.hello").generation)
        assert lock["protocol"] == {"handshake": "2025-11-25", "modern": True}


async def test_a_server_that_asks_during_the_check_is_answered(world: World, tmp_path: Path) -> None:
    job = await world.install(local(project(tmp_path / "src"), "asks"))
    assert job.error is None
    assert [tool["name"] for tool in world.store.tools("org.test.hello") or []] == ["pinged-{}"]


async def test_states_come_in_order_and_progress_never_falls(world: World, tmp_path: Path) -> None:
    job = await world.install(local(project(tmp_path / "src", {"big": "x" * 300_000})))
    order = [
        JobState.QUEUED,
        JobState.PLANNING,
        JobState.FETCHING,
        JobState.BUILDING,
        JobState.VERIFYING,
        JobState.ACTIVATING,
        JobState.DONE,
    ]
    assert world.states(job) == order
    known = [progress for _, _, _, progress in world.events if progress != 101]
    assert known == sorted(known)
    assert known[-1] == 100
    assert job.bytes_done == job.bytes_total > 300_000


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("exit", "cannot find my database"),
        ("garbage", "not JSON-RPC"),
        ("endless", "pages"),
        ("nonsense-mode-but-fine", None),
    ],
)
async def test_health_decides(world: World, tmp_path: Path, mode: str, text: str | None) -> None:
    job = await world.install(local(project(tmp_path / "src"), mode))
    if text is None:
        assert job.state is JobState.DONE
        return
    assert isinstance(job.error, Unhealthy)
    assert text in job.error.message
    assert world.store.list() == []
    assert world.left_over() == []
    assert world.sessions.list() == []


@pytest.mark.parametrize("mode", ["silent", "flood"])
async def test_a_server_that_never_answers_is_unhealthy(tmp_path: Path, mode: str) -> None:
    async with make_world(health_timeout=1) as world:
        job = await world.install(local(project(tmp_path / "src"), mode))
        assert isinstance(job.error, Unhealthy)
        assert "within 1 s" in job.error.message
        assert ("complaint" in job.error.message) is (mode == "flood")
        assert world.sessions.list() == []
        assert world.left_over() == []


async def test_nobody_is_told_that_the_previous_version_is_back_if_it_is_not(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await world.fetch(local(project(tmp_path / "src")))).error is None
    world.shelf.put(local(tmp_path / "src", "exit", version="2.0"))

    def full(*_: object, **__: Any) -> None:
        raise NoSpace("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(world.store, "rollback", full)
        update = await world.update()
    assert isinstance(update.error, Unhealthy)
    assert "could not be restored" in update.error.message
    assert "was restored" not in update.error.message
    assert world.store.active_generation("org.test.hello") == 2
    assert world.store.generation_path("org.test.hello", 2).is_dir()
    world.store.rollback("org.test.hello")
    server = world.store.get("org.test.hello")
    assert server.manifest is not None
    assert server.manifest.version == "1.0"


async def test_an_unhealthy_update_brings_the_previous_version_back(world: World, tmp_path: Path) -> None:
    properties = [SECRET, ROUNDS]
    world.shelf.put(local(project(tmp_path / "src"), "config", configurableProperties=properties))
    job = await world.installer.install("org.test.hello", InstallOptions(), os.getuid())
    await reach(job, world, JobState.NEEDS_CONFIG)
    job.set_secret("api_key", "old")
    await job.wait()
    assert job.error is None
    before = world.store.get("org.test.hello")
    world.shelf.put(local(tmp_path / "src", "exit", version="2.0", configurableProperties=properties))
    update = await world.update(config={"rounds": 7})
    assert isinstance(update.error, Unhealthy)
    assert "previous version was restored" in update.error.message
    after = world.store.get("org.test.hello")
    assert after.generation == before.generation
    assert after.manifest is not None
    assert after.manifest.version == "1.0"
    assert world.store.launch_manifest("org.test.hello").values == {"api_key": "old", "rounds": 3}
    assert world.store.generations("org.test.hello") == [1]


async def test_an_unhealthy_update_costs_nothing_where_one_generation_is_kept(tmp_path: Path) -> None:
    async with make_world(keep_generations=1) as world:
        world.shelf.put(local(project(tmp_path / "src"), "config", configurableProperties=[SECRET]))
        job = await world.installer.install("org.test.hello", InstallOptions(), os.getuid())
        await reach(job, world, JobState.NEEDS_CONFIG)
        job.set_secret("api_key", "mine")
        await job.wait()
        world.shelf.put(local(tmp_path / "src", "exit", version="2.0", configurableProperties=[SECRET]))
        update = await world.update()
        assert isinstance(update.error, Unhealthy)
        assert world.store.launch_manifest("org.test.hello").values == {"api_key": "mine"}
        world.shelf.put(local(tmp_path / "src", "config", version="3.0", configurableProperties=[SECRET]))
        await world.update()
        assert world.store.generations("org.test.hello") == [world.store.active_generation("org.test.hello")]


async def test_update_makes_a_new_generation_and_rollback_goes_back(world: World, tmp_path: Path) -> None:
    source = project(tmp_path / "src")
    await world.fetch(local(source))
    nothing = await world.update("org.test.hello")
    assert nothing.error is None
    assert world.store.generations("org.test.hello") == [1]
    world.shelf.put(local(source, version="1.1"))
    assert world.updates() == {"org.test.hello": "1.1"}
    await world.update("org.test.hello")
    installed = world.store.get("org.test.hello").manifest
    assert installed is not None
    assert installed.version == "1.1"
    assert world.store.active_generation("org.test.hello") == 2
    back = world.installer.rollback("org.test.hello", os.getuid())
    await back.wait()
    assert back.error is None
    assert world.store.active_generation("org.test.hello") == 1


async def test_an_older_entry_is_no_update(world: World, tmp_path: Path) -> None:
    source = project(tmp_path / "src")
    await world.fetch(local(source, version="2.0"))
    world.shelf.put(local(source, version="1.9"))
    assert world.updates() == {}


async def test_uninstall_stops_what_runs(world: World, tmp_path: Path) -> None:
    await world.install(local(project(tmp_path / "src"), "silent-not"))
    read, write = os.pipe()
    out = os.open(os.devnull, os.O_WRONLY)
    session = await world.sessions.spawn("org.test.hello", {0: read, 1: out}, owner=Owner(os.getuid(), "test"))
    os.close(read)
    os.close(out)
    job = world.installer.uninstall("org.test.hello", os.getuid())
    await job.wait()
    os.close(write)
    assert job.error is None
    assert session.state == "exited"
    assert world.store.list() == []
    with pytest.raises(NotFound):
        world.installer.uninstall("org.test.hello", os.getuid())


@pytest.mark.parametrize("change", ["remove", "rollback"])
async def test_a_session_begun_during_the_change_ends_with_it(
    world: World, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = project(tmp_path / "src")
    for version in ("1.0", "2.0"):
        await world.install(local(source, version=version), reinstall=True)
    loop, original, begun = asyncio.get_running_loop(), getattr(world.store, change), []
    (read, write), (answers, answer) = os.pipe(), os.pipe()

    def begin_first(*args: object, **options: Any) -> object:
        spawning = world.sessions.spawn("org.test.hello", {0: read, 1: answer}, owner=Owner(os.getuid(), "test"))
        begun.append(asyncio.run_coroutine_threadsafe(spawning, loop).result(60))
        os.write(write, b'{"jsonrpc": "2.0", "id": 1, "method": "initialize"}\n')
        # It answers, so the program is read by now: it does not end because its file is gone.
        assert select.select([answers], [], [], 60)[0]
        return original(*args, **options)

    monkeypatch.setattr(world.store, change, begin_first)
    start = world.installer.uninstall if change == "remove" else world.installer.rollback
    job = start("org.test.hello", os.getuid())
    await job.wait()
    for end in (read, write, answers, answer):
        os.close(end)
    assert job.error is None
    assert [session.stopped_for for session in begun] == ["server-changed"]
    assert world.sessions.list() == []


async def test_required_values_are_asked_for_before_anything_is_fetched(world: World, tmp_path: Path) -> None:
    document = local(project(tmp_path / "src"), "config", configurableProperties=[SECRET, REGION, ROUNDS])
    job = world.begin(document, config={"rounds": "5"})
    await reach(job, world, JobState.NEEDS_CONFIG)
    assert [need.key for need in job.needs] == ["api_key", "region"]
    assert [need.sensitive for need in job.needs] == [True, False]
    assert JobState.FETCHING not in world.states(job)
    with pytest.raises(InvalidConfig, match="rounds"):
        job.set_config({"rounds": "many"})
    with pytest.raises(InvalidConfig, match="sensitive"):
        job.set_config({"api_key": "hunter2"})
    with pytest.raises(InvalidConfig, match="has no property"):
        job.set_config({"colour": "red"})
    job.set_config({"region": "eu"})
    assert [need.key for need in job.needs] == ["api_key"]
    job.set_secret("api_key", "hunter2")
    await job.wait()
    assert job.error is None
    names = [tool["name"] for tool in world.store.tools("org.test.hello") or []]
    assert names == ["api_key=hunter2", "region=eu", "rounds=5"]
    assert "hunter2" not in world.store.manifest_path("org.test.hello").read_text()
    configuration = world.store.config("org.test.hello")
    assert configuration.values == {"region": "eu", "rounds": 5}
    assert configuration.secrets_set == ["api_key"]


async def test_values_that_are_set_already_are_not_asked_for_again(world: World, tmp_path: Path) -> None:
    document = local(project(tmp_path / "src"), "config", configurableProperties=[REGION])
    await world.install(document, config={"region": "eu"})
    job = await world.install(document, reinstall=True)
    assert job.error is None
    assert JobState.NEEDS_CONFIG not in world.states(job)
    assert world.store.config("org.test.hello").values == {"region": "eu"}


async def test_permissions_need_consent_once(world: World, tmp_path: Path) -> None:
    document = local(project(tmp_path / "src"), permissions=["network", "Reads your calendar"])
    job = world.begin(document, consent=False)
    await reach(job, world, JobState.NEEDS_CONSENT)
    assert [need.to_dict()["key"] for need in job.needs] == ["network"]
    job.proceed()
    await job.wait()
    assert job.error is None
    again = world.begin(document, consent=False, reinstall=True)
    await again.wait()
    assert JobState.NEEDS_CONSENT not in world.states(again)
    more = world.begin({**document, "permissions": ["network", "devices"]}, consent=False, reinstall=True)
    await reach(more, world, JobState.NEEDS_CONSENT)
    assert [need.key for need in more.needs] == ["devices"]
    more.cancel()
    await more.wait()
    assert more.state is JobState.CANCELLED


async def test_a_default_that_makes_more_of_a_permission_needs_consent_again(world: World, tmp_path: Path) -> None:
    def document(roots: str, **fields: Any) -> dict[str, object]:
        prop = {"key": "roots", "type": "path", "default": roots}
        permissions = ["filesystem:ro:{config.roots}"]
        return local(project(tmp_path / "src"), permissions=permissions, configurableProperties=[prop], **fields)

    await world.install(document("/srv"))
    same = world.begin(document("/srv"), consent=False, reinstall=True)
    await same.wait()
    assert JobState.NEEDS_CONSENT not in world.states(same)
    more = world.begin(document("/home"), consent=False, reinstall=True)
    await reach(more, world, JobState.NEEDS_CONSENT)
    more.cancel()
    await more.wait()
    world.store.set_config("org.test.hello", {"roots": "/opt"})
    chosen = world.begin(document("/home"), consent=False, reinstall=True)
    await chosen.wait()
    assert JobState.NEEDS_CONSENT not in world.states(chosen)


async def test_a_remote_server_is_its_manifest_only(world: World) -> None:
    with far_server("streamable-http") as far:
        document = {
            "id": "remote",
            "name": "Remote",
            "summary": "Elsewhere",
            "version": "1",
            "transports": [{"type": "streamable-http", "url": far.url}],
        }
        job = await world.install(document)
    assert job.error is None
    directory = world.store.get("remote").generation
    assert sorted(path.name for path in directory.iterdir()) == [".mcpd-files", ".mcpd-lock.json", "manifest.json"]


async def test_finished_jobs_and_refresh(world: World) -> None:
    refresh, check = world.installer.refresh(os.getuid()), world.installer.check_updates(os.getuid())
    await refresh.wait()
    await check.wait()
    assert world.shelf.refreshed == 2
    assert refresh.progress == check.progress == 100


async def test_one_update_job_for_several_servers(world: World, tmp_path: Path) -> None:
    source = project(tmp_path / "src")
    for name, mode in (("one", "ok"), ("two", "exit"), ("three", "ok")):
        await world.fetch(local(source, id=name))
        world.shelf.put(local(source, mode, id=name, version="2.0"))
    world.events.clear()
    job = await world.installer.update([], InstallOptions(), os.getuid())
    with pytest.raises(Busy):
        world.installer.uninstall("two", os.getuid())
    await job.wait()
    assert isinstance(job.error, Unhealthy)
    assert "two" in job.error.message
    versions = {server.id: server.manifest.version for server in world.store.list() if server.manifest}
    assert versions == {"one": "2.0", "two": "1.0", "three": "2.0"}
    known = [progress for number, _, _, progress in world.events if number == job.number and progress != 101]
    assert known == sorted(known)
