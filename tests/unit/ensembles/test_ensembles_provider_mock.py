# SPDX-License-Identifier: LGPL-2.1-or-later
"""Models without HTTP: the mock, and the model of the client."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidConfig, LimitExceeded, McpdError, NotSupported, ServiceUnavailable
from mcpd.servers.ensembles.engine.types import Completion, Prompt
from mcpd.servers.ensembles.format.models import Profile
from mcpd.servers.ensembles.providers.models import HttpModels

pytestmark = pytest.mark.process


def prompt(text: str = "hello", system: str | None = None, *, as_json: bool = False, **options: Any) -> Prompt:
    return Prompt(text, Profile(provider="mock", model="m", options=options or None), system=system, json=as_json)


async def answer(asked: Prompt) -> Completion:
    return await HttpModels({}, None).complete(asked)


async def test_the_mock_answers_the_same_to_the_same() -> None:
    first, again, other = [await answer(prompt(text)) for text in ("hello", "hello", "hallo")]
    assert first == again
    assert first.text != other.text
    assert len(first.text) < 80


async def test_the_mock_counts_a_quarter_of_the_characters() -> None:
    assert await answer(prompt("x" * 40, "y" * 4, response="12345678")) == Completion("12345678", 11, 2, "m")


async def test_the_mock_answers_what_it_is_told() -> None:
    assert (await answer(prompt("a {input} b", response="<{input}> {input}"))).text == "<a {input} b> a {input} b"


async def test_the_mock_echoes() -> None:
    assert (await answer(prompt("hello", echo=True))).text == "hello"


async def test_the_mock_takes_as_many_tokens_as_it_is_told() -> None:
    found = await answer(prompt(tokens=500))
    assert (found.input_tokens, found.output_tokens) == (0, 500)


async def test_the_mock_answers_with_json_if_it_is_to() -> None:
    assert set(json.loads((await answer(prompt(as_json=True))).text)) == {"answer"}


@pytest.mark.parametrize(
    ("fail", "kind", "data"),
    [
        ("rate-limited", LimitExceeded, {"retryable": True, "retry_after": 0.0}),
        ("unavailable", ServiceUnavailable, {"retryable": True}),
        ("refused", McpdError, {"retryable": False, "reason": "refusal"}),
    ],
)
async def test_the_mock_fails_as_it_is_told(fail: str, kind: type[McpdError], data: dict[str, Any]) -> None:
    with pytest.raises(McpdError) as caught:
        await answer(prompt(fail=fail))
    assert type(caught.value) is kind
    assert caught.value.data == {**data, "provider": "mock", "model": "m"}


async def test_the_mock_fails_as_often_as_it_is_told_and_then_begins_anew() -> None:
    models = HttpModels({}, None)

    async def tried(text: str) -> bool:
        try:
            return (await models.complete(prompt(text, fail="unavailable", times=2, echo=True))).text == text
        except ServiceUnavailable:
            return False

    assert [await tried("a") for _ in range(6)] == [False, False, True, False, False, True]
    assert [await tried(text) for text in ("b", "c", "b", "c", "b", "c")] == [False] * 4 + [True] * 2


async def test_the_mock_takes_its_time_and_can_be_cancelled() -> None:
    task = asyncio.create_task(answer(prompt(latency=7000)))
    done, _ = await asyncio.wait({task}, timeout=0)
    assert not done
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


@pytest.mark.parametrize(
    "options",
    [
        {"fail": "sometimes"},
        {"latency": -1},
        {"latency": 1e9},
        {"tokens": -1},
        {"times": 0},
        {"unknown": 1},
        {"response": 5},
    ],
)
async def test_faulty_options_of_the_mock_are_told(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=next(iter(options))):
        await answer(prompt(**options))


@given(text=st.text(), response=st.text())
def test_the_mock_takes_any_text(text: str, response: str) -> None:
    assert asyncio.run(answer(prompt(text, response=response))).text == response.replace("{input}", text)


class Client:
    """The model of a client that answers with what it was asked."""

    def __init__(self, fault: McpdError | None = None) -> None:
        self.fault = fault

    async def sample(self, system: str | None, text: str, max_tokens: int, temperature: float | None) -> Completion:
        if self.fault is not None:
            raise self.fault
        return Completion(json.dumps([system, text, max_tokens, temperature]), model="the client's")


def sampled(*, as_json: bool = False, system: str | None = None, **profile: Any) -> Prompt:
    return Prompt("hello", Profile(provider="mcp-sampling", model="any", **profile), system=system, json=as_json)


async def test_the_clients_model_is_asked() -> None:
    models = HttpModels({}, Client())
    found = await models.complete(sampled(system="be brief", max_tokens=9, temperature=0.5))
    assert json.loads(found.text) == ["be brief", "hello", 9, 0.5]
    assert found.model == "the client's"


async def test_the_clients_model_has_a_limit_in_any_case_and_is_told_to_answer_with_json() -> None:
    found = await HttpModels({}, Client()).complete(sampled(as_json=True))
    system, _, most, temperature = json.loads(found.text)
    assert "JSON" in system
    assert most > 0
    assert temperature is None


async def test_without_a_client_that_offers_sampling_there_is_a_way_out() -> None:
    with pytest.raises(NotSupported, match="another provider") as caught:
        await HttpModels({}, None).complete(sampled())
    assert caught.value.data == {"retryable": False, "provider": "mcp-sampling", "model": "any"}


async def test_what_a_client_says_of_its_fault_stays() -> None:
    fault = NotSupported("the client said no")
    fault.data = {"code": -1}
    with pytest.raises(NotSupported, match="the client said no") as caught:
        await HttpModels({}, Client(fault)).complete(sampled())
    assert caught.value.data == {"code": -1, "retryable": False, "provider": "mcp-sampling", "model": "any"}


def test_the_http_client_is_loaded_by_models_behind_http_alone() -> None:
    program = (
        "import asyncio, sys\n"
        "from mcpd.servers.ensembles.engine.types import Prompt\n"
        "from mcpd.servers.ensembles.format.models import Profile\n"
        "from mcpd.servers.ensembles.providers.models import HttpModels\n"
        "models = HttpModels({}, None)\n"
        "asyncio.run(models.complete(Prompt('hello', Profile(provider='mock', model='m'))))\n"
        "asyncio.run(models.close())\n"
        "sys.exit('httpx2' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=120, check=False).returncode == 0
