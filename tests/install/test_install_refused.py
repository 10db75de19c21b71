# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ending installations, and entries and projects that would do harm."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.bridge.places import places
from mcpd.errors import (
    AlreadyInstalled,
    Busy,
    IntegrityMismatch,
    InvalidArgument,
    InvalidManifest,
    NotSupported,
    SourceUnavailable,
    SystemInstanceOnly,
)
from mcpd.install import InstallOptions, JobEvent, JobState, read_lock
from mcpd.paths import Scope
from tests.install.install_parts import World, local, make_world, project, reach
from tests.servers.remote_harness import far_server

if TYPE_CHECKING:
    from pathlib import Path

REGION = {"key": "region", "label": "Region", "required": True, "type": "string"}


async def test_no_server_gets_the_place_of_a_file_of_mcpds_own(world: World, tmp_path: Path) -> None:
    user = world.paths.user
    for file in (places(user).token, user.installed / "index.json"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mcpd's own")
        with pytest.raises(InvalidManifest, match="reserved"):
            await world.install(local(project(tmp_path / "src"), id=file.name))
        assert file.read_text() == "mcpd's own"


@pytest.mark.parametrize(
    "state", [JobState.PLANNING, JobState.NEEDS_CONFIG, JobState.FETCHING, JobState.BUILDING, JobState.VERIFYING]
)
async def test_cancel_in_every_state_leaves_nothing(world: World, tmp_path: Path, state: JobState) -> None:
    asked = [REGION] if state is JobState.NEEDS_CONFIG else []
    job = world.begin(local(project(tmp_path / "src"), configurableProperties=asked))
    world.installer.jobs.subscribe(lambda event: event.job.cancel() if event.job.state is state else None)
    await job.wait()
    assert job.state is JobState.CANCELLED
    assert state in world.states(job)
    assert JobState.ACTIVATING not in world.states(job)
    assert world.store.list() == []
    assert world.left_over() == []


async def test_cancel_before_the_first_step(world: World, tmp_path: Path) -> None:
    job = world.begin(local(project(tmp_path / "src")))
    job.cancel()
    await job.wait()
    assert job.state is JobState.CANCELLED


async def test_activation_cannot_be_cancelled(world: World, tmp_path: Path) -> None:
    refused: list[NotSupported] = []

    def cancel(event: JobEvent) -> None:
        if event.job.state is JobState.ACTIVATING and not refused:
            assert not event.job.cancellable
            with pytest.raises(NotSupported) as caught:
                event.job.cancel()
            refused.append(caught.value)

    world.installer.jobs.subscribe(cancel)
    job = await world.install(local(project(tmp_path / "src")))
    assert job.state is JobState.DONE
    assert refused


async def test_an_entry_that_asks_for_the_users_service_manager_is_refused_before_consent(
    world: World, tmp_path: Path
) -> None:
    entry = local(project(tmp_path / "src"), permissions=["session-bus:talk:org.freedesktop.systemd1?bus"])
    with pytest.raises(InvalidManifest, match=r"never granted: org\.freedesktop\.systemd1 starts any program"):
        world.begin(entry)


@pytest.mark.parametrize(
    ("permission", "reason"),
    [
        ("filesystem:rw:/proc", "cannot be granted; specify only the directories that are needed"),
        ("filesystem:create:/dev/x", "cannot be granted; specify only the directories that are needed"),
        ("filesystem:ro:relative", "must be absolute"),
    ],
)
async def test_an_entry_that_asks_for_what_no_server_gets_is_refused_before_consent(
    world: World, tmp_path: Path, permission: str, reason: str
) -> None:
    with pytest.raises(InvalidManifest, match=reason):
        world.begin(local(project(tmp_path / "src"), permissions=[permission]))


async def test_an_entry_may_ask_for_a_directory_that_is_missing(world: World, tmp_path: Path) -> None:
    entry = local(project(tmp_path / "src"), permissions=[f"filesystem:ro:{tmp_path}/later", "filesystem:ro:~/later"])
    assert (await world.install(entry)).error is None


async def test_the_end_of_mcpd_takes_an_unproven_activation_back(world: World, tmp_path: Path) -> None:
    job = world.begin(local(project(tmp_path / "src"), "silent"))
    await reach(job, world, JobState.ACTIVATING)
    await world.installer.close()
    assert job.state is JobState.CANCELLED
    assert world.store.list() == []
    assert world.sessions.list() == []


async def test_one_job_per_server(world: World, tmp_path: Path) -> None:
    document = local(project(tmp_path / "src"))
    job = world.begin(document)
    with pytest.raises(Busy, match=f"job {job.number}"):
        world.begin(document)
    other = world.begin({**document, "id": "other"})
    await job.wait()
    await other.wait()
    assert job.error is other.error is None
    with pytest.raises(AlreadyInstalled):
        world.begin(document)


async def test_a_server_for_the_system_is_not_installed_for_a_user(world: World, tmp_path: Path) -> None:
    with pytest.raises(SystemInstanceOnly, match="--system"):
        world.begin(local(project(tmp_path / "src"), scope="system"))


async def test_what_leads_outside_is_refused(world: World, tmp_path: Path) -> None:
    source = project(tmp_path / "src")
    (source / "passwd").symlink_to("/etc/passwd")
    job = await world.install(local(source))
    assert isinstance(job.error, InvalidManifest)
    assert "passwd" in job.error.message
    (source / "passwd").unlink()
    (source / "sub").mkdir()
    (source / "sub/up").symlink_to("../../..")
    job = await world.install(local(source))
    assert isinstance(job.error, InvalidManifest)
    (source / "sub/up").unlink()
    (source / "sub/fine").symlink_to("../server.py")
    job = await world.install(local(source))
    assert job.error is None


async def test_special_files_are_refused(world: World, tmp_path: Path) -> None:
    source = project(tmp_path / "src")
    os.mkfifo(source / "pipe")
    job = await world.install(local(source))
    assert isinstance(job.error, InvalidManifest)
    (source / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(source)
        listener.bind("socket")
    job = await world.install(local(source))
    assert isinstance(job.error, InvalidManifest)
    assert world.left_over() == []


@pytest.mark.parametrize("name", ["requirements.txt", "pyproject.toml", "package.json", "package-lock.json"])
async def test_huge_files_of_a_project_are_refused_by_name(world: World, tmp_path: Path, name: str) -> None:
    source = project(tmp_path / "src", {"package.json": json.dumps({"dependencies": {"x": "1"}})})
    with (source / name).open("ab") as file:
        file.truncate(9 * 1024**2)
    command = "node" if name.startswith("package") else "python3"
    transport = {"type": "stdio", "command": command, "args": ["server.py"]}
    job = await world.install(local(source, transports=[transport]))
    assert isinstance(job.error, InvalidManifest)
    assert f"the project's {name} is larger" in job.error.message
    assert world.left_over() == []


async def test_a_directory_of_data_is_refused(world: World, tmp_path: Path) -> None:
    source = project(tmp_path / "src")
    with (source / "model.bin").open("wb") as file:
        file.truncate(5 * 1024**3)
    job = await world.install(local(source))
    assert isinstance(job.error, InvalidManifest)
    assert "larger than 4 GiB" in job.error.message
    assert world.left_over() == []


async def test_mcpds_own_files_are_no_source(world: World, tmp_path: Path) -> None:
    project(tmp_path / "home/data")
    job = await world.install(local(tmp_path / "home/data"))
    assert isinstance(job.error, InvalidManifest)
    assert "own files" in job.error.message


async def test_a_source_that_is_not_there_is_named(world: World, tmp_path: Path) -> None:
    job = await world.install(local(tmp_path / "nowhere"))
    assert isinstance(job.error, SourceUnavailable)
    assert "nowhere" in job.error.message


@pytest.mark.parametrize(
    ("transport", "text"),
    [
        ({"command": "python3", "args": ["missing.py"]}, "missing.py"),
        ({"command": "no-such-program"}, "no-such-program"),
        ({"command": "./run.sh"}, "run.sh"),
        ({"command": "../../../../usr/bin/env"}, "usr/bin/env"),
    ],
)
async def test_a_command_that_is_not_there_is_named(
    world: World, tmp_path: Path, transport: dict[str, Any], text: str
) -> None:
    job = await world.install(local(project(tmp_path / "src"), transports=[{"type": "stdio", **transport}]))
    assert isinstance(job.error, InvalidManifest)
    assert text in job.error.message
    assert world.left_over() == []


async def test_no_field_of_an_entry_reaches_a_shell(world: World, tmp_path: Path) -> None:
    evil = '"; touch PWNED; "'
    sources = [
        {"type": kind, "url": evil, "path": path, "package": evil, "version": evil, "rev": evil}
        for kind, path in (("git", ""), ("npm", ""), ("pypi", ""), ("local", f"/{evil}"))
    ]
    sources += [
        {"type": "git", "url": (tmp_path / "repo").as_uri(), "rev": evil},
        {"type": "git", "url": "ext::sh -c touch% PWNED"},
        {"type": "git", "url": "--upload-pack=touch PWNED"},
        {"type": "pypi", "package": "fine", "version": evil},
        {"type": "pypi", "package": "--index-url=http://evil.test"},
        {"type": "npm", "package": "fine", "version": "git+https://evil.test/x"},
        {"type": "npm", "package": "../../x"},
        {"type": "local", "path": f"{tmp_path}/{evil}"},
    ]
    words = dict.fromkeys(("name", "summary", "version", "description", "homepage", "icon", "releaseDate"), evil)
    for source in sources:
        document = {**local(tmp_path), **words, "source": source, "transports": [{"type": "stdio", "command": evil}]}
        try:
            job = world.begin(document)
        except InvalidManifest:
            continue
        await job.wait()
        assert job.state is JobState.FAILED
    project(tmp_path / "src")
    arguments = [{"type": "stdio", "command": "python3", "args": ["server.py", evil, "$(touch PWNED)"]}]
    job = await world.install(local(tmp_path / "src", **words, transports=arguments))
    assert job.error is None
    assert not list(tmp_path.rglob("PWNED"))
    assert not os.path.lexists("PWNED")


async def test_a_registry_on_the_network_cannot_name_local_files(world: World, tmp_path: Path) -> None:
    world.shelf.origin = "https://registry.test/list.json"
    source = project(tmp_path / "src")
    for kind in ({"type": "local", "path": str(source)}, {"type": "git", "url": source.as_uri()}):
        world.shelf.put(local(source, source=kind))
        with pytest.raises(InvalidManifest, match="files on this machine"):
            await world.installer.install("org.test.hello", InstallOptions(), os.getuid())


async def test_a_summary_is_completed_from_its_manifest(world: World, tmp_path: Path) -> None:
    whole = tmp_path / "whole.json"
    whole.write_text(json.dumps(local(project(tmp_path / "src"))))
    digest = hashlib.sha256(whole.read_bytes()).hexdigest()
    summary = {"id": "org.test.hello", "name": "Hello", "version": "1.0", "manifest": whole.as_uri()}
    world.shelf.put({**summary, "integrity": {"manifestSha256": "0" * 64}})
    job = await world.installer.install("org.test.hello", InstallOptions(), os.getuid())
    await job.wait()
    assert isinstance(job.error, IntegrityMismatch)
    world.shelf.put({**summary, "integrity": {"manifestSha256": digest}})
    job = await world.installer.install("org.test.hello", InstallOptions(), os.getuid())
    await job.wait()
    assert job.error is None
    assert world.installer.updates() == {}
    world.shelf.put({**summary, "id": "other"})
    job = await world.installer.install("other", InstallOptions(), os.getuid())
    await job.wait()
    assert isinstance(job.error, InvalidManifest)
    assert "org.test.hello" in job.error.message


async def test_a_summary_of_another_version_than_its_manifest_is_installed_once(world: World, tmp_path: Path) -> None:
    whole = tmp_path / "whole.json"
    whole.write_text(json.dumps(local(project(tmp_path / "src"))))
    summary = {"id": "org.test.hello", "name": "Hello", "version": "2.0", "manifest": whole.as_uri()}
    assert (await world.fetch(summary)).error is None
    assert world.installer.updates() == {}


async def test_a_manifest_of_a_summary_is_no_larger_than_one_of_a_caller(world: World, tmp_path: Path) -> None:
    whole = tmp_path / "whole.json"
    whole.write_text(json.dumps(local(project(tmp_path / "src"), description="x" * 1024 * 1024)))
    job = await world.fetch({"id": "org.test.hello", "name": "Hello", "manifest": whole.as_uri()})
    assert isinstance(job.error, SourceUnavailable)
    assert world.store.list() == []


async def test_a_key_vouches_for_nothing_that_is_not_pinned(world: World, tmp_path: Path) -> None:
    whole = tmp_path / "whole.json"
    whole.write_text(json.dumps(local(project(tmp_path / "src"))))
    integrity = {"manifestSha256": hashlib.sha256(whole.read_bytes()).hexdigest()}
    world.shelf.signer = "example"
    job = await world.fetch({"id": "org.test.hello", "manifest": whole.as_uri(), "integrity": integrity})
    assert job.error is None
    assert read_lock(world.store.get("org.test.hello").generation)["verified"] == ""
    document = json.dumps({**local(tmp_path / "src"), "id": "other"}).encode()
    signed = world.installer.install_manifest(document, InstallOptions(consent=True), os.getuid(), "example")
    await signed.wait()
    assert signed.error is None
    assert read_lock(world.store.get("other").generation)["verified"] == ""


async def test_a_version_is_that_of_one_server(world: World, tmp_path: Path) -> None:
    for ids in ([], ["org.test.hello", "other"]):
        with pytest.raises(InvalidArgument, match="applies to a single server"):
            await world.installer.update_offers(ids, InstallOptions(version="1.0"))


async def test_a_key_vouches_for_no_version_that_somebody_chose(world: World, tmp_path: Path) -> None:
    document = local(project(tmp_path / "src"))
    assert (await world.fetch(document)).error is None
    world.shelf.signer = "example"
    pinned = {"type": "npm", "package": "x", "version": "2.0.0"}
    world.shelf.put({**document, "version": "2.0", "source": pinned})
    (newer,) = await world.installer.update_offers(["org.test.hello"], InstallOptions())
    assert newer.verified
    (chosen,) = await world.installer.update_offers(["org.test.hello"], InstallOptions(version="1.5.0"))
    assert not chosen.verified
    assert chosen.entry.source is not None
    assert chosen.entry.source.version == "1.5.0"


async def test_a_value_given_while_the_rest_is_built_counts(world: World, tmp_path: Path) -> None:
    given: list[str] = []

    def give(event: JobEvent) -> None:
        if event.job.progress >= 90 and event.job.state is JobState.VERIFYING and not given:
            given.append("late")
            event.job.set_config({"region": "late"})

    world.installer.jobs.subscribe(give)
    document = local(project(tmp_path / "src"), "config", configurableProperties=[{**REGION, "required": False}])
    job = await world.install(document)
    assert job.error is None
    assert given
    assert world.store.values("org.test.hello")["region"] == "late"


async def test_credentials_of_a_source_are_not_kept(world: World, tmp_path: Path) -> None:
    source = {"type": "git", "url": "https://user:secret@h.test/x.git"}
    with far_server("sse") as far:
        remote = {"type": "sse", "url": far.url}
        job = await world.install({"id": "remote", "name": "R", "transports": [remote], "source": source})
    assert job.error is None
    for file in world.store.get("remote").generation.iterdir():
        assert "secret" not in file.read_text()


async def test_the_system_scope_is_readable_for_the_account_that_runs_it(tmp_path: Path) -> None:
    source = project(tmp_path / "src", {"private.txt": "x"})
    (source / "private.txt").chmod(0o600)
    old = os.umask(0o077)
    try:
        async with make_world(Scope.SYSTEM) as world:
            job = await world.install(local(source, scope="system"))
            assert job.error is None
            generation = world.store.get("org.test.hello").generation
            assert generation.is_relative_to(tmp_path / "system")
            assert all(path.stat().st_mode & 0o444 == 0o444 for path in generation.rglob("*"))
            shown = (generation, generation.parent, generation.parents[1], world.paths.system.installed)
            assert [directory.stat().st_mode & 0o777 for directory in shown] == [0o755] * 4
    finally:
        os.umask(old)
