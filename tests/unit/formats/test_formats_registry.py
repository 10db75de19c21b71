# SPDX-License-Identifier: LGPL-2.1-or-later
"""Registries: lists, maps by id, and pages of the official one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidManifest
from mcpd.formats.registry import MAX_ENTRY, parse_item, parse_registry, shortcomings, split
from tests.unit.entries import entry
from tests.unit.formats.server_json_examples import EXAMPLES, of, old, package

if TYPE_CHECKING:
    from mcpd.model import Entry

OFFICIAL = "io.modelcontextprotocol.registry/official"


def item(raw: object, key: str = "") -> Entry:
    return parse_item("entry 3", json.dumps(raw).encode(), "https://example.com/r.json", key)


def test_a_registry_with_a_list() -> None:
    data = {"version": "1.0", "updated": "2025-02-03T00:00:00Z", "servers": [entry("a"), entry("b")]}
    registry = parse_registry(data, "test")
    assert registry.updated == "2025-02-03T00:00:00Z"
    assert [e.id for e in registry.servers] == ["a", "b"]
    assert registry.problems == []


def test_a_registry_with_a_map() -> None:
    short = {"name": "B", "manifest": "https://example.com/b/manifest.json", "integrity": {"manifestSha256": "0" * 64}}
    registry = parse_registry({"servers": {"a": entry("a"), "b": short}}, "test")
    assert [e.id for e in registry.servers] == ["a", "b"]
    assert registry.servers[1].manifest == short["manifest"]
    assert registry.servers[1].to_json() == {"id": "b", **short}
    assert registry.problems == []


def test_missing_required_fields_are_problems_of_a_usable_entry() -> None:
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
        (entry("x", source={"type": "git", "url": "https://a/b", "path": "../.."}), "outside the package source"),
        (entry("x", transports=[{"type": "stdio"}]), "command"),
        (entry("x", name="a\0"), "NUL"),
    ],
)
def test_a_faulty_entry_is_a_problem_and_the_others_stay(raw: object, named: str) -> None:
    registry = parse_registry({"servers": [entry("good"), raw, entry("last")]}, "https://example.com/r.json")
    assert [e.id for e in registry.servers] == ["good", "last"]
    (problem,) = registry.problems
    assert named in problem.message
    assert problem.origin == "https://example.com/r.json"
    assert problem.server_id.isprintable()


def test_names_with_a_slash_become_ids_and_are_kept() -> None:
    mcpds = {"registry": "https://other.example/r.json", "verified": "other", "pinned": True, "content": "0"}
    data = {"servers": [entry("io.github.user/server", origin={"x": 1} | mcpds), entry("io.github.user.server")]}
    registry = parse_registry(data, "test")
    (found,) = registry.servers
    assert found.id == "io.github.user.server"
    assert found.to_json()["origin"] == {"x": 1, "name": "io.github.user/server"}
    assert "another entry" in registry.problems[0].message


def test_a_registry_cannot_set_a_users_configuration() -> None:
    registry = parse_registry({"servers": [entry(config={"endpoint": "evil"}, installDir="/etc")]}, "test")
    assert {"config", "installDir"} & registry.servers[0].to_json().keys() == set()


@pytest.mark.parametrize("data", [None, [], {}, {"servers": 3}, {"servers": None}, "x"])
def test_what_is_no_registry_is_refused(data: object) -> None:
    with pytest.raises(InvalidManifest, match="test: not a registry"):
        parse_registry(data, "test")
    with pytest.raises(InvalidManifest, match="test: not a registry"):
        split(json.dumps(data).encode(), "test")


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "not JSON"),
        (b'{"servers": [', "not JSON"),
        (b'{"servers": [NaN]}', "not JSON"),
        (b'{"servers": []} x', "not JSON"),
        (b'{"servers": [' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_json_is_refused(data: bytes, fault: str) -> None:
    with pytest.raises(InvalidManifest, match=f"^test: {fault}"):
        split(data, "test")


def test_a_registry_is_split_without_reading_its_entries() -> None:
    data = b'{"updated": "2026-01-02", "servers": [{"id": 3}, 4, "\xff"], "version": 1.0, "more": {}}'
    body = split(data, "test")
    assert body.updated == "2026-01-02"
    assert [(found.label, bytes(found.data), found.key) for found in body.items] == [
        ("entry 0", b'{"id": 3}', ""),
        ("entry 1", b"4", ""),
        ("entry 2", b'"\xff"', ""),
    ]


def test_the_items_of_a_map_bring_their_key() -> None:
    (found,) = split(json.dumps({"servers": {"com.x/y": entry() | {"id": "com.x/y"}}}).encode(), "test").items
    assert (found.label, found.key) == ("entry 'com.x/y'", "com.x/y")
    raw = entry()
    del raw["id"]
    assert item(raw, "com.x/y").id == "com.x.y"


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (entry(source={"type": "git", "url": "ext::sh"}), "source.url"),
        (entry(transports=[{"type": "stdio"}]), "transports.0"),
        (entry(configurableProperties=[{"key": "a b"}]), "configurableProperties.0.key"),
        (entry("/etc/passwd"), "server id"),
        (entry(description="x" * MAX_ENTRY), str(MAX_ENTRY)),
        (of("2025-12-11", version=1), "version"),
    ],
)
def test_a_fault_is_told_with_source_entry_and_field(raw: object, named: str) -> None:
    with pytest.raises(InvalidManifest) as caught:
        item(raw)
    assert caught.value.message.startswith("https://example.com/r.json: entry 3")
    assert named in caught.value.message


@pytest.mark.parametrize("data", [b'"\xff"', b'{"id": "\\ud800"}', b"[" * 100_000, b"1e999", b"9" * 5000, b"{} {}"])
def test_an_entry_that_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidManifest, match=r"^test: entry 3"):
        parse_item("entry 3", data, "test")


def test_entries_may_be_server_json() -> None:
    registry = parse_registry({"servers": [EXAMPLES["npm"], {"server": EXAMPLES["remote"] | {"name": "a/b"}}]}, "test")
    assert [found.id for found in registry.servers] == ["io.github.example.weather", "a.b"]
    assert registry.problems == []


def test_of_a_page_of_the_official_registry_the_latest_versions_count() -> None:
    servers = [
        {"server": of("2025-12-11", name=f"a/{name}", packages=[package()]), "_meta": {OFFICIAL: meta}}
        for name, meta in {
            "old": {"isLatest": False},
            "gone": {"isLatest": True, "status": "deleted"},
            "there": {"isLatest": True, "status": "active"},
            "odd": [],
        }.items()
    ]
    page = {"servers": servers, "metadata": {"count": 4}}
    assert [found.id for found in parse_registry(page, "test").servers] == ["a.there", "a.odd"]
    items = split(json.dumps(page).encode(), "test").items
    assert [parse_item(found.label, found.data, "test").id for found in items] == ["a.there", "a.odd"]


def test_nothing_is_made_of_what_is_too_long_for_an_entry() -> None:
    servers = [{"_meta": {OFFICIAL: {"isLatest": False}, "more": "x" * MAX_ENTRY}}, entry("good")]
    first, second = split(json.dumps({"servers": servers}).encode(), "test").items
    with pytest.raises(InvalidManifest, match=str(MAX_ENTRY)):
        parse_item(first.label, first.data, "test")
    assert parse_item(second.label, second.data, "test").id == "good"


def test_of_an_older_page_the_latest_versions_count() -> None:
    servers = [
        old(name=f"a/{name}", packages=[package()]) | {"_meta": {OFFICIAL: {"is_latest": latest}}, "status": status}
        for name, latest, status in [("old", False, "active"), ("gone", True, "deleted"), ("there", True, "active")]
    ]
    page = {"servers": servers, "metadata": {"count": 3}}
    assert [found.id for found in parse_registry(page, "test").servers] == ["a.there"]
    items = split(json.dumps(page).encode(), "test").items
    assert [parse_item(found.label, found.data, "test").id for found in items] == ["a.there"]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (entry(), ""),
        (entry(transports=[], source={"type": "mcpb", "url": "https://example.com/a.mcpb"}), ""),
        (entry(transports=[], source={"type": "oci", "package": "x"}), "container image"),
        (entry(source={"type": "nuget", "package": "x"}), "'nuget'"),
        (entry(transports=[], source={"type": "npm", "package": "x"}), ""),
        (entry(transports=[], source={"type": "pypi", "package": "x"}), ""),
        (entry(source={"type": "pypi"}), "its pypi source has no 'package'"),
        (entry(source={"type": "git", "url": "ssh://git@example.com/a"}), "https or file URL"),
        (entry(source={"type": "git", "url": "https://example.com/a", "version": "1"}), "pinned by 'rev'"),
        (entry(source={"type": "archive", "url": "https://example.com/a.zip"}), "an archive needs source.sha256"),
        (entry(source={"type": "archive", "sha256": "0" * 64}), "its archive source has no 'url'"),
        (entry(source={"type": "archive", "url": "https://x/a", "sha256": "0" * 64, "rev": "1"}), "not by rev"),
        (entry(source={"type": "archive", "url": "https://example.com/a.zip", "sha256": "0" * 64}), ""),
        (entry(source={"type": "mcpb"}), "its mcpb source has no 'url'"),
        (entry(source={"type": "mcpb", "sha256": "0" * 64}), "installed from a file"),
        (entry(source={"type": "mcpb", "url": "https://example.com/a.mcpb", "rev": "1"}), "omit path and rev"),
        (entry(source={"type": "archive", "url": "https://x/a"}, manifest="https://x/m.json"), "source.sha256"),
        (entry(platforms=["windows"]), "Linux"),
        (entry(transports=[{"type": "stdio", "command": "x", "platforms": ["darwin"]}]), "none of its transports"),
        (entry(transports=[{"type": "carrier-pigeon"}]), "none of its transports"),
        (entry(transports=[{"type": "sse", "url": "ftp://x"}], source=None), "does not begin with"),
        (entry(transports=[{"type": "sse", "url": "https://x"}], source={"type": "oci"}), ""),
        (entry(unsupportedReason="it is a\nsecret"), "it is a\\nsecret"),
        ({"id": "a", "manifest": "https://example.com/m.json"}, ""),
    ],
)
def test_what_cannot_be_installed_is_kept_with_the_reason(raw: dict[str, Any], reason: str) -> None:
    found = item(raw)
    assert reason in found.unsupported
    assert bool(reason) == bool(found.unsupported)
    assert item(found.to_json()).to_json() == found.to_json()


def test_a_name_that_is_the_id_is_a_name() -> None:
    assert list(shortcomings(item(entry(name="a")))) == []
    assert list(shortcomings(item(entry(name="")))) == ["has no name"]
    assert item(entry(name="")).to_json()["name"] == "a"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)


@given(json_values, json_values)
def test_any_json_is_read_or_refused(servers: Any, other: Any) -> None:
    data = {"servers": servers, "version": other, "updated": other}
    total = len(servers) if isinstance(servers, (list, dict)) else 0
    try:
        found = parse_registry(data, "test")
    except InvalidManifest:
        return
    assert len(found.servers) <= total
    assert len(found.servers) + len({p.server_id for p in found.problems}) >= bool(total)


@given(st.dictionaries(st.sampled_from(sorted(entry(name="x") | EXAMPLES["npm"])), json_values))
def test_an_entry_wrong_in_any_field_leaves_the_others(wrong: dict[str, Any]) -> None:
    registry = {"version": "1.0", "updated": "", "servers": [entry("first"), entry() | wrong, entry("last")]}
    whole = parse_registry(registry, "test")
    try:
        body = split(json.dumps(registry, allow_nan=False).encode(), "test")
    except ValueError:
        return
    pieces: list[Entry] = []
    faults: list[str] = []
    for found in body.items:
        try:
            pieces.append(parse_item(found.label, found.data, "test", found.key))
        except InvalidManifest as error:
            faults.append(error.message)
    assert all(fault.startswith("test: entry 1") for fault in faults)
    assert {"first", "last"} <= {found.id for found in pieces}
    assert len(pieces) + len(faults) == 3
    assert [found.to_json() for found in pieces] == [found.to_json() for found in whole.servers]
