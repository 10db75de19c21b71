# SPDX-License-Identifier: LGPL-2.1-or-later
"""server.json as entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import InvalidManifest
from mcpd.formats.server_json import entry_of, is_server_json
from mcpd.model.placeholders import expand
from tests.unit.formats.server_json_examples import EXAMPLES, HASH, of, package

if TYPE_CHECKING:
    from mcpd.model import Entry

MANY = [{"name": f"V{number}"} for number in range(501)]


def made(**package_fields: Any) -> Entry:
    return entry_of(of("2025-12-11", packages=[package(**package_fields)]), "test")


def arguments(*given: dict[str, Any], **values: Any) -> list[str]:
    """What the server is started with when the configuration is *values*."""
    stdio = made(packageArguments=list(given)).stdio
    assert stdio is not None
    assert stdio.args[0] == "@example/weather"
    return [text for word in stdio.args[1:] for text in expand(word, values)]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_published_examples_become_entries(name: str) -> None:
    entry = entry_of(EXAMPLES[name], "test")
    assert entry.id == "io.github.example.weather"
    assert entry.to_json()["origin"] == {"name": "io.github.example/weather"}
    assert (entry.summary, entry.version) == ("Weather of any place", "1.0.2")
    assert is_server_json(EXAMPLES[name])
    assert bool(entry.unsupported) == (name in {"minimal", "oci", "nuget"})


def test_an_item_of_the_official_api_holds_one() -> None:
    item = {"server": EXAMPLES["npm"], "_meta": {"io.modelcontextprotocol.registry/official": {"isLatest": True}}}
    assert is_server_json(item)
    assert entry_of(item, "test") == entry_of(EXAMPLES["npm"], "test")
    assert not is_server_json({"server": {"command": "x"}})
    assert not is_server_json({"id": "a", "transports": [], "server": EXAMPLES["npm"]})


def test_a_package_of_npm() -> None:
    entry = entry_of(EXAMPLES["npm"], "test").to_json()
    assert entry["name"] == "Weather"
    assert entry["homepage"] == "https://example.com/weather"
    assert entry["icon"] == "https://example.com/w.png"
    assert entry["repository"]["url"] == "https://github.com/example/weather"
    assert entry["source"] == {"type": "npm", "package": "@example/weather", "version": "1.0.2"}
    assert entry["transports"] == [{"type": "stdio", "command": "npx", "args": ["@example/weather"]}]
    assert entry["env"] == {"MODE": "stdio"}
    assert entry["permissions"] == ["network"]
    assert entry["configurableProperties"] == [
        {"key": "API_KEY", "target": "env", "description": "The key", "sensitive": True, "required": True},
        {"key": "UNITS", "target": "env", "default": "celsius", "choices": ["celsius", "fahrenheit"]},
    ]


def test_the_first_package_that_can_be_installed_is_taken() -> None:
    entry = entry_of(EXAMPLES["several"], "test")
    assert entry.source is not None
    assert (entry.source.type, entry.source.package) == ("pypi", "weather-server")
    assert entry.stdio is not None
    assert (entry.stdio.command, entry.stdio.args) == ("uvx", ["weather-server"])


def test_a_bundle_says_itself_how_it_is_started() -> None:
    entry = entry_of(EXAMPLES["mcpb"], "test").to_json()
    url = "https://example.com/releases/weather.mcpb"
    assert entry["source"] == {"type": "mcpb", "url": url, "sha256": HASH}
    assert "transports" not in entry


def test_a_server_elsewhere() -> None:
    entry = entry_of(EXAMPLES["remote"], "test")
    assert entry.remote is not None
    assert entry.remote.url == "https://{config.tenant}.example.com/mcp"
    assert entry.remote.headers == {
        "X-API-Key": "{config.X-API-Key}",
        "X-Region": "{config.X-Region}",
        "Authorization": "Bearer {config.token}",
    }
    found = {p.key: (str(p.target), p.required, p.sensitive) for p in entry.configurable_properties}
    assert found == {
        "tenant": ("manifest", True, False),
        "X-API-Key": ("header", True, True),
        "X-Region": ("header", False, False),
        "token": ("manifest", False, True),
    }
    assert entry.permissions == []


def test_what_only_the_way_elsewhere_needs_is_not_required_of_a_package() -> None:
    entry = entry_of(EXAMPLES["both"], "test")
    assert entry.stdio is not None
    assert [(p.key, p.required) for p in entry.configurable_properties] == [("X-Key", False)]


def test_arguments_are_left_out_as_long_as_their_value_is_not_set() -> None:
    given = EXAMPLES["arguments"]["packages"][0]["packageArguments"]
    assert arguments(*given) == ["serve", "--quiet"]
    values = {"target_dir": ["/a", "/b"], "port": 1, "host": "h", "port_2": "2", "tag": ["x", "y"]}
    assert arguments(*given, **values) == [
        *("serve", "/a", "/b", "--port", "1", "--at", "h:2", "--tag=x", "--tag=y", "--quiet"),
    ]
    assert "--at" not in arguments(*given, host="h")


def test_a_path_as_an_argument_may_be_written_to() -> None:
    entry = entry_of(EXAMPLES["arguments"], "test")
    assert entry.permissions == ["network", "filesystem:rw:{config.target_dir}"]
    port = entry.property("port")
    assert port is not None
    assert (port.type, port.default) == ("number", 8080)


def test_truth_values_are_written_out() -> None:
    flag = {"type": "named", "name": "--fast", "format": "boolean", "default": "true"}
    assert arguments(flag, fast=False) == ["--fast=false"]
    assert arguments(flag, fast=True) == ["--fast=true"]


def test_braces_that_are_no_variable_stay_and_fixed_variables_are_filled_in() -> None:
    named = {"type": "positional", "value": "{a}/{b}", "variables": {"b": {"value": "x"}}}
    assert arguments(named) == ["{a}/x"]


def test_the_user_names_the_paths_that_are_granted() -> None:
    given = {"type": "named", "name": "--root", "format": "filepath", "default": "/home"}
    entry = made(packageArguments=[given])
    root = entry.property("root")
    assert root is not None
    assert (root.default, root.required, root.to_json()["placeholder"]) == (None, True, "/home")
    assert entry.permissions == ["network", "filesystem:rw:{config.root}"]


def test_variables_keep_their_names_whatever_else_is_called_so() -> None:
    template = {"name": "URL", "value": "https://{API_KEY}@x", "variables": {"API_KEY": {}}}
    entry = made(environmentVariables=[template, {"name": "API_KEY", "isSecret": True, "isRequired": True}])
    assert entry.to_json()["env"] == {"URL": "https://{config.API_KEY}@x", "API_KEY": "{config.API_KEY_2}"}
    key = entry.property("API_KEY_2")
    assert key is not None
    assert (key.target, key.sensitive) == ("manifest", True)


@pytest.mark.parametrize(
    "fields",
    [
        {"environmentVariables": [{"name": "K", "isSecret": True}, {"name": "A", "value": "{config.K}"}]},
        {"packageArguments": [{"type": "positional", "value": "{config.K?x}"}]},
        {"packageArguments": [{"type": "named", "name": "--a={config.K}"}]},
        {"packageArguments": [{"type": "positional", "value": "{a}fig.K}", "variables": {"a": {"value": "{con"}}}]},
    ],
)
def test_placeholders_of_mcpd_are_no_text_of_others(fields: dict[str, Any]) -> None:
    assert "it contains {config.K}" in made(**fields).unsupported


def test_an_earlier_name_anywhere_keeps_its_meaning() -> None:
    headers = [{"name": "X-Key", "is_secret": True, "is_required": True}]
    entry = entry_of(of("x", remotes=[{"type": "sse", "url": "https://x.example/", "headers": headers}]), "test")
    key = entry.property("X-Key")
    assert key is not None
    assert (key.sensitive, key.required) == (True, True)
    variables = {"is_secret": {"isSecret": True}}
    remote = {"type": "sse", "url": "https://{is_secret}.example/", "variables": variables}
    assert entry_of(of("2025-12-11", remotes=[remote]), "test").property("is_secret") is not None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"transport": {"type": "streamable-http", "url": "http://localhost:{port}/mcp"}}, "on a port"),
        ({"transport": {"type": "sse", "url": "http://localhost/sse"}}, "on a port"),
        ({"registryBaseUrl": "https://npm.example.com"}, "separate registry, https://npm.example.com"),
        ({"kind": "oci", "identifier": "ghcr.io/x/y:1"}, "container image"),
        ({"kind": "gem"}, "'gem'"),
        ({"kind": ""}, "registryType"),
        ({"kind": "mcpb", "identifier": "https://example.com/a.mcpb"}, "no fileSha256"),
        ({"kind": "mcpb", "identifier": "a.mcpb", "fileSha256": HASH}, "not at a URL"),
        ({"identifier": "--registry=https://evil.example.com"}, "--registry"),
        ({"fileSha256": "x"}, "fileSha256"),
        ({"runtimeArguments": [{"type": "named", "name": "--registry", "value": "https://evil"}]}, "'--registry'"),
        ({"runtimeArguments": [{"type": "named", "name": "--package", "value": "git+https://x/y"}]}, "not the name"),
        ({"environmentVariables": [{"name": "A-B"}]}, "environment variable"),
        ({"packageArguments": [{"type": "named", "name": "--key", "isSecret": True, "isRequired": True}]}, "secret"),
        (
            {"packageArguments": [{"type": "positional", "value": "{k}", "variables": {"k": {"isSecret": True}}}]},
            "secret",
        ),
    ],
)
def test_what_cannot_be_installed_is_shown_with_the_reason(fields: dict[str, Any], reason: str) -> None:
    entry = made(**fields)
    assert reason in entry.unsupported
    assert entry.source is not None


def test_a_package_that_cannot_be_installed_is_no_harm_where_there_is_another_way() -> None:
    document = of("2025-12-11", packages=[package("oci")], remotes=[{"type": "sse", "url": "https://example.com/sse"}])
    entry = entry_of(document, "test")
    assert entry.unsupported == ""
    assert entry.remote is not None
    assert entry.source is not None
    assert entry.source.type == "oci"


@pytest.mark.parametrize(
    ("kind", "arguments", "source", "command"),
    [
        ("npm", ["-y", "weather"], ("weather", "1.0.2"), ["npx", "weather"]),
        ("npm", ["-y", "weather@1.0.2"], ("weather", "1.0.2"), ["npx", "weather"]),
        ("npm", ["--package=@a/b@2.0", "weather"], ("@a/b", "2.0"), ["weather"]),
        ("pypi", ["--from", "weather[cli]"], ("weather[cli]", "1.0.2"), ["weather"]),
        # The version is that of another package.
        ("npm", ["--package=@a/b", "weather"], ("@a/b", ""), ["weather"]),
        ("pypi", ["--from", "weather[cli]==2.0"], ("weather[cli]", "2.0"), ["weather"]),
        ("pypi", [], ("weather", "1.0.2"), ["uvx", "weather"]),
    ],
)
def test_arguments_of_the_runner(kind: str, arguments: list[str], source: tuple[str, str], command: list[str]) -> None:
    entry = made(
        kind=kind, identifier="weather", runtimeArguments=[{"type": "positional", "value": word} for word in arguments]
    )
    assert entry.unsupported == ""
    assert entry.source is not None
    assert (entry.source.package, entry.source.version) == source
    assert entry.stdio is not None
    assert [entry.stdio.command, *entry.stdio.args] == command


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (of("2025-12-11", name="../x"), "server id"),
        (of("2025-12-11", name=3), "name"),
        (of("2025-12-11", packages={}), "packages"),
        (of("2025-12-11", packages=[{"identifier": "x"}]), "registryType"),
        (of("2025-12-11", packages=[package(version=[])]), "packages[0].version"),
        (of("2025-12-11", remotes=[{"type": "sse"}]), "url"),
        (of("2025-12-11", title="a\0"), "NUL"),
        (of("2025-12-11", packages=[package(environmentVariables=[{}])]), "environmentVariables[0]"),
        (of("2025-12-11", packages=[package("x\0")]), "NUL"),
        (of("2025-12-11", packages=[package(environmentVariables=MANY)]), "more than 500 values"),
    ],
)
def test_a_faulty_document_is_refused_with_its_field(document: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidManifest) as caught:
        entry_of(document, "https://example.com/r.json: entry 3")
    assert caught.value.message.startswith("https://example.com/r.json: entry 3: ")
    assert named in caught.value.message


@pytest.mark.parametrize(
    "document",
    [None, [], {}, {"name": "weather"}, {"id": "a", "name": "a/b"}, {"name": "a/b", "transports": []}, {"$schema": 3}],
)
def test_what_is_no_server_json(document: object) -> None:
    assert not is_server_json(document)
