# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which project a directory belongs to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from mcpd.servers.ensembles.directories import nearest_project
from mcpd.servers.ensembles.settings import DIRECTORY

if TYPE_CHECKING:
    from pathlib import Path

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def test_the_innermost_counts(tmp_path: Path) -> None:
    inner = tmp_path / "outer/inner"
    (inner / "below").mkdir(parents=True)
    (tmp_path / "outer" / DIRECTORY).mkdir()
    assert nearest_project(inner / "below") == tmp_path / "outer"
    (inner / DIRECTORY).mkdir()
    assert nearest_project(inner / "below") == inner


def test_a_file_is_no_project_and_a_symlink_of_ones_own_is(tmp_path: Path) -> None:
    (tmp_path / "outer/inner").mkdir(parents=True)
    (tmp_path / "outer" / "real").mkdir()
    (tmp_path / "outer" / DIRECTORY).symlink_to("real")
    (tmp_path / "outer/inner" / DIRECTORY).write_text("")
    assert nearest_project(tmp_path / "outer/inner") == tmp_path / "outer"


@as_root
@pytest.mark.parametrize("kind", ["directory", "symlink to one of the caller's"])
def test_what_somebody_else_has_made_is_no_project(tmp_path: Path, kind: str) -> None:
    (tmp_path / DIRECTORY).mkdir()
    theirs = tmp_path / "shared" / DIRECTORY
    theirs.parent.mkdir()
    if kind == "directory":
        theirs.mkdir()
    else:
        theirs.symlink_to(tmp_path / DIRECTORY)
    os.chown(theirs, NOBODY, NOBODY, follow_symlinks=False)
    assert nearest_project(theirs.parent) == tmp_path
