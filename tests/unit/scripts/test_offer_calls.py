# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a call of a tool runs, and how many run at once (T5)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import McpdError
from mcpd.servers.scripts.calls import Outcome, PythonJob, ShellJob
from mcpd.servers.scripts.facility import MOST_CALLS, PROBLEMS
from tests.unit.scripts.facility_parts import (
    SCRIPT,
    TRANSFORM,
    Inline,
    call,
    define,
    facility,
    failed,
    names,
    returned,
    store,
    text,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


# ---------------------------------------------------------------------------------------- T5: calls


async def test_T5_1_a_simple_tool_answers(tmp_path: Path) -> None:
    served = facility(define(tmp_path, SCRIPT))
    assert await call(served, "echo", message="hello") == {
        "content": [{"type": "text", "text": "hello"}],
        "isError": False,
    }


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "$.a is required"),
        ({"a": "x"}, "$.a: 'x' is not of type 'integer'"),
        ({"a": 1, "c": 2}, "'c' was unexpected"),
    ],
)
async def test_T5_2_arguments_are_checked_before_anything_runs(tmp_path: Path, arguments: Any, says: str) -> None:
    schema = {"properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
    runs = Inline(SCRIPT)
    served = facility(define(tmp_path, SCRIPT, tools={"add": {"inputSchema": schema}}), runs=runs)
    found = await call(served, "add", **arguments)
    assert found["isError"] is True
    assert says in text(found)
    assert runs.jobs == []


async def test_T5_3_an_optional_argument_has_its_default(tmp_path: Path) -> None:
    assert text(await call(facility(define(tmp_path, SCRIPT)), "add", a=1)) == "3"
    schema = {"properties": {"a": {"type": "integer"}, "b": {"default": 40}}}
    served = facility(define(tmp_path, SCRIPT, tools={"add": {"inputSchema": schema}}))
    assert (text(await call(served, "add", a=1)), text(await call(served, "add", a=1, b=1))) == ("41", "2")


async def test_T5_4_an_unknown_tool_is_a_tool_error(tmp_path: Path) -> None:
    assert await call(facility(define(tmp_path, SCRIPT)), "_hidden") == {
        "content": [{"type": "text", "text": "Unknown tool: _hidden"}],
        "isError": True,
    }


async def test_T5_5_what_a_tool_raises_is_a_tool_error_with_its_message(tmp_path: Path) -> None:
    found = await call(facility(define(tmp_path, SCRIPT)), "fail", reason="the disk is full")
    assert (found["isError"], text(found)) == (True, "the disk is full")


async def test_a_tool_whose_function_is_missing_says_so(tmp_path: Path) -> None:
    served = facility(define(tmp_path, SCRIPT, tools={"gone": {}}))
    found = await call(served, "gone")
    assert found["isError"] is True
    assert "no function gone" in text(found)
    assert "no function gone" in (await served.list_tools(None))["_meta"][PROBLEMS][0]


async def test_a_tool_of_a_server_without_a_script_says_so(tmp_path: Path) -> None:
    found = await call(facility(define(tmp_path, tools={"tool": {}})), "tool")
    assert found["isError"] is True
    assert "thing has no script" in text(found)


async def test_a_result_has_to_be_what_the_output_schema_says(tmp_path: Path) -> None:
    answers = iter([returned({"n": 1}), returned({"n": "x"}), returned("text")])
    runs = Inline(SCRIPT, answers=lambda _job: next(answers))
    served = facility(define(tmp_path, SCRIPT, tools={"add": {"outputSchema": SCHEMA}}), runs=runs)
    assert (await call(served, "add", a=1))["structuredContent"] == {"n": 1}
    for says in ("$.n: 'x' is not of type 'integer'", "not an object"):
        found = await call(served, "add", a=1)
        assert found["isError"] is True
        assert says in text(found)


@pytest.mark.parametrize(
    ("name", "arguments", "answer", "code", "says"),
    [
        ("unheard", {}, returned("x"), -32601, "Unknown tool: unheard"),
        ("add", {"a": "x"}, returned("x"), -32602, "$.a: 'x' is not of type 'integer'"),
        ("add", {"a": 1}, failed("the disk is full"), -32603, "the disk is full"),
        ("add", {"a": 1}, replace(failed("it took too long"), timed_out=True), -32000, "it took too long"),
        ("add", {"a": 1}, replace(failed("no"), raw={"content": [], "isError": True}), -32603, "failed"),
        ("add", {"a": 1}, returned("fine"), 0, ""),
    ],
)
async def test_C4_to_C7_the_entry_chooses_errors_of_json_rpc(
    tmp_path: Path, name: str, arguments: Any, answer: Outcome, code: int, says: str
) -> None:
    runs = Inline("", answers=lambda _job: answer)
    told = await facility(define(tmp_path, SCRIPT), runs=runs).call_tool(name, arguments, None)
    assert told["isError"] is (code != 0)
    served = facility(define(tmp_path, SCRIPT, runtime={"errorMapping": "json-rpc"}), runs=runs)
    if not code:
        assert await served.call_tool(name, arguments, None) == told
        return
    with pytest.raises(McpdError) as caught:
        await served.call_tool(name, arguments, None)
    assert caught.value.jsonrpc_code == code
    assert says in caught.value.message


@pytest.mark.parametrize("is_error", [True, False])
async def test_a_result_that_a_script_gives_as_MCP_has_it_stays_itself(tmp_path: Path, is_error: bool) -> None:
    image = {"type": "image", "data": "AAEC", "mimeType": "image/png"}
    raw = {"content": [image], "isError": is_error, "structuredContent": {"a": 1}, "_meta": {"b": 2}}
    outcome = Outcome([image], {"a": 1}, None, "", "it failed" if is_error else "", raw)
    runs = Inline("", answers=lambda _job: outcome)
    assert await call(facility(define(tmp_path, SCRIPT), runs=runs), "echo", message="x") == raw


@pytest.mark.parametrize(
    "error",
    [
        "a\nThe script ended with status 3.",
        "The call ended with status 1 and without a result; see the server's log.",
    ],
)
async def test_a_failure_that_says_little_names_the_log_where_there_is_one(tmp_path: Path, error: str) -> None:
    defined = define(tmp_path, SCRIPT)
    runs = Inline("", answers=lambda _job: failed(error))
    assert text(await call(facility(defined, runs=runs), "echo", message="x")).endswith("; see 'mcpctl logs thing'.")
    alone = facility(replace(defined, managed=False), runs=runs)
    assert text(await call(alone, "echo", message="x")) == error


# ---------------------------------------------------------------------------------------- V-23: what runs


@pytest.mark.parametrize(
    ("source", "tool", "runs"),
    [
        ("def main(): pass\ndef thing(): pass", {}, "main"),
        ("def thing(): pass", {}, "thing"),
        ("def main(): pass\ndef other(): pass", {"function": "other"}, "other"),
    ],
)
async def test_V23_a_tool_named_like_its_server_runs_main(tmp_path: Path, source: str, tool: Any, runs: str) -> None:
    inline = Inline(source)
    served = facility(define(tmp_path, source, tools={"thing": {"inputSchema": SCHEMA, **tool}}), runs=inline)
    await call(served, "thing", n=1)
    (job,) = inline.jobs
    assert isinstance(job, PythonJob)
    assert job.function == runs
    assert job.arguments == {"n": 1}
    assert job.context["server_name"] == "thing"


async def test_the_name_of_the_server_calls_main(tmp_path: Path) -> None:
    source = "def main(text: str) -> str:\n    return text.upper()\n\ndef other() -> str:\n    return 'other'\n"
    served = facility(define(tmp_path, source))
    assert await names(served) == ["main", "other"]
    assert text(await call(served, "thing", text="a")) == "A"
    assert text(await call(served, "main", text="a")) == "A"


@pytest.mark.parametrize(
    ("source", "suffix"),
    [
        ("def other(): pass", ".py"),
        ("__all__ = ['other']\ndef main(): pass\ndef other(): pass", ".py"),
    ],
)
async def test_the_name_of_the_server_calls_nothing_that_is_not_offered(
    tmp_path: Path, source: str, suffix: str
) -> None:
    found = await call(facility(define(tmp_path, source, suffix=suffix)), "thing")
    assert (found["isError"], text(found)) == (True, "Unknown tool: thing")


async def test_the_name_of_the_server_does_not_get_around_the_map(tmp_path: Path) -> None:
    defined = replace(define(tmp_path, "def main(): pass"), narrowed=True)
    assert text(await call(facility(defined), "thing")) == "Unknown tool: thing"


FLAG = {"type": "boolean"}
PROPERTIES = {"file": {}, "n": {}, "all": FLAG, "quiet": FLAG, "tags": {"type": "array"}, "deep": {}, "none": {}}
GIVEN = {"deep": {"a": [1]}, "tags": ["x", "-y"], "all": True, "quiet": False, "n": 5, "file": "a b", "none": None,
         "made-up": "--force"}  # fmt: skip
WORDS = ("--file=a b", "--n=5", "--all", "--tags=x", "--tags=-y", '--deep={"a": [1]}')


@pytest.mark.parametrize(("tool", "words"), [("thing", WORDS), ("list", ("list", *WORDS))])
async def test_V23_a_shell_script_gets_the_arguments_as_words_and_as_json(
    tmp_path: Path, tool: str, words: tuple[str, ...]
) -> None:
    inline = Inline("", answers=lambda _job: returned("done"))
    entry: dict[str, Any] = {"tools": {tool: {"inputSchema": {"properties": PROPERTIES}}}}
    served = facility(define(tmp_path, "#!/bin/sh\necho\n", suffix=".sh", **entry), runs=inline)
    await call(served, tool, **GIVEN)
    (job,) = inline.jobs
    assert isinstance(job, ShellJob)
    assert (job.words, job.environment) == (words, {"MCP_TOOL": tool})
    assert json.loads(job.stdin) == GIVEN


async def test_C36_an_argument_args_is_a_command_line(tmp_path: Path) -> None:
    inline = Inline("", answers=lambda _job: returned("done"))
    entry: dict[str, Any] = {"tools": {"list": {"inputSchema": {"properties": {"args": {"type": "string"}}}}}}
    served = facility(define(tmp_path, "#!/bin/sh\necho\n", suffix=".sh", **entry), runs=inline)
    await call(served, "list", args="-l 'a b'")
    (job,) = inline.jobs
    assert isinstance(job, ShellJob)
    assert job.words == ("list", "-l", "a b")


@pytest.mark.parametrize("value", ["a\0b", "x" * 200_000])
async def test_what_can_be_no_word_is_a_tool_error(tmp_path: Path, value: str) -> None:
    inline = Inline("")
    entry: dict[str, Any] = {"tools": {"list": {"inputSchema": {"properties": {"file": {}}}}}}
    served = facility(define(tmp_path, "#!/bin/sh\necho\n", suffix=".sh", **entry), runs=inline)
    found = await call(served, "list", file=value)
    assert found["isError"] is True
    assert text(found).startswith("file: ")
    assert inline.jobs == []


async def test_C36_no_schema_lets_a_client_make_up_a_command_line(tmp_path: Path) -> None:
    inline = Inline("", answers=lambda _job: returned("done"))
    served = facility(
        define(tmp_path, "#!/bin/sh\necho\n", suffix=".sh", tools={"list": {"inputSchema": {}}}), runs=inline
    )
    await call(served, "list", args="--force")
    (job,) = inline.jobs
    assert isinstance(job, ShellJob)
    assert job.words == ("list",)


async def test_V23_the_tool_of_the_script_gets_its_words(tmp_path: Path) -> None:
    inline = Inline("", answers=lambda _job: returned("done"))
    served = facility(define(tmp_path, "#!/bin/sh\necho\n", suffix=".sh"), runs=inline)
    assert await names(served) == ["thing"]
    await call(served, "thing", args="-l 'a b'")
    (job,) = inline.jobs
    assert isinstance(job, ShellJob)
    assert (job.words, job.stdin) == (("-l", "a b"), b"")


# ---------------------------------------------------------------------------------------- several at once


class Gate(Inline):
    """Runs that wait to be let through."""

    def __init__(self) -> None:
        super().__init__("")
        self.opened = asyncio.Event()
        self.most = self.now = 0
        self.ended: list[str] = []

    async def call(self, job: Any, limits: Any = None, on_progress: Any = None) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.ended.append(job.arguments["message"])
            raise
        finally:
            self.now -= 1
        return returned("done")


async def test_T13_4_many_calls_run_at_once_and_no_more(tmp_path: Path) -> None:
    gate = Gate()
    served = facility(define(tmp_path, SCRIPT), runs=gate)
    waiting = [asyncio.create_task(call(served, "echo", message=str(n))) for n in range(MOST_CALLS + 10)]
    while gate.now < MOST_CALLS:
        await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    gate.opened.set()
    assert [text(found) for found in await asyncio.gather(*waiting)] == ["done"] * len(waiting)
    assert gate.most == MOST_CALLS


async def test_cancelling_a_call_ends_it_and_no_other(tmp_path: Path) -> None:
    gate = Gate()
    served = facility(define(tmp_path, SCRIPT), runs=gate)
    first, second = (asyncio.create_task(call(served, "echo", message=name)) for name in ("first", "second"))
    while gate.now < 2:
        await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    while not gate.ended:
        await asyncio.sleep(0)
    assert gate.ended == ["first"]
    gate.opened.set()
    assert text(await second) == "done"


async def test_closing_ends_what_runs(tmp_path: Path) -> None:
    gate = Gate()
    served = facility(define(tmp_path, SCRIPT), runs=gate)
    running = asyncio.create_task(call(served, "echo", message="first"))
    while not gate.now:
        await asyncio.sleep(0)
    await served.close()
    assert gate.ended == ["first"]
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_transform_goes_on_when_the_first_who_asked_gives_up(tmp_path: Path) -> None:
    gate = Gate()
    served = facility(define(tmp_path, SCRIPT, tools_transform_cid=store(tmp_path, TRANSFORM)), runs=gate)
    first = asyncio.create_task(served.list_tools(None))
    while not gate.now:
        await asyncio.sleep(0)
    first.cancel()
    second = asyncio.create_task(served.list_tools(None))
    await asyncio.wait([first])
    gate.opened.set()
    assert len((await second)["tools"]) == 3


async def test_a_run_that_cannot_be_is_a_tool_error(tmp_path: Path) -> None:
    runs = Inline("", answers=lambda _job: failed("thing.py: ran for more than 30 s and was stopped"))
    found = await call(facility(define(tmp_path, SCRIPT), runs=runs), "echo", message="x")
    assert (found["isError"], text(found)) == (True, "thing.py: ran for more than 30 s and was stopped")
