# SPDX-License-Identifier: LGPL-2.1-or-later
"""Client families: their data files, paths, placeholders and capabilities."""

from __future__ import annotations

import json
import os
import re
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.clients.errors import ClientNotFound, InvalidInput, error_object
from mcpd.clients.families import MAX_DATA, MAX_FILES, Families, Family, packaged
from mcpd.clients.profiles import Profiles
from mcpd.errors import InvalidConfig, NotFound
from mcpd.paths import Scope
from tests.unit.clients.family_parts import MINIMAL, SHIPPED, description, file, machine, shipped, some, write

CURSOR = MINIMAL.replace("Some client", "My cursor")


def settle(directory: Path) -> None:
    """Make the files of *directory* old enough for a change to show."""
    past = time.time() - 10
    for path in directory.iterdir():
        os.utime(path, (past, past))


def ids(families: Families) -> list[str]:
    return [family.id for family in families.all()]


def test_no_directory_is_no_family(tmp_path: Path) -> None:
    families = Families([tmp_path / "none", tmp_path / "neither/here"])
    assert (families.all(), families.problems) == ([], [])


def test_the_families_of_the_source_document_come_first(tmp_path: Path) -> None:
    write(tmp_path, zed=MINIMAL, cursor=MINIMAL, aider=MINIMAL, claude_desktop=MINIMAL)
    assert ids(Families([tmp_path])) == ["claude-desktop", "cursor", "aider", "zed"]


def test_a_higher_directory_replaces_a_family_as_a_whole(tmp_path: Path) -> None:
    write(tmp_path / "low", cursor=MINIMAL + "[limitations]\nmax_servers = 3\n", zed=MINIMAL)
    write(tmp_path / "high", cursor=CURSOR, mine=MINIMAL)
    families = Families([tmp_path / "low", tmp_path / "high"])
    assert ids(families) == ["cursor", "mine", "zed"]
    assert families.get("cursor").name == "My cursor"
    assert families.get("cursor").limitations.max_servers is None


def test_scopes_have_their_directories(tmp_path: Path) -> None:
    paths = machine(tmp_path)
    write(paths.vendor_clients, vendors=MINIMAL, cursor=CURSOR.replace("My", "Vendor's"))
    write(paths.system.clients, admins=MINIMAL, cursor=CURSOR.replace("My", "Administrator's"))
    write(paths.user.clients, mine=MINIMAL, cursor=CURSOR)
    user, system = Families.of(paths, Scope.USER), Families.of(paths, Scope.SYSTEM)
    assert set(ids(user)) == {*SHIPPED, "vendors", "admins", "mine"}
    assert set(ids(system)) == {*SHIPPED, "vendors", "admins"}
    assert user.get("cursor").name == "My cursor"
    assert system.get("cursor").name == "Administrator's cursor"
    assert user.get("zed") == SHIPPED["zed"]


def test_an_unknown_client_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    write(tmp_path, zed=MINIMAL, cursor=MINIMAL)
    with pytest.raises(ClientNotFound) as caught:
        Families([tmp_path]).get("unknown-client")
    assert isinstance(caught.value, NotFound)
    assert error_object(caught.value) == {
        "error": "client_not_found",
        "message": "Client 'unknown-client' not found",
        "available_clients": ["cursor", "zed"],
    }


@pytest.mark.parametrize("client_id", ["", "../zed", "zed.toml", "ZED", "zed\n", "\x1b[31m", "\udc80", "z" * 100_000])
def test_no_text_is_a_client_by_accident(tmp_path: Path, client_id: str) -> None:
    write(tmp_path, zed=MINIMAL)
    with pytest.raises(ClientNotFound) as caught:
        Families([tmp_path]).get(client_id)
    assert len(caught.value.message) < 1000
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "name: Field required"),
        (b"name = ", "Invalid value"),
        (b"\xff\xfe", "not UTF-8"),
        (b"\x00", "Invalid statement"),
        (MINIMAL.encode() + b"[detect]\ncolour = 1\n", "detect.colour: Extra inputs"),
        (b"name = 1979-05-27\n" + MINIMAL.replace('name = "Some client"', "").encode(), "name:"),
        (b"x = " + b"[" * 20_000, "nested too deeply"),
        (b"x = " + b"9" * 20_000, "digits"),
        (b"#" * (MAX_DATA + 1), f"larger than {MAX_DATA} bytes"),
    ],
    ids=["empty", "cut", "latin", "nul", "unknown", "date", "deep", "digits", "huge"],
)
def test_a_broken_file_is_a_problem_and_hides_nothing(tmp_path: Path, content: bytes, said: str) -> None:
    write(tmp_path / "low", cursor=MINIMAL, zed=MINIMAL)
    write(tmp_path / "high", mine=MINIMAL)
    (tmp_path / "high/cursor.toml").write_bytes(content)
    families = Families([tmp_path / "low", tmp_path / "high"])
    assert ids(families) == ["cursor", "mine", "zed"]
    assert families.get("cursor").name == "Some client"
    (problem,) = families.problems
    assert problem.startswith(f"{tmp_path}/high/cursor.toml: ")
    assert said in problem


@pytest.mark.parametrize("name", ["Zed", "-zed", "z" * 65, "a b", "zéd"])
def test_a_file_of_a_wrong_name_is_a_problem(tmp_path: Path, name: str) -> None:
    write(tmp_path, zed=MINIMAL)
    (tmp_path / f"{name}.toml").write_text(MINIMAL)
    families = Families([tmp_path])
    assert ids(families) == ["zed"]
    assert "is not the id of a client" in families.problems[0]


def test_other_files_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, zed=MINIMAL)
    for name in (".hidden.toml", "zed.toml~", "zed.toml.rpmnew", "README", ".toml"):
        (tmp_path / name).write_text("broken")
    families = Families([tmp_path])
    assert (ids(families), families.problems) == (["zed"], [])


def test_a_link_into_nothing_is_a_problem_of_that_file_only(tmp_path: Path) -> None:
    write(tmp_path, zed=MINIMAL)
    (tmp_path / "aider.toml").symlink_to(tmp_path / "nowhere")
    (tmp_path / "warp.toml").symlink_to(tmp_path / "zed.toml")
    families = Families([tmp_path])
    assert ids(families) == ["warp", "zed"]
    assert families.problems == [f"reading {tmp_path}/aider.toml: No such file or directory"]


@pytest.mark.parametrize("kind", ["fifo", "directory", "device"])
def test_what_is_no_file_is_a_problem(tmp_path: Path, kind: str) -> None:
    write(tmp_path, zed=MINIMAL)
    path = tmp_path / "cursor.toml"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    families = Families([tmp_path])
    assert ids(families) == ["zed"]
    assert families.problems == [f"{path}: not a regular file"]


def test_a_directory_that_is_none_is_a_problem(tmp_path: Path) -> None:
    write(tmp_path / "low", zed=MINIMAL)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    families = Families([tmp_path / "low", tmp_path / "dangling"])
    assert ids(families) == ["zed"]
    assert families.problems == [f"reading {tmp_path}/dangling: No such file or directory"]


def test_a_directory_of_too_many_files_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "low", zed=MINIMAL)
    (tmp_path / "high").mkdir()
    for number in range(MAX_FILES + 1):
        (tmp_path / f"high/c{number}.toml").touch()
    families = Families([tmp_path / "low", tmp_path / "high"])
    assert ids(families) == ["zed"]
    assert families.problems == [f"{tmp_path}/high: more than {MAX_FILES} files; all of them are ignored"]


def test_changes_are_seen(tmp_path: Path) -> None:
    directory = tmp_path / "clients"
    families = Families([directory])
    assert ids(families) == []
    write(directory, zed=MINIMAL)
    settle(directory)
    assert ids(families) == ["zed"]
    write(directory, cursor=MINIMAL)
    assert ids(families) == ["cursor", "zed"]
    settle(directory)
    assert families.get("cursor").name == "Some client"
    write(directory, cursor=CURSOR)
    assert families.get("cursor").name == "My cursor"
    (directory / "zed.toml").unlink()
    assert ids(families) == ["cursor"]
    write(directory, cursor="broken")
    assert ids(families) == []
    assert len(families.problems) == 1
    write(directory, cursor=MINIMAL)
    assert (ids(families), families.problems) == (["cursor"], [])


def test_a_file_that_was_just_written_is_read_again(tmp_path: Path) -> None:
    """Two changes within one tick of the clock of the file system may look like one."""
    write(tmp_path, cursor=CURSOR)
    families = Families([tmp_path])
    path = tmp_path / "cursor.toml"
    before = path.stat()
    assert families.get("cursor").name == "My cursor"
    path.write_text(CURSOR.replace("My", "No"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert families.get("cursor").name == "No cursor"


def test_nothing_is_read_again_as_long_as_nothing_changes(tmp_path: Path) -> None:
    write(tmp_path, zed=MINIMAL, cursor=MINIMAL)
    settle(tmp_path)
    families = Families([tmp_path])
    first = families.get("zed")
    assert families.get("zed") is first
    assert families.all()[1] is first


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
        ({"file": file(shape="list")}, 'file.shape: list entries require name = "name"'),
        ({"file": file(key=[])}, "file.key:"),
        ({"file": file(key=["a", ""])}, "file.key.1:"),
        ({"file": file(linux=[])}, "file: specify its path"),
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
        ({"file": file(variables={"home": "/x"})}, "file.variables: home is reserved"),
        ({"file": file(variables={"A-B": "{home}"})}, "file.variables.A-B"),
        ({"file": file(variables={"X": "relative"})}, "must begin with {home}/"),
        ({"detect": {"programs": ["/bin/sh"]}}, "detect.programs.0:"),
        ({"detect": {"directories": ["{nothing}/x"]}}, "{nothing} is not one of"),
        ({"limitations": {"max_servers": 0}}, "limitations.max_servers:"),
        ({"limitations": {"max_servers": "many"}}, "limitations.max_servers:"),
        ({"stdio": {"cwd": "command"}}, "stdio: the field 'command' has two meanings"),
        ({"stdio": {"marks": {"env": ["x"]}}}, "stdio: the field 'env' has two meanings"),
        ({"stdio": {"marks": {"type": []}}}, "stdio.marks.type:"),
        ({"stdio": {"constants": {"args": 1}}}, "stdio: the field 'args' has two meanings"),
        ({"http": {"headers_in": "url"}}, "http: the field 'url' has two meanings"),
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


REQUIRED = {
    "antigravity", "claude-code", "claude-desktop", "cline", "cline-cli", "codex", "continue",
    "copilot-cli", "crush", "cursor", "gemini-cli", "goose", "grok", "junie", "kilo-code", "kimi", "kiro",
    "lm-studio", "opencode", "roo-code", "vscode", "warp", "windsurf", "zed",
}  # fmt: skip
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
def test_places_are_below_the_home(family: Family) -> None:
    for patterns in family.locations.values():
        assert len(set(patterns)) == len(patterns)
        assert all(pattern.startswith("{") for pattern in patterns)
        assert all(Path(pattern).suffix in SUFFIXES[family.format] for pattern in patterns)
    assert all(place.is_relative_to(HOME) for place in family.linux_locations(HOME, {}))


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
