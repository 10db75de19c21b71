# SPDX-License-Identifier: LGPL-2.1-or-later
"""What docs/clients.md and the guides say of clients, files and commands is what the code knows."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.cli.parser import build_parser
from mcpd.clients import errors, validation
from mcpd.clients.families import Families, Family, packaged
from mcpd.clients.policy import Policy
from mcpd.clients.profiles import Profile, Profiles
from mcpd.paths import Scope, from_environment
from mcpd.servers.orchestration import resources
from mcpd.servers.orchestration.tools import TOOLS

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[2]
GUIDES = sorted((REPOSITORY / "docs/how-to").glob("*.md"))
REFERENCE = REPOSITORY / "docs/clients.md"
TEXT = REFERENCE.read_text()


def section(heading: str) -> str:
    """What stands below *heading*, without what is below headings of the same level or a higher one."""
    match = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{2,3}} |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    assert match, heading
    return match[2]


def rows(text: str) -> list[list[str]]:
    """The rows of the tables in *text*, without their heads."""
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]


def words(text: str) -> list[str]:
    """What stands in backquotes."""
    return re.findall(r"`([^`]+)`", text)


def example(heading: str) -> dict[str, object]:
    (found,) = re.findall(r"^```toml\n(.*?)^```$", section(heading), re.DOTALL | re.MULTILINE)
    return tomllib.loads(found)


def row(family: Family) -> list[str]:
    """How the reference lists *family*."""
    capabilities = family.capabilities()
    placeholders, locations = capabilities["placeholders"], family.summary([])["config_locations"]
    assert isinstance(locations, dict)
    files = locations.get("linux", [])
    assert isinstance(files, list)
    return [
        f"`{family.id}`",
        family.name,
        ", ".join(f"`{file}`" for file in files) or "none",
        {"json": "JSON", "jsonc": "JSON with comments", "toml": "TOML", "yaml": "YAML"}[family.format],
        ", ".join(family.transports()),
        f"`{placeholders['syntax']}`" if isinstance(placeholders, dict) else "none",
    ]


def test_every_client_is_listed_as_it_is() -> None:
    families = Families([packaged("clients")])
    assert families.problems == []
    assert rows(section("Clients")) == [row(family) for family in families.all()]


def test_every_profile_is_listed_as_it_is() -> None:
    found = {words(name)[0]: (layers, scripts) for name, layers, scripts, _ in rows(section("Profiles"))}
    profiles = Profiles([packaged("client-profiles")])
    family = Families([packaged("clients")]).get("vscode")
    assert list(found) == profiles.available(family)
    for name, (layers, scripts) in found.items():
        profile = profiles.get(family, name)
        assert profile.scripts == (scripts != "none")
        assert ("vendor" in profile.layers) == ("system's packages" in layers)


def test_the_example_of_a_client_is_one() -> None:
    family = Family.parse("my-editor", example("Adding a client"), str(REFERENCE))
    assert family.placeholder("NAME", "env") == "${env:NAME}"
    assert family.transports() == ["stdio", "http"]


def test_the_example_of_a_profile_is_one() -> None:
    profile = Profile.parse("writing", example("Profiles"), str(REFERENCE))
    assert profile.takes("com.example.notes")
    assert not profile.takes("com.example.old")
    assert profile.variables_of("notes") == ["NOTES_DIR"]


def test_the_examples_of_a_policy_are_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_ROOT", str(tmp_path))
    file = from_environment().system.policy
    file.parent.mkdir(parents=True)
    page = (REPOSITORY / "man/mcp-policy.toml.5.scd").read_text()
    (shown,) = re.findall(r"^```toml\n(.*?)^```$", section("Policy"), re.DOTALL | re.MULTILINE)
    literal = re.findall(r"^```\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    examples = [shown, *(each for each in literal if "[" in each)]
    assert len(examples) == 3
    entry: dict[str, Any] = {"mcpServers": {"com.example.old": {"command": "npx", "args": []}}}
    for each in examples:
        file.write_text(each)
        assert Policy.load(from_environment(), Scope.SYSTEM).check(entry, {})


def test_every_tool_and_resource_is_listed() -> None:
    text = section("The server")
    assert [name for row in rows(text) for name in words(row[0])] == list(TOOLS)
    for uri in (each.uri for each in resources._RESOURCES):
        assert f"`{uri}`" in text


def test_every_code_of_a_fault_is_listed() -> None:
    known = set(re.findall(r'"([A-Z]+(?:_[A-Z]+)+)"', Path(validation.__file__).read_text()))
    assert known == {code for row in rows(section("Validation")) for code in words(row[0])}
    codes = {vars(cls)["code"] for cls in vars(errors).values() if isinstance(cls, type) and "code" in vars(cls)}
    named = re.compile(r"[a-z]+_(not_found|input|error|failed|violation)")
    listed = {word for word in words(section("The server")) if named.fullmatch(word)}
    assert listed == codes | {errors.INTERNAL}


def test_every_command_is_listed() -> None:
    (client,) = [
        action.choices["client"] for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction)
    ]
    (commands,) = [action for action in client._actions if isinstance(action, argparse._SubParsersAction)]
    listed = {
        part.strip().split(" ")[0]: part
        for row in rows(section("The commands")) for each in words(row[0])
        for part in each.replace("mcpctl client ", "").replace("\\|", "|").split(", ")
    }  # fmt: skip
    assert set(listed) == set(commands.choices)
    for group in ("draft", "keys"):
        (inner,) = [a for a in commands.choices[group]._actions if isinstance(a, argparse._SubParsersAction)]
        assert set(listed[group].split(" ")[1].split("|")) == set(inner.choices)


def shown_commands() -> Iterator[tuple[str, str]]:
    """Every command line of mcpctl in the reference, the guides and the README."""
    for file in (REFERENCE, REPOSITORY / "README.md", *GUIDES):
        text = file.read_text()
        blocks = re.findall(r"^```(?:sh|console)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        for line in "".join(blocks).replace("\\\n", " ").splitlines():
            for found in re.findall(r"(?:^\$ |^|\$\()(mcpctl client [^|<>&)]*)", line):
                yield file.name, found.partition("  #")[0].strip()


@pytest.mark.parametrize("command", sorted({command for _, command in shown_commands()}))
def test_what_is_shown_can_be_typed(command: str) -> None:
    args = build_parser().parse_args(shlex.split(command)[1:])
    assert args.command == "client"


def test_arguments_of_tools_in_the_guides_are_theirs() -> None:
    schemas = {name: tool.offered["inputSchema"] for name, tool in TOOLS.items()}
    calls = [
        found for guide in GUIDES
        for found in re.findall(r"mcpctl call mcp-orchestration (\w+)((?: \w+=(?:\"[^\"]*\"|\S+))*)", guide.read_text())
    ]  # fmt: skip
    assert {name for name, _ in calls} == {"list_clients", "list_profiles", "get_config", "diff_config"}
    for name, given in calls:
        for key in re.findall(r" (\w+)=", given):
            assert key in schemas[name]["properties"], (name, key)
    json.dumps(schemas)
