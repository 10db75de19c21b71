# SPDX-License-Identifier: LGPL-2.1-or-later
"""A source whose owner replaces it while it is read, and who may see a generation before it is complete."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import SourceUnavailable
from mcpd.install import JobState
from mcpd.paths import Scope
from tests.install.git_server import Repository
from tests.install.install_parts import SERVER, World, local, make_world, project

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mcpd.install import JobEvent

SECRET = "hunter2"
_watchers: list[Callable[[str, tuple[Any, ...]], None]] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    for watcher in _watchers:
        watcher(event, arguments)


sys.addaudithook(_hook)


@contextmanager
def watching(watcher: Callable[[str, tuple[Any, ...]], None]) -> Iterator[None]:
    """Have *watcher* called before this process opens, lists or renames something, in the thread that does."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


class Swap:
    """Puts a link to *target* in the place of *part* once, right before :attr:`moment` says that something is done."""

    def __init__(self, part: Path, target: Path, moment: Callable[[str, tuple[Any, ...]], bool]) -> None:
        self.done = False
        self._part = part
        self._target = target
        self._moment = moment

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.done or not self._moment(event, arguments):
            return
        self.done = True
        self._part.rename(self._part.with_name("aside"))
        self._part.symlink_to(self._target)


def opens(place: Path) -> Callable[[str, tuple[Any, ...]], bool]:
    """When *place*, by whatever name, is opened."""
    names = {str(place), place.name}
    return lambda event, arguments: event == "open" and str(arguments[0]) in names


def lists(place: Path) -> Callable[[str, tuple[Any, ...]], bool]:
    """When the content of *place* is listed, so that it was opened."""

    def moment(event: str, arguments: tuple[Any, ...]) -> bool:
        if event != "os.scandir" or not isinstance(arguments[0], int):
            return False
        return Path(f"/proc/self/fd/{arguments[0]}").readlink() == place

    return moment


def seen(world: World, scope: Scope = Scope.USER) -> list[tuple[JobState, int, list[str]]]:
    """For each event of a job: its state, the mode of the generation, and its files that hold the secret."""
    found: list[tuple[JobState, int, list[str]]] = []
    layout = world.paths.layout(scope)

    def look(event: JobEvent) -> None:
        for generation in layout.generations.glob("org.test.hello/[0-9]"):
            files = [path for path in generation.rglob("*") if path.is_file() and not path.is_symlink()]
            leaked = [path.name for path in files if SECRET in path.read_text(errors="replace")]
            found.append((event.job.state, generation.stat().st_mode & 0o777, leaked))

    world.installer.jobs.subscribe(look)
    return found


@pytest.fixture
def secrets(world: World) -> Path:
    """mcpd's secrets, which look like a project."""
    directory = project(world.paths.user.secrets / "project", {"token": SECRET}).parent
    project(directory, {"token": SECRET})
    return directory


@pytest.mark.parametrize("moment", [opens, lists])
@pytest.mark.parametrize("part", ["shared/project", "shared"])
async def test_a_source_that_becomes_a_link_to_secrets_meanwhile_takes_none_along(
    world: World, secrets: Path, tmp_path: Path, part: str, moment: Callable[[Path], Any]
) -> None:
    top = tmp_path.resolve()
    source = project(top / "shared/project", {"mine": "x"})
    swap, events = Swap(top / part, secrets, moment(source)), seen(world)
    with watching(swap):
        job = await world.install(local(source))
    assert swap.done
    assert (source / "token").read_text() == SECRET  # which is what the name leads to now
    assert [state for state, _, leaked in events if leaked] == []
    if job.error is None:
        assert (world.store.get("org.test.hello").generation / "mine").read_text() == "x"
    else:
        assert isinstance(job.error, SourceUnavailable)
        assert world.left_over() == []


async def test_a_repository_that_becomes_a_link_meanwhile_is_not_followed(world: World, tmp_path: Path) -> None:
    top = tmp_path.resolve()
    repository, other = Repository(top / "repos/mine"), Repository(top / "repos/other")
    for made in (repository, other):
        made.commit({"server.py": SERVER})
    swap = Swap(
        repository.path,
        other.path,
        lambda event, arguments: event == "open" and Path(str(arguments[0])).name == "gitconfig",
    )
    with watching(swap):
        job = await world.install(local(tmp_path, source=repository.source()))
    assert swap.done
    assert isinstance(job.error, SourceUnavailable)
    assert "replaced by a link" in job.error.message
    assert world.left_over() == []


@pytest.mark.parametrize("whose", [Scope.USER, Scope.SYSTEM])
async def test_nobody_else_sees_a_generation_before_it_is_complete(tmp_path: Path, whose: Scope) -> None:
    async with make_world(whose) as world:
        layout, modes = world.paths.layout(whose), []

        def activation(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "os.rename" and Path(str(arguments[1])).name == "org.test.hello":
                modes.append((layout.generations / "org.test.hello/1").stat().st_mode & 0o777)

        events = seen(world, whose)
        with watching(activation):
            job = await world.install(local(project(tmp_path / "src"), scope=whose.value))
        assert job.error is None
        begun = {state for state, _, _ in events}
        assert begun >= {JobState.FETCHING, JobState.BUILDING, JobState.VERIFYING}
        open_for_all = {state for state, mode, _ in events if mode != 0o700}
        assert open_for_all <= {JobState.ACTIVATING, JobState.DONE}
        assert modes == [0o755]
        assert world.store.get("org.test.hello").generation.stat().st_mode & 0o777 == 0o755
