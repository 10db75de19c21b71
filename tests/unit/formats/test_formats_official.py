# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pages of the official registry's API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidManifest
from mcpd.formats.registry import OfficialItem, next_cursor, parse_page
from tests.unit.formats.server_json_examples import EXAMPLES, of

OFFICIAL = "io.modelcontextprotocol.registry/official"


def written(*servers: object, **metadata: Any) -> bytes:
    return json.dumps({"servers": servers, "metadata": metadata}).encode()


def page(*servers: object) -> list[OfficialItem]:
    return parse_page(written(*servers), "https://example.com/v0.1/servers")


def item(raw: object) -> OfficialItem:
    (found,) = page(raw)
    return found


def version(document: dict[str, Any], **official: Any) -> dict[str, Any]:
    return {"server": document, "_meta": {OFFICIAL: official}}


def test_a_page() -> None:
    meta = {"status": "active", "publishedAt": "2025-01-01T00:00:00Z", "updatedAt": "2025-12-11T01:02:03.5Z"}
    cursor = "io.github.example/weather:1.0.2"
    data = written(version(EXAMPLES["npm"], **meta, isLatest=True), nextCursor=cursor, count=1)
    assert next_cursor(data, "test") == cursor
    (only,) = parse_page(data, "test")
    assert (only.name, only.problem) == ("io.github.example/weather", "")
    assert (only.deleted, only.is_latest, only.updated_at) == (False, True, "2025-12-11T01:02:03.5Z")
    assert only.entry is not None
    assert only.entry.id == "io.github.example.weather"


def test_the_last_page_has_no_cursor() -> None:
    for data in (written(), b'{"servers": null, "metadata": null}'):
        assert next_cursor(data, "test") == ""
        assert parse_page(data, "test") == []


@pytest.mark.parametrize(
    ("meta", "deleted", "is_latest"),
    [({"status": "deleted", "isLatest": True}, True, True), ({"isLatest": False}, False, False)],
)
def test_what_is_gone_or_superseded_is_not_read(meta: dict[str, Any], deleted: bool, is_latest: bool) -> None:
    found = item(version(of("2025-12-11", packages="wrong"), **meta))
    assert (found.deleted, found.is_latest, found.entry, found.problem) == (deleted, is_latest, None, "")
    assert found.name == "io.github.example/weather"


def test_the_older_form_of_a_page() -> None:
    official = {"id": "1", "published_at": "2025-07-01T00:00:00Z", "updated_at": "2025-07-09", "is_latest": True}
    document = EXAMPLES["first schema"] | {"_meta": {OFFICIAL: official}}
    data = written(document, next_cursor="x", count=1)
    assert next_cursor(data, "test") == "x"
    (only,) = parse_page(data, "test")
    assert (only.updated_at, only.problem) == ("2025-07-09", "")
    assert only.entry is not None
    assert only.entry.version == "1.0.2"
    assert item(EXAMPLES["first schema"] | {"status": "deleted"}).deleted


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (3, "item 0: not an object"),
        ({"server": 3}, "item 0: not an object"),
        (version(of("2025-12-11", packages=3)), "item 0: 'io.github.example/weather': Expected"),
        (version(of("2025-12-11", name="..")), "cannot become a server id"),
        (version(of("2025-12-11", description="x" * 300_000)), "bytes long"),
    ],
)
def test_a_faulty_item_is_told_and_the_others_stay(raw: object, named: str) -> None:
    bad, good = page(raw, version(EXAMPLES["remote"]))
    assert bad.problem.startswith("https://example.com/v0.1/servers: item 0: ")
    assert named in bad.problem
    assert bad.entry is None
    assert good.entry is not None


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"servers": {}}', b'{"servers": [], "metadata": 3}', b'{"servers": [' + b"[" * 100_000],
)
def test_what_is_no_page_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidManifest, match=r"^test: not a page"):
        parse_page(data, "test")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"servers": [], "metadata": 3}'])
def test_what_is_no_page_has_no_cursor(data: bytes) -> None:
    with pytest.raises(InvalidManifest, match=r"^test: not a page"):
        next_cursor(data, "test")


def test_a_cursor_without_end_is_refused() -> None:
    with pytest.raises(InvalidManifest, match="nextCursor"):
        next_cursor(written(nextCursor="x" * 10_000), "test")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["server", "_meta", "name", "packages"]), json_values), json_values)
def test_any_item_is_read_or_told(raw: dict[str, Any], meta: Any) -> None:
    for found in page(raw, version(of("2025-12-11"), status=meta, isLatest=meta, updatedAt=meta)):
        assert found.entry is None or not found.problem
        assert isinstance(found.updated_at, str)
