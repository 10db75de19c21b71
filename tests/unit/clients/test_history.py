# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is remembered of deployments, and what is read of it again, whatever has become of it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.clients.editing import same
from mcpd.clients.history import MOST, History, Record, State
from mcpd.clients.plans import holds, merged
from mcpd.errors import InvalidConfig, McpdError
from mcpd.paths import Scope
from tests.unit.clients.deployment_parts import ENTRY, OTHER, User

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mcpd.model import JsonValue


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.write_bytes(b""), "not JSON"),
        (lambda path: path.write_bytes(b"\xff"), "not UTF-8"),
        (lambda path: path.write_bytes(b"[]"), "object"),
        (lambda path: path.write_bytes(b"[" * 100_000), "nested"),
        (lambda path: path.write_text('{"deployments": [{"number": 0}]}'), "deployments"),
        (lambda path: path.write_text('{"version": 9}'), "version"),
        (lambda path: os.truncate(path, 9 << 20), "larger"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "not a regular file"),
        (lambda path: (path.unlink(), path.mkdir()), "not a regular file"),
    ],
    ids=["empty", "bytes", "list", "deep", "fields", "later", "huge", "fifo", "directory"],
)
def test_a_damaged_history_is_named_and_left_alone(user: User, damage: Callable[[Path], object], says: str) -> None:
    client = user.servers()
    user.deploy({"github": ENTRY})
    before = client.read_bytes()
    path = user.state / "cursor.json"
    damage(path)
    status = path.stat()
    for change in (
        lambda: user.deployments.history("cursor"),
        lambda: user.deploy({"time": OTHER}),
        lambda: user.undo(force=True),
    ):
        with pytest.raises(InvalidConfig, match=rf"cursor.json: .*{says}.*Move .*cursor.json away"):
            change()
    assert path.stat().st_mtime_ns == status.st_mtime_ns
    assert client.read_bytes() == before


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("file", "relative"),
        ("before", "../../etc/passwd"),
        ("after_mode", 0o10000),
        ("key", "mcpServers"),
        ("made", ["x"]),
        ("number", -1),
    ],
)
def test_a_record_with_something_else_in_it_is_refused(user: User, field: str, value: object) -> None:
    user.deploy({"github": ENTRY})
    path = user.state / "cursor.json"
    found = json.loads(path.read_bytes())
    found["deployments"][0][field] = value
    path.write_text(json.dumps(found))
    with pytest.raises(InvalidConfig, match=rf"deployments\.0\.{field}"):
        user.deployments.history("cursor")


def test_a_temporary_name_leads_nowhere_else(user: User) -> None:
    user.deploy({"github": ENTRY})
    path = user.state / "cursor.json"
    found = json.loads(path.read_bytes())
    found["pending"] = {"record": found["deployments"][0], "temp": "../../victim", "old": None, "new": None}
    path.write_text(json.dumps(found))
    with pytest.raises(InvalidConfig, match=r"pending\.temp"):
        user.deployments.history("cursor")


def test_fields_of_a_later_version_are_kept(user: User) -> None:
    user.servers()
    user.deploy({"github": ENTRY})
    path = user.state / "cursor.json"
    found = json.loads(path.read_bytes())
    found["later"] = {"a": 1}
    found["deployments"][0]["later"] = [2]
    path.write_text(json.dumps(found))
    user.deploy({"time": OTHER})
    found = json.loads(path.read_bytes())
    assert found["later"] == {"a": 1}
    assert found["deployments"][1]["later"] == [2]


def test_contents_are_kept_once_and_checked(tmp_path: Path) -> None:
    history = History(tmp_path / "state")
    name = history.keep(b"content")
    assert history.keep(b"content") == name
    assert history.fetch("cursor", name) == b"content"
    history.path(name).write_bytes(b"other")
    with pytest.raises(InvalidConfig, match="is damaged"):
        history.fetch("cursor", name)
    assert history.keep(b"content") == name
    assert history.fetch("cursor", name) == b"content"


def test_what_is_no_backup_is_not_read_as_one(tmp_path: Path) -> None:
    history = History(tmp_path / "state")
    name = history.keep(b"content")
    history.path(name).unlink()
    os.mkfifo(history.path(name))
    with pytest.raises(McpdError, match="not a regular file"):
        history.fetch("cursor", name)


def test_foreign_files_beside_the_history_stay(user: User) -> None:
    user.servers()
    user.deploy({"github": ENTRY})
    for name in ("README", "backups/notes.txt", "Upper.json"):
        (user.state / name).write_text("theirs")
    user.deploy({"time": OTHER})
    for name in ("README", "backups/notes.txt", "Upper.json"):
        assert (user.state / name).read_text() == "theirs"


def record(number: int, *, undone: bool, saved: bool = False, file: str = "/f") -> Record:
    return Record(
        number=number,
        file=file,
        scope=Scope.USER,
        profile_id="default",
        artifact_id="a" * 64,
        deployed_at="2026-01-01T00:00:00Z",
        format="json",
        key=("mcpServers",),
        shape="map",
        changes=(),
        servers=(),
        entries="0" * 64,
        entries_before="1" * 64,
        before=None,
        before_mode=0o600,
        after="2" * 64,
        after_mode=0o600,
        undone_at="2026-01-02T00:00:00Z" if undone else None,
        saved="3" * 64 if saved else None,
    )


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40))
def test_never_more_than_ten_and_never_without_the_newest_that_stands(kinds: list[tuple[bool, bool]]) -> None:
    state, stands = State(), list[bool]()
    for number, (undone, saved) in enumerate(kinds, 1):
        state = state.put(record(number, undone=False))
        assert state.deployments[0].number == number
        if undone:
            state = state.put(record(number, undone=True, saved=saved))
        stands.append(not undone)
        assert len(state.deployments) == min(number, 10)
        assert state.next_number() == number + 1
        numbers = [each.number for each in state.deployments]
        assert numbers == sorted(numbers, reverse=True)
        newest = state.active()
        assert (newest is not None) is any(stands)
        if newest is not None:
            assert newest.number == len(stands) - stands[::-1].index(True)


def test_files_without_number_do_not_make_the_history_endless() -> None:
    state = State(deployments=tuple(record(number, undone=False, file=f"/{number}") for number in range(MOST, 0, -1)))
    state = state.put(record(MOST + 1, undone=False, file="/another"))
    assert [each.number for each in state.deployments] == list(range(MOST + 1, 1, -1))


def test_a_history_never_becomes_too_large_to_be_read(tmp_path: Path) -> None:
    history = History(tmp_path)
    names = tuple(f"server-{number}" for number in range(2_000))
    records = [record(number, undone=False, file=f"/{number}") for number in range(200, 0, -1)]
    history.save("cursor", State(deployments=tuple(each.model_copy(update={"servers": names}) for each in records)))
    found = history.load("cursor").deployments
    assert found[0].number == 200
    assert 100 < len(found) < 200


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=6,
)
OBJECT = st.dictionaries(st.sampled_from("abcd"), JSON, max_size=4)


@given(OBJECT, OBJECT)
def test_what_nobody_touched_becomes_what_is_wanted(
    written: dict[str, JsonValue], wanted: dict[str, JsonValue]
) -> None:
    assert same(merged(written, written, wanted), wanted)


@given(OBJECT, OBJECT, OBJECT)
def test_what_is_wanted_is_there_whatever_somebody_did(
    written: dict[str, JsonValue], found: dict[str, JsonValue], wanted: dict[str, JsonValue]
) -> None:
    result = merged(written, found, wanted)
    assert isinstance(result, dict)
    assert holds(result, wanted)
    assert same(merged(wanted, result, wanted), result)
    for name in found.keys() - written.keys() - wanted.keys():
        assert same(result[name], found[name])


@given(JSON, JSON)
def test_holding_each_other_is_being_the_same(one: JsonValue, other: JsonValue) -> None:
    assert holds(one, one)
    assert (holds(one, other) and holds(other, one)) == same(one, other)
