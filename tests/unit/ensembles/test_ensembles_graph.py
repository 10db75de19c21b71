# SPDX-License-Identifier: LGPL-2.1-or-later
"""The order of agents, and what is wrong with a graph."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidConfig
from mcpd.servers.ensembles.format.graph import Problem, ancestors, levels, problems, require_sound, terminals
from mcpd.servers.ensembles.format.loading import load
from mcpd.servers.ensembles.format.models import Ensemble


def ensemble(*agents: dict[str, Any]) -> Ensemble:
    """One of script agents, unless they say what else they are."""
    kinds = {"script", "model", "loop", "dispatch", "mcp", "ensemble"}
    return Ensemble.model_validate(
        {"name": "it", "agents": [agent if kinds & set(agent) else {"script": "s.py", **agent} for agent in agents]}
    )


def graph(**dependencies: list[str]) -> Ensemble:
    """One by names of agents and of what they depend on."""
    return ensemble(*({"name": name, "depends_on": needed} for name, needed in dependencies.items()))


def messages(found: list[Problem]) -> list[str]:
    """What a person reads."""
    return [f"{problem.agent}: {problem.message}" for problem in found]


DIAMOND = graph(d=["b", "c"], b=["a"], c=["a"], a=[], alone=[])


def test_levels_are_in_the_order_of_the_file_within_each() -> None:
    assert levels(DIAMOND.agents) == [["a", "alone"], ["b", "c"], ["d"]]


def test_terminals_are_those_that_nothing_depends_on() -> None:
    assert terminals(DIAMOND.agents) == ["d", "alone"]


def test_ancestors_are_found_through_others() -> None:
    assert ancestors(DIAMOND.agents, "d") == {"a", "b", "c"}
    assert ancestors(DIAMOND.agents, "a") == set()
    assert ancestors(DIAMOND.agents, "nobody") == set()


def test_a_sound_graph_has_no_problems() -> None:
    assert problems(DIAMOND) == []


def test_levels_of_a_circle_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="circle"):
        levels(graph(a=["b"], b=["a"]).agents)


def test_levels_ignore_names_that_nobody_has() -> None:
    assert levels(graph(a=["ghost"], b=["a"]).agents) == [["a"], ["b"]]


def test_names_are_used_once() -> None:
    found = problems(ensemble({"name": "a"}, {"name": "b"}, {"name": "a"}))
    assert messages(found) == ["a: agents[0] has the same name"]
    assert found[0].path == ("agents", 2, "name")


def test_no_agent_is_called_input() -> None:
    assert "run's input" in problems(graph(input=[]))[0].message


def test_dependencies_are_there_once_and_are_others() -> None:
    found = problems(graph(reader=[], a=["reader", "raeder", "reader", "a", "zzz"]))
    assert messages(found) == [
        'a: depends on "raeder", which is not there; did you mean "reader"?',
        'a: depends on "reader" twice',
        "a: depends on itself",
        'a: depends on "zzz", which is not there',
    ]
    assert [problem.path[2:] for problem in found] == [("depends_on", number) for number in (1, 2, 3, 4)]


def test_a_circle_is_named_once_from_its_first_agent() -> None:
    found = problems(graph(x=[], a=["x", "c"], b=["a"], c=["b"], d=["c"]))
    assert messages(found) == ["a: agents depend on each other in a circle: a → b → c → a"]
    assert found[0].path == ("agents", 1, "depends_on", 1)


def test_each_of_several_circles_is_named() -> None:
    found = problems(graph(a=["b"], b=["a", "d"], c=["d"], d=["c"]))
    assert sorted(problem.agent for problem in found) == ["a", "c"]


def test_a_long_circle_is_shortened() -> None:
    names = [f"n{number}" for number in range(300)]
    found = problems(graph(**{name: [names[index - 1]] for index, name in enumerate(names)}))
    assert len(found) == 1
    assert len(found[0].message) < 120


@pytest.mark.parametrize(
    ("agent", "path"),
    [
        ({"when": "${b.ok}"}, ("when",)),
        ({"dispatch": "${b.target}"}, ("dispatch",)),
        ({"mcp": {"server": "s", "tool": "t", "arguments": {"x": [1, "see ${b}"]}}}, ("mcp", "arguments", "x", 1)),
    ],
)
def test_what_an_agent_refers_to_it_depends_on(agent: dict[str, Any], path: tuple[str | int, ...]) -> None:
    found = problems(ensemble({"name": "b"}, {"name": "a", **agent}))
    shown = ".".join(map(str, path))
    assert messages(found) == [f'a: {shown} refers to "b", which it does not depend on']
    assert found[0].path == ("agents", 1, *path)
    assert (
        problems(ensemble({"name": "b"}, {"name": "c", "depends_on": "b"}, {"name": "a", "depends_on": "c", **agent}))
        == []
    )


def test_references_to_nobody_are_problems_and_to_the_input_are_not() -> None:
    found = problems(ensemble({"name": "a", "when": "${ghost}"}, {"name": "b", "when": "${input.urgent} == true"}))
    assert messages(found) == ['a: when refers to "ghost", which is no agent here']


@pytest.mark.parametrize(
    ("agent", "path"),
    [
        ({"when": "${a"}, ("when",)),
        ({"when": "yes"}, ("when",)),
        ({"dispatch": "${a..b}"}, ("dispatch",)),
        ({"loop": {"body": "x", "until": "ok", "max_iterations": 2}}, ("loop", "until")),
        ({"loop": {"body": "x", "until": "${ok}", "max_iterations": 2, "carry": "next"}}, ("loop", "carry")),
    ],
)
def test_conditions_and_references_have_to_be_readable(agent: dict[str, Any], path: tuple[str | int, ...]) -> None:
    found = problems(ensemble({"name": "a", **agent}))
    assert [problem.path for problem in found] == [("agents", 0, *path)]


def test_a_loop_reads_its_deliverable_not_agents() -> None:
    loop = {"body": "x", "until": "${diagnostics.accept}", "max_iterations": 2, "carry": "${diagnostics.retry}"}
    assert problems(ensemble({"name": "a", "loop": loop})) == []


def test_a_thousand_agents_in_a_row_need_no_recursion() -> None:
    names = [f"n{number}" for number in range(1000)]
    row = graph(**{name: names[max(0, index - 1) : index] for index, name in enumerate(names)})
    assert problems(row) == []
    assert levels(row.agents) == [[name] for name in names]
    assert len(ancestors(row.agents, names[-1])) == 999


def test_a_thousand_agents_with_many_dependencies_and_wrong_ones() -> None:
    names = [f"n{number}" for number in range(1000)]
    dense = ensemble(
        *({"name": name, "depends_on": names[max(0, index - 80) : index]} for index, name in enumerate(names[:-1])),
        {"name": names[-1], "depends_on": names[:-1], "when": "${n0} == 1"},
    )
    assert problems(dense) == []
    wrong = graph(**{name: [f"x{index}"] for index, name in enumerate(names)})
    assert len(problems(wrong)) == 1000


@given(st.lists(st.lists(st.integers(0, 11), max_size=4, unique=True), min_size=1, max_size=12))
def test_levels_come_after_what_they_depend_on(edges: list[list[int]]) -> None:
    whole = graph(**{f"n{index}": [f"n{other}" for other in others] for index, others in enumerate(edges)})
    if any("circle" in problem.message or "itself" in problem.message for problem in problems(whole)):
        with pytest.raises(InvalidConfig):
            levels(whole.agents)
        return
    placed = {name: number for number, names in enumerate(levels(whole.agents)) for name in names}
    assert sorted(placed) == sorted(agent.name for agent in whole.agents)
    for agent in whole.agents:
        assert all(placed[name] < placed[agent.name] for name in agent.depends_on if name in placed)
        assert agent.name not in ancestors(whole.agents, agent.name)


@pytest.mark.parametrize("name", ["input", "item"])
def test_what_references_name_otherwise_is_no_agents_name(name: str) -> None:
    (found,) = problems(Ensemble.model_validate({"name": "e", "agents": [{"name": name, "script": "x"}]}))
    assert "cannot be the name of an agent" in found.message


@pytest.mark.parametrize("fans_out", [True, False])
def test_only_instances_read_their_element(fans_out: bool) -> None:
    call = {"server": "s", "tool": "t", "arguments": {"x": "${item.y}"}}
    agents = [{"name": "a", "script": "x"}, {"name": "b", "mcp": call, "depends_on": ["a"], "fan_out": fans_out}]
    assert (problems(Ensemble.model_validate({"name": "e", "agents": agents})) == []) is fans_out


def test_an_ensemble_that_cannot_be_run_is_refused_with_all_that_is_wrong() -> None:
    agents = [{"name": "a", "script": "x", "depends_on": ["b"]}, {"name": "b", "script": "x", "depends_on": ["a", "c"]}]
    with pytest.raises(InvalidConfig, match=r"ensemble e: agent .* \(and 1 more\)") as caught:
        require_sound(Ensemble.model_validate({"name": "e", "agents": agents}))
    listed = (caught.value.data or {})["problems"]
    assert isinstance(listed, list)
    assert len(listed) == 2


def test_with_its_file_the_refusal_is_like_that_of_a_file_that_cannot_be_loaded() -> None:
    text = "name: e\nagents:\n- {name: a, script: x}\n- name: b\n  script: x\n  depends_on:\n  - a\n  - c\n  - b\n"
    loaded = load(text, "dir/e.yaml")
    with pytest.raises(InvalidConfig) as caught:
        require_sound(loaded.ensemble, loaded, "dir/e.yaml")
    words = ['depends on "c", which is not there', "depends on itself"]
    assert caught.value.message == f'dir/e.yaml:8: agents[1] "b": {words[0]} (and 1 more)'
    assert caught.value.data == {
        "file": "dir/e.yaml",
        "line": 8,
        "agent": "b",
        "problems": [{"line": 8, "agent": "b", "message": words[0]}, {"line": 9, "agent": "b", "message": words[1]}],
    }


def test_a_file_is_named_even_where_its_lines_are_not_known() -> None:
    faulty = Ensemble.model_validate({"name": "e", "agents": [{"name": "a", "script": "x", "depends_on": ["a"]}]})
    with pytest.raises(InvalidConfig, match=r'^dir/e.yaml: agent "a": depends on itself$') as caught:
        require_sound(faulty, file="dir/e.yaml")
    assert (caught.value.data or {})["file"] == "dir/e.yaml"
