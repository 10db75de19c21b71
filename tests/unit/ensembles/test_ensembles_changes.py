# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is told of ensembles, profiles and artifacts that change while a server runs."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import asyncinotify

from mcpd.servers.ensembles.library import changes as changes_module
from mcpd.servers.ensembles.library.changes import Changes, watch
from tests.unit.ensembles.library_parts import ensemble, library, of_project, put, put_ensemble

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import pytest

    from mcpd.servers.ensembles.library.library import Library

PATIENCE = 120
"""Seconds that nothing takes."""


class Told:
    """All that was told so far, as one."""

    def __init__(self) -> None:
        self.all = Changes()
        self.calls = 0
        self._news = asyncio.Event()

    def __call__(self, changes: Changes) -> None:
        self.calls += 1
        self.all = Changes(
            self.all.ensembles | changes.ensembles,
            self.all.profiles or changes.profiles,
            self.all.artifacts | changes.artifacts,
            self.all.listing or changes.listing,
        )
        self._news.set()

    async def until(self, enough: Callable[[Changes], bool]) -> Changes:
        """Wait for changes that are *enough*, and begin anew."""
        async with asyncio.timeout(PATIENCE):
            while not enough(self.all):
                self._news.clear()
                await self._news.wait()
        found, self.all = self.all, Changes()
        return found


@asynccontextmanager
async def watched(made: Library) -> AsyncIterator[Told]:
    told, ready = Told(), asyncio.Event()
    task = asyncio.create_task(watch(made, made.artifact_roots(), told, ready))
    try:
        async with asyncio.timeout(PATIENCE):
            await ready.wait()
        yield told
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()


async def test_an_ensemble_that_is_new_changed_and_gone(tmp_path: Path) -> None:
    base = of_project(tmp_path, "app")
    put_ensemble(base, "other")
    async with watched(library(tmp_path, "app")) as told:
        path = put_ensemble(base, "review")
        found = await told.until(lambda all_: all_.listing)
        assert found == Changes({"review"}, listing=True)

        path.write_text(ensemble("review").replace("fast", "slow"))
        assert await told.until(lambda all_: bool(all_.ensembles)) == Changes({"review"})

        path.write_text(ensemble("review", "now with words"))
        assert await told.until(lambda all_: all_.listing) == Changes({"review"}, listing=True)

        path.unlink()
        assert await told.until(lambda all_: all_.listing) == Changes({"review"}, listing=True)


async def test_what_replaces_a_file_is_a_change_of_it(tmp_path: Path) -> None:
    path = put_ensemble(tmp_path / "user", "review")
    async with watched(library(tmp_path)) as told:
        other = path.with_name(".new")
        other.write_text(path.read_text())
        os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
        other.replace(path)
        assert await told.until(lambda all_: bool(all_.ensembles)) == Changes({"review"})


async def test_an_ensemble_that_breaks_is_another_listing(tmp_path: Path) -> None:
    path = put_ensemble(tmp_path / "user", "review")
    async with watched(library(tmp_path)) as told:
        path.write_text("name: review\nagents: []\n")
        found = await told.until(lambda all_: all_.listing)
        assert found == Changes({"review"}, listing=True)


async def test_many_changes_at_once_are_few_calls(tmp_path: Path) -> None:
    names = {f"e{number}" for number in range(200)}
    (tmp_path / "user/ensembles").mkdir(parents=True)
    async with watched(library(tmp_path)) as told:
        for name in names:
            put_ensemble(tmp_path / "user", name)
        await told.until(lambda all_: all_.ensembles == names)
        assert told.calls < len(names)


async def test_directories_that_appear_later_are_picked_up(tmp_path: Path) -> None:
    base = of_project(tmp_path, "app")
    async with watched(library(tmp_path, "app")) as told:
        put_ensemble(base, "one")
        await told.until(lambda all_: "one" in all_.ensembles)
        put_ensemble(base, "two", file="a/b/c/two.yaml")
        await told.until(lambda all_: "two" in all_.ensembles)
        put_ensemble(base, "three", file="a/b/c/three.yaml")
        await told.until(lambda all_: "three" in all_.ensembles)
        put_ensemble(tmp_path / "user", "mine")
        await told.until(lambda all_: "mine" in all_.ensembles)
        put(tmp_path / "shipped/extra.yaml", ensemble("extra"))
        await told.until(lambda all_: "extra" in all_.ensembles)


async def test_a_project_that_goes_and_comes_again_is_seen(tmp_path: Path) -> None:
    base = of_project(tmp_path, "app")
    put_ensemble(base, "one")
    async with watched(library(tmp_path, "app")) as told:
        shutil.rmtree(base)
        await told.until(lambda all_: "one" in all_.ensembles)
        put_ensemble(base, "two")
        await told.until(lambda all_: "two" in all_.ensembles)
        base.rename(base.with_name("aside"))
        await told.until(lambda all_: "two" in all_.ensembles)
        put_ensemble(base.with_name("aside"), "unseen")
        put_ensemble(base, "three")
        found = await told.until(lambda all_: "three" in all_.ensembles)
        assert found.ensembles == {"three"}
        shutil.rmtree(tmp_path / "app")
        await told.until(lambda all_: "three" in all_.ensembles)
        put_ensemble(base, "four")
        await told.until(lambda all_: "four" in all_.ensembles)


async def test_a_directory_that_is_moved_takes_its_ensembles_along(tmp_path: Path) -> None:
    put_ensemble(tmp_path / "user", "one", file="a/one.yaml")
    directory = tmp_path / "user/ensembles"
    async with watched(library(tmp_path)) as told:
        (directory / "a").rename(tmp_path / "aside")
        await told.until(lambda all_: "one" in all_.ensembles)
        (tmp_path / "aside").rename(directory / "b")
        await told.until(lambda all_: "one" in all_.ensembles)
        put_ensemble(tmp_path / "user", "two", file="b/two.yaml")
        await told.until(lambda all_: "two" in all_.ensembles)


async def test_profiles_that_change(tmp_path: Path) -> None:
    base = tmp_path / "user"
    base.mkdir()
    async with watched(library(tmp_path)) as told:
        for path in ("config.yaml", "profiles/a.yaml", "profiles/b.yaml", "config.yaml"):
            put(base / path, "{name: a, provider: mock, model: m}\n")
            assert await told.until(lambda all_: all_.profiles) == Changes(profiles=True)
        (base / "profiles/a.yaml").unlink()
        assert await told.until(lambda all_: all_.profiles) == Changes(profiles=True)


async def test_artifacts_that_are_new(tmp_path: Path) -> None:
    base = of_project(tmp_path, "app")
    base.mkdir(parents=True)
    async with watched(library(tmp_path, "app")) as told:
        (base / "artifacts/review/20260101-000000-000").mkdir(parents=True)
        assert await told.until(lambda all_: all_.listing) == Changes(artifacts={"review"}, listing=True)
        (base / "artifacts/review/20260101-000001-000").mkdir()
        assert await told.until(lambda all_: bool(all_.artifacts)) == Changes(artifacts={"review"})
        (tmp_path / "data/artifacts/plan/20260101-000000-000").mkdir(parents=True)
        assert await told.until(lambda all_: all_.listing) == Changes(artifacts={"plan"}, listing=True)
        shutil.rmtree(base / "artifacts/review")
        assert await told.until(lambda all_: all_.listing) == Changes(artifacts={"review"}, listing=True)


async def test_what_was_open_for_writing_counts_as_changed_whatever_its_times_say(tmp_path: Path) -> None:
    path = put_ensemble(tmp_path / "user", "one")
    config = put(tmp_path / "user/config.yaml", "{}")
    async with watched(library(tmp_path)) as told:
        path.open("a").close()
        assert await told.until(lambda all_: bool(all_.ensembles)) == Changes({"one"})
        config.open("a").close()
        assert await told.until(lambda all_: all_.profiles) == Changes(profiles=True)


async def test_what_is_none_of_it_is_not_told(tmp_path: Path) -> None:
    base = of_project(tmp_path, "app")
    put_ensemble(base, "one")
    async with watched(library(tmp_path, "app", "empty")) as told:
        put(base / "scripts/x.py", "")
        put(base / "ensembles/notes.txt", "")
        put(tmp_path / "app/README", "")
        put(tmp_path / "empty/README", "")
        put_ensemble(base, "two")
        assert await told.until(lambda all_: all_.listing) == Changes({"two"}, listing=True)


async def test_directories_that_lead_out_of_a_project_are_not_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = of_project(tmp_path, "app")
    put_ensemble(base, "one")
    put(tmp_path / "home/x/private.yaml", ensemble("private"))
    (base / "ensembles/out").symlink_to(tmp_path / "home/x")
    (base / "profiles").symlink_to(tmp_path / "home/x")
    (base / "artifacts").symlink_to(tmp_path / "home")
    added: set[str] = set()
    add = asyncinotify.Inotify.add_watch

    def noted(self: asyncinotify.Inotify, path: Path, mask: asyncinotify.Mask) -> object:
        added.add(os.path.realpath(path))
        return add(self, path, mask)

    monkeypatch.setattr(asyncinotify.Inotify, "add_watch", noted)
    async with watched(library(tmp_path, "app")):
        assert str(base / "ensembles") in added
        assert not any(path.startswith(str(tmp_path / "home")) for path in added)


async def test_where_watches_run_out_it_is_said_once_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put_ensemble(tmp_path / "user", "one")
    put_ensemble(tmp_path / "user", "two", file="a/two.yaml")
    put_ensemble(tmp_path / "user", "three", file="b/three.yaml")
    add = asyncinotify.Inotify.add_watch

    def scarce(self: asyncinotify.Inotify, path: Path, mask: asyncinotify.Mask) -> object:
        if path.name in {"a", "b"}:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return add(self, path, mask)

    monkeypatch.setattr(asyncinotify.Inotify, "add_watch", scarce)
    with caplog.at_level(logging.WARNING, "llm-orc"):
        async with watched(library(tmp_path)) as told:
            put_ensemble(tmp_path / "user", "four")
            await told.until(lambda all_: "four" in all_.ensembles)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert os.strerror(errno.ENOSPC) in caplog.text


async def test_without_inotify_it_is_said_and_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(**_: object) -> asyncinotify.Inotify:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(changes_module, "Inotify", none)
    ready = asyncio.Event()
    async with asyncio.timeout(PATIENCE):
        await watch(library(tmp_path), [], lambda _: None, ready)
    assert ready.is_set()
    assert len(caplog.records) == 1


async def test_what_is_lost_by_the_kernel_is_found_by_looking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path / "user"
    put_ensemble(base, "one")
    get = asyncinotify.Inotify.get

    async def overflown(self: asyncinotify.Inotify) -> object:
        event = await get(self)
        return type(event)(watch=None, mask=asyncinotify.Mask.Q_OVERFLOW, cookie=0, name=None)

    monkeypatch.setattr(asyncinotify.Inotify, "get", overflown)
    async with watched(library(tmp_path)) as told:
        put_ensemble(base, "two")
        put(base / "config.yaml", "{}")
        found = await told.until(lambda all_: all_.listing and all_.profiles)
        assert found == Changes({"two"}, profiles=True, listing=True)


async def test_it_leaves_nothing_open(tmp_path: Path) -> None:
    def kinds() -> list[str]:
        return [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]

    put_ensemble(tmp_path / "user", "one")
    async with watched(library(tmp_path)):
        assert any("inotify" in kind for kind in kinds())
    assert not any("inotify" in kind or str(tmp_path) in kind for kind in kinds())
