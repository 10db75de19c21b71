# SPDX-License-Identifier: LGPL-2.1-or-later
"""What models are asked, again and otherwise, and what they may take."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import LimitExceeded, McpdError, NotAuthorized, ServiceUnavailable
from tests.unit.ensembles.engine_parts import Stage, model, script

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.servers.ensembles.engine.types import Prompt, ScriptCall


async def test_what_is_busy_is_asked_again() -> None:
    stage = Stage({"it": {"agents": [model("a", retries=3)]}})
    left = iter((busy(retry_after=0.01), ServiceUnavailable("down")))

    async def answer(prompt: Prompt) -> str:
        fault = next(left, None)
        if fault is not None:
            raise fault
        return "there"

    stage.answer = answer
    result = (await stage.run()).results["a"]
    assert (result.response, result.attempts) == ("there", 3)


@pytest.mark.parametrize(
    ("fault", "asked"),
    [(NotAuthorized("no key"), 1), (McpdError("refused"), 1), (LimitExceeded("too large"), 1)],
    ids=["key", "refused", "limit"],
)
async def test_what_waiting_does_not_help_is_not_asked_again(fault: McpdError, asked: int) -> None:
    stage = Stage({"it": {"agents": [model("a", retries=3)]}})

    async def answer(prompt: Prompt) -> str:
        raise fault

    stage.answer = answer
    result = (await stage.run()).results["a"]
    assert len(stage.prompts) == asked
    assert result.fault is not None
    assert (result.fault.error, result.fault.agent) == (fault.word, "a")


@pytest.mark.parametrize("kind", [LimitExceeded, ServiceUnavailable])
async def test_a_provider_that_wants_too_long_a_rest_fails_at_once(kind: type[McpdError]) -> None:
    stage = Stage({"it": {"agents": [model("a", retries=3)]}})

    async def answer(prompt: Prompt) -> str:
        raise busy(kind, retry_after=3600)

    stage.answer = answer
    result = (await stage.run()).results["a"]
    assert len(stage.prompts) == 1
    assert result.fault is not None
    assert result.fault.data["retry_after"] == 3600


async def test_the_fallback_profile_is_asked_when_the_first_fails() -> None:
    profiles = {
        "fast": {"model": "f", "provider": "mock", "cost_per_token": 1},
        "slow": {"model": "s", "provider": "mock"},
    }
    agent = {"name": "a", "model_profile": "fast", "fallback_model_profile": "slow", "retries": 0}
    stage = Stage({"it": {"agents": [agent]}}, profiles)

    async def answer(prompt: Prompt) -> str:
        if prompt.profile.model == "f":
            raise ServiceUnavailable("f is down")
        return "from s"

    stage.answer = answer
    result = (await stage.run()).results["a"]
    assert (result.response, result.fallback, result.model, result.profile) == ("from s", True, "s", "slow")
    assert stage.fallbacks == ["a: f is down"]
    assert result.usage.cost_usd == 0


async def test_the_agents_own_settings_come_before_the_profiles() -> None:
    profile = {
        "model": "f",
        "provider": "mock",
        "system_prompt": "theirs",
        "temperature": 1,
        "options": {"a": 1, "b": 1},
    }
    agent = {"name": "a", "model_profile": "p", "system_prompt": "mine", "options": {"b": 2}}
    stage = Stage({"it": {"agents": [agent]}}, {"p": profile})
    await stage.run()
    asked = stage.prompts[0].profile
    assert (asked.system_prompt, asked.temperature, asked.options) == ("mine", 1, {"a": 1, "b": 2})


async def test_an_unknown_profile_is_that_agents_failure() -> None:
    stage = Stage({"it": {"agents": [{"name": "a", "model_profile": "none"}, script("b")]}})
    result = await stage.run()
    assert result.status == "completed_with_errors"
    assert result.results["a"].fault is not None
    assert result.results["a"].fault.error == "NotFound"


@pytest.mark.parametrize(
    "text", ['{"a": 1}', '```json\n{"a": 1}\n```', ' {"a": 1}\n'], ids=["bare", "fenced", "spaced"]
)
async def test_an_answer_that_is_to_be_json_is(text: str) -> None:
    stage = Stage({"it": {"agents": [model("a", output_format="json")]}})

    async def answer(prompt: Prompt) -> str:
        assert prompt.json
        return text

    stage.answer = answer
    assert (await stage.run()).deliverable == '{"a": 1}'


async def test_an_answer_that_is_not_the_json_it_is_to_be_fails() -> None:
    stage = Stage({"it": {"agents": [model("a", output_format="json")]}})
    fault = (await stage.run()).results["a"].fault
    assert fault is not None
    assert fault.data == {"output": "said: hello"}


async def test_a_model_that_never_answers_runs_out_of_time_and_others_keep_their_results() -> None:
    stage = Stage({"it": {"agents": [model("a", timeout_seconds=0.05, retries=0), script("b")]}})

    async def answer(prompt: Prompt) -> str:
        await asyncio.Event().wait()
        return ""

    stage.answer = answer
    result = await stage.run()
    fault = result.results["a"].fault
    assert fault is not None
    assert (fault.error, fault.agent) == ("Timeout", "a")
    assert "mock model m did not answer within 0.05 s" in fault.message
    assert result.results["b"].response == "hello"


async def test_an_ensemble_has_a_time_of_its_own() -> None:
    stage = Stage({"it": {"timeout_seconds": 0.1, "agents": [script("b"), model("a", "b")]}})

    async def answer(prompt: Prompt) -> str:
        await asyncio.Event().wait()
        return ""

    async def run(call: ScriptCall) -> str:
        # At once, before any time can be over.
        return "there"

    stage.answer, stage.script = answer, run
    result = await stage.run()
    assert result.status == "failed"
    assert result.fault is not None
    assert "it was not done within 0.1 s" in result.fault.message
    assert [each.status for each in result.results.values()] == ["success", "cancelled"]


async def test_nothing_is_asked_when_the_budget_is_spent() -> None:
    stage = Stage({"it": {"budget": {"tokens": 9}, "agents": [model("a"), model("b", "a"), model("c", "b")]}})
    result = await stage.run()
    assert len(stage.prompts) == 2
    fault = result.results["c"].fault
    assert fault is not None
    assert fault.data == {"ensemble": "it", "budget": "9 tokens", "used": "10 tokens"}
    assert result.usage.total_tokens == 10
    assert result.status == "completed_with_errors"


async def test_money_is_counted_by_the_profiles_prices() -> None:
    profiles = {"p": {"model": "f", "provider": "mock", "cost_per_token": 0.5, "cost_per_output_token": 2}}
    agents = [{"name": name, "model_profile": "p", "depends_on": before} for name, before in (("a", []), ("b", ["a"]))]
    stage = Stage({"it": {"budget": {"cost_usd": 5}, "agents": agents}}, profiles)
    result = await stage.run()
    assert result.results["a"].usage.cost_usd == 5.5
    assert result.results["b"].status == "failed"


def busy(kind: type[McpdError] = LimitExceeded, **data: Any) -> McpdError:
    """A provider that wants to be left alone for a while."""
    fault = kind("too many")
    said: Mapping[str, Any] = data
    fault.data = {**said}
    return fault
