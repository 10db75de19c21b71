# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tools for one repository write to no other, whatever a build has put into its git directory."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import McpdError
from mcpd.servers.workstation.git.checkout import CHECKOUT
from mcpd.servers.workstation.git.committing import ADD, COMMIT
from mcpd.servers.workstation.git.stashing import STASH
from tests.unit.workstation.git_directories import planted, runs
from tests.unit.workstation.git_parts import MadeRepository
from tests.unit.workstation.test_commands_and_git import shell, state

if TYPE_CHECKING:
    from mcpd.servers.workstation.tool import Tool
    from tests.unit.workstation.bench import Workbench

pytestmark = pytest.mark.process

MADE = "git init -q . && git config user.name x && git config user.email x@example.org && echo 1 >file"
EVIL = {
    "beside it": ("group/evil", "../../project/.git"),
    "around it": (".", "../group/project/.git"),
    "in it": ("group/project/evil", "../../.git"),
}
"""Where another repository is, and the way from its git directory to the one of the project."""


@pytest.fixture
def project(bench: Workbench) -> MadeRepository:
    made = MadeRepository.make(bench.root / "group/project")
    made.commit(files={"file": "one\n"})
    return made


async def attempt(bench: Workbench, tool: Tool, **arguments: Any) -> None:
    with suppress(McpdError):
        await bench.call(tool, **arguments)


@pytest.mark.parametrize(("evil", "victim"), EVIL.values(), ids=EVIL)
async def test_a_message_is_not_written_to_the_configuration_of_another(
    bench: Workbench, project: MadeRepository, evil: str, victim: str
) -> None:
    before = state(project.path / ".git")
    (bench.root / evil).mkdir(exist_ok=True)
    done = await shell(bench, f"{MADE} && ln -s {victim}/config .git/COMMIT_EDITMSG", directory=evil)
    assert done.code == 0
    command = f"touch '{planted(bench.root)}'; false"
    await bench.call(ADD, path=evil, paths=["file"])
    await attempt(bench, COMMIT, path=evil, message=f'[core]\n\tbare = false\n\tfsmonitor = "{command}"\n')
    assert state(project.path / ".git") == before
    assert not runs(bench.root, below=project.path)


async def test_a_git_directory_around_another_is_no_way_to_its_configuration(
    bench: Workbench, project: MadeRepository
) -> None:
    before = state(project.path / ".git")
    (bench.root / "evil").mkdir()
    script = """
        git init -q --separate-git-dir=made . && git config user.name x && git config user.email x@example.org &&
        mv made/* ../group && echo 'gitdir: ../group' >.git &&
        ln -s project/.git/config ../group/COMMIT_EDITMSG
    """
    assert (await shell(bench, script, directory="evil")).code == 0
    await attempt(bench, COMMIT, path="evil", message="[core]\n", allow_empty=True)
    assert state(project.path / ".git") == before


async def test_a_working_tree_of_another_is_no_way_to_its_configuration(
    bench: Workbench, project: MadeRepository
) -> None:
    before = state(project.path / ".git")
    (bench.root / "evil").mkdir()
    script = """
        mkdir other && echo 'gitdir: other' >.git && echo ../../group/project/.git >other/commondir &&
        cp ../group/project/.git/HEAD other && ln -s ../../group/project/.git/config other/COMMIT_EDITMSG
    """
    assert (await shell(bench, script, directory="evil")).code == 0
    await attempt(bench, COMMIT, path="evil", message="[core]\n", allow_empty=True)
    assert state(project.path / ".git") == before


async def test_a_log_is_not_written_to_a_hook_of_another(bench: Workbench, project: MadeRepository) -> None:
    hook = project.path / ".git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    before = state(project.path / ".git")
    (bench.root / "evil").mkdir()
    script = f"{MADE} && git add file && git commit -qm 1 && rm -r .git/logs && mkdir .git/logs"
    link = "ln -s ../../../group/project/.git/hooks/pre-commit .git/logs/HEAD"
    assert (await shell(bench, f"{script} && {link}", directory="evil")).code == 0
    await attempt(bench, CHECKOUT, path="evil", revision="other", create=True)
    (bench.root / "evil/file").write_text("2\n")
    await attempt(bench, STASH, path="evil", action="push")
    assert state(project.path / ".git") == before
