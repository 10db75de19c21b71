# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is shown before somebody agrees, and what keys vouch for, whoever writes the registry."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import AlreadyInstalled, IntegrityMismatch, InvalidManifest, NotFound, SignatureInvalid, Unhealthy
from mcpd.install import InstallOptions, Job, JobState, is_pinned
from mcpd.install.lockfile import LOCK_FILE
from mcpd.install.sources.mcpb import Bundle
from mcpd.model import Entry
from mcpd.trust.signing import new_key, sign
from tests.install.install_parts import World, local, project, reach

if TYPE_CHECKING:
    from pathlib import Path

HELLO = "org.test.hello"
ELSEWHERE = "https://registry.example/r.json"


def plan(job: Job, kind: str) -> list[tuple[str, str]]:
    return [(item.key, item.label) for item in job.plan if item.kind == kind]


@pytest.mark.parametrize("kind", ["git", "mcpb", "archive"])
@pytest.mark.parametrize("url", ["file:{}", "FILE:{}", "file://{}", "file://localhost{}"])
async def test_a_registry_elsewhere_reads_nothing_of_this_machine(
    world: World, tmp_path: Path, kind: str, url: str
) -> None:
    world.shelf.origin = ELSEWHERE
    pin = {"rev": "main"} if kind == "git" else {"sha256": "0" * 64}
    source = {"type": kind, "url": url.format(tmp_path), **pin}
    with pytest.raises(InvalidManifest, match=r"files on this machine|must be|begin"):
        await world.fetch(local(tmp_path, source=source))


async def test_values_and_variables_are_shown_with_what_they_grant(world: World, tmp_path: Path) -> None:
    source = project(tmp_path / "src")
    asked = [{"key": "dir", "default": "/srv/data"}, {"key": "token", "sensitive": True, "default": "/hush"}]
    document = local(
        source,
        configurableProperties=asked,
        permissions=["filesystem:rw:{config.dir}", "filesystem:ro:{config.token}"],
        env={"LD_PRELOAD": "/tmp/x.so", "GREETING": "hi"},
    )
    job = world.begin(document, consent=False)
    await reach(job, world, JobState.NEEDS_CONSENT)
    assert plan(job, "permission") == [
        ("filesystem:rw:{config.dir}", "filesystem:rw:/srv/data"),
        ("filesystem:ro:{config.token}", "filesystem:ro:{config.token}"),
    ]
    assert [key for key, _ in plan(job, "variable")] == ["LD_PRELOAD=/tmp/x.so", "GREETING=hi"]
    needs = {(need.kind, need.key) for need in job.needs}
    assert ("variable", "LD_PRELOAD=/tmp/x.so") in needs
    assert ("variable", "GREETING=hi") not in needs
    job.cancel()
    await job.wait()


async def test_neither_a_pin_nor_a_newer_version_is_passed_over(world: World, tmp_path: Path) -> None:
    source = project(tmp_path / "src")
    await world.fetch(local(source, version="2.0"))
    with pytest.raises(AlreadyInstalled, match=r"newer than 1\.0"):
        await world.fetch(local(source, version="1.0"))
    world.store.set_pinned(HELLO, True)
    for reinstall in (False, True):
        with pytest.raises(AlreadyInstalled, match=rf"pinned to 2.0, and 3.0 is offered.*pin --remove {HELLO}"):
            await world.fetch(local(source, version="3.0"), reinstall=reinstall)
    with pytest.raises(AlreadyInstalled, match="pinned to 2"):
        await world.update(HELLO, reinstall=True)
    assert (await world.update(HELLO)).error is None
    assert (await world.fetch(local(source, version="2.0"), reinstall=True)).error is None
    with pytest.raises(AlreadyInstalled, match="pinned to 2"):
        await world.fetch(local(source, version="1.0"))
    world.store.set_pinned(HELLO, False)
    assert (await world.fetch(local(source, version="1.0"), reinstall=True)).error is None


async def rolled_back(world: World, **options: Any) -> Job:
    job = world.installer.rollback(HELLO, os.getuid(), **options)
    await job.wait()
    return job


async def test_a_rollback_goes_to_something_else_that_is_as_it_was_installed(world: World, tmp_path: Path) -> None:
    source = project(tmp_path / "src")
    await world.fetch(local(source, version="1.0"))
    world.shelf.put(local(source, "dual", version="2.0"))
    await world.update(HELLO)
    await rolled_back(world)
    await world.update(HELLO)
    assert world.store.generations(HELLO) == [1, 2, 3]
    assert (await rolled_back(world)).error is None
    assert world.store.active_generation(HELLO) == 1
    (world.store.generation_path(HELLO, 2) / "server.py").write_text("print('tampered')")
    job = await rolled_back(world, generation=2)
    assert isinstance(job.error, IntegrityMismatch)
    assert "server.py" in job.error.message
    assert world.store.active_generation(HELLO) == 1


async def test_a_pin_that_was_removed_does_not_come_back(world: World, tmp_path: Path) -> None:
    source = project(tmp_path / "src")
    await world.fetch(local(source, version="1.0"))
    world.store.set_pinned(HELLO, True)
    assert (await world.install(local(source, "dual", version="2.0"))).error is None
    manifest = world.store.get(HELLO).manifest
    assert manifest is not None
    assert is_pinned(manifest)
    world.store.set_pinned(HELLO, False)
    assert (await rolled_back(world)).error is None
    assert world.updates() == {}
    world.shelf.put(local(source, version="3.0"))
    assert world.updates() == {HELLO: "3.0"}


async def test_an_update_that_fails_costs_no_generation(world: World, tmp_path: Path) -> None:
    source = project(tmp_path / "src")
    for version in ("1.0", "1.1", "1.2"):
        await world.fetch(local(source, version=version))
    for version in ("2.0", "2.1"):
        world.shelf.put(local(source, "exit", version=version))
        assert isinstance((await world.update(HELLO)).error, Unhealthy)
        assert world.store.generations(HELLO) == [1, 2, 3]


async def tampered(world: World, source: Path) -> Path:
    """Generation 1 with another file than was installed, behind generation 2, which is another version of the same."""
    await world.fetch(local(source, version="1.0"))
    world.shelf.put(local(source, version="2.0"))
    assert (await world.update(HELLO)).error is None
    path = world.store.generation_path(HELLO, 1)
    with (path / "server.py").open("a") as file:
        file.write("# more")
    return path


async def test_a_rollback_looks_at_its_files_though_the_versions_are_of_the_same(world: World, tmp_path: Path) -> None:
    path = await tampered(world, project(tmp_path / "src"))
    job = await rolled_back(world)
    assert isinstance(job.error, IntegrityMismatch)
    assert "changed: server.py" in job.error.message
    assert JobState.ACTIVATING not in world.states(job)
    assert world.store.active_generation(HELLO) == 2
    (path / "server.py").write_text((tmp_path / "src/server.py").read_text())
    assert (await rolled_back(world)).error is None
    assert world.store.active_generation(HELLO) == 1


@pytest.mark.parametrize("lock", ["{", "{}", ""])
async def test_a_rollback_goes_nowhere_without_a_record(world: World, tmp_path: Path, lock: str) -> None:
    path = await tampered(world, project(tmp_path / "src"))
    (path / LOCK_FILE).write_text(lock)
    if not lock:
        (path / LOCK_FILE).unlink()
    for options in ({}, {"generation": 1}):
        job = await rolled_back(world, **options)
        assert isinstance(job.error, IntegrityMismatch)
        assert f"could not verify generation 1 of {HELLO}: {LOCK_FILE}" in job.error.message
    assert world.store.active_generation(HELLO) == 2


async def test_a_rollback_to_what_another_tool_installed_needs_no_record(world: World, tmp_path: Path) -> None:
    directory = project(world.paths.user.installed / HELLO)
    (directory / "manifest.json").write_text(json.dumps({**local(tmp_path / "src"), "installDir": str(directory)}))
    await world.fetch(local(project(tmp_path / "src"), version="2.0"), reinstall=True)
    assert (await rolled_back(world)).error is None
    assert world.store.active_generation(HELLO) == 1


async def test_where_nothing_is_to_go_back_to_that_is_said(world: World, tmp_path: Path) -> None:
    await world.fetch(local(project(tmp_path / "src")))
    assert isinstance((await rolled_back(world)).error, NotFound)
    job = await rolled_back(world, generation=7)
    assert isinstance(job.error, NotFound)
    assert "no generation 7" in job.error.message


def trusted(world: World, name: str = "honest") -> bytes:
    """The private half of a key that the user trusts."""
    secret, public = new_key()
    world.paths.user.trusted_keys.mkdir(parents=True)
    (world.paths.user.trusted_keys / f"{name}.pem").write_bytes(public)
    return secret


async def test_a_summary_adds_nothing_to_a_manifest_that_somebody_else_signed(world: World, tmp_path: Path) -> None:
    source = {"type": "npm", "package": "hello", "version": "1.0.0"}
    manifest = tmp_path / "hello.json"
    manifest.write_text(json.dumps({"id": HELLO, "version": "1.0", "source": source}))
    manifest.with_name("hello.json.sig").write_bytes(sign(manifest.read_bytes(), trusted(world)))
    summary = {"id": HELLO, "version": "1.0", "manifest": manifest.as_uri(), "permissions": ["filesystem:rw:/home"]}
    job = await world.fetch({**summary, "env": {"LD_PRELOAD": "/tmp/x.so"}}, dry_run=True)
    # Nobody has that package; what the manifest came to is what counts.
    assert not plan(job, "variable")
    assert not plan(job, "permission")
    world.shelf.put({**summary, "version": "2.0"})
    job = await world.fetch({**summary, "version": "2.0"})
    assert isinstance(job.error, InvalidManifest)
    assert "signed manifest of version 1.0" in job.error.message


async def test_a_key_removed_while_somebody_is_asked_vouches_for_nothing(world: World, tmp_path: Path) -> None:
    trusted(world)
    world.shelf.signer = "honest"
    world.shelf.put(local(project(tmp_path / "src"), permissions=["network"]))
    job = await world.installer.install(HELLO, InstallOptions(), os.getuid())
    await reach(job, world, JobState.NEEDS_CONSENT)
    (world.paths.user.trusted_keys / "honest.pem").unlink()
    job.proceed()
    await job.wait()
    assert isinstance(job.error, SignatureInvalid)
    assert world.store.list() == []


def test_a_pin_vouches_for_a_bundle_of_its_own_id_alone(world: World, tmp_path: Path) -> None:
    sha256 = hashlib.sha256(b"bundle").hexdigest()
    entry = {"id": "org.test.bundle", "source": {"type": "mcpb", "url": "https://x.example/b", "sha256": sha256}}
    world.shelf.put(entry)
    world.shelf.signer = "honest"
    own, other = (Bundle(tmp_path, sha256, Entry.parse({**entry, "id": name}, "t")) for name in (entry["id"], HELLO))
    assert world.installer.bundle_signer(own) == "honest"
    assert world.installer.bundle_signer(other) == ""
