# SPDX-License-Identifier: LGPL-2.1-or-later
"""git_checkout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import InvalidArgument, McpdError, NotFound
from mcpd.servers.workstation.git.checkout import CHECKOUT, CheckoutResult
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
    """On main; the branch ``side`` has another ``one`` and a ``new``, ``other`` is there in both."""
    repository = MadeRepository.make(bench.root / "project")
    repository.commit("First", {"one": "1\n", "other": "1\n", ".gitignore": "ignored\n"})
    repository.git("tag", "v1")
    repository.git("checkout", "--quiet", "-b", "side")
    repository.commit("Side", {"one": "side\n", "new": "side\n"})
    repository.git("checkout", "--quiet", "main")
    return repository


def text(made: MadeRepository, name: str) -> str | None:
    path = made.path / name
    return path.read_text() if path.exists() else None


async def checked_out(bench: Workbench, **arguments: Any) -> CheckoutResult:
    answer = await bench.call(CHECKOUT, path="project", **arguments)
    assert isinstance(answer.result, CheckoutResult)
    return answer.result


async def test_a_branch_is_switched_to(bench: Workbench, made: MadeRepository) -> None:
    first = made.head()
    result = await checked_out(bench, revision="side")
    assert (result.branch, result.commit, result.detached) == ("side", made.head("side"), False)
    assert (result.previous_branch, result.previous_commit) == ("main", first)
    assert text(made, "new") == "side\n"


@pytest.mark.parametrize(("start", "there"), [(None, "main"), ("side", "side"), ("v1", "v1"), ("side~1", "v1")])
async def test_a_branch_is_made(bench: Workbench, made: MadeRepository, start: str | None, there: str) -> None:
    arguments = {} if start is None else {"start_point": start}
    result = await checked_out(bench, revision="topic/new", create=True, **arguments)
    assert (result.branch, result.created, result.commit) == ("topic/new", True, made.head(there))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("side", "already exists"),
        ("side/x", "cannot create"),
        ("a..b", "not a valid branch name"),
        ("a b", "not a valid"),
        ("-D", "is no revision"),
    ],
)
async def test_a_branch_that_cannot_be_made_is_refused(
    bench: Workbench, made: MadeRepository, name: str, said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        await checked_out(bench, revision=name, create=True)
    assert made.git("branch", "--show-current") == "main"


@pytest.mark.parametrize(("revision", "detach"), [("v1", False), ("side", True), ("HEAD~0", False)])
async def test_a_commit_is_gone_to(bench: Workbench, made: MadeRepository, revision: str, detach: bool) -> None:
    result = await checked_out(bench, revision=revision, detach=detach)
    assert (result.branch, result.detached, result.commit) == (None, True, made.head(f"{revision}^{{commit}}"))


async def test_a_branch_that_is_not_born_is_left(bench: Workbench) -> None:
    MadeRepository.make(bench.root / "project")
    result = await checked_out(bench, revision="next", create=True)
    assert (result.branch, result.commit, result.previous_branch) == ("next", None, "main")


@pytest.mark.parametrize("revision", ["nowhere", "one", "--force", "-", "HEAD^^^^", "new\n"])
async def test_what_is_no_revision_is_refused(bench: Workbench, made: MadeRepository, revision: str) -> None:
    made.write("one", "mine\n")
    with pytest.raises(McpdError):
        await checked_out(bench, revision=revision)
    assert text(made, "one") == "mine\n"


@pytest.mark.parametrize("revision", ["nowhere", "one", "0123abc", "HEAD:nowhere", "v1..side"])
@pytest.mark.parametrize("more", [{}, {"paths": ["one"]}, {"paths": ["one"], "force": True}, {"detach": True}], ids=str)
async def test_what_is_not_there_is_said_to_be_missing(
    bench: Workbench, made: MadeRepository, revision: str, more: dict[str, object]
) -> None:
    with pytest.raises(NotFound):
        await checked_out(bench, revision=revision, **more)
    assert (text(made, "one"), made.status()) == ("1\n", [])


async def test_where_a_branch_cannot_begin_is_said(bench: Workbench, made: MadeRepository) -> None:
    with pytest.raises(NotFound):
        await checked_out(bench, revision="new", create=True, start_point="nowhere")
    with pytest.raises(InvalidArgument):
        await checked_out(bench, revision="new", create=True, start_point="HEAD:one")


@pytest.mark.parametrize("revision", ["HEAD:one", "HEAD^{tree}", "@{upstream}"])
async def test_what_is_no_commit_is_refused(bench: Workbench, made: MadeRepository, revision: str) -> None:
    with pytest.raises(InvalidArgument):
        await checked_out(bench, revision=revision)


@pytest.mark.parametrize("force", [False, True])
async def test_files_are_restored_from_a_tree_and_not_from_a_file(
    bench: Workbench, made: MadeRepository, force: bool
) -> None:
    await checked_out(bench, revision="side^{tree}", paths=["new"], force=force)
    assert text(made, "new") == "side\n"
    made.git("tag", "--annotate", "--message", "x", "blob", "HEAD:one")
    for revision in ("HEAD:one", "blob"):
        with pytest.raises(InvalidArgument, match="tree"):
            await checked_out(bench, revision=revision, paths=["one"], force=force)
    with pytest.raises(InvalidArgument, match="commit"):
        await checked_out(bench, revision="blob", force=force)


async def test_a_path_that_git_does_not_know_is_named(bench: Workbench, made: MadeRepository) -> None:
    for arguments in ({}, {"revision": "v1"}, {"force": True}):
        with pytest.raises(NotFound, match="'nowhere' did not match"):
            await checked_out(bench, paths=["nowhere"], **arguments)


async def test_local_changes_are_kept_where_they_are_not_in_the_way(bench: Workbench, made: MadeRepository) -> None:
    made.write("other", "mine\n")
    await checked_out(bench, revision="side")
    assert text(made, "other") == "mine\n"


@pytest.mark.parametrize("name", ["one", "new"])
async def test_local_changes_in_the_way_take_force(bench: Workbench, made: MadeRepository, name: str) -> None:
    made.write(name, "mine\n")
    with pytest.raises(InvalidArgument, match=r"nothing has changed.*force"):
        await checked_out(bench, revision="side")
    assert text(made, name) == "mine\n"
    assert made.git("branch", "--show-current") == "main"
    await checked_out(bench, revision="side", force=True)
    assert text(made, name) == "side\n"


async def test_an_ignored_file_in_the_way_is_not_overwritten(bench: Workbench, made: MadeRepository) -> None:
    made.git("checkout", "--quiet", "-b", "with")
    made.commit("With", {"ignored": "theirs\n"})
    made.git("checkout", "--quiet", "main")
    made.write("ignored", "mine\n")
    with pytest.raises(InvalidArgument, match="force"):
        await checked_out(bench, revision="with")
    assert text(made, "ignored") == "mine\n"
    with pytest.raises(InvalidArgument, match="would be lost in ignored"):
        await checked_out(bench, revision="with", paths=["ignored"])
    assert text(made, "ignored") == "mine\n"


async def test_a_deleted_file_is_restored(bench: Workbench, made: MadeRepository) -> None:
    (made.path / "one").unlink()
    result = await checked_out(bench, paths=["one"])
    assert (result.branch, result.restored) == ("main", ["one"])
    assert text(made, "one") == "1\n"


async def test_files_are_taken_from_another_revision(bench: Workbench, made: MadeRepository) -> None:
    await checked_out(bench, revision="side", paths=[str(made.path / "one"), "new"])
    assert (text(made, "one"), text(made, "new")) == ("side\n", "side\n")
    assert made.git("branch", "--show-current") == "main"


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("revision", [None, "side"])
async def test_restoring_over_local_changes_takes_force(
    bench: Workbench, made: MadeRepository, staged: bool, revision: str | None
) -> None:
    arguments = {} if revision is None else {"revision": revision}
    made.write("one", "mine\n")
    if staged:
        made.git("add", "one")
    if revision is None and staged:
        # What is staged is what is restored: nothing is lost.
        await checked_out(bench, paths=["one"])
        assert text(made, "one") == "mine\n"
        return
    with pytest.raises(InvalidArgument, match=r"local changes would be lost in one; .*force"):
        await checked_out(bench, paths=["."], **arguments)
    assert text(made, "one") == "mine\n"
    await checked_out(bench, paths=["."], force=True, **arguments)
    assert text(made, "one") == ("1\n" if revision is None else "side\n")


@pytest.mark.parametrize("paths", [["new"], ["."]])
async def test_an_untracked_file_is_not_overwritten(bench: Workbench, made: MadeRepository, paths: list[str]) -> None:
    made.write("new", "mine\n")
    made.write("unrelated", "mine\n")
    with pytest.raises(InvalidArgument, match="would be lost in new;"):
        await checked_out(bench, revision="side", paths=paths)
    assert text(made, "new") == "mine\n"


async def test_a_pattern_is_a_name(bench: Workbench, made: MadeRepository) -> None:
    made.commit("Star", {"*": "1\n"})
    (made.path / "*").unlink()
    (made.path / "one").unlink()
    await checked_out(bench, paths=["*"])
    assert (text(made, "*"), text(made, "one")) == ("1\n", None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "say revision"),
        ({"paths": ["one"], "create": True}, "leave out create"),
        ({"paths": ["one"], "detach": True}, "detach"),
        ({"revision": "side", "start_point": "v1"}, "say create"),
        ({"revision": "x", "create": True, "detach": True}, "exclude each other"),
        ({"paths": ["../one"]}, r"'\.\.'"),
        ({"revision": "x", "create": True, "start_point": "--orphan"}, "is no revision"),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    bench: Workbench, made: MadeRepository, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        await checked_out(bench, **arguments)


async def test_nothing_is_written_through_a_symlink(bench: Workbench, made: MadeRepository) -> None:
    made.git("checkout", "--quiet", "-b", "hostile")
    made.write("directory/secret", "theirs\n")
    made.commit("Hostile")
    made.git("checkout", "--quiet", "main")
    (made.path / "directory").symlink_to(bench.outside)
    before = bench.fingerprint()
    await checked_out(bench, revision="hostile", paths=["directory/secret"], force=True)
    assert bench.fingerprint() == before
