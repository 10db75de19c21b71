# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidManifest
from mcpd.model import parse_index, parse_registry


def entry(server_id: str = "a", **more: Any) -> dict[str, Any]:
    return {
        "id": server_id,
        "name": "A",
        "summary": "s",
        "version": "1",
        "transports": [{"type": "stdio", "command": "x"}],
        "source": {"type": "git", "url": "https://example.com/a.git"},
        **more,
    }


def test_S11_a_registry_with_a_list() -> None:
    data = {"version": "1.0", "updated": "2025-02-03T00:00:00Z", "servers": [entry("a"), entry("b")]}
    registry = parse_registry(data, "test")
    assert (registry.version, registry.updated) == ("1.0", "2025-02-03T00:00:00Z")
    assert [e.id for e in registry.servers] == ["a", "b"]
    assert registry.problems == []


def test_C19_a_registry_with_a_map() -> None:
    short = {"name": "B", "manifest": "https://example.com/b/manifest.json", "integrity": {"manifestSha256": "0" * 64}}
    registry = parse_registry({"servers": {"a": entry("a"), "b": short}}, "test")
    assert [e.id for e in registry.servers] == ["a", "b"]
    assert registry.servers[1].manifest == short["manifest"]
    assert registry.servers[1].to_json() == {"id": "b", **short}
    assert registry.problems == []


def test_S12_missing_required_fields_are_problems_of_a_usable_entry() -> None:
    bare = {"id": "a", "transports": [{"type": "stdio", "command": "x"}]}
    registry = parse_registry({"servers": [bare]}, "test")
    assert [e.id for e in registry.servers] == ["a"]
    assert [p.message for p in registry.problems] == [
        "a: has no name, summary, version",
        "a: has a stdio transport but no source",
    ]


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (3, "not an object"),
        ({}, "id"),
        (entry("../../etc"), "server id"),
        (entry("sse"), "reserved"),
        (entry("a\nb"), "server id"),
        (entry("good"), "another entry"),
        (entry("x", transports=[]), "no transports"),
        (entry("x", source={"type": "git", "url": "ext::sh -c x"}), "git URL"),
        (entry("x", source={"type": "git", "url": "--upload-pack=x"}), "git URL"),
        (entry("x", source={"type": "git", "url": "https://a/b", "path": "../.."}), "climbs"),
        (entry("x", transports=[{"type": "stdio"}]), "command"),
        (entry("x", name="a\0"), "NUL"),
    ],
)
def test_S36_a_faulty_entry_is_a_problem_and_the_others_stay(raw: object, named: str) -> None:
    registry = parse_registry({"servers": [entry("good"), raw, entry("last")]}, "https://example.com/r.json")
    assert [e.id for e in registry.servers] == ["good", "last"]
    (problem,) = registry.problems
    assert named in problem.message
    assert problem.origin == "https://example.com/r.json"
    assert problem.server_id.isprintable()


def test_names_with_a_slash_become_ids_and_are_kept() -> None:
    data = {"servers": [entry("io.github.user/server", origin={"x": 1}), entry("io.github.user.server")]}
    registry = parse_registry(data, "test")
    (found,) = registry.servers
    assert found.id == "io.github.user.server"
    assert found.to_json()["origin"] == {"x": 1, "name": "io.github.user/server"}
    assert "another entry" in registry.problems[0].message


def test_a_registry_cannot_set_a_users_configuration() -> None:
    registry = parse_registry({"servers": [entry(config={"endpoint": "evil"}, installDir="/etc")]}, "test")
    assert {"config", "installDir"} & registry.servers[0].to_json().keys() == set()


@pytest.mark.parametrize("data", [None, [], {}, {"servers": 3}, {"servers": None}, "x"])
def test_what_is_no_registry_or_index_is_refused(data: object) -> None:
    for parse in (parse_registry, parse_index):
        with pytest.raises(InvalidManifest, match="test: not a"):
            parse(data, "test")


def test_S15_the_index_of_the_seed() -> None:
    data = {"servers": {"a": {"location": "/x/a/manifest.json"}}}
    index = parse_index(data, "test")
    assert index.servers["a"].location == "/x/a/manifest.json"
    assert not index.legacy
    assert index.to_json() == data


def test_manifest_is_another_name_of_location_and_other_fields_are_kept() -> None:
    data = {"version": 2, "servers": {"a": {"manifest": "/x", "keywords": ["k"]}, "b": "/y"}}
    assert parse_index(data, "test").to_json() == {
        "version": 2,
        "servers": {"a": {"location": "/x", "keywords": ["k"]}, "b": {"location": "/y"}},
    }


def test_S35_the_older_index_holds_whole_objects() -> None:
    index = parse_index({"servers": [entry("a"), 3, {"id": "../x"}]}, "test")
    assert index.legacy
    assert index.servers["a"].embedded == entry("a")
    assert len(index.problems) == 2


def test_S36_unusable_index_entries_are_problems_and_kept() -> None:
    data = {"servers": {"ok": {"location": "/x"}, "../x": {"location": "/x"}, "rel": {"location": "x"}, "odd": [1]}}
    index = parse_index(data, "test")
    assert list(index.servers) == ["ok"]
    assert [p.server_id for p in index.problems] == ["../x", "rel", "odd"]
    assert index.to_json() == data


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)


@given(json_values, json_values)
def test_any_json_is_read_or_refused(servers: Any, other: Any) -> None:
    data = {"servers": servers, "version": other, "updated": other}
    total = len(servers) if isinstance(servers, (list, dict)) else 0
    for parse in (parse_registry, parse_index):
        try:
            found = parse(data, "test")
        except InvalidManifest:
            continue
        assert len(found.servers) <= total
        assert len(found.servers) + len({p.server_id for p in found.problems}) >= bool(total)
