# SPDX-License-Identifier: LGPL-2.1-or-later
"""A server that will be somewhere else than before gets nothing of what was meant for that without being agreed to."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import InvalidArgument, Unhealthy
from mcpd.install import InstallOptions, JobState
from mcpd.install.pipeline import PARALLEL
from tests.install.install_parts import World, local, project, reach
from tests.servers.remote_harness import far_server

if TYPE_CHECKING:
    from pathlib import Path

HELLO = "org.test.hello"


def remote(url: str, version: str = "2", **fields: Any) -> dict[str, Any]:
    transport = {"type": "streamable-http", "url": url, "headers": {"Authorization": "Bearer {config.TOKEN}"}}
    return {
        "id": HELLO,
        "name": "Hello",
        "summary": "Says hello",
        "version": version,
        "transports": [transport],
        **fields,
    }


async def asked(world: World, document: dict[str, Any], *, reinstall: bool = False) -> list[tuple[str, str]]:
    """What somebody has to agree to before *document* takes the place of what is installed; that is not done then."""
    world.shelf.put(document)
    options = InstallOptions(reinstall=reinstall)
    if reinstall:
        job = await world.installer.install(HELLO, options, os.getuid())
    else:
        job = await world.installer.update([HELLO], options, os.getuid())
    await reach(job, world, JobState.NEEDS_CONSENT)
    needs = [(need.key, need.description) for need in job.needs if need.kind == "remote"]
    job.cancel()
    await job.wait()
    return needs


@pytest.mark.parametrize("reinstall", [False, True])
@pytest.mark.parametrize("signer", ["", "honest"])
async def test_another_host_is_agreed_to_and_another_path_is_not(world: World, reinstall: bool, signer: str) -> None:
    with far_server("streamable-http") as far:
        here = far.url.removesuffix("/mcp")
        assert (await world.fetch(remote(far.url, "1"))).error is None
        world.shelf.signer = signer
        for there, shown in (
            ("http://127.0.0.2:9/mcp", "http://127.0.0.2:9"),
            ("https://Elsewhere.example:443/mcp", "https://elsewhere.example"),
            ("{config.AT}/mcp", "https://there.example"),
        ):
            at = [{"key": "AT", "default": "https://there.example"}]
            ((key, said),) = await asked(world, remote(there, configurableProperties=at), reinstall=reinstall)
            assert key == shown
            assert here in said
        world.shelf.signer = ""
        world.shelf.put(remote(f"{far.url}?more", "3"))
        job = await world.update(HELLO)
        assert job.error is None, job.error
        assert JobState.NEEDS_CONSENT not in world.states(job)


async def test_what_ran_here_and_will_run_elsewhere_is_agreed_to(world: World, tmp_path: Path) -> None:
    await world.fetch(local(project(tmp_path / "src")))
    ((key, said),) = await asked(world, remote("https://there.example/mcp"))
    assert key == "https://there.example"
    assert "on this machine" in said


SETTINGS = [{"key": "TOKEN", "sensitive": True}, {"key": "AT", "default": "https://there.example"}]


@pytest.mark.parametrize("signer", ["", "honest"])
@pytest.mark.parametrize("key", ["TOKEN", "AT"])
async def test_what_was_kept_of_a_removed_server_is_sent_nowhere_unasked(
    world: World, tmp_path: Path, key: str, signer: str
) -> None:
    await world.fetch(local(project(tmp_path / "src"), configurableProperties=SETTINGS))
    if key == "TOKEN":
        world.store.set_secret(HELLO, key, "s3cret")
    else:
        world.store.set_config(HELLO, {key: "https://mine.example"})
    job = world.installer.uninstall(HELLO, os.getuid(), keep_config=True)
    await job.wait()
    assert job.error is None
    world.shelf.signer = signer
    document = remote("{config.AT}/mcp", configurableProperties=SETTINGS)
    ((where, said),) = await asked(world, document, reinstall=True)
    assert where == ("https://there.example" if key == "TOKEN" else "https://mine.example")
    assert "kept from an earlier installation" in said
    assert "s3cret" not in said


@pytest.mark.parametrize("broken", ["{", '{"id": "org.test.hello", "transports": 1, "config": {"AT": "x"}}'])
async def test_what_takes_the_place_of_a_broken_server_elsewhere_is_agreed_to(
    world: World, tmp_path: Path, broken: str
) -> None:
    await world.fetch(local(project(tmp_path / "src"), configurableProperties=SETTINGS))
    world.store.set_secret(HELLO, "TOKEN", "s3cret")
    (world.store.generation_path(HELLO, 1) / "manifest.json").write_text(broken)
    assert world.store.get(HELLO).manifest is None
    ((where, said),) = await asked(world, remote("https://there.example/mcp"), reinstall=True)
    assert where == "https://there.example"
    assert "kept from an earlier installation" in said


async def test_where_nothing_is_kept_nothing_is_asked_about_the_place(world: World, tmp_path: Path) -> None:
    await world.fetch(local(project(tmp_path / "src"), configurableProperties=SETTINGS))
    world.store.set_secret(HELLO, "TOKEN", "s3cret")
    job = world.installer.uninstall(HELLO, os.getuid())
    await job.wait()
    # That it reaches the network is asked as of any server.
    assert await asked(world, remote("https://there.example/mcp"), reinstall=True) == []


NOWHERE = "http://127.0.0.1:9/mcp"


async def test_a_remote_server_that_is_offline_is_installed_unchecked(world: World) -> None:
    refused = await world.install(remote(NOWHERE))
    assert isinstance(refused.error, Unhealthy)
    assert "--no-check" in refused.error.message
    assert world.left_over() == []
    assert world.store.list() == []
    job = await world.install(remote(NOWHERE), check=False)
    assert job.error is None, job.error
    assert world.store.get(HELLO).manifest is not None
    assert world.store.tools(HELLO) is None


async def test_only_the_first_installation_of_a_remote_server_goes_without_a_check(
    world: World, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match="remote"):
        world.begin(local(project(tmp_path / "src")), check=False)
    await world.install(remote(NOWHERE, "1"), check=False)
    with pytest.raises(InvalidArgument, match="first installation"):
        world.begin(remote(NOWHERE), check=False)


@pytest.mark.parametrize("agrees", [True, False])
async def test_whether_an_offline_server_is_installed_is_asked(world: World, tmp_path: Path, agrees: bool) -> None:
    job = world.begin(remote(NOWHERE), consent=False)
    await reach(job, world, JobState.NEEDS_CONSENT)
    assert [need.kind for need in job.needs] == ["permission"]
    job.proceed()
    while [need.kind for need in job.needs] != ["unchecked"]:
        assert not job.state.finished, job.error
        await asyncio.sleep(0.01)
    assert (job.state, job.cancellable) == (JobState.NEEDS_CONSENT, True)
    (need,) = job.needs
    assert need.key == NOWHERE
    assert HELLO in need.description
    assert world.store.list() == []
    for number in range(PARALLEL):
        other = await world.install(local(project(tmp_path / f"src{number}"), id=f"other{number}"))
        assert other.error is None, "the question keeps nobody waiting"
    if agrees:
        job.proceed()
        await job.wait()
        assert job.error is None, job.error
        assert world.store.get(HELLO).manifest is not None
    else:
        job.cancel()
        await job.wait()
        assert [server.id for server in world.store.list()] == ["other0", "other1"]
    assert world.left_over() == []
