# SPDX-License-Identifier: LGPL-2.1-or-later
"""Configurations are put into the files of clients and taken out again; what is the user's stays."""

from __future__ import annotations

import json
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deployment_parts import ABOUT, BY_HAND, ENTRY, NATIVE, OTHER, SECRET, User, family, strays
from hypothesis import given
from hypothesis import strategies as st

from mcpd.clients import editing, files
from mcpd.clients.deployments import About
from mcpd.clients.detect import detect
from mcpd.clients.dialects import to_client
from mcpd.clients.families import Families
from mcpd.errors import InvalidArgument, InvalidConfig, McpdError, NotFound
from mcpd.paths import Scope

if TYPE_CHECKING:
    from mcpd.clients.deployments import Drift
    from mcpd.clients.families import Family
    from mcpd.model import JsonValue


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


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


def test_directories_are_made_below_the_home_only(user: User, tmp_path: Path) -> None:
    path = tmp_path / "elsewhere/deep/mcp.json"
    with pytest.raises(InvalidConfig, match=r"there is no directory .*elsewhere/deep"):
        user.deploy({"github": ENTRY}, file=path)
    path.parent.mkdir(parents=True)
    user.deploy({"github": ENTRY}, file=path)
    assert json.loads(path.read_bytes()) == {"mcpServers": {"github": ENTRY}}


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


def test_a_file_that_became_a_symlink_is_refused(user: User) -> None:
    path = user.servers()
    plan = user.deployments.plan(family(), path, {"github": ENTRY})
    path.rename(path.with_name("real"))
    path.symlink_to("real")
    with pytest.raises(InvalidConfig, match="a symlink"):
        user.deployments.apply(plan, ABOUT)
    assert path.is_symlink()
    assert user.deployments.history("cursor") == []


def test_a_broken_file_is_refused_and_stays(user: User) -> None:
    path = user.write(b'{"mcpServers": {')
    with pytest.raises(InvalidConfig, match=r"mcp\.json"):
        user.deploy({"github": ENTRY})
    assert path.read_bytes() == b'{"mcpServers": {'


def test_what_cannot_be_written_is_refused(user: User) -> None:
    with pytest.raises(InvalidArgument, match="cannot be written"):
        user.deploy({"github": {"command": "a\0b"}})
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(InvalidArgument, match="nested"):
        user.deploy({"github": {"command": "a", "args": deep}})
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
    mended = "; repair the file first, as a deployment leaves it alone"
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
