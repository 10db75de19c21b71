# SPDX-License-Identifier: LGPL-2.1-or-later
"""filesystem_delete: to the trash as the desktops have it, or for good, and nothing beyond what was named."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import threading
from configparser import RawConfigParser
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import Cancelled, InvalidArgument, McpdError, NotAuthorized, NotFound
from mcpd.servers.workstation.filesystem import trash
from mcpd.servers.workstation.filesystem.moving import DELETE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.workstation.bench import Workbench

pytestmark = pytest.mark.process

TRASH = f".Trash-{os.geteuid()}"


def names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


def info(bench: Workbench, name: str) -> tuple[str, datetime]:
    """Where *name* in the trash came from, and when."""
    text = (bench.root / TRASH / "info" / f"{name}.trashinfo").read_text("ascii")
    assert text.startswith("[Trash Info]\n")
    parser = RawConfigParser()
    parser.read_string(text)
    section = parser["Trash Info"]
    return unquote(section["Path"], errors="strict"), datetime.fromisoformat(section["DeletionDate"])


async def test_a_file_goes_to_the_trash(bench: Workbench) -> None:
    (bench.root / "sub").mkdir()
    (bench.root / "sub/a b%\n.txt").write_text("x")
    before = datetime.now() - timedelta(seconds=1)
    answer = await bench.call(DELETE, path="sub/a b%\n.txt")
    trashed = bench.root / TRASH / "files/a b%\n.txt"
    assert answer.result.model_dump(exclude_none=True) == {
        "path": str(bench.root / "sub/a b%\n.txt"),
        "type": "file",
        "trashed_to": str(trashed),
    }
    assert trashed.read_text() == "x"
    assert names(bench.root / "sub") == []
    path, date = info(bench, "a b%\n.txt")
    assert path == "sub/a b%\n.txt"
    assert before <= date <= datetime.now()
    for each in (TRASH, f"{TRASH}/files", f"{TRASH}/info"):
        assert (bench.root / each).stat().st_mode & 0o777 == 0o700


@given(
    name=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1).filter(
        lambda name: name not in {".", "..", TRASH} and len(name.encode()) <= 255
    )
)
async def test_whatever_the_name_the_trash_knows_it(bench: Workbench, name: str) -> None:
    path = bench.root / name
    path.write_bytes(name.encode())
    try:
        answer = await bench.call(DELETE, path=name)
    except NotAuthorized:  # A name that is git's to some file system.
        assert "git" in name.casefold()
        path.unlink()
        return
    trashed = bench.root / answer.result.trashed_to
    assert trashed.parent == bench.root / TRASH / "files"
    assert trashed.read_bytes() == name.encode()
    assert info(bench, trashed.name)[0] == name
    assert names(bench.root) == [TRASH]


async def test_same_names_are_told_apart(bench: Workbench) -> None:
    places = set()
    for number in range(105):
        (bench.root / "a").write_text(str(number))
        places.add((await bench.call(DELETE, path="a")).result.trashed_to)
    files = bench.root / TRASH / "files"
    assert {path.read_text() for path in files.iterdir()} == {str(number) for number in range(105)}
    assert names(bench.root / TRASH / "info") == sorted(f"{name}.trashinfo" for name in names(files))
    assert len(places) == 105


async def test_what_lies_in_the_trash_without_a_note_is_not_replaced(bench: Workbench) -> None:
    files = bench.root / TRASH / "files"
    files.mkdir(parents=True, mode=0o700)
    (bench.root / TRASH).chmod(0o700)
    (files / "a").mkdir()
    (bench.root / "a").mkdir()
    await bench.call(DELETE, path="a")
    assert names(files) == ["a", "a.2"]
    assert names(bench.root / TRASH / "info") == ["a.2.trashinfo"]


async def test_a_directory_goes_there_whole(bench: Workbench) -> None:
    (bench.root / "a/.git").mkdir(parents=True)
    (bench.root / "a/b").symlink_to(bench.outside)
    answer = await bench.call(DELETE, path="a")
    assert answer.result.type == "directory"
    assert names(bench.root / TRASH / "files/a") == [".git", "b"]


@pytest.mark.parametrize("permanent", [False, True])
async def test_a_symlink_goes_itself(bench: Workbench, permanent: bool) -> None:
    (bench.root / "link").symlink_to(bench.outside / "secret")
    (bench.root / "directory").symlink_to(bench.outside)
    for name in ("link", "directory"):
        answer = await bench.call(DELETE, path=name, permanent=permanent, recursive=True)
        assert answer.result.type == "symlink"
    assert names(bench.root) == ([] if permanent else [TRASH])


async def test_a_trash_that_leads_out_or_is_open_to_others_is_not_used(bench: Workbench) -> None:
    (bench.root / "a").write_text("x")
    trash = bench.root / TRASH
    trash.symlink_to(bench.outside)
    with pytest.raises(NotAuthorized):
        await bench.call(DELETE, path="a")
    trash.unlink()
    trash.mkdir()
    trash.chmod(0o777)
    with pytest.raises(NotAuthorized):
        await bench.call(DELETE, path="a")
    trash.chmod(0o700)
    (trash / "files").symlink_to(bench.outside)
    with pytest.raises(NotAuthorized):
        await bench.call(DELETE, path="a")
    assert (bench.root / "a").read_text() == "x"
    assert names(trash) == [".gitignore", "files"]


async def test_a_trash_that_nothing_comes_into_goes_again(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: object) -> None:
        raise OSError(errno.EXDEV, "on another file system")

    (bench.root / "a").write_text("x")
    with monkeypatch.context() as patch:
        patch.setattr(trash, "rename_new", refusing)
        with pytest.raises(InvalidArgument, match="another file system"):
            await bench.call(DELETE, path="a")
    assert names(bench.root) == ["a"]
    await bench.call(DELETE, path="a")
    (bench.root / "a").write_text("y")
    monkeypatch.setattr(trash, "rename_new", refusing)
    with pytest.raises(InvalidArgument, match="another file system"):
        await bench.call(DELETE, path="a")
    assert names(bench.root / TRASH / "files") == ["a"]
    assert names(bench.root / TRASH / "info") == ["a.trashinfo"]


async def test_git_does_not_add_what_is_in_the_trash(bench: Workbench) -> None:
    git = ["git", "-C", str(bench.root)]
    subprocess.run([*git, "init", "-q"], check=True)
    (bench.root / "secret").write_text("x")
    await bench.call(DELETE, path="secret")
    subprocess.run([*git, "add", "--all"], check=True)
    assert subprocess.run([*git, "ls-files"], check=True, capture_output=True).stdout == b""


async def test_what_is_in_the_trash_goes_for_good_only_if_asked_for(bench: Workbench) -> None:
    (bench.root / "a").write_text("x")
    (bench.root / "way").symlink_to(f"{TRASH}/files")
    trashed = (await bench.call(DELETE, path="a")).result.trashed_to
    for path in (trashed, TRASH, f"{TRASH}/files", "way/a"):
        with pytest.raises(InvalidArgument, match="permanent"):
            await bench.call(DELETE, path=path)
    await bench.call(DELETE, path=trashed, permanent=True)
    assert names(bench.root / TRASH / "files") == names(bench.root / TRASH / "info") == []
    await bench.call(DELETE, path=TRASH, permanent=True, recursive=True)
    assert names(bench.root) == ["way"]


async def test_for_good(bench: Workbench) -> None:
    (bench.root / "a").write_text("x")
    (bench.root / "empty").mkdir()
    os.mkfifo(bench.root / "pipe")
    for name in ("a", "empty", "pipe"):
        answer = await bench.call(DELETE, path=name, permanent=True)
        assert answer.result.removed == 1
        assert answer.result.trashed_to is None
    assert names(bench.root) == []


async def test_a_directory_with_something_in_it_goes_for_good_only_if_asked_for(bench: Workbench) -> None:
    (bench.root / "a/b/c").mkdir(parents=True)
    (bench.root / "a/out").symlink_to(bench.outside)
    (bench.root / "a/b/link").hardlink_to(bench.outside / "secret")
    (bench.root / "a/b/x").write_bytes(b"x")
    (bench.root / os.fsdecode(b"a/\xff\n")).touch()
    os.mkfifo(bench.root / "a/pipe")
    with pytest.raises(InvalidArgument, match="recursive"):
        await bench.call(DELETE, path="a", permanent=True)
    assert len(names(bench.root / "a")) == 4
    (bench.root / "a/b/link").unlink()
    assert (await bench.call(DELETE, path="a", permanent=True, recursive=True)).result.removed == 7
    assert names(bench.root) == []


async def test_many_are_deleted_and_counted(bench: Workbench) -> None:
    for directory in range(2):
        (bench.root / f"a/{directory}").mkdir(parents=True)
        for number in range(1100):
            (bench.root / f"a/{directory}/{number}").touch()
    reports: list[float] = []
    call = bench.new_call(progress=lambda progress, _total, _message: reports.append(progress))
    answer = await bench.call(DELETE, call=call, path="a", permanent=True, recursive=True)
    assert answer.result.removed == 2203
    assert reports == sorted(set(reports))
    assert len(reports) == 2


async def test_a_tree_deeper_than_descriptors_and_paths_reach(bench: Workbench) -> None:
    fd = os.open(bench.root, os.O_RDONLY)
    for _ in range(400):
        os.mkdir("d" * 50, dir_fd=fd)
        below = os.open("d" * 50, os.O_RDONLY, dir_fd=fd)
        os.close(os.open("file", os.O_CREAT, dir_fd=below))
        os.close(fd)
        fd = below
    os.close(fd)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        answer = await bench.call(DELETE, path="d" * 50, permanent=True, recursive=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert answer.result.removed == 800
    assert names(bench.root) == []


async def test_a_call_that_was_cancelled_deletes_nothing_more(bench: Workbench) -> None:
    (bench.root / "a/b").mkdir(parents=True)
    call = bench.new_call()
    call.end()
    for permanent in (False, True):
        with pytest.raises(Cancelled):
            await bench.call(DELETE, call=call, path="a", permanent=permanent, recursive=True)
    assert (bench.root / "a/b").is_dir()


async def test_what_is_missing(bench: Workbench) -> None:
    for permanent in (False, True):
        with pytest.raises(NotFound):
            await bench.call(DELETE, path="a", permanent=permanent)
        with pytest.raises(NotFound):
            await bench.call(DELETE, path="a/b", permanent=permanent)
    assert names(bench.root) == []


@pytest.mark.parametrize("permanent", [False, True])
async def test_nothing_outside_no_root_and_nothing_of_git(bench: Workbench, permanent: bool) -> None:
    (bench.root / "out").symlink_to(bench.outside)
    (bench.root / ".git/hooks").mkdir(parents=True)
    for path in (str(bench.outside / "secret"), "out/secret", ".", str(bench.root), ".git", ".git/hooks"):
        with pytest.raises(NotAuthorized):
            await bench.call(DELETE, path=path, permanent=permanent, recursive=True)
    with pytest.raises(InvalidArgument):
        await bench.call(DELETE, path="../outside", permanent=permanent, recursive=True)
    assert names(bench.root) == [".git", "out"]


@pytest.mark.parametrize("permanent", [False, True])
async def test_who_puts_links_in_the_way_meanwhile_gains_nothing(bench: Workbench, permanent: bool) -> None:
    (bench.root / "a").mkdir()
    (bench.root / "link").symlink_to(bench.outside)
    over = threading.Event()

    def attack() -> None:
        while not over.is_set():
            with suppress(OSError):
                (bench.root / "a/d").rename(bench.root / "aside")
            with suppress(OSError):
                (bench.root / "link").rename(bench.root / "a/d")
            with suppress(OSError):
                (bench.root / "a/d").rename(bench.root / "link")
            with suppress(OSError):
                (bench.root / "aside").rename(bench.root / "a/d")

    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        for _ in range(40):
            with suppress(FileExistsError):
                (bench.root / "a/d").mkdir()
            with suppress(OSError):
                os.close(os.open(bench.root / "a/d/secret", os.O_CREAT | os.O_EXCL))
            with suppress(McpdError):
                await bench.call(DELETE, path="a/d/secret", permanent=permanent)
            with suppress(McpdError):
                await bench.call(DELETE, path="a", permanent=permanent, recursive=True)
            (bench.root / "a").mkdir(exist_ok=True)
            if not os.path.lexists(bench.root / "a/d"):
                # The attacker may have put it there in this very moment.
                with suppress(FileExistsError):
                    (bench.root / "link").symlink_to(bench.outside)
    finally:
        over.set()
        attacker.join()
    assert names(bench.outside) == ["secret"]
