# SPDX-License-Identifier: LGPL-2.1-or-later
"""Asked for its plan alone, a job says what it would do, and does nothing of it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import Cancelled, InvalidManifest, SourceUnavailable
from mcpd.install import InstallOptions, Job, JobState
from tests.install.install_parts import SERVER, World, index, local, project, tarball, wheel

if TYPE_CHECKING:
    from pathlib import Path

HELLO = "org.test.hello"
AFTER = {JobState.NEEDS_CONSENT, JobState.NEEDS_CONFIG, JobState.FETCHING, JobState.BUILDING, JobState.ACTIVATING}


def only_planned(world: World, job: Job) -> dict[str, list[str]]:
    """Keys of the plan by kind, of a job that came to that and no further."""
    assert job.state is JobState.CANCELLED, job.error
    assert isinstance(job.error, Cancelled)
    assert "plan" in job.error.message
    assert not AFTER.intersection(world.states(job))
    assert world.left_over() == []
    found: dict[str, list[str]] = {}
    for item in job.plan:
        found.setdefault(item.kind, []).append(item.key)
    return found


def source_of(kind: str, directory: Path) -> dict[str, Any]:
    if kind == "local":
        return {"type": "local", "path": str(project(directory / "src"))}
    if kind == "archive":
        data = tarball({"hello/server.py": SERVER})
    else:
        buffer = io.BytesIO()
        manifest = {
            "manifest_version": "0.4",
            "name": "bundle",
            "version": "1.2.0",
            "description": "x",
            "author": {"name": "Somebody"},
            "server": {
                "type": "python",
                "entry_point": "server.py",
                "mcp_config": {"command": "python3", "args": ["${__dirname}/server.py"]},
            },
        }
        with zipfile.ZipFile(buffer, "w") as made:
            made.writestr("manifest.json", json.dumps(manifest))
            made.writestr("server.py", SERVER)
        data = buffer.getvalue()
    path = directory / f"hello.{kind}"
    path.write_bytes(data)
    return {"type": kind, "url": path.as_uri(), "sha256": hashlib.sha256(data).hexdigest()}


@pytest.mark.parametrize("kind", ["local", "archive", "mcpb"])
@pytest.mark.parametrize("consent", [True, False])
async def test_nothing_is_installed_or_asked(world: World, tmp_path: Path, kind: str, consent: bool) -> None:
    document = local(tmp_path, source=source_of(kind, tmp_path), permissions=["network"])
    if kind == "mcpb":
        del document["transports"]
    asked = [{"key": "region", "label": "Region", "required": True, "type": "string"}]
    job = await world.install({**document, "configurableProperties": asked}, consent=consent, dry_run=True)
    plan = only_planned(world, job)
    assert plan["permission"] == ["network"]
    assert plan["command"][0].startswith("python3 ")
    assert ("package" in plan) is (kind != "local")
    assert world.store.list() == []
    assert not world.paths.user.generations.joinpath(HELLO).exists()


@pytest.mark.parametrize(("kind", "said"), [("local", 2048), ("archive", "2 KiB"), ("archive", -1), ("mcpb", 1)])
async def test_the_plan_has_the_size_that_a_registry_says_or_a_bundle_has(
    world: World, tmp_path: Path, kind: str, said: object
) -> None:
    document = local(tmp_path, source=source_of(kind, tmp_path), size=said)
    plan = only_planned(world, await world.install(document, dry_run=True))
    known = {"local": "2048", "mcpb": str((tmp_path / "hello.mcpb").stat().st_size) if kind == "mcpb" else ""}
    assert plan.get("size", []) == ([known[kind]] if kind in known else [])


async def test_packages_are_named_with_what_they_hash_to(
    world: World, tmp_path: Path, own_index: pytest.MonkeyPatch
) -> None:
    file = wheel(tmp_path / "index")
    own_index.setenv("PIP_INDEX_URL", index(tmp_path / "index", file))
    source = {"type": "pypi", "package": "fake-server", "version": "1.0"}
    job = await world.install(local(tmp_path, source=source), dry_run=True)
    assert only_planned(world, job)["package"] == ["fake-server"]
    named = next(item for item in job.plan if item.kind == "package")
    assert named.integrity == f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    assert world.store.list() == []


async def test_a_package_that_was_named_without_a_version_is_planned_with_the_one_that_was_found(
    world: World, tmp_path: Path, own_index: pytest.MonkeyPatch
) -> None:
    own_index.setenv("PIP_INDEX_URL", index(tmp_path / "index", wheel(tmp_path / "index")))
    document = local(tmp_path, source={"type": "pypi", "package": "Fake_Server"})
    document.pop("version", None)
    job = await world.install(document, dry_run=True)
    only_planned(world, job)
    assert [(item.key, item.version) for item in job.plan if item.kind == "source"] == [("Fake_Server", "1.0")]


async def test_what_cannot_be_had_fails(world: World, tmp_path: Path) -> None:
    source = source_of("mcpb", tmp_path)
    (tmp_path / "hello.mcpb").unlink()
    document = local(tmp_path, source=source)
    del document["transports"]
    job = await world.install(document, dry_run=True)
    assert job.state is JobState.FAILED
    assert isinstance(job.error, SourceUnavailable)
    assert world.left_over() == []


async def test_an_update_is_planned_for_all_and_made_for_none(world: World, tmp_path: Path) -> None:
    source = project(tmp_path / "src")
    for server_id in (HELLO, "other"):
        await world.fetch({**local(source), "id": server_id})
        world.shelf.put({**local(source, version="2.0"), "id": server_id})
    generations = [server.generation for server in world.store.list()]
    job = await world.update(dry_run=True)
    assert only_planned(world, job)["source"] == [str(source)]
    assert [server.generation for server in world.store.list()] == generations
    assert sorted(world.installer.updates()) == [HELLO, "other"]


async def test_an_update_that_cannot_be_made_fails_though_the_others_could(world: World, tmp_path: Path) -> None:
    source = project(tmp_path / "src")
    for server_id in (HELLO, "other"):
        await world.fetch({**local(source), "id": server_id})
        world.shelf.put({**local(source, version="2.0"), "id": server_id})
    world.shelf.put({**local(source, version="2.0"), "id": "other", "source": {"type": "oci", "package": "x"}})
    del world.shelf.entries_by_id["other"].transports[:]
    job = await world.installer.update([HELLO, "other"], InstallOptions(dry_run=True), os.getuid())
    await job.wait()
    assert job.state is JobState.FAILED
    assert isinstance(job.error, InvalidManifest)
    assert "plan" not in job.error.message


async def test_the_plan_names_the_settings_that_are_missing(world: World, tmp_path: Path) -> None:
    required = {"required": True, "type": "string"}
    properties = [
        {**required, "key": "api_key", "label": "The key", "sensitive": True},
        {**required, "key": "region"},
        {**required, "key": "zone", "default": "a"},
        {"key": "color"},
    ]
    document = local(project(tmp_path / "src"), configurableProperties=properties)
    job = await world.install(document, dry_run=True, config={"region": "eu"})
    assert only_planned(world, job)["setting"] == ["api_key"]
    assert [item.label for item in job.plan if item.kind == "setting"] == ["The key"]
