# SPDX-License-Identifier: LGPL-2.1-or-later
"""git_branches and git_current_branch on repositories that git has made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from mcpd.errors import NotFound
from mcpd.servers.workstation.git.branches import BRANCHES, CURRENT_BRANCH, BranchesResult, CurrentBranchResult
from tests.unit.workstation.git_parts import TIME, MadeRepository

if TYPE_CHECKING:
    from tests.unit.workstation.bench import Workbench

pytestmark = pytest.mark.process


@pytest.fixture
def clone(bench: Workbench) -> MadeRepository:
    """One that has a commit more and one less than where it is from."""
    origin = MadeRepository.make(bench.root / "origin")
    origin.commit("one")
    origin.git("branch", "other")
    origin.git("clone", "--quiet", ".", "../clone")
    made = MadeRepository(bench.root / "clone")
    origin.commit("two")
    made.commit("three")
    made.git("fetch", "--quiet")
    return made


async def branches(bench: Workbench, **arguments: Any) -> BranchesResult:
    return cast("BranchesResult", (await bench.call(BRANCHES, **arguments)).result)


async def names(bench: Workbench, **arguments: Any) -> list[str]:
    return [branch.name for branch in (await branches(bench, **arguments)).branches]


async def current(bench: Workbench, **arguments: Any) -> CurrentBranchResult:
    return cast("CurrentBranchResult", (await bench.call(CURRENT_BRANCH, **arguments)).result)


async def text(bench: Workbench, **arguments: Any) -> str:
    return str((await bench.call(CURRENT_BRANCH, **arguments)).content[0]["text"])


async def test_local_branches(bench: Workbench, repository: MadeRepository) -> None:
    commit = repository.commit("Ünïcode")
    repository.git("branch", "topic/größe")
    answer = await bench.call(BRANCHES)
    about = {"remote": False, "commit": commit, "date": TIME, "subject": "Ünïcode"}
    assert answer.result.model_dump(exclude_none=True) == {
        "repository": str(bench.root),
        "current": "main",
        "detached": False,
        "branches": [
            {"name": "main", "current": True, **about},
            {"name": "topic/größe", "current": False, **about},
        ],
        "truncated": False,
    }
    assert answer.content[0]["text"] == f"* main {commit[:10]} Ünïcode\n  topic/größe {commit[:10]} Ünïcode\n"


async def test_remote_branches_and_upstreams(bench: Workbench, clone: MadeRepository) -> None:
    assert await names(bench, path="clone") == ["main"]
    assert await names(bench, path="clone", remotes=True) == ["origin/HEAD", "origin/main", "origin/other"]
    assert await names(bench, path="clone", all=True) == ["main", "origin/HEAD", "origin/main", "origin/other"]
    answer = await bench.call(BRANCHES, path="clone", all=True)
    main, head, *_ = cast("BranchesResult", answer.result).branches
    assert (main.upstream, main.ahead, main.behind, main.upstream_gone) == ("origin/main", 1, 1, None)
    assert (head.stands_for, head.remote) == ("origin/main", True)
    assert " [origin/main: ahead 1, behind 1] three\n" in answer.content[0]["text"]
    assert "  origin/HEAD -> origin/main\n" in answer.content[0]["text"]


async def test_branches_by_commit(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit("one")
    repository.git("branch", "old")
    second = repository.commit("two")
    repository.git("tag", "-m", "A tag", "v2")
    assert await names(bench, contains=second) == ["main"]
    assert await names(bench, contains="v2") == ["main"]
    assert await names(bench, merged="old") == ["old"]
    assert await names(bench, not_merged="old") == ["main"]


async def test_the_newest_first(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit("one", GIT_COMMITTER_DATE="2020-01-01T00:00:00+00:00")
    repository.git("branch", "a")
    repository.commit("two")
    assert await names(bench) == ["a", "main"]
    assert await names(bench, sort="date") == ["main", "a"]


async def test_more_branches_than_asked_for(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit()
    for name in ("a", "b"):
        repository.git("branch", name)
    found = await branches(bench, limit=2)
    assert ([branch.name for branch in found.branches], found.truncated) == (["a", "b"], True)
    assert not (await branches(bench, limit=3)).truncated


async def test_before_the_first_commit(bench: Workbench, repository: MadeRepository) -> None:
    found = await branches(bench)
    assert (found.current, found.branches) == ("main", [])
    head = await current(bench)
    assert (head.branch, head.unborn, head.commit, head.detached) == ("main", True, None, False)
    assert await text(bench) == "main (no commits yet)\n"


async def test_the_current_branch(bench: Workbench, repository: MadeRepository) -> None:
    commit = repository.commit()
    repository.git("checkout", "--quiet", "-b", "topic/one")
    repository.git("branch", "topic/one-more")
    head = await current(bench)
    assert (head.branch, head.commit, head.unborn, head.upstream) == ("topic/one", commit, False, None)
    assert await text(bench) == "topic/one\n"


async def test_a_current_branch_with_an_upstream(bench: Workbench, clone: MadeRepository) -> None:
    head = await current(bench, path="clone")
    assert (head.upstream, head.ahead, head.behind) == ("origin/main", 1, 1)
    assert await text(bench, path="clone") == "main [origin/main: ahead 1, behind 1]\n"
    clone.git("reset", "--quiet", "--hard", "origin/main")
    head = await current(bench, path="clone")
    assert (head.ahead, head.behind) == (0, 0)
    clone.git("update-ref", "-d", "refs/remotes/origin/main")
    head = await current(bench, path="clone")
    assert (head.upstream, head.upstream_gone, head.ahead) == ("origin/main", True, None)
    assert await text(bench, path="clone") == "main [origin/main: gone]\n"


async def test_a_detached_head(bench: Workbench, repository: MadeRepository) -> None:
    commit = repository.commit()
    repository.git("checkout", "--quiet", "--detach")
    head = await current(bench)
    assert (head.branch, head.detached, head.commit, head.unborn) == (None, True, commit, False)
    assert await text(bench) == f"HEAD is detached at {commit}\n"
    answer = await bench.call(BRANCHES)
    assert cast("BranchesResult", answer.result).detached
    assert answer.content[0]["text"].startswith("* (HEAD detached)\n  main ")


async def test_a_branch_that_is_called_head_is_not_head(bench: Workbench, repository: MadeRepository) -> None:
    commit = repository.commit("one")
    repository.git("update-ref", "refs/heads/HEAD", commit)
    second = repository.commit("two")
    head = await current(bench)
    assert (head.branch, head.commit, head.detached) == ("main", second, False)


async def test_a_bare_repository(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit()
    repository.git("clone", "--quiet", "--bare", ".", "bare.git")
    assert await names(bench, path="bare.git") == ["main"]
    assert (await current(bench, path="bare.git")).branch == "main"


async def test_another_working_tree_has_its_own_branch(bench: Workbench) -> None:
    repository = MadeRepository.make(bench.root / "one")
    repository.commit()
    repository.git("worktree", "add", "--quiet", "-b", "two", "../two")
    assert (await current(bench, path="one")).branch == "main"
    assert (await current(bench, path="two")).branch == "two"
    assert await names(bench, path="two") == ["main", "two"]


@pytest.mark.parametrize("revision", ["nowhere", "--format=x", "HEAD~9"])
async def test_what_is_no_commit(bench: Workbench, repository: MadeRepository, revision: str) -> None:
    repository.commit()
    with pytest.raises(NotFound, match="names no commit"):
        await branches(bench, contains=revision)
