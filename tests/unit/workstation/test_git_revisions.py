# SPDX-License-Identifier: LGPL-2.1-or-later
"""Revisions that tools of git are given."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import InvalidArgument, NotFound
from mcpd.model import printable
from mcpd.servers.workstation.git.diff import DIFF
from tests.unit.workstation.bench import Workbench
from tests.unit.workstation.git_parts import MadeRepository

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("revision", ["HEAD..nowhere", "nowhere..HEAD", "no\nwhere..HEAD"])
async def test_the_one_of_two_revisions_that_is_none_is_named(tmp_path: Path, revision: str) -> None:
    with Workbench(tmp_path) as bench:
        MadeRepository.make(bench.root).commit()
        wrong = next(each for each in revision.split("..") if each != "HEAD")
        with pytest.raises(NotFound, match=f"^{re.escape(repr(printable(wrong)))} names no commit"):
            await bench.call(DIFF, revision=revision)
        with pytest.raises(InvalidArgument, match=r"^'@\{upstream\}"):
            await bench.call(DIFF, revision="HEAD..@{upstream}")
