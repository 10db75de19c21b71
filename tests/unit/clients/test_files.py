# SPDX-License-Identifier: LGPL-2.1-or-later
"""A client's file: found, looked at, and replaced only if it still is what was read."""

from __future__ import annotations

import errno
import grp
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mcpd.files
from mcpd.clients import files
from mcpd.clients.files import (
    client_file,
    digest,
    make_directories,
    missing_directories,
    real_place,
    remove_directories,
    replace,
    settle,
    snapshot,
    temp_name,
)
from mcpd.errors import Busy, InvalidArgument, InvalidConfig, McpdError, NoSpace, NotSupported, ReadOnly
from mcpd.files import MAX_FILE
from tests.unit.clients.deployment_parts import family, ordinary, skip_without_leases, strays

if TYPE_CHECKING:
    from collections.abc import Callable


def test_the_first_file_that_exists_counts_else_the_usual(tmp_path: Path) -> None:
    first, second = family("continue").linux_locations(tmp_path, {})
    assert client_file(family("continue"), tmp_path, {}) == first
    second.parent.mkdir()
    second.write_text("")
    assert client_file(family("continue"), tmp_path, {}) == second
    first.symlink_to("nowhere")
    assert client_file(family("continue"), tmp_path, {}) == first


def test_a_file_that_is_named_counts_before_all(tmp_path: Path) -> None:
    given = tmp_path / "given.json"
    assert client_file(family(), tmp_path, {}, given) == given
    assert client_file(family("elsewhere"), tmp_path, {}, given) == given


def test_variables_move_files(tmp_path: Path) -> None:
    assert client_file(family("codex"), tmp_path, {}) == tmp_path / ".codex/config.toml"
    assert client_file(family("codex"), tmp_path, {"CODEX_HOME": "/x"}) == Path("/x/config.toml")
    assert client_file(family("vscode"), tmp_path, {"XDG_CONFIG_HOME": "/c"}) == Path("/c/Code/User/mcp.json")


def test_a_client_of_another_system_has_no_file_here(tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match=r"Elsewhere has no file on Linux; specify one with --file"):
        client_file(family("elsewhere"), tmp_path, {})


def test_the_directory_of_a_file_is_named_without_symlinks(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real/file").symlink_to("elsewhere")
    assert real_place(tmp_path / "link/file") == tmp_path / "real/file"
    assert real_place(tmp_path / "link/../real/./file") == tmp_path / "real/file"


def test_a_relative_name_is_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert real_place(Path("file")) == tmp_path / "file"


def test_symlinks_in_a_circle_are_no_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert real_place(tmp_path / "a/file").name == "file"


@pytest.mark.parametrize("name", ["", "/", "..", "x/..", "a\0b", "\udcff"], ids=ascii)
def test_what_is_no_name_of_a_file_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a valid file name"):
        real_place(Path(name))


def test_directories_are_made_below_the_home_and_removed_again(tmp_path: Path) -> None:
    missing = missing_directories(tmp_path / "a/b/c/file", tmp_path)
    assert missing == [tmp_path / "a", tmp_path / "a/b", tmp_path / "a/b/c"]
    make_directories(missing)
    make_directories(missing)
    assert [path.stat().st_mode & 0o777 for path in missing] == [0o700] * 3
    assert missing_directories(tmp_path / "a/b/c/file", tmp_path) == []
    (tmp_path / "a/theirs").write_text("")
    remove_directories(missing)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "theirs"]
    remove_directories([tmp_path / "gone"])


def test_directories_elsewhere_are_not_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="there is no directory"):
        missing_directories(tmp_path / "other/file", tmp_path / "home")
    assert missing_directories(tmp_path / "file", tmp_path / "home") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who alone could do that")
def test_root_leaves_no_files_of_its_own_with_users(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 65534, 65534)
    for name in ("file", "a/b/file"):
        with pytest.raises(
            InvalidConfig, match=r"directory owned by another user \(uid 65534\); run this as that user"
        ):
            missing_directories(home / name, home)
    assert list(home.iterdir()) == []


def test_a_home_behind_a_symlink_is_a_home(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "home").symlink_to("real")
    assert missing_directories(real_place(tmp_path / "home/a/file"), tmp_path / "home") == [tmp_path / "real/a"]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(McpdError, match=r"creating .*file/below"):
        make_directories([tmp_path / "file/below"])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "client.json"
    path.write_bytes(b"old")
    path.chmod(0o640)
    return path


def test_a_snapshot_says_what_the_file_is(file: Path) -> None:
    found = snapshot(file)
    assert (found.path, found.data, found.mode) == (file, b"old", 0o640)
    assert found.digest == digest(b"old")
    assert "old" not in repr(found).replace(str(file), "")


@pytest.mark.parametrize("name", ["missing.json", "no/directory/missing.json"])
def test_a_missing_file_is_no_fault(tmp_path: Path, name: str) -> None:
    found = snapshot(tmp_path / name)
    assert (found.data, found.mode, found.digest) == (None, 0o600, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["client.json", "nowhere"])
def test_a_symlink_is_refused_and_says_where_it_leads(tmp_path: Path, file: Path, target: str) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(target)
    with pytest.raises(InvalidConfig, match=rf"link.json: a symlink.*--file {tmp_path / target}"):
        snapshot(link)
    assert link.is_symlink()
    assert file.read_bytes() == b"old"


def test_a_directory_may_be_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "dotfiles/client.json").write_bytes(b"old")
    (tmp_path / ".client").symlink_to("dotfiles")
    found = snapshot(tmp_path / ".client/client.json")
    assert found.path == tmp_path / "dotfiles/client.json"
    replace(found, b"new")
    assert (tmp_path / ".client").is_symlink()
    assert (tmp_path / "dotfiles/client.json").read_bytes() == b"new"


@pytest.mark.parametrize("name", ["fifo", "socket", "directory", "/dev/zero"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    Path("directory").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pytest.raises(InvalidConfig, match="not a regular file"):
            snapshot(tmp_path / name)


def test_a_file_of_several_names_is_refused(tmp_path: Path, file: Path) -> None:
    (tmp_path / "other").hardlink_to(file)
    with pytest.raises(InvalidConfig, match=r"has 2 hard links.*replace it with a copy"):
        snapshot(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_a_file_of_somebody_else_is_refused(file: Path) -> None:
    os.chown(file, 65534, 65534)
    with pytest.raises(InvalidConfig, match=r"belongs to another user \(uid 65534\)"):
        snapshot(file)


def test_a_huge_file_is_refused_unread(file: Path) -> None:
    os.truncate(file, MAX_FILE + 1)
    with pytest.raises(InvalidConfig, match="larger than"):
        snapshot(file)
    os.truncate(file, MAX_FILE)
    assert len(snapshot(file).data or b"") == MAX_FILE


def test_a_file_that_may_not_be_read_says_so(file: Path) -> None:
    file.chmod(0)
    with ordinary(), pytest.raises(ReadOnly, match=r"client.json: Permission denied"):
        snapshot(file)


def test_a_file_below_a_file_is_a_fault(file: Path) -> None:
    with pytest.raises(McpdError, match="Not a directory"):
        snapshot(file / "below.json")


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
        f"{file}: belongs to the group 4321, which you are not a member of, so the new file cannot be given to it;"
        f" 'chgrp {own} {file}' changes it to your own group"
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
    with pytest.raises(Busy, match="was changed by another program in the meantime"):
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
        real = mcpd.files.rename_with

        def rename(*args: Any) -> bool:
            monkeypatch.setattr(files, "rename_with", real)
            act(file)
            return real(*args)

        monkeypatch.setattr(files, "rename_with", rename)

    return arrange


@pytest.mark.parametrize("write", [in_place, by_rename])
@pytest.mark.parametrize("new", [b"new", None], ids=["replaced", "removed"])
def test_what_is_written_at_the_last_moment_stays(
    file: Path, interrupted: Callable[..., None], write: Callable[[Path], None], new: bytes | None
) -> None:
    interrupted(write)
    with pytest.raises(Busy, match="was not replaced"):
        replace(snapshot(file), new)
    assert file.read_bytes() == b"theirs"
    assert strays(file.parent) == []


@pytest.mark.parametrize("new", [b"new", None], ids=["replaced", "removed"])
def test_of_what_is_written_twice_at_the_last_moment_nothing_is_lost(
    file: Path, new: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = mcpd.files.rename_with
    contents = iter([b"first", b"second"])

    def rename(*args: Any) -> bool:
        if content := next(contents, None):
            file.write_bytes(content)
        return real(*args)

    monkeypatch.setattr(files, "rename_with", rename)
    with pytest.raises(McpdError, match=r"written twice by other programs in the meantime.* kept as .*~tmp") as caught:
        replace(snapshot(file), new)
    assert not isinstance(caught.value, Busy)
    assert file.read_bytes() == b"second"
    (stray,) = strays(file.parent)
    assert stray in caught.value.message
    assert (file.parent / stray).read_bytes() == b"first"


def test_a_client_that_begins_to_write_to_the_new_file_keeps_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_leases(file)
    real, steps = mcpd.files.rename_with, iter(range(9))
    opened = []

    def rename(*args: Any) -> bool:
        step = next(steps)
        if step == 0:
            file.write_bytes(b"first")
        elif step == 1:
            opened.append(file.open("r+b"))
        return real(*args)

    monkeypatch.setattr(files, "rename_with", rename)
    with pytest.raises(McpdError, match=r"written twice by other programs in the meantime.* kept as .*~tmp"):
        replace(snapshot(file), b"new")
    with opened[0] as stream:
        stream.write(b"second")
    assert file.read_bytes() == b"second"
    (stray,) = strays(file.parent)
    assert (file.parent / stray).read_bytes() == b"first"


@pytest.mark.parametrize("new", [b"new", None], ids=["replaced", "removed"])
def test_what_cannot_be_put_back_is_named(file: Path, new: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    real, steps = mcpd.files.rename_with, iter(range(9))

    def rename(*args: Any) -> bool:
        if next(steps):
            raise OSError(errno.EIO, "Input/output error")
        file.write_bytes(b"theirs")
        return real(*args)

    monkeypatch.setattr(files, "rename_with", rename)
    with pytest.raises(McpdError, match=r"cannot be restored \(Input/output error\).* kept as .*~tmp") as caught:
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
    monkeypatch.setattr(files, "rename_with", lambda *_: False)


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

    monkeypatch.setattr(files, "rename_with", lambda *_: False)
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


@pytest.mark.parametrize(
    ("now", "left", "happened", "then"),
    [
        (b"old", None, False, b"old"),
        (b"old", b"new", False, b"old"),
        (b"old", b"ne", False, b"old"),
        (b"old", b"", False, b"old"),
        (b"new", b"old", True, b"new"),
        (b"new", None, True, b"new"),
        (b"new", b"new", True, b"new"),
        (b"new", b"theirs", False, b"theirs"),
        (b"theirs", None, None, b"theirs"),
        (b"theirs", b"old", True, b"theirs"),
        (b"theirs", b"new", False, b"theirs"),
        (None, None, None, None),
    ],
)
def test_a_replacement_that_was_killed_is_settled(
    file: Path, now: bytes | None, left: bytes | None, happened: bool | None, then: bytes | None
) -> None:
    temp = temp_name(file)
    file.unlink()
    if now is not None:
        file.write_bytes(now)
    if left is not None:
        file.with_name(temp).write_bytes(left)
    assert settle(file, temp, digest(b"old"), digest(b"new"), b"new") is happened
    assert (file.read_bytes() if file.exists() else None) == then
    assert strays(file.parent) == []


@pytest.mark.parametrize("new", [b"new", None], ids=["replaced", "removed"])
def test_a_client_that_still_writes_to_the_old_file_gets_it_back(file: Path, new: bytes | None) -> None:
    skip_without_leases(file)
    left = file.with_name(temp_name(file))
    with file.open("r+b") as stream:
        file.rename(left)
        if new is not None:
            file.write_bytes(new)
        assert settle(file, left.name, digest(b"old"), digest(new), new) is False
        stream.write(b"theirs")
    assert file.read_bytes() == b"theirs"
    assert strays(file.parent) == []


@pytest.mark.parametrize(
    ("now", "left", "happened", "then"),
    [
        (b"old", None, False, b"old"),
        (None, b"old", True, None),
        (None, None, True, None),
        (None, b"theirs", False, b"theirs"),
        (b"theirs", b"old", True, b"theirs"),
    ],
)
def test_a_removal_that_was_killed_is_settled(
    file: Path, now: bytes | None, left: bytes | None, happened: bool, then: bytes | None
) -> None:
    temp = temp_name(file)
    file.unlink()
    if now is not None:
        file.write_bytes(now)
    if left is not None:
        file.with_name(temp).write_bytes(left)
    assert settle(file, temp, digest(b"old"), None, None) is happened
    assert (file.read_bytes() if file.exists() else None) == then
    assert strays(file.parent) == []


def test_what_nobody_can_tell_from_an_edit_is_never_dropped(file: Path) -> None:
    temp = temp_name(file)
    file.write_bytes(b"theirs, later")
    file.with_name(temp).write_bytes(b"theirs")
    assert settle(file, temp, digest(b"old"), digest(b"new"), b"new") is None
    assert file.read_bytes() == b"theirs, later"
    assert file.with_name(temp).read_bytes() == b"theirs"


def test_settling_where_the_directory_is_gone_tells_nothing(tmp_path: Path) -> None:
    assert settle(tmp_path / "gone/file", ".x~tmp", digest(b"old"), digest(b"new"), b"new") is None
