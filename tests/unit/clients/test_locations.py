# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which file a client reads, and the directories that it lies in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from deployment_parts import family

from mcpd.cli.clients.locations import (
    client_file,
    make_directories,
    missing_directories,
    real_place,
    remove_directories,
)
from mcpd.errors import InvalidArgument, InvalidConfig, McpdError, NotSupported


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
    with pytest.raises(NotSupported, match=r"Elsewhere has no file on Linux; --file"):
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
    with pytest.raises(InvalidArgument, match="is not the name of a file"):
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
        with pytest.raises(InvalidConfig, match=r"directory of another user \(uid 65534\); run this as that user"):
            missing_directories(home / name, home)
    assert list(home.iterdir()) == []


def test_a_home_behind_a_symlink_is_a_home(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "home").symlink_to("real")
    assert missing_directories(real_place(tmp_path / "home/a/file"), tmp_path / "home") == [tmp_path / "real/a"]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(McpdError, match=r"making .*file/below"):
        make_directories([tmp_path / "file/below"])
