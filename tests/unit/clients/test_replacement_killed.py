# SPDX-License-Identifier: LGPL-2.1-or-later
"""A replacement that was killed is settled: nothing of the client's is dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from deployment_parts import skip_without_leases, strays

from mcpd.cli.clients.replacement import settle, temp_name
from mcpd.cli.clients.target import digest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "client.json"
    path.write_bytes(b"old")
    return path


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
