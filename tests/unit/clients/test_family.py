# SPDX-License-Identifier: LGPL-2.1-or-later
"""One client family: its description is checked, its paths are filled in, its variables and abilities are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from family_parts import SHIPPED, description, file, some
from hypothesis import given
from hypothesis import strategies as st

from mcpd.clients.errors import InvalidInput
from mcpd.clients.families import Family
from mcpd.errors import InvalidConfig

HOME = Path("/home/ada")
DOLLAR = {"prefix": "${", "suffix": "}", "fields": ["env", "headers"]}


def test_a_family_has_usual_defaults() -> None:
    family = some()
    assert (family.key, family.shape, family.format) == (("mcpServers",), "map", "json")
    assert (family.version_min, family.version_max, family.notes, family.homepage) == (None, None, "", "")
    assert family.transports() == ["stdio"]
    assert family.summary([])["config_location"] == "~/.some.json"
    assert family.linux_locations(HOME, {}) == [Path("/home/ada/.some.json")]
    assert family.linux_directories(HOME, {}) == []
    assert (family.stdio.command, family.stdio.args, family.stdio.env, family.stdio.cwd) == (
        "command",
        "args",
        "env",
        None,
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": None}, "name: Field required"),
        ({"name": ""}, "name:"),
        ({"name": "red \x1b[31m"}, "name:"),
        ({"name": 5}, "name:"),
        ({"platform": "plan9"}, "platform:"),
        ({"profiles": []}, "profiles:"),
        ({"profiles": ["../x"]}, "profiles.0:"),
        ({"profiles": ["default\n"]}, "profiles.0:"),
        ({"homepage": "javascript:alert(1)"}, "homepage:"),
        ({"colour": "red"}, "colour: Extra inputs are not permitted"),
        ({"file": None}, "file: Field required"),
        ({"file": file(colour=1)}, "file.colour: Extra inputs"),
        ({"file": file(format="ini")}, "file.format:"),
        ({"file": file(shape="tree")}, "file.shape:"),
        ({"file": file(shape="list")}, 'file.shape: the entries of a list need name = "name"'),
        ({"file": file(key=[])}, "file.key:"),
        ({"file": file(key=["a", ""])}, "file.key.1:"),
        ({"file": file(linux=[])}, "file: name its path"),
        ({"file": file(linux=["{home}/{user}"])}, "{user} is not one of home, config"),
        ({"file": file(linux=["{home.__class__}/x"])}, "{home.__class__} is not one of home, config"),
        ({"file": file(linux=["{home!r}/x"])}, "{home!r} is not one of home, config"),
        ({"file": file(linux=["{0}/x"])}, "{0} is not one of"),
        ({"file": file(linux=["{}/x"])}, "{} is not one of"),
        ({"file": file(linux=["{home}/{{x}}"])}, "{x} is not one of"),
        ({"file": file(linux=["{home}/x}"])}, "an unmatched brace"),
        ({"file": file(linux=["{home}/{x"])}, "an unmatched brace"),
        ({"file": file(linux=["{home}x"])}, "must begin with {home}/"),
        ({"file": file(linux=["some.json"])}, "must begin with {home}/"),
        ({"file": file(linux=["~/some.json"])}, "must begin with {home}/"),
        ({"file": file(linux=["/"])}, "must begin with {home}/"),
        ({"file": file(linux=["{home}/../eve/x"])}, "not contain .."),
        ({"file": file(linux=["{home}/a\x00b"])}, "NUL"),
        ({"file": file(linux=["{home}/a\nb"])}, "file.linux.0:"),
        ({"file": file(variables={"X": "{Y}/x", "Y": "{home}"})}, "{Y} is not one of home, config"),
        ({"file": file(variables={"home": "/x"})}, "file.variables: home is taken"),
        ({"file": file(variables={"A-B": "{home}"})}, "file.variables.A-B"),
        ({"file": file(variables={"X": "relative"})}, "must begin with {home}/"),
        ({"detect": {"programs": ["/bin/sh"]}}, "detect.programs.0:"),
        ({"detect": {"directories": ["{nothing}/x"]}}, "{nothing} is not one of"),
        ({"limitations": {"max_servers": 0}}, "limitations.max_servers:"),
        ({"limitations": {"max_servers": "many"}}, "limitations.max_servers:"),
        ({"stdio": {"cwd": "command"}}, "stdio: the field 'command' is given two meanings"),
        ({"stdio": {"marks": {"env": ["x"]}}}, "stdio: the field 'env' is given two meanings"),
        ({"stdio": {"marks": {"type": []}}}, "stdio.marks.type:"),
        ({"stdio": {"constants": {"args": 1}}}, "stdio: the field 'args' is given two meanings"),
        ({"http": {"headers_in": "url"}}, "http: the field 'url' is given two meanings"),
        ({"expansion": {"prefix": "", "fields": ["env"]}}, "expansion.prefix:"),
        ({"expansion": {"prefix": "$", "fields": []}}, "expansion.fields:"),
        ({"expansion": {"prefix": "$", "fields": ["command"]}}, "expansion.fields.0:"),
        ({"expansion": {**DOLLAR, "names_only": True}}, "expansion: names_only is for"),
        ({"stdio": {"env_names": "pass"}}, "expansion: names_only = true and env in fields"),
        ({"http": {"bearer": "token"}, "expansion": DOLLAR}, "expansion: names_only = true and headers in fields"),
    ],
)
def test_an_invalid_family_names_the_file_and_the_field(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        some(**change)
    assert caught.value.message.startswith("some.toml: ")
    assert said in caught.value.message


def test_a_description_nested_beyond_reason_is_refused() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidConfig, match="nested deeper"):
        some(stdio={"constants": {"tools": deep}})


CODEX_LIKE = file(
    linux=["{TOOL_HOME}/config.json", "{config}/tool/config.json", "/opt/tool/config.json"],
    macos=["{config}/Tool/config.json"],
    windows=["{config}/Tool/config.json", "{home}/.tool.json"],
    variables={"TOOL_HOME": "{home}/.tool"},
)


@pytest.mark.parametrize(
    ("environ", "first", "second"),
    [
        ({}, "/home/ada/.tool/config.json", "/home/ada/.config/tool/config.json"),
        ({"TOOL_HOME": "/srv/t", "XDG_CONFIG_HOME": "/srv/c"}, "/srv/t/config.json", "/srv/c/tool/config.json"),
        ({"TOOL_HOME": "", "XDG_CONFIG_HOME": ""}, "/home/ada/.tool/config.json", "/home/ada/.config/tool/config.json"),
        (
            {"TOOL_HOME": "t", "XDG_CONFIG_HOME": "~/c"},
            "/home/ada/.tool/config.json",
            "/home/ada/.config/tool/config.json",
        ),
        ({"TOOL_HOME": "/srv/{home}"}, "/srv/{home}/config.json", "/home/ada/.config/tool/config.json"),
    ],
    ids=["unset", "set", "empty", "relative", "braces"],
)
def test_paths_follow_the_environment(environ: dict[str, str], first: str, second: str) -> None:
    family = some(file=CODEX_LIKE)
    assert family.linux_locations(HOME, environ) == [Path(first), Path(second), Path("/opt/tool/config.json")]


def test_a_home_with_braces_is_taken_as_it_is() -> None:
    family = some(file=CODEX_LIKE, detect={"directories": ["{TOOL_HOME}", "{home}/x"]})
    home = Path("/home/{config}")
    assert family.linux_locations(home, {})[0] == Path("/home/{config}/.tool/config.json")
    assert family.linux_directories(home, {}) == [Path("/home/{config}/.tool"), Path("/home/{config}/x")]


def test_other_systems_have_their_own_places() -> None:
    family = some(file=CODEX_LIKE)
    assert family.expand("macos", "/Users/ada", {"XDG_CONFIG_HOME": "/elsewhere"}) == [
        "/Users/ada/Library/Application Support/Tool/config.json"
    ]
    assert family.expand("windows", "C:/Users/ada", {"APPDATA": r"D:\Data"}) == [
        r"D:\Data/Tool/config.json",
        "C:/Users/ada/.tool.json",
    ]
    assert family.expand("windows", "C:/Users/ada", {})[0] == "C:/Users/ada/AppData/Roaming/Tool/config.json"
    assert some().expand("windows", "C:/Users/ada", {}) == []


def test_listings_show_the_file_on_every_system() -> None:
    summary = some(file=CODEX_LIKE).summary(["default", "dev"])
    assert summary == {
        "client_id": "some",
        "display_name": "Some client",
        "platform": "linux",
        "config_location": "~/.tool/config.json",
        "config_locations": {
            "linux": ["~/.tool/config.json", "~/.config/tool/config.json", "/opt/tool/config.json"],
            "macos": ["~/Library/Application Support/Tool/config.json"],
            "windows": [r"%APPDATA%\Tool\config.json", r"%USERPROFILE%\.tool.json"],
        },
        "available_profiles": ["default", "dev"],
    }


def test_a_client_without_a_place_on_linux_shows_another() -> None:
    family = some(file={"format": "toml", "key": ["a"], "macos": ["{config}/Tool/x.toml"]})
    assert family.summary([])["config_location"] == "~/Library/Application Support/Tool/x.toml"
    assert family.linux_locations(HOME, {}) == []


def test_a_placeholder_is_in_the_syntax_of_the_client() -> None:
    assert SHIPPED["cursor"].placeholder("API_KEY", "env") == "${env:API_KEY}"
    assert SHIPPED["claude-code"].placeholder("API_KEY", "headers") == "${API_KEY}"
    assert SHIPPED["continue"].placeholder("API_KEY", "args") == "${{ secrets.API_KEY }}"
    assert SHIPPED["opencode"].placeholder("API_KEY", "url") == "{env:API_KEY}"


def test_where_nothing_is_filled_in_there_is_no_placeholder() -> None:
    assert SHIPPED["claude-desktop"].placeholder("API_KEY", "env") is None
    assert SHIPPED["copilot-cli"].placeholder("API_KEY", "env") == "${API_KEY}"
    assert SHIPPED["copilot-cli"].placeholder("API_KEY", "headers") is None
    assert SHIPPED["claude-desktop"].variables_in("${API_KEY}", "env") == []
    assert SHIPPED["copilot-cli"].variables_in("Bearer ${API_KEY}", "headers") == []


@pytest.mark.parametrize("name", ["", "A B", "1A", "A}", "A-B", "Ä", "A\n", "${A}", "A" * 129])
@pytest.mark.parametrize("client", ["cursor", "claude-desktop"])
def test_only_a_name_of_a_variable_makes_a_placeholder(name: str, client: str) -> None:
    with pytest.raises(InvalidInput, match="is not the name of a variable"):
        SHIPPED[client].placeholder(name, "env")


VARIABLES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)


@given(
    st.sampled_from([family for family in SHIPPED.values() if family.expansion]),
    st.lists(VARIABLES, max_size=4),
    st.text(alphabet="abc :/-", max_size=5),
)
def test_what_was_put_into_a_text_is_found_in_it(family: Family, names: list[str], between: str) -> None:
    assert family.expansion is not None
    field = family.expansion.fields[0]
    text = between.join(["", *(family.placeholder(name, field) or "" for name in names), ""])
    assert family.variables_in(text, field) == names


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("${env:A}-${env:B}", ["A", "B"]),
        ("Bearer ${env:A}", ["A"]),
        ("${A} $A ${env:} ${env:A B} ${env:A", []),
        ("${env:${env:A}}", ["A"]),
        ("", []),
    ],
)
def test_variables_in_a_text(text: str, found: list[str]) -> None:
    assert SHIPPED["cursor"].variables_in(text, "env") == found


@pytest.mark.parametrize(
    ("form", "told"), [("json", "json"), ("jsonc", "json"), ("toml", "toml"), ("yaml", "yaml")], ids=str
)
def test_the_format_in_capabilities_is_one_of_three(form: str, told: str) -> None:
    assert some(file=file(format=form)).config_format() == told


def test_capabilities_follow_from_the_fields_of_entries() -> None:
    assert some().capabilities()["supports"] == {
        "environment_variables": True,
        "command_args": True,
        "working_directory": False,
        "multiple_servers": True,
    }
    able = some(stdio={"env": "", "args": "", "cwd": "dir"}, limitations={"max_servers": 1})
    assert able.capabilities()["supports"] == {
        "environment_variables": False,
        "command_args": True,
        "working_directory": True,
        "multiple_servers": False,
    }


def test_capabilities_include_transports_and_placeholders() -> None:
    told = some(http={}, expansion=DOLLAR).capabilities()
    assert told["transports"] == ["stdio", "http"]
    assert told["placeholders"] == {"syntax": "${NAME}", "fields": ["env", "headers"]}
    assert some().capabilities()["placeholders"] is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
        max_leaves=6,
    ),
    st.sampled_from(
        ["name", "profiles", "file", "detect", "limitations", "expansion", "stdio", "http", "sse", "notes"]
    ),
)
def test_any_value_is_taken_or_refused_by_name(value: Any, key: str) -> None:
    data = {**description(), key: value}
    try:
        family = Family.parse("some", data, "some.toml")
    except InvalidConfig as error:
        told = error.message
    else:
        told = "some.toml: " + json.dumps([family.summary([]), family.capabilities()], allow_nan=False)
    assert told.startswith("some.toml: ")


def test_names_of_tools_are_held_to_the_rules_of_the_client() -> None:
    rules = {"name": "[a-z_]+", "prefix": "mcp_{server}_", "max_length": 16, "source": "https://example.com/"}
    family = some(tools=rules)
    assert family.refused_tools("abc", ["fine", "not/fine", "12345678", "x" * 8, "x" * 9]) == [
        "not/fine", "12345678", "x" * 9,
    ]  # fmt: skip
    assert some().refused_tools("abc", ["anything goes"]) == []


def test_a_rule_for_names_that_is_no_pattern_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"some\.toml: tools\.name.*regular expression"):
        some(tools={"name": "[a-z", "source": "https://example.com/"})
