# SPDX-License-Identifier: LGPL-2.1-or-later
"""A client's file is read as it is, if it is one that may be replaced."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest
from deployment_parts import ordinary

from mcpd.cli.clients.replacement import replace
from mcpd.cli.clients.target import digest, snapshot
from mcpd.errors import InvalidArgument, InvalidConfig, McpdError, ReadOnly
from mcpd.store.files import MAX_FILE

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "client.json"
    path.write_bytes(b"old")
    path.chmod(0o640)
    return path


def test_a_snapshot_says_what_the_file_is(file: Path) -> None:
    found = snapshot(file)
    assert (found.path, found.data, found.mode) == (file, b"old", 0o640)
    assert (found.uid, found.gid) == (os.geteuid(), file.stat().st_gid)
    assert found.digest == digest(b"old")
    assert "old" not in repr(found).replace(str(file), "")


@pytest.mark.parametrize("name", ["missing.json", "no/directory/missing.json"])
def test_a_missing_file_is_no_fault(tmp_path: Path, name: str) -> None:
    found = snapshot(tmp_path / name)
    assert (found.data, found.mode, found.digest) == (None, 0o600, None)
    assert list(tmp_path.iterdir()) == []


def test_a_symlink_is_refused_and_says_where_it_leads(tmp_path: Path, file: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(file.name)
    with pytest.raises(InvalidConfig, match=rf"link.json: a symlink.*--file {file}"):
        snapshot(link)
    assert link.is_symlink()
    assert file.read_bytes() == b"old"


def test_a_symlink_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to("nowhere")
    with pytest.raises(InvalidConfig, match="a symlink"):
        snapshot(link)


def test_a_directory_may_be_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "dotfiles/client.json").write_bytes(b"old")
    (tmp_path / ".client").symlink_to("dotfiles")
    found = snapshot(tmp_path / ".client/client.json")
    assert found.path == tmp_path / "dotfiles/client.json"
    replace(found, b"new")
    assert (tmp_path / ".client").is_symlink()
    assert (tmp_path / "dotfiles/client.json").read_bytes() == b"new"


def test_a_file_of_several_names_is_refused(tmp_path: Path, file: Path) -> None:
    (tmp_path / "other").hardlink_to(file)
    with pytest.raises(InvalidConfig, match=r"one of 2 names.*make it a file of its own"):
        snapshot(file)


def test_a_fifo_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "client.json")
    with pytest.raises(InvalidConfig, match="not a regular file"):
        snapshot(tmp_path / "client.json")


def test_a_directory_and_a_socket_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        for name in ("socket", "."):
            with pytest.raises(InvalidConfig, match="not a regular file"):
                snapshot(tmp_path / name if name != "." else tmp_path)


def test_a_device_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="not a regular file"):
        snapshot(tmp_path.__class__("/dev/zero"))


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


@pytest.mark.parametrize("name", ["", "..", "a\0b"], ids=["empty", "parent", "nul"])
def test_what_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgument, match="not the name of a file"):
        snapshot(tmp_path.__class__(name))


def test_a_file_below_a_file_is_a_fault(file: Path) -> None:
    with pytest.raises(McpdError, match="Not a directory"):
        snapshot(file / "below.json")
