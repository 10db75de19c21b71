# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.clients.drafts import MAX_PAYLOAD, Drafts
from mcpd.clients.errors import InvalidInput
from mcpd.clients.payload import parse_payload
from mcpd.errors import InvalidConfig, McpdError
from tests.unit.clients.payload_parts import Clock, payload

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.clients.tree import Tree

BASE = "5d1e89f8b569eb213a5cf1bf10dcee64c305f19b5da834332891eb4c53e9a130"
ONE = payload(one={"command": "x", "args": []})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def drafts(tree: Tree, clock: Clock) -> Drafts:
    return Drafts(tree, clock)


def test_there_is_no_draft_at_first_and_looking_makes_nothing(drafts: Drafts, tree: Tree) -> None:
    assert drafts.get("cursor", "default") is None
    assert drafts.clear("cursor", "default") is False
    assert not tree.root.exists()


def test_a_draft_outlives_the_process(drafts: Drafts, tree: Tree, clock: Clock) -> None:
    drafts.put("cursor", "default", {**ONE, "other": [1]}, BASE)
    found = Drafts(tree, clock).get("cursor", "default")
    assert found is not None
    assert found.payload == {**ONE, "other": [1]}
    assert (found.client_id, found.profile_id, found.base_artifact_id) == ("cursor", "default", BASE)
    assert found.created_at == found.updated_at == clock.now
    assert tree.draft("cursor", "default").read_text().count('_at": "2025-10-23T14:30:00.000000Z"') == 2


def test_each_client_and_profile_has_its_own(drafts: Drafts) -> None:
    drafts.put("cursor", "default", ONE, None)
    assert drafts.get("cursor", "dev") is None
    assert drafts.get("claude-desktop", "default") is None


def test_a_draft_keeps_the_time_when_it_was_begun(drafts: Drafts, clock: Clock) -> None:
    drafts.put("cursor", "default", ONE, None)
    begun, clock.now = clock.now, clock.now + timedelta(hours=1)
    again = drafts.put("cursor", "default", payload(), None)
    assert (again.created_at, again.updated_at) == (begun, clock.now)
    assert drafts.get("cursor", "default") == again


def test_nobody_else_reads_a_users_draft(drafts: Drafts, tree: Tree) -> None:
    drafts.put("cursor", "default", ONE, None)
    assert stat.S_IMODE(tree.draft("cursor", "default").stat().st_mode) == 0o600


def test_a_cleared_draft_is_gone(drafts: Drafts, tree: Tree) -> None:
    drafts.put("cursor", "default", ONE, None)
    assert drafts.clear("cursor", "default") is True
    assert drafts.get("cursor", "default") is None
    assert drafts.clear("cursor", "default") is False
    assert not tree.draft("cursor", "default").exists()


GOOD: dict[str, Any] = {
    "client_id": "cursor",
    "profile_id": "default",
    "base_artifact_id": None,
    "created_at": "2025-10-23T14:30:00Z",
    "updated_at": "2025-10-23T14:30:00Z",
    "payload": ONE,
}


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        pytest.param(b"", "not JSON", id="empty"),
        pytest.param(b"{", "not JSON", id="cut-off"),
        pytest.param(b"\xff\xfe", "", id="not-utf-8"),
        pytest.param(b"[" * 100_000, "nested", id="deep"),
        pytest.param(json.dumps(GOOD).replace('"x"', '"\\ud800"').encode(), "surrogate", id="half-surrogate"),
        pytest.param(json.dumps({**GOOD, "profile_id": "dev"}).encode(), "another client or profile", id="other"),
        pytest.param(json.dumps({**GOOD, "payload": {"mcpServers": []}}).encode(), "payload", id="payload"),
        pytest.param(json.dumps({**GOOD, "base_artifact_id": "../x"}).encode(), "base_artifact_id", id="base"),
        pytest.param(json.dumps({**GOOD, "created_at": "yesterday"}).encode(), "created_at", id="time"),
        pytest.param(
            json.dumps({**GOOD, "created_at": "0001-01-01T00:00:00+23:00"}).encode(), "created_at", id="ancient"
        ),
        pytest.param(json.dumps({**GOOD, "updated_at": None}).encode(), "updated_at", id="no-time"),
    ],
)
def test_a_file_that_is_no_draft_is_named_with_the_way_out(
    drafts: Drafts, tree: Tree, content: bytes, fault: str
) -> None:
    drafts.put("cursor", "default", ONE, None)
    path = tree.draft("cursor", "default")
    path.write_bytes(content)
    with pytest.raises(InvalidConfig) as caught:
        drafts.get("cursor", "default")
    assert caught.value.message.count(str(path)) == 1
    assert fault in caught.value.message
    assert "'mcpctl client draft clear cursor --profile default'" in caught.value.message
    with pytest.raises(InvalidConfig):
        drafts.put("cursor", "default", ONE, None)
    assert path.read_bytes() == content
    assert drafts.clear("cursor", "default") is True
    drafts.put("cursor", "default", ONE, None)


def test_a_draft_of_a_later_version_may_have_more_keys(drafts: Drafts, tree: Tree) -> None:
    drafts.put("cursor", "default", ONE, None)
    tree.draft("cursor", "default").write_text(json.dumps({**GOOD, "note": "x"}))
    found = drafts.get("cursor", "default")
    assert found is not None
    assert found.payload == ONE


def test_a_draft_that_is_no_file_is_neither_followed_nor_waited_for(drafts: Drafts, tree: Tree, tmp_path: Path) -> None:
    drafts.put("cursor", "default", ONE, None)
    path = tree.draft("cursor", "default")
    elsewhere = tmp_path / "elsewhere.json"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(McpdError, match="/cursor/default"):
        drafts.get("cursor", "default")
    assert drafts.clear("cursor", "default") is True
    assert elsewhere.exists()
    os.mkfifo(path)
    with pytest.raises(McpdError, match="/cursor/default"):
        drafts.get("cursor", "default")
    assert drafts.clear("cursor", "default") is True
    path.mkdir()
    with pytest.raises(McpdError, match="/cursor/default"):
        drafts.clear("cursor", "default")


@pytest.mark.parametrize("name", ["../x", "", "A", "a/b", "a\0"])
def test_an_id_that_is_none_never_becomes_a_path(drafts: Drafts, name: str) -> None:
    with pytest.raises(InvalidInput):
        drafts.put(name, "default", ONE, None)
    with pytest.raises(InvalidInput):
        drafts.get("cursor", name)


def test_a_draft_too_large_to_be_read_again_is_refused(drafts: Drafts) -> None:
    drafts.put("cursor", "default", ONE, None)
    with pytest.raises(InvalidInput, match="larger than"):
        drafts.put("cursor", "default", payload(one={"command": "x" * MAX_PAYLOAD}), None)
    found = drafts.get("cursor", "default")
    assert found is not None
    assert found.payload == ONE


@pytest.mark.parametrize(
    ("value", "field"),
    [
        pytest.param(None, None, id="null"),
        pytest.param([], None, id="list"),
        pytest.param("{}", None, id="text"),
        pytest.param({}, "mcpServers", id="nothing"),
        pytest.param({"mcpServers": None}, "mcpServers", id="null-servers"),
        pytest.param({"mcpServers": []}, "mcpServers", id="list-of-servers"),
        pytest.param({"mcpServers": {"a": "npx"}}, "mcpServers.a", id="text-server"),
        pytest.param({"mcpServers": {"a": [["command", "x"]]}}, "mcpServers.a", id="pairs"),
        pytest.param({"mcpServers": {"a": {"command": "\0"}}}, None, id="nul"),
        pytest.param({"mcpServers": {"a": {"x": float("nan")}}}, None, id="nan"),
    ],
)
def test_what_is_no_payload_is_refused(value: Any, field: str | None) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_payload(value, "local_payload")
    assert caught.value.message.startswith("local_payload: ")
    assert caught.value.members == ({"details": {"field": field}} if field else {})


def test_a_payload_nested_beyond_reason_is_refused() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidInput, match="nested"):
        parse_payload({"mcpServers": {"a": {"b": deep}}}, "x")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_whatever_is_given_is_a_payload_or_an_error(value: Any) -> None:
    cases: list[Any] = [value, {"mcpServers": value}, {"mcpServers": {"a": value}}]
    for each in cases:
        with suppress(InvalidInput):
            assert parse_payload(each, "x") == each
            assert all(isinstance(entry, dict) for entry in each["mcpServers"].values())
