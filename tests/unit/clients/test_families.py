# SPDX-License-Identifier: LGPL-2.1-or-later
"""The data files of several directories: higher ones replace lower ones, broken ones hide nothing."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from family_parts import MINIMAL, SHIPPED, machine, write

from mcpd.clients.errors import ClientNotFound, error_object
from mcpd.clients.families import MAX_DATA, MAX_FILES, Families
from mcpd.errors import NotFound
from mcpd.paths import Scope

if TYPE_CHECKING:
    from pathlib import Path

CURSOR = MINIMAL.replace("Some client", "My cursor")


def settle(directory: Path) -> None:
    """Make the files of *directory* old enough for a change to show."""
    past = time.time() - 10
    for path in directory.iterdir():
        os.utime(path, (past, past))


def ids(families: Families) -> list[str]:
    return [family.id for family in families.all()]


def test_no_directory_is_no_family(tmp_path: Path) -> None:
    families = Families([tmp_path / "none", tmp_path / "neither/here"])
    assert (families.all(), families.problems) == ([], [])


def test_the_families_of_the_source_document_come_first(tmp_path: Path) -> None:
    write(tmp_path, zed=MINIMAL, cursor=MINIMAL, aider=MINIMAL, claude_desktop=MINIMAL)
    assert ids(Families([tmp_path])) == ["claude-desktop", "cursor", "aider", "zed"]


def test_a_higher_directory_replaces_a_family_as_a_whole(tmp_path: Path) -> None:
    write(tmp_path / "low", cursor=MINIMAL + "[limitations]\nmax_servers = 3\n", zed=MINIMAL)
    write(tmp_path / "high", cursor=CURSOR, mine=MINIMAL)
    families = Families([tmp_path / "low", tmp_path / "high"])
    assert ids(families) == ["cursor", "mine", "zed"]
    assert families.get("cursor").name == "My cursor"
    assert families.get("cursor").limitations.max_servers is None


def test_scopes_have_their_directories(tmp_path: Path) -> None:
    paths = machine(tmp_path)
    write(paths.vendor_clients, vendors=MINIMAL, cursor=CURSOR.replace("My", "Vendor's"))
    write(paths.system.clients, admins=MINIMAL, cursor=CURSOR.replace("My", "Administrator's"))
    write(paths.user.clients, mine=MINIMAL, cursor=CURSOR)
    user, system = Families.of(paths, Scope.USER), Families.of(paths, Scope.SYSTEM)
    assert set(ids(user)) == {*SHIPPED, "vendors", "admins", "mine"}
    assert set(ids(system)) == {*SHIPPED, "vendors", "admins"}
    assert user.get("cursor").name == "My cursor"
    assert system.get("cursor").name == "Administrator's cursor"
    assert user.get("zed") == SHIPPED["zed"]


def test_an_unknown_client_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    write(tmp_path, zed=MINIMAL, cursor=MINIMAL)
    with pytest.raises(ClientNotFound) as caught:
        Families([tmp_path]).get("unknown-client")
    assert isinstance(caught.value, NotFound)
    assert error_object(caught.value) == {
        "error": "client_not_found",
        "message": "Client 'unknown-client' not found",
        "available_clients": ["cursor", "zed"],
    }


@pytest.mark.parametrize("client_id", ["", "../zed", "zed.toml", "ZED", "zed\n", "\x1b[31m", "\udc80", "z" * 100_000])
def test_no_text_is_a_client_by_accident(tmp_path: Path, client_id: str) -> None:
    write(tmp_path, zed=MINIMAL)
    with pytest.raises(ClientNotFound) as caught:
        Families([tmp_path]).get(client_id)
    assert len(caught.value.message) < 1000
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "name: Field required"),
        (b"name = ", "Invalid value"),
        (b"\xff\xfe", "not UTF-8"),
        (b"\x00", "Invalid statement"),
        (MINIMAL.encode() + b"[detect]\ncolour = 1\n", "detect.colour: Extra inputs"),
        (b"name = 1979-05-27\n" + MINIMAL.replace('name = "Some client"', "").encode(), "name:"),
        (b"x = " + b"[" * 20_000, "nested too deeply"),
        (b"x = " + b"9" * 20_000, "digits"),
        (b"#" * (MAX_DATA + 1), f"larger than {MAX_DATA} bytes"),
    ],
    ids=["empty", "cut", "latin", "nul", "unknown", "date", "deep", "digits", "huge"],
)
def test_a_broken_file_is_a_problem_and_hides_nothing(tmp_path: Path, content: bytes, said: str) -> None:
    write(tmp_path / "low", cursor=MINIMAL, zed=MINIMAL)
    write(tmp_path / "high", mine=MINIMAL)
    (tmp_path / "high/cursor.toml").write_bytes(content)
    families = Families([tmp_path / "low", tmp_path / "high"])
    assert ids(families) == ["cursor", "mine", "zed"]
    assert families.get("cursor").name == "Some client"
    (problem,) = families.problems
    assert problem.startswith(f"{tmp_path}/high/cursor.toml: ")
    assert said in problem


@pytest.mark.parametrize("name", ["Zed", "-zed", "z" * 65, "a b", "zéd"])
def test_a_file_of_a_wrong_name_is_a_problem(tmp_path: Path, name: str) -> None:
    write(tmp_path, zed=MINIMAL)
    (tmp_path / f"{name}.toml").write_text(MINIMAL)
    families = Families([tmp_path])
    assert ids(families) == ["zed"]
    assert "is not the id of a client" in families.problems[0]


def test_other_files_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, zed=MINIMAL)
    for name in (".hidden.toml", "zed.toml~", "zed.toml.rpmnew", "README", ".toml"):
        (tmp_path / name).write_text("broken")
    families = Families([tmp_path])
    assert (ids(families), families.problems) == (["zed"], [])


def test_a_link_into_nothing_is_a_problem_of_that_file_only(tmp_path: Path) -> None:
    write(tmp_path, zed=MINIMAL)
    (tmp_path / "aider.toml").symlink_to(tmp_path / "nowhere")
    (tmp_path / "warp.toml").symlink_to(tmp_path / "zed.toml")
    families = Families([tmp_path])
    assert ids(families) == ["warp", "zed"]
    assert families.problems == [f"reading {tmp_path}/aider.toml: No such file or directory"]


@pytest.mark.parametrize("kind", ["fifo", "directory", "device"])
def test_what_is_no_file_is_a_problem(tmp_path: Path, kind: str) -> None:
    write(tmp_path, zed=MINIMAL)
    path = tmp_path / "cursor.toml"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    families = Families([tmp_path])
    assert ids(families) == ["zed"]
    assert families.problems == [f"{path}: not a regular file"]


def test_a_directory_that_is_none_is_a_problem(tmp_path: Path) -> None:
    write(tmp_path / "low", zed=MINIMAL)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    families = Families([tmp_path / "low", tmp_path / "dangling"])
    assert ids(families) == ["zed"]
    assert families.problems == [f"reading {tmp_path}/dangling: No such file or directory"]


def test_a_directory_of_too_many_files_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "low", zed=MINIMAL)
    (tmp_path / "high").mkdir()
    for number in range(MAX_FILES + 1):
        (tmp_path / f"high/c{number}.toml").touch()
    families = Families([tmp_path / "low", tmp_path / "high"])
    assert ids(families) == ["zed"]
    assert families.problems == [f"{tmp_path}/high: more than {MAX_FILES} files, so none of them is used"]


def test_changes_are_seen(tmp_path: Path) -> None:
    directory = tmp_path / "clients"
    families = Families([directory])
    assert ids(families) == []
    write(directory, zed=MINIMAL)
    settle(directory)
    assert ids(families) == ["zed"]
    write(directory, cursor=MINIMAL)
    assert ids(families) == ["cursor", "zed"]
    settle(directory)
    assert families.get("cursor").name == "Some client"
    write(directory, cursor=CURSOR)
    assert families.get("cursor").name == "My cursor"
    (directory / "zed.toml").unlink()
    assert ids(families) == ["cursor"]
    write(directory, cursor="broken")
    assert ids(families) == []
    assert len(families.problems) == 1
    write(directory, cursor=MINIMAL)
    assert (ids(families), families.problems) == (["cursor"], [])


def test_a_file_that_was_just_written_is_read_again(tmp_path: Path) -> None:
    """Two changes within one tick of the clock of the file system may look like one."""
    write(tmp_path, cursor=CURSOR)
    families = Families([tmp_path])
    path = tmp_path / "cursor.toml"
    before = path.stat()
    assert families.get("cursor").name == "My cursor"
    path.write_text(CURSOR.replace("My", "No"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert families.get("cursor").name == "No cursor"


def test_nothing_is_read_again_as_long_as_nothing_changes(tmp_path: Path) -> None:
    write(tmp_path, zed=MINIMAL, cursor=MINIMAL)
    settle(tmp_path)
    families = Families([tmp_path])
    first = families.get("zed")
    assert families.get("zed") is first
    assert families.all()[1] is first
