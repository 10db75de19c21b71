# SPDX-License-Identifier: LGPL-2.1-or-later
"""git_status on repositories that git has made."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidArgument, NotAuthorized, NotFound
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.git.status import STATUS, StatusResult
from tests.unit.workstation.git_parts import MadeRepository

if TYPE_CHECKING:
    from tests.unit.workstation.bench import Workbench

pytestmark = pytest.mark.process


async def status(bench: Workbench, **arguments: Any) -> StatusResult:
    return cast("StatusResult", (await bench.call(STATUS, **arguments)).result)


async def text(bench: Workbench, **arguments: Any) -> str:
    return str((await bench.call(STATUS, **arguments)).content[0]["text"])


async def test_a_repository_without_any_commit(bench: Workbench, repository: MadeRepository) -> None:
    found = await status(bench)
    assert found.model_dump(exclude_none=True) == {
        "repository": str(bench.root),
        "branch": "main",
        "detached": False,
        "stashes": 0,
        "clean": True,
        "staged": [],
        "unstaged": [],
        "conflicts": [],
        "untracked": [],
        "truncated": False,
    }
    assert await text(bench) == "## No commits yet on main\nNothing to commit, the work tree is clean.\n"


async def test_staged_unstaged_and_untracked_files_are_told_apart(bench: Workbench, repository: MadeRepository) -> None:
    commit = repository.commit(files={"both": "1\n", "gone": "2\n", "removed": "3\n", "kept": "4\n"})
    repository.write("both", "staged\n")
    repository.git("add", "both")
    repository.write("both", "and more\n")
    repository.git("rm", "--quiet", "gone")
    (bench.root / "removed").unlink()
    repository.write("new", "5\n")
    repository.git("add", "new")
    repository.write("unknown", "6\n")
    repository.write("directory/unknown", "7\n")
    found = await status(bench)
    assert {entry.path: entry.status for entry in found.staged} == {
        "both": "modified",
        "gone": "deleted",
        "new": "added",
    }
    assert {entry.path: entry.status for entry in found.unstaged} == {"both": "modified", "removed": "deleted"}
    assert found.untracked == ["directory/", "unknown"]
    assert (found.commit, found.clean, found.ignored) == (commit, False, None)
    assert (await text(bench)).splitlines() == [
        "## main",
        "MM both",
        "D  gone",
        "A  new",
        " D removed",
        "?? directory/",
        "?? unknown",
    ]


async def test_a_rename_tells_the_old_name(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"old name": "the same\n" * 10})
    repository.git("mv", "old name", "new name")
    (entry,) = (await status(bench)).staged
    assert (entry.path, entry.old_path, entry.status) == ("new name", "old name", "renamed")
    assert "R  old name -> new name" in await text(bench)


async def test_renames_are_found_whatever_the_repository_says(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"old": "the same\n" * 10})
    repository.git("config", "status.renames", "false")
    repository.git("config", "status.showUntrackedFiles", "no")
    repository.git("config", "status.relativePaths", "true")
    repository.git("mv", "old", "new")
    repository.write("unknown", "")
    found = await status(bench)
    assert [entry.status for entry in found.staged] == ["renamed"]
    assert found.untracked == ["unknown"]


async def test_untracked_files_as_asked(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={".gitignore": "*.o\n"})
    repository.write("d/one", "")
    repository.write("d/two", "")
    repository.write("a.o", "")
    assert (await status(bench, untracked="all")).untracked == ["d/one", "d/two"]
    assert (await status(bench, untracked="no")).clean
    assert (await status(bench, ignored=True)).ignored == ["a.o"]


async def test_only_some_paths(bench: Workbench, repository: MadeRepository) -> None:
    for name in ("a/x", "b/x", "*"):
        repository.write(name, "")
    assert (await status(bench, paths=["a"])).untracked == ["a/"]
    assert (await status(bench, paths=[str(bench.root / "b")])).untracked == ["b/"]
    assert (await status(bench, paths=["*"])).untracked == ["*"]
    assert (await status(bench, paths=[":(exclude)a"])).untracked == []


async def test_anything_in_the_repository_names_it(bench: Workbench, repository: MadeRepository) -> None:
    repository.write("a/b/file", "")
    for path in ("a/b", "a/b/file", str(bench.root)):
        found = await status(bench, path=path, untracked="all")
        assert (found.repository, found.untracked) == (str(bench.root), ["a/b/file"])


async def test_the_upstream(bench: Workbench) -> None:
    origin = MadeRepository.make(bench.root / "origin")
    origin.commit("one")
    origin.git("clone", "--quiet", ".", "../clone")
    clone = MadeRepository(bench.root / "clone")
    clone.git("config", "user.name", "x")
    origin.commit("two")
    clone.commit("three")
    clone.commit("four")
    clone.git("fetch", "--quiet")
    found = await status(bench, path="clone")
    assert (found.branch, found.upstream, found.ahead, found.behind) == ("main", "origin/main", 2, 1)
    assert (await text(bench, path="clone")).startswith("## main...origin/main [ahead 2, behind 1]\n")
    clone.git("config", "status.aheadBehind", "false")
    assert (await status(bench, path="clone")).ahead == 2
    clone.git("update-ref", "-d", "refs/remotes/origin/main")
    gone = await status(bench, path="clone")
    assert (gone.upstream, gone.upstream_gone, gone.ahead) == ("origin/main", True, None)
    assert "[gone]" in await text(bench, path="clone")


async def test_a_detached_head(bench: Workbench, repository: MadeRepository) -> None:
    commit = repository.commit()
    repository.git("checkout", "--quiet", "--detach")
    found = await status(bench)
    assert (found.branch, found.detached, found.commit) == (None, True, commit)
    assert (await text(bench)).startswith("## HEAD (no branch)\n")


async def test_a_merge_with_conflicts(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"both": "1\n", "theirs": "1\n"})
    repository.git("checkout", "--quiet", "-b", "other")
    repository.write("both", "other\n")
    repository.git("rm", "--quiet", "theirs")
    repository.commit("other")
    repository.git("checkout", "--quiet", "main")
    repository.commit(files={"both": "main\n", "theirs": "main\n"})
    repository.git("merge", "other", check=False)
    found = await status(bench)
    assert {each.path: each.status for each in found.conflicts} == {
        "both": "both modified",
        "theirs": "deleted by them",
    }
    assert (found.operation, found.clean) == ("merge", False)
    assert "## merge under way" in await text(bench)


@pytest.mark.parametrize("operation", ["cherry-pick", "rebase"])
async def test_what_is_under_way(bench: Workbench, repository: MadeRepository, operation: str) -> None:
    repository.commit(files={"file": "1\n"})
    repository.git("checkout", "--quiet", "-b", "other")
    repository.commit(files={"file": "other\n"})
    repository.git("checkout", "--quiet", "main")
    repository.commit(files={"file": "main\n"})
    assert (await status(bench)).operation is None
    repository.git(operation, "other", check=False)
    assert (await status(bench)).operation == operation


async def test_a_rebase_that_stopped_without_a_conflict(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit("one")
    repository.commit("two")
    repository.git("rebase", "--quiet", "--exec", "false", "HEAD~1", check=False)
    assert (await status(bench)).operation == "rebase"


async def test_patches_that_are_applied_and_a_search_by_halves(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"file": "1\n"})
    repository.commit(files={"file": "2\n"})
    patch = repository.git("format-patch", "-1", "--stdout").replace("+2\n", "+3\n")
    repository.git("bisect", "start")
    assert (await status(bench)).operation == "bisect"
    repository.git("am", stdin=patch.encode(), check=False)
    assert (await status(bench)).operation == "am"


async def test_stashes_are_counted(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"file": "1\n"})
    for content in ("2\n", "3\n"):
        repository.write("file", content)
        repository.git("stash", "push", "--quiet")
    assert (await status(bench)).stashes == 2


async def test_a_submodule(bench: Workbench) -> None:
    part = MadeRepository.make(bench.root / "part")
    part.commit(files={"file": "1\n"})
    whole = MadeRepository.make(bench.root / "whole")
    whole.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "../part", "sub")
    whole.commit()
    inner = MadeRepository(whole.path / "sub")
    inner.write("untracked", "")
    assert (await status(bench, path="whole")).clean
    inner.commit()
    found = await status(bench, path="whole")
    assert [(entry.path, entry.status, entry.submodule) for entry in found.unstaged] == [("sub", "modified", True)]
    assert (await status(bench, path="whole/sub")).repository == str(inner.path)


async def test_names_that_are_no_utf8_and_names_with_escapes(bench: Workbench, repository: MadeRepository) -> None:
    (bench.root / os.fsdecode(b"a\xff\nb\x1b[2J")).touch()
    found = await status(bench)
    assert found.untracked == ["a\ufffd\nb\x1b[2J"]
    assert "?? a\ufffd\\nb\\x1b[2J\n" in await text(bench)


async def test_more_entries_than_asked_for(bench: Workbench, repository: MadeRepository) -> None:
    for number in range(5):
        repository.write(f"{number}", "")
    found = await status(bench, limit=3)
    assert (found.untracked, found.truncated) == (["0", "1", "2"], True)
    assert not (await status(bench, limit=5)).truncated


async def test_nothing_is_written(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"file": "1\n"})
    index = bench.root / ".git" / "index"
    os.utime(bench.root / "file", (1, 1))
    before = index.read_bytes()
    assert (await status(bench)).clean
    assert index.read_bytes() == before


async def test_a_bare_repository_has_no_status(bench: Workbench) -> None:
    MadeRepository.make(bench.root / "bare.git", "--bare")
    with pytest.raises(InvalidArgument, match="bare"):
        await status(bench, path="bare.git")


async def test_no_repository(bench: Workbench) -> None:
    with pytest.raises(NotFound, match="git repository"):
        await status(bench)


async def test_nothing_outside_of_the_roots(bench: Workbench) -> None:
    MadeRepository.make(bench.directory / "elsewhere")
    with pytest.raises(NotAuthorized):
        await status(bench, path=str(bench.directory / "elsewhere"))


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", ""])
async def test_paths_that_lead_out(bench: Workbench, repository: MadeRepository, path: str) -> None:
    with pytest.raises(InvalidArgument):
        await status(bench, paths=[path])


@given(
    names=st.sets(
        st.binary(min_size=1, max_size=20).filter(lambda name: b"/" not in name and b"\0" not in name and name != b"."),
        max_size=6,
    )
)
async def test_whatever_files_are_called(
    bench: Workbench, tmp_path_factory: pytest.TempPathFactory, names: set[bytes]
) -> None:
    names -= {b"..", b".git", b".GIT"}
    repository = MadeRepository.make(bench.root / tmp_path_factory.mktemp("x").name)
    for name in names:
        (repository.path / os.fsdecode(name)).touch()
    found = await status(bench, path=repository.path.name)
    assert sorted(found.untracked) == sorted(shown_name(os.fsdecode(name)) for name in names)
