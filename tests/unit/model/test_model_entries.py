# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from mcpd.errors import InvalidManifest
from mcpd.model import (
    Entry,
    Manifest,
    SourceType,
    Target,
    TransportType,
    ValueType,
    check_git_url,
    check_id,
    dump_json,
    id_from_name,
    load_json,
)
from mcpd.model.base import MAX_LISTED, Strings

SEED: dict[str, Any] = {
    "id": "com.example.my-server",
    "name": "My Server",
    "summary": "Does things",
    "version": "1.2.0",
    "description": "Long",
    "author": "Somebody",
    "homepage": "https://example.com",
    "bugUrl": "https://example.com/bugs",
    "donationUrl": "https://example.com/give",
    "icon": "utilities-terminal",
    "categories": ["mcp", "mcp-web"],
    "capabilities": ["read"],
    "permissions": ["network"],
    "tools": ["a", {"name": "b"}],
    "license": {"name": "MIT", "url": "https://example.com/mit"},
    "releaseDate": "2025-01-15",
    "size": 1048576,
    "screenshots": [{"thumbnail": "t", "url": "u"}],
    "changelog": "New",
    "scope": "system",
    "transports": [
        {"type": "sse", "url": "https://api.example.com/mcp/sse", "description": "Cloud endpoint"},
        {"type": "stdio", "command": "python3", "args": ["server.py"], "description": "Main interface"},
        {"type": "websocket", "wsUrl": "wss://api.example.com/mcp/ws"},
    ],
    "source": {"type": "git", "url": "https://github.com/example/repo.git", "path": "servers/my-server"},
    "configurableProperties": [
        {"key": "api_key", "label": "API Key", "description": "Yours", "sensitive": True, "required": True},
        {"key": "timeout", "label": "Timeout", "default": "30", "sensitive": False, "required": False},
    ],
    "config": {"timeout": "60"},
    "installDir": "/usr/share/mcp/installed/com.example.my-server",
}


def test_every_field_of_the_seed_is_understood_and_kept() -> None:
    manifest = Manifest.parse(SEED, "test")
    assert manifest.to_json() == SEED
    assert manifest.bug_url == SEED["bugUrl"]
    assert manifest.install_dir == SEED["installDir"]
    assert [t.type for t in manifest.transports] == [TransportType.SSE, TransportType.STDIO, TransportType.WEBSOCKET]
    assert manifest.transports[2].ws_url == "wss://api.example.com/mcp/ws"
    assert manifest.source is not None
    assert (manifest.source.type, manifest.source.path) == (SourceType.GIT, "servers/my-server")
    key = manifest.property("api_key")
    assert key is not None
    assert (key.sensitive, key.required, key.target, key.type) == (True, True, Target.MANIFEST, None)
    assert manifest.property("none") is None


def test_the_first_stdio_transport_is_the_primary_one() -> None:
    stdio = Manifest.parse(SEED, "test").stdio
    assert stdio is not None
    assert (stdio.command, stdio.args) == ("python3", ["server.py"])
    assert Entry.parse({"id": "a", "transports": [{"type": "sse", "url": "u"}]}, "test").stdio is None


def test_transports_for_other_platforms_are_passed_over() -> None:
    transports = [
        {"type": "stdio", "command": "cmd.exe", "platforms": ["windows"]},
        {"type": "stdio", "command": "odd", "platforms": "linux"},
        {"type": "stdio", "command": "sh", "platforms": ["darwin", "Linux"]},
    ]
    stdio = Entry.parse({"id": "a", "transports": transports}, "test").stdio
    assert stdio is not None
    assert stdio.command == "sh"


@pytest.mark.parametrize(
    ("platforms", "here"),
    [(None, True), ([], True), ([" "], True), (["linux"], True), (["darwin"], False), ({}, False)],
)
def test_platforms_that_cannot_be_read_cover_nothing(platforms: Any, here: bool) -> None:
    assert Entry.parse({"id": "a", "platforms": platforms}, "test").runs_here is here


def test_the_form_with_type_and_transport_is_read() -> None:
    old = {
        "id": "org.example.fs",
        "name": "Filesystem",
        "type": "stdio",
        "transport": {"command": "fs", "args": ["--root"], "installedCommand": "/opt/fs/bin/fs"},
        "source": {"type": "pip", "package": "fs"},
        "installedVersion": "1.2.0",
        "requiredProperties": [{"key": "a"}],
        "requiredParameters": [{"key": "b", "sensitive": True}, {"key": "a"}],
        "optionalParameters": [{"key": "c", "default": "30"}],
    }
    manifest = Manifest.parse(old, "test")
    assert manifest.stdio is not None
    assert (manifest.stdio.command, manifest.stdio.args) == ("/opt/fs/bin/fs", ["--root"])
    assert manifest.version == "1.2.0"
    assert manifest.source is not None
    assert manifest.source.type is SourceType.PYPI
    assert [(p.key, p.required, p.sensitive, p.default) for p in manifest.configurable_properties] == [
        ("a", True, False, None),
        ("b", True, True, None),
        ("c", False, False, "30"),
    ]
    written = manifest.to_json()
    assert {key: written[key] for key in old if key != "source"} == {k: v for k, v in old.items() if k != "source"}
    assert Manifest.parse(written, "test").to_json() == written


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ({"type": "sse", "transport": {"url": "u"}, "source": {"type": "binary", "url": ""}}, "sse"),
        ({"type": "websocket", "transport": {"wsUrl": "u"}}, "websocket"),
        ({"transport": {"command": "x"}}, "stdio"),
        ({"transport": {"type": "http", "url": "u"}}, "streamable-http"),
        ({"transport": {"url": "u"}}, "sse"),
    ],
)
def test_old_transports_of_every_kind_are_read(data: dict[str, Any], kind: str) -> None:
    assert [str(t.type) for t in Entry.parse({"id": "a", **data}, "test").transports] == [kind]


def test_todays_form_wins_over_an_older_one_in_the_same_entry() -> None:
    both = {**SEED, "type": "sse", "transport": {"url": "old"}, "requiredParameters": [{"key": "old"}]}
    manifest = Manifest.parse(both, "test")
    assert len(manifest.transports) == 3
    assert manifest.property("old") is None
    assert manifest.to_json() == both


def test_kinds_mcpd_does_not_know_are_kept() -> None:
    data = {
        "id": "a",
        "name": "a",
        "transports": [{"type": "carrier-pigeon", "loft": 3}, {"type": "stdio", "command": "x"}],
        "source": {"type": "container", "package": "image"},
        "configurableProperties": [{"key": "k", "type": "colour"}],
    }
    manifest = Manifest.parse(data, "test")
    assert manifest.to_json() == data
    assert manifest.stdio is not None


@pytest.mark.parametrize(("old", "new"), [("int", ValueType.INTEGER), ("bool", ValueType.BOOLEAN), ("", None)])
def test_older_names_of_value_types_are_understood(old: str, new: ValueType | None) -> None:
    data = {"id": "a", "configurableProperties": [{"key": "k", "type": old}]}
    assert Entry.parse(data, "test").configurable_properties[0].type is new


def test_null_stands_for_what_is_not_there() -> None:
    nothing = dict.fromkeys(
        ("name", "summary", "version", "transports", "author", "categories", "configurableProperties", "config", "env")
    )
    manifest = Manifest.parse({"id": "a", **nothing}, "test")
    assert (manifest.name, manifest.transports, manifest.config, manifest.env) == ("a", [], {}, {})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"id": "../etc"}, "id"),
        ({"id": ["a"]}, "id"),
        ({"transports": [{"type": "stdio"}]}, "transports.0"),
        ({"transports": [{"type": "stdio", "command": "a\0b"}]}, "NUL"),
        ({"transports": [{"type": "websocket", "url": "x"}]}, "wsUrl"),
        ({"transports": "stdio"}, "transports"),
        ({"configurableProperties": [{"key": "a b"}]}, "key"),
        ({"configurableProperties": [{"key": "a-b", "target": "env"}]}, "environment"),
        ({"configurableProperties": [{"key": "a"}, {"key": "a"}]}, "twice"),
        ({"configurableProperties": [{"key": "a", "target": "telegram"}]}, "target"),
        ({"source": {"type": "git", "url": "u", "path": "/etc"}}, "source"),
        ({"source": {"type": "git", "url": "u", "path": "a/../../b"}}, "outside the package source"),
        ({"source": {"type": "git", "url": "u", "path": "-x"}}, "relative"),
        ({"source": {"type": "local", "path": "here"}}, "absolute"),
        ({"source": {"type": "local", "path": "/a/../b"}}, "outside the package source"),
        ({"source": {"type": "npm", "package": "x", "sha256": "abc"}}, "sha256"),
        ({"env": {"A=B": "x"}}, "env"),
        ({"env": {"LANG": ["x"]}}, "env"),
        ({"runtime": {"sharing": "everybody"}}, "sharing"),
        ({"config": []}, "config"),
        ({"x": float("nan")}, "finite"),
        ({"x": "\ud800"}, "surrogate"),
        ({"\0": 1}, "NUL"),
        *(
            (
                {name: ["a"] * (MAX_LISTED + 1)},
                f"{name}: has {MAX_LISTED + 1} members; at most {MAX_LISTED} are allowed",
            )
            for name in ("transports", "permissions", "categories", "license", "screenshots", "platforms", "author")
        ),
        ({"changelog": {str(n): "" for n in range(MAX_LISTED + 1)}}, "changelog: has"),
        ({"transports": [{"type": "stdio", "command": "a", "args": ["a"] * 1025}]}, "transports.0.args: has 1025"),
    ],
)
def test_faults_are_named_with_their_place(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidManifest, match=named) as caught:
        Manifest.parse({**SEED, **change}, "registry.json")
    assert caught.value.message.startswith("registry.json: ")


def test_of_many_faults_the_first_is_made_and_no_other() -> None:
    class Counted(BaseModel):
        names: Strings

    with pytest.raises(ValidationError) as caught:
        Counted.model_validate({"names": [[]] * 1000})
    assert caught.value.error_count() == 1


def test_a_fault_never_quotes_a_value() -> None:
    with pytest.raises(InvalidManifest) as caught:
        Manifest.parse({**SEED, "env": {"TOKEN": {"hush": "hush"}}}, "x")
    assert "hush" not in caught.value.message


@pytest.mark.parametrize("data", [None, [], 3, "x", {}, {"id": None}])
def test_what_is_no_entry_is_refused(data: object) -> None:
    with pytest.raises(InvalidManifest):
        Entry.parse(data, "test")


def test_hostile_nesting_is_refused() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidManifest, match="nested"):
        Manifest.parse({**SEED, "x": deep}, "test")
    while isinstance(deep, list):
        deep = deep[0]


@pytest.mark.parametrize("text", [b"[" * 1_000_000, b'{"a":' * 100_000, b"\xff", b"{", b"NaN", b"1" * 10_000, b""])
def test_hostile_json_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidManifest, match="origin: "):
        load_json(text, "origin")


@pytest.mark.parametrize(
    ("document", "fault"),
    [([], "origin: Input should be a valid object"), ({"id": "a", "transports": ["x"]}, "a valid object")],
)
def test_a_fault_speaks_of_json_and_not_of_python(document: object, fault: str) -> None:
    with pytest.raises(InvalidManifest) as caught:
        Entry.parse(document, "origin")
    assert caught.value.message.endswith(fault)


names = st.text(max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=10,
)
extras = st.dictionaries(
    names.map("x-{}".format) | st.sampled_from(["bug_url", "install_dir", "model_config", "copy", "json", "schema"]),
    values,
    max_size=4,
)


@given(top=extras, transport=extras, source=extras, found=extras)
def test_unknown_fields_survive_reading_and_writing(
    top: dict[str, Any], transport: dict[str, Any], source: dict[str, Any], found: dict[str, Any]
) -> None:
    data = {
        **SEED,
        **top,
        "transports": [{**transport, **SEED["transports"][1]}],
        "source": {**source, **SEED["source"]},
        "configurableProperties": [{**found, "key": "k"}],
    }
    text = json.dumps(data, ensure_ascii=False)
    if "\\u0000" in text or any("\ud800" <= character <= "\udfff" for character in text):
        with pytest.raises(InvalidManifest):
            Manifest.parse(data, "test")
        return
    manifest = Manifest.parse(data, "test")
    assert manifest.to_json() == data
    assert load_json(dump_json(manifest.to_json()), "test") == data


@given(values)
def test_any_json_is_an_entry_or_an_invalid_manifest(data: Any) -> None:
    for candidate in (data, {"id": "a", "transports": data, "source": data}, {"id": "a", "config": data, "env": data}):
        with suppress(InvalidManifest):
            assert Manifest.parse(candidate, "test").to_json()["id"]


@given(st.text())
def test_ids_are_safe_file_names(text: str) -> None:
    try:
        server_id = check_id(text)
    except InvalidManifest:
        return
    assert server_id.isascii()
    assert "/" not in server_id
    assert not server_id.startswith(".")


@pytest.mark.parametrize(
    ("name", "server_id"),
    [("io.github.user/server", "io.github.user.server"), ("@scope/pkg", "scope.pkg"), ("a b~c", "a.b.c")],
)
def test_names_become_ids(name: str, server_id: str) -> None:
    assert id_from_name(name) == server_id


@pytest.mark.parametrize("name", ["", "...", "@/", "sse", "meta"])
def test_names_that_cannot_become_ids(name: str) -> None:
    with pytest.raises(InvalidManifest):
        id_from_name(name)


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com/example/repo.git",
        "ssh://git@example.com:22/repo",
        "git://example.com/repo",
        "file:///srv/repo",
        "git@github.com:user/repo.git",
        "example.com:repo",
    ],
)
def test_git_urls_that_are_allowed(url: str) -> None:
    assert check_git_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ext::sh -c touch% /tmp/x",
        "ext::sh",
        "EXT::sh",
        "fd::17",
        "-oProxyCommand=x",
        "--upload-pack=x",
        "http://example.com/repo",
        "ssh://-oProxyCommand=x/repo",
        "ssh://-x@example.com/repo",
        "-x@example.com:repo",
        "https://example.com/\nrepo",
        "https://example.com/a b",
        "file://host/repo",
        "/srv/repo",
        "./repo",
        "https://",
        "https://[::1/x",
        "host::path",
    ],
)
def test_git_urls_that_are_refused(url: str) -> None:
    with pytest.raises(InvalidManifest, match="git URL"):
        check_git_url(url)


def test_json_is_written_for_people() -> None:
    assert dump_json({"ü": [1]}).decode() == '{\n  "ü": [\n    1\n  ]\n}\n'
    assert json.loads(dump_json({"a": 10**30})) == {"a": 10**30}
