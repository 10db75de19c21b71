# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whatever a transform returns, the good items are offered, and the bad ones are problems."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mcpd.errors import InvalidArgument
from mcpd.scripts.mcps import is_uri
from mcpd.servers.scripts.checking import Checks
from mcpd.servers.scripts.offer import Tools
from mcpd.servers.scripts.prompts import Prompts
from mcpd.servers.scripts.resources import Resources
from mcpd.servers.scripts.running import Server
from tests.unit.scripts.facility_parts import Inline, define

if TYPE_CHECKING:
    from mcpd.servers.scripts.definition import Definition

WORDS = st.sampled_from([
    "thing", "echo", "object", "array", "string", "user", "text", "image", "{{ a }}", "{{ b", "{% if a %}", "#", "$ref",
    "variable://v", "server://thing/echo", "server://thing", "cid://AAAAAAAA", "x:y", "a b", "", "\0", "\ud800",
    "default",
])  # fmt: skip
KEYS = st.sampled_from([
    "name", "title", "description", "inputSchema", "outputSchema", "annotations", "function", "readOnlyHint", "type",
    "properties", "required", "$ref", "uri", "mimeType", "source", "size", "arguments", "messages", "template", "role",
    "content", "schema", "enum", "default", "data", "resource", "text", "items", "anyOf", "a", "b",
])  # fmt: skip
LEAVES = WORDS | st.text(max_size=6) | st.none() | st.booleans() | st.integers() | st.floats()
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
NAMED = st.builds(
    lambda name, rest: {"name": name, **rest},
    WORDS,
    st.dictionaries(KEYS, VALUES, max_size=5),
)
SCHEMA = st.dictionaries(st.sampled_from(["properties", "required", "anyOf", "default", "$ref"]), VALUES, max_size=2)
ARGUMENT = st.fixed_dictionaries({"name": st.sampled_from(["a", "b"]), "schema": SCHEMA})
NEAR = st.builds(
    lambda near, rest: {**near, **rest},
    st.fixed_dictionaries({
        "name": WORDS,
        "uri": WORDS,
        "function": st.just("echo"),
        "inputSchema": SCHEMA,
        "template": st.lists(WORDS, max_size=3).map("".join),
        "arguments": st.lists(ARGUMENT, max_size=2),
    }),
    st.dictionaries(KEYS, VALUES, max_size=1),
)  # fmt: skip
ITEMS = st.lists(NEAR | NAMED | VALUES, max_size=5)


@pytest.fixture(scope="module")
def defined(tmp_path_factory: pytest.TempPathFactory) -> Definition:
    return define(tmp_path_factory.mktemp("thing"), "def echo(a): pass\n", variables={"v": 1})


def sendable(listed: list[dict[str, Any]]) -> None:
    json.dumps(listed, ensure_ascii=False, allow_nan=False).encode()


@given(ITEMS)
def test_tools_are_good_ones_or_problems(defined: Definition, items: list[Any]) -> None:
    made = Tools(defined, items)
    sendable(made.listed)
    for tool in made.listed:
        Draft202012Validator.check_schema(tool["inputSchema"])
        assert tool["inputSchema"]["type"] == "object"
        offered = made.get(tool["name"])
        assert offered is not None
        assert isinstance(offered.arguments.fault({"a": 1}), str)
    assert len(made.listed) + len(made.problems) >= len({str(item) for item in items if not isinstance(item, dict)})


@given(ITEMS)
def test_resources_are_good_ones_or_problems(defined: Definition, items: list[Any]) -> None:
    made = Resources(defined, items)
    sendable(made.listed)
    assert all(is_uri(each["uri"]) and each["name"] for each in made.listed)
    assert len(made.listed) + len(made.problems) == len(items)


@given(ITEMS, st.dictionaries(st.sampled_from(["a", "b", "thing"]), st.text(max_size=5), max_size=2))
async def test_prompts_are_good_ones_or_problems(
    defined: Definition, items: list[Any], arguments: dict[str, str]
) -> None:
    made = Prompts(defined, items)
    checks = Checks(5)
    server = Server(defined, Inline(""), checks)
    sendable(made.listed)
    try:
        for each in made.listed:
            prompt = made.get(each["name"])
            with suppress(InvalidArgument):
                sendable((await prompt.get(server, arguments))["messages"])
    finally:
        await checks.close()
