# SPDX-License-Identifier: LGPL-2.1-or-later
"""A client's file is replaced only if it still is what was read."""

from __future__ import annotations

import errno
import grp
import os
from typing import TYPE_CHECKING, Any

import pytest
from deployment_parts import ordinary, skip_without_leases, strays
from hypothesis import given
from hypothesis import strategies as st

from mcpd.cli.clients import replacement
from mcpd.cli.clients.replacement import replace
from mcpd.cli.clients.target import snapshot
from mcpd.errors import Busy, McpdError, NoSpace, ReadOnly

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "client.json"
    path.write_bytes(b"old")
    path.chmod(0o640)
    return path


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_a_replacement_keeps_permissions_and_attributes(file: Path) -> None:
    try:
        os.setxattr(file, "user.test", b"kept")
    except OSError:
        pytest.skip("no extended attributes on this file system")
    before = file.stat()
    replace(snapshot(file), b"new")
    assert file.read_bytes() == b"new"
    assert mode(file) == 0o640
    assert os.getxattr(file, "user.test") == b"kept"
    assert (file.stat().st_uid, file.stat().st_gid) == (before.st_uid, before.st_gid)
    assert file.stat().st_ino != before.st_ino
    assert strays(file.parent) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to change a group at will")
def test_a_replacement_keeps_the_group(file: Path) -> None:
    os.chown(file, -1, 4321)
    replace(snapshot(file), b"new")
    assert file.stat().st_gid == 4321
    assert mode(file) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to change a group at will")
def test_a_group_that_one_is_not_in_is_refused_with_the_way_out(file: Path) -> None:
    os.chown(file, -1, 4321)
    with ordinary(), pytest.raises(ReadOnly) as caught:
        replace(snapshot(file), b"new")
    own = grp.getgrgid(os.getegid()).gr_name
    assert caught.value.message == (
        f"{file}: belongs to the group 4321, which you are not in and so cannot give a new file to;"
        f" 'chgrp {own} {file}' gives it to your own group"
    )
    assert (file.read_bytes(), file.stat().st_gid) == (b"old", 4321)
    assert strays(file.parent) == []
    os.chown(file, -1, os.getegid())
    with ordinary():
        replace(snapshot(file), b"new")
    assert file.read_bytes() == b"new"


def test_permissions_can_be_given(file: Path) -> None:
    replace(snapshot(file), b"new", mode=0o604)
    assert mode(file) == 0o604


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_a_new_file_is_its_owners_alone(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "new.json"
    before = os.umask(umask)
    try:
        replace(snapshot(path), b"new")
    finally:
        os.umask(before)
    assert (path.read_bytes(), mode(path)) == (b"new", 0o600)
    assert strays(tmp_path) == []


def test_the_longest_name_is_no_hindrance(tmp_path: Path) -> None:
    path = tmp_path / ("\u20ac" * 85)
    replace(snapshot(path), b"new")
    replace(snapshot(path), b"newer")
    assert path.read_bytes() == b"newer"


def test_a_file_is_removed(file: Path) -> None:
    replace(snapshot(file), None)
    assert list(file.parent.iterdir()) == []


def in_place(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.write(b"theirs")


def by_rename(path: Path) -> None:
    path.with_name("theirs").write_bytes(b"theirs")
    path.with_name("theirs").replace(path)


@pytest.mark.parametrize("write", [in_place, by_rename])
@pytest.mark.parametrize("new", [b"new", None], ids=["replaced", "removed"])
def test_what_was_changed_meanwhile_stays(file: Path, write: Callable[[Path], None], new: bytes | None) -> None:
    before = snapshot(file)
    write(file)
    with pytest.raises(Busy, match="was changed meanwhile"):
        replace(before, new)
    assert file.read_bytes() == b"theirs"
    assert strays(file.parent) == []


@pytest.mark.parametrize("new", [b"new", None], ids=["replaced", "removed"])
def test_what_was_removed_meanwhile_is_not_made_again(file: Path, new: bytes | None) -> None:
    before = snapshot(file)
    file.unlink()
    with pytest.raises(Busy):
        replace(before, new)
    assert list(file.parent.iterdir()) == []


def test_what_was_made_meanwhile_stays(file: Path) -> None:
    data = file.read_bytes()
    file.unlink()
    before = snapshot(file)
    file.write_bytes(data)
    with pytest.raises(Busy):
        replace(before, b"new")
    assert file.read_bytes() == data
    assert strays(file.parent) == []


def test_what_became_a_symlink_meanwhile_stays(tmp_path: Path, file: Path) -> None:
    before = snapshot(file)
    file.rename(tmp_path / "real")
    file.symlink_to("real")
    with pytest.raises(McpdError):
        replace(before, b"new")
    assert file.is_symlink()
    assert (tmp_path / "real").read_bytes() == b"old"
    assert strays(tmp_path) == []


def test_a_directory_that_became_a_symlink_meanwhile_is_not_followed(tmp_path: Path) -> None:
    for name in ("client", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "client.json").write_bytes(b"old")
    before = snapshot(tmp_path / "client/client.json")
    (tmp_path / "client").rename(tmp_path / "moved")
    (tmp_path / "client").symlink_to("elsewhere")
    with pytest.raises(McpdError):
        replace(before, b"new")
    assert [path.read_bytes() for path in sorted(tmp_path.rglob("client.json"))] == [b"old", b"old"]


@pytest.fixture
def interrupted(file: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Path], None]], None]:
    """Lets a client act between the last look at its file and the exchange."""

    def arrange(act: Callable[[Path], None]) -> None:
        real = replacement._Change._rename

        def rename(change: Any, *args: Any) -> bool:
            monkeypatch.setattr(replacement._Change, "_rename", real)
            act(file)
            return real(change, *args)

        monkeypatch.setattr(replacement._Change, "_rename", rename)

    return arrange


@pytest.mark.parametrize("write", [in_place, by_rename])
@pytest.mark.parametrize("new", [b"new", None], ids=["replaced", "removed"])
def test_what_is_written_at_the_last_moment_stays(
    file: Path, interrupted: Callable[..., None], write: Callable[[Path], None], new: bytes | None
) -> None:
    interrupted(write)
    with pytest.raises(Busy, match="stays as it is"):
        replace(snapshot(file), new)
    assert file.read_bytes() == b"theirs"
    assert strays(file.parent) == []


@pytest.mark.parametrize("new", [b"new", None], ids=["replaced", "removed"])
def test_of_what_is_written_twice_at_the_last_moment_nothing_is_lost(
    file: Path, new: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = replacement._Change._rename
    contents = iter([b"first", b"second"])

    def rename(change: Any, *args: Any) -> bool:
        if content := next(contents, None):
            file.write_bytes(content)
        return real(change, *args)

    monkeypatch.setattr(replacement._Change, "_rename", rename)
    with pytest.raises(McpdError, match=r"written twice meanwhile.* kept as .*~tmp") as caught:
        replace(snapshot(file), new)
    assert not isinstance(caught.value, Busy)
    assert file.read_bytes() == b"second"
    (stray,) = strays(file.parent)
    assert stray in caught.value.message
    assert (file.parent / stray).read_bytes() == b"first"


def test_a_client_that_begins_to_write_to_the_new_file_keeps_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_leases(file)
    real, steps = replacement._Change._rename, iter(range(9))
    opened = []

    def rename(change: Any, *args: Any) -> bool:
        step = next(steps)
        if step == 0:
            file.write_bytes(b"first")
        elif step == 1:
            opened.append(file.open("r+b"))
        return real(change, *args)

    monkeypatch.setattr(replacement._Change, "_rename", rename)
    with pytest.raises(McpdError, match=r"written twice meanwhile.* kept as .*~tmp"):
        replace(snapshot(file), b"new")
    with opened[0] as stream:
        stream.write(b"second")
    assert file.read_bytes() == b"second"
    (stray,) = strays(file.parent)
    assert (file.parent / stray).read_bytes() == b"first"


@pytest.mark.parametrize("new", [b"new", None], ids=["replaced", "removed"])
def test_what_cannot_be_put_back_is_named(file: Path, new: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    real, steps = replacement._Change._rename, iter(range(9))

    def rename(change: Any, *args: Any) -> bool:
        if next(steps):
            raise OSError(errno.EIO, "Input/output error")
        file.write_bytes(b"theirs")
        return real(change, *args)

    monkeypatch.setattr(replacement._Change, "_rename", rename)
    with pytest.raises(McpdError, match=r"cannot be put back \(Input/output error\).* kept as .*~tmp") as caught:
        replace(snapshot(file), new)
    (stray,) = strays(file.parent)
    assert stray in caught.value.message
    assert (file.parent / stray).read_bytes() == b"theirs"


def test_what_is_made_at_the_last_moment_stays(file: Path, interrupted: Callable[..., None]) -> None:
    file.unlink()
    interrupted(lambda path: (path.write_bytes(b"theirs"), None)[1])
    with pytest.raises(Busy):
        replace(snapshot(file), b"new")
    assert file.read_bytes() == b"theirs"
    assert strays(file.parent) == []


@pytest.mark.parametrize("new", [b"new", None], ids=["replaced", "removed"])
def test_a_client_that_is_writing_is_not_disturbed(file: Path, new: bytes | None) -> None:
    skip_without_leases(file)
    with file.open("r+b") as stream:
        with pytest.raises(Busy):
            replace(snapshot(file), new)
        assert os.fstat(stream.fileno()).st_ino == file.stat().st_ino
        stream.write(b"theirs")
    assert file.read_bytes() == b"theirs"
    assert strays(file.parent) == []


def test_a_client_that_only_reads_is_no_hindrance(file: Path) -> None:
    with file.open("rb") as stream:
        replace(snapshot(file), b"new")
        assert stream.read() == b"old"
    assert file.read_bytes() == b"new"


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that knows neither exchange nor renaming without replacing."""
    monkeypatch.setattr(replacement._Change, "_rename", lambda *_: False)


@pytest.mark.usefixtures("plain")
def test_a_file_system_that_can_do_less_is_enough(tmp_path: Path, file: Path) -> None:
    before = snapshot(file)
    replace(before, b"new")
    assert (file.read_bytes(), mode(file)) == (b"new", 0o640)
    with pytest.raises(Busy):
        replace(before, b"newer")
    missing = snapshot(tmp_path / "other.json")
    replace(missing, b"made")
    with pytest.raises(Busy):
        replace(missing, b"made again")
    assert (tmp_path / "other.json").read_bytes() == b"made"
    replace(snapshot(file), None)
    assert [path.name for path in tmp_path.iterdir()] == ["other.json"]


@pytest.mark.parametrize("write", [in_place, by_rename])
@pytest.mark.parametrize("new", [b"new", None], ids=["replaced", "removed"])
def test_a_file_system_that_can_do_less_loses_nothing_either(
    file: Path, write: Callable[[Path], None], new: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, acts = os.fchmod if new is not None else os.rename, iter([write])

    def act(*args: Any, **options: Any) -> None:
        for each in acts:
            each(file)
        real(*args, **options)

    monkeypatch.setattr(replacement._Change, "_rename", lambda *_: False)
    monkeypatch.setattr(os, "fchmod" if new is not None else "rename", act)
    with pytest.raises(Busy):
        replace(snapshot(file), new)
    assert file.read_bytes() == b"theirs"
    assert strays(file.parent) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize(
    ("call", "exists"),
    [(call, exists) for call in ("write", "fsync", "fchmod") for exists in (True, False)] + [("setxattr", True)],
)
def test_a_disk_that_fails_leaves_the_old_file(
    file: Path, call: str, number: int, exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if call == "setxattr":
        try:
            os.setxattr(file, "user.test", b"x")
        except OSError:
            pytest.skip("no extended attributes on this file system")
    if not exists:
        file.unlink()
    before = snapshot(file)

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(McpdError, match=r"writing .*client.json") as caught:
            replace(before, b"new")
    assert isinstance(caught.value, NoSpace) is (number != errno.EIO)
    assert (file.read_bytes() if exists else file.exists()) == (b"old" if exists else False)
    assert strays(file.parent) == []


def test_a_directory_without_write_permission_leaves_the_old_file(file: Path) -> None:
    before = snapshot(file)
    file.parent.chmod(0o500)
    try:
        with ordinary(), pytest.raises(ReadOnly, match="Permission denied"):
            replace(before, b"new")
    finally:
        file.parent.chmod(0o700)
    assert file.read_bytes() == b"old"
    assert strays(file.parent) == []


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_content_is_replaced_whole(tmp_path_factory: pytest.TempPathFactory, old: bytes, new: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "file"
    path.write_bytes(old)
    replace(snapshot(path), new)
    assert path.read_bytes() == new
    assert [each.name for each in path.parent.iterdir()] == ["file"]
