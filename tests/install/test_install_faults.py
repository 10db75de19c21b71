# SPDX-License-Identifier: LGPL-2.1-or-later
"""SIGKILL at every step, and a full disk."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import NoSpace
from tests.install.install_parts import World, index, local, make_world, project, running, wheel

if TYPE_CHECKING:
    from collections.abc import Iterator

KILL_ME = str(Path(__file__).with_name("kill_me.py"))
STEPS = [
    ("planning", 0),
    ("fetching", 0),
    ("building", 0),
    ("verifying", 0),
    ("verifying", 90),
    ("activating", 0),
    ("activating", 98),
]


async def killed(document: dict[str, object], state: str, progress: int, directory: Path) -> None:
    """Let a process install *document* and die in *state*."""
    file = directory / "entry.json"
    file.write_text(json.dumps(document))
    path = os.pathsep.join(sys.path)
    process = await asyncio.create_subprocess_exec(
        sys.executable, KILL_ME, str(file), state, str(progress), env=os.environ | {"PYTHONPATH": path}
    )
    assert await process.wait() == -signal.SIGKILL


@pytest.mark.parametrize(("state", "progress"), STEPS)
async def test_sigkill_leaves_the_old_or_the_new_state(world: World, tmp_path: Path, state: str, progress: int) -> None:
    source = project(tmp_path / "src")
    for version in ("1.0", "2.0"):
        await killed(local(source, version=version), state, progress, tmp_path)
        world.store.recover()
        servers = world.store.list()
        assert world.left_over() == []
        assert all(not server.problem and server.manifest for server in servers)
        assert bool(servers) is (progress == 98)
    job = await world.install(local(source, version="3.0"), reinstall=True)
    assert job.error is None


async def test_sigkill_takes_the_running_command_along(
    world: World, tmp_path: Path, own_index: pytest.MonkeyPatch
) -> None:
    own_index.setenv("PIP_INDEX_URL", index(tmp_path, wheel(tmp_path / "files")))
    entry: dict[str, object] = {"id": "org.test.py", "name": "Py", "source": {"type": "pypi", "package": "fake-server"}}
    await killed(entry, "building", 55, tmp_path)
    for _ in range(200):
        if not running(tmp_path / "home"):
            break
        await asyncio.sleep(0.05)
    assert running(tmp_path / "home") == []
    world.store.recover()
    assert world.store.list() == []
    assert world.left_over() == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB where the servers go."""
    data = tmp_path / "home/data"
    data.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(data)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    yield data
    subprocess.run(["umount", "--lazy", str(data)], check=True)


async def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, small_disk: Path) -> None:
    source = project(tmp_path / "src", {"big": "x" * 4_000_000})
    async with make_world() as world:
        job = await world.install(local(source))
        assert isinstance(job.error, NoSpace)
        assert world.left_over() == []
        (source / "big").unlink()
        job = await world.install(local(source))
        assert job.error is None


async def test_a_full_disk_during_a_command(tmp_path: Path, small_disk: Path, own_index: pytest.MonkeyPatch) -> None:
    big = {"fake_server/data": "".join(f"{number:x}" for number in range(1_000_000))}
    own_index.setenv("PIP_INDEX_URL", index(tmp_path, wheel(tmp_path / "files", extra=big)))
    async with make_world() as world:
        entry: dict[str, object] = {
            "id": "org.test.py",
            "name": "Py",
            "source": {"type": "pypi", "package": "fake-server"},
        }
        job = await world.install(entry)
        assert isinstance(job.error, NoSpace)
        assert world.left_over() == []
