# SPDX-License-Identifier: LGPL-2.1-or-later
"""What fails between this program and a model, in errors that say whether another try may help."""

from __future__ import annotations

import asyncio
import datetime as dt
import email.utils
import gc
import logging
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import (
    InvalidArgument,
    InvalidConfig,
    LimitExceeded,
    McpdError,
    NotAuthorized,
    NotFound,
    ServiceUnavailable,
    TooLarge,
)
from mcpd.servers.ensembles.engine.types import Completion, Prompt
from mcpd.servers.ensembles.format.models import Profile
from mcpd.servers.ensembles.providers.http import MAX_ANSWER
from mcpd.servers.ensembles.providers.models import HttpModels
from tests.unit.ensembles.model_apis import (
    KEY,
    PATIENCE,
    ModelApis,
    Reply,
    anthropic_error,
    gemini_error,
    model_apis,
    openai_answer,
    openai_error,
    reply,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

PATHS = {"openai": "/v1", "anthropic": "", "google-gemini": ""}


@pytest.fixture
def apis() -> Iterator[ModelApis]:
    with model_apis() as found:
        yield found


@pytest.fixture
async def models(apis: ModelApis) -> AsyncIterator[HttpModels]:
    found = HttpModels({apis.url: KEY}, None)
    yield found
    await found.close()


def prompt(apis: ModelApis, provider: str = "openai", **profile: Any) -> Prompt:
    settings = {"model": "good-model", "base_url": apis.url + PATHS[provider], **profile}
    return Prompt("hello", Profile(provider=provider, **settings), trusted=True)


async def failure(models: HttpModels, asked: Prompt) -> McpdError:
    """The error that *asked* ends with; it names no key, wherever one looks."""
    with pytest.raises(McpdError) as caught:
        await asyncio.wait_for(models.complete(asked), PATIENCE)
    error = caught.value
    assert error.data is not None
    assert error.data["provider"] == asked.profile.provider
    assert error.data["model"] == asked.profile.model
    assert KEY not in f"{error!r} {error.message} {error.data} {models!r}"
    assert error.message.isprintable()
    return error


STATUSES = [
    (400, InvalidArgument, False),
    (402, LimitExceeded, False),
    (403, NotAuthorized, False),
    (404, NotFound, False),
    (407, NotAuthorized, False),
    (408, ServiceUnavailable, True),
    (413, InvalidArgument, False),
    (418, InvalidArgument, False),
    (422, InvalidArgument, False),
    (429, LimitExceeded, True),
    (500, ServiceUnavailable, True),
    (502, ServiceUnavailable, True),
    (503, ServiceUnavailable, True),
    (529, ServiceUnavailable, True),
    (599, ServiceUnavailable, True),
]


@pytest.mark.parametrize(("status", "kind", "retryable"), STATUSES)
@pytest.mark.parametrize("provider", sorted(PATHS))
async def test_a_status_has_its_error_with_the_words_of_the_api(
    apis: ModelApis, models: HttpModels, provider: str, status: int, kind: type[McpdError], retryable: bool
) -> None:
    said = f"what the API says of {KEY}"
    errors = {
        "openai": openai_error(said),
        "anthropic": anthropic_error("some_error", said),
        "google-gemini": gemini_error(status, said),
    }
    apis.next(reply(errors[provider], status))
    error = await failure(models, prompt(apis, provider))
    assert type(error) is kind
    assert error.data is not None
    assert error.data["retryable"] is retryable
    assert f"HTTP {status}" in error.message
    assert "what the API says of …" in error.message


@pytest.mark.parametrize("provider", sorted(PATHS))
async def test_a_key_that_is_refused(apis: ModelApis, models: HttpModels, provider: str) -> None:
    apis.key = "sk-another"
    error = await failure(models, prompt(apis, provider))
    assert type(error) is NotAuthorized
    assert "refuses the key" in error.message


async def test_an_api_that_wants_a_key_where_there_is_none(apis: ModelApis) -> None:
    models = HttpModels({}, None)
    error = await failure(models, prompt(apis))
    await models.close()
    assert type(error) is NotAuthorized
    assert "LLM_ORC_KEYS" in error.message


@pytest.mark.parametrize("provider", sorted(PATHS))
async def test_a_model_that_is_not_there(apis: ModelApis, models: HttpModels, provider: str) -> None:
    error = await failure(models, prompt(apis, provider, model="bad-model"))
    assert type(error) is NotFound
    assert "bad-model" in error.message


async def test_a_base_url_that_is_no_api(apis: ModelApis, models: HttpModels) -> None:
    error = await failure(models, prompt(apis, base_url=f"{apis.url}/elsewhere"))
    assert type(error) is NotFound
    assert "base_url" in error.message


@pytest.mark.parametrize(
    "body",
    [b"<html>Bad Gateway</html>", b"", b"[]", b"null", b'{"error": 5}', b'{"error": {"message": [1]}}', b"\xff",
     b"[" * 9999],
)  # fmt: skip
async def test_an_error_without_words_is_its_status(apis: ModelApis, models: HttpModels, body: bytes) -> None:
    apis.next(Reply(400, body))
    error = await failure(models, prompt(apis))
    assert type(error) is InvalidArgument
    assert error.message == f"{apis.url}/v1/chat/completions answers HTTP 400 (Bad Request)"


@pytest.mark.parametrize(
    "body", [{"error": "no such thing"}, {"detail": "no such thing"}, {"message": "no such thing"}]
)
async def test_other_servers_have_other_forms_of_errors(apis: ModelApis, models: HttpModels, body: Any) -> None:
    apis.next(reply(body, 400))
    assert (await failure(models, prompt(apis))).message.endswith(": no such thing")


async def test_words_of_an_api_are_cut_and_on_one_line(apis: ModelApis, models: HttpModels) -> None:
    apis.next(reply(openai_error("line\n\x1b[31m" + "x" * 5000), 400))
    said = (await failure(models, prompt(apis))).message.partition("(Bad Request): ")[2]
    assert said.startswith("line \\x1b[31mxxx")
    assert len(said) <= 300


@pytest.mark.parametrize("status", [429, 503, 529])
async def test_retry_after_in_seconds(apis: ModelApis, models: HttpModels, status: int) -> None:
    apis.next(reply(openai_error("slowly"), status, Retry_After="17"))
    error = await failure(models, prompt(apis))
    assert error.data is not None
    assert error.data["retry_after"] == 17.0


async def test_retry_after_as_a_date(apis: ModelApis, models: HttpModels) -> None:
    then = dt.datetime.now(dt.UTC) + dt.timedelta(hours=10)
    apis.next(reply(openai_error("slowly"), 429, Retry_After=email.utils.format_datetime(then, usegmt=True)))
    error = await failure(models, prompt(apis))
    assert error.data is not None
    assert error.data["retry_after"] == pytest.approx(36000, abs=2 * PATIENCE)


async def test_retry_after_as_a_date_that_is_over(apis: ModelApis, models: HttpModels) -> None:
    apis.next(reply(openai_error("slowly"), 429, Retry_After="Wed, 21 Oct 2015 07:28:00 GMT"))
    error = await failure(models, prompt(apis))
    assert error.data is not None
    assert error.data["retry_after"] == 0.0


@pytest.mark.parametrize("header", ["", "soon", "-5", "nan", "inf", "1e9", "9" * 40, "Wed, 99 Oct 2015 07:28:00 GMT"])
async def test_retry_after_that_says_nothing(apis: ModelApis, models: HttpModels, header: str) -> None:
    apis.next(reply(openai_error("slowly"), 429, Retry_After=header))
    error = await failure(models, prompt(apis))
    assert error.data is not None
    assert error.data["retry_after"] is None


async def test_gemini_says_in_the_body_when_to_try_again(apis: ModelApis, models: HttpModels) -> None:
    details = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}
    apis.next(reply(gemini_error(429, "quota", details), 429))
    error = await failure(models, prompt(apis, "google-gemini"))
    assert type(error) is LimitExceeded
    assert error.data is not None
    assert error.data["retry_after"] == 34.5


async def test_a_quota_that_is_spent_is_not_worth_another_try(apis: ModelApis, models: HttpModels) -> None:
    apis.next(reply(openai_error("you have no money", "insufficient_quota"), 429))
    error = await failure(models, prompt(apis))
    assert type(error) is LimitExceeded
    assert error.data == {"retryable": False, "provider": "openai", "model": "good-model"}


async def test_a_prompt_that_a_filter_stops(apis: ModelApis, models: HttpModels) -> None:
    apis.next(reply(openai_error("filtered", "content_filter"), 400))
    error = await failure(models, prompt(apis))
    assert type(error) is McpdError
    assert error.data is not None
    assert error.data["reason"] == "content_filter"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(apis: ModelApis, models: HttpModels, status: int) -> None:
    with model_apis() as other:
        apis.next(Reply(status, b"", {"Location": f"{other.url}/v1/chat/completions"}))
        error = await failure(models, prompt(apis))
        assert not other.asked
    assert type(error) is InvalidConfig
    assert "redirects are not followed" in error.message


@pytest.mark.parametrize("how", ["reset", "cut"])
async def test_a_connection_that_breaks(apis: ModelApis, models: HttpModels, how: Any) -> None:
    apis.next(Reply(200, b'{"choices": [', how=how))
    error = await failure(models, prompt(apis))
    assert type(error) is ServiceUnavailable
    assert error.data is not None
    assert error.data["retryable"] is True
    assert (await models.complete(prompt(apis))).text == "heard hello"


async def test_nobody_listens(models: HttpModels, apis: ModelApis) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    error = await failure(models, prompt(apis, base_url=f"http://127.0.0.1:{port}/v1"))
    assert type(error) is ServiceUnavailable
    assert f"http://127.0.0.1:{port}/v1/chat/completions cannot be reached" in error.message


async def test_a_name_that_there_is_not(models: HttpModels, apis: ModelApis) -> None:
    error = await failure(models, prompt(apis, base_url="https://nowhere.invalid/v1"))
    assert type(error) is ServiceUnavailable


async def test_an_answer_that_never_comes_is_waited_for_until_it_is_cancelled(
    apis: ModelApis, models: HttpModels
) -> None:
    apis.next(Reply(how="never"))
    task = asyncio.create_task(models.complete(prompt(apis)))
    assert await asyncio.to_thread(apis.arrived.acquire, timeout=PATIENCE)
    assert not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert (await models.complete(prompt(apis))).text == "heard hello"


async def test_an_answer_without_an_end_is_given_up(apis: ModelApis, models: HttpModels) -> None:
    apis.next(Reply(how="endless"))
    error = await failure(models, prompt(apis))
    assert type(error) is TooLarge
    assert str(MAX_ANSWER) in error.message
    assert (await models.complete(prompt(apis))).text == "heard hello"
    assert apis.sent < 100 << 20


@pytest.mark.parametrize("body", [b"<html>Sign in</html>", b"", b"{", b"\xff\xfe", b"[" * 100_000, b"1" * 5000, b"NaN"])
async def test_an_answer_that_is_no_json(apis: ModelApis, models: HttpModels, body: bytes) -> None:
    apis.next(Reply(200, body))
    error = await failure(models, prompt(apis))
    assert type(error) is McpdError
    assert "base_url" in error.message


async def test_compressed_answers_are_not_unpacked(apis: ModelApis, models: HttpModels) -> None:
    apis.next(reply(openai_answer("x"), 200, Content_Encoding="gzip"))
    error = await failure(models, prompt(apis))
    assert type(error) is McpdError
    assert "compressed" in error.message


async def test_a_url_that_is_too_long_is_told(apis: ModelApis, models: HttpModels) -> None:
    error = await failure(models, prompt(apis, "google-gemini", model="m" * 100_000))
    assert type(error) is InvalidConfig
    assert len(error.message) < 1000


async def test_connections_are_used_again(apis: ModelApis, models: HttpModels) -> None:
    for _ in range(5):
        await models.complete(prompt(apis))
    assert len({asked.port for asked in apis.asked}) == 1


async def test_64_models_are_asked_at_the_same_time(apis: ModelApis, models: HttpModels) -> None:
    apis.next(*[Reply(how="together")] * 64)
    found = await asyncio.gather(*(models.complete(prompt(apis)) for _ in range(64)))
    assert found == [Completion("together", 11, 7, "good-model-2026")] * 64


async def test_more_than_64_wait_for_their_turn(apis: ModelApis, models: HttpModels) -> None:
    found = await asyncio.gather(*(models.complete(prompt(apis)) for _ in range(150)))
    assert {each.text for each in found} == {"heard hello"}
    assert len({asked.port for asked in apis.asked}) <= 64


async def test_closing_leaves_nothing_open(apis: ModelApis) -> None:
    models = HttpModels({apis.url: KEY}, None)
    await models.complete(prompt(apis))
    await models.close()
    del models
    gc.collect()  # A ResourceWarning would be an error.


async def test_a_proxy_is_not_asked_for_this_machine(apis: ModelApis, monkeypatch: pytest.MonkeyPatch) -> None:
    with model_apis() as proxy:
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        models = HttpModels({apis.url: KEY}, None)
        assert (await models.complete(prompt(apis))).text == "heard hello"
        assert not proxy.asked
        proxy.key = None
        asked = prompt(apis, base_url="http://models.invalid/v1")
        assert (await models.complete(asked)).text == "heard hello"
        assert proxy.asked[0].path == "http://models.invalid/v1/chat/completions"
        assert KEY not in str(proxy.asked)
        await models.close()


async def test_keys_are_in_no_record(apis: ModelApis, models: HttpModels, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await models.complete(prompt(apis, "google-gemini"))
    await failure(models, prompt(apis, "anthropic", model="bad-model"))
    assert KEY not in caplog.text
