# SPDX-License-Identifier: LGPL-2.1-or-later
"""A server's state goes with the server, and the next one of its id does not find it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import AlreadyInstalled, SpawnFailed, Unhealthy
from tests.install.install_parts import World, local, project

if TYPE_CHECKING:
    from pathlib import Path

HELLO = "org.test.hello"


def plant(world: World) -> Path:
    planted = world.paths.user.state / HELLO / "planted"
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text("by an earlier server")
    return planted


async def remove(world: World, *, keep_config: bool = False) -> None:
    job = world.installer.uninstall(HELLO, os.getuid(), keep_config=keep_config)
    await job.wait()
    assert job.error is None


async def test_state_goes_with_the_server(world: World, tmp_path: Path) -> None:
    await world.install(local(project(tmp_path / "src")))
    plant(world)
    await remove(world)
    assert list(world.paths.user.state.iterdir()) == []


async def test_state_stays_with_kept_configuration_and_over_updates(world: World, tmp_path: Path) -> None:
    source = project(tmp_path / "src")
    await world.install(local(source))
    planted = plant(world)
    await remove(world, keep_config=True)
    await world.install(local(source))
    assert planted.exists()
    await world.install(local(source, version="9"), reinstall=True)
    assert planted.exists()


@pytest.mark.parametrize("kept", [False, True])
async def test_first_installation_that_fails_leaves_what_it_found(world: World, tmp_path: Path, kept: bool) -> None:
    source = project(tmp_path / "src")
    await world.install(local(source))
    planted = plant(world)
    await remove(world, keep_config=kept)
    job = world.begin(local(source, "exit"))
    await job.wait()
    assert isinstance(job.error, Unhealthy)
    assert (world.paths.user.state / HELLO).exists() == kept
    await world.install(local(source))
    assert planted.exists() == kept


@pytest.mark.parametrize("what", ["secret", "value", "state"])
async def test_nobody_gets_what_belongs_to_the_distributions_server_of_that_id(
    world: World, tmp_path: Path, what: str
) -> None:
    wanted = [{"key": "place", "label": "Place"}, {"key": "api_key", "label": "Key", "sensitive": True}]
    document = local(project(tmp_path / "src"), configurableProperties=wanted)
    shipped = project(world.paths.vendor / HELLO)
    (shipped / "manifest.json").write_text(json.dumps({**document, "source": None}))
    if what == "secret":
        world.store.set_secret(HELLO, "api_key", "sk-1")
    elif what == "value":
        world.store.set_config(HELLO, {"place": "here"})
    else:
        plant(world)
    with pytest.raises(AlreadyInstalled, match="secrets and state"):
        await world.install(document)
    assert world.store.get(HELLO).layer == "vendor"
    assert (await world.install(document, reinstall=True)).error is None
    assert world.store.get(HELLO).layer == "user"


async def test_left_over_state_that_nobody_kept_is_not_found(world: World, tmp_path: Path) -> None:
    planted = plant(world)
    await world.install(local(project(tmp_path / "src")))
    assert not planted.exists()
    assert [path.name for path in world.paths.user.state.iterdir()] == [HELLO]


async def test_state_that_cannot_be_set_aside_stops_the_installation(world: World, tmp_path: Path) -> None:
    world.paths.user.state.parent.mkdir(parents=True, exist_ok=True)
    world.paths.user.state.touch()
    job = world.begin(local(project(tmp_path / "src")))
    await job.wait()
    assert isinstance(job.error, SpawnFailed)
    assert world.store.list() == []
    assert world.left_over() == []
