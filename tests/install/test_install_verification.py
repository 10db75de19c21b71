# SPDX-License-Identifier: LGPL-2.1-or-later
"""Verifying servers as they were installed: each that is another one is named, and none is passed over."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import IntegrityMismatch, NotFound, NotSupported
from mcpd.install import Job, JobState, is_pinned
from mcpd.install.lockfile import LOCK_FILE
from mcpd.install.verification import MAX_SHOWN
from mcpd.store import Store
from tests.install.install_parts import World, local, project

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


async def test_of_a_server_of_another_tool_nothing_is_said_but_that(installed: World) -> None:
    job = await verify(installed, IDS[0], "org.test.other")
    assert isinstance(job.error, NotSupported)
    assert "org.test.other was not installed by mcpd" in job.error.message
    assert "changed since installation" not in job.error.message
    (installed.store.get(IDS[0]).generation / "server.py").write_text("changed")
    job = await verify(installed, "org.test.other", IDS[0])
    assert isinstance(job.error, IntegrityMismatch)
    assert f"{IDS[0]}:\n  changed: server.py" in job.error.message
    assert "org.test.other was not installed by mcpd" in job.error.message


@pytest.mark.parametrize("is_named", [True, False])
async def test_one_that_is_removed_meanwhile_is_not_called_another_one(installed: World, *, is_named: bool) -> None:
    job = installed.installer.verify(IDS if is_named else (), os.getuid())
    installed.store.remove(IDS[0])
    await job.wait()
    if is_named:
        assert isinstance(job.error, NotFound)
        assert IDS[0] in job.error.message
    else:
        assert job.state is JobState.DONE, job.error


async def test_all_servers_are_listed_beside_the_event_loop(installed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    listing, listed = Store.list, list[threading.Thread]()

    def noting(store: Store, **options: bool) -> Any:
        listed.append(threading.current_thread())
        return listing(store, **options)

    monkeypatch.setattr(Store, "list", noting)
    assert (await verify(installed)).error is None
    assert listed
    assert threading.current_thread() not in listed


async def test_what_is_not_named_is_counted(installed: World) -> None:
    for number in range(130):
        (installed.store.get(IDS[0]).generation / f"added{number}").write_text("")
    job = await verify(installed)
    assert isinstance(job.error, IntegrityMismatch)
    assert job.error.message.count("added: ") == MAX_SHOWN
    assert f"\n  and {130 - MAX_SHOWN} more\n" in job.error.message


async def test_a_reinstallation_mends_it_and_unpins_nothing(installed: World, tmp_path: Path) -> None:
    server_id, document = IDS[0], {**local(tmp_path / "src"), "id": IDS[0]}
    installed.store.set_pinned(server_id, True)
    (installed.store.get(server_id).generation / "server.py").write_text("changed")
    assert (await installed.install(document, reinstall=True)).error is None
    assert (await verify(installed)).error is None
    for version in ("1.0", "2.0"):
        assert (await installed.install({**document, "version": version}, reinstall=True)).error is None
        manifest = installed.store.get(server_id).manifest
        assert manifest is not None
        assert is_pinned(manifest)


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
    assert (
        f"could not verify the installed files:\n{IDS[0]}:\n  could not be verified: {LOCK_FILE}" in job.error.message
    )
    assert "changed since installation" not in job.error.message
    assert "org.test.other" not in job.error.message


async def test_one_that_cannot_be_read_hides_no_other(installed: World) -> None:
    generation = installed.store.get(IDS[0]).generation
    for number in range(200):
        generation = generation / f"d{number}"
        generation.mkdir()
    (installed.store.get(IDS[1]).generation / "server.py").write_text("changed")
    job = await verify(installed)
    assert isinstance(job.error, IntegrityMismatch)
    assert f"{IDS[0]}:\n  could not be verified: " in job.error.message
    assert f"{IDS[1]}:\n  changed: server.py" in job.error.message
