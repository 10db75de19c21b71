# SPDX-License-Identifier: LGPL-2.1-or-later
"""filesystem_move."""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import InvalidArgument, McpdError, NotAuthorized, NotFound
from mcpd.servers.workstation.filesystem.moving import DELETE, MOVE
from mcpd.servers.workstation.roots import Roots
from tests.unit.workstation.bench import Workbench

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path, roots=2) as made:
        before = made.fingerprint()
        yield made
        assert made.fingerprint() == before


def names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


async def test_a_file_is_renamed(bench: Workbench) -> None:
    (bench.root / "a").write_text("x")
    answer = await bench.call(MOVE, source="a", destination="b\n")
    assert answer.result.model_dump() == {
        "source": str(bench.root / "a"),
        "destination": str(bench.root / "b\n"),
        "type": "file",
        "replaced": False,
    }
    assert (bench.root / "b\n").read_text() == "x"
    assert names(bench.root) == ["b\n"]


async def test_a_directory_goes_to_another_root(bench: Workbench) -> None:
    (bench.root / "a/b").mkdir(parents=True)
    answer = await bench.call(MOVE, source="a", destination=str(bench.roots[1] / "c"))
    assert answer.result.type == "directory"
    assert (bench.roots[1] / "c/b").is_dir()
    assert not names(bench.root)


async def test_what_is_there_is_only_replaced_if_asked_for(bench: Workbench) -> None:
    (bench.root / "a").write_text("a")
    (bench.root / "b").write_text("b")
    with pytest.raises(InvalidArgument, match="overwrite"):
        await bench.call(MOVE, source="a", destination="b")
    assert (bench.root / "b").read_text() == "b"
    answer = await bench.call(MOVE, source="a", destination="b", overwrite=True)
    assert answer.result.replaced
    assert (bench.root / "b").read_text() == "a"
    assert not (bench.root / "a").exists()


@pytest.mark.parametrize("overwrite", [False, True])
async def test_an_existing_directory_is_no_destination(bench: Workbench, overwrite: bool) -> None:
    (bench.root / "a").write_text("a")
    (bench.root / "directory").mkdir()
    (bench.root / "empty").mkdir()
    for source in ("a", "directory"):
        with pytest.raises(InvalidArgument, match="full new path"):
            await bench.call(MOVE, source=source, destination="empty", overwrite=overwrite)
    with pytest.raises(InvalidArgument):
        await bench.call(MOVE, source="directory", destination="a", overwrite=overwrite)
    assert names(bench.root) == ["a", "directory", "empty"]


async def test_a_symlink_is_moved_and_replaced_itself(bench: Workbench) -> None:
    (bench.root / "secret").symlink_to(bench.outside / "secret")
    assert (await bench.call(MOVE, source="secret", destination="link")).result.type == "symlink"
    assert (bench.root / "link").readlink() == bench.outside / "secret"
    (bench.root / "a").write_text("a")
    await bench.call(MOVE, source="a", destination="link", overwrite=True)
    assert (bench.root / "link").read_text() == "a"
    assert not (bench.root / "link").is_symlink()


async def test_nothing_goes_into_itself(bench: Workbench) -> None:
    (bench.root / "a/b").mkdir(parents=True)
    (bench.root / "way").symlink_to("a/b")
    for destination in ("a/c", "a/b/c", "way/c"):
        with pytest.raises(InvalidArgument, match="into itself"):
            await bench.call(MOVE, source="a", destination=destination)
    with pytest.raises(InvalidArgument, match="same"):
        await bench.call(MOVE, source="a/b", destination="./a//b", overwrite=True)
    (bench.root / "a/b/c").mkdir()
    with pytest.raises(InvalidArgument, match="same"):
        await bench.call(MOVE, source="a/b/c", destination="way/c")
    assert (bench.root / "a/b/c").is_dir()


async def test_two_names_of_one_file_both_stay(bench: Workbench) -> None:
    (bench.root / "a").write_text("x")
    (bench.root / "b").hardlink_to(bench.root / "a")
    with pytest.raises(InvalidArgument, match="same file"):
        await bench.call(MOVE, source="a", destination="b", overwrite=True)
    assert names(bench.root) == ["a", "b"]


async def test_what_is_missing(bench: Workbench) -> None:
    with pytest.raises(NotFound, match="/a:"):
        await bench.call(MOVE, source="a", destination="b")
    (bench.root / "a").touch()
    with pytest.raises(NotFound, match="/missing"):
        await bench.call(MOVE, source="a", destination="missing/b")


async def test_nothing_moves_in_or_out(bench: Workbench) -> None:
    (bench.root / "a").touch()
    (bench.root / "out").symlink_to(bench.outside)
    for source, destination in (
        ("a", str(bench.outside / "a")),
        ("a", "out/a"),
        (str(bench.outside / "secret"), "b"),
        ("out/secret", "b"),
    ):
        with pytest.raises(NotAuthorized):
            await bench.call(MOVE, source=source, destination=destination)
    with pytest.raises(InvalidArgument):
        await bench.call(MOVE, source="a", destination="../outside/a")
    assert (bench.root / "a").exists()


async def test_a_root_stays_where_it_is(bench: Workbench) -> None:
    for source in (".", str(bench.root), str(bench.roots[1])):
        with pytest.raises(NotAuthorized, match="root"):
            await bench.call(MOVE, source=source, destination="a")


async def test_neither_does_what_holds_a_root(tmp_path: Path) -> None:
    inner = tmp_path / "root/a/inner"
    with Workbench(tmp_path) as outer:
        inner.mkdir(parents=True)
        (tmp_path / "root/way").symlink_to("a")
        both = Roots(replace(outer.settings, roots=(outer.root, inner)))
        call = outer.new_call()
        call.jail = both.jail
        for source in ("a", "way/inner"):
            for tool, arguments in ((MOVE, {"source": source, "destination": "b"}), (DELETE, {"path": source})):
                with pytest.raises(NotAuthorized, match="root"):
                    await outer.call(tool, call=call, **arguments)
    assert inner.is_dir()


async def test_nothing_of_git_moves(bench: Workbench) -> None:
    (bench.root / ".git/hooks").mkdir(parents=True)
    (bench.root / "hook").touch()
    for source, destination in (
        (".git", "a"),
        (".git/hooks", "a"),
        ("hook", ".git/hooks/pre-commit"),
        ("hook", ".GIT"),
    ):
        with pytest.raises(NotAuthorized, match="git"):
            await bench.call(MOVE, source=source, destination=destination)


async def test_another_file_system_is_said_to_be_one(bench: Workbench) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == bench.root.stat().st_dev:
        pytest.skip("there is no other file system")
    with tempfile.TemporaryDirectory(dir=shm) as made, Workbench(Path(made)) as other:
        (bench.root / "a").write_text("x")
        both = bench.new_call()
        both.jail = type(bench.jail)([*bench.jail.roots, *other.jail.roots], hint="", state=bench.settings.state)
        with pytest.raises(InvalidArgument, match="different file systems"):
            await bench.call(MOVE, call=both, source="a", destination=str(other.root / "a"))
        assert (bench.root / "a").exists()
        assert not names(other.root)


async def test_of_many_to_one_place_one_arrives(bench: Workbench) -> None:
    sources = [f"file{number}" for number in range(20)]
    for name in sources:
        (bench.root / name).write_text(name)
    answers = await asyncio.gather(
        *(bench.call(MOVE, source=name, destination="one") for name in sources), return_exceptions=True
    )
    failed = [answer for answer in answers if isinstance(answer, BaseException)]
    assert len(failed) == 19
    assert all(isinstance(answer, McpdError) for answer in failed)
    left = set(sources) - {(bench.root / "one").read_text()}
    assert set(names(bench.root)) == {"one", *left}
    assert all((bench.root / name).read_text() == name for name in left)


async def test_what_comes_back_from_the_trash_is_forgotten_there(bench: Workbench) -> None:
    (bench.root / "a").write_text("x")
    trashed = (await bench.call(DELETE, path="a")).result.trashed_to
    await bench.call(MOVE, source=trashed, destination="a")
    assert (bench.root / "a").read_text() == "x"
    trash = bench.root / f".Trash-{os.geteuid()}"
    assert names(trash / "info") == names(trash / "files") == []


async def test_it_is_also_if_a_symlink_led_there(bench: Workbench) -> None:
    trash = bench.root / f".Trash-{os.geteuid()}"
    (bench.root / "way").symlink_to(f"{trash.name}/files")
    for name in ("a", "b"):
        (bench.root / name).write_text("x")
        await bench.call(DELETE, path=name)
    await bench.call(MOVE, source="way/a", destination="a")
    await bench.call(DELETE, path="way/b", permanent=True)
    assert names(trash / "info") == names(trash / "files") == []


async def test_a_trash_without_notes_gives_back_what_it_has(bench: Workbench) -> None:
    files = bench.root / f".Trash-{os.geteuid()}/files"
    files.mkdir(parents=True)
    for name in ("a", "b" * 250):
        (files / name).touch()
        await bench.call(MOVE, source=str(files / name), destination=name)
        assert (bench.root / name).exists()
