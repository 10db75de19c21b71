# SPDX-License-Identifier: LGPL-2.1-or-later
"""The manifest and the manual page of ``llm-orc`` against what its program takes and what mcpd makes of it."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.model import Manifest
from mcpd.model.placeholders import expand, placeholders
from mcpd.runtime.bundled import COMMANDS
from mcpd.runtime.permissions import parse
from mcpd.servers.ensembles.providers.keys import Keys
from mcpd.servers.ensembles.resources import ALWAYS, TEMPLATES
from mcpd.servers.ensembles.tools import TOOLS
from tests.preloaded import python
from tests.servers.ensembles_harness import PROGRAM, REPOSITORY, Room

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.model import JsonValue

FILE = REPOSITORY / "data/share/servers/llm-orc/manifest.json"
MANIFEST = Manifest.parse(json.loads(FILE.read_text()), str(FILE))
PROPERTIES = {each.key: each for each in MANIFEST.configurable_properties}
DEFAULTS: dict[str, JsonValue] = {key: each.default for key, each in PROPERTIES.items()}
PAGE = (REPOSITORY / "man/llm-orc.1.scd").read_text().replace("\\_", "_")


def arguments(**values: Any) -> list[str]:
    """What the program is started with when *values* are configured."""
    assert MANIFEST.stdio is not None
    return [filled for text in MANIFEST.stdio.args for filled in expand(text, {**DEFAULTS, **values})]


def test_it_is_a_server_of_a_users_own_that_comes_with_mcpd() -> None:
    assert MANIFEST.id == "llm-orc"
    assert MANIFEST.stdio is not None
    bundled = COMMANDS[MANIFEST.stdio.command]
    assert (bundled.module, bundled.reads_data) == ("mcpd.servers.ensembles", True)
    assert (MANIFEST.runtime.sharing, MANIFEST.runtime.run_as) == ("session", "user")
    assert MANIFEST.runtime.call_timeout == 3600


def test_nothing_has_to_be_set_and_keys_are_secrets() -> None:
    assert not any(each.required for each in PROPERTIES.values())
    assert all(each.label and each.description and each.type for each in PROPERTIES.values())
    assert {key for key, each in PROPERTIES.items() if each.sensitive} == {
        key for key in PROPERTIES if key.endswith(("_KEY", "_KEYS"))
    }


def test_every_property_reaches_the_program_once() -> None:
    assert MANIFEST.stdio is not None
    named = [key for text in MANIFEST.stdio.args for key in placeholders(text)]
    assert sorted(named) == sorted(key for key, each in PROPERTIES.items() if each.target == "arg")


def test_the_keys_go_where_the_properties_say() -> None:
    given = {
        "OPENAI_API_KEY": "a", "OPENAI_BASE_URL": "https://example.com/v1", "ANTHROPIC_API_KEY": "b",
        "GEMINI_API_KEY": "c", "LLM_ORC_KEYS": "https://openrouter.ai/api/v1=d https://example.org=e",
    }  # fmt: skip
    assert given.keys() == {key for key, each in PROPERTIES.items() if each.target == "env"}
    assert dict(Keys.from_environment(given)) == {
        "https://example.com/v1": "a",
        "https://api.anthropic.com": "b",
        "https://generativelanguage.googleapis.com": "c",
        "https://openrouter.ai/api/v1": "d",
        "https://example.org": "e",
    }


def test_what_is_configured_is_granted_and_handed_over_alike() -> None:
    values: dict[str, JsonValue] = {"projects": ["~/a b", "/srv"], "allow_script_network": True}
    granted = parse(MANIFEST.id, MANIFEST.permissions, {**DEFAULTS, **values})
    own = ["~/.config/llm-orc", "~/.local/share/llm-orc"]
    assert granted.network
    assert [grant.path for grant in granted.paths if grant.writable] == ["~/a b", "/srv", *own]
    assert [grant.path for grant in parse(MANIFEST.id, MANIFEST.permissions, DEFAULTS).paths] == own
    assert arguments(**values) == [
        "mcp", "serve", "--project=~/a b", "--project=/srv", "--script-network=true", "--commands-write-git=false",
    ]  # fmt: skip


@pytest.mark.parametrize("projects", [None, ["~/project"]], ids=["none", "one"])
def test_the_program_takes_what_it_is_given(tmp_path: Path, projects: list[str] | None) -> None:
    room = Room(tmp_path)
    environ = room.environ | {"MCP_USER_HOME": str(tmp_path), "MCPD_CONFINED": "1"}
    argv = arguments(**({"projects": projects} if projects else {}))
    done = subprocess.run(
        [python(), *PROGRAM, *argv],
        stdin=subprocess.DEVNULL, env=environ, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_manual_page_has_every_option_tool_and_resource() -> None:
    shown = ""
    for words in ([], ["mcp"], ["mcp", "serve"], ["mcp", "status"]):
        done = subprocess.run(
            [python(), *PROGRAM, *words, "--help"], capture_output=True, text=True, check=True, timeout=60
        )
        shown += done.stdout.partition("options:")[2]
    options = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", shown))
    described = set(re.findall(r"\*(--?[a-z][a-z-]*)\*", PAGE.partition("# OPTIONS\n")[2].partition("\n# ")[0]))
    assert described == options
    tools = PAGE.partition("# TOOLS\n")[2].partition("\n# ")[0]
    assert sorted(re.findall(r"^\*(\w+)\*$", tools, re.MULTILINE)) == sorted(TOOLS)
    resources = PAGE.partition("# RESOURCES\n")[2].partition("\n# ")[0]
    assert set(re.findall(r"\*(llm-orc://\w+)", resources)) == {uri.partition("/{")[0] for uri in (*ALWAYS, *TEMPLATES)}
