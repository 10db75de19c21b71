# SPDX-License-Identifier: LGPL-2.1-or-later
"""Manifests of MCPB bundles as entries."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidManifest
from mcpd.formats.mcpb import entry_of_bundle
from mcpd.model import Entry
from mcpd.model.placeholders import expand, placeholders

ORIGIN = "x.mcpb"
FULL: dict[str, Any] = {
    "manifest_version": "0.3",
    "name": "my-extension",
    "display_name": "My Extension",
    "version": "1.0.0",
    "description": "Searches files",
    "long_description": "Searches files in directories.",
    "author": {"name": "Somebody", "email": "somebody@example.com"},
    "repository": {"type": "git", "url": "https://example.com/somebody/my-extension.git"},
    "documentation": "https://docs.example.com/my-extension",
    "support": "https://example.com/issues",
    "icon": "icon.png",
    "icons": [{"src": "https://example.com/icon.png", "size": "16x16"}],
    "screenshots": ["assets/one.png", "https://example.com/two.png"],
    "server": {
        "type": "node",
        "entry_point": "server/index.js",
        "mcp_config": {
            "command": "node",
            "args": ["${__dirname}${/}server/index.js", "${user_config.directories}", "--size", "${user_config.size}"],
            "env": {"API_KEY": "${user_config.api_key}", "NODE_PATH": "${__dirname}/lib"},
        },
    },
    "tools": [{"name": "search_files", "description": "Search for files"}],
    "prompts": [{"name": "poetry", "text": "Write about ${arguments.topic}", "arguments": ["topic"]}],
    "keywords": ["files"],
    "license": "MIT",
    "privacy_policies": ["https://example.com/privacy"],
    "compatibility": {"claude_desktop": ">=1.0.0", "platforms": ["darwin", "linux"], "runtimes": {"node": ">=16"}},
    "user_config": {
        "directories": {
            "type": "directory",
            "title": "Directories",
            "description": "What the server may see",
            "multiple": True,
            "required": True,
            "default": ["${HOME}/Desktop"],
        },
        "api_key": {"type": "string", "title": "Key", "description": "Yours", "sensitive": True},
        "size": {"type": "number", "title": "Size", "description": "At most", "min": 1, "max": 100},
    },
    "_meta": {"com.example": {"anything": [1]}},
}


def bundle(server: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    manifest = {"manifest_version": "0.4", "name": "b", "version": "1", "description": "d", "author": {"name": "a"}}
    python = {"type": "python", "entry_point": "main.py", "mcp_config": {"command": "python", "args": ["main.py"]}}
    return manifest | {"server": server or python} | fields


def started(entry: Entry) -> tuple[str, ...]:
    assert entry.stdio is not None
    return (entry.stdio.command, *entry.stdio.args)


def words(entry: Entry, values: dict[str, Any]) -> list[str]:
    """What *entry* is started with, configured with *values*."""
    return [word for text in started(entry) for word in expand(text, values)]


def mcp_config(kind: str, command: str, *args: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "entry_point": "main", "mcp_config": {"command": command, "args": list(args), **more}}


def test_a_full_manifest_becomes_an_entry() -> None:
    entry = entry_of_bundle(FULL, ORIGIN)
    assert (entry.id, entry.name, entry.version, entry.summary) == (
        "my-extension",
        "My Extension",
        "1.0.0",
        FULL["description"],
    )
    assert (entry.description, entry.bug_url, entry.license) == (FULL["long_description"], FULL["support"], "MIT")
    assert (entry.homepage, entry.icon) == (FULL["repository"]["url"], "https://example.com/icon.png")
    assert entry.screenshots == ["https://example.com/two.png"]
    assert entry.categories == ["files"]
    assert entry.source is None
    assert entry.runs_here
    assert started(entry) == (
        "node",
        "./server/index.js",
        "{config.directories}",
        "{config.size?--size}",
        "{config.size}",
    )
    document = entry.to_json()
    assert document["env"] == {"API_KEY": "{config.api_key}", "NODE_PATH": "./lib"}
    assert document["permissions"] == ["network", "filesystem:rw:{config.directories}"]
    for name in ("prompts", "privacy_policies", "compatibility", "_meta", "icons", "documentation"):
        assert document["mcpb"][name] == FULL[name]


def test_what_the_user_gives_becomes_properties() -> None:
    entry = entry_of_bundle(FULL, ORIGIN)
    directories, key, size = (entry.property(name) for name in ("directories", "api_key", "size"))
    assert directories is not None
    assert (directories.label, directories.type, directories.required) == ("Directories", "list", True)
    # The server has another home, so the default is no more than a suggestion.
    assert directories.default is None
    assert directories.to_json()["placeholder"] == ["~/Desktop"]
    assert key is not None
    assert (key.sensitive, key.required) == (True, False)
    assert size is not None
    assert (size.type, size.to_json()["min"], size.to_json()["max"]) == ("number", 1, 100)


def test_an_option_goes_with_the_value_that_is_not_given() -> None:
    entry = entry_of_bundle(FULL, ORIGIN)
    assert words(entry, {"directories": ["/a", "/b"]}) == ["node", "./server/index.js", "/a", "/b"]
    assert words(entry, {"directories": ["/a"], "size": 3}) == ["node", "./server/index.js", "/a", "--size", "3"]


@pytest.mark.parametrize("version", ["0.1", "0.2", "0.3", "0.4"])
@pytest.mark.parametrize("field", ["manifest_version", "dxt_version"])
def test_all_versions_under_both_names(version: str, field: str) -> None:
    manifest = {key: value for key, value in FULL.items() if key != "manifest_version"} | {field: version}
    assert entry_of_bundle(manifest, ORIGIN).id == "my-extension"


@pytest.mark.parametrize("version", ["1.0", "0.5", "", None, 4, ["0.3"]])
def test_other_versions_are_refused(version: Any) -> None:
    with pytest.raises(InvalidManifest, match=r"x\.mcpb: manifest_version: .* is not one of 0\.1, 0\.2"):
        entry_of_bundle(FULL | {"manifest_version": version}, ORIGIN)


def test_the_caller_gives_the_id() -> None:
    assert entry_of_bundle(FULL, ORIGIN, id="com.example.files").id == "com.example.files"


@pytest.mark.parametrize(
    ("server", "argv"),
    [
        (mcp_config("python", "python", "-m", "pkg"), ("python3", "-m", "pkg")),
        (mcp_config("binary", "${__dirname}/bin/x", "--config=${__dirname}/c"), ("./bin/x", "--config=./c")),
        (mcp_config("binary", "main"), ("./main",)),
        ({"type": "binary", "entry_point": "server/x"}, ("./server/x",)),
        ({"type": "node", "entry_point": "server/x.js", "mcp_config": None}, ("node", "./server/x.js")),
        ({"type": "uv", "entry_point": "src/server.py"}, ("python3", "./src/server.py")),
        (mcp_config("uv", "uv", "run", "--directory", "${__dirname}", "src/s.py", "x"), ("python3", "src/s.py", "x")),
        (mcp_config("uv", "uv", "--directory=${__dirname}", "run", "--frozen", "s"), ("s",)),
        (mcp_config("python", "uv", "run", "python", "-m", "pkg"), ("python3", "-m", "pkg")),
        (mcp_config("uv", "uv", "run", "-m", "pkg"), ("python3", "-m", "pkg")),
    ],
)
def test_what_is_started(server: dict[str, Any], argv: tuple[str, ...]) -> None:
    assert started(entry_of_bundle(bundle(server), ORIGIN)) == argv


def test_linux_has_its_own_command() -> None:
    overrides = {"linux": {"command": "./l", "args": ["x"]}, "win32": {"command": "w.exe"}}
    server = mcp_config("binary", "./m", "y", env={"A": "1"}, platform_overrides=overrides)
    entry = entry_of_bundle(bundle(server), ORIGIN)
    assert started(entry) == ("./l", "x")
    assert entry.to_json()["env"] == {"A": "1"}


def test_bundles_for_other_systems_do_not_run_here() -> None:
    assert not entry_of_bundle(bundle(compatibility={"platforms": ["darwin", "win32"]}), ORIGIN).runs_here


def test_directories_of_the_user_are_asked_for() -> None:
    server = mcp_config("node", "node", "m.js", "${DOCUMENTS}/notes", env={"CACHE": "${HOME}/.cache/x"})
    entry = entry_of_bundle(bundle(server), ORIGIN)
    assert started(entry) == ("node", "m.js", "{config.DOCUMENTS}/notes")
    assert entry.permissions == ["network", "filesystem:rw:{config.DOCUMENTS}", "filesystem:rw:{config.HOME}"]
    assert all(item.required and item.type == "path" for item in entry.configurable_properties)


def test_keys_that_no_configuration_can_hold_are_made_fit() -> None:
    value = {"type": "string", "title": "t", "description": "d", "required": True}
    server = mcp_config("node", "node", "${user_config.a b}", "${user_config.a_b}", "${user_config.1}")
    entry = entry_of_bundle(bundle(server, user_config=dict.fromkeys(("a b", "a_b", "1"), value)), ORIGIN)
    assert [item.key for item in entry.configurable_properties] == ["a_b", "a_b_2", "_1"]
    assert started(entry)[1:] == ("{config.a_b}", "{config.a_b_2}", "{config._1}")


@pytest.mark.parametrize("required", [True, False])
def test_the_user_names_the_paths_that_are_granted(required: bool) -> None:
    value = {"type": "directory", "title": "t", "description": "d", "default": "${HOME}/Documents"}
    server = mcp_config("node", "node", "m.js", "--in", "${user_config.d}", "--at=${user_config.d}")
    entry = entry_of_bundle(bundle(server, user_config={"d": value | {"required": required}}), ORIGIN)
    found = entry.property("d")
    assert found is not None
    assert (found.default, found.required, found.to_json()["placeholder"]) == (None, required, "~/Documents")
    assert words(entry, {}) == ["node", "m.js", *(["--in"] if required else [])]
    assert words(entry, {"d": "/a"}) == ["node", "m.js", "--in", "/a", "--at=/a"]


def test_several_values_have_several_defaults() -> None:
    value = {"type": "string", "title": "t", "description": "d", "multiple": True, "default": "a"}
    found = entry_of_bundle(bundle(user_config={"d": value}), ORIGIN).property("d")
    assert found is not None
    assert (found.type, found.default) == ("list", ["a"])


def test_a_value_called_like_a_directory_is_another() -> None:
    value = {"type": "string", "title": "t", "description": "d", "sensitive": True}
    server = mcp_config("node", "node", "m.js", "${HOME}", env={"H": "${user_config.HOME}"})
    entry = entry_of_bundle(bundle(server, user_config={"HOME": value}), ORIGIN)
    assert started(entry) == ("node", "m.js", "{config.HOME_2}")
    assert entry.permissions == ["network", "filesystem:rw:{config.HOME_2}"]
    assert entry.to_json()["env"] == {"H": "{config.HOME}"}


def test_a_bundle_does_not_say_where_a_value_goes() -> None:
    value = {"type": "string", "title": "t", "description": "d", "default": "x", "target": "env", "max": 3}
    found = entry_of_bundle(bundle(user_config={"NODE_OPTIONS": value}), ORIGIN).property("NODE_OPTIONS")
    assert found is not None
    assert (found.target, found.to_json()["max"]) == ("manifest", 3)


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (mcp_config("node", "npx", "-y", "some-server"), "npx fetches the program .*npm:some-server"),
        (mcp_config("python", "uvx", "some-server@latest"), "uvx fetches the program .*pypi:some-server"),
        (mcp_config("node", "/usr/bin/npm", "exec", "x"), "npm fetches the program"),
        (mcp_config("binary", "docker", "run", "x"), "mcpd does not run containers"),
        (mcp_config("uv", "uv", "run", "--with", "mcp", "x.py"), "'--with'"),
        (mcp_config("uv", "uv", "run", "--directory", "/elsewhere", "x.py"), "is not the bundle's directory"),
        (mcp_config("uv", "uv", "pip", "install", "x"), "only 'uv run'"),
        (mcp_config("uv", "uv", "run"), "does not specify a program to start"),
        (mcp_config("node", "node", "--key", "${user_config.secret}"), r"args\.1: 'user_config\.secret' is sensitive"),
        (mcp_config("node", "node", "${user_config.other}"), "'user_config.other' is not declared"),
        (mcp_config("node", "node", "file://${__dirname}/x.js"), "URL"),
        (mcp_config("node", "node", env={"A=B": "1"}), "env"),
        (mcp_config("node", "node", "--key={config.secret}"), r"args\.0: \{config\.…\}"),
        (mcp_config("node", "node", env={"A": "{config.secret}"}), r"env\.A: \{config\.…\}"),
        (mcp_config("binary", "${HOME}/x"), "depends on a value that the user sets"),
        (mcp_config("binary", "${__dirname}/../other/x"), "is outside the bundle"),
        ({"type": "node", "entry_point": "../x.js"}, r"server\.entry_point: '\.\./x\.js'"),
        ({"type": "node", "entry_point": "/x.js"}, r"server\.entry_point"),
        ({"type": "python"}, r"server\.entry_point"),
        ({"type": "wasm", "entry_point": "x"}, r"server\.type"),
    ],
)
def test_bundles_that_cannot_be_kept_to_are_refused(server: dict[str, Any], message: str) -> None:
    secret = {"type": "string", "title": "t", "description": "d", "sensitive": True}
    with pytest.raises(InvalidManifest, match=rf"^x\.mcpb: .*{message}"):
        entry_of_bundle(bundle(server, user_config={"secret": secret}), ORIGIN)


@pytest.mark.parametrize("field", ["name", "version", "server"])
def test_required_fields_are_named(field: str) -> None:
    manifest = bundle()
    del manifest[field]
    with pytest.raises(InvalidManifest, match=rf"x\.mcpb: {field}"):
        entry_of_bundle(manifest, ORIGIN)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
PATHS = [
    *((name,) for name in FULL),
    *(("server", name) for name in ("type", "entry_point", "mcp_config")),
    *(("server", "mcp_config", name) for name in ("command", "args", "env", "platform_overrides")),
    *(("user_config", "size", name) for name in ("type", "title", "required", "default", "multiple", "sensitive")),
    ("compatibility", "platforms"),
]


@given(st.sampled_from(PATHS), JSON)
def test_any_value_in_any_field_is_an_entry_or_a_message(path: tuple[str, ...], value: Any) -> None:
    manifest = copy.deepcopy(FULL)
    inner: Any = manifest
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    try:
        entry = entry_of_bundle(manifest, ORIGIN)
    except InvalidManifest:
        return
    assert entry.source is None
    sensitive = {item.key for item in entry.configurable_properties if item.sensitive}
    assert not sensitive & {key for text in started(entry) for key in placeholders(text)}
    assert Entry.parse(entry.to_json(), ORIGIN).to_json() == entry.to_json()


@given(JSON)
def test_anything_but_a_manifest_is_refused(value: Any) -> None:
    with pytest.raises(InvalidManifest):
        entry_of_bundle(value, ORIGIN)
