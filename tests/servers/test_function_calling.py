# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tools of the bundled servers and of the example scripts, held to the rules of the model APIs."""

from __future__ import annotations

import re
import tomllib
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.mcp_results import first_text
from tests.preloaded import python
from tests.servers import ensembles_harness, orchestration_harness, scripts_harness, workstation_harness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

REPOSITORY: Final = Path(__file__).parents[2]
RULES: Final = tomllib.loads((REPOSITORY / "tests/fixtures/function_calling.toml").read_text())
SCRIPTS: Final = sorted((REPOSITORY / "data/share/scripts").glob("*.*"))
ODD: Final = '''
from typing import Literal

def größe(text: str) -> str:
    """Says it."""
    return text

def pick(word: Literal["a", "b"], also: list, more: tuple[int, str], either: int | str = 1) -> str:
    """Picks."""
    return word

def {long}(text: str) -> str:
    """Says it as well."""
    return text
'''.replace("{long}", "a" * 100)


def schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """*schema* and all in it."""
    if isinstance(schema, list):
        for each in schema:
            yield from schemas(each)
    elif isinstance(schema, dict):
        yield schema
        for key, value in schema.items():
            if key in {"properties", "$defs", "patternProperties"}:
                for each in value.values():
                    yield from schemas(each)
            elif key not in {"enum", "const", "default", "examples", "required"}:
                yield from schemas(value)


def faults(tool: dict[str, Any], rules: dict[str, Any]) -> Iterator[str]:
    """What is wrong with *tool*."""
    name, schema = tool["name"], tool["inputSchema"]
    if not re.fullmatch(rules["name"], name, re.ASCII):
        yield f"{name!r}: the name"
    if schema.get("type") != "object":
        yield f"{name}: the schema is of {schema.get('type')!r}"
    yield from (f"{name}: {key} at the top level" for key in rules.get("not_at_top_level", ()) if key in schema)
    for part in schemas(schema):
        for argument in part.get("properties", {}):
            if not re.fullmatch(rules.get("argument", ".*"), argument, re.ASCII):
                yield f"{name}: the argument {argument!r}"
        if rules.get("items") and part.get("type") == "array" and "items" not in part:
            yield f"{name}: an array without items: {part}"
        if rules.get("string_enums") and "enum" in part and part.get("type") != "string":
            yield f"{name}: an enum that is not of strings: {part}"
        if rules.get("known_required"):
            yield from (f"{name}: {each} is required and not known" for each in part.get("required", ())
                        if each not in part.get("properties", {}))  # fmt: skip


def all_faults(tools: list[dict[str, Any]]) -> list[str]:
    """What is wrong with *tools*, for each of the APIs."""
    return [f"{api}: {fault}" for api, rules in RULES.items() for tool in tools for fault in faults(tool, rules)]


@asynccontextmanager
async def started(tmp_path: Path, *argv: str) -> AsyncIterator[Client]:
    """A client of the bundled server *argv*."""
    environ = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    command = StdioServerParameters(command=python(), args=list(argv), env=environ)
    with (tmp_path / "log").open("a") as log:
        async with Client(stdio_client(command, errlog=log)) as client:
            yield client


async def listed(tmp_path: Path, *argv: str) -> list[dict[str, Any]]:
    """What the bundled server *argv* lists."""
    async with started(tmp_path, *argv) as client:
        tools = (await client.list_tools()).tools
    return [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools]


@pytest.mark.parametrize(
    "argv",
    [
        (*workstation_harness.PROGRAM, "--root", "/usr/share", "--tools", "all"),
        (*ensembles_harness.PROGRAM, "mcp", "serve"),
        orchestration_harness.PROGRAM,
        *((*scripts_harness.PROGRAM, str(script)) for script in SCRIPTS),
    ],
    ids=["workstation", "llm-orc", "mcp-orchestration", *(script.name for script in SCRIPTS)],
)
async def test_every_model_api_takes_the_tools_of_the_bundled_servers(tmp_path: Path, argv: tuple[str, ...]) -> None:
    tools = await listed(tmp_path, *argv)
    assert tools
    assert {
        api: [*each] for api, rules in RULES.items() if (each := [f for t in tools for f in faults(t, rules)])
    } == {}


@pytest.mark.parametrize(("name", "text"), [("odd.py", ODD), ("my.tool.sh", "echo\n")])
async def test_every_model_api_takes_the_tools_of_a_script(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    tools = await listed(tmp_path, *scripts_harness.PROGRAM, str(tmp_path / name))
    assert tools
    assert {
        api: [*each] for api, rules in RULES.items() if (each := [f for t in tools for f in faults(t, rules)])
    } == {}


@pytest.mark.parametrize(
    ("api", "tool"),
    [
        ("claude", {"name": "filesystem/read", "inputSchema": {"type": "object"}}),
        ("claude", {"name": "x", "inputSchema": {"type": "object", "oneOf": [{}]}}),
        ("claude", {"name": "x", "inputSchema": {"type": "object", "properties": {"a[b]": {}}}}),
        ("openai", {"name": "x", "inputSchema": {"type": "object", "properties": {"a": {"type": "array"}}}}),
        ("openai", {"name": "x", "inputSchema": {"type": "object", "not": {}}}),
        ("gemini", {"name": "1x", "inputSchema": {"type": "object"}}),
        ("gemini", {"name": "x", "inputSchema": {"type": "object", "required": ["a"]}}),
        ("gemini", {"name": "x", "inputSchema": {"type": "object", "properties": {"a": {"enum": [1]}}}}),
    ],
)
def test_what_an_api_refuses_is_a_fault(api: str, tool: dict[str, Any]) -> None:
    assert len([*faults(tool, RULES[api])]) == 1


async def test_a_script_whose_id_is_no_name_for_a_tool_is_called_by_either(tmp_path: Path) -> None:
    script = tmp_path / "my.tool.sh"
    script.write_text('#!/bin/sh\necho "said $*"\n')
    async with started(tmp_path, *scripts_harness.PROGRAM, str(script)) as client:
        for name in ("my_tool", "my.tool"):
            result = await client.call_tool(name, {"args": name})
            assert not result.is_error
            assert f"said {name}" in first_text(result)
