# SPDX-License-Identifier: LGPL-2.1-or-later
"""Deployments into clients' files, meanwhile changes and undo."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.clients import editing, files
from mcpd.clients.deployments import About
from mcpd.clients.detect import detect
from mcpd.clients.dialects import to_client
from mcpd.clients.families import Families
from mcpd.clients.tree import Tree
from mcpd.errors import Busy, InvalidArgument, InvalidConfig, McpdError, NotFound, ReadOnly
from mcpd.paths import Scope
from tests.unit.clients.deployment_parts import (
    ABOUT,
    BY_HAND,
    ENTRY,
    NATIVE,
    OTHER,
    SECRET,
    User,
    family,
    ordinary,
    strays,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.clients.deployments import Drift
    from mcpd.clients.families import Family
    from mcpd.model import JsonValue


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_deployment_adds_its_servers_and_nothing_else(user: User) -> None:
    path = user.write({"theme": "dark", "mcpServers": {"mine": BY_HAND}}, mode=0o640)
    plan = user.deployments.plan(family(), path, {"github": ENTRY, "time": OTHER})
    assert (plan.added, plan.changed, plan.removed, plan.kept) == (["github", "time"], [], [], [])
    assert path.read_bytes() == plan.snapshot.data  # Nothing was done yet.
    assert not user.state.exists()
    done = user.deployments.apply(plan, ABOUT)
    assert path.read_bytes() == plan.new
    assert json.loads(path.read_bytes()) == {
        "theme": "dark",
        "mcpServers": {"mine": BY_HAND, "github": ENTRY, "time": OTHER},
    }
    assert mode(path) == 0o640
    assert (done.servers, done.changes, done.created) == (("github", "time"), ("github", "time"), False)
    assert (done.profile_id, done.artifact_id, done.scope) == ("default", "a" * 64, Scope.USER)
    assert done.backup is not None
    assert done.backup.read_bytes() == plan.snapshot.data
    assert user.deployments.managed("cursor", path) == {"github": ENTRY, "time": OTHER}
    assert strays(user.root) == []


@pytest.mark.parametrize("client_id", NATIVE)
def test_every_format_is_deployed_to_and_restored_byte_for_byte(user: User, client_id: str) -> None:
    path = user.write(NATIVE[client_id], client_id)
    user.deploy({"github": ENTRY, "time": OTHER}, client_id)
    first = path.read_bytes()
    assert b"mine" in first
    assert b"github" in first
    user.deploy({"time": {**OTHER, "args": ["run", "time2"]}}, client_id)
    second = path.read_bytes()
    assert b"github" not in second
    assert b"time2" in second
    user.undo(client_id)
    assert path.read_bytes() == first
    user.undo(client_id)
    assert path.read_bytes() == NATIVE[client_id]


@pytest.mark.parametrize("client_id", NATIVE)
def test_every_format_is_made_and_removed_again(user: User, client_id: str) -> None:
    path = user.file(client_id)
    done = user.deploy({"github": ENTRY}, client_id)
    assert done.created
    assert mode(path) == 0o600
    assert mode(path.parent) == 0o700
    form = family(client_id)
    found = editing.read(path.read_bytes(), form.format, form.key, form.shape, "test")
    assert list(found) == ["github"]
    user.undo(client_id)
    assert list(user.home.iterdir()) == []


def test_directories_that_somebody_uses_stay(user: User) -> None:
    user.deploy({"github": ENTRY})
    (user.file().parent / "theirs").write_text("x")
    user.undo()
    assert [path.name for path in user.file().parent.iterdir()] == ["theirs"]


def test_what_is_there_by_hand_is_never_overwritten_unasked(user: User) -> None:
    path = user.servers(github=BY_HAND)
    before = path.read_bytes()
    plan = user.deployments.plan(family(), path, {"github": ENTRY})
    assert (plan.kept, plan.is_empty, plan.new) == (["github"], True, before)
    user.deployments.apply(plan, ABOUT)
    assert path.read_bytes() == before
    user.deploy({})
    assert path.read_bytes() == before


def test_what_is_equal_by_hand_stays_the_users(user: User) -> None:
    path = user.servers(github=ENTRY)
    assert user.deployments.plan(family(), path, {"github": ENTRY}).kept == ["github"]
    user.deploy({"github": ENTRY})
    user.deploy({})
    assert user.read() == {"github": ENTRY}


def test_what_is_taken_over_is_kept_in_the_backup(user: User) -> None:
    path = user.servers(mine=BY_HAND, github=BY_HAND)
    before = path.read_bytes()
    plan = user.deployments.plan(family(), path, {"github": ENTRY}, take_over=["github"])
    assert (plan.changed, plan.kept) == (["github"], [])
    assert SECRET not in plan.diff
    assert list(user.deployments.apply(plan, ABOUT).servers) == ["github"]
    assert user.read() == {"mine": BY_HAND, "github": ENTRY}
    user.deploy({})
    assert user.read() == {"mine": BY_HAND}
    user.undo()
    user.undo()
    assert path.read_bytes() == before


def test_taking_over_what_is_equal_makes_it_ours(user: User) -> None:
    path = user.servers(github=ENTRY)
    plan = user.deployments.plan(family(), path, {"github": ENTRY}, take_over=["github"])
    assert plan.new == plan.snapshot.data
    assert not plan.is_empty
    user.deployments.apply(plan, ABOUT)
    user.deploy({})
    assert user.read() == {}


def test_only_what_is_deployed_can_be_taken_over(user: User) -> None:
    path = user.servers(mine=BY_HAND)
    with pytest.raises(InvalidArgument, match="mine cannot be taken over"):
        user.deployments.plan(family(), path, {"github": ENTRY}, take_over=["mine"])


def test_what_is_no_longer_wanted_goes(user: User) -> None:
    path = user.servers(mine=BY_HAND)
    user.deploy({"github": ENTRY, "time": OTHER})
    plan = user.deployments.plan(family(), path, {"time": OTHER})
    assert plan.removed == ["github"]
    user.deployments.apply(plan, ABOUT)
    assert user.read() == {"mine": BY_HAND, "time": OTHER}


def test_what_was_removed_by_hand_comes_back(user: User) -> None:
    user.servers()
    user.deploy({"github": ENTRY})
    path = user.servers()
    plan = user.deployments.plan(family(), path, {"github": ENTRY})
    assert plan.added == ["github"]


def test_what_was_added_to_an_entry_stays(user: User) -> None:
    user.servers()
    user.deploy({"time": OTHER})
    more: dict[str, JsonValue] = {**OTHER, "env": {"TZ": "${env:TZ}", "KEY": SECRET}, "disabled": True}
    path = user.servers(time=more)
    assert user.deployments.plan(family(), path, {"time": OTHER}).is_empty
    plan = user.deployments.plan(family(), path, {"time": {**OTHER, "args": ["run", "time2"]}})
    assert (plan.changed, plan.restored) == (["time"], [])
    assert SECRET not in plan.diff
    user.deployments.apply(plan, ABOUT)
    assert user.read()["time"] == {**more, "args": ["run", "time2"]}


def test_what_was_changed_in_an_entry_is_restored_and_said(user: User) -> None:
    user.servers()
    user.deploy({"time": OTHER})
    path = user.servers(time={**OTHER, "command": "evil", "disabled": True})
    plan = user.deployments.plan(family(), path, {"time": OTHER})
    assert (plan.changed, plan.restored) == (["time"], ["time"])
    user.deployments.apply(plan, ABOUT)
    assert user.read()["time"] == {**OTHER, "disabled": True}


def test_an_entry_that_becomes_a_url_keeps_nothing_of_the_program(user: User) -> None:
    user.servers()
    user.deploy({"time": OTHER})
    user.servers(time={**OTHER, "cwd": "/somewhere"})
    user.deploy({"time": {"url": "http://127.0.0.1:7412/mcp/time"}})
    assert user.read() == {"time": {"url": "http://127.0.0.1:7412/mcp/time"}}


def test_what_somebody_made_their_own_is_not_removed(user: User) -> None:
    user.servers()
    user.deploy({"github": ENTRY})
    path = user.servers(github=BY_HAND)
    plan = user.deployments.plan(family(), path, {})
    assert (plan.removed, plan.left) == ([], ["github"])
    user.deployments.apply(plan, ABOUT)
    assert user.read() == {"github": BY_HAND}
    assert user.deployments.managed("cursor", path) == {}


def test_deploying_the_same_again_writes_nothing(user: User) -> None:
    path = user.servers()
    user.deploy({"github": ENTRY})
    inode = path.stat().st_ino
    plan = user.deployments.plan(family(), path, {"github": ENTRY})
    assert (plan.is_empty, plan.diff) == (True, "")
    done = user.deployments.apply(plan, About(Scope.USER, "dev", "b" * 64))
    assert path.stat().st_ino == inode
    assert [(each.profile_id, each.artifact_id) for each in user.deployments.history("cursor")] == [("dev", "b" * 64)]
    assert done.number == 1


def test_an_empty_deployment_makes_no_file(user: User) -> None:
    plan = user.deployments.plan(family(), user.file(), {})
    assert (plan.new, plan.diff, plan.is_empty) == (None, "", True)
    user.deployments.apply(plan, ABOUT)
    assert list(user.home.iterdir()) == []
    user.undo()
    with pytest.raises(NotFound):
        user.undo()


def test_a_symlink_is_refused_and_stays(user: User) -> None:
    real = user.home / "dotfiles.json"
    real.write_bytes(b"{}")
    user.file().parent.mkdir()
    user.file().symlink_to(real)
    with pytest.raises(InvalidConfig, match=rf"a symlink.*--file {real}"):
        user.deploy({"github": ENTRY})
    assert user.file().is_symlink()
    assert real.read_bytes() == b"{}"
    user.deploy({"github": ENTRY}, file=real)
    assert user.file().is_symlink()
    assert user.read() == {"github": ENTRY}


def test_a_broken_file_is_refused_and_stays(user: User) -> None:
    path = user.write(b'{"mcpServers": {')
    with pytest.raises(InvalidConfig, match=r"mcp\.json"):
        user.deploy({"github": ENTRY})
    assert path.read_bytes() == b'{"mcpServers": {'


def test_what_cannot_be_written_is_refused(user: User) -> None:
    with pytest.raises(InvalidConfig, match="github: cannot be used"):
        user.deploy({"github": {"command": "a\0b"}})
    assert list(user.home.iterdir()) == []


def test_nothing_is_written_for_looking(user: User) -> None:
    path = user.servers()
    assert user.deployments.history("cursor") == []
    assert user.deployments.managed("cursor", path) == {}
    assert user.deployments.drift(family())[0].status == "none"
    user.deployments.plan(family(), path, {"github": ENTRY})
    with pytest.raises(McpdError):
        user.deployments.plan(family(), path / "below", {})
    assert not user.state.exists()


DEPLOYED = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.sampled_from([ENTRY, OTHER]))
BY_THE_USER = st.dictionaries(st.sampled_from(["a", "x", "y"]), st.sampled_from([BY_HAND, ENTRY]), max_size=2)
STEPS = st.lists(
    st.tuples(st.just("deploy"), DEPLOYED)
    | st.tuples(st.just("edit"), BY_THE_USER)
    | st.tuples(st.just("undo"), st.none()),
    max_size=12,
)


@given(BY_THE_USER, STEPS)
def test_whatever_is_done_in_whatever_order_what_is_the_users_stays(
    tmp_path_factory: pytest.TempPathFactory, first: dict[str, Any], steps: list[tuple[str, Any]]
) -> None:
    user = User(tmp_path_factory.mktemp("user"))
    path = user.servers(**first)
    theirs, theme = dict(first), 0
    for step, wanted in steps:
        ours = user.deployments.managed("cursor", path)
        if step == "edit":
            # A name that is deployed is not theirs to use; all others are as they like.
            theirs = {name: entry for name, entry in wanted.items() if name not in ours}
            theme += 1
            kept = {name: entry for name, entry in user.read().items() if name in ours}
            user.write({"theme": theme, "mcpServers": {**theirs, **kept}})
        elif step == "deploy":
            user.deploy(wanted)
        else:
            with suppress(NotFound, InvalidConfig):
                user.undo(keep_edits=True)
        found = json.loads(path.read_bytes())
        assert found.get("theme", 0) == theme
        ours = user.deployments.managed("cursor", path)
        assert {name: entry for name, entry in found["mcpServers"].items() if name not in ours} == theirs
        assert strays(user.root) == []


SHIPPED = Path(__file__).parents[3] / "data/clients"
IDS = sorted(path.stem for path in SHIPPED.glob("*.toml"))


def shipped(client_id: str) -> Family:
    return Families([SHIPPED]).get(client_id)


def entries(family: Family, *names: str) -> dict[str, JsonValue]:
    return to_client(family, {name: {"command": "mcpctl", "args": ["run", name]} for name in names})


@pytest.mark.parametrize("client_id", IDS)
def test_every_shipped_client_takes_deployments_and_undoes_them(user: User, client_id: str) -> None:
    family, deployments = shipped(client_id), user.deployments
    path = (family.linux_locations(user.home, {}) or [user.home / "elsewhere/file"])[0]
    deployments.apply(deployments.plan(family, path, entries(family, "one", "two")), ABOUT)
    first = path.read_bytes()
    (drift,) = deployments.drift(family)
    assert (drift.status, drift.missing, drift.extended, drift.unexpected) == ("in-sync", (), (), ())
    assert deployments.plan(family, path, entries(family, "one", "two")).is_empty
    plan = deployments.plan(family, path, entries(family, "two", "three"))
    assert (plan.added, plan.changed, plan.removed) == (["three"], [], ["one"])
    assert "***" not in plan.diff
    deployments.apply(plan, ABOUT)
    assert deployments.undo(family, path).number == 2
    assert path.read_bytes() == first
    deployments.undo(family)
    assert list(user.home.iterdir()) == []


def test_every_deployed_client_is_found(user: User) -> None:
    families = [shipped(client_id) for client_id in IDS if shipped(client_id).linux_locations(user.home, {})]
    expected = {}
    for each in families:
        path = each.linux_locations(user.home, {})[0]
        user.deployments.apply(user.deployments.plan(each, path, entries(each, "one", "two")), ABOUT)
        expected[path] = 2
    found = detect(families, user.home, {})
    assert [each.family.id for each in found] == [each.id for each in families]
    assert {each.file: each.servers for each in found} == expected
    assert {each.problem for each in found} == {""}


def drift(user: User, file: Path | None = None) -> Drift:
    """That of the one file there is."""
    (found,) = user.deployments.drift(family(), file)
    return found


def test_nothing_drifts_where_nothing_was_deployed(user: User) -> None:
    path = user.servers(mine=BY_HAND)
    assert (drift(user).status, drift(user).deployed, drift(user).file) == ("none", False, None)
    assert (drift(user, path).status, drift(user, path).file) == ("none", path)


@pytest.mark.parametrize("client_id", NATIVE)
def test_what_was_just_deployed_is_in_sync(user: User, client_id: str) -> None:
    path = user.write(NATIVE[client_id], client_id)
    user.deploy({"github": ENTRY, "time": OTHER}, client_id)
    (found,) = user.deployments.drift(family(client_id))
    assert (found.status, found.deployed, found.file) == ("in-sync", True, path)
    assert (found.missing, found.modified, found.extended, found.unexpected) == ((), (), (), ("mine",))


def test_all_that_can_happen_to_a_server_is_told_apart(user: User) -> None:
    user.servers(mine=BY_HAND)
    user.deploy({"gone": ENTRY, "changed": ENTRY, "cut": OTHER, "more": OTHER, "same": ENTRY})
    user.servers(
        mine=BY_HAND,
        changed={**ENTRY, "command": "evil"},
        cut={name: value for name, value in OTHER.items() if name != "env"},
        more={**OTHER, "env": {"TZ": "${env:TZ}", "LANG": "C"}},
        same=dict(reversed(ENTRY.items())),
        new=ENTRY,
    )
    found = drift(user)
    assert found.to_json() == {
        "file": str(user.file()),
        "deployed": True,
        "status": "drifted",
        "missing": ["gone"],
        "modified": ["changed", "cut"],
        "extended": ["more"],
        "unexpected": ["mine", "new"],
        "problem": "",
    }


def test_what_is_only_extended_is_in_sync(user: User) -> None:
    user.deploy({"time": OTHER})
    user.servers(time={**OTHER, "disabled": True}, mine=BY_HAND)
    assert (drift(user).status, drift(user).extended) == ("in-sync", ("time",))


@pytest.mark.parametrize(
    ("written", "found"),
    [(True, 1), (1, 1.0), ("1", 1), ([], {}), (["a", "b"], ["b", "a"]), (["a"], ["a", "b"]), ("", None)],
    ids=repr,
)
def test_what_only_looks_alike_is_modified(user: User, written: object, found: object) -> None:
    user.deploy({"time": {"command": "x", "field": written}})  # type: ignore[dict-item]
    user.servers(time={"command": "x", "field": found})  # type: ignore[dict-item]
    assert drift(user).modified == ("time",)


def test_a_file_that_is_gone_says_so(user: User) -> None:
    user.deploy({"github": ENTRY})
    user.file().unlink()
    assert (drift(user).status, drift(user).missing) == ("file-missing", ("github",))


def test_a_file_that_cannot_be_read_is_an_answer(user: User) -> None:
    user.deploy({"github": ENTRY})
    user.file().write_bytes(b"{")
    assert drift(user).status == "unreadable"
    mended = "; repair the file first, as a deployment does not change it"
    assert str(user.file()) in drift(user).problem
    assert drift(user).problem.endswith(mended)
    user.file().unlink()
    user.file().symlink_to("nowhere")
    assert drift(user).status == "unreadable"
    assert "a symlink" in drift(user).problem
    assert drift(user).problem.endswith(mended)


def test_a_file_that_is_being_written_needs_no_mending(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    user.deploy({"github": ENTRY})
    signatures = iter(range(9))
    monkeypatch.setattr(files, "signature", lambda _: next(signatures))
    found = drift(user)
    assert found.status == "unreadable"
    assert found.problem.endswith("is being written by another program; try again")


def test_an_undo_takes_the_drift_back(user: User) -> None:
    user.servers()
    user.deploy({"github": ENTRY})
    user.deploy({"time": OTHER})
    user.undo()
    assert (drift(user).status, drift(user).missing) == ("in-sync", ())
    user.undo()
    assert drift(user).status == "none"


def test_every_file_is_looked_at_unless_one_is_named(user: User) -> None:
    user.deploy({"github": ENTRY})
    project, other = user.home / "project/mcp.json", user.home / "other/mcp.json"
    user.deploy({"time": OTHER}, file=project)
    user.deploy({"time": OTHER}, file=other)
    user.deploy({"github": ENTRY, "time": OTHER})
    user.undo(file=other)
    assert not other.exists()
    user.servers(github=ENTRY)
    found = user.deployments.drift(family())
    assert [(each.file, each.status, each.missing) for each in found] == [
        (user.file(), "drifted", ("time",)), (project, "in-sync", ()),
    ]  # fmt: skip
    project.unlink()
    assert [each.status for each in user.deployments.drift(family())] == ["drifted", "file-missing"]
    assert (drift(user, project).file, drift(user, project).status) == (project, "file-missing")
    assert (drift(user, other).status, drift(user, other).deployed) == ("none", False)


def test_a_file_of_which_nothing_is_known_any_more_hides_no_other(user: User) -> None:
    deployed = user.deploy({"github": ENTRY})
    project = user.home / "project/mcp.json"
    user.deploy({"time": OTHER}, file=project)
    state = json.loads((user.state / "cursor.json").read_bytes())
    (entries,) = [each["entries"] for each in state["deployments"] if each["number"] == deployed.number]
    (user.state / "backups" / entries).unlink()
    found = user.deployments.drift(family())
    assert [(each.file, each.status) for each in found] == [(project, "in-sync"), (user.file(), "unreadable")]
    assert re.search(r"is missing.*Move ", found[1].problem)


def test_a_history_that_cannot_be_read_is_an_answer_too(user: User) -> None:
    user.deploy({"github": ENTRY})
    (user.state / "cursor.json").write_bytes(b'{"version": 2, "deployments": []}')
    found = drift(user)
    assert (found.status, found.deployed) == ("unreadable", True)
    assert re.search(r"cursor\.json: version.*Move ", found.problem)


pytestmark = pytest.mark.process


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
    with pytest.raises(Busy, match="was changed by another program in the meantime"):
        user.deployments.apply(plan, ABOUT)
    assert json.loads(path.read_bytes()) == {"mcpServers": {"mine": BY_HAND}, "numStartups": next(starts) - 1}
    assert strays(user.root) == []
    assert user.deployments.history("cursor") == []


def test_servers_that_were_changed_meanwhile_are_not_overwritten(user: User) -> None:
    path = user.servers()
    plan = user.deployments.plan(family(), path, {"github": ENTRY})
    user.servers(github=BY_HAND)
    with pytest.raises(Busy, match="was changed by another program in the meantime"):
        user.deployments.apply(plan, ABOUT)
    assert user.read() == {"github": BY_HAND}


def test_a_file_whose_directory_moved_meanwhile_is_looked_at_again(user: User) -> None:
    path = user.servers(mine=BY_HAND)
    plan = user.deployments.plan(family(), path, {"github": ENTRY})
    path.parent.rename(user.home / "dotfiles")
    path.parent.symlink_to("dotfiles")
    with pytest.raises(Busy, match="was changed by another program in the meantime"):
        user.deployments.apply(plan, ABOUT)
    assert user.read() == {"mine": BY_HAND}
    user.deploy({"github": ENTRY})
    assert user.undo(file=path).file == user.home / "dotfiles/mcp.json"


def test_a_server_that_is_taken_over_is_the_one_that_was_shown(user: User) -> None:
    path = user.servers(github=BY_HAND)
    plan = user.deployments.plan(family(), path, {"github": ENTRY}, take_over=["github"])
    user.servers(github={**BY_HAND, "cwd": "/somewhere"})
    with pytest.raises(Busy, match="was changed by another program in the meantime"):
        user.deployments.apply(plan, ABOUT)
    assert user.read() == {"github": {**BY_HAND, "cwd": "/somewhere"}}


def test_of_two_deployments_the_second_looks_again(user: User) -> None:
    path = user.servers()
    plans = [user.deployments.plan(family(), path, {"github": ENTRY}) for _ in range(2)]
    user.deployments.apply(plans[0], ABOUT)
    with pytest.raises(Busy, match="another deployment changed it"):
        user.deployments.apply(plans[1], ABOUT)
    assert len(user.deployments.history("cursor")) == 1


_MANY = """
import sys
from pathlib import Path
from mcpd.errors import Busy
from tests.unit.clients.deployment_parts import ENTRY, User

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
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
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


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(path.read_bytes() + b"\n"),
        lambda path: path.unlink(),
        lambda path: path.chmod(0o666),
    ],
    ids=["edited", "removed", "chmod"],
)
def test_an_undo_restores_only_what_is_as_it_was_left(user: User, change: Callable[[Path], object]) -> None:
    path = user.servers(mine=BY_HAND)
    before = path.read_bytes()
    user.deploy({"github": ENTRY})
    change(path)
    now = (path.read_bytes(), mode(path)) if path.exists() else None
    with pytest.raises(InvalidConfig, match=r"was changed since the deployment\. --force restores"):
        user.undo()
    assert ((path.read_bytes(), mode(path)) if path.exists() else None) == now
    done = user.undo(force=True)
    assert path.read_bytes() == before
    assert mode(path) == 0o644
    assert done.undone_at is not None
    if now is not None and now[0] != before and done.saved is not None:
        assert done.saved.read_bytes() == now[0]


def test_what_a_forced_undo_replaces_is_kept(user: User) -> None:
    path = user.servers()
    user.deploy({"github": ENTRY})
    path.write_bytes(b"precious")
    done = user.undo(force=True)
    assert done.saved is not None
    assert done.saved.read_bytes() == b"precious"
    assert mode(done.saved) == 0o600
    for number in range(5):
        user.deploy({f"s{number}": ENTRY})
    assert done.saved.read_bytes() == b"precious"


def test_a_forced_undo_of_a_new_file_keeps_what_was_written_into_it(user: User) -> None:
    user.deploy({"github": ENTRY})
    user.file().write_bytes(b"precious")
    done = user.undo(force=True)
    assert not user.file().exists()
    assert done.saved is not None
    assert done.saved.read_bytes() == b"precious"


def test_an_undo_may_take_back_the_servers_alone(user: User) -> None:
    path = user.servers(mine=BY_HAND)
    user.deploy({"github": ENTRY, "time": OTHER})
    found = json.loads(path.read_bytes())
    found["projects"] = {"/home/me": {"history": ["hello"]}}
    found["mcpServers"]["other"] = BY_HAND
    user.write(found)
    user.undo(keep_edits=True)
    del found["mcpServers"]["github"], found["mcpServers"]["time"]
    assert json.loads(path.read_bytes()) == found


def test_an_undo_of_the_servers_alone_brings_back_what_was_taken_over(user: User) -> None:
    path = user.servers(github=BY_HAND, time=BY_HAND)
    user.deploy({"github": ENTRY}, take_over=["github"])
    user.write({**json.loads(path.read_bytes()), "theme": "dark"})
    user.undo(keep_edits=True)
    assert json.loads(path.read_bytes()) == {"mcpServers": {"github": BY_HAND, "time": BY_HAND}, "theme": "dark"}


def test_an_undo_of_the_servers_alone_stops_at_a_server_that_was_changed(user: User) -> None:
    user.servers()
    user.deploy({"github": ENTRY, "time": OTHER})
    user.servers(github=BY_HAND, time=OTHER)
    with pytest.raises(InvalidConfig, match=r"'github': also changed since"):
        user.undo(keep_edits=True)
    assert user.read() == {"github": BY_HAND, "time": OTHER}
    before = user.file().read_bytes()
    done = user.undo(keep_edits=True, force=True)
    assert user.read() == {}
    assert done.saved is not None
    assert done.saved.read_bytes() == before


def test_an_undo_of_the_servers_alone_has_nothing_to_take_out_of_a_file_that_is_gone(user: User) -> None:
    project = user.home / "project/mcp.json"
    project.parent.mkdir()
    project.write_bytes(b"{}")
    user.deploy({"github": ENTRY}, file=project)
    user.deploy({"github": OTHER}, file=project)
    project.unlink()
    project.parent.rmdir()
    with pytest.raises(InvalidConfig, match="was changed since"):
        user.undo(file=project)
    assert [user.undo(file=project, keep_edits=True).number for _ in range(2)] == [2, 1]
    assert user.deployments.drift(family(), project)[0].status == "none"
    assert not project.parent.exists()


def test_an_undo_of_the_servers_alone_looks_where_they_were_put(user: User) -> None:
    """The description of a client may name another place since."""
    path = user.servers()
    user.deploy({"github": ENTRY})
    user.write({**json.loads(path.read_bytes()), "theme": "dark"})
    elsewhere = family().file.model_copy(update={"key": ("elsewhere",)})
    user.deployments.undo(family().model_copy(update={"file": elsewhere}), keep_edits=True)
    assert json.loads(path.read_bytes()) == {"mcpServers": {}, "theme": "dark"}


def test_an_undo_of_what_was_restored_by_hand_is_content(user: User) -> None:
    path = user.servers()
    before, inode = path.read_bytes(), path.stat().st_ino
    user.deploy({"github": ENTRY})
    path.write_bytes(before)
    inode = path.stat().st_ino
    done = user.undo()
    assert (done.undone_at is not None, done.saved) == (True, None)
    assert path.stat().st_ino == inode


def test_each_undo_goes_one_further_back(user: User) -> None:
    path = user.servers()
    contents = [path.read_bytes()]
    for number in range(4):
        user.deploy({f"s{number}": ENTRY})
        contents.append(path.read_bytes())
    for content in contents[-2::-1]:
        user.undo()
        assert path.read_bytes() == content
    with pytest.raises(NotFound, match="no deployment"):
        user.undo()
    user.deploy({"again": ENTRY})
    user.undo()
    assert path.read_bytes() == contents[0]


def test_a_deployment_after_an_undo_knows_what_is_ours(user: User) -> None:
    user.servers()
    user.deploy({"one": ENTRY})
    user.deploy({"two": ENTRY})
    user.undo()
    user.deploy({"three": ENTRY})
    assert user.read() == {"three": ENTRY}


def test_what_is_ours_is_known_however_much_was_undone(user: User) -> None:
    user.servers()
    for number in range(13):
        user.deploy({"ours": ENTRY, f"s{number}": ENTRY})
    for _ in range(10):
        user.undo()
    with pytest.raises(NotFound):
        user.undo()
    assert set(user.read()) == {"ours", "s2"}
    assert user.deployments.plan(family(), user.file(), {}).removed == ["ours", "s2"]


def test_a_deployment_that_stands_is_never_forgotten(user: User) -> None:
    path = user.servers()
    before = path.read_bytes()
    user.deploy({"stands": ENTRY})
    for number in range(12):
        user.deploy({"stands": ENTRY, f"s{number}": ENTRY})
        user.undo()
    assert len(user.deployments.history("cursor")) == 10
    user.undo()
    assert path.read_bytes() == before


def test_the_last_ten_are_remembered_and_no_more_contents_than_they_need(user: User) -> None:
    user.servers()
    for number in range(14):
        user.deploy({f"s{number}": ENTRY})
    history = user.deployments.history("cursor")
    assert [each.number for each in history] == list(range(14, 4, -1))
    assert [each.servers for each in history] == [(f"s{number}",) for number in range(13, 3, -1)]
    times = [each.deployed_at for each in history]
    assert times == sorted(times, reverse=True)
    assert all(each.backup is not None and each.backup.is_file() for each in history)
    # Ten files as they were, eleven sets of entries.
    assert len(user.backups()) == 21
    assert history[0].to_json()["servers"] == ["s13"]


def test_backups_are_the_users_alone(user: User) -> None:
    user.servers(mine=BY_HAND)
    before = os.umask(0)
    try:
        user.deploy({"github": ENTRY})
    finally:
        os.umask(before)
    assert mode(user.state) == 0o700
    assert mode(user.state / "backups") == 0o700
    modes = {path.name: mode(path) for path in user.state.rglob("*") if path.is_file()}
    assert set(modes.values()) == {0o600}, modes
    assert SECRET not in (user.state / "cursor.json").read_text()


def test_files_have_histories_of_their_own(user: User) -> None:
    user.servers()
    project = user.home / "project/.cursor/mcp.json"
    user.deploy({"github": ENTRY})
    user.deploy({"time": OTHER}, file=project)
    assert user.deployments.managed("cursor", project) == {"time": OTHER}
    assert len(user.deployments.history("cursor")) == 2
    assert [each.file for each in user.deployments.history("cursor", project)] == [project]
    assert user.undo(file=user.file()).file == user.file()
    assert project.exists()
    assert user.undo().file == project
    assert not (user.home / "project").exists()


def test_a_file_has_one_history_by_whatever_name_its_directory_has(user: User) -> None:
    path = user.servers()
    (user.home / "link").symlink_to(".cursor")
    user.deploy({"github": ENTRY}, file=user.home / "link/mcp.json")
    assert user.deployments.managed("cursor", path) == {"github": ENTRY}
    user.deploy({}, file=user.home / "link/../.cursor/mcp.json")
    assert user.read() == {}


def test_clients_know_nothing_of_each_other(user: User) -> None:
    user.servers()
    user.write(NATIVE["vscode"], "vscode")
    user.deploy({"github": ENTRY})
    user.deploy({"github": ENTRY}, "vscode")
    assert user.deployments.history("codex") == []
    (user.state / "cursor.json").write_bytes(b"{")
    with pytest.raises(InvalidConfig, match=r"cursor.json: not JSON.*Move .*cursor.json away"):
        user.undo()
    user.undo("vscode")
    assert user.file("vscode").read_bytes() == NATIVE["vscode"]
    assert (user.state / "cursor.json").read_bytes() == b"{"
    # What it may need is not thrown away.
    assert len(user.backups()) >= 2


@pytest.mark.parametrize("client_id", ["", "../x", "A", "a/b", ".lock", "x" * 65])
def test_what_is_no_client_has_no_history(user: User, client_id: str) -> None:
    with pytest.raises(InvalidArgument, match="is not the id of a client"):
        user.deployments.history(client_id)


def test_a_backup_that_is_gone_is_named(user: User) -> None:
    path = user.servers()
    backup = user.deploy({"github": ENTRY}).backup
    assert backup is not None
    now = path.read_bytes()
    backup.write_bytes(b"damaged")
    with pytest.raises(InvalidConfig, match=rf"{backup.name}: is damaged.*Move .*cursor.json away"):
        user.undo()
    backup.unlink()
    with pytest.raises(InvalidConfig, match=rf"{backup.name}: is missing"):
        user.undo(force=True)
    assert path.read_bytes() == now


def test_a_history_whose_entries_are_gone_names_the_way_out(user: User) -> None:
    user.servers()
    user.deploy({"github": ENTRY})
    for path in (user.state / "backups").iterdir():
        path.unlink()
    assert len(user.deployments.history("cursor")) == 1
    with pytest.raises(InvalidConfig, match=r"is missing.*Move .*cursor.json away"):
        user.deploy({"time": OTHER})
    (user.state / "cursor.json").unlink()
    user.deploy({"time": OTHER})
    assert user.read() == {"github": ENTRY, "time": OTHER}
