# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the next installation of an id finds in its state directory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import SpawnFailed
from mcpd.paths import Scope, from_environment
from mcpd.runtime.launchers import PlainLauncher
from mcpd.runtime.states import States
from mcpd.settings import RuntimeSettings, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mcpd.runtime.launch import Launcher, LaunchSpec, Leash

pytestmark = pytest.mark.process


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the states are."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found = from_environment().user.state
    assert found.is_relative_to(tmp_path)
    return found


def states(launcher: Launcher | None = None, sandbox: str = "on") -> States:
    settings = Settings(runtime=RuntimeSettings.model_validate({"sandbox": sandbox}))
    return States(launcher or PlainLauncher(), from_environment(), Scope.USER, settings)


def fill(state: Path, outside: Path) -> None:
    """What a server may have made to keep its files: depth, closed directories, ways out."""
    outside.mkdir()
    (outside / "file").write_text("stays")
    (outside / "file").chmod(0o640)
    closed = state / "closed/inner"
    closed.mkdir(parents=True)
    (closed / "file").write_text("goes")
    (state / "link").symlink_to(outside)
    (closed / "link").symlink_to(outside)
    (state / "new\nline ~removed").mkdir()
    for path in (closed, state / "closed"):
        path.chmod(0)
    here = os.open(state, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


@pytest.mark.parametrize("sandbox", ["on", "off"])
async def test_dropped_state_is_gone_and_nothing_outside(place: Path, tmp_path: Path, sandbox: str) -> None:
    fill(place / "a", tmp_path / "outside")
    (place / "b").mkdir()
    (place / "b/file").write_text("another's")
    await states(sandbox=sandbox).drop("a")
    assert [path.name for path in place.iterdir()] == ["b"]
    assert (place / "b/file").read_text() == "another's"
    assert (tmp_path / "outside/file").read_text() == "stays"
    assert (tmp_path / "outside/file").stat().st_mode & 0o777 == 0o640


async def test_state_that_is_a_symlink_is_not_followed(place: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").touch()
    place.mkdir()
    (place / "a").symlink_to(tmp_path / "outside")
    await states().drop("a")
    assert list(place.iterdir()) == []
    assert (tmp_path / "outside/file").exists()


async def test_state_is_found_again_only_if_it_was_kept(place: Path) -> None:
    (place / "a").mkdir(parents=True)
    (place / "a/file").touch()
    kept = states()
    await kept.keep("a")
    await kept.drop_unless_kept("a")
    assert (place / "a/file").exists()
    await kept.settle("a")
    await kept.drop_unless_kept("a")
    assert list(place.iterdir()) == []
    await kept.drop_unless_kept("never.there")


class Broken:
    name = "broken"

    async def launch(self, spec: LaunchSpec, fds: Mapping[int, int]) -> Leash:
        raise SpawnFailed("nothing starts today")


async def test_what_cannot_be_removed_is_told_used_by_nobody_and_tried_again(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (place / "a").mkdir(parents=True)
    (place / "a/file").touch()
    await states(Broken()).drop("a")
    assert not (place / "a").exists()
    assert "could not be removed: nothing starts today" in caplog.text
    (place / "b").mkdir()
    await states().drop("b")
    assert list(place.iterdir()) == []


async def test_state_that_cannot_be_set_aside_is_given_to_nobody(place: Path) -> None:
    place.touch()
    with pytest.raises(SpawnFailed, match="cannot be renamed"):
        await states().drop_unless_kept("a")
