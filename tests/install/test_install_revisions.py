# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers that follow a branch: an update is another commit, though the registry says the same as before."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.install import JobState, read_lock
from tests.install.git_server import Repository, Server
from tests.install.install_parts import SERVER, World, local, make_world

if TYPE_CHECKING:
    from pathlib import Path

HELLO = "org.test.hello"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "repos/hello")
    made.commit({"server.py": SERVER, "VERSION": "one"})
    return made


@pytest.fixture
async def following(world: World, tmp_path: Path, repository: Repository) -> World:
    """A server made from what is the head of a branch until now."""
    assert (await world.fetch(local(tmp_path, source=repository.source(rev="main")))).error is None
    return world


def version(world: World) -> str:
    return (world.store.get(HELLO).generation / "VERSION").read_text()


async def look(world: World) -> dict[str, str]:
    """What CheckUpdates finds."""
    job = world.installer.check_updates(os.getuid())
    await job.wait()
    assert job.state is JobState.DONE, job.error
    return world.updates()


async def test_a_branch_that_moves_on_is_an_update_until_it_is_installed(
    following: World, repository: Repository
) -> None:
    assert await look(following) == {}
    commit = repository.commit({"VERSION": "two"})
    assert following.updates() == {}
    assert await look(following) == {HELLO: f"1.0 ({commit[:12]})"}
    assert (await following.update(HELLO)).error is None
    server = following.store.get(HELLO)
    assert version(following) == "two"
    assert read_lock(server.generation)["resolved"] == {"rev": commit}
    assert following.updates() == await look(following) == {}
    assert (await following.update(HELLO)).error is None
    assert following.store.get(HELLO).generation == server.generation
    assert following.left_over() == []
    assert list(following.paths.user.cache.glob("revisions/*")) == []


async def test_a_head_over_https(
    world: World, tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_SSL_CAINFO", str(tmp_path / "ca.pem"))
    with Server(tmp_path / "repos", tmp_path / "ca.pem") as server:
        source = {"type": "git", "url": f"{server.url}/smart/hello/.git"}
        assert (await world.fetch(local(tmp_path, source=source))).error is None
        repository.git("tag", "-a", "-m", "not the head", "v0")
        commit = repository.commit({"VERSION": "two"})
        assert await look(world) == {HELLO: f"1.0 ({commit[:12]})"}


async def test_what_was_installed_since_the_look_is_no_older_than_it(following: World, repository: Repository) -> None:
    repository.commit({"VERSION": "two"})
    assert await look(following)
    repository.commit({"VERSION": "three"})
    assert (await following.update(HELLO)).error is None
    assert version(following) == "three"
    assert following.updates() == {}


async def test_one_of_the_same_id_from_elsewhere_is_not_measured_by_it(
    following: World, tmp_path: Path, repository: Repository
) -> None:
    repository.commit({"VERSION": "two"})
    assert await look(following)
    other = Repository(tmp_path / "repos/other")
    other.commit({"server.py": SERVER, "VERSION": "other"})
    job = await following.fetch(local(tmp_path, source=other.source()), reinstall=True)
    assert job.error is None
    assert following.updates() == {}


async def test_the_next_mcpd_knows_it(following: World, repository: Repository) -> None:
    repository.commit({"VERSION": "two"})
    found = await look(following)
    async with make_world() as later:
        later.shelf.entries_by_id.update(following.shelf.entries_by_id)
        assert later.updates() == found != {}
        assert (await later.update()).error is None
        assert version(later) == "two"
        assert later.updates() == {}


@pytest.mark.parametrize("text", ["[]", "{", '{"org.test.hello": 1}', '{"org.test.hello": {"head": "x"}}', "null"])
async def test_a_file_of_another_form_says_nothing(following: World, repository: Repository, text: str) -> None:
    repository.commit({"VERSION": "two"})
    following.paths.user.cache.mkdir(parents=True, exist_ok=True)
    (following.paths.user.cache / "revisions.json").write_text(text)
    assert following.updates() == {}
    assert await look(following)


async def test_what_was_gone_back_from_is_found_again(following: World, repository: Repository) -> None:
    commit = repository.commit({"VERSION": "two"})
    await look(following)
    assert (await following.update(HELLO)).error is None
    job = following.installer.rollback(HELLO, os.getuid())
    await job.wait()
    assert version(following) == "one"
    assert await look(following) == {HELLO: f"1.0 ({commit[:12]})"}


@pytest.mark.parametrize("kind", ["pinned", "commit", "gone"])
async def test_nothing_is_found_where_nothing_is_followed(
    world: World, tmp_path: Path, repository: Repository, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    rev = repository.git("rev-parse", "HEAD") if kind == "commit" else ""
    assert (await world.fetch(local(tmp_path, source=repository.source(rev=rev)))).error is None
    repository.commit({"VERSION": "two"})
    if kind == "pinned":
        world.store.set_pinned(HELLO, True)
    if kind == "gone":
        shutil.rmtree(repository.path)
    assert await look(world) == {}
    assert ("could not check its branch" in caplog.text) is (kind == "gone")


async def test_a_repository_that_cannot_be_asked_hides_no_other(
    following: World, tmp_path: Path, repository: Repository
) -> None:
    other = Repository(tmp_path / "repos/other")
    other.commit({"server.py": SERVER})
    document: dict[str, Any] = {**local(tmp_path, source=other.source()), "id": "org.test.other"}
    assert (await following.fetch(document)).error is None
    shutil.rmtree(other.path)
    repository.commit({"VERSION": "two"})
    assert list(await look(following)) == [HELLO]


async def test_a_commit_that_waits_for_approval_is_not_found_again_but_the_next_is(
    following: World, repository: Repository
) -> None:
    repository.commit({"server.py": SERVER.replace('"type": "object"', '"type": "object", "title": "new"')})
    assert await look(following)
    await following.update(HELLO)
    held = following.store.held(HELLO)
    assert held is not None
    assert following.updates() == await look(following) == {}
    repository.commit({"VERSION": "three"})
    assert await look(following)
    await following.update(HELLO)
    assert following.store.held(HELLO) not in (None, held)
