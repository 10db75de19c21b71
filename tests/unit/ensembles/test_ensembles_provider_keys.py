# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where keys go, and where a project's profiles may lead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import ConfigMissing, InvalidConfig, McpdError, NotAuthorized
from mcpd.servers.ensembles.engine.types import Prompt
from mcpd.servers.ensembles.format.models import Profile
from mcpd.servers.ensembles.providers.keys import ANTHROPIC, GEMINI, OLLAMA, OPENAI, Base, Keys
from mcpd.servers.ensembles.providers.models import HttpModels
from tests.unit.ensembles.model_apis import KEY, ModelApis, model_apis

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def apis() -> Iterator[ModelApis]:
    with model_apis() as found:
        yield found


def key_for(keys: Keys, url: str) -> str | None:
    return keys.key(Base.parse(url, "base_url"))


def prompt(base_url: str | None, provider: str = "openai", *, trusted: bool = False) -> Prompt:
    return Prompt("hello", Profile(provider=provider, model="good-model", base_url=base_url), trusted=trusted)


async def outcome(asked: Prompt, keys: dict[str, str] | Keys, *allowed: str) -> str:
    """The answer; raises what asking raises."""
    models = HttpModels(keys, None, lambda: allowed)
    try:
        return (await models.complete(asked)).text
    finally:
        await models.close()


@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("https://Models.Example.COM/v1", "https://models.example.com/v1"),
        ("HTTPS://models.example.com:443/v1/", "https://models.example.com/v1"),
        ("http://localhost:80", "http://localhost"),
        ("http://[0:0::1]:8000/", "http://[::1]:8000"),
    ],
)
def test_a_base_url_has_one_form(url: str, same: str) -> None:
    assert str(Base.parse(url, "base_url")) == same


@pytest.mark.parametrize(
    "url",
    [
        "", "models.example.com/v1", "ftp://models.example.com", "file:///etc/passwd", "https://", "https:///v1",
        "https://models.example.com/v1?key=1", "https://models.example.com/v1#x", "https://models.example.com/a/../b",
        "https://models.example.com/a/./b", "https://models.example.com/a//b", "https://models.example.com/%2e%2e/b",
        "https://models.example.com\\@evil.example.com/", "https://models.example.com:99999", "https://a:0/v1",
        "https://models.example.com:x", "https://exämple.com", "https://models.example.com/ä", "https://a..b/v1",
        "https://[::1", "https://[1::2::3]", "https://[fe80::1%25eth0]", "https://-a.example.com", "https://a b",
        "https://models.example.com/v1\n", " https://models.example.com", "https://" + "a" * 64 + ".com",
        "https://a.com/" + "x" * 3000, "unix:///run/docker.sock", "http+unix://%2Frun%2Fdocker.sock",
    ],
)  # fmt: skip
def test_what_is_no_base_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfig, match="base_url of the profile"):
        Base.parse(url, "base_url of the profile")


@pytest.mark.parametrize("url", ["https://user:hunter22@models.example.com", "https://hunter22@models.example.com/v1"])
def test_a_base_url_with_a_password_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(InvalidConfig, match="user name or password") as caught:
        Base.parse(url, "base_url")
    assert "hunter22" not in caught.value.message


@given(st.text(alphabet="htps:/@[]#?%.\\a1:\n ü", max_size=30))
def test_any_text_is_a_base_url_or_a_fault(text: str) -> None:
    try:
        found = Base.parse("http://" + text, "base_url")
    except InvalidConfig as error:
        said = error.message
    else:
        said = str(found)
        assert Base.parse(said, "base_url") == found
        assert found.covers(found)
    assert said.isprintable()


@pytest.mark.parametrize(
    "url",
    [
        "https://models.example.com/team-a", "https://MODELS.example.com:443/team-a/",
        "https://models.example.com/team-a/v1",
    ],
)  # fmt: skip
def test_a_key_goes_to_its_base_url_and_below(url: str) -> None:
    assert key_for(Keys({"https://models.example.com/team-a/": KEY}), url) == KEY


@pytest.mark.parametrize(
    "url",
    [
        "https://models.example.com", "https://models.example.com/team-ab", "https://models.example.com/team",
        "http://models.example.com/team-a", "https://models.example.com:8443/team-a",
        "https://models.example.com.evil.example/team-a", "https://evil.example/team-a", "https://example.com/team-a",
        "https://models.example.com/Team-A", "https://models.example.com./team-a",
    ],
)  # fmt: skip
def test_a_key_goes_nowhere_else(url: str) -> None:
    keys = Keys({"https://models.example.com/team-a": KEY})
    try:
        base = Base.parse(url, "base_url")
    except InvalidConfig:
        return
    assert keys.key(base) is None


def test_the_nearest_base_url_has_the_key() -> None:
    keys = Keys({"https://a.example/": "key-1", "https://a.example/x/y": "key-3", "https://a.example/x": "key-2"})
    assert [key_for(keys, f"https://a.example{path}") for path in ("/z", "/x", "/x/z", "/x/y/z")] == [
        "key-1", "key-2", "key-2", "key-3",
    ]  # fmt: skip


def test_keys_are_a_mapping_that_shows_none() -> None:
    keys = Keys({"https://A.example:443/v1/": KEY})
    assert dict(keys) == {"https://a.example/v1": KEY}
    assert "https://a.example/v1" in keys
    assert "no url" not in keys
    assert repr(keys) == "Keys(['https://a.example/v1'])"


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "http://localhost", "http://[::1]:8000"])
def test_a_key_may_stay_on_this_machine_without_tls(url: str) -> None:
    assert key_for(Keys({url: KEY}), url) == KEY


@pytest.mark.parametrize(
    "url", ["http://192.168.1.5:8000/v1", "http://models.example.com", "http://localhost.evil.example"]
)
def test_a_key_does_not_go_over_a_network_in_the_clear(url: str) -> None:
    with pytest.raises(InvalidConfig, match="in the clear") as caught:
        Keys({url: KEY})
    assert KEY not in caught.value.message


@pytest.mark.parametrize("key", ["", "a b", "a\r\nHost: evil", "ключ", "x" * 5000])
def test_what_is_no_key_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(InvalidConfig, match=r"the key for https://a\.example is") as caught:
        Keys({"https://a.example": key})
    assert not key or key not in caught.value.message


def test_variables_of_the_apis() -> None:
    keys = Keys.from_environment({
        "OPENAI_API_KEY": "key-o", "ANTHROPIC_API_KEY": " key-a\n", "GOOGLE_API_KEY": "key-g", "OPENAI_BASE_URL": "",
    })  # fmt: skip
    assert dict(keys) == {OPENAI: "key-o", ANTHROPIC: "key-a", GEMINI: "key-g"}
    assert str(keys.base(OPENAI)) == OPENAI


def test_gemini_has_its_own_variable_before_googles() -> None:
    keys = Keys.from_environment({"GEMINI_API_KEY": "key-1", "GOOGLE_API_KEY": "key-2"})
    assert dict(keys) == {GEMINI: "key-1"}


def test_a_base_url_of_the_environment_gets_the_key_and_the_default_does_not() -> None:
    keys = Keys.from_environment({
        "OPENAI_API_KEY": "key-o", "OPENAI_BASE_URL": "https://gateway.example.com/openai/",
        "ANTHROPIC_API_KEY": "key-a", "ANTHROPIC_BASE_URL": "https://gateway.example.com",
    })  # fmt: skip
    assert key_for(keys, OPENAI) is None
    assert key_for(keys, "https://gateway.example.com/openai") == "key-o"
    assert str(keys.base(OPENAI)) == "https://gateway.example.com/openai"
    assert key_for(keys, "https://gateway.example.com") == "key-a"


def test_further_keys_by_base_url() -> None:
    keys = Keys.from_environment({
        "OPENAI_API_KEY": "key-1",
        "LLM_ORC_KEYS": f"https://a.example/v1=key=2==\n\thttp://localhost:1=k {OPENAI}=key-3",
    })  # fmt: skip
    assert dict(keys) == {"https://a.example/v1": "key=2==", "http://localhost:1": "k", OPENAI: "key-3"}


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LLM_ORC_KEYS", "https://a.example=ok secret-0123"),
        ("LLM_ORC_KEYS", "secret-0123=https://a.example"),
        ("LLM_ORC_KEYS", "https://a.example="),
        ("LLM_ORC_KEYS", "https://user:secret-0123@a.example=ok"),
        ("LLM_ORC_KEYS", "http://a.example=secret-0123"),
        ("OPENAI_API_KEY", "secret-0123\n\x07"),
        ("ANTHROPIC_BASE_URL", "a.example"),
    ],
)
def test_faulty_variables_are_named_without_their_secret(variable: str, value: str) -> None:
    [fault] = Keys.from_environment({variable: value}).faults
    assert variable in fault.message
    assert "secret" not in fault.message


async def test_a_faulty_key_stops_only_what_needs_it(apis: ModelApis) -> None:
    keys = Keys.from_environment({
        "LLM_ORC_KEYS": f"https://a.example/v1=\x07 no-url {apis.url}={KEY} https://a.example=other",
        "ANTHROPIC_API_KEY": "key-a", "ANTHROPIC_BASE_URL": "a.example",
    })  # fmt: skip
    assert len(keys.faults) == 3
    assert await outcome(prompt(f"{apis.url}/v1"), keys) == "heard hello"
    # The broader key is not the one that was meant.
    with pytest.raises(InvalidConfig, match="LLM_ORC_KEYS, entry 1"):
        await outcome(prompt("https://a.example/v1", trusted=True), keys)
    assert key_for(keys, "https://a.example/v2") == "other"
    with pytest.raises(InvalidConfig, match="ANTHROPIC_BASE_URL"):
        await outcome(prompt(None, "anthropic"), keys)
    assert ANTHROPIC not in keys
    with pytest.raises(ConfigMissing, match="LLM_ORC_KEYS, entry 2"):
        await outcome(prompt(None), keys)


@pytest.mark.parametrize(
    ("provider", "variable"),
    [
        ("openai", "OPENAI_API_KEY"), ("openai-compatible", "OPENAI_API_KEY"), ("anthropic", "ANTHROPIC_API_KEY"),
        ("anthropic-api", "ANTHROPIC_API_KEY"), ("google-gemini", "GEMINI_API_KEY"), ("google", "GEMINI_API_KEY"),
    ],
)  # fmt: skip
async def test_an_api_that_needs_a_key_is_not_asked_without(provider: str, variable: str) -> None:
    with pytest.raises(ConfigMissing) as caught:
        await outcome(prompt(None, provider), {})
    assert f"'mcpctl secret set llm-orc {variable}'" in caught.value.message
    assert caught.value.data == {"retryable": False, "provider": provider, "model": "good-model"}


async def test_the_place_of_an_api_named_in_full_needs_its_key_too() -> None:
    with pytest.raises(ConfigMissing):
        await outcome(prompt(OPENAI, trusted=True), {})


async def test_a_base_url_of_the_environment_is_where_profiles_without_one_go(apis: ModelApis) -> None:
    keys = Keys.from_environment({"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{apis.url}/v1"})
    assert await outcome(prompt(None), keys) == "heard hello"


async def test_a_users_own_profile_goes_anywhere_but_gets_no_key_of_others(apis: ModelApis) -> None:
    apis.key = None
    assert await outcome(prompt(f"{apis.url}/v1", trusted=True), {"https://a.example": KEY}) == "heard hello"
    assert KEY not in str(apis.asked)


async def test_a_projects_profile_goes_where_the_users_keys_say(apis: ModelApis) -> None:
    assert await outcome(prompt(f"{apis.url}/v1"), {apis.url: KEY}) == "heard hello"


async def test_a_projects_profile_goes_where_the_users_profiles_say_without_a_key(apis: ModelApis) -> None:
    apis.key = None
    allowed = ("not a url", f"{apis.url}/")
    assert await outcome(prompt(f"{apis.url}/v1"), {"https://a.example": KEY}, *allowed) == "heard hello"
    assert "authorization" not in apis.asked[0].headers


async def test_a_projects_profile_goes_nowhere_else(apis: ModelApis) -> None:
    with pytest.raises(NotAuthorized, match=r"\.config/llm-orc/config\.yaml"):
        await outcome(prompt(f"{apis.url}/v1"), {f"{apis.url}/other": KEY}, f"{apis.url}/v2", "https://a.example")
    assert not apis.asked


@pytest.mark.parametrize(
    "url",
    ["http://169.254.169.254/latest", "http://localhost:6379", "http://127.0.0.1:11434", "http://[::ffff:7f00:1]"],
)
async def test_a_projects_profile_does_not_reach_services_of_the_network(url: str) -> None:
    with pytest.raises(NotAuthorized) as caught:
        await outcome(prompt(url), {})
    assert caught.value.data == {"retryable": False, "provider": "openai", "model": "good-model"}


async def test_a_projects_profile_may_use_ollama(apis: ModelApis, monkeypatch: pytest.MonkeyPatch) -> None:
    apis.key = None
    monkeypatch.setattr("mcpd.servers.ensembles.providers.keys.DEFAULTS", {"ollama": f"{apis.url}/v1"})
    assert await outcome(prompt(None, "ollama"), {}) == "heard hello"
    assert await outcome(prompt(f"{apis.url}/v1", "ollama"), {}) == "heard hello"
    assert await outcome(prompt(f"{apis.url}/v1", "openai"), {}) == "heard hello"


def test_ollama_is_on_this_machine() -> None:
    assert Base.parse(OLLAMA, "base_url").host == "localhost"


@pytest.mark.parametrize("url", ["ftp://a.example", "https://user:hunter22@a.example", "https://a.example#x"])
async def test_a_faulty_base_url_of_a_profile_is_told(url: str) -> None:
    with pytest.raises(McpdError, match="base_url of the profile") as caught:
        await outcome(prompt(url, trusted=True), {})
    assert type(caught.value) is InvalidConfig
    assert "hunter22" not in caught.value.message
