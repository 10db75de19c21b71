# SPDX-License-Identifier: LGPL-2.1-or-later
"""No command of git writes to a git directory among the files of a work tree, or completes one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import NotAuthorized, NotFound
from mcpd.servers.workstation import moves
from mcpd.servers.workstation.filesystem.writing import MKDIR, WRITE
from mcpd.servers.workstation.git.checkout import CHECKOUT
from mcpd.servers.workstation.git.committing import ADD, COMMIT
from mcpd.servers.workstation.git.stashing import STASH
from tests.unit.workstation.bench import Workbench
from tests.unit.workstation.git_directories import HEAD, WORKTREE, config, runs
from tests.unit.workstation.git_parts import MadeRepository

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mcpd.servers.workstation.tool import Tool

pytestmark = pytest.mark.process

WITH_HEAD = {"d/HEAD": HEAD}
WITH_COMMONDIR = {"d/commondir": "../x\n"}
COMMON = {"x/objects/x": "", "x/refs/x": "", "x/config": "CONFIG", "d/config.worktree": WORKTREE}
OWN = {"d/objects/x": "", "d/refs/x": "", "d/config": "CONFIG"}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path) as made:
        yield made


@pytest.fixture
def made(bench: Workbench) -> MadeRepository:
    repository = MadeRepository.make(bench.root / "project")
    repository.commit(files={"file": "1\n"})
    return repository


def put(bench: Workbench, made: MadeRepository, files: dict[str, str]) -> None:
    for name, text in files.items():
        made.write(name, config(bench.directory) if text == "CONFIG" else text)


def branch(bench: Workbench, made: MadeRepository, name: str, files: dict[str, str]) -> None:
    """Make the branch *name* with *files*, and go back to main."""
    made.git("checkout", "--quiet", "-b", name)
    put(bench, made, files)
    made.commit(name)
    made.git("checkout", "--quiet", "main")


Prepare = Callable[[Workbench, MadeRepository], object]


def arriving(arrives: dict[str, str], there: dict[str, str]) -> Prepare:
    """The branch ``side`` has what *arrives*; git does not know what is *there*, in the work tree."""

    def prepare(bench: Workbench, made: MadeRepository) -> None:
        branch(bench, made, "side", arrives)
        put(bench, made, there)

    return prepare


def with_a_tag(bench: Workbench, made: MadeRepository) -> None:
    arriving(WITH_HEAD, OWN)(bench, made)
    made.git("tag", "side", "main")


def gone_to_before(bench: Workbench, made: MadeRepository) -> None:
    """``side`` was the branch before, and there is a tag of the same name."""
    with_a_tag(bench, made)
    assert made.git("check-ref-format", "--branch", "@{-1}") == "side"


def elsewhere(bench: Workbench, made: MadeRepository) -> None:
    """Only a remote has the branch ``side``."""
    branch(bench, made, "side", WITH_HEAD)
    made.git("update-ref", "refs/remotes/origin/side", "side")
    made.git("config", "remote.origin.url", ".")
    made.git("config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*")
    made.git("branch", "--quiet", "-D", "side")
    put(bench, made, OWN)


def deleted(bench: Workbench, made: MadeRepository) -> None:
    """HEAD of main has what is missing in the work tree."""
    made.commit("One part", dict(WITH_HEAD))
    (made.path / "d" / "HEAD").unlink()
    put(bench, made, OWN)


def marked(bench: Workbench, made: MadeRepository) -> None:
    """The same, of a file that git has been told never changes."""
    made.commit("One part", dict(WITH_HEAD))
    made.git("update-index", "--assume-unchanged", "d/HEAD")
    (made.path / "d" / "HEAD").unlink()
    put(bench, made, {**OWN, "file": "2\n"})


def configured(bench: Workbench, made: MadeRepository) -> None:
    """``side`` configures a bare repository in the work tree otherwise."""
    made.commit("Harmless", {**WITH_HEAD, **OWN, "d/config": ""})
    branch(bench, made, "side", {"d/config": "CONFIG"})


def changed(bench: Workbench, made: MadeRepository) -> None:
    """The same with a change that is not committed, which git takes back."""
    made.write("d/config", config(bench.directory))
    made.commit("Hostile", {**WITH_HEAD, **OWN, "d/config": config(bench.directory)})
    made.write("d/config", "")


def stashed(arrives: dict[str, str], there: dict[str, str], *, tracked: bool) -> Prepare:
    def prepare(bench: Workbench, made: MadeRepository) -> None:
        put(bench, made, arrives)
        if tracked:
            made.git("add", "--all")
        made.git("stash", "push", "--quiet", "--include-untracked")
        put(bench, made, there)

    return prepare


def staged(bench: Workbench, made: MadeRepository) -> None:
    """The index has what HEAD and the work tree have not."""
    put(bench, made, WITH_HEAD)
    made.git("add", "d/HEAD")
    (made.path / "d" / "HEAD").unlink()
    put(bench, made, OWN)


def renamed(bench: Workbench, made: MadeRepository) -> None:
    """A file that a stash changes has become the configuration of a bare repository since."""
    text = "# a line\n" * 40
    made.commit("Base", {"plain": text})
    made.write("plain", text + config(bench.directory))
    made.git("stash", "push", "--quiet")
    (made.path / "plain").unlink()
    put(bench, made, {**WITH_HEAD, **OWN, "d/config": text})
    made.git("add", "--all")
    made.git("commit", "--quiet", "-m", "Renamed")


def moved_away(bench: Workbench, made: MadeRepository) -> None:
    """A stash adds a file to a directory that has been renamed since."""
    made.commit("Base", {"old/one": "1\n" * 20, "old/two": "2\n" * 20})
    put(bench, made, {"old/HEAD": HEAD})
    made.git("add", "--all")
    made.git("stash", "push", "--quiet")
    made.git("mv", "old", "d")
    made.git("commit", "--quiet", "-m", "Renamed")
    put(bench, made, OWN)


@dataclass(frozen=True)
class Attack:
    name: str
    prepare: Prepare
    command: tuple[str, ...]
    """The arguments of git that do the same."""
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def tool(self) -> Tool:
        return STASH if self.command[0] == "stash" else CHECKOUT


SWITCH = ("checkout", "side")
SIDE = {"revision": "side"}
MAIN = {"revision": "main"}
POP = {"action": "pop"}
ATTACKS = [
    Attack("HEAD arrives", arriving(WITH_HEAD, OWN), SWITCH, SIDE),
    Attack("HEAD arrives beside commondir", arriving(WITH_HEAD, {**WITH_COMMONDIR, **COMMON}), SWITCH, SIDE),
    Attack("commondir arrives", arriving(WITH_COMMONDIR, {**WITH_HEAD, **COMMON}), SWITCH, SIDE),
    Attack("objects and refs arrive", arriving(OWN, WITH_HEAD), SWITCH, SIDE),
    Attack("all arrives", arriving({**WITH_HEAD, **OWN}, {}), SWITCH, SIDE),
    Attack("all arrives with commondir", arriving({**WITH_HEAD, **WITH_COMMONDIR, **COMMON}, {}), SWITCH, SIDE),
    Attack("a configuration arrives", configured, SWITCH, SIDE),
    Attack("a commit is gone to", arriving(WITH_HEAD, OWN), ("checkout", "--detach", "side"), {**SIDE, "detach": True}),
    Attack("a commit before another", arriving(WITH_HEAD, OWN), ("checkout", "side~0"), {"revision": "side~0"}),
    Attack(
        "a branch begins there",
        arriving(WITH_HEAD, OWN),
        ("checkout", "-b", "new", "side"),
        {"revision": "new", "create": True, "start_point": "side"},
    ),
    Attack("a branch that is called like a tag", with_a_tag, SWITCH, SIDE),
    Attack("the branch before, called like a tag", gone_to_before, ("checkout", "@{-1}"), {"revision": "@{-1}"}),
    Attack("a branch of a remote", elsewhere, SWITCH, SIDE),
    Attack("force", deleted, ("checkout", "--force", "main"), {**MAIN, "force": True}),
    Attack(
        "force with a new branch",
        deleted,
        ("checkout", "--force", "-b", "new"),
        {"revision": "new", "create": True, "force": True},
    ),
    Attack("a file of the index", deleted, ("checkout", "--", "d/HEAD"), {"paths": ["d/HEAD"]}),
    Attack("force and a file that never changes", marked, ("checkout", "--force", "main"), {**MAIN, "force": True}),
    Attack("a file of the index that never changes", marked, ("checkout", "--", "d/HEAD"), {"paths": ["d/HEAD"]}),
    Attack("a file that never changes when others are put aside", marked, ("stash", "push"), {"action": "push"}),
    Attack("all of the index", staged, ("checkout", "--", "."), {"paths": ["."]}),
    Attack(
        "a file of a commit",
        arriving(WITH_HEAD, OWN),
        ("checkout", "side", "--", "d"),
        {"revision": "side", "paths": ["d"], "force": True},
    ),
    Attack("a stash", stashed(WITH_HEAD, OWN, tracked=True), ("stash", "pop"), POP),
    Attack("a stash of new files", stashed(WITH_HEAD, OWN, tracked=False), ("stash", "pop"), POP),
    Attack(
        "a stash with commondir",
        stashed(WITH_COMMONDIR, {**WITH_HEAD, **COMMON}, tracked=False),
        ("stash", "apply"),
        {"action": "apply"},
    ),
    Attack("a stash of a renamed file", renamed, ("stash", "pop"), POP),
    Attack("changes that are put aside", deleted, ("stash", "push"), {"action": "push"}),
    Attack("a configuration that is put aside", changed, ("stash", "push"), {"action": "push"}),
    Attack(
        "changes that are put aside but for the index",
        staged,
        ("stash", "push", "--keep-index"),
        {"action": "push", "keep_index": True},
    ),
]
each_attack = pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)


@each_attack
def test_git_alone_would_make_what_runs_a_command(bench: Workbench, made: MadeRepository, attack: Attack) -> None:
    attack.prepare(bench, made)
    assert not runs(bench.directory, below=made.path)
    made.git(*attack.command, check=False)
    assert runs(bench.directory, below=made.path)


@each_attack
async def test_a_tool_refuses_it_and_nothing_changes(bench: Workbench, made: MadeRepository, attack: Attack) -> None:
    attack.prepare(bench, made)
    before = made.git("status", "--porcelain", "--branch"), made.git("stash", "list"), made.head()
    with pytest.raises(NotAuthorized, match="a git directory"):
        await bench.call(attack.tool, path="project", **attack.arguments)
    assert (made.git("status", "--porcelain", "--branch"), made.git("stash", "list"), made.head()) == before
    assert not runs(bench.directory, below=made.path)


async def test_a_file_of_a_stash_does_not_follow_a_renamed_directory(bench: Workbench, made: MadeRepository) -> None:
    moved_away(bench, made)
    await bench.call(STASH, path="project", action="pop")
    assert (made.path / "old" / "HEAD").exists()
    assert not runs(bench.directory, below=made.path)


async def test_directories_count_as_one_where_cases_may_not_be_told_apart(
    bench: Workbench, made: MadeRepository
) -> None:
    branch(bench, made, "side", {"D/HEAD": HEAD, "d/commondir": "../x\n"})
    with pytest.raises(NotAuthorized, match="a git directory"):
        await bench.call(CHECKOUT, path="project", revision="side")


async def test_a_merge_base_is_not_gone_to_unseen(bench: Workbench, made: MadeRepository) -> None:
    branch(bench, made, "side", WITH_HEAD)
    made.git("branch", "other", "side")
    put(bench, made, OWN)
    with pytest.raises(NotFound, match="one revision is expected here"):
        await bench.call(CHECKOUT, path="project", revision="side...other", detach=True)
    assert not runs(bench.directory, below=made.path)


async def test_tools_alone_make_none_with_a_checkout(bench: Workbench, made: MadeRepository) -> None:
    async def write(path: str, text: str) -> None:
        await bench.call(WRITE, path=f"project/{path}", content=text, create_parents=True)

    await write("d/HEAD", HEAD)
    await bench.call(CHECKOUT, path="project", revision="a", create=True)
    await bench.call(ADD, path="project", paths=["d/HEAD"])
    await bench.call(COMMIT, path="project", message="x")
    await bench.call(CHECKOUT, path="project", revision="main")
    await write("d/config", config(bench.directory))
    await bench.call(MKDIR, path="project/d/objects")
    await bench.call(MKDIR, path="project/d/refs")
    with pytest.raises(NotAuthorized, match="git would write to d, which"):
        await bench.call(CHECKOUT, path="project", revision="a")
    assert not runs(bench.directory, below=made.path)


async def test_git_waits_while_other_calls_add_parts(
    bench: Workbench, made: MadeRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WaitingError(Exception):
        pass

    async def wait(_: float) -> None:
        raise WaitingError

    made.write("file", "2\n")
    made.git("stash", "push")
    made.write("file", "3\n")
    monkeypatch.setattr(moves, "asyncio", SimpleNamespace(sleep=wait))
    calls: list[tuple[Tool, dict[str, Any]]] = [
        (STASH, {"action": "push"}),
        (STASH, {"action": "pop"}),
        (COMMIT, {"message": "x", "allow_empty": True}),
        (CHECKOUT, {"revision": "new", "create": True}),
        (CHECKOUT, {"paths": ["file"], "force": True}),
    ]
    for tool, arguments in calls:
        with bench.jail.parent(bench.jail.place("HEAD")), pytest.raises(WaitingError):
            await bench.call(tool, path="project", **arguments)
        await bench.call(tool, path="project", **arguments)


async def test_bare_repositories_in_a_work_tree_do_no_harm_where_they_stay(
    bench: Workbench, made: MadeRepository
) -> None:
    fixture = {f"tests/bare.git/{name}": "" for name in ("HEAD", "config", "objects/x", "refs/x")}
    made.commit("Fixture", {**fixture, "docs/HEAD": "1\n"})
    branch(bench, made, "side", {"file": "2\n", "docs/HEAD": "2\n"})
    await bench.call(CHECKOUT, path="project", revision="side")
    made.write("docs/HEAD", "3\n")
    await bench.call(STASH, path="project", action="push")
    await bench.call(STASH, path="project", action="pop")
    await bench.call(CHECKOUT, path="project", paths=["."], force=True)
    await bench.call(CHECKOUT, path="project", revision="main", force=True)
    assert (made.path / "docs" / "HEAD").read_text() == "1\n"
    assert made.status() == []
