# SPDX-License-Identifier: LGPL-2.1-or-later
"""What was deployed is taken back byte for byte, one deployment after the other."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

import pytest
from deployment_parts import BY_HAND, ENTRY, NATIVE, OTHER, SECRET, User, family

from mcpd.errors import InvalidArgument, InvalidConfig, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(path.read_bytes() + b"\n"),
        lambda path: path.unlink(),
        lambda path: path.chmod(0o666),
    ],
    ids=["edited", "removed", "chmod"],
)
def test_an_undo_restores_only_what_is_as_it_was_left(user: User, change: Callable[[Path], object]) -> None:
    path = user.servers(mine=BY_HAND)
    before = path.read_bytes()
    user.deploy({"github": ENTRY})
    change(path)
    now = (path.read_bytes(), mode(path)) if path.exists() else None
    with pytest.raises(InvalidConfig, match=r"was changed since the deployment\. --force restores"):
        user.undo()
    assert ((path.read_bytes(), mode(path)) if path.exists() else None) == now
    done = user.undo(force=True)
    assert path.read_bytes() == before
    assert mode(path) == 0o644
    assert done.undone_at is not None
    if now is not None and now[0] != before and done.saved is not None:
        assert done.saved.read_bytes() == now[0]


def test_what_a_forced_undo_replaces_is_kept(user: User) -> None:
    path = user.servers()
    user.deploy({"github": ENTRY})
    path.write_bytes(b"precious")
    done = user.undo(force=True)
    assert done.saved is not None
    assert done.saved.read_bytes() == b"precious"
    assert mode(done.saved) == 0o600
    for number in range(5):
        user.deploy({f"s{number}": ENTRY})
    assert done.saved.read_bytes() == b"precious"


def test_a_forced_undo_of_a_new_file_keeps_what_was_written_into_it(user: User) -> None:
    user.deploy({"github": ENTRY})
    user.file().write_bytes(b"precious")
    done = user.undo(force=True)
    assert not user.file().exists()
    assert done.saved is not None
    assert done.saved.read_bytes() == b"precious"


def test_an_undo_may_take_back_the_servers_alone(user: User) -> None:
    path = user.servers(mine=BY_HAND)
    user.deploy({"github": ENTRY, "time": OTHER})
    found = json.loads(path.read_bytes())
    found["projects"] = {"/home/me": {"history": ["hello"]}}
    found["mcpServers"]["other"] = BY_HAND
    user.write(found)
    user.undo(keep_edits=True)
    del found["mcpServers"]["github"], found["mcpServers"]["time"]
    assert json.loads(path.read_bytes()) == found


def test_an_undo_of_the_servers_alone_brings_back_what_was_taken_over(user: User) -> None:
    path = user.servers(github=BY_HAND, time=BY_HAND)
    user.deploy({"github": ENTRY}, take_over=["github"])
    user.write({**json.loads(path.read_bytes()), "theme": "dark"})
    user.undo(keep_edits=True)
    assert json.loads(path.read_bytes()) == {"mcpServers": {"github": BY_HAND, "time": BY_HAND}, "theme": "dark"}


def test_an_undo_of_the_servers_alone_stops_at_a_server_that_was_changed(user: User) -> None:
    user.servers()
    user.deploy({"github": ENTRY, "time": OTHER})
    user.servers(github=BY_HAND, time=OTHER)
    with pytest.raises(InvalidConfig, match=r"'github': changed since the deployment, too"):
        user.undo(keep_edits=True)
    assert user.read() == {"github": BY_HAND, "time": OTHER}
    before = user.file().read_bytes()
    done = user.undo(keep_edits=True, force=True)
    assert user.read() == {}
    assert done.saved is not None
    assert done.saved.read_bytes() == before


def test_an_undo_of_the_servers_alone_has_nothing_to_take_out_of_a_file_that_is_gone(user: User) -> None:
    project = user.home / "project/mcp.json"
    project.parent.mkdir()
    project.write_bytes(b"{}")
    user.deploy({"github": ENTRY}, file=project)
    user.deploy({"github": OTHER}, file=project)
    project.unlink()
    project.parent.rmdir()
    with pytest.raises(InvalidConfig, match="was changed since"):
        user.undo(file=project)
    assert [user.undo(file=project, keep_edits=True).number for _ in range(2)] == [2, 1]
    assert user.deployments.drift(family(), project)[0].status == "none"
    assert not project.parent.exists()


def test_an_undo_of_the_servers_alone_looks_where_they_were_put(user: User) -> None:
    """The description of a client may name another place since."""
    path = user.servers()
    user.deploy({"github": ENTRY})
    user.write({**json.loads(path.read_bytes()), "theme": "dark"})
    elsewhere = family().file.model_copy(update={"key": ("elsewhere",)})
    user.deployments.undo(family().model_copy(update={"file": elsewhere}), keep_edits=True)
    assert json.loads(path.read_bytes()) == {"mcpServers": {}, "theme": "dark"}


def test_an_undo_of_what_was_restored_by_hand_is_content(user: User) -> None:
    path = user.servers()
    before, inode = path.read_bytes(), path.stat().st_ino
    user.deploy({"github": ENTRY})
    path.write_bytes(before)
    inode = path.stat().st_ino
    done = user.undo()
    assert (done.undone_at is not None, done.saved) == (True, None)
    assert path.stat().st_ino == inode


def test_each_undo_goes_one_further_back(user: User) -> None:
    path = user.servers()
    contents = [path.read_bytes()]
    for number in range(4):
        user.deploy({f"s{number}": ENTRY})
        contents.append(path.read_bytes())
    for content in contents[-2::-1]:
        user.undo()
        assert path.read_bytes() == content
    with pytest.raises(NotFound, match="no deployment"):
        user.undo()
    user.deploy({"again": ENTRY})
    user.undo()
    assert path.read_bytes() == contents[0]


def test_a_deployment_after_an_undo_knows_what_is_ours(user: User) -> None:
    user.servers()
    user.deploy({"one": ENTRY})
    user.deploy({"two": ENTRY})
    user.undo()
    user.deploy({"three": ENTRY})
    assert user.read() == {"three": ENTRY}


def test_what_is_ours_is_known_however_much_was_undone(user: User) -> None:
    user.servers()
    for number in range(13):
        user.deploy({"ours": ENTRY, f"s{number}": ENTRY})
    for _ in range(10):
        user.undo()
    with pytest.raises(NotFound):
        user.undo()
    assert set(user.read()) == {"ours", "s2"}
    assert user.deployments.plan(family(), user.file(), {}).removed == ["ours", "s2"]


def test_a_deployment_that_stands_is_never_forgotten(user: User) -> None:
    path = user.servers()
    before = path.read_bytes()
    user.deploy({"stands": ENTRY})
    for number in range(12):
        user.deploy({"stands": ENTRY, f"s{number}": ENTRY})
        user.undo()
    assert len(user.deployments.history("cursor")) == 10
    user.undo()
    assert path.read_bytes() == before


def test_the_last_ten_are_remembered_and_no_more_contents_than_they_need(user: User) -> None:
    user.servers()
    for number in range(14):
        user.deploy({f"s{number}": ENTRY})
    history = user.deployments.history("cursor")
    assert [each.number for each in history] == list(range(14, 4, -1))
    assert [each.servers for each in history] == [(f"s{number}",) for number in range(13, 3, -1)]
    times = [each.deployed_at for each in history]
    assert times == sorted(times, reverse=True)
    assert all(each.backup is not None and each.backup.is_file() for each in history)
    # Ten files as they were, eleven sets of entries.
    assert len(user.backups()) == 21
    assert history[0].to_json()["servers"] == ["s13"]


def test_backups_are_the_users_alone(user: User) -> None:
    user.servers(mine=BY_HAND)
    before = os.umask(0)
    try:
        user.deploy({"github": ENTRY})
    finally:
        os.umask(before)
    assert mode(user.state) == 0o700
    assert mode(user.state / "backups") == 0o700
    modes = {path.name: mode(path) for path in user.state.rglob("*") if path.is_file()}
    assert set(modes.values()) == {0o600}, modes
    assert SECRET not in (user.state / "cursor.json").read_text()


def test_files_have_histories_of_their_own(user: User) -> None:
    user.servers()
    project = user.home / "project/.cursor/mcp.json"
    user.deploy({"github": ENTRY})
    user.deploy({"time": OTHER}, file=project)
    assert user.deployments.managed("cursor", project) == {"time": OTHER}
    assert len(user.deployments.history("cursor")) == 2
    assert [each.file for each in user.deployments.history("cursor", project)] == [project]
    assert user.undo(file=user.file()).file == user.file()
    assert project.exists()
    assert user.undo().file == project
    assert not (user.home / "project").exists()


def test_a_file_has_one_history_by_whatever_name_its_directory_has(user: User) -> None:
    path = user.servers()
    (user.home / "link").symlink_to(".cursor")
    user.deploy({"github": ENTRY}, file=user.home / "link/mcp.json")
    assert user.deployments.managed("cursor", path) == {"github": ENTRY}
    user.deploy({}, file=user.home / "link/../.cursor/mcp.json")
    assert user.read() == {}


def test_clients_know_nothing_of_each_other(user: User) -> None:
    user.servers()
    user.write(NATIVE["vscode"], "vscode")
    user.deploy({"github": ENTRY})
    user.deploy({"github": ENTRY}, "vscode")
    assert user.deployments.history("codex") == []
    (user.state / "cursor.json").write_bytes(b"{")
    with pytest.raises(InvalidConfig, match=r"cursor.json: not JSON.*Move .*cursor.json away"):
        user.undo()
    user.undo("vscode")
    assert user.file("vscode").read_bytes() == NATIVE["vscode"]
    assert (user.state / "cursor.json").read_bytes() == b"{"
    # What it may need is not thrown away.
    assert len(user.backups()) >= 2


@pytest.mark.parametrize("client_id", ["", "../x", "A", "a/b", ".lock", "x" * 65])
def test_what_is_no_client_has_no_history(user: User, client_id: str) -> None:
    with pytest.raises(InvalidArgument, match="is not the id of a client"):
        user.deployments.history(client_id)


def test_a_backup_that_is_gone_is_named(user: User) -> None:
    path = user.servers()
    backup = user.deploy({"github": ENTRY}).backup
    assert backup is not None
    now = path.read_bytes()
    backup.write_bytes(b"damaged")
    with pytest.raises(InvalidConfig, match=rf"{backup.name}: is damaged.*Move .*cursor.json away"):
        user.undo()
    backup.unlink()
    with pytest.raises(InvalidConfig, match=rf"{backup.name}: is missing"):
        user.undo(force=True)
    assert path.read_bytes() == now


def test_a_history_whose_entries_are_gone_names_the_way_out(user: User) -> None:
    user.servers()
    user.deploy({"github": ENTRY})
    for path in (user.state / "backups").iterdir():
        path.unlink()
    assert len(user.deployments.history("cursor")) == 1
    with pytest.raises(InvalidConfig, match=r"is missing.*Move .*cursor.json away"):
        user.deploy({"time": OTHER})
    (user.state / "cursor.json").unlink()
    user.deploy({"time": OTHER})
    assert user.read() == {"github": ENTRY, "time": OTHER}
