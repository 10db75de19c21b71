# SPDX-License-Identifier: LGPL-2.1-or-later
"""What docs/scripts.md shows is what the program understands."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mcpd.model.mcps import CALL_TIMEOUT, ScriptRuntime
from mcpd.scripts.contents import write
from tests.preloaded import python

pytestmark = pytest.mark.process

TEXT = (Path(__file__).parents[3] / "docs/scripts.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def block(language: str, word: str) -> str:
    """The one example in *language* that has *word*."""
    (found,) = [each for each in blocks(language) if word in each]
    return found


def fragment(name: str) -> dict[str, Any]:
    """The value of the example ``"name": {…}``."""
    (found,) = [each for each in blocks("json") if each.startswith(f'"{name}": ')]
    value: dict[str, Any] = json.loads("{" + found + "}")[name]
    return value


def described(directory: Path, suffix: str, source: str, **entry: Any) -> dict[str, Any]:
    """What a server of the script *source* would offer."""
    script = directory / f"example{suffix}"
    script.write_text(source)
    manifest = directory / "manifest.json"
    shown = {"path": str(script), "kind": "", "entry": entry, "contents": [str(directory / "cas")]}
    manifest.write_text(json.dumps({"id": "example", "config": {}, "script": shown}))
    done = subprocess.run(
        [python(), "-m", "mcpd.servers.scripts", "--describe", "--manifest", manifest],
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_first_script_has_the_tool_that_is_called(tmp_path: Path) -> None:
    found = described(tmp_path, ".py", block("python", "Greets people"))
    assert found["problems"] == []
    (tool,) = found["tools"]
    assert (tool["name"], tool["description"]) == ("greet", "Greet somebody.")
    assert tool["inputSchema"]["properties"] == {
        "name": {"type": "string", "description": "The person to greet."},
        "times": {"type": "integer", "description": "How many times.", "default": 1},
    }
    assert tool["inputSchema"]["required"] == ["name"]


def test_the_shell_script_is_a_tool(tmp_path: Path) -> None:
    found = described(tmp_path, ".sh", block("sh", "exec df"))
    assert found["problems"] == []
    (tool,) = found["tools"]
    assert tool["description"] == "Shows how full file systems are."
    assert list(tool["inputSchema"]["properties"]) == ["args"]


def test_the_static_tool_is_offered_beside_the_discovered_one(tmp_path: Path) -> None:
    (entry,) = json.loads(block("json", "greet_twice")).values()
    found = described(tmp_path, ".py", block("python", "Greets people"), **entry)
    assert found["problems"] == []
    assert {tool["name"] for tool in found["tools"]} == {"greet", "greet_twice"}


def test_resources_and_prompts_are_offered(tmp_path: Path) -> None:
    logo = write(tmp_path / "cas", b"\x89PNG\r\n\x1a\n")
    resources = fragment("resources")
    resources["logo"]["uri"] = resources["logo"]["uri"].replace("8f43…", logo)
    prompts = fragment("prompts")
    found = described(
        tmp_path, ".py", "", resources=resources, prompts=prompts, variables={"contact": "me@example.com"}
    )
    assert found["problems"] == []
    assert {resource["name"] for resource in found["resources"]} == {"logo", "Now, in UTC", "contact"}
    assert [prompt["name"] for prompt in found["prompts"]] == ["review"]


def test_the_transform_makes_tools(tmp_path: Path) -> None:
    transform = write(tmp_path / "cas", block("python", "generate_tools").encode())
    source = "def greet(language, name='World'):\n    return language + name\n"
    found = described(
        tmp_path, ".py", source, tools_transform_cid=f"cid://{transform}", variables={"languages": ["de", "fr"]}
    )
    assert found["problems"] == []
    assert [tool["name"] for tool in found["tools"]] == ["greet", "greet_de", "greet_fr"]


def test_what_is_shipped_is_what_is_said_to_be(tmp_path: Path) -> None:
    data = Path(__file__).parents[3] / "data"
    names = sorted(path.stem for path in (data / "share/scripts").iterdir() if path.is_file())
    *first, last = (f"`{name}`" for name in names)
    assert f"{', '.join(first)} and {last} are included" in TEXT
    (entry,) = json.loads(block("json", '"filters"')).values()
    transform = write(tmp_path / "cas", (data / "transforms/jq_tools.py").read_bytes())
    found = described(
        tmp_path, ".py", (data / "share/scripts/jq.py").read_text(), tools_transform_cid=f"cid://{transform}", **entry
    )
    assert found["problems"] == []
    assert "emails" in {tool["name"] for tool in found["tools"]}


@pytest.mark.parametrize("named", re.findall(r"^\| `runtime\.(\w+)`, (\S+ ?\S*) \|", TEXT, re.MULTILINE))
def test_limits_are_those_that_hold(named: tuple[str, str]) -> None:
    name, said = named
    number, _, unit = said.partition(" ")
    factor = {"": 1, "s": 1, "MiB": 1 << 20, "GiB": 1 << 30}[unit]
    defaults = {"callTimeout": CALL_TIMEOUT, **ScriptRuntime().model_dump()}
    assert defaults[name] == int(number) * factor


def test_all_limits_of_a_call_are_told() -> None:
    assert set(re.findall(r"^\| `runtime\.(\w+)`,", TEXT, re.MULTILINE)) == {
        "callTimeout", "memory", "processes", "output"
    }  # fmt: skip
