# SPDX-License-Identifier: LGPL-2.1-or-later
"""The descriptions that come with mcpd: complete, and nothing left out or contradictory in any of them."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from family_parts import SHIPPED, shipped

from mcpd.clients.families import packaged
from mcpd.clients.profiles import Profiles

if TYPE_CHECKING:
    from mcpd.clients.families import Family

REQUIRED = {
    "antigravity", "claude-code", "claude-desktop", "cline", "cline-cli", "codex", "continue",
    "copilot-cli", "crush", "cursor", "gemini-cli", "goose", "grok", "junie", "kilo-code", "kimi", "kiro",
    "lm-studio", "opencode", "roo-code", "vscode", "warp", "windsurf", "zed",
}  # fmt: skip
HOMES = {"linux": "/home/ada", "macos": "/Users/ada", "windows": "C:/Users/ada"}
SUFFIXES = {"json": {".json"}, "jsonc": {".json", ".jsonc"}, "toml": {".toml"}, "yaml": {".yaml", ".yml"}}

each = pytest.mark.parametrize("family", SHIPPED.values(), ids=SHIPPED.keys())


def test_many_families_come_with_mcpd_and_none_is_invalid() -> None:
    families = shipped()
    assert families.problems == []
    assert set(SHIPPED) >= REQUIRED
    assert [family.id for family in families.all()][:2] == ["claude-desktop", "cursor"]


def test_every_file_of_the_directory_is_a_description() -> None:
    assert {path.name for path in packaged("clients").iterdir()} == {f"{name}.toml" for name in SHIPPED}


def test_claude_desktop_is_as_in_the_source_document() -> None:
    summary = SHIPPED["claude-desktop"].summary(["default", "dev", "prod"])
    locations = summary.pop("config_locations")
    assert summary == {
        "client_id": "claude-desktop",
        "display_name": "Claude Desktop",
        "platform": "macos",
        "config_location": "~/Library/Application Support/Claude/claude_desktop_config.json",
        "available_profiles": ["default", "dev", "prod"],
    }
    assert isinstance(locations, dict)
    assert locations["linux"] == ["~/.config/Claude/claude_desktop_config.json"]


def test_cursor_is_as_in_the_source_document() -> None:
    summary = SHIPPED["cursor"].summary(["default", "dev"])
    summary.pop("config_locations")
    assert summary == {
        "client_id": "cursor",
        "display_name": "Cursor IDE",
        "platform": "cross-platform",
        "config_location": "~/.cursor/mcp_config.json",
        "available_profiles": ["default", "dev"],
    }


def test_what_is_written_is_the_file_that_cursor_reads() -> None:
    assert SHIPPED["cursor"].linux_locations(Path("/home/ada"), {}) == [Path("/home/ada/.cursor/mcp.json")]


@pytest.mark.parametrize(
    ("client", "version", "directory", "servers", "variables"),
    [("claude-desktop", "0.5.0", True, None, None), ("cursor", "0.1.0", False, 20, 50)],
    ids=["claude-desktop", "cursor"],
)
def test_capabilities_are_as_in_the_source_document(
    client: str, version: str, directory: bool, servers: int | None, variables: int | None
) -> None:
    told = SHIPPED[client].capabilities()
    assert (told["client_id"], told["version_min"], told["version_max"]) == (client, version, None)
    assert told["config_format"] == "json"
    assert told["supports"] == {
        "environment_variables": True,
        "command_args": True,
        "working_directory": directory,
        "multiple_servers": True,
    }
    assert told["limitations"] == {"max_servers": servers, "max_env_vars_per_server": variables}


@each
def test_a_description_is_complete(family: Family) -> None:
    assert family.homepage
    assert family.detect.directories
    assert set(family.locations) == {"linux", "macos", "windows"}
    assert family.name == family.name.strip()
    assert "  " not in family.notes
    assert not re.search(r"(/home/|/Users/)", family.notes)


@each
def test_a_file_says_what_licence_it_has_and_names_every_way(family: Family) -> None:
    text = (packaged("clients") / f"{family.id}.toml").read_text(encoding="utf-8")
    assert text.startswith("# SPDX-License-Identifier: LGPL-2.1-or-later\n")
    assert "stdio" in tomllib.loads(text)


@each
def test_listings_can_be_sent(family: Family) -> None:
    sent = json.dumps([family.summary(list(family.profiles)), family.capabilities()], allow_nan=False)
    assert "{" not in str(family.summary([])["config_location"])
    assert all("{" not in path for paths in json.loads(sent)[0]["config_locations"].values() for path in paths)


@each
@pytest.mark.parametrize("system", ["linux", "macos", "windows"])
def test_places_are_below_the_home(family: Family, system: str) -> None:
    home = HOMES[system]
    places = family.expand(system, home, {})
    assert places
    assert len(set(places)) == len(places)
    for place in places:
        assert place.startswith(f"{home}/")
        assert "{" not in place
        assert Path(place).suffix in SUFFIXES[family.format]


@each
def test_linux_places_follow_the_environment(family: Family) -> None:
    environ = {"XDG_CONFIG_HOME": "/srv/config", **{name: f"/srv/{name}" for name in family.file.variables}}
    moved = family.linux_locations(Path("/home/ada"), environ)
    for place, pattern in zip(moved, family.locations["linux"], strict=True):
        assert str(place).startswith("/home/ada/" if pattern.startswith("{home}") else "/srv/")
    assert all(place.is_absolute() for place in family.linux_directories(Path("/home/ada"), environ))


def test_no_two_clients_have_one_file() -> None:
    places = [str(place) for family in SHIPPED.values() for place in family.linux_locations(Path("/h"), {})]
    assert len(set(places)) == len(places)


@each
def test_profiles_are_there_and_http_is_for_clients_that_take_urls(family: Family) -> None:
    profiles = Profiles([packaged("client-profiles")])
    assert profiles.available(family) == list(family.profiles)
    if family.id == "cursor":
        assert family.profiles == ("default", "dev")
    else:
        urls = ("http",) if family.http else ()
        assert family.profiles == ("default", "dev", "prod", *urls)


@each
def test_a_placeholder_is_found_where_it_was_put(family: Family) -> None:
    if family.expansion is None:
        assert all(family.placeholder("X", field) is None for field in ("args", "env", "headers", "url"))
        return
    for field in ("args", "env", "headers", "url"):
        placeholder = family.placeholder("SOME_KEY", field)
        assert (placeholder is not None) == (field in family.expansion.fields)
        if placeholder is not None:
            assert family.variables_in(f"a {placeholder} b", field) == ["SOME_KEY"]
            assert family.variables_in("a SOME_KEY b", field) == []


@pytest.mark.parametrize("client", ["claude-desktop", "cursor", "codex", "copilot-cli", "antigravity"])
def test_a_slash_in_a_name_of_a_tool_is_refused_by_those_who_refuse_it(client: str) -> None:
    names = ["filesystem_read", "filesystem/read", "filesystem.read"]
    assert SHIPPED[client].refused_tools("workstation", names) == names[1:]
