# SPDX-License-Identifier: LGPL-2.1-or-later
"""Revisions that tools of git are given."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import InvalidArgument, NotFound
from mcpd.model import printable
from mcpd.servers.workstation.git.blame import BLAME
from mcpd.servers.workstation.git.branches import BRANCHES
from mcpd.servers.workstation.git.checkout import CHECKOUT
from mcpd.servers.workstation.git.diff import DIFF
from mcpd.servers.workstation.git.log import LOG, SHOW
from tests.unit.workstation.bench import Workbench
from tests.unit.workstation.git_parts import MadeRepository

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.servers.workstation.tool import Tool

pytestmark = pytest.mark.process

SEARCHES = (":/First", "HEAD^{/First}", "HEAD^{/First}~0", ":/!-x")
TAKE_REVISIONS = [
    (LOG, "revision"), (SHOW, "revision"), (DIFF, "revision"), (DIFF, "to"), (BLAME, "revision"),
    (BRANCHES, "contains"), (BRANCHES, "merged"), (BRANCHES, "not_merged"), (CHECKOUT, "revision"),
    (CHECKOUT, "start_point"),
]  # fmt: skip
NEEDED: dict[tuple[Tool, str], dict[str, Any]] = {
    (DIFF, "to"): {"revision": "HEAD"},
    (BLAME, "revision"): {"path": "file"},
    (CHECKOUT, "start_point"): {"revision": "new", "create": True},
}


@pytest.mark.parametrize("revision", ["HEAD..nowhere", "nowhere..HEAD", "no\nwhere..HEAD"])
async def test_the_one_of_two_revisions_that_is_none_is_named(tmp_path: Path, revision: str) -> None:
    with Workbench(tmp_path) as bench:
        MadeRepository.make(bench.root).commit()
        wrong = next(each for each in revision.split("..") if each != "HEAD")
        with pytest.raises(NotFound, match=f"^'{re.escape(printable(wrong))}' names no commit"):
            await bench.call(DIFF, revision=revision)
        with pytest.raises(InvalidArgument, match=r"^'@\{upstream\}"):
            await bench.call(DIFF, revision="HEAD..@{upstream}")


@pytest.mark.parametrize(
    ("tool", "argument"), TAKE_REVISIONS, ids=[f"{tool.name} {argument}" for tool, argument in TAKE_REVISIONS]
)
async def test_a_search_by_a_pattern_is_no_revision(tmp_path: Path, tool: Tool, argument: str) -> None:
    with Workbench(tmp_path) as bench:
        made = MadeRepository.make(bench.root)
        made.commit("First", {"file": "1\n"})
        ranges = ("HEAD..:/First", "HEAD...:/First") if argument == "revision" and tool is not BLAME else ()
        for revision in (*SEARCHES, *ranges):
            with pytest.raises(InvalidArgument, match=r"^'(:/|HEAD).*git_log with grep"):
                await bench.call(tool, **{**NEEDED.get((tool, argument), {}), argument: revision})


async def test_a_path_in_a_commit_may_look_like_a_search(tmp_path: Path) -> None:
    with Workbench(tmp_path) as bench:
        MadeRepository.make(bench.root).commit(files={"a:/b": "1\n"})
        assert (await bench.call(SHOW, revision="HEAD:a:/b")).content[0]["text"] == "1\n"


async def test_a_name_is_quoted_as_it_is_shown(tmp_path: Path) -> None:
    with Workbench(tmp_path) as bench:
        MadeRepository.make(bench.root).commit()
        for revision, quoted in (("a\\b", "'a\\b'"), ("a\nb", "'a\\nb'")):
            with pytest.raises(NotFound) as fault:
                await bench.call(LOG, revision=revision)
            assert fault.value.message.startswith(f"{quoted} names no commit")
