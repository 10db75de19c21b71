# SPDX-License-Identifier: LGPL-2.1-or-later
"""Deployments to files that others write, may not be written, or that a server is told of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from deployment_parts import ABOUT, BY_HAND, ENTRY, OTHER, SECRET, User, family, ordinary, strays

from mcpd.clients.deployments import About
from mcpd.clients.tree import Tree
from mcpd.errors import Busy, ReadOnly
from mcpd.paths import Scope

pytestmark = pytest.mark.process


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


def test_a_directory_without_write_permission_is_left_as_it_is(user: User) -> None:
    path = user.servers()
    before = path.read_bytes()
    path.parent.chmod(0o500)
    try:
        with ordinary(), pytest.raises(ReadOnly, match=r"mcp.json: Permission denied"):
            user.deploy({"github": ENTRY})
    finally:
        path.parent.chmod(0o700)
    assert path.read_bytes() == before
    assert user.deployments.history("cursor") == []
    user.deploy({"github": ENTRY})


def test_a_history_that_cannot_be_written_changes_no_file(user: User) -> None:
    path = user.servers()
    before = path.read_bytes()
    user.deploy({"github": ENTRY})
    user.undo()
    (user.state / "backups").chmod(0o500)
    try:
        with ordinary(), pytest.raises(ReadOnly):
            user.deploy({"github": ENTRY, "time": OTHER})
    finally:
        (user.state / "backups").chmod(0o700)
    assert path.read_bytes() == before


def test_what_is_read_only_can_be_looked_at(user: User) -> None:
    user.servers()
    user.deploy({"github": ENTRY})
    (user.state / ".lock").unlink()
    user.state.chmod(0o500)
    try:
        with ordinary():
            assert len(user.deployments.history("cursor")) == 1
            assert user.deployments.drift(family())[0].status == "in-sync"
            assert user.deployments.plan(family(), user.file(), {"github": ENTRY}).is_empty
    finally:
        user.state.chmod(0o700)


def test_a_file_that_its_client_rewrites_is_planned_for_again(user: User) -> None:
    path = user.servers(mine=BY_HAND)
    plan = user.deployments.plan(family(), path, {"github": ENTRY})
    user.write({"mcpServers": {"mine": BY_HAND}, "numStartups": 7})
    user.deployments.apply(plan, ABOUT)
    assert json.loads(path.read_bytes()) == {"mcpServers": {"mine": BY_HAND, "github": ENTRY}, "numStartups": 7}
    user.undo()
    assert json.loads(path.read_bytes()) == {"mcpServers": {"mine": BY_HAND}, "numStartups": 7}


def test_a_file_that_is_rewritten_while_it_is_replaced_is_planned_for_again(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = user.servers(mine=BY_HAND)
    plan = user.deployments.plan(family(), path, {"github": ENTRY})
    real, starts = os.fchmod, iter(range(1, 4))

    def fchmod(descriptor: int, bits: int) -> None:
        """The client is started whenever a file has just been written beside its own."""
        if f"/{path.parent.name}/" in str(Path(f"/proc/self/fd/{descriptor}").readlink()) and (
            start := next(starts, 0)
        ):
            path.write_text(json.dumps({"mcpServers": {"mine": BY_HAND}, "numStartups": start}))
        real(descriptor, bits)

    monkeypatch.setattr(os, "fchmod", fchmod)
    user.deployments.apply(plan, ABOUT)
    assert json.loads(path.read_bytes()) == {"mcpServers": {"mine": BY_HAND, "github": ENTRY}, "numStartups": 3}
    assert strays(user.root) == []
    assert len(user.deployments.history("cursor")) == 1
    user.undo()
    assert json.loads(path.read_bytes()) == {"mcpServers": {"mine": BY_HAND}, "numStartups": 3}


def test_a_file_that_never_rests_is_left_to_its_client(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    path = user.servers(mine=BY_HAND)
    plan = user.deployments.plan(family(), path, {"github": ENTRY})
    real, starts = os.fchmod, iter(range(1, 100))

    def fchmod(descriptor: int, bits: int) -> None:
        if f"/{path.parent.name}/" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            path.write_text(json.dumps({"mcpServers": {"mine": BY_HAND}, "numStartups": next(starts)}))
        real(descriptor, bits)

    monkeypatch.setattr(os, "fchmod", fchmod)
    with pytest.raises(Busy, match="was changed meanwhile"):
        user.deployments.apply(plan, ABOUT)
    assert json.loads(path.read_bytes()) == {"mcpServers": {"mine": BY_HAND}, "numStartups": next(starts) - 1}
    assert strays(user.root) == []
    assert user.deployments.history("cursor") == []


def test_servers_that_were_changed_meanwhile_are_not_overwritten(user: User) -> None:
    path = user.servers()
    plan = user.deployments.plan(family(), path, {"github": ENTRY})
    user.servers(github=BY_HAND)
    with pytest.raises(Busy, match="was changed meanwhile"):
        user.deployments.apply(plan, ABOUT)
    assert user.read() == {"github": BY_HAND}


def test_a_file_whose_directory_moved_meanwhile_is_looked_at_again(user: User) -> None:
    path = user.servers(mine=BY_HAND)
    plan = user.deployments.plan(family(), path, {"github": ENTRY})
    path.parent.rename(user.home / "dotfiles")
    path.parent.symlink_to("dotfiles")
    with pytest.raises(Busy, match="was changed meanwhile"):
        user.deployments.apply(plan, ABOUT)
    assert user.read() == {"mine": BY_HAND}
    user.deploy({"github": ENTRY})
    assert user.undo(file=path).file == user.home / "dotfiles/mcp.json"


def test_a_server_that_is_taken_over_is_the_one_that_was_shown(user: User) -> None:
    path = user.servers(github=BY_HAND)
    plan = user.deployments.plan(family(), path, {"github": ENTRY}, take_over=["github"])
    user.servers(github={**BY_HAND, "cwd": "/somewhere"})
    with pytest.raises(Busy, match="was changed meanwhile"):
        user.deployments.apply(plan, ABOUT)
    assert user.read() == {"github": {**BY_HAND, "cwd": "/somewhere"}}


def test_of_two_deployments_the_second_looks_again(user: User) -> None:
    path = user.servers()
    plans = [user.deployments.plan(family(), path, {"github": ENTRY}) for _ in range(2)]
    user.deployments.apply(plans[0], ABOUT)
    with pytest.raises(Busy, match="another deployment was faster"):
        user.deployments.apply(plans[1], ABOUT)
    assert len(user.deployments.history("cursor")) == 1


_MANY = """
import sys
from pathlib import Path
from deployment_parts import ENTRY, User
from mcpd.errors import Busy

user, name = User(Path(sys.argv[1])), sys.argv[2]
done = 0
for number in range(40):
    try:
        user.deploy({f"{name}{number}": ENTRY})
        done += 1
    except Busy:
        pass
print(done)
"""


def test_two_at_once_leave_one_history(user: User) -> None:
    path = user.servers(mine=BY_HAND)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _MANY, str(user.root), name],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    try:
        done = [int(process.communicate(timeout=120)[0]) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0]
    assert sum(done) >= 1
    history = user.deployments.history("cursor")
    assert history[0].number == sum(done)
    # Each is what the one before it left, so all can be undone.
    assert len(user.read()) == 2
    for _ in history:
        user.undo()
    assert "mine" in json.loads(path.read_bytes())["mcpServers"]
    assert strays(user.root) == []


def test_the_tree_is_told_what_is_deployed(user: User) -> None:
    tree = Tree(user.home / ".mcp-orchestration", Scope.USER)
    user.servers(mine=BY_HAND)
    default, dev = tree.deployment("cursor", "default"), tree.deployment("cursor", "dev")
    done = user.deploy({"github": ENTRY}, tree=tree)
    assert done.warning == ""
    found = json.loads(default.read_bytes())
    assert (found["artifact_id"], found["file"], found["servers"]) == ("a" * 64, str(user.file()), ["github"])
    assert SECRET not in default.read_text()
    user.deploy({"time": OTHER}, tree=tree, about=About(Scope.USER, "dev", "b" * 64))
    assert not default.exists()
    assert json.loads(dev.read_bytes())["artifact_id"] == "b" * 64
    user.undo(tree=tree)
    assert not dev.exists()
    assert json.loads(default.read_bytes())["artifact_id"] == "a" * 64
    user.undo(tree=tree)
    assert not default.exists()


def test_a_tree_is_told_when_the_same_is_deployed_for_another_profile(user: User) -> None:
    tree = Tree(user.home / ".mcp-orchestration", Scope.USER)
    user.deploy({"github": ENTRY}, tree=tree)
    user.deploy({"github": ENTRY}, tree=tree, about=About(Scope.USER, "dev", "b" * 64))
    assert not tree.deployment("cursor", "default").exists()
    assert tree.deployment("cursor", "dev").exists()


def test_a_tree_that_cannot_be_told_stops_nothing(user: User, tmp_path: Path) -> None:
    (tmp_path / "system").mkdir(mode=0o500)
    tree = Tree(tmp_path / "system", Scope.SYSTEM)
    about = About(Scope.SYSTEM, "default", "a" * 64)
    user.servers()
    with ordinary():
        done = user.deploy({"github": ENTRY}, about=about, tree=tree)
    assert "Permission denied" in done.warning
    assert user.read() == {"github": ENTRY}
    assert list((tmp_path / "system").iterdir()) == []


def test_a_tree_is_told_of_its_own_scope_only(user: User, tmp_path: Path) -> None:
    own, system = Tree(user.home / ".mcp-orchestration", Scope.USER), Tree(tmp_path / "system", Scope.SYSTEM)
    user.servers()
    user.deploy({"github": ENTRY}, tree=own)
    user.deploy({"time": OTHER}, about=About(Scope.SYSTEM, "default", "c" * 64), tree=system)
    assert json.loads(system.deployment("cursor", "default").read_bytes())["artifact_id"] == "c" * 64
    user.undo(tree=system)
    assert not system.deployment("cursor", "default").exists()
