# SPDX-License-Identifier: LGPL-2.1-or-later
"""Entries and server.json, there and back."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mcpd.errors import InvalidManifest
from mcpd.formats.registry import parse_item, parse_page, parse_registry, split
from mcpd.formats.server_json import entry_of, registry_of, server_json_of
from mcpd.model import Entry, Manifest
from tests.unit.formats.server_json_examples import EXAMPLES, NEWEST, of

PUBLISHER = "io.modelcontextprotocol.registry/publisher-provided"

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
keys = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
words = st.lists(
    st.one_of(texts, keys.map("{{config.{}}}".format), keys.map("{{config.{0}?--{0}}}".format), st.just("@a/b")),
    max_size=4,
)
properties = st.lists(
    st.fixed_dictionaries(
        {"key": keys},
        optional={
            "label": texts,
            "description": texts,
            "sensitive": st.booleans(),
            "required": st.booleans(),
            "default": values,
            "target": st.sampled_from(["manifest", "env", "arg", "header"]),
            "type": st.sampled_from(["string", "number", "integer", "boolean", "path", "list", "odd"]),
            "choices": values,
        },
    ),
    max_size=4,
    unique_by=lambda item: str(item["key"]),
)
transports = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("stdio"), "command": st.sampled_from(["npx", "uvx", "weather", "python3"])},
        optional={"args": words, "description": texts},
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["sse", "streamable-http"]), "url": st.just("https://{config.a}.example.com/mcp")},
        optional={"headers": values | st.dictionaries(keys, texts | keys.map("Bearer {{config.{}}}".format))},
    ),
    st.fixed_dictionaries({"type": st.just("websocket"), "wsUrl": st.just("wss://example.com/mcp")}),
)
sources = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["npm", "pypi", "oci", "mcpb", "archive", "gem"])},
        optional={"package": texts, "version": texts, "url": texts, "sha256": st.just("0" * 64)},
    ),
    st.fixed_dictionaries({"type": st.just("git"), "url": st.just("https://github.com/a/b.git")}),
)
entries = st.fixed_dictionaries(
    {
        "id": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True).filter(
            lambda i: i not in {"sse", "meta"}
        ),
        "transports": st.lists(transports, min_size=1, max_size=3),
    },
    optional={
        "name": texts,
        "summary": st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=150),
        "version": texts,
        "description": texts,
        "source": sources,
        "homepage": texts | st.just("https://example.com"),
        "icon": texts | st.just("https://example.com/i.png"),
        "author": values,
        "license": values,
        "categories": st.lists(texts, max_size=2),
        "permissions": st.lists(texts, max_size=2),
        "configurableProperties": properties,
        "env": values | st.dictionaries(keys, texts | keys.map("x{{config.{}}}".format)),
        "origin": values | st.fixed_dictionaries({"name": texts | st.just("com.example/x")}),
        "repository": values,
        "tools": values,
        "serverJson": values | st.sampled_from(list(EXAMPLES.values())),
        "x-other": values,
    },
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_published_document_comes_back_as_it_is(name: str) -> None:
    document = EXAMPLES[name]
    entry = entry_of(copy.deepcopy(document), "test")
    assert server_json_of(entry) == document
    assert server_json_of(Entry.parse(json.loads(json.dumps(entry.to_json())), "test")) == document


@given(entries)
def test_any_entry_comes_back_from_server_json(raw: dict[str, Any]) -> None:
    entry = Entry.parse(raw, "test")
    document = server_json_of(entry)
    assert entry_of(json.loads(json.dumps(document)), "test").to_json() == entry.to_json()


@given(entries)
def test_any_entry_comes_back_from_a_registry(raw: dict[str, Any]) -> None:
    entry = Entry.parse(raw, "test")
    exported = registry_of([entry], "2026-01-02T03:04:05Z")
    (again,) = parse_registry(exported, "test").servers
    assert again.to_json() == entry.to_json()
    body = split(json.dumps(exported).encode(), "test")
    assert body.updated == "2026-01-02T03:04:05Z"
    assert [parse_item(*item[:2], "test", item.key).to_json() for item in body.items] == [entry.to_json()]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_registry_of_converted_entries_loses_nothing(name: str) -> None:
    registry = parse_registry(registry_of([entry_of(EXAMPLES[name], "test")], ""), "test")
    assert [server_json_of(entry) for entry in registry.servers] == [EXAMPLES[name]]


@given(st.dictionaries(st.sampled_from(sorted(of("x") | EXAMPLES["remote"] | EXAMPLES["npm"])), values), st.data())
def test_a_document_that_is_wrong_anywhere_is_refused_or_comes_back(wrong: dict[str, Any], data: st.DataObject) -> None:
    document = copy.deepcopy(data.draw(st.sampled_from(list(EXAMPLES.values()))))
    inner = data.draw(st.sampled_from([document, *document.get("packages", []), *document.get("remotes", [])]))
    inner[data.draw(st.sampled_from(sorted(inner)))] = data.draw(values)
    document |= wrong
    try:
        entry = entry_of(document, "test")
    except InvalidManifest as error:
        refused = error.message
    else:
        refused = ""
        assert server_json_of(entry) == document
    assert refused.startswith("test: ") or not refused


def test_an_edited_document_counts_by_what_it_shows() -> None:
    raw = {"id": "com.example.x", "transports": [{"type": "stdio", "command": "npx", "args": ["x"]}]}
    entry = Entry.parse(raw | {"source": {"type": "npm", "package": "x"}, "license": "MIT"}, "test")
    document = server_json_of(entry)
    assert entry_of(document, "test").license == "MIT"
    edited: dict[str, Any] = {**document, "packages": [{**document["packages"][0], "identifier": "y"}]}  # type: ignore[index, dict-item]
    found = entry_of(edited, "test")
    assert found.source is not None
    assert (found.id, found.source.package) == ("com.example.x", "y")
    assert found.license == ""
    assert server_json_of(found) == edited


def test_what_is_hidden_in_a_document_cannot_take_the_id_of_another_server() -> None:
    raw = {"id": "com.other.server", "origin": {"name": "com.example/mine"}, "manifest": "https://example.com/m.json"}
    document = server_json_of(Entry.parse(raw, "test"))
    assert document["name"] == "com.other/server"
    assert entry_of(document, "test").id == "com.other.server"
    assert entry_of(document | {"name": "com.example/mine"}, "test").id == "com.example.mine"


SHOWN: dict[str, Any] = {
    "id": "com.example.x",
    "origin": {"name": "com.example/x"},
    "transports": [{"type": "sse", "url": "https://example.com/sse"}],
}


@pytest.mark.parametrize(
    "hidden",
    [
        {"source": {"type": "archive", "url": "https://example.com/x.tgz", "sha256": "0" * 64}},
        {"transports": [{"type": "stdio", "command": "sh", "args": ["-c", "id"]}, *SHOWN["transports"]]},
        {"manifest": "https://example.com/m.json"},
        {"env": {"NODE_OPTIONS": "--import=data:text/javascript,0"}},
        {"id": "weather", "origin": {"name": "local/weather"}},
    ],
)
def test_what_others_published_installs_what_it_shows(hidden: dict[str, Any]) -> None:
    document = server_json_of(Entry.parse(SHOWN | hidden, "test"))
    found = entry_of(document, "test", published=True).to_json()
    assert (found.get("source"), found.get("env"), found.get("manifest")) == (None, None, None)
    assert found["transports"] == SHOWN["transports"]
    assert found["id"] == document["name"].replace("/", ".")  # type: ignore[union-attr]
    item = {"servers": [{"server": document}]}
    assert [entry.to_json() for entry in parse_registry(item, "test").servers] == [found]
    (published,) = parse_page(json.dumps(item).encode(), "test")
    assert published.entry is not None
    assert published.entry.to_json() == found


@given(entries)
def test_any_document_that_others_published_is_what_it_shows(raw: dict[str, Any]) -> None:
    document = server_json_of(Entry.parse(raw, "test"))
    shown = {name: value for name, value in document.items() if name != "_meta"}
    try:
        seen = entry_of(shown, "test").to_json()
    except InvalidManifest:
        with pytest.raises(InvalidManifest):
            entry_of(document, "test", published=True)
        return
    found = entry_of(document, "test", published=True).to_json()
    for field in ("id", "source", "transports", "env", "manifest"):
        assert found.get(field) == seen.get(field)


def test_words_that_others_published_stay() -> None:
    words = {"license": "MIT", "description": "Much more of it", "permissions": ["network?remote"]}
    document = server_json_of(Entry.parse(SHOWN | words, "test"))
    assert entry_of(document, "test", published=True).to_json() == SHOWN | words | {"name": "com.example.x"}


@pytest.mark.parametrize(
    ("server_id", "name"),
    [
        ("com.example.my-server", "com.example/my-server"),
        ("weather", "local/weather"),
        ("my_org.weather", "local/my_org.weather"),
        ("weather.", "local/weather."),
    ],
)
def test_the_name_that_an_id_has_elsewhere(server_id: str, name: str) -> None:
    entry = Entry.parse({"id": server_id, "manifest": "https://example.com/m.json"}, "test")
    assert server_json_of(entry)["name"] == name
    assert entry_of(server_json_of(entry), "test").id == server_id


def test_an_entry_changed_since_is_not_what_its_document_says() -> None:
    entry = entry_of(EXAMPLES["npm"], "test").model_copy(update={"summary": "Another one"})
    document = server_json_of(entry)
    assert document["description"] == "Another one"
    assert entry_of(document, "test").to_json() == entry.to_json()


def test_a_users_configuration_is_not_given_away() -> None:
    raw = {
        "id": "x",
        "transports": [{"type": "stdio", "command": "x"}],
        "config": {"k": "private"},
        "installDir": "/home",
        "origin": {"name": "x", "registry": "private", "verified": "private", "content": "private", "pinned": True},
    }
    manifest = Manifest.parse(raw, "test")
    for document in (server_json_of(manifest), registry_of([manifest], "")):
        assert not {"private", "/home"} & set(json.dumps(document).split('"'))


@given(entries)
def test_what_is_made_of_any_entry_is_a_server_json(raw: dict[str, Any]) -> None:
    entry = Entry.parse({name: value for name, value in raw.items() if name != "serverJson"}, "test")
    Draft202012Validator(NEWEST).validate(server_json_of(entry))


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_made_of_a_changed_document_says_the_same(name: str) -> None:
    entry = entry_of(EXAMPLES[name], "test").model_copy(update={"summary": "x" * 300})
    document = server_json_of(entry)
    Draft202012Validator(NEWEST).validate(document)
    del document["_meta"]
    again, said = entry_of(document, "test").to_json(), entry.to_json()
    for field in ("id", "transports", "source", "env", "permissions"):
        assert again.get(field) == said.get(field)
