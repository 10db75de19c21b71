# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ensembles that run others, runs that are cancelled, and those that go on where another one ended."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import McpdError
from tests.unit.ensembles.engine_parts import Stage, model, script

if TYPE_CHECKING:
    from mcpd.servers.ensembles.engine.types import AgentResult, Prompt, ScriptCall


async def test_an_agent_runs_another_ensemble() -> None:
    stage = Stage(
        {
            "it": {"agents": [script("a"), {"name": "sub", "ensemble": "other", "depends_on": ["a"]}]},
            "other": {"agents": [model("x"), model("y", "x")]},
        }
    )
    result = await stage.run()
    sub = result.results["sub"]
    assert sub.child is not None
    assert sub.response == sub.child.deliverable == result.deliverable
    assert sub.usage.total_tokens == result.usage.total_tokens == 10
    assert "sub/x" in stage.begun


async def test_the_failure_of_an_ensemble_says_what_failed_in_it() -> None:
    stage = Stage({"it": {"agents": [{"name": "sub", "ensemble": "other"}]}, "other": {"agents": [script("x")]}})

    async def run(call: ScriptCall) -> str:
        raise McpdError("x broke")

    stage.script = run
    fault = (await stage.run()).results["sub"].fault
    assert fault is not None
    assert fault.message == "ensemble other failed: agent x: x broke"
    assert fault.data["agent"] == "x"


async def test_ensembles_run_one_another_five_levels_deep() -> None:
    levels: dict[str, Any] = {f"e{n}": {"agents": [{"name": "a", "ensemble": f"e{n + 1}"}]} for n in range(6)}
    deepest = {**levels, "e5": {"agents": [script("a")]}}
    assert (await Stage(deepest).run("e0")).deliverable == "hello"
    too_deep = {**levels, "e6": {"agents": [script("a")]}}
    fault = (await Stage(too_deep).run("e0")).results["a"].fault
    assert fault is not None
    assert "5 levels deep" in fault.message


async def test_an_ensemble_that_runs_itself_ends() -> None:
    stage = Stage({"it": {"agents": [{"name": "again", "dispatch": "it"}]}})
    result = await stage.run()
    assert result.status == "failed"


async def test_a_loop_runs_until_its_condition_holds_and_carries_on_what_it_says() -> None:
    loop = {"body": "step", "until": "${ok}", "carry": "${next}", "max_iterations": 9}
    stage = Stage({"it": {"agents": [{"name": "l", "loop": loop}]}, "step": {"agents": [script("s")]}})

    async def run(call: ScriptCall) -> str:
        count = int(call.input) + 1
        return json.dumps({"ok": count == 3, "next": count})

    stage.script = run
    result = (await stage.run(text="0")).results["l"]
    assert [call.input for call in stage.calls] == ["0", "1", "2"]
    assert result.iterations == 3
    assert json.loads(result.response or "") == {"ok": True, "next": 3}


async def test_a_loop_ends_after_its_most_iterations() -> None:
    loop = {"body": "step", "until": "${ok}", "max_iterations": 2}
    stage = Stage({"it": {"agents": [{"name": "l", "loop": loop}]}, "step": {"agents": [script("s")]}})
    result = (await stage.run(text="x")).results["l"]
    assert (result.status, result.iterations, len(stage.calls)) == ("success", 2, 2)


async def test_dispatch_runs_the_ensemble_that_was_named() -> None:
    agents = [
        script("route"),
        {"name": "seat", "dispatch": "${route.target}", "depends_on": ["route"], "input_key": "task"},
    ]
    stage = Stage({"it": {"agents": agents}, "left": {"agents": [script("l")]}, "right": {"agents": [script("r")]}})
    result = await stage.run(text='{"target": "right", "task": "turn"}')
    assert stage.calls[-1].script == "scripts/r.py"
    assert result.deliverable == "turn"
    fault = (await stage.run(text='{"target": "up", "task": ""}')).results["seat"].fault
    assert fault is not None
    assert fault.error == "NotFound"


async def test_the_budget_of_a_run_holds_for_what_it_runs() -> None:
    stage = Stage(
        {
            "it": {"budget": {"tokens": 5}, "agents": [{"name": "sub", "ensemble": "other"}]},
            "other": {"agents": [model("x"), model("y", "x")]},
        }
    )
    result = await stage.run()
    assert len(stage.prompts) == 1
    child = result.results["sub"].child
    assert child is not None
    assert child.results["y"].fault is not None
    assert child.results["y"].fault.data["ensemble"] == "it"


async def test_nested_ensembles_share_the_slots_of_the_run() -> None:
    inner = {"max_concurrent": 4, "agents": [model(f"m{n}") for n in range(6)]}
    outer = {"max_concurrent": 2, "agents": [{"name": f"e{n}", "ensemble": "inner"} for n in range(3)]}
    stage = Stage({"it": outer, "inner": inner})
    assert (await stage.run()).status == "completed"
    assert stage.peak == 2


async def test_cancelling_a_run_ends_all_of_it_and_tells_the_journal() -> None:
    stage = Stage(
        {
            "it": {
                "agents": [script("a"), {"name": "sub", "ensemble": "other", "depends_on": ["a"]}, script("z", "sub")]
            },
            "other": {"agents": [model("x")]},
        }
    )
    asked, ended = asyncio.Event(), asyncio.Event()

    async def answer(prompt: Prompt) -> str:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    stage.answer = answer
    running = asyncio.create_task(stage.run())
    await asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended.is_set()
    (result,) = stage.ends
    assert result.status == "cancelled"
    assert {name: each.status for name, each in result.results.items()} == {
        "a": "success",
        "sub": "cancelled",
        "z": "cancelled",
    }


async def test_a_later_run_takes_over_what_an_earlier_one_has_got() -> None:
    stage = Stage({"it": {"agents": [script("a"), script("b", "a"), script("c", "b")]}})
    broken = True

    async def run(call: ScriptCall) -> str:
        if call.agent == "b" and broken:
            raise McpdError("b broke")
        return f"{call.agent}({call.input})"

    stage.script = run
    first = await stage.run()
    broken = False
    stage.calls.clear()
    second = await stage.run(earlier=first.results)
    assert [call.agent for call in stage.calls] == ["b", "c"]
    assert second.deliverable == "c(b(a(hello)))"
    assert [each.reused for each in second.results.values()] == [True, False, False]


async def test_nothing_is_taken_over_from_another_definition() -> None:
    stage = Stage({"it": {"agents": [script("a"), script("b", "a")]}})
    first = await stage.run()
    changed = Stage({"it": {"agents": [script("a", parameters={"x": 1}), script("b", "a")]}})
    second = await changed.run(earlier=first.results)
    assert not any(each.reused for each in second.results.values())


async def test_a_changed_ensemble_that_an_agent_runs_is_another_definition() -> None:
    outer = {"agents": [{"name": "sub", "ensemble": "other"}, script("b")]}
    first = await Stage({"it": outer, "other": {"agents": [script("x")]}}).run()
    changed = Stage({"it": outer, "other": {"agents": [script("x", parameters={"y": 1})]}})
    second = await changed.run(earlier=first.results)
    assert [each.reused for each in second.results.values()] == [False, True]


async def test_no_more_ensembles_at_a_time_than_max_concurrent_says() -> None:
    outer = {"max_concurrent": 2, "agents": [{"name": f"e{n}", "ensemble": "inner"} for n in range(6)]}
    stage = Stage({"it": outer, "inner": {"agents": [script("x"), script("y", "x")]}})
    at_work: set[str] = set()
    most = 0

    async def run(call: ScriptCall) -> str:
        await asyncio.sleep(0)
        return ""

    class Counting(Stage):
        def progressed(self, done: float, total: float, result: AgentResult) -> None:
            nonlocal most
            ensemble, _, agent = result.name.partition("/")
            if agent == "x":
                at_work.add(ensemble)
                most = max(most, len(at_work))
            elif not agent:
                at_work.discard(ensemble)

    counting = Counting({})
    counting.source, counting.script = stage.source, run
    assert (await counting.run()).status == "completed"
    assert most == 2
