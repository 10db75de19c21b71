# SPDX-License-Identifier: LGPL-2.1-or-later
"""An update that proves unhealthy leaves nothing of itself: no value, no session, no directory."""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mcpd.errors import NeedsApproval, Unhealthy
from mcpd.install import InstallOptions, JobState
from mcpd.install import activation as activation_module
from mcpd.runtime.sessions import Owner, Session
from tests.install.install_parts import World, local, project, reach

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

HELLO = "org.test.hello"
SECRET = {"key": "api_key", "sensitive": True, "required": True}
REGION = {"key": "region", "required": True, "type": "string"}
ROUNDS = {"key": "rounds", "type": "integer", "default": 3}


@contextmanager
def client() -> Iterator[int]:
    """A stdin that stays open."""
    read, write = os.pipe()
    try:
        yield read
    finally:
        os.close(read)
        os.close(write)


async def test_a_secret_is_restored_though_another_value_was_missing(world: World, tmp_path: Path) -> None:
    source, properties = project(tmp_path / "src"), [SECRET, ROUNDS]
    world.shelf.put(local(source, "config", configurableProperties=properties))
    job = await world.installer.install(HELLO, InstallOptions(), os.getuid())
    await reach(job, world, JobState.NEEDS_CONFIG)
    job.set_secret("api_key", "old")
    await job.wait()
    world.shelf.put(local(source, "config", version="1.1", configurableProperties=[*properties, REGION]))
    assert isinstance((await world.update(config={"region": "eu"})).error, NeedsApproval)
    approval = world.installer.approve(HELLO, os.getuid())
    await approval.wait()
    assert approval.error is None
    world.store.set_config(HELLO, {"region": None})
    world.shelf.put(local(source, "exit", version="2.0", configurableProperties=[*properties, REGION]))
    update = await world.installer.update([], InstallOptions(), os.getuid())
    await reach(update, world, JobState.NEEDS_CONFIG)
    update.set_secret("api_key", "new")
    update.set_config({"region": "us", "rounds": 7})
    await update.wait()
    assert isinstance(update.error, Unhealthy)
    assert world.store.values(HELLO) == {"api_key": "old"}
    assert world.store.config(HELLO).values == {"rounds": 3}
    assert [prop.key for prop in world.store.config(HELLO).missing] == ["region"]


async def test_sessions_of_the_unhealthy_generation_end_and_no_others(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = project(tmp_path / "src")
    await world.fetch(local(source))
    begun: list[Session] = []
    mcpd = Owner(os.getuid(), "mcpd.install", is_mcpd=True)
    with client() as stdin:
        owner = Owner(os.getuid(), "client")
        earlier = await world.sessions.spawn(HELLO, {0: stdin}, owner=owner)

        class Unsound:
            """A check that fails while a client wants the server."""

            def __init__(self, *_: object) -> None:
                pass

            async def run(self) -> None:
                begun.append(await world.sessions.spawn(HELLO, {0: stdin}, owner=mcpd))
                pending.append(asyncio.create_task(world.sessions.spawn(HELLO, {0: stdin}, owner=owner)))
                await asyncio.sleep(0)
                raise Unhealthy("it is not sound")

        pending: list[asyncio.Task[Session]] = []
        monkeypatch.setattr(activation_module, "HealthCheck", Unsound)
        world.shelf.put(local(source, version="2.0"))
        update = await world.update()
        assert isinstance(update.error, Unhealthy)
        begun.append(await pending[0])
        gone = [session for session in begun if not os.path.isdir(session.generation)]  # noqa: PTH112
        assert gone[0] is begun[0]
        assert [session.stopped_for for session in gone] == ["server-changed"] * len(gone)
        assert earlier.state == "running"
        assert all(os.path.isdir(session.generation) for session in world.sessions.list())  # noqa: PTH112
        assert world.store.generations(HELLO) == [1]
        await world.sessions.stop_server(HELLO)
