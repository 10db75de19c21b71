# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where repositories are found, and that none reaches out of the roots."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidArgument, McpdError, NotAuthorized, NotFound
from mcpd.servers.workstation.git.checkout import CHECKOUT
from mcpd.servers.workstation.git.committing import ADD, COMMIT
from mcpd.servers.workstation.git.diff import DIFF
from mcpd.servers.workstation.git.log import LOG
from mcpd.servers.workstation.git.repository import Repository
from mcpd.servers.workstation.git.running import find, message, revision
from mcpd.servers.workstation.git.stashing import STASH
from mcpd.servers.workstation.git.status import STATUS
from mcpd.servers.workstation.jail import Place, Root
from tests.unit.workstation.bench import Workbench
from tests.unit.workstation.git_attacks import call, commit, project, push
from tests.unit.workstation.git_parts import MadeRepository

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.process


def leads_by_file(bench: Workbench, made: MadeRepository) -> None:
    (made.path / ".git").rename(bench.outside / "git")
    made.write(".git", f"gitdir: {bench.outside / 'git'}\n")


def leads_by_relative_file(bench: Workbench, made: MadeRepository) -> None:
    (made.path / ".git").rename(bench.outside / "git")
    made.write(".git", "gitdir: ../../outside/git\n")


def leads_by_symlink(bench: Workbench, made: MadeRepository) -> None:
    (made.path / ".git").rename(bench.outside / "git")
    (made.path / ".git").symlink_to(bench.outside / "git")


def leads_by_commondir(bench: Workbench, made: MadeRepository) -> None:
    made.git("clone", "--quiet", "--bare", ".", str(bench.outside / "common"))
    made.write(".git/commondir", str(bench.outside / "common"))


def leads_by_alternates(bench: Workbench, made: MadeRepository) -> None:
    made.write(".git/objects/info/alternates", "../../../../outside/objects\n")
    (bench.outside / "objects").mkdir()


def leads_by_alternates_of_alternates(bench: Workbench, made: MadeRepository) -> None:
    other = MadeRepository.make(bench.root / "other")
    made.write(".git/objects/info/alternates", "# first\n\n../../../other/.git/objects\n")
    other.write(".git/objects/info/alternates", str(bench.outside / "objects"))


def leads_by_objects(bench: Workbench, made: MadeRepository) -> None:
    (made.path / ".git" / "objects").rename(bench.outside / "objects")
    (made.path / ".git" / "objects").symlink_to(bench.outside / "objects")


def leads_by_worktree(bench: Workbench, made: MadeRepository) -> None:
    made.git("config", "core.worktree", str(bench.outside))


def leads_by_relative_worktree(bench: Workbench, made: MadeRepository) -> None:
    made.git("config", "core.worktree", "../../../outside")


@pytest.mark.parametrize(
    "lead",
    [
        leads_by_file, leads_by_relative_file, leads_by_symlink, leads_by_commondir, leads_by_alternates,
        leads_by_alternates_of_alternates, leads_by_objects, leads_by_worktree, leads_by_relative_worktree,
    ],
    ids=lambda lead: lead.__name__,
)  # fmt: skip
@pytest.mark.parametrize("hooks", [False, True])
async def test_a_repository_that_is_partly_outside_is_refused(
    tmp_path: Path,
    lead: Callable[[Workbench, MadeRepository], None],
    hooks: bool,
) -> None:
    with Workbench(tmp_path, allow_hooks=hooks) as bench:
        made = project(bench)
        lead(bench, made)
        before = bench.fingerprint()
        for tool, arguments in ((STATUS, {}), (ADD, {"all": True}), (COMMIT, {"message": "x", "all": True})):
            with pytest.raises(NotAuthorized):
                await bench.call(tool, path="project", **arguments)
        assert bench.fingerprint() == before


async def test_other_working_trees_and_submodules_in_the_roots_are_fine(tmp_path: Path) -> None:
    with Workbench(tmp_path, roots=2) as bench:
        made = project(bench)
        made.git("worktree", "add", "--quiet", str(bench.roots[1] / "tree"), "-b", "side")
        made.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(made.path), "inner")
        for path, top in (
            (str(bench.roots[1] / "tree"), bench.roots[1] / "tree"),
            ("project/inner", made.path / "inner"),
        ):
            (top / "new").write_text("x")
            one = bench.new_call()
            repository = await find(one, path)
            assert (repository.place.path, repository.relative) == (str(top), ".")
            await bench.call(ADD, path=path, all=True)
            assert MadeRepository(top).status() == ["A  new"]


async def test_a_path_in_the_repository_finds_it_through_symlinks_in_the_root(tmp_path: Path) -> None:
    with Workbench(tmp_path) as bench:
        made = project(bench)
        made.write("deep/er/file", "x")
        (bench.root / "link").symlink_to("project/deep")
        one = bench.new_call()
        repository = await find(one, "link/er/file")
        assert (repository.place.path, repository.relative) == (str(made.path), "deep/er/file")
        assert (await find(one, str(made.path / "deep"))).relative == "deep"


def somewhere() -> Repository:
    root = Root("/root", os.open("/", os.O_PATH), ("/spelled",))
    return Repository(Place(root, "a/b"), ".", Place(root, "a/b/.git"))


@given(st.text())
def test_a_path_stays_below_the_top(path: str) -> None:
    repository = somewhere()
    try:
        found = repository.pathspec(path)
    except InvalidArgument:
        return
    assert found
    assert not found.startswith("/")
    assert ".." not in found.split("/")


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".", "."), ("a//./b/", "a/b"), ("/root/a/b", "."), ("/spelled/a/b/c", "c"), ("//root/a//b/c", "c"),
        ("/root/a/bc", None), ("/root/a", None), ("/other", None), ("a/.git/b", None), ("\ud800", None),
    ],
)  # fmt: skip
def test_a_path_is_taken_from_the_top_or_from_the_root(path: str, found: str | None) -> None:
    repository = somewhere()
    if found is None:
        with pytest.raises(InvalidArgument):
            repository.pathspec(path)
    else:
        assert repository.pathspec(path) == found


@given(st.binary())
def test_what_git_says_can_be_shown(said: bytes) -> None:
    found = message(said * 50)
    assert found.isprintable()
    assert len(found) <= 1000


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_a_repository_of_somebody_else_is_refused(tmp_path: Path) -> None:
    with Workbench(tmp_path) as bench:
        made = project(bench)
        for path in (made.path, made.path / ".git"):
            os.chown(path, 65534, 65534)
        acts = (call(STATUS), call(DIFF), commit, push, call(STASH, action="pop"), call(CHECKOUT, revision="main"))
        for act in acts:
            with pytest.raises(NotAuthorized, match="dubious ownership"):
                await act(bench)


@pytest.mark.parametrize("name", [".git", ".git/HEAD", ".gitmodules"])
async def test_a_pipe_in_the_place_of_a_file_of_git_s_is_no_way_to_hang(tmp_path: Path, name: str) -> None:
    with Workbench(tmp_path) as bench:
        made = project(bench)
        path = made.path / name
        if name == ".git":
            path.rename(made.path / "moved")
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        with suppress(McpdError):
            await bench.call(STATUS, path="project")


@pytest.mark.parametrize(
    "name",
    [
        "config", "config.worktree", "index", "packed-refs", "shallow", "commondir", "info/attributes",
        "info/exclude", "objects/info/alternates", "objects/info/commit-graph",
    ],
)  # fmt: skip
async def test_a_pipe_that_git_would_read_is_refused(tmp_path: Path, name: str) -> None:
    with Workbench(tmp_path) as bench:
        path = project(bench).path / ".git" / name
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        os.mkfifo(path)
        with pytest.raises(InvalidArgument, match=rf"{name} is (a named pipe|no regular file)"):
            await bench.call(STATUS, path="project")


async def test_a_list_of_what_to_ignore_outside_of_the_roots_is_not_read(tmp_path: Path) -> None:
    with Workbench(tmp_path) as bench:
        path = project(bench).write(".git/info/exclude")
        path.unlink()
        path.symlink_to(bench.outside / "secret")
        await bench.call(LOG, path="project")
        with pytest.raises(NotAuthorized, match=r"unable to access '\.git/info/exclude'"):
            await bench.call(STATUS, path="project")


async def test_a_bare_repository_has_no_working_tree_elsewhere(tmp_path: Path) -> None:
    with Workbench(tmp_path) as bench:
        made = MadeRepository.make(bench.root / "bare", "--bare")
        made.git("config", "core.bare", "false")
        made.git("config", "core.worktree", str(bench.outside))
        with pytest.raises(NotAuthorized, match=r"core\.worktree"):
            await bench.call(LOG, path="bare")


async def test_git_s_own_directory_is_no_working_tree(tmp_path: Path) -> None:
    with Workbench(tmp_path) as bench:
        project(bench)
        with pytest.raises(InvalidArgument, match="git's own"):
            await bench.call(STATUS, path="project/.git")


@pytest.mark.parametrize("content", ["", "nonsense", "gitdir: ", "gitdir: nowhere", "gitdir: /\0", "x" * 100_000])
async def test_a_git_file_that_is_none_is_said_to_be(tmp_path: Path, content: str) -> None:
    with Workbench(tmp_path) as bench:
        (bench.root / "project").mkdir()
        (bench.root / "project" / ".git").write_text(content)
        with pytest.raises(McpdError, match=r"project/\.git"):
            await bench.call(STATUS, path="project")


async def test_what_is_no_repository_is_passed_over(tmp_path: Path) -> None:
    with Workbench(tmp_path) as bench:
        made = project(bench)
        for name in ("empty", "half"):
            (made.path / name / ".git").mkdir(parents=True)
        made.write("half/.git/HEAD", "no reference\n")
        one = bench.new_call()
        for name in ("empty", "half"):
            assert (await find(one, f"project/{name}")).place.path == str(made.path)
        with pytest.raises(NotFound):
            await find(one, ".")


@pytest.mark.parametrize("text", ["", "-f", "--output=x", "a\nb", "a\0b", "x" * 1001])
def test_a_revision_is_never_an_option(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is no revision"):
        revision(text)
