# SPDX-License-Identifier: LGPL-2.1-or-later
"""Several processes at once change one tree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from signed_parts import Site, settle

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

HERE = Path(__file__).parent
COUNT = 12


class Started:
    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *arguments: object) -> None:
        command = [sys.executable, "-W", "error", str(HERE / "signing_process.py"), *(str(each) for each in arguments)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        self.processes.append(process)

    def ended(self) -> list[tuple[int, str]]:
        said = [process.communicate(timeout=120)[1] for process in self.processes]
        return [(process.returncode, text) for process, text in zip(self.processes, said, strict=True)]


@pytest.fixture
def started() -> Iterator[Started]:
    """Ends what it started."""
    found = Started()
    yield found
    for process in found.processes:
        if process.returncode is None:
            process.kill()
            process.communicate()


def test_nothing_that_was_published_is_lost(tmp_path: Path, started: Started) -> None:
    root = tmp_path / "tree"
    names = ("one", "two", "three")
    for name in names:
        started.start("publish", root, name, COUNT)
    assert started.ended() == [(0, "")] * len(names)
    site = Site(root)
    history = site.releases.history("cursor", "default")
    made = [site.releases.get("cursor", "default", release.artifact_id) for release in history]
    found = [next(iter(release.payload["mcpServers"])) for release in made]  # type: ignore[call-overload]
    assert sorted(found) == sorted(f"{name}-{number}" for name in names for number in range(COUNT))
    for name in names:
        assert [each for each in found if each.startswith(name)] == [f"{name}-{n}" for n in reversed(range(COUNT))]
    assert len({release.signing_key_id for release in history}) == 1
    assert len(list(site.tree.artifacts.iterdir())) == COUNT * len(names)


def test_keys_are_replaced_while_others_publish_and_read(tmp_path: Path, started: Started) -> None:
    root = tmp_path / "tree"
    site = Site(root)
    site.publish()
    started.start("publish", root, "one", COUNT)
    started.start("rotate", root, COUNT)
    started.start("publish", root, "two", COUNT)
    reads = 0
    while any(process.poll() is None for process in started.processes):
        assert site.releases.latest("cursor", "default") is not None
        reads += 1
    assert reads > 0
    assert started.ended() == [(0, "")] * 3
    assert len(site.keys.listing()) == COUNT + 1
    history = site.releases.history("cursor", "default")
    made = [site.releases.get("cursor", "default", release.artifact_id, expired=True) for release in history]
    found = {next(iter(release.payload["mcpServers"])) for release in made}  # type: ignore[call-overload]
    assert found >= {f"{name}-{number}" for name in ("one", "two") for number in range(COUNT)}
    site.releases.resign()
    latest = site.releases.latest("cursor", "default")
    assert latest is not None
    assert latest.signing_key_id == site.keys.current()


def test_what_another_process_publishes_is_seen(tmp_path: Path, started: Started) -> None:
    root = tmp_path / "tree"
    site = Site(root)
    old = site.publish()
    settle(root)
    assert site.releases.latest("cursor", "default") == site.releases.latest("cursor", "default") == old
    started.start("publish", root, "other", 1)
    assert started.ended() == [(0, "")]
    latest = site.releases.latest("cursor", "default")
    assert latest is not None
    assert list(latest.payload["mcpServers"]) == ["other-0"]  # type: ignore[arg-type]
