# SPDX-License-Identifier: LGPL-2.1-or-later
"""The manifest and the documents of the workstation against what its program takes and what mcpd makes of it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.model import Manifest
from mcpd.model.placeholders import expand, placeholders
from mcpd.runtime.bundled import COMMANDS
from mcpd.runtime.permissions import Permissions, parse
from mcpd.servers.workstation.settings import ErrorMapping, Settings, ToolNameStyle
from mcpd.servers.workstation.tools import TOOLS
from tests.preloaded import python

if TYPE_CHECKING:
    from mcpd.model import JsonValue

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).parents[3]
FILE = REPOSITORY / "data/share/servers/workstation/manifest.json"
MANIFEST = Manifest.parse(json.loads(FILE.read_text()), str(FILE))
PROPERTIES = {each.key: each for each in MANIFEST.configurable_properties}
DEFAULTS: dict[str, JsonValue] = {key: each.default for key, each in PROPERTIES.items()}
DOCUMENT = (REPOSITORY / "docs/workstation.md").read_text()
PAGE = (REPOSITORY / "man/mcp-workstation.1.scd").read_text().replace("\\_", "_")


def arguments(**values: Any) -> list[str]:
    """What the program is started with when *values* are configured."""
    assert MANIFEST.stdio is not None
    return [filled for text in MANIFEST.stdio.args for filled in expand(text, {**DEFAULTS, **values})]


def settings(tmp_path: Path) -> Settings:
    return Settings(roots=(), toolchains=(), home=tmp_path, state=tmp_path)


def started(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The program with a client that goes at once."""
    return subprocess.run(
        [python(), "-m", "mcpd.servers.workstation", *argv],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=variables,
    )  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "src").mkdir()
    (tmp_path / "own").mkdir()
    return {"HOME": str(tmp_path / "own"), "MCP_USER_HOME": str(tmp_path)}


def test_it_is_a_server_of_a_users_own_that_comes_with_mcpd() -> None:
    assert MANIFEST.id == "workstation"
    assert MANIFEST.stdio is not None
    assert COMMANDS[MANIFEST.stdio.command].module == "mcpd.servers.workstation"
    assert (MANIFEST.runtime.sharing, MANIFEST.runtime.run_as) == ("session", "user")


def test_the_bridge_waits_longer_than_a_call_may_ask_for(tmp_path: Path) -> None:
    most = settings(tmp_path).call_timeout
    assert f"--call-timeout={most:g}" in arguments()
    # Until all is ended that the call has started, and its last words have come.
    assert MANIFEST.runtime.call_timeout == most + 30


def test_nothing_has_to_be_set_and_nothing_is_secret() -> None:
    assert not any(each.required or each.sensitive for each in PROPERTIES.values())
    assert all(each.label and each.description and each.type for each in PROPERTIES.values())


def test_defaults_are_those_of_the_program(tmp_path: Path) -> None:
    own = settings(tmp_path)
    for key, default in DEFAULTS.items():
        assert default is None if key in {"roots", "toolchains"} else default == getattr(own, key), key


def test_the_words_of_a_choice_are_told() -> None:
    for key, choice in (("tool_name_style", ToolNameStyle), ("error_mapping", ErrorMapping)):
        assert DEFAULTS[key] in list(choice)
        for word in choice:
            assert word in PROPERTIES[key].description


def test_what_may_come_at_once_follows_the_rate(tmp_path: Path) -> None:
    own = settings(tmp_path)
    assert own.burst == 3 * own.rate
    assert "three times as many" in PROPERTIES["rate"].description


def test_every_property_reaches_the_program_once() -> None:
    assert MANIFEST.stdio is not None
    named = [key for text in MANIFEST.stdio.args for key in placeholders(text)]
    assert sorted(named) == sorted(PROPERTIES)


def test_without_configuration_nothing_but_gits_own_settings_is_granted() -> None:
    granted = parse(MANIFEST.id, MANIFEST.permissions, DEFAULTS)
    assert [(grant.path, grant.writable) for grant in granted.paths] == [
        ("~/.gitconfig", False),
        ("~/.config/git/config", False),
        ("~/.config/git/ignore", False),
        ("~/.config/git/attributes", False),
    ]
    assert granted == Permissions(paths=granted.paths)


def test_what_is_configured_is_granted_and_handed_over_alike() -> None:
    values: dict[str, JsonValue] = {"roots": ["~/a b", "/srv"], "toolchains": ["~/.rustup"], "allow_network": True}
    granted = parse(MANIFEST.id, MANIFEST.permissions, {**DEFAULTS, **values})
    assert granted.network
    assert [grant.path for grant in granted.paths if grant.writable] == ["~/a b", "/srv"]
    assert "~/.rustup" in [grant.path for grant in granted.paths if not grant.writable]
    given = arguments(**values)
    assert [each for each in given if each.startswith(("--root=", "--toolchain="))] == [
        "--root=~/a b",
        "--root=/srv",
        "--toolchain=~/.rustup",
    ]
    assert "--allow-network=true" in given


def test_the_program_takes_what_it_is_given_without_configuration(home: dict[str, str]) -> None:
    done = started(*arguments(), **home)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("style", list(ToolNameStyle))
@pytest.mark.parametrize("mapping", list(ErrorMapping))
def test_the_program_takes_what_can_be_configured(home: dict[str, str], style: str, mapping: str) -> None:
    values: dict[str, JsonValue] = {
        "roots": ["~/src", f"{home['MCP_USER_HOME']}/src"],
        "toolchains": ["~/src"],
        "allow_network": True,
        "allow_hooks": True,
        "allow_hard_links": True,
        "tool_name_style": style,
        "error_mapping": mapping,
        "rate": 0.5,
    }
    done = started(*arguments(**values), **home)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "values",
    [
        {"tool_name_style": "camel"},
        {"error_mapping": "none"},
        {"rate": -1},
        {"rate": 0},
        {"roots": ["relative"]},
        {"roots": ["~/missing"]},
        {"toolchains": ["relative"]},
    ],
    ids=str,
)
def test_the_program_says_what_it_does_not_take(home: dict[str, str], values: dict[str, JsonValue]) -> None:
    done = started(*arguments(**values), **home)
    (value,) = values.values()
    shown = value[0].removeprefix("~/") if isinstance(value, list) and isinstance(value[0], str) else str(value)
    assert shown in done.stderr
    assert "Traceback" not in done.stderr


def test_the_documents_name_every_tool_and_no_other() -> None:
    tools = {tool.name for tool in TOOLS}
    rows = re.findall(r"^\| (`(?:filesystem|git|ci)_.*?) \|", DOCUMENT, re.MULTILINE)
    assert sorted(name for row in rows for name in re.findall(r"`([^`]+)`", row)) == sorted(tools)
    section = PAGE.partition("# TOOLS\n")[2].partition("\n# ")[0]
    assert sorted(re.findall(r"\*((?:filesystem|git|ci)_\w+)\*", section.replace("\\", ""))) == sorted(tools)


def test_the_document_names_every_property_and_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (`[^`]+`|none) \|", DOCUMENT, re.MULTILINE))
    shown = {key: "none" if value is None else f"`{value if isinstance(value, str) else json.dumps(value)}`"
             for key, value in DEFAULTS.items()}  # fmt: skip
    assert rows == shown


def test_the_manual_page_has_every_option(home: dict[str, str]) -> None:
    options = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", started("--help", **home).stdout.partition("options:")[2]))
    described = set(re.findall(r"\*(--?[a-z][a-z-]*)\*", PAGE.partition("# OPTIONS\n")[2].partition("\n# ")[0]))
    assert described == options
