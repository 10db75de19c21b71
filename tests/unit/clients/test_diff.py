# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.clients.diff import compare, report
from mcpd.clients.payload import canonical
from tests.unit.clients.payload_parts import payload

A, B = "a" * 64, "b" * 64
FILES = {"command": "npx", "args": ["-y", "files"]}


def brave(version: str) -> dict[str, Any]:
    return {"command": "npx", "args": [f"@modelcontextprotocol/server-brave-search@{version}"]}


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[Any]:
    found: Any = compare(payload(one=old), payload(one=new))["servers_modified"]
    return found[0]["changes"] if found else []


def paths(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return [change["path"] for change in changes(old, new)]


def test_equal_configurations_are_up_to_date() -> None:
    local = payload(filesystem=FILES, brave=brave("0.1.0"))
    assert report(local, copy.deepcopy(local), A, A) == {
        "status": "up-to-date",
        "local_artifact_id": A,
        "remote_artifact_id": A,
        "diff": {
            "servers_added": [],
            "servers_removed": [],
            "servers_modified": [],
            "servers_unchanged": ["brave", "filesystem"],
        },
        "summary": {"total_changes": 0, "added_count": 0, "removed_count": 0, "modified_count": 0},
        "recommendation": "Your configuration is current. No updates needed.",
    }


def test_the_outdated_example_of_the_source_document_is_outdated() -> None:
    local = payload(filesystem=FILES, **{"brave-search": brave("0.1.0")})
    remote = payload(filesystem=FILES, github=FILES, **{"brave-search": brave("0.2.0")})
    assert report(local, remote, B, A) == {
        "status": "outdated",
        "local_artifact_id": B,
        "remote_artifact_id": A,
        "diff": {
            "servers_added": ["github"],
            "servers_removed": [],
            "servers_modified": [
                {
                    "server_id": "brave-search",
                    "changes": [
                        {
                            "path": "args[0]",
                            "old_value": "@modelcontextprotocol/server-brave-search@0.1.0",
                            "new_value": "@modelcontextprotocol/server-brave-search@0.2.0",
                        }
                    ],
                }
            ],
            "servers_unchanged": ["filesystem"],
        },
        "summary": {"total_changes": 2, "added_count": 1, "removed_count": 0, "modified_count": 1},
        "recommendation": "Update available: 1 new server, 1 server updated. Run 'get_config' to fetch latest.",
    }


@pytest.mark.parametrize(
    ("local", "remote", "status", "recommendation"),
    [
        pytest.param(
            payload(),
            payload(a=FILES, b=FILES),
            "outdated",
            "Update available: 2 new servers. Run 'get_config' to fetch latest.",
            id="only-new",
        ),
        pytest.param(
            payload(a=FILES, b=FILES),
            payload(a=brave("1"), b=brave("1")),
            "outdated",
            "Update available: 2 servers updated. Run 'get_config' to fetch latest.",
            id="only-updated",
        ),
        pytest.param(
            payload(a=FILES),
            payload(),
            "diverged",
            "Your configuration has 1 server that the published one does not have. Run 'get_config' to fetch latest,"
            " and keep your own servers when you apply it.",
            id="only-removed",
        ),
        pytest.param(
            payload(a=FILES, b=FILES, c=FILES),
            payload(c=brave("1"), d=FILES),
            "diverged",
            "Your configuration has 2 servers that the published one does not have; beyond that: 1 new server,"
            " 1 server updated. Run 'get_config' to fetch latest, and keep your own servers when you apply it.",
            id="all",
        ),
    ],
)
def test_the_recommendation_follows_from_the_status(
    local: dict[str, Any], remote: dict[str, Any], status: str, recommendation: str
) -> None:
    found = report(local, remote, A, B)
    assert (found["status"], found["recommendation"]) == (status, recommendation)


def test_what_was_published_before_is_outdated_whatever_an_update_removes() -> None:
    local, remote = payload(a=FILES, b=FILES, c=FILES), payload(c=brave("1"), d=FILES)
    found = report(local, remote, A, B, published=True)
    assert (found["status"], found["recommendation"]) == (
        "outdated",
        "Update available: 1 new server, 1 server updated, 2 servers removed. Run 'get_config' to fetch latest.",
    )
    assert found["diff"] == report(local, remote, A, B)["diff"]
    assert report(local, local, A, A, published=True)["status"] == "up-to-date"


def test_the_summary_counts_servers_and_not_fields() -> None:
    local, remote = payload(a={"command": "x", "args": ["1", "2"]}, b=FILES), payload(a={"command": "y", "args": []})
    assert report(local, remote, A, B)["summary"] == {
        "total_changes": 2,
        "added_count": 0,
        "removed_count": 1,
        "modified_count": 1,
    }


def test_servers_are_sorted_by_name() -> None:
    found = compare(payload(z=FILES, y=FILES, k=FILES, j=FILES), payload(b=FILES, a=FILES, k=FILES, j=FILES))
    assert found["servers_added"] == ["a", "b"]
    assert found["servers_removed"] == ["y", "z"]
    assert found["servers_unchanged"] == ["j", "k"]


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        pytest.param({"command": "a"}, {"command": "b"}, "command", id="field"),
        pytest.param({"args": ["a", "b"]}, {"args": ["a", "c"]}, "args[1]", id="index"),
        pytest.param({"env": {"KEY": "a"}}, {"env": {"KEY": "b"}}, "env.KEY", id="key"),
        pytest.param({"a": {"b": [0, {"c": 1}]}}, {"a": {"b": [0, {"c": 2}]}}, "a.b[1].c", id="nested"),
        pytest.param({"env": {"a.b": "1"}}, {"env": {"a.b": "2"}}, 'env["a.b"]', id="dotted"),
        pytest.param({"headers": {"X-Key": "1"}}, {"headers": {"X-Key": "2"}}, 'headers["X-Key"]', id="dash"),
        pytest.param({"env": {'a"]b': 1}}, {"env": {'a"]b': 2}}, 'env["a\\"]b"]', id="quote"),
        pytest.param({"env": {"": 1}}, {"env": {"": 2}}, 'env[""]', id="empty"),
        pytest.param({"env": {"0": 1}}, {"env": {"0": 2}}, 'env["0"]', id="number"),
        pytest.param({"ключ": 1}, {"ключ": 2}, '["ключ"]', id="first-and-not-ascii"),
    ],
)
def test_paths_are_written_like_javascript(old: dict[str, Any], new: dict[str, Any], path: str) -> None:
    assert paths(old, new) == [path]


def test_a_value_on_one_side_only_is_null_on_the_other() -> None:
    assert changes({"args": ["a", "b"]}, {"args": ["a"], "env": {"K": "v"}, "cwd": "/"}) == [
        {"path": "args[1]", "old_value": "b", "new_value": None},
        {"path": "cwd", "old_value": None, "new_value": "/"},
        {"path": "env", "old_value": None, "new_value": {"K": "v"}},
    ]
    assert changes({"x": None}, {}) == [{"path": "x", "old_value": None, "new_value": None}]


def test_a_value_of_another_kind_is_one_change() -> None:
    assert changes({"args": ["a"]}, {"args": {"0": "a"}}) == [
        {"path": "args", "old_value": ["a"], "new_value": {"0": "a"}}
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(1, True, id="one-true"),
        pytest.param(0, False, id="zero-false"),
        pytest.param(1, 1.0, id="integer-float"),
        pytest.param(0.0, -0.0, id="zeros"),
        pytest.param("", None, id="empty-null"),
        pytest.param([], {}, id="list-object"),
        pytest.param("1", 1, id="text-number"),
    ],
)
def test_what_is_hashed_differently_is_different(old: Any, new: Any) -> None:
    assert paths({"x": old}, {"x": new}) == ["x"]
    assert paths({"x": old}, {"x": copy.deepcopy(old)}) == []


def test_nothing_recurses_and_nothing_takes_long_on_hostile_depth() -> None:
    def deep(end: object) -> Any:
        value: Any = end
        for number in range(50_000):
            value = {"k": value} if number % 2 else [value]
        return {"x": value}

    assert compare(payload(a=deep(1)), payload(a=deep(1)))["servers_unchanged"] == ["a"]
    (change,) = changes(deep(1), deep(2))
    assert (change["old_value"], change["new_value"]) == (1, 2)
    assert change["path"].startswith("x.k[0].k[0]")


@pytest.mark.parametrize("local", [{}, {"mcpServers": None}, {"mcpServers": []}], ids=["nothing", "null", "list"])
def test_what_holds_no_servers_has_none(local: dict[str, Any]) -> None:
    assert compare(local, payload(a=FILES))["servers_added"] == ["a"]


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
JSON = st.recursive(
    LEAF,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
PAYLOADS = st.dictionaries(TEXT, st.dictionaries(TEXT, JSON, max_size=3), max_size=3).map(
    lambda servers: {"mcpServers": servers}
)
STEP = re.compile(r'\.?([A-Za-z_][A-Za-z0-9_]*)|\[([0-9]+)\]|\[("(?:[^"\\]|\\.)*")\]')


def at(value: Any, path: str) -> Any:
    """What lies at *path*, as a reader of the answer would look it up; None if there is nothing."""
    position = 0
    while position < len(path):
        found = STEP.match(path, position)
        assert found is not None, path
        position = found.end()
        key: Any = found[1] if found[1] is not None else int(found[2]) if found[2] else json.loads(found[3])
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int):
            value = value[key] if key < len(value) else None
        else:
            return None
    return value


@given(PAYLOADS, PAYLOADS)
def test_the_report_is_complete_exact_and_symmetric(local: dict[str, Any], remote: dict[str, Any]) -> None:
    found: Any = compare(local, remote)
    old, new = local["mcpServers"], remote["mcpServers"]
    modified = [each["server_id"] for each in found["servers_modified"]]
    assert set(found["servers_added"]) == new.keys() - old.keys()
    assert set(found["servers_removed"]) == old.keys() - new.keys()
    assert sorted(modified + found["servers_unchanged"]) == sorted(old.keys() & new.keys())
    assert [canonical(old[name]) for name in found["servers_unchanged"]] == [
        canonical(new[name]) for name in found["servers_unchanged"]
    ]
    for each in found["servers_modified"]:
        name = each["server_id"]
        assert canonical(old[name]) != canonical(new[name])
        spelled = [change["path"] for change in each["changes"]]
        assert len(set(spelled)) == len(spelled)
        for change in each["changes"]:
            assert canonical(at(old[name], change["path"])) == canonical(change["old_value"])
            assert canonical(at(new[name], change["path"])) == canonical(change["new_value"])
    back: Any = compare(remote, local)
    assert back["servers_added"] == found["servers_removed"]
    assert [each["server_id"] for each in back["servers_modified"]] == modified
    assert (report(local, remote, A, B)["status"] == "up-to-date") == (canonical(old) == canonical(new))
