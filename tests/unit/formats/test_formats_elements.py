# SPDX-License-Identifier: LGPL-2.1-or-later
"""Taking long lists and maps of JSON apart."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidManifest
from mcpd.formats import registry
from mcpd.formats.registry import MAX_ITEMS, MAX_KEY, elements, parse_item, parse_page, split

if TYPE_CHECKING:
    from collections.abc import Callable

texts = st.text(st.sampled_from('a"\\[]{},: \n\u20ac\U0001f600'), max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)


@given(st.lists(values) | st.dictionaries(texts, values), st.booleans(), st.sampled_from([None, 2]))
def test_all_elements_are_found_however_they_are_written(whole: Any, is_ascii: bool, indent: int | None) -> None:
    data = json.dumps(whole, ensure_ascii=is_ascii, indent=indent).encode()
    found = [(key, json.loads(bytes(part))) for key, part in elements(memoryview(data))]
    assert found == (list(whole.items()) if isinstance(whole, dict) else [("", item) for item in whole])


@pytest.mark.parametrize("servers", [b"0," * 2_000_000, b'"a":0,' * 1_000_000], ids=["list", "map"])
def test_of_entries_without_end_only_the_first_are_made(servers: bytes) -> None:
    start, end = (b"{", b"}") if servers.startswith(b'"') else (b"[", b"]")
    data = b'{"servers":' + start + servers.rstrip(b",") + end + b"}"
    tracemalloc.start()
    try:
        body = split(data, "test")
        with pytest.raises(
            InvalidManifest, match="test: not a registry: more than 1000 of its entries are not objects"
        ):
            list(body.items)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_entries_of_lists_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAX_BRACKETS", 100)
    assert len(list(split(b'{"servers":[' + b"{}," * 97 + b"{}]}", "test").items)) == 98
    with pytest.raises(InvalidManifest, match="test: more than 100 lists and objects"):
        split(b'{"servers":[[' + b"[]," * 97 + b"[]]]}", "test")


def test_a_key_without_end_is_no_id() -> None:
    data = json.dumps({"servers": {"a" * (MAX_KEY + 1): {}}}).encode()
    (found,) = split(data, "test").items
    with pytest.raises(InvalidManifest, match=f"^test: entry 'a+': its key has {MAX_KEY + 1} characters"):
        parse_item(found.label, found.data, "test", found.key)


@pytest.mark.parametrize("key", [b"\xff", b"a b\xc3"], ids=["byte", "half"])
def test_a_key_that_is_no_text_is_a_fault_of_its_entry(key: bytes) -> None:
    first, last = split(b'{"servers":{"' + key + b'":{},"b":{}}}', "test").items
    with pytest.raises(InvalidManifest, match=r"^test: entry '.*cannot become a server id"):
        parse_item(first.label, first.data, "test", first.key)
    assert (last.key, bytes(last.data)) == ("b", b"{}")


@pytest.mark.parametrize(
    "whole", [lambda items: b'{"servers":[' + items + b"]}", lambda items: b'{"servers":{"a":[' + items + b"]}}"]
)
def test_a_page_with_items_without_end_is_refused(whole: Callable[[bytes], bytes]) -> None:
    with pytest.raises(
        InvalidManifest, match=f"test: not a page of a registry: servers: not a list of at most {MAX_ITEMS}"
    ):
        parse_page(whole(b"0," * 1_000_000 + b"0"), "test")
    assert parse_page(b'{"servers":null}', "test") == []
