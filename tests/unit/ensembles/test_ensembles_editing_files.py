# SPDX-License-Identifier: LGPL-2.1-or-later
"""A changed ensemble takes the place of what was read, of nothing else, and the old one is kept beside it."""

from __future__ import annotations

import fcntl
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import Busy, InvalidArgument, McpdError, NotFound, ReadOnly
from mcpd.servers.ensembles.editing.writing import check_tier, write
from mcpd.servers.ensembles.engine.types import Origin

if TYPE_CHECKING:
    from pathlib import Path

OLD, NEW = "name: old\n", "name: neu – ä\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "sample.yaml"
    file.write_text(OLD)
    file.chmod(0o640)
    return file


def test_the_old_file_is_kept_with_its_mode(path: Path) -> None:
    backup = write(path, OLD, NEW, backup=True)
    assert backup is not None
    assert re.fullmatch(r"sample\.yaml\.bak-\d{8}-\d{6}", backup.name)
    assert (path.read_text(), backup.read_text()) == (NEW, OLD)
    assert {stat.S_IMODE(each.stat().st_mode) for each in (path, backup)} == {0o640}
    assert set(path.parent.iterdir()) == {path, backup}


def test_without_a_backup_there_is_only_the_new_file(path: Path) -> None:
    assert write(path, OLD, NEW, backup=False) is None
    assert list(path.parent.iterdir()) == [path]


def test_backups_of_one_second_do_not_replace_one_another(path: Path) -> None:
    backups = [
        write(path, OLD if number % 2 == 0 else NEW, NEW if number % 2 == 0 else OLD, backup=True)
        for number in range(6)
    ]
    assert [each.read_text() for each in backups if each is not None] == [OLD, NEW] * 3


def test_what_somebody_else_has_written_stays(path: Path) -> None:
    for text in ("name: theirs\n", "name: olD\n", ""):
        path.write_text(text)
        with pytest.raises(Busy, match="changed meanwhile"):
            write(path, OLD, NEW, backup=True)
        assert path.read_text() == text
        assert list(path.parent.iterdir()) == [path]


def test_of_two_that_write_at_once_one_does(path: Path) -> None:
    def one(number: int) -> bool:
        try:
            write(path, OLD, f"name: n{number}\n", backup=False)
        except Busy:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(one, range(16))) == 1
    assert list(path.parent.iterdir()) == [path]


def test_while_another_process_changes_it_it_is_busy(path: Path) -> None:
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(Busy, match="another call"):
            write(path, OLD, NEW, backup=False)
    assert path.read_text() == OLD


def test_a_symlink_is_not_written_through(path: Path) -> None:
    link = path.with_name("link.yaml")
    link.symlink_to(path)
    with pytest.raises(InvalidArgument, match="symlink"):
        write(link, OLD, NEW, backup=True)
    assert link.is_symlink()
    assert path.read_text() == OLD


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.yaml"
    os.mkfifo(fifo)
    with pytest.raises(InvalidArgument):
        write(fifo, OLD, NEW, backup=False)
    with pytest.raises(NotFound):
        write(tmp_path / "none.yaml", OLD, NEW, backup=False)
    with pytest.raises(McpdError):
        write(tmp_path / "none" / "none.yaml", OLD, NEW, backup=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anything")
def test_what_may_not_be_written_is_read_only(path: Path) -> None:
    path.chmod(0o444)
    with pytest.raises(ReadOnly):
        write(path, OLD, NEW, backup=False)
    path.chmod(0o644)
    path.parent.chmod(0o555)
    try:
        with pytest.raises(ReadOnly):
            write(path, OLD, NEW, backup=True)
    finally:
        path.parent.chmod(0o755)
    assert path.read_text() == OLD


def test_what_came_with_a_package_is_read_only(path: Path) -> None:
    with pytest.raises(ReadOnly, match="copy"):
        check_tier(Origin("shipped", path, path.parent, None))
    check_tier(Origin("user", path, path.parent, None))
