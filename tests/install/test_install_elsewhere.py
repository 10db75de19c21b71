# SPDX-License-Identifier: LGPL-2.1-or-later
"""A server that will be somewhere else than before gets nothing of what was meant for that without being agreed to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from install_parts import World, local, project, reach

from mcpd.install import InstallOptions, JobState
from tests.servers.remote_harness import far_server

if TYPE_CHECKING:
    from pathlib import Path

HELLO = "org.test.hello"


def remote(url: str, version: str = "2", **fields: Any) -> dict[str, Any]:
    transport = {"type": "streamable-http", "url": url, "headers": {"Authorization": "Bearer {config.TOKEN}"}}
    return {"id": HELLO, "name": "Hello", "version": version, "transports": [transport], **fields}


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
