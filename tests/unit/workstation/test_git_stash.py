# SPDX-License-Identifier: LGPL-2.1-or-later
"""git_stash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import InvalidArgument, McpdError, NotFound
from mcpd.servers.workstation.git.stashing import STASH, StashResult
from tests.unit.workstation.bench import Workbench
from tests.unit.workstation.git_parts import MadeRepository

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path) as made:
        yield made


@pytest.fixture
def made(bench: Workbench) -> MadeRepository:
    repository = MadeRepository.make(bench.root / "project")
    repository.commit("First", {"one": "1\n", "two": "1\n"})
    return repository


async def stash(bench: Workbench, action: str, **arguments: Any) -> StashResult:
    answer = await bench.call(STASH, path="project", action=action, **arguments)
    assert isinstance(answer.result, StashResult)
    return answer.result


async def test_changes_are_put_aside_and_taken_back(bench: Workbench, made: MadeRepository) -> None:
    made.write("one", "2\n")
    pushed = await stash(bench, "push", message="-half done: $(x)")
    assert (pushed.saved, made.status()) == (True, [])
    assert [(each.index, each.commit, each.message) for each in pushed.stashes] == [
        (0, made.head("stash"), "On main: -half done: $(x)")
    ]
    popped = await stash(bench, "pop")
    assert (popped.dropped, popped.conflicts, popped.stashes) == (True, None, [])
    assert made.status() == [" M one"]


async def test_nothing_to_put_aside_is_no_error(bench: Workbench, made: MadeRepository) -> None:
    made.write("new")
    result = await stash(bench, "push")
    assert (result.saved, result.commit, result.stashes) == (False, None, [])
    assert made.status() == ["?? new"]


async def test_untracked_files_go_along_if_asked(bench: Workbench, made: MadeRepository) -> None:
    made.write("new/file", "x")
    made.write("one", "2\n")
    assert (await stash(bench, "push", include_untracked=True)).saved
    assert made.status() == []
    assert not (made.path / "new").exists()
    await stash(bench, "apply")
    assert made.status() == [" M one", "?? new/file"]


async def test_untracked_files_go_along_beside_a_submodule(bench: Workbench, made: MadeRepository) -> None:
    inner = MadeRepository.make(made.path / "sub")
    inner.commit(files={"file": "1\n"})
    made.git("-c", "advice.addEmbeddedRepo=false", "add", "sub")
    made.git("commit", "--quiet", "-m", "Submodule")
    inner.write("file", "2\n")
    made.write("new", "x")
    made.write("one", "2\n")
    made.write("two", "2\n")
    made.git("add", "two")
    assert (await stash(bench, "push", include_untracked=True)).saved
    assert (made.path / "sub" / "file").read_text() == "2\n"
    assert made.git("status", "--porcelain", "--ignore-submodules=dirty") == ""
    assert (await stash(bench, "pop", restore_index=True)).dropped
    assert made.git("status", "--porcelain", "--ignore-submodules=dirty").splitlines() == [" M one", "M  two", "?? new"]


async def test_what_is_staged_stays_with_keep_index_and_comes_back_staged(
    bench: Workbench, made: MadeRepository
) -> None:
    # Later versions of git would stage it in any case then.
    made.git("config", "stash.index", "true")
    made.write("one", "2\n")
    made.git("add", "one")
    await stash(bench, "push")
    await stash(bench, "pop")
    assert made.status() == [" M one"]
    made.git("add", "one")
    made.write("two", "2\n")
    await stash(bench, "push", keep_index=True)
    assert made.status() == ["M  one"]
    made.git("reset", "--quiet", "--hard")
    await stash(bench, "apply", restore_index=True)
    assert made.status() == ["M  one", " M two"]


async def test_each_is_named_by_its_number(bench: Workbench, made: MadeRepository) -> None:
    for number in range(3):
        made.write("one", f"{number + 5}\n")
        await stash(bench, "push", message=f"number {number}")
    listed = (await stash(bench, "list")).stashes
    assert [(each.index, each.message[-1]) for each in listed] == [(0, "2"), (1, "1"), (2, "0")]
    dropped = await stash(bench, "drop", index=1)
    assert (dropped.commit, dropped.dropped) == (listed[1].commit, True)
    assert [each.message[-1] for each in dropped.stashes] == ["2", "0"]
    await stash(bench, "apply", index=1)
    assert (made.path / "one").read_text() == "5\n"


async def test_show_gives_the_patch(bench: Workbench, made: MadeRepository) -> None:
    made.write("one", "2\n")
    made.write("new", "new\n")
    made.git("stash", "push", "--quiet", "--include-untracked")
    for key in ("diff.noprefix", "diff.mnemonicPrefix", "diff.relative"):
        made.git("config", key, "true")
    answer = await bench.call(STASH, path="project", action="show")
    assert isinstance(answer.result, StashResult)
    assert answer.result.patch is not None
    assert {"--- a/one", "-1", "+2", "+++ b/new", "+new"} <= set(answer.result.patch.splitlines())
    assert {each.path: each.status for each in answer.result.files or []} == {"one": "modified", "new": "added"}
    assert answer.content == ({"type": "text", "text": answer.result.patch},)


async def test_a_long_patch_is_cut(bench: Workbench, made: MadeRepository) -> None:
    made.write("one", "line\n" * 200_000)
    made.git("stash", "push", "--quiet")
    result = await stash(bench, "show")
    assert result.truncated
    assert result.patch is not None
    assert result.patch.endswith("+line\n")


@pytest.mark.parametrize("action", ["apply", "pop"])
async def test_conflicts_are_named_and_the_stash_is_kept(bench: Workbench, made: MadeRepository, action: str) -> None:
    made.write("one", "mine\n")
    await stash(bench, "push")
    made.commit("Theirs", {"one": "theirs\n"})
    result = await stash(bench, action)
    assert result.conflicts == ["one"]
    assert (result.dropped, len(result.stashes)) == (False, 1)
    assert "<<<<<<<" in (made.path / "one").read_text()


@pytest.mark.parametrize("action", ["apply", "pop"])
async def test_local_changes_are_not_overwritten(bench: Workbench, made: MadeRepository, action: str) -> None:
    made.write("one", "stashed\n")
    await stash(bench, "push")
    made.write("one", "mine\n")
    with pytest.raises(InvalidArgument, match="the stash is kept"):
        await stash(bench, action)
    assert (made.path / "one").read_text() == "mine\n"
    assert len((await stash(bench, "list")).stashes) == 1


async def test_an_untracked_file_is_not_overwritten(bench: Workbench, made: MadeRepository) -> None:
    made.write("new", "stashed\n")
    await stash(bench, "push", include_untracked=True)
    made.write("new", "mine\n")
    with pytest.raises(McpdError):
        await stash(bench, "pop")
    assert (made.path / "new").read_text() == "mine\n"


@pytest.mark.parametrize("action", ["show", "apply", "pop", "drop"])
@pytest.mark.parametrize("stashes", [0, 1])
async def test_one_that_is_not_there_is_said(bench: Workbench, made: MadeRepository, action: str, stashes: int) -> None:
    for _ in range(stashes):
        made.write("one", "2\n")
        await stash(bench, "push")
    with pytest.raises(NotFound, match=r"there is no stash@\{7\}"):
        await stash(bench, action, index=7)
    assert len((await stash(bench, "list")).stashes) == stashes


@pytest.mark.parametrize(
    ("action", "arguments", "said"),
    [
        ("pop", {"message": "x"}, "for push only"),
        ("push", {"index": 1}, "leave it out"),
        ("push", {"restore_index": True}, "apply and pop only"),
        ("push", {"message": "a\nb"}, "one line"),
        ("clear", {}, "clear"),
        ("drop", {"index": -1}, "-1"),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    bench: Workbench, made: MadeRepository, action: str, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        await stash(bench, action, **arguments)


async def test_a_message_with_NUL_is_refused(bench: Workbench, made: MadeRepository) -> None:
    with pytest.raises(InvalidArgument, match=r"x00\]"):
        await stash(bench, "push", message="a\0b")


async def test_before_the_first_commit_there_is_nothing_to_go_back_to(bench: Workbench) -> None:
    made = MadeRepository.make(bench.root / "project")
    assert (await stash(bench, "list")).stashes == []
    made.write("one")
    with pytest.raises(McpdError, match="initial commit"):
        await stash(bench, "push")


async def test_the_number_does_not_depend_on_how_dates_are_shown(bench: Workbench, made: MadeRepository) -> None:
    made.git("config", "log.date", "iso")
    made.write("one", "2\n")
    assert [each.index for each in (await stash(bench, "push")).stashes] == [0]
    assert (await stash(bench, "pop")).dropped


async def test_without_an_identity_changes_are_put_aside_all_the_same(bench: Workbench, made: MadeRepository) -> None:
    made.git("config", "--unset", "user.name")
    made.git("config", "--unset", "user.email")
    made.write("one", "2\n")
    assert (await stash(bench, "push")).saved
