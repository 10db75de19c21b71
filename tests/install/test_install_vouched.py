# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is shown before somebody agrees, and what keys vouch for, whoever writes the registry."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from install_parts import World, local, project, reach

from mcpd.errors import AlreadyInstalled, IntegrityMismatch, InvalidManifest, SignatureInvalid
from mcpd.install import InstallOptions, Job, JobState
from mcpd.install.bundle import Bundle
from mcpd.model import Entry
from mcpd.trust.signing import new_key, sign

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
    with pytest.raises(InvalidManifest, match=r"files of this machine|must be|begin"):
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
    with pytest.raises(AlreadyInstalled, match=r"newer than the 1\.0"):
        await world.fetch(local(source, version="1.0"))
    world.store.set_pinned(HELLO, True)
    with pytest.raises(AlreadyInstalled, match="pinned to 2"):
        await world.fetch(local(source, version="3.0"))
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
