# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether a client's file still is what was deployed."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from deployment_parts import BY_HAND, ENTRY, NATIVE, OTHER, User, family

from mcpd.cli.clients import target

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.cli.clients.drift import Drift


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


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
    mended = "; the file has to be mended first, a deployment leaves it as it is"
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
    monkeypatch.setattr(target, "signature", lambda _: next(signatures))
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
