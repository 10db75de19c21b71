# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the engine does at its limits: with awkward responses, with too much of anything, and while it is ended."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import InvalidArgument, McpdError, ServiceUnavailable
from mcpd.servers.ensembles.engine import budget, inputs
from mcpd.servers.ensembles.engine.progress import Course, Stretch
from mcpd.servers.ensembles.engine.types import MAX_RESPONSE, AgentResult
from tests.unit.ensembles.engine_parts import Stage, script

if TYPE_CHECKING:
    from mcpd.servers.ensembles.engine.types import Found, Origin, Prompt, RunResult, ScriptCall


def fault(result: RunResult, agent: str) -> str:
    """What went wrong with *agent*."""
    found = result.results[agent].fault
    assert found is not None
    return found.message


@pytest.mark.parametrize("policy", ["stop", "continue"])
async def test_whatever_ends_a_run_an_agent_can_end_its_own_in_peace(policy: str) -> None:
    stage = Stage({"it": {"agents": [script("slow"), script("bad", on_failure=policy)]}})
    waiting, ending, over = asyncio.Event(), asyncio.Event(), asyncio.Event()
    cut_off = False

    async def run(call: ScriptCall) -> str:
        nonlocal cut_off
        if call.agent == "bad":
            await waiting.wait()
            raise McpdError("bad broke")
        try:
            waiting.set()
            await asyncio.Event().wait()
        finally:
            ending.set()
            try:
                await over.wait()
            except asyncio.CancelledError:
                cut_off = True
        return ""

    stage.script = run
    running = asyncio.create_task(stage.run())
    await waiting.wait()
    if policy == "continue":
        running.cancel()
    await ending.wait()
    running.cancel()
    await asyncio.sleep(0)
    over.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not cut_off
    assert stage.ends[0].results["slow"].status == "cancelled"


async def test_an_instance_that_fails_for_our_own_fault_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage({"it": {"agents": [script("split"), script("each", "split", fan_out=True)]}})

    async def run(call: ScriptCall) -> str:
        if call.agent == "each[1]":
            raise ZeroDivisionError
        return call.input

    stage.script = run
    each = (await stage.run(text="[1, 2, 3]")).results["each"]
    assert [one.status for one in each.instances] == ["success", "failed", "success"]
    assert json.loads(each.response or "")["status"] == "partial"
    assert "ZeroDivisionError" in caplog.text


async def test_a_run_uses_the_same_ensemble_for_all_instances() -> None:
    inner = {"name": "each", "ensemble": "other", "depends_on": ["split"], "fan_out": True}
    stage = Stage({"it": {"agents": [script("split"), inner]}, "other": {"agents": [script("x")]}})
    asked: list[str] = []
    find = stage.source.find

    def counted(name: str, whose: Origin | None = None) -> Found:
        asked.append(name)
        return find(name, whose)

    stage.source.find = counted  # type: ignore[method-assign]
    result = await stage.run(text="[1, 2, 3]")
    assert len(result.results["each"].instances) == 3
    # Once for what it is defined as, and once for all runs of it.
    assert asked.count("other") == 2


async def test_a_run_has_an_end_to_the_agents_that_run_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MAX_BEGUN", 10)
    agents = [{"name": f"e{n}", "ensemble": "other", "depends_on": [f"e{n - 1}"] if n else []} for n in range(4)]
    stage = Stage({"it": {"agents": agents}, "other": {"agents": [script(f"x{n}") for n in range(3)]}})
    result = await stage.run()
    assert [each.status for each in result.results.values()] == ["success", "success", "success", "failed"]
    assert "more than 10 instances and agents" in fault(result, "e3")


async def test_what_an_ensemble_delivers_is_not_lost_silently_where_it_is_too_much() -> None:
    inner = {"agents": [script(f"x{n}") for n in range(9)]}
    stage = Stage({"it": {"agents": [{"name": "sub", "ensemble": "other"}]}, "other": inner})

    async def run(call: ScriptCall) -> str:
        return "x" * (MAX_RESPONSE - 1)

    stage.script = run
    assert "are the most" in fault(await stage.run(), "sub")


@pytest.mark.parametrize("key", [{"input_key": "part"}, {"fan_out": True}])
async def test_an_input_that_has_failed_is_what_a_fault_names(key: dict[str, Any]) -> None:
    stage = Stage({"it": {"agents": [script("bad"), script("good"), script("c", "bad", "good", **key)]}})

    async def run(call: ScriptCall) -> str:
        if call.agent == "bad":
            raise McpdError("bad broke")
        return "{}"

    stage.script = run
    assert fault(await stage.run(), "c") == "bad, whose response is its input, has none: it is failed"


@pytest.mark.parametrize("odd", ["[NaN]", '["\\ud800"]', "[" * 100_000], ids=["nan", "surrogate", "deep"])
async def test_what_is_made_of_odd_responses_is_json_that_can_be_sent(odd: str) -> None:
    stage = Stage({"it": {"agents": [script("a"), script("b"), script("c", "a", "b"), script("d")]}})
    result = await stage.run(text=odd)
    for text in (stage.calls[-1].input, result.deliverable or ""):
        json.loads(text.encode(), parse_constant=pytest.fail)


def test_what_is_nested_too_deeply_for_json_is_a_fault() -> None:
    deep: list[Any] = []
    for _ in range(200_000):
        deep = [deep]
    with pytest.raises(InvalidArgument, match="nested too deeply"):
        inputs.as_json(deep)


async def test_a_spent_budget_is_no_reason_to_turn_to_the_fallback() -> None:
    profiles = {name: {"model": name, "provider": "mock"} for name in ("fast", "slow")}
    agent = {"model_profile": "fast", "fallback_model_profile": "slow", "retries": 0}
    agents = [{**agent, "name": "a"}, {**agent, "name": "b", "depends_on": ["a"]}]
    stage = Stage({"it": {"budget": {"tokens": 5}, "agents": agents}}, profiles)
    result = await stage.run()
    assert (result.results["b"].fallback, stage.fallbacks) == (False, [])
    assert "is spent" in fault(result, "b")


async def test_every_attempt_counts_for_the_budget() -> None:
    profiles = {"p": {"model": "m", "provider": "mock"}}
    agent = {"name": "a", "model_profile": "p", "retries": 5, "output_format": "json"}
    stage = Stage({"it": {"agents": [agent]}}, profiles)
    left = iter([ServiceUnavailable("down")])

    async def answer(prompt: Prompt) -> str:
        if (busy := next(left, None)) is not None:
            raise busy
        return "no json"

    stage.answer = answer
    result = await stage.run()
    assert (result.results["a"].attempts, result.usage.total_tokens) == (2, 5)


def test_what_is_tried_again_is_no_progress_twice() -> None:
    stage = Stage({})
    course = Course(stage, 2)
    agent = Stretch(course)
    for _ in range(3):
        inner = agent.within("a/", 2)
        inner.finish(AgentResult("x", "script", "success"))
        agent.within("a/", 2).finish(AgentResult("y", "script", "success"))
    assert [each[0] for each in stage.heard] == [0.45, 0.9, 0.9, 0.9, 0.9, 0.9]
    agent.finish(AgentResult("a", "ensemble", "success"))
    assert stage.heard[-1][0] == 1
