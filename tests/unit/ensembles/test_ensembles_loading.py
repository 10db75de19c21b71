# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ensembles, profiles and config.yaml from text, and what their faults are called."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidConfig
from mcpd.servers.ensembles.format import models
from mcpd.servers.ensembles.format.loading import MAX_PROBLEMS, load, load_profile, load_profiles

if TYPE_CHECKING:
    from collections.abc import Callable

WHOLE = """\
# Two readers and a summary.
name: review
description: >
  Reads, and says
  what it read.
default_task: Review this
max_concurrent: 2
budget: {tokens: 1000}
agents:
  - name: classify
    script: scripts/classify.py
    parameters: {depth: 2}
  - name: each
    model_profile: fast
    depends_on: [classify]
    input_key: topics
    fan_out: true
    when: ${classify.ok} == true
    options: {think: false, 7: seven}
  - name: again
    loop: {body: round, until: "${accept}", max_iterations: 3, carry: "${next}"}
    depends_on: each
  - name: seat
    dispatch: ${classify.target}
    depends_on: {agent_name: classify}
  - name: other
    ensemble: shipped/other
  - name: tool
    mcp: {server: workstation, tool: read, arguments: {path: "${classify.path}"}}
    depends_on: [classify]
  - {name: last, model: m, provider: ollama, system_prompt: sum up, depends_on: [each, again, seat, other, tool]}
"""


def refused(text: str, loading: Callable[[str, str], object] = load) -> dict[str, Any]:
    """What the fault of *text* carries."""
    with pytest.raises(InvalidConfig) as error:
        loading(text, "it.yaml")
    data = error.value.data
    assert data is not None
    problems = data["problems"]
    assert isinstance(problems, list)
    assert error.value.message.startswith(f"it.yaml:{problems[0]['line']}: ")
    assert problems[0]["message"] in error.value.message
    assert data["line"] == problems[0]["line"]
    assert data["agent"] == problems[0]["agent"]
    assert [problem["line"] for problem in problems] == sorted(problem["line"] for problem in problems)
    assert 1 <= len(problems) <= MAX_PROBLEMS
    return dict(data)


def problem(text: str, loading: Callable[[str, str], object] = load) -> tuple[int, str | None, str]:
    """Line, agent and words of the one fault of *text*."""
    problems = refused(text, loading)["problems"]
    assert len(problems) == 1, problems
    return problems[0]["line"], problems[0]["agent"], problems[0]["message"]


def agent(body: str) -> str:
    """An ensemble of one agent, which has *body* on line 3."""
    return f"name: it\nagents:\n  - {{name: reader, {body}}}\n"


def test_every_kind_of_agent_is_loaded_and_found_by_line() -> None:
    loaded = load(WHOLE, "it.yaml")
    agents = loaded.ensemble.agents
    kinds = [models.kind_of(each) for each in agents]
    assert kinds == ["script", "model", "loop", "dispatch", "ensemble", "mcp", "model"]
    assert [agents[2].depends_on, agents[3].depends_on] == [("each",), ("classify",)]
    each = agents[1]
    assert isinstance(each, models.ModelAgent)
    assert each.options == {"think": False, "7": "seven"}
    assert loaded.document["agents"][1]["when"] == "${classify.ok} == true"
    assert loaded.positions.line(("agents", 1, "when")) == 18
    assert loaded.ensemble.description == "Reads, and says what it read.\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "an ensemble has to be a mapping"),
        ("- a", "an ensemble has to be a mapping"),
        ("name: a", '"agents" is missing'),
        ("name: a\nagents: []", '"agents" has to have an entry'),
        ("name: a\nagents: x", '"agents" has to be a list'),
        ("name: a\nagents: [x]", "agents[0]: has to be a mapping"),
        ("agents: [{name: a, script: s}]", '"name" is missing'),
        ("name: ../a\nagents: [{name: a, script: s}]", 'letters, digits and . _ -, 128 at most, not "../a"'),
        (agent("script: s") + "foo: 1", 'unknown key "foo" (an ensemble has name, description, '),
        (agent("script: s") + "decription: x", 'unknown key "decription"; did you mean "description"?'),
        (agent("script: s") + "budget: {token: 1}", 'unknown key "token"; did you mean "tokens"? (a budget has'),
        (agent("script: s") + "on_failure: halt", '"on_failure" has to be one of continue, stop, not "halt"'),
        (agent("script: s") + "max_concurrent: 65", '"max_concurrent" has to be less than or equal to 64, not 65'),
    ],
)
def test_faults_of_an_ensemble(text: str, words: str) -> None:
    assert words in problem(text)[2]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("modle: x", 'unknown key "modle"; did you mean "model"? (an agent has one of script, '),
        ("scrpt: x", 'unknown key "scrpt"; did you mean "script"?'),
        ("depends_on: []", "has none of script, loop, dispatch, ensemble, mcp, model_profile, model"),
        ("script: x, timeout: 3", 'unknown key "timeout"; did you mean "timeout_seconds"? (a script agent has name,'),
        ("script: x, system_prompt: y", '"system_prompt" is of another kind of agent; a script agent has name,'),
        ("script: x, model_profile: y", '"model_profile" is of another kind of agent'),
        ("script: x, when: true", '"when" has to be text'),
        ("script: [x]", '"script" has to be text'),
        ("script: x, retries: 99", '"retries" has to be less than or equal to 10, not 99'),
        ("script: x, retries: many", '"retries" has to be a whole number'),
        ("script: x, timeout_seconds: 0", '"timeout_seconds" has to be greater than 0, not 0'),
        ("script: x, fan_out: perhaps", '"fan_out" has to be true or false'),
        ("script: x, fan_out: true", "fan_out needs depends_on"),
        ("script: x, input_key: y", "input_key needs depends_on"),
        ("script: x, depends_on: 3", '"depends_on" has to be a list'),
        ("script: x, depends_on: [{name: y}]", '"depends_on.0" has to be text'),
        ("script: x, depends_on: ['a b']", '"depends_on.0" has to be a name of letters, digits and _ -,'),
        ("model: x", "model and provider belong together"),
        ("model_profile: x, model: y, provider: mock", "name either model_profile, or model and provider"),
        ("model: x, provider: olama", '"provider" has to be one of openai-compatible, openai, ollama, '),
        ("model_profile: x, temperature: 3", '"temperature" has to be less than or equal to 2, not 3'),
        ("model_profile: x, options: 3", '"options" has to be a mapping'),
        ("loop: {body: x, until: y}", '"loop.max_iterations" is missing'),
        (
            "loop: {body: x, until: y, max_iterations: 1, carri: z}",
            'unknown key "carri"; did you mean "carry"? (a loop',
        ),
        ("loop: x", '"loop" has to be a mapping'),
        ("mcp: {server: x, tool: ''}", '"mcp.tool" has to say something'),
        ("mcp: {server: x, tool: y, args: {}}", 'unknown key "args"'),
    ],
)
def test_faults_of_an_agent(body: str, words: str) -> None:
    line, name, message = problem(agent(body))
    assert (line, name) == (3, "reader")
    assert words in message
    with pytest.raises(InvalidConfig) as error:
        load(agent(body), "it.yaml")
    assert error.value.message == f'it.yaml:3: agents[0] "reader": {message}'


def test_an_agent_without_a_name_is_named_by_its_number() -> None:
    assert problem("name: it\nagents:\n- {name: a, script: x}\n- script: y\n") == (
        4,
        None,
        'agents[1]: "name" is missing',
    )


def test_all_faults_are_named_by_line() -> None:
    text = "name: a b\nagents:\n- name: one\n  script: x\n  retries: -1\n  foo: 1\n- {script: y}\nbar: 2\n"
    data = refused(text)
    assert [(each["line"], each["agent"]) for each in data["problems"]] == [
        (1, None),
        (5, "one"),
        (6, "one"),
        (7, None),
        (8, None),
    ]
    with pytest.raises(InvalidConfig, match=r"\(and 4 more\)$"):
        load(text, "it.yaml")


def test_many_faults_are_named_up_to_a_limit() -> None:
    text = "name: it\nagents:\n" + "".join(f"- {{name: a{number}, script: x, foo: 1}}\n" for number in range(500))
    assert len(refused(text)["problems"]) == MAX_PROBLEMS
    with pytest.raises(InvalidConfig, match=r"\(and 499 more\)$"):
        load(text, "it.yaml")


def test_values_in_faults_are_short_and_printable() -> None:
    message = problem(agent(f"script: s, on_failure: {'x' * 5000}"))[2]
    assert len(message) < 200
    message = problem(f'name: "{"y" * 3}\\e[31m"\nagents: [{{name: a, script: s}}]')[2]
    assert message.isprintable()
    message = problem(agent(f'script: s, "{"k" * 900}\\e": 1'))[2]
    assert len(message) < 400
    assert message.isprintable()


@pytest.mark.parametrize("loading", [load, load_profiles, load_profile])
def test_faults_of_yaml_carry_the_same(loading: Callable[[str, str], object]) -> None:
    data = refused("name: a\nname: b", loading)
    assert data == {
        "file": "it.yaml",
        "line": 2,
        "column": 1,
        "agent": None,
        "problems": [{"line": 2, "agent": None, "message": 'the key "name" is here a second time, after line 1'}],
    }


def test_config_has_profiles_and_plexus_and_parts_of_others() -> None:
    text = """\
project: {name: x}
model_profiles:
  fast: {model: m, provider: ollama, timeout_seconds: 3, cost_per_token: 0.0}
plexus: {enabled: true, context_id: c, server_command: plexus mcp}
"""
    settings = load_profiles(text, "config.yaml")
    assert settings.model_profiles["fast"].timeout_seconds == 3
    assert settings.plexus == models.Plexus(enabled=True, context_id="c", server_command="plexus mcp")
    assert load_profiles("# nothing yet\n", "config.yaml") == models.Settings()


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("- a", 1, "config.yaml has to be a mapping"),
        ("model_profiles: x", 1, '"model_profiles" has to be a mapping'),
        ("model_profiles:\n  a: x", 2, '"model_profiles.a" has to be a mapping'),
        ("model_profiles:\n  a:\n    model: x", 2, '"model_profiles.a.provider" is missing'),
        (
            "model_profiles:\n  a:\n    model: x\n    provider: mock\n    url: y",
            5,
            'unknown key "url" (a profile has model,',
        ),
        ("plexus:\n  enable: true", 2, 'unknown key "enable"; did you mean "enabled"?'),
    ],
)
def test_faults_of_config(text: str, line: int, words: str) -> None:
    found = problem(text, load_profiles)
    assert found[0] == line
    assert words in found[2]


def test_a_profile_in_a_file_of_its_own_has_a_name() -> None:
    assert load_profile("name: fast\nmodel: m\nprovider: mock\n", "fast.yaml") == (
        "fast",
        models.Profile(model="m", provider="mock"),
    )
    assert '"name" is missing' in problem("model: m\nprovider: mock\n", load_profile)[2]
    assert problem("name: x\nmodel: m\nprovider: mock\nmodle: y", load_profile)[0] == 4


KEYS = st.sampled_from(
    ["name", "agents", "script", "model", "provider", "model_profile", "loop", "mcp", "body", "until", "depends_on",
     "fan_out", "budget", "tokens", "on_failure", "max_iterations", "server", "tool", "model_profiles", "plexus", "x"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 200) | st.sampled_from(["a", "mock", "stop", "${a}", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=20,
)
AGENTS = st.lists(st.dictionaries(KEYS, VALUES, max_size=5) | VALUES, max_size=4)


@given(st.dictionaries(KEYS, VALUES, max_size=5), AGENTS, st.sampled_from([load, load_profiles, load_profile]))
def test_any_document_is_valid_or_refused_by_line(
    document: dict[str, Any], agents: list[Any], loading: Callable[[str, str], object]
) -> None:
    text = json.dumps({**document, "agents": agents}, indent=1)
    try:
        loading(text, "it.yaml")
    except InvalidConfig:
        for each in refused(text, loading)["problems"]:
            assert 1 <= each["line"] <= text.count("\n") + 1
            assert "pydantic" not in each["message"]
            assert "Input" not in each["message"]


def test_a_condition_of_a_dependency_is_refused_and_not_passed_over() -> None:
    text = (
        "name: x\nagents:\n  - {name: a, script: s.py}\n  - name: b\n    script: s.py\n    depends_on:\n"
        "      - {agent_name: a, condition: '${a.ok}'}\n"
    )
    with pytest.raises(InvalidConfig, match=r'^f\.yaml:7: agents\[1\] "b": .*under when$'):
        load(text, "f.yaml")
