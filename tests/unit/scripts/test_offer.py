# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tools of a script server: where they come from, and what a call of one runs (T4, T5)."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mcpd.errors import InvalidArgument
from mcpd.servers.pagination import Pages
from mcpd.servers.scripts.calls import PythonJob
from mcpd.servers.scripts.facility import AGAIN, PROBLEMS
from mcpd.servers.scripts.offer import Tools
from mcpd.servers.scripts.transforms import SECONDS
from tests.unit.scripts.facility_parts import (
    SCRIPT,
    TRANSFORM,
    Inline,
    call,
    define,
    facility,
    failed,
    names,
    store,
    text,
)

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.servers.scripts.calls import Outcome


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


# ---------------------------------------------------------------------------------------- T4: the list


async def test_T4_1_tools_of_the_entry_are_listed_as_it_says(tmp_path: Path) -> None:
    tool = {"description": "Adds", "inputSchema": SCHEMA, "title": "Add", "annotations": {"readOnlyHint": True}}
    served = facility(define(tmp_path, SCRIPT, tools={"add": tool}))
    assert (await served.list_tools(None)) == {"tools": [{"name": "add", **tool}]}


async def test_T4_2_auto_discover_adds_the_functions(tmp_path: Path) -> None:
    entry: dict[str, Any] = {"tools": {"sum": {"inputSchema": SCHEMA, "function": "add"}}}
    assert await names(facility(define(tmp_path, SCRIPT, **entry))) == ["sum"]
    assert await names(facility(define(tmp_path, SCRIPT, auto_discover=True, **entry))) == [
        "sum",
        "echo",
        "add",
        "fail",
    ]
    assert await names(facility(define(tmp_path, SCRIPT, auto_discover=False))) == []


async def test_an_entry_that_only_changes_some_tools_leaves_the_others(tmp_path: Path) -> None:
    entry: dict[str, Any] = {"tools": {"add": {"description": "Adds up", "name": "plus"}, "fail": {"enabled": False}}}
    served = facility(define(tmp_path, SCRIPT, **entry))
    listed = {tool["name"]: tool["description"] for tool in (await served.list_tools(None))["tools"]}
    # What clients call it, and whether they have it at all, is the bridge's to see to.
    assert set(listed) == {"echo", "add", "fail"}
    assert listed["add"] == "Adds up"


async def test_T4_3_a_server_without_an_entry_is_looked_at(tmp_path: Path) -> None:
    assert await names(facility(define(tmp_path, SCRIPT))) == ["echo", "add", "fail"]


async def test_T4_4_a_transform_adds_tools_and_the_first_of_a_name_wins(tmp_path: Path) -> None:
    served = facility(define(tmp_path, SCRIPT, auto_discover=True, tools_transform_cid=store(tmp_path, TRANSFORM)))
    found = await served.list_tools(None)
    listed = {tool["name"]: tool for tool in found["tools"]}
    assert list(listed) == ["echo", "add", "fail", "made"]
    assert (listed["echo"]["description"], listed["made"]["description"]) == ("Say it back.", "thing")
    problems = found["_meta"][PROBLEMS]
    assert [problem.split(":")[1] for problem in problems] == [f" item {number}" for number in (2, 3, 4, 5, 6)]
    assert problems[0].endswith(": another tool has the name echo")
    assert text(await call(served, "made", message="through it")) == "through it"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def generate_tools(name, context): raise RuntimeError('no luck')", "no luck"),
        ("def generate_tools(name, context): return 5", "int"),
        ("def generate_tools(name, context): return None", "nothing"),
        ("def generate_tools(name, context): return [{}] * 10001", "10001"),
    ],
)
async def test_T4_4_a_transform_that_fails_leaves_the_rest_standing(tmp_path: Path, source: str, says: str) -> None:
    served = facility(define(tmp_path, SCRIPT, tools_transform_cid=store(tmp_path, source)))
    found = await served.list_tools(None)
    assert [tool["name"] for tool in found["tools"]] == ["echo", "add", "fail"]
    (problem,) = found["_meta"][PROBLEMS]
    assert says in problem
    assert "generate_tools" in problem


@pytest.mark.parametrize("content", ["0" * 64, "transforms/tools.py"])
async def test_T10_5_a_transform_that_is_not_there_is_reported(tmp_path: Path, content: str) -> None:
    found = await facility(define(tmp_path, SCRIPT, tools_transform_cid=content)).list_tools(None)
    assert len(found["tools"]) == 3
    (problem,) = found["_meta"][PROBLEMS]
    assert content in problem


async def test_T10_5_a_transform_runs_once_and_may_write_nothing(tmp_path: Path) -> None:
    defined = define(tmp_path, SCRIPT, tools_transform_cid=store(tmp_path, TRANSFORM), variables={"v": 1})
    runs = Inline(SCRIPT)
    served = facility(defined, runs=runs)
    await asyncio.gather(served.list_tools(None), served.list_tools(None), call(served, "nothing"))
    (job,) = runs.jobs
    (limits,) = runs.limits
    assert isinstance(job, PythonJob)
    assert limits is not None
    assert (job.function, job.read_only, limits.seconds) == ("generate_tools", True, SECONDS)
    name, context = job.positional
    assert name == "thing"
    assert (context["server_name"], context["source"], context["variables"]) == ("thing", SCRIPT, {"v": 1})
    assert set(context) == {"server_name", "path", "source", "config", "variables", "entry"}


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "array"}, "object"),
        ({"type": "object", "properties": {"a": {"type": "nonsense"}}}, "nonsense"),
        ({"properties": {"a": {"$ref": "https://example.org/schema"}}}, "example.org"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "#/$defs/none"),
        ({"properties": {"a": {"pattern": "("}}}, "regex"),
    ],
)
async def test_T4_6_a_schema_that_is_none_drops_its_tool_only(tmp_path: Path, schema: Any, says: str) -> None:
    tools = {"add": {"inputSchema": schema}, "fail": {"outputSchema": schema}, "echo": {}}
    found = await facility(define(tmp_path, SCRIPT, tools=tools)).list_tools(None)
    assert [tool["name"] for tool in found["tools"]] == ["echo"]
    assert [says in problem for problem in found["_meta"][PROBLEMS]] == [True, True]


async def test_T4_6_every_input_schema_is_one_of_an_object(tmp_path: Path) -> None:
    tools = {"add": {"inputSchema": {"properties": {"a": {"type": "integer"}}}}, "echo": {}, "elsewhere": {}}
    for tool in (await facility(define(tmp_path, SCRIPT, tools=tools)).list_tools(None))["tools"]:
        Draft202012Validator.check_schema(tool["inputSchema"])
        assert tool["inputSchema"]["type"] == "object"


async def test_a_tool_without_a_schema_has_that_of_its_function(tmp_path: Path) -> None:
    tools = {"say": {"function": "echo", "description": "Says it"}}
    (tool,) = (await facility(define(tmp_path, SCRIPT, tools=tools)).list_tools(None))["tools"]
    assert (tool["name"], tool["description"]) == ("say", "Says it")
    assert tool["inputSchema"]["required"] == ["message"]


async def test_what_the_bridge_does_of_an_entry_is_not_done_here(tmp_path: Path) -> None:
    tools = {"echo": {"name": "say", "enabled": False, "arguments": {"message": {"default": "x", "hide": True}}}}
    served = facility(define(tmp_path, SCRIPT, tools=tools, disallowed_tools=["*"], enabled=False))
    assert await names(served) == ["echo", "add", "fail"]
    assert text(await call(served, "echo", message="hello")) == "hello"


async def test_a_script_with_a_syntax_error_is_listed_with_its_line(tmp_path: Path) -> None:
    found = await facility(define(tmp_path, "\ndef broken(:\n")).list_tools(None)
    assert found["tools"] == []
    (problem,) = found["_meta"][PROBLEMS]
    assert problem.startswith(f"{tmp_path}/thing.py:2:")


async def test_T4_5_the_list_comes_in_pages(tmp_path: Path) -> None:
    served = facility(define(tmp_path, SCRIPT), size=2)
    first = await served.list_tools(None)
    second = await served.list_tools(first["nextCursor"])
    assert [[tool["name"] for tool in each["tools"]] for each in (first, second)] == [["echo", "add"], ["fail"]]
    assert "nextCursor" not in second
    # Another process serves the same list.
    assert await facility(define(tmp_path, SCRIPT), size=2).list_tools(first["nextCursor"]) == second
    changed = facility(define(tmp_path, SCRIPT + "\ndef more(): pass\n"), size=2)
    for served_, cursor in ((changed, first["nextCursor"]), (served, "nowhere"), (served, "")):
        with pytest.raises(InvalidArgument, match="cursor"):
            await served_.list_tools(cursor)


async def test_no_more_than_1000_tools_are_offered_and_it_is_said_how_many_are_not(tmp_path: Path) -> None:
    script = "".join(f"def f{number}(): pass\n" for number in range(900))
    tools = {f"static{number}": {"function": "f0", "inputSchema": {}} for number in range(99)}
    transform = "def generate_tools(name, context): return [{'name': f'm{n}', 'function': 'f0'} for n in range(4)]"
    entry: dict[str, Any] = {"auto_discover": True, "tools": tools, "tools_transform_cid": store(tmp_path, transform)}
    served = facility(define(tmp_path, script, **entry))
    found = await served.describe()
    assert [tool["name"] for tool in found["tools"]][-2:] == ["f899", "m0"]
    assert len(found["tools"]) == 1000
    assert found["problems"] == ["3 tools are left out: a server has 1000 of them at most"]


async def test_the_list_is_made_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_in = []
    monkeypatch.setattr(Tools, "_discover", lambda _self: made_in.append(threading.current_thread()))
    await facility(define(tmp_path, SCRIPT)).list_tools(None)
    assert made_in != [threading.current_thread()]


def test_one_schema_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[object] = []
    original = Draft202012Validator.check_schema
    monkeypatch.setattr(
        Draft202012Validator, "check_schema", lambda schema: (checked.append(schema), original(schema))[1]
    )
    schema = {"properties": {"only here": {"type": "integer"}}}
    Tools(define(tmp_path, SCRIPT, tools={f"t{n}": {"function": "echo", "inputSchema": schema} for n in range(9)}))
    assert len(checked) == 1


@pytest.mark.parametrize("failure", ["transform", "fault"])
async def test_what_failed_is_made_again_after_a_while_and_what_did_not_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    now = 100.0
    monkeypatch.setattr("mcpd.servers.scripts.facility.monotonic", lambda: now)
    source = "def generate_tools(name, context): return [{'name': 'made', 'function': 'echo'}]"
    runs = Inline(SCRIPT)
    served = facility(define(tmp_path, SCRIPT, tools_transform_cid=store(tmp_path, source)), runs=runs)
    answer = failed("no luck")

    def answers(_job: object) -> Outcome:
        if failure == "fault":
            raise OSError("no luck")
        return answer

    runs.answers = answers
    for _ in range(2):
        if failure == "fault":
            with pytest.raises(OSError, match="no luck"):
                await served.list_tools(None)
        else:
            assert "made" not in await names(served)
    assert len(runs.jobs) == 1
    runs.answers = None
    now += AGAIN - 1
    if failure == "transform":
        assert "made" not in await names(served)
    now += 1
    assert "made" in await names(served)
    now += 10 * AGAIN
    assert "made" in await names(served)
    assert len(runs.jobs) == 2


@given(st.integers(0, 30), st.integers(1, 7))
def test_T4_5_the_pages_are_the_list(count: int, size: int) -> None:
    items = [{"name": str(number)} for number in range(count)]
    found, cursor = Pages("tools", items, size).page(None)
    while cursor is not None:
        more, cursor = Pages("tools", items, size).page(cursor)
        assert 0 < len(more) <= size
        found += more
    assert found == items


@given(st.text(max_size=40))
def test_T4_5_no_cursor_can_be_made_up(cursor: str) -> None:
    items = [{"name": str(number)} for number in range(5)]
    with pytest.raises(InvalidArgument):
        Pages("tools", items, 2).page(cursor)


def test_T4_5_a_cursor_of_one_list_is_none_of_another() -> None:
    items = [{"name": str(number)} for number in range(5)]
    _, cursor = Pages("tools", items, 2).page(None)
    with pytest.raises(InvalidArgument):
        Pages("prompts", items, 2).page(cursor)
