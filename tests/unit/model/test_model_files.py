# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidManifest
from mcpd.model import parse_index
from tests.unit.entries import entry


@pytest.mark.parametrize("data", [None, [], {}, {"servers": 3}, {"servers": None}, "x"])
def test_what_is_no_index_is_refused(data: object) -> None:
    with pytest.raises(InvalidManifest, match="test: not an index"):
        parse_index(data, "test")


def test_the_index_of_the_seed() -> None:
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


def test_the_older_index_holds_whole_objects() -> None:
    index = parse_index({"servers": [entry("a"), 3, {"id": "../x"}]}, "test")
    assert index.legacy
    assert index.servers["a"].embedded == entry("a")
    assert len(index.problems) == 2


def test_unusable_index_entries_are_problems_and_kept() -> None:
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
def test_any_index_is_read_or_refused(servers: Any, other: Any) -> None:
    data = {"servers": servers, "version": other}
    total = len(servers) if isinstance(servers, (list, dict)) else 0
    try:
        found = parse_index(data, "test")
    except InvalidManifest:
        return
    assert len(found.servers) <= total
    assert len(found.servers) + len({p.server_id for p in found.problems}) >= bool(total)
