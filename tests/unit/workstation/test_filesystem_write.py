# SPDX-License-Identifier: LGPL-2.1-or-later
"""filesystem_write: the old content or the new, never a part of either, and nothing outside of the roots."""

from __future__ import annotations

import base64
import hashlib
import os
import resource
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidArgument, McpdError, NotAuthorized, NotFound, ReadOnly, TooLarge
from mcpd.servers.workstation.filesystem.writing import WRITE
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


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def test_a_new_file(bench: Workbench) -> None:
    answer = await bench.call(WRITE, path="a.txt", content="grüße\n")
    data = "grüße\n".encode()
    assert (bench.root / "a.txt").read_bytes() == data
    assert answer.result.model_dump() == {
        "path": str(bench.root / "a.txt"),
        "size": len(data),
        "created": True,
        "sha256": sha256(data),
    }
    assert names(bench.root) == ["a.txt"]


async def test_in_another_root_by_its_absolute_path(bench: Workbench) -> None:
    await bench.call(WRITE, path=str(bench.roots[1] / "a"), content="x")
    assert (bench.roots[1] / "a").read_text() == "x"


async def test_line_ends_and_control_characters_stay_as_they_are(bench: Workbench) -> None:
    await bench.call(WRITE, path="a", content="a\r\nb\nc\rd\0\x1b[0m\u2028")
    assert (bench.root / "a").read_bytes() == "a\r\nb\nc\rd\0\x1b[0m\u2028".encode()


@given(before=st.binary(max_size=50) | st.none(), data=st.binary(max_size=5000), append=st.booleans())
async def test_bytes_as_base64(bench: Workbench, before: bytes | None, data: bytes, append: bool) -> None:
    path = bench.root / "blob"
    path.unlink(missing_ok=True)
    if before is not None:
        path.write_bytes(before)
    answer = await bench.call(
        WRITE, path="blob", content=base64.b64encode(data).decode(), encoding="base64", append=append
    )
    expected = (before or b"") + data if append else data
    assert path.read_bytes() == expected
    assert answer.result.model_dump() == {
        "path": str(path),
        "size": len(expected),
        "created": before is None,
        "sha256": sha256(expected),
    }


async def test_what_is_no_base64_writes_nothing(bench: Workbench) -> None:
    with pytest.raises(InvalidArgument, match="base64"):
        await bench.call(WRITE, path="a", content="#", encoding="base64")
    assert not names(bench.root)


async def test_what_the_encoding_cannot_write_changes_nothing(bench: Workbench) -> None:
    (bench.root / "a").write_text("old")
    with pytest.raises(InvalidArgument, match="U\\+20AC"):
        await bench.call(WRITE, path="a", content="€", encoding="latin-1")
    assert (bench.root / "a").read_text() == "old"


async def test_utf_16_has_one_mark_also_after_appending(bench: Workbench) -> None:
    await bench.call(WRITE, path="a", content="a", encoding="utf-16")
    await bench.call(WRITE, path="a", content="b", encoding="utf-16", append=True)
    assert (bench.root / "a").read_bytes() == b"\xff\xfea\0b\0"
    (bench.root / "b").write_bytes(b"\xfe\xff\0a")
    await bench.call(WRITE, path="b", content="b", encoding="utf-16", append=True)
    assert (bench.root / "b").read_bytes() == b"\xfe\xff\0a\0b"


async def test_overwrite_false_keeps_what_is_there(bench: Workbench) -> None:
    (bench.root / "a").write_text("old")
    with pytest.raises(InvalidArgument, match="overwrite"):
        await bench.call(WRITE, path="a", content="new", overwrite=False)
    assert (bench.root / "a").read_text() == "old"
    await bench.call(WRITE, path="b", content="new", overwrite=False)
    assert (bench.root / "b").read_text() == "new"


async def test_missing_directories_are_made_if_asked_for(bench: Workbench) -> None:
    with pytest.raises(NotFound, match="does not exist; create_parents"):
        await bench.call(WRITE, path="a/b/c", content="x")
    await bench.call(WRITE, path="a/b/c", content="x", create_parents=True)
    assert (bench.root / "a/b/c").read_text() == "x"
    await bench.call(WRITE, path="top", content="x", create_parents=True)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755, 0o666])
async def test_the_permissions_stay(bench: Workbench, mode: int) -> None:
    path = bench.root / "a"
    path.write_text("old")
    path.chmod(mode)
    await bench.call(WRITE, path="a", content="new")
    assert stat.S_IMODE(path.stat().st_mode) == mode


async def test_a_write_clears_setuid(bench: Workbench) -> None:
    path = bench.root / "a"
    path.write_text("old")
    path.chmod(0o6755)
    await bench.call(WRITE, path="a", content="new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o755


@pytest.mark.parametrize("append", [False, True])
async def test_executable_is_for_those_who_may_read(bench: Workbench, append: bool) -> None:
    path = bench.root / "a"
    path.write_text("old")
    path.chmod(0o640)
    await bench.call(WRITE, path="a", content="x", executable=True, append=append)
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    await bench.call(WRITE, path="a", content="x", append=append)
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    await bench.call(WRITE, path="a", content="x", executable=False, append=append)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


async def test_a_new_executable_file(bench: Workbench) -> None:
    await bench.call(WRITE, path="a", content="#!/bin/sh\n", executable=True)
    await bench.call(WRITE, path="b", content="")
    plain = stat.S_IMODE((bench.root / "b").stat().st_mode)
    assert not plain & 0o111
    assert stat.S_IMODE((bench.root / "a").stat().st_mode) == plain | (plain & 0o444) >> 2


async def test_extended_attributes_stay(bench: Workbench) -> None:
    path = bench.root / "a"
    path.write_text("old")
    try:
        os.setxattr(path, "user.origin", b"here")
    except OSError:
        pytest.skip("the file system has no extended attributes")
    await bench.call(WRITE, path="a", content="new")
    assert os.getxattr(path, "user.origin") == b"here"


async def test_expected_sha256(bench: Workbench) -> None:
    path = bench.root / "a"
    path.write_text("old")
    with pytest.raises(InvalidArgument, match=sha256(b"old")):
        await bench.call(WRITE, path="a", content="new", expected_sha256=sha256(b"other"))
    assert path.read_text() == "old"
    await bench.call(WRITE, path="a", content="new", expected_sha256=sha256(b"old").upper())
    assert path.read_text() == "new"
    with pytest.raises(InvalidArgument):
        await bench.call(WRITE, path="a", content="+", append=True, expected_sha256=sha256(b"old"))
    with pytest.raises(NotFound):
        await bench.call(WRITE, path="b", content="new", expected_sha256=sha256(b""))
    with pytest.raises(InvalidArgument):
        await bench.call(WRITE, path="a", content="new", expected_sha256="abc")


async def test_appending_goes_on_in_the_file_that_others_have_open(bench: Workbench) -> None:
    path = bench.root / "log"
    with path.open("a") as log:
        log.write("one\n")
        log.flush()
        await bench.call(WRITE, path="log", content="two\n", append=True)
        log.write("three\n")
    assert path.read_text() == "one\ntwo\nthree\n"


async def test_appending_creates_the_file(bench: Workbench) -> None:
    answer = await bench.call(WRITE, path="log", content="one\n", append=True, overwrite=False)
    assert answer.result.created
    await bench.call(WRITE, path="log", content="two\n", append=True, overwrite=False)
    assert (bench.root / "log").read_text() == "one\ntwo\n"


async def test_what_could_not_all_be_appended_is_taken_back(bench: Workbench) -> None:
    path = bench.root / "log"
    path.write_bytes(b"x" * 1000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, limits[1]))
    try:
        with pytest.raises(McpdError):
            await bench.call(WRITE, path="log", content="y" * 2_000_000, append=True)
        with pytest.raises(McpdError):
            await bench.call(WRITE, path="new", content="y" * 2_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"x" * 1000
    assert names(bench.root) == ["log"]


async def test_appending_to_a_large_file_does_not_read_it_all(bench: Workbench) -> None:
    path = bench.root / "log"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    answer = await bench.call(WRITE, path="log", content="end", append=True)
    assert answer.result.model_dump() == {"path": str(path), "size": (1 << 40) + 3, "created": False, "sha256": None}


async def test_more_than_the_limit_is_refused(bench: Workbench) -> None:
    with pytest.raises(TooLarge):
        await bench.call(WRITE, path="a", content="€" * (3 * 1024 * 1024))
    assert not names(bench.root)
    # What cannot be 8 MiB in base64 either is refused by the schema.
    assert WRITE.input_schema["properties"]["content"]["maxLength"] == len(base64.b64encode(bytes(8 * 1024 * 1024)))


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("leads", ["target", "missing", "../outside/secret", "."])
async def test_a_symlink_is_not_written_through(bench: Workbench, leads: str, append: bool) -> None:
    (bench.root / "target").write_text("old")
    (bench.root / "link").symlink_to(leads)
    with pytest.raises(InvalidArgument, match="symlink") as caught:
        await bench.call(WRITE, path="link", content="new", append=append)
    assert os.path.normpath(bench.root / leads) in str(caught.value)
    assert (bench.root / "target").read_text() == "old"
    assert (bench.root / "link").is_symlink()


async def test_nothing_is_written_through_a_directory_that_leads_out(bench: Workbench) -> None:
    (bench.root / "out").symlink_to(bench.outside)
    for create_parents in (False, True):
        with pytest.raises(NotAuthorized):
            await bench.call(WRITE, path="out/a", content="x", create_parents=create_parents)
        with pytest.raises(NotAuthorized):
            await bench.call(WRITE, path="out/new/a", content="x", create_parents=create_parents)
        with pytest.raises(NotAuthorized):
            await bench.call(WRITE, path=str(bench.outside / "a"), content="x", create_parents=create_parents)
        with pytest.raises(InvalidArgument):
            await bench.call(WRITE, path="../outside/a", content="x", create_parents=create_parents)


@pytest.mark.parametrize("append", [False, True])
async def test_only_files_are_written(bench: Workbench, append: bool) -> None:
    (bench.root / "directory").mkdir()
    os.mkfifo(bench.root / "pipe")
    with socket.socket(socket.AF_UNIX) as made, bench.jail.directory(bench.jail.place(".")) as fd:
        made.bind(f"/proc/self/fd/{fd}/socket")
        for name, word in (("directory", "a directory"), ("pipe", "a named pipe"), ("socket", "a socket")):
            with pytest.raises(InvalidArgument, match=word):
                await bench.call(WRITE, path=name, content="x", append=append)
    with pytest.raises(NotAuthorized):
        await bench.call(WRITE, path=".", content="x", append=append)


async def test_the_other_name_of_a_file_keeps_its_content(bench: Workbench) -> None:
    (bench.root / "a").hardlink_to(bench.outside / "secret")
    with pytest.raises(NotAuthorized):
        await bench.call(WRITE, path="a", content="x", append=True)
    with pytest.raises(NotAuthorized):
        await bench.call(WRITE, path="a", content="x", expected_sha256=sha256(b""))
    await bench.call(WRITE, path="a", content="x")
    assert (bench.root / "a").read_text() == "x"
    assert (bench.outside / "secret").read_text() == "nobody's business\n"


UNMAPPED = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from mcpd.servers.workstation.filesystem.writing import WRITE
from tests.unit.workstation.bench import Workbench

async def main() -> None:
    with Workbench(Path(sys.argv[1])) as bench:
        Path(sys.argv[3]).rename(bench.root / "a")
        await bench.call(WRITE, path="a", content="new")
        print((bench.root / "a").read_text(), oct((bench.root / "a").stat().st_mode & 0o777))

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
async def test_a_file_whose_owner_has_no_number_in_a_namespace_is_written(tmp_path: Path) -> None:
    unshare = ["unshare", "--user", "--map-root-user"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces for users here")
    theirs, top = tmp_path / "theirs", Path(__file__).parents[3]
    theirs.write_text("old")
    theirs.chmod(0o676)
    os.chown(theirs, 2_000_000_001, 2_000_000_002)
    arguments = [sys.executable, "-c", UNMAPPED, str(tmp_path), str(top), str(theirs)]
    done = subprocess.run([*unshare, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("new 0o666\n", "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
async def test_owner_and_group_stay(bench: Workbench) -> None:
    path = bench.root / "a"
    path.write_text("old")
    os.chown(path, 2_000_000_001, 2_000_000_002)
    await bench.call(WRITE, path="a", content="new")
    assert (path.stat().st_uid, path.stat().st_gid) == (2_000_000_001, 2_000_000_002)


@pytest.fixture
def hard_link(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path, allow_hard_links=True) as made:
        (made.root / "a").hardlink_to(made.outside / "secret")
        yield made


async def test_allowing_hard_links_lets_them_be_read_not_written(hard_link: Workbench) -> None:
    with pytest.raises(NotAuthorized):
        await hard_link.call(WRITE, path="a", content="x", append=True)
    await hard_link.call(WRITE, path="a", content="x", expected_sha256=sha256(b"nobody's business\n"))
    assert (hard_link.outside / "secret").read_text() == "nobody's business\n"


@pytest.mark.parametrize("path", [".git", ".git/config", ".GIT/hooks/pre-commit", "sub/.git/x", "git~1/x"])
async def test_what_belongs_to_git_is_left_alone(bench: Workbench, path: str) -> None:
    for name in (".git", ".GIT", "git~1", "sub/.git"):
        (bench.root / name / "hooks").mkdir(parents=True, exist_ok=True)
    with pytest.raises(NotAuthorized, match="git"):
        await bench.call(WRITE, path=path, content="x", create_parents=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
async def test_a_read_only_file_is_not_replaced(bench: Workbench) -> None:
    path = bench.root / "a"
    path.write_text("old")
    path.chmod(0o444)
    with pytest.raises(ReadOnly):
        await bench.call(WRITE, path="a", content="new")
    assert path.read_text() == "old"


async def test_a_long_name(bench: Workbench) -> None:
    name = "ü" * 127
    await bench.call(WRITE, path=name, content="x")
    assert names(bench.root) == [name]
    with pytest.raises(InvalidArgument, match="too long"):
        await bench.call(WRITE, path="ü" * 128, content="x")
