# SPDX-License-Identifier: LGPL-2.1-or-later
"""Each API of models: what goes out, and what comes back."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidConfig, McpdError
from mcpd.servers.ensembles.engine.types import Completion, Prompt
from mcpd.servers.ensembles.format.models import Profile
from mcpd.servers.ensembles.providers import anthropic, gemini, openai
from mcpd.servers.ensembles.providers.http import Call
from mcpd.servers.ensembles.providers.keys import OPENAI, Base
from mcpd.servers.ensembles.providers.models import HttpModels
from tests.unit.ensembles.model_apis import (
    KEY,
    PATIENCE,
    ModelApis,
    Reply,
    anthropic_answer,
    gemini_answer,
    model_apis,
    openai_answer,
    reply,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

PATHS = {"openai": "/v1", "ollama": "/v1", "anthropic": "", "google-gemini": ""}
APIS = {"openai": openai, "anthropic": anthropic, "google-gemini": gemini}
TEXT_KEYS = {"openai": "authorization", "anthropic": "x-api-key", "google-gemini": "x-goog-api-key"}


@pytest.fixture
def apis() -> Iterator[ModelApis]:
    with model_apis() as found:
        yield found


@pytest.fixture
async def models(apis: ModelApis) -> AsyncIterator[HttpModels]:
    found = HttpModels({apis.url: KEY}, None)
    yield found
    await found.close()


def prompt(apis: ModelApis, provider: str, text: str = "hello", **more: Any) -> Prompt:
    profile = {"model": "good-model", "base_url": apis.url + PATHS[provider], **more.pop("profile", {})}
    return Prompt(text, Profile(provider=provider, **profile), trusted=True, **more)


@pytest.mark.parametrize("provider", sorted(PATHS))
async def test_a_model_answers(apis: ModelApis, models: HttpModels, provider: str) -> None:
    found = await asyncio.wait_for(models.complete(prompt(apis, provider)), PATIENCE)
    assert found == Completion("heard hello", 11, 7, "good-model-2026")


@pytest.mark.parametrize("provider", sorted(APIS))
async def test_the_key_goes_into_its_header_and_never_into_the_url(
    apis: ModelApis, models: HttpModels, provider: str
) -> None:
    await models.complete(prompt(apis, provider))
    [asked] = apis.asked
    assert KEY in asked.headers[TEXT_KEYS[provider]]
    assert KEY not in asked.path
    assert KEY not in json.dumps(asked.body)


async def test_openai_gets_settings_system_and_options(apis: ModelApis, models: HttpModels) -> None:
    profile = {"temperature": 0.5, "max_tokens": 99, "options": {"top_p": 0.9, "temperature": 1.5}}
    await models.complete(prompt(apis, "openai", system="be brief", profile=profile))
    assert apis.asked[0].body == {
        "model": "good-model",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
        "temperature": 0.5,
        "max_tokens": 99,
        "top_p": 0.9,
    }


def test_openai_itself_gets_the_name_of_the_limit_that_its_newer_models_want() -> None:
    asked = Prompt("hello", Profile(provider="openai", model="m", max_tokens=99))
    body = openai.call(asked, Base.parse(OPENAI, "base_url"), KEY).body
    assert body["max_completion_tokens"] == 99
    assert "max_tokens" not in body


async def test_anthropic_gets_settings_system_and_options(apis: ModelApis, models: HttpModels) -> None:
    profile = {"temperature": 0.5, "max_tokens": 99, "options": {"top_k": 5, "max_tokens": 1}}
    await models.complete(prompt(apis, "anthropic", system="be brief", profile=profile))
    assert apis.asked[0].body == {
        "model": "good-model",
        "system": "be brief",
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 0.5,
        "max_tokens": 99,
        "top_k": 5,
    }


async def test_gemini_gets_settings_system_and_options(apis: ModelApis, models: HttpModels) -> None:
    profile = {
        "model": "models/good-model",
        "temperature": 0.5,
        "max_tokens": 99,
        "options": {"topK": 5, "thinkingConfig": {"thinkingBudget": 0}},
    }
    await models.complete(prompt(apis, "google-gemini", system="be brief", profile=profile))
    assert apis.asked[0].path == "/v1beta/models/good-model:generateContent"
    assert apis.asked[0].body == {
        "contents": [{"role": "user", "parts": [{"text": "hello"}]}],
        "systemInstruction": {"parts": [{"text": "be brief"}]},
        "generationConfig": {
            "temperature": 0.5, "maxOutputTokens": 99, "topK": 5, "thinkingConfig": {"thinkingBudget": 0}
        },
    }  # fmt: skip


async def test_a_model_of_gemini_stays_within_its_part_of_the_url(apis: ModelApis, models: HttpModels) -> None:
    with pytest.raises(McpdError):
        await models.complete(prompt(apis, "google-gemini", profile={"model": "../../v1/x?key=1#"}))
    assert apis.asked[0].path == "/v1beta/models/..%2F..%2Fv1%2Fx%3Fkey%3D1%23:generateContent"


async def test_openai_is_asked_for_json(apis: ModelApis, models: HttpModels) -> None:
    assert (await models.complete(prompt(apis, "openai", json=True))).text == "heard hello"
    assert apis.asked[0].body["response_format"] == {"type": "json_object"}


async def test_openai_is_not_told_twice_to_answer_with_json(apis: ModelApis, models: HttpModels) -> None:
    await models.complete(prompt(apis, "openai", text="as JSON, please", json=True))
    assert [each["role"] for each in apis.asked[0].body["messages"]] == ["user"]


async def test_gemini_is_asked_for_json(apis: ModelApis, models: HttpModels) -> None:
    await models.complete(prompt(apis, "google-gemini", json=True))
    assert apis.asked[0].body["generationConfig"] == {"responseMimeType": "application/json"}


async def test_anthropic_is_told_to_answer_with_json(apis: ModelApis, models: HttpModels) -> None:
    await models.complete(prompt(apis, "anthropic", system="be brief", json=True))
    system = apis.asked[0].body["system"]
    assert system.startswith("be brief\n")
    assert "JSON" in system


@pytest.mark.parametrize("provider", sorted(APIS))
@pytest.mark.parametrize("option", ["model", "messages", "system", "stream", "api_key"])
async def test_options_cannot_replace_what_is_asked(
    apis: ModelApis, models: HttpModels, provider: str, option: str
) -> None:
    with pytest.raises(InvalidConfig, match=option):
        await models.complete(prompt(apis, provider, profile={"options": {option: "x"}}))
    assert not apis.asked


@pytest.mark.parametrize("provider", sorted(APIS))
async def test_options_that_are_no_json_are_refused(apis: ModelApis, models: HttpModels, provider: str) -> None:
    with pytest.raises(InvalidConfig, match="JSON"):
        await models.complete(prompt(apis, provider, profile={"options": {"top_p": float("nan")}}))


CUT = {
    "openai": openai_answer("half", finish="length"),
    "anthropic": anthropic_answer("half", stop="max_tokens"),
    "google-gemini": gemini_answer({"text": "half"}, finish="MAX_TOKENS"),
}


@pytest.mark.parametrize("provider", sorted(CUT))
async def test_an_answer_that_reaches_max_tokens_is_one(apis: ModelApis, models: HttpModels, provider: str) -> None:
    apis.next(reply(CUT[provider]))
    assert (await models.complete(prompt(apis, provider))).text == "half"


REFUSALS = {
    "openai refusal": ("openai", openai_answer(None, refusal="I cannot help with that"), "refusal"),
    "openai filter": ("openai", openai_answer("", finish="content_filter"), "content_filter"),
    "openai tools": ("openai", openai_answer(None, finish="tool_calls"), "tool_calls"),
    "anthropic refusal": ("anthropic", anthropic_answer(stop="refusal"), "refusal"),
    "gemini prompt": ("google-gemini", {"promptFeedback": {"blockReason": "SAFETY"}}, "SAFETY"),
    "gemini answer": ("google-gemini", gemini_answer(finish="RECITATION"), "RECITATION"),
}


@pytest.mark.parametrize("case", sorted(REFUSALS))
async def test_a_refusal_is_no_answer_and_says_why(apis: ModelApis, models: HttpModels, case: str) -> None:
    provider, answer, reason = REFUSALS[case]
    apis.next(reply(answer))
    with pytest.raises(McpdError, match=reason) as caught:
        await models.complete(prompt(apis, provider))
    assert type(caught.value) is McpdError
    assert caught.value.data == {"retryable": False, "reason": reason, "provider": provider, "model": "good-model"}


async def test_what_a_model_says_of_its_refusal_is_told(apis: ModelApis, models: HttpModels) -> None:
    apis.next(reply(openai_answer(None, refusal="I cannot help with that")))
    with pytest.raises(McpdError, match="I cannot help with that"):
        await models.complete(prompt(apis, "openai"))


WRONG = {
    "no choices": ("openai", {"choices": []}),
    "a list": ("openai", [1]),
    "choices of numbers": ("openai", {"choices": [1]}),
    "a number for a text": ("openai", openai_answer(5)),
    "an error": ("openai", {"error": {"message": "upstream is gone"}}),
    "no content": ("anthropic", {"type": "message"}),
    "content of text": ("anthropic", {"content": "hello"}),
    "no candidates": ("google-gemini", {"candidates": []}),
    "null": ("google-gemini", None),
}


@pytest.mark.parametrize("case", sorted(WRONG))
async def test_an_answer_of_another_shape_is_told(apis: ModelApis, models: HttpModels, case: str) -> None:
    provider, answer = WRONG[case]
    apis.next(reply(answer))
    with pytest.raises(McpdError, match="something else than a completion") as caught:
        await models.complete(prompt(apis, provider))
    assert caught.value.data is not None
    assert caught.value.data["retryable"] is False


async def test_an_error_with_a_status_of_success_is_told_in_its_own_words(apis: ModelApis, models: HttpModels) -> None:
    apis.next(reply({"error": {"message": "upstream is gone"}}))
    with pytest.raises(McpdError, match="upstream is gone"):
        await models.complete(prompt(apis, "openai"))


@pytest.mark.parametrize("usage", [None, [], "many", {"prompt_tokens": "11", "completion_tokens": -1}, {}])
async def test_usage_of_the_wrong_type_counts_nothing(apis: ModelApis, models: HttpModels, usage: Any) -> None:
    apis.next(reply({**openai_answer("yes"), "usage": usage, "model": 5}))
    assert await models.complete(prompt(apis, "openai")) == Completion("yes", 0, 0, "")


async def test_texts_of_parts_are_joined(apis: ModelApis, models: HttpModels) -> None:
    parts = [{"type": "thinking", "text": "hm"}, {"type": "text", "text": "a"}, 5, {"type": "text", "text": "b"}]
    apis.next(reply(openai_answer(parts)))
    assert (await models.complete(prompt(apis, "openai"))).text == "ab"


async def test_half_a_surrogate_pair_does_not_get_through(apis: ModelApis, models: HttpModels) -> None:
    apis.next(Reply(body=json.dumps(openai_answer("x\ud800")).encode()))
    assert (await models.complete(prompt(apis, "openai"))).text == "x?"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([
                "choices", "message", "content", "text", "type", "usage", "finish_reason", "refusal", "candidates",
                "parts", "finishReason", "promptFeedback", "usageMetadata", "stop_reason", "error", "model",
            ]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=15,
)  # fmt: skip


@given(provider=st.sampled_from(sorted(APIS)), answer=VALUES)
def test_any_answer_is_a_completion_or_a_fault(provider: str, answer: Any) -> None:
    try:
        found = APIS[provider].completion(Call("https://models.example.com/v1", {}, {}), answer)
    except McpdError as error:
        said = error.message
    else:
        assert found.input_tokens >= 0
        found.text.encode()
        said = found.model
    assert said.isprintable()
