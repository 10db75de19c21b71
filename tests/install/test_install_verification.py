# SPDX-License-Identifier: LGPL-2.1-or-later
"""Verifying servers as they were installed: each that is another one is named, and none is passed over."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from install_parts import World, local, project

from mcpd.errors import IntegrityMismatch
from mcpd.install import Job, JobState, is_pinned
from mcpd.install.lockfile import LOCK_FILE

if TYPE_CHECKING:
    from pathlib import Path

IDS = ("org.test.one", "org.test.two")


@pytest.fixture
async def installed(world: World, tmp_path: Path) -> World:
    """Two servers of mcpd, and one of another tool."""
    for server_id in IDS:
        assert (await world.install({**local(project(tmp_path / "src")), "id": server_id})).error is None
    other = world.paths.user.installed / "org.test.other"
    other.mkdir()
    (other / "manifest.json").write_text('{"id": "org.test.other", "transports": [{"type": "stdio", "command": "x"}]}')
    return world


async def verify(world: World, *ids: str) -> Job:
    job = world.installer.verify(ids, os.getuid())
    await job.wait()
    return job


async def test_what_is_as_it_was_installed(installed: World) -> None:
    for ids in ((), IDS):
        assert (await verify(installed, *ids)).state is JobState.DONE
    installed.store.set_pinned(IDS[0], True)
    assert (await verify(installed)).error is None


async def test_a_server_of_another_tool_is_looked_at_if_it_is_named(installed: World) -> None:
    assert "org.test.other" in str((await verify(installed, "org.test.other")).error)


async def test_a_reinstallation_mends_it_and_unpins_no_more_than_it_changes(installed: World, tmp_path: Path) -> None:
    server_id, document = IDS[0], {**local(tmp_path / "src"), "id": IDS[0]}
    installed.store.set_pinned(server_id, True)
    (installed.store.get(server_id).generation / "server.py").write_text("changed")
    assert (await installed.install(document, reinstall=True)).error is None
    assert (await verify(installed)).error is None
    for version, pinned in (("1.0", True), ("2.0", False)):
        assert (await installed.install({**document, "version": version}, reinstall=True)).error is None
        manifest = installed.store.get(server_id).manifest
        assert manifest is not None
        assert is_pinned(manifest) is pinned


async def test_every_server_and_file_is_named(installed: World) -> None:
    for server_id in IDS:
        (installed.store.get(server_id).generation / "server.py").write_text("changed")
    job = await verify(installed)
    assert isinstance(job.error, IntegrityMismatch)
    for server_id in IDS:
        assert f"{server_id}:\n  changed: server.py" in job.error.message


async def test_a_lock_file_that_is_gone_hides_nothing(installed: World) -> None:
    (installed.store.get(IDS[0]).generation / LOCK_FILE).unlink()
    job = await verify(installed)
    assert isinstance(job.error, IntegrityMismatch)
    assert IDS[0] in job.error.message
    assert "org.test.other" not in job.error.message


async def test_one_that_cannot_be_read_hides_no_other(installed: World) -> None:
    generation = installed.store.get(IDS[0]).generation
    for number in range(200):
        generation = generation / f"d{number}"
        generation.mkdir()
    (installed.store.get(IDS[1]).generation / "server.py").write_text("changed")
    job = await verify(installed)
    assert isinstance(job.error, IntegrityMismatch)
    assert f"{IDS[0]}:\n  cannot be told: " in job.error.message
    assert f"{IDS[1]}:\n  changed: server.py" in job.error.message
