# SPDX-License-Identifier: LGPL-2.1-or-later
"""Consent is to what will be in force: with the values that are set, and with what a removed server left behind."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.install import InstallOptions, JobState
from tests.install.install_parts import World, local, project, reach

if TYPE_CHECKING:
    from pathlib import Path

HELLO = "org.test.hello"
HARMLESS = "/srv/harmless"


async def asked(world: World, document: dict[str, Any], *, update: bool = False) -> list[tuple[str, str, str]]:
    """Kind, key and label of what *document* needs consent to; nothing is installed."""
    world.shelf.put(document)
    if update:
        job = await world.installer.update([HELLO], InstallOptions(), os.getuid())
    else:
        job = await world.installer.install(HELLO, InstallOptions(), os.getuid())
    await reach(job, world, JobState.NEEDS_CONSENT)
    found = [(need.kind, need.key, need.label if need.kind == "permission" else "") for need in job.needs]
    shown = [(item.kind, item.key, item.label) for item in job.plan if item.kind in {"permission", "variable"}]
    assert {need for need in found if need[0] == "permission"} <= set(shown)
    assert {need[1] for need in found if need[0] == "variable"} <= {key for _, key, _ in shown}
    job.cancel()
    await job.wait()
    return found


async def remove(world: World) -> None:
    job = world.installer.uninstall(HELLO, os.getuid(), keep_config=True)
    await job.wait()
    assert job.error is None


def granting(source: Path, permission: str, default: str, **fields: Any) -> dict[str, Any]:
    declared = {"configurableProperties": [{"key": "dir", "type": "path", "default": default}]}
    return local(source, permissions=[f"filesystem:{permission}:{{config.dir}}"], **(declared | fields))


@pytest.mark.parametrize("declared", [True, False])
async def test_update_shows_the_value_that_is_set(world: World, tmp_path: Path, declared: bool) -> None:
    source, mine = project(tmp_path / "src"), tmp_path / "mine"
    mine.mkdir()
    await world.fetch(granting(source, "ro", HARMLESS))
    world.store.set_config(HELLO, {"dir": str(mine)})
    fields: dict[str, Any] = {} if declared else {"configurableProperties": []}
    needs = await asked(world, granting(source, "rw", HARMLESS, version="2", **fields), update=True)
    assert needs == [("permission", "filesystem:rw:{config.dir}", f"filesystem:rw:{mine}")]


async def test_values_in_an_entry_are_not_shown(world: World, tmp_path: Path) -> None:
    document = granting(project(tmp_path / "src"), "rw", str(tmp_path), config={"dir": HARMLESS})
    needs = await asked(world, document)
    assert needs == [("permission", "filesystem:rw:{config.dir}", f"filesystem:rw:{tmp_path}")]


@pytest.mark.parametrize("signer", ["", "honest"])
async def test_what_a_removed_server_left_behind_is_not_taken_over_unasked(
    world: World, tmp_path: Path, signer: str
) -> None:
    source, mine = project(tmp_path / "src"), tmp_path / "mine"
    mine.mkdir()
    await world.fetch(granting(source, "ro", HARMLESS))
    world.store.set_config(HELLO, {"dir": str(mine)})
    await remove(world)
    world.shelf.signer = signer
    assert await asked(world, granting(source, "rw", HARMLESS)) == [
        ("kept", HELLO, ""),
        ("permission", "filesystem:rw:{config.dir}", f"filesystem:rw:{mine}"),
    ]


@pytest.mark.parametrize("what", ["secret", "state", "nothing"])
async def test_secrets_and_state_are_not_taken_over_unasked(world: World, tmp_path: Path, what: str) -> None:
    document = local(project(tmp_path / "src"), configurableProperties=[{"key": "TOKEN", "sensitive": True}])
    await world.fetch(document)
    if what == "secret":
        world.store.set_secret(HELLO, "TOKEN", "s3cret")
    if what != "state":
        (world.paths.user.state / HELLO).rmdir()
    await remove(world)
    if what == "nothing":
        assert (await world.fetch(document, consent=False)).error is None
    else:
        assert await asked(world, document) == [("kept", HELLO, "")]


async def test_server_in_place_of_a_broken_one_is_agreed_to(world: World, tmp_path: Path) -> None:
    document = local(project(tmp_path / "src"))
    await world.fetch(document)
    (world.store.generation_path(HELLO, 1) / "manifest.json").write_text("{")
    assert await asked(world, document) == [("kept", HELLO, "")]


def steered(source: Path, default: str, **fields: Any) -> dict[str, Any]:
    wanted = [{"key": "NODE_OPTIONS", "target": "env", "default": default}, {"key": "MODE", "default": default}]
    return local(source, configurableProperties=wanted, **fields)


async def test_default_that_decides_which_code_runs_is_agreed_to(world: World, tmp_path: Path) -> None:
    source = project(tmp_path / "src")
    assert await asked(world, steered(source, "--a")) == [("variable", "NODE_OPTIONS=--a", "")]
    assert (await world.fetch(steered(source, "--a"))).error is None
    assert (await world.fetch(steered(source, "--a", version="2"), consent=False)).error is None
    assert await asked(world, steered(source, "--b", version="3"), update=True) == [
        ("variable", "NODE_OPTIONS=--b", "")
    ]
    world.store.set_config(HELLO, {"NODE_OPTIONS": "--mine"})
    assert (await world.update(HELLO)).error is None


async def test_default_in_a_variable_that_decides_which_code_runs_is_agreed_to(world: World, tmp_path: Path) -> None:
    source, env = project(tmp_path / "src"), {"PYTHONPATH": "lib:{config.MODE}", "PLAIN": "{config.MODE}"}
    assert await asked(world, steered(source, "a", env=env)) == [
        ("variable", "PYTHONPATH=lib:a", ""),
        ("variable", "NODE_OPTIONS=a", ""),
    ]
    assert (await world.fetch(steered(source, "a", env=env))).error is None
    assert ("variable", "PYTHONPATH=lib:b", "") in await asked(
        world, steered(source, "b", env=env, version="2"), update=True
    )
