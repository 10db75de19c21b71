# SPDX-License-Identifier: LGPL-2.1-or-later
"""Directories that somebody else renames and replaces while they are read."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from mcpd.install.trees import overlap, pin


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path.resolve() / "shared/project"
    made.mkdir(parents=True)
    return made


@pytest.mark.parametrize("part", ["shared", "shared/project"])
def test_no_link_is_followed_anywhere_on_the_way(place: Path, part: str) -> None:
    top = place.parents[1]
    (top / part).rename(top / "aside")
    (top / part).symlink_to(top / "aside")
    assert place.is_dir()
    with pytest.raises(NotADirectoryError):
        pin(place)


def test_what_is_pinned_stays_whatever_takes_its_name(place: Path) -> None:
    (place / "mine").touch()
    pinned = pin(place)
    place.rename(place.with_name("aside"))
    place.mkdir()
    (place / "other").touch()
    assert [entry.name for entry in os.scandir(pinned.fd)] == ["mine"]
    os.close(pinned.fd)


def test_a_refused_directory_leaves_nothing_open(place: Path) -> None:
    gc.collect()  # else descriptors of earlier tests may be closed meanwhile
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(FileNotFoundError):
        pin(place / "missing/too")
    os.close(pin(place).fd)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_an_overlap_is_seen_whatever_name_a_mount_gives(place: Path) -> None:
    pinned, alias = pin(place), Path("/mnt/alias")
    os.close(pinned.fd)
    (place / "below").mkdir()
    for own in (place, place.parent, place / "below", place / "missing"):
        assert overlap(place, (), [own]) == own
        assert overlap(alias, pinned.way, [own]) == own
    beside = place.with_name("beside")
    beside.mkdir()
    assert overlap(place, pinned.way, [beside, place.parent / "missing"]) is None
