# SPDX-License-Identifier: LGPL-2.1-or-later
"""What runs when, what it is given, and what a run amounts to."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import McpdError, NotAuthorized
from mcpd.servers.ensembles.engine.types import MAX_RESPONSE
from tests.unit.ensembles.engine_parts import Stage, model, script

if TYPE_CHECKING:
    from mcpd.servers.ensembles.engine.types import Prompt, ScriptCall


async def test_agents_that_depend_on_nothing_work_at_the_same_time() -> None:
    stage = Stage({"it": {"agents": [model("a"), model("b"), model("c", "a", "b")]}})
    both = asyncio.Barrier(2)

    async def answer(prompt: Prompt) -> str:
        if prompt.text == "hello":
            await both.wait()
        return prompt.text.upper()

    stage.answer = answer
    result = await stage.run()
    assert result.status == "completed"
    assert stage.begun[-1] == "c"
    assert "## a\n\nHELLO" in stage.prompts[-1].text
    assert result.deliverable == result.results["c"].response


async def test_no_more_work_at_a_time_than_max_concurrent_says() -> None:
    stage = Stage({"it": {"max_concurrent": 3, "agents": [model(f"a{number}") for number in range(12)]}})
    await stage.run()
    assert stage.peak == 3


async def test_what_several_last_agents_say_is_an_object() -> None:
    stage = Stage({"it": {"agents": [script("a"), script("b")]}})
    result = await stage.run(text='{"x": 1}')
    assert json.loads(result.deliverable or "") == {"a": {"x": 1}, "b": {"x": 1}}


async def test_the_default_task_is_the_input_of_a_call_without_one() -> None:
    stage = Stage({"it": {"default_task": "do it", "agents": [script("a")]}})
    assert (await stage.run(text="")).deliverable == "do it"


async def test_the_other_agents_go_on_when_one_fails() -> None:
    stage = Stage(
        {"it": {"agents": [script("bad"), script("good"), script("after", "bad"), script("both", "bad", "good")]}}
    )
    stage.script = failing("bad")
    result = await stage.run()
    assert {name: each.status for name, each in result.results.items()} == {
        "bad": "failed",
        "good": "success",
        "after": "skipped",
        "both": "success",
    }
    assert result.status == "completed_with_errors"
    given = json.loads(next(call for call in stage.calls if call.agent == "both").input)
    assert given == {"bad": {"status": "failed", "error": "bad broke"}, "good": "hello"}
    fault = result.results["after"].fault
    assert fault is not None
    assert "bad failed" in fault.message


async def test_a_run_without_a_success_has_failed() -> None:
    stage = Stage({"it": {"agents": [script("bad"), script("after", "bad")]}})
    stage.script = failing("bad")
    assert (await stage.run()).status == "failed"


@pytest.mark.parametrize("where", ["ensemble", "agent"])
async def test_the_run_stops_at_a_failure_where_the_policy_says_so(where: str) -> None:
    waiting = asyncio.Event()
    bad = script("bad")
    ensemble: dict[str, Any] = {"agents": [script("slow"), script("never", "slow")]}
    (ensemble if where == "ensemble" else bad)["on_failure"] = "stop"
    ensemble["agents"].append(bad)
    stage = Stage({"it": ensemble})

    async def run(call: ScriptCall) -> str:
        if call.agent == "bad":
            await waiting.wait()
            raise McpdError("bad broke")
        waiting.set()
        await asyncio.Event().wait()
        return ""

    stage.script = run
    result = await stage.run()
    assert result.status == "failed"
    assert result.fault is not None
    assert (result.fault.agent, result.fault.message) == ("bad", "bad broke")
    assert [each.status for each in result.results.values()] == ["cancelled", "cancelled", "failed"]
    assert "never" not in stage.begun


async def test_an_agent_is_skipped_if_its_condition_does_not_hold() -> None:
    stage = Stage(
        {
            "it": {
                "agents": [
                    script("kind"),
                    script("pdf", "kind", when="${kind.kind} == pdf"),
                    script("audio", "kind", when="${kind.kind} == audio"),
                    script("end", "pdf", "audio"),
                ]
            }
        }
    )
    result = await stage.run(text='{"kind": "pdf"}')
    assert [each.status for each in result.results.values()] == ["success", "success", "skipped", "success"]
    assert result.status == "completed"
    assert json.loads(stage.calls[-1].input)["audio"] == {"status": "skipped"}


async def test_what_comes_after_skipped_agents_alone_is_skipped_and_no_error() -> None:
    stage = Stage({"it": {"agents": [script("a"), script("b", "a", when="${a.no}"), script("c", "b")]}})
    result = await stage.run(text="{}")
    assert [each.status for each in result.results.values()] == ["success", "skipped", "skipped"]
    assert result.status == "completed"


async def test_input_key_names_a_member_of_the_first_dependency() -> None:
    stage = Stage(
        {"it": {"agents": [script("a"), script("b", "a", input_key="part"), script("c", "a", input_key="no")]}}
    )
    result = await stage.run(text='{"part": [1, 2]}')
    assert stage.calls[1].input == "[1, 2]"
    fault = result.results["c"].fault
    assert fault is not None
    assert "has no member 'no': it has part" in fault.message


@pytest.mark.parametrize("upstream", ['["x", {"y": 1}]', '{"data": ["x", {"y": 1}]}'])
async def test_an_agent_fans_out_over_a_list(upstream: str) -> None:
    stage = Stage({"it": {"agents": [script("split"), script("each", "split", fan_out=True), script("end", "each")]}})
    result = await stage.run(text=upstream)
    each = result.results["each"]
    assert [(one.name, one.status) for one in each.instances] == [("each[0]", "success"), ("each[1]", "success")]
    assert json.loads(stage.calls[1].input) == {
        "input": "x",
        "chunk_index": 0,
        "total_chunks": 2,
        "base_input": upstream,
    }
    gathered = json.loads(stage.calls[-1].input)
    assert (gathered["status"], gathered["fan_out"], len(gathered["response"])) == ("success", True, 2)


async def test_instances_fail_on_their_own() -> None:
    stage = Stage(
        {"it": {"agents": [script("split"), model("each", "split", fan_out=True, input_scope="dependencies")]}}
    )

    async def answer(prompt: Prompt) -> str:
        if prompt.text == "b":
            raise McpdError("no b")
        return prompt.text

    stage.answer = answer
    result = await stage.run(text='["a", "b", "c"]')
    gathered = json.loads(result.results["each"].response or "")
    assert gathered["response"] == ["a", None, "c"]
    assert gathered["status"] == "partial"
    assert gathered["instances"][1] == {"index": 1, "status": "failed", "error": "no b"}
    assert result.results["each"].status == "success"


async def test_an_agent_all_of_whose_instances_fail_has_failed() -> None:
    stage = Stage({"it": {"agents": [script("split"), model("each", "split", fan_out=True, retries=0)]}})

    async def answer(prompt: Prompt) -> str:
        raise NotAuthorized("no")

    stage.answer = answer
    result = await stage.run(text="[1, 2]")
    fault = result.results["each"].fault
    assert fault is not None
    assert fault.message == "all its 2 instances failed; the first: no"


async def test_nothing_to_fan_out_over_is_no_failure() -> None:
    stage = Stage({"it": {"agents": [script("split"), script("each", "split", fan_out=True)]}})
    result = await stage.run(text="[]")
    assert json.loads(result.deliverable or "")["response"] == []


@pytest.mark.parametrize("upstream", ["text", '{"data": 3}', "7"])
async def test_what_is_no_list_cannot_be_fanned_out_over(upstream: str) -> None:
    stage = Stage({"it": {"agents": [script("split"), script("each", "split", fan_out=True)]}})
    fault = (await stage.run(text=upstream)).results["each"].fault
    assert fault is not None
    assert "neither a list" in fault.message


async def test_a_tool_gets_arguments_with_references_in_them() -> None:
    agents = [
        script("a"),
        {
            "name": "t",
            "mcp": {"server": "s", "tool": "x/y", "arguments": {"p": "${a.p}", "q": "in ${input.q}"}},
            "depends_on": ["a"],
        },
        {"name": "u", "mcp": {"server": "s", "tool": "z"}, "depends_on": ["a"]},
        {"name": "v", "mcp": {"server": "s", "tool": "z"}, "depends_on": ["t"]},
    ]
    stage = Stage({"it": {"agents": agents}})
    result = await stage.run(text='{"p": [1], "q": "w"}')
    assert result.results["t"].response == "s x/y {'p': [1], 'q': 'in w'}"
    assert result.results["u"].response == "s z {'p': [1], 'q': 'w'}"
    fault = result.results["v"].fault
    assert fault is not None
    assert "are no object" in fault.message


async def test_each_instance_names_its_element() -> None:
    agents = [
        script("a"),
        {
            "name": "t",
            "mcp": {"server": "s", "tool": "x", "arguments": {"p": "${item.n}"}},
            "depends_on": ["a"],
            "fan_out": True,
        },
    ]
    result = await Stage({"it": {"agents": agents}}).run(text='[{"n": 1}, {"n": 2}]')
    assert json.loads(result.deliverable or "")["response"] == ["s x {'p': 1}", "s x {'p': 2}"]


async def test_a_response_that_is_too_large_fails() -> None:
    stage = Stage({"it": {"agents": [script("a"), script("b")]}})

    async def run(call: ScriptCall) -> str:
        return "x" * (MAX_RESPONSE + 1) if call.agent == "a" else "ok"

    stage.script = run
    result = await stage.run()
    assert result.results["a"].fault is not None
    assert result.results["a"].fault.error == "LimitsExceeded"
    assert result.deliverable == "ok"


async def test_what_we_do_wrong_ourselves_costs_that_agent_alone(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage({"it": {"agents": [script("a"), script("b")]}})

    async def run(call: ScriptCall) -> str:
        if call.agent == "a":
            raise ZeroDivisionError
        return "ok"

    stage.script = run
    result = await stage.run()
    assert result.results["a"].fault is not None
    assert "internal error" in result.results["a"].fault.message
    assert result.deliverable == "ok"
    assert "ZeroDivisionError" in caplog.text


async def test_progress_only_grows_and_ends_at_the_total() -> None:
    agents = [script("split"), script("each", "split", fan_out=True), script("sub", "each")]
    agents.append({"name": "inner", "ensemble": "other", "depends_on": ["sub"]})
    stage = Stage({"it": {"agents": agents}, "other": {"agents": [script("x"), script("y", "x")]}})
    await stage.run(text="[1, 2, 3]")
    done = [each[0] for each in stage.heard]
    assert done == sorted(done)
    assert stage.heard[-1] == (4, 4, "inner", "success")
    assert {total for _, total, _, _ in stage.heard} == {4}
    assert [name for _, _, name, _ in stage.heard][-3:-1] == ["inner/x", "inner/y"]


async def test_what_has_finished_is_kept_as_it_comes_and_the_end_once() -> None:
    stage = Stage({"it": {"agents": [script("a"), script("b", "a")]}})
    result = await stage.run()
    assert [each.name for each in stage.kept] == ["a", "b"]
    assert all(each.definition for each in stage.kept)
    assert stage.ends == [result]


def failing(name: str) -> Any:
    """Scripts of which *name* fails."""

    async def run(call: ScriptCall) -> str:
        await asyncio.sleep(0)
        if call.agent == name:
            raise McpdError(f"{name} broke")
        return call.input

    return run
