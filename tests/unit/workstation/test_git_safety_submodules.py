# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a hostile submodule cannot make git do when it looks at the repository around it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import McpdError
from mcpd.servers.workstation.git.blame import BLAME
from mcpd.servers.workstation.git.checkout import CHECKOUT
from mcpd.servers.workstation.git.committing import ADD, COMMIT
from mcpd.servers.workstation.git.diff import DIFF
from mcpd.servers.workstation.git.log import LOG, SHOW
from mcpd.servers.workstation.git.stashing import STASH
from mcpd.servers.workstation.git.status import STATUS
from tests.unit.workstation.bench import Workbench
from tests.unit.workstation.git_attacks import Act, call, canary, commit, everything, project, push, switch
from tests.unit.workstation.git_parts import MadeRepository

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def submodule(made: MadeRepository, command: str, *, kind: str) -> MadeRepository:
    """A submodule whose own configuration names *command*, with a change that git would look at."""
    inner = MadeRepository.make(made.path / "sub")
    inner.commit(files={"file": "1\n", ".gitattributes": "file filter=evil\n"})
    if kind != "unnamed":
        made.write(".gitmodules", '[submodule "the \\"one\\""]\npath = sub\nurl = ./sub\nignore = none\n')
    made.git("-c", "advice.addEmbeddedRepo=false", "add", ".")
    made.git("commit", "--quiet", "-m", "Submodule")
    made.git("branch", "other", "HEAD~1")
    made.git("branch", "same")
    if kind == "only in the index":
        (made.path / ".gitmodules").unlink()
    if kind == "only in HEAD":
        made.git("rm", "--quiet", "--cached", ".gitmodules")
        (made.path / ".gitmodules").unlink()
    inner.git("config", "filter.evil.clean", f"{command}; cat")
    inner.write("file", "2\n")
    made.write("file", "two\n")
    return inner


SUBMODULE_ACTS: dict[str, Act] = {
    "add all": call(ADD, all=True),
    "add update": call(ADD, update=True),
    "add it": call(ADD, paths=["sub"]),
    "add a path": call(ADD, paths=["file"]),
    "commit": commit,
    "commit nothing": call(COMMIT, message="Hello"),
    "commit all": everything,
    "commit it": call(COMMIT, message="Hello", paths=["sub"]),
    "switch": switch,
    "switch to the same": call(CHECKOUT, revision="same"),
    "switch by force": call(CHECKOUT, revision="other", force=True),
    "restore": call(CHECKOUT, paths=["."]),
    "restore by force": call(CHECKOUT, paths=["."], revision="HEAD", force=True),
    "stash": push,
    "stash all": call(STASH, action="push", include_untracked=True),
    "status": call(STATUS),
    "diff": call(DIFF),
    "diff to HEAD": call(DIFF, revision="HEAD"),
    "show": call(SHOW, revision="HEAD"),
    "log": call(LOG),
    "blame": lambda bench: bench.call(BLAME, path="project/file"),
}


@pytest.mark.parametrize("kind", ["named", "unnamed", "only in the index", "only in HEAD"])
@pytest.mark.parametrize("act", SUBMODULE_ACTS)
async def test_nothing_is_run_that_a_submodule_names(tmp_path: Path, act: str, kind: str) -> None:
    with Workbench(tmp_path) as bench:
        made = project(bench)
        inner = submodule(made, f"touch '{canary(bench)}'", kind=kind)
        made.git("status", "--ignore-submodules=none")
        assert canary(bench).exists(), "the attack is one"
        canary(bench).unlink()
        inner.write("file", "3\n")
        with suppress(McpdError):
            await SUBMODULE_ACTS[act](bench)
        assert not canary(bench).exists()


@pytest.mark.parametrize("kind", ["named", "unnamed"])
async def test_nothing_of_a_submodule_is_run_when_a_stash_is_taken_back(tmp_path: Path, kind: str) -> None:
    with Workbench(tmp_path) as bench:
        made = project(bench)
        inner = submodule(made, f"touch '{canary(bench)}'", kind=kind)
        await bench.call(STASH, path="project", action="push")
        canary(bench).unlink(missing_ok=True)
        inner.write("file", "4\n")
        await bench.call(STASH, path="project", action="show")
        await bench.call(STASH, path="project", action="pop")
        assert not canary(bench).exists()
