# SPDX-License-Identifier: LGPL-2.1-or-later
"""``update_ensemble`` changes what it is to change and not a byte besides."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mcpd.errors import InvalidArgument, InvalidConfig, McpdError, NotFound
from mcpd.servers.ensembles.editing.edit import difference, edited
from mcpd.servers.ensembles.editing.planning import Changes
from mcpd.servers.ensembles.format.reading import read

pytestmark = pytest.mark.process

FILE = "ensembles/sample.yaml"
LONG = "a long line that no program may break " * 8


@dataclass(frozen=True)
class Sample:
    """A file in pieces: what is before the agents, the lines of each, and what is behind."""

    head: str
    agents: dict[str, str]
    foot: str = ""
    between: str = ""
    lasts: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return self.head + self.between.join(self.agents.values()) + self.foot


INDENTED = Sample(
    head='# What this is for.\n\nname: "sample"\ndescription: >\n  folded\n  text\nagents:\n',
    agents={
        "a": f"  # About a.\n  - name: a   # trailing\n    model_profile: 'fast'\n    system_prompt: \"{LONG}\"\n",
        "b": (
            "  - name: b\n    depends_on: [a]  # why\n    script: scripts/b.py\n    parameters:\n        deep: {x: 1}\n"
        ),
        "c": "  - {name: c, model: m, provider: ollama, depends_on: [a, b]}  # in brackets\n",
        "d": (
            "  # About d,\n  # in two lines.\n  - name: d\n"
            "    depends_on:\n      - a  # first\n      # second\n      - c\n"
            "    provider: ollama\n    model: m\n"
            "    system_prompt: |\n      # A heading\n\n      text  \n    # temperature: 1\n"
        ),
        "e": "  -\n    model_profile: fast\n    name: e\n    depends_on: d\n",
    },
    foot="\n# The end.\nbudget: {tokens: 1000}\n...\n",
    between="\n",
)
FLUSH = Sample(
    head="---\nname: sample\nagents:\n",
    agents={
        "a": "- name: a\n  model_profile: fast\n  system_prompt: |+\n    kept\n\n",
        "b": "-   name: b\n    depends_on:\n    - a\n    model_profile: fast\n",
        "c": "# c\n- name: c\n  model: m\n  provider: ollama\n  depends_on: b\n",
        "d": '- name: d\n  model_profile: "fast"\n  depends_on: [b,   c]\n',
    },
    foot="# foot\ndescription: 'none'\n",
)
UNENDED = Sample(
    head="name: sample\nagents:\n",
    agents={
        "a": "  - name: a\n    model_profile: fast\n",
        "b": "  - name: b\n    model_profile: fast\n    depends_on: a",
    },
)
LINES = Sample(
    head='{\n  "name": "sample",\n  "agents": [\n',
    agents={
        "a": '    {"name": "a", "model_profile": "fast"},  # in JSON, nearly\n',
        "b": '    {\n      "name": "b",\n      "model": "m", "provider": "ollama"\n    },\n',
        "c": '    {"name": "c", "model_profile": "fast", "depends_on": ["a", "b"]},\n',
    },
    foot='  ],\n  "description": "x"\n}\n',
)
SAMPLES = {"indented": INDENTED, "flush": FLUSH, "unended": UNENDED, "lines": LINES}


def data(text: str) -> Any:
    return read(text, FILE)[0]


def change(text: str, **changes: Any) -> str:
    return edited(text, Changes.model_validate(changes), FILE)


def expected(document: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """What *changes* mean, without a thought of text."""
    agents = {agent["name"]: dict(agent) for agent in document["agents"]}
    for name in changes["remove_agents"]:
        del agents[name]
    for each in changes["modify_dependencies"]:
        agents[each["agent"]]["depends_on"] = each["depends_on"]
    for name, profile in changes["update_model_profiles"].items():
        for key in ("model", "provider"):
            agents[name].pop(key, None)
        agents[name]["model_profile"] = profile
    return document | {"agents": [*agents.values(), *changes["add_agents"]]}


def normal(document: dict[str, Any]) -> dict[str, Any]:
    """*document* with every dependency as a list, none as an empty one."""

    def listed(needed: Any) -> list[str]:
        return [needed] if isinstance(needed, str) else list(needed)

    agents = [agent | {"depends_on": listed(agent.get("depends_on", []))} for agent in document["agents"]]
    return document | {"agents": agents}


TEXTS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\t #:-'\"\\|>{}[],&*!%@`"), max_size=60
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-1e9, 1e9) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc_", min_size=1, max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


_EITHER: st.SearchStrategy[Any] = st.booleans()


@st.composite
def changed(draw: st.DrawFn) -> tuple[Sample, dict[str, Any], set[str]]:
    """A sample, changes that can be made, and the agents that they touch."""
    sample = draw(st.sampled_from(list(SAMPLES.values())))
    names = list(sample.agents)
    removed = draw(st.lists(st.sampled_from(names), unique=True, max_size=len(names) - 1))
    left = [name for name in names if name not in removed]
    models = [each["name"] for each in data(sample.text)["agents"] if "script" not in each]
    dependencies: dict[str, list[str]] = {
        # Those that would be left dangling have to be changed.
        name: draw(st.lists(st.sampled_from(left[: left.index(name)]), unique=True)) if left.index(name) else []
        for name in left
        if removed or draw(_EITHER)
    }
    profiles = draw(
        st.dictionaries(
            st.sampled_from([each for each in left if each in models] or ["-"]), st.sampled_from(["strong", "no"])
        )
    )
    profiles.pop("-", None)
    added = [
        {
            "name": f"new{number}",
            "script": "scripts/new.py",
            "parameters": draw(st.dictionaries(TEXTS.filter(bool), VALUES, max_size=3)),
        }
        | (
            {"depends_on": draw(st.lists(st.sampled_from(left), unique=True, min_size=1))}
            if draw(st.booleans())
            else {}
        )
        for number in range(draw(st.integers(0, 2)))
    ]
    changes = {
        "remove_agents": removed,
        "modify_dependencies": [{"agent": name, "depends_on": needed} for name, needed in dependencies.items()],
        "update_model_profiles": profiles,
        "add_agents": added,
    }
    return sample, changes, {*removed, *dependencies, *profiles}


@given(changed())
def test_what_is_not_named_stays_byte_for_byte_and_the_rest_says_what_was_asked(
    case: tuple[Sample, dict[str, Any], set[str]],
) -> None:
    sample, changes, touched = case
    new = change(sample.text, **changes)
    assert normal(data(new)) == normal(expected(data(sample.text), changes))
    assert new.startswith(sample.head)
    assert sample.foot in new
    for name, lines in sample.agents.items():
        if name not in touched:
            assert lines.rstrip("\n") in new
    assert new.endswith("\n") == sample.text.endswith("\n")
    if not any(changes.values()):
        assert new == sample.text


ODDITIES = [
    "\n",
    " ",
    "\t",
    "# c\n",
    "? ",
    "&p ",
    "*p",
    "!!str ",
    "\r\n",
    "- ",
    "{",
    "}",
    "when",
    "when:",
    ", ",
    "''",
    "|",
    "\ufeff",
]


@given(
    st.sampled_from(sorted(SAMPLES)),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 3), st.sampled_from(ODDITIES)), max_size=3),
)
def test_a_file_that_is_written_oddly_is_changed_as_asked_or_not_at_all(
    name: str, oddities: list[tuple[float, int, str]]
) -> None:
    text = SAMPLES[name].text
    for where, cut, oddity in oddities:
        at = int(where * len(text))
        text = text[:at] + oddity + text[at + cut :]
    changes = {
        "remove_agents": ["b"],
        "modify_dependencies": [{"agent": "c", "depends_on": ["a"]}, {"agent": "d", "depends_on": ["a", "c"]}],
        "update_model_profiles": {"a": "strong", "c": "strong"},
        "add_agents": [{"name": "new", "script": "s.py"}],
    }
    if name in {"unended", "lines"}:
        changes = {"update_model_profiles": {"a": "strong", "b": "strong"}, "add_agents": changes["add_agents"]}
    try:
        new = change(text, **changes)
    except McpdError:
        return
    changes = {"remove_agents": [], "modify_dependencies": [], **changes}
    assert normal(data(new)) == normal(expected(data(text), changes))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
def test_a_text_that_is_added_is_what_it_was_or_refused(text: str) -> None:
    agent = {"name": "new", "model_profile": "fast", "system_prompt": text}
    try:
        new = change(INDENTED.text, add_agents=[agent])
    except InvalidArgument:
        # Control characters are no text in YAML; newlines of other kinds may be.
        assert not text.isprintable()
    else:
        assert data(new)["agents"][-1] == agent


@pytest.mark.parametrize("name", SAMPLES)
def test_no_change_is_the_same_text(name: str) -> None:
    text = SAMPLES[name].text
    assert change(text) == text
    assert difference(text, change(text), FILE) == ""


def test_the_lines_of_a_windows_file_stay_so() -> None:
    text = INDENTED.text.replace("\n", "\r\n")
    new = change(
        text,
        remove_agents=["b"],
        modify_dependencies=[{"agent": "c", "depends_on": ["a"]}],
        add_agents=[{"name": "f", "model_profile": "fast", "system_prompt": "one\ntwo"}],
    )
    assert new.count("\n") == new.count("\r\n")
    assert data(new)["agents"][-1]["system_prompt"] == "one\ntwo"


def test_a_byte_order_mark_does_not_move_the_places() -> None:
    new = change("\ufeff" + FLUSH.text, update_model_profiles={"d": "strong"})
    assert new == "\ufeff" + FLUSH.text.replace('model_profile: "fast"', 'model_profile: "strong"')


def test_an_agent_goes_with_the_comments_that_are_about_it() -> None:
    new = change(INDENTED.text, remove_agents=["d", "e"])
    assert "About d" not in new
    assert "temperature" not in new
    assert new == INDENTED.head + "\n".join(INDENTED.agents[name] for name in "abc") + INDENTED.foot


def test_an_agent_is_added_as_the_others_are_written() -> None:
    prompt = "Read.\n\n  - and count\n"
    new = change(
        FLUSH.text,
        add_agents=[{"name": "e", "model_profile": "fast", "depends_on": ["c", "d"], "system_prompt": prompt}],
    )
    assert new == FLUSH.text.replace(
        FLUSH.foot,
        "- name: e\n  model_profile: fast\n  depends_on:\n  - c\n  - d\n  system_prompt: |\n"
        "    Read.\n\n      - and count\n" + FLUSH.foot,
    )
    assert change(INDENTED.text, add_agents=[{"name": "f", "model_profile": "fast"}]) == INDENTED.text.replace(
        INDENTED.foot, "\n  - name: f\n    model_profile: fast\n" + INDENTED.foot
    )


def test_agents_on_one_line_stay_on_it() -> None:
    text = "name: s\nagents: [{name: a, model_profile: x}, {name: b, model_profile: x}] # c\n"
    new = change(text, remove_agents=["a"], add_agents=[{"name": "c", "model_profile": "x", "depends_on": ["b"]}])
    assert new == "name: s\nagents: [{name: b, model_profile: x}, {name: c, model_profile: x, depends_on: [b]}] # c\n"


@pytest.mark.parametrize("prompt", ["one\ntwo", "one\n\n  two: x\n", "\none # two"])
@pytest.mark.parametrize(
    "text",
    [
        "{name: e, agents: [{name: a, script: x}]}",
        "name: e\nagents: [{name: a, script: x}]\n",
        "name: e\nagents: [\n  {name: a, script: x},\n]\n",
        "name: e\nagents:\n- {name: a, script: x}\n",
        "name: e\nagents:\n  - {name: a, script: x}",
    ],
)
def test_a_text_of_several_lines_is_added_whatever_the_style_and_the_end_of_the_file(text: str, prompt: str) -> None:
    added = {"name": "b", "model_profile": "fast", "system_prompt": prompt}
    new = change(text, add_agents=[added])
    assert read(new, FILE)[0]["agents"] == [{"name": "a", "script": "x"}, added]


def test_a_profile_replaces_model_and_provider_where_they_stand() -> None:
    text = "name: s\nagents:\n  - provider: ollama  # first\n    model: m  # second\n    name: a\n"
    assert change(text, update_model_profiles={"a": "p"}) == (
        "name: s\nagents:\n  - model_profile: p  # second\n    name: a\n"
    )


def test_the_lines_of_dependencies_that_stay_keep_their_comments() -> None:
    new = change(INDENTED.text, modify_dependencies=[{"agent": "d", "depends_on": ["a", "b"]}])
    assert "    depends_on:\n      - a  # first\n      - b\n    provider" in new
    new = change(INDENTED.text, modify_dependencies=[{"agent": "d", "depends_on": []}])
    assert "  - name: d\n    provider: ollama\n" in new


def test_dependencies_as_mappings_stay_so() -> None:
    text = (
        "name: s\nagents:\n- {name: a, model_profile: x}\n- {name: b, model_profile: x}\n"
        "- name: c\n  model_profile: x\n  depends_on:\n  - agent_name: a\n"
    )
    new = change(text, modify_dependencies=[{"agent": "c", "depends_on": ["a", "b"]}])
    assert new == text + "  - b\n"


def refused(text: str, **changes: Any) -> list[dict[str, Any]]:
    with pytest.raises(InvalidArgument) as raised:
        change(text, **changes)
    assert raised.value.data is not None
    problems = raised.value.data["problems"]
    assert isinstance(problems, list)
    assert all(each["agent"] in raised.value.message for each in problems)
    return problems


def test_who_depends_on_what_goes_is_named() -> None:
    problems = refused(INDENTED.text, remove_agents=["a"])
    assert [each["agent"] for each in problems] == ["b", "c", "d"]
    assert all('"a"' in each["message"] for each in problems)


def test_a_removal_is_fine_with_what_mends_it() -> None:
    new = change(FLUSH.text, remove_agents=["c"], modify_dependencies=[{"agent": "d", "depends_on": ["b"]}])
    assert [each["name"] for each in data(new)["agents"]] == ["a", "b", "d"]
    new = change(FLUSH.text, remove_agents=["a"], add_agents=[{"name": "a", "script": "scripts/a.py"}])
    assert [each["name"] for each in data(new)["agents"]] == ["b", "c", "d", "a"]


def test_a_circle_is_refused_with_its_names() -> None:
    problems = refused(FLUSH.text, modify_dependencies=[{"agent": "a", "depends_on": ["d"]}])
    assert all(re.search(r"circle: (\w → )+\w$", each["message"]) for each in problems)


def test_references_to_what_is_gone_are_refused() -> None:
    text = (
        "name: s\nagents:\n- {name: a, model_profile: x}\n- {name: b, model_profile: x}\n"
        "- {name: c, model_profile: x, depends_on: [a, b], when: '${b.ok}'}\n"
    )
    (problem,) = refused(text, remove_agents=["b"], modify_dependencies=[{"agent": "c", "depends_on": ["a"]}])
    assert problem["agent"] == "c"


@pytest.mark.parametrize(
    "changes",
    [
        {"add_agents": [{"name": "a", "model_profile": "x"}]},
        {"add_agents": [{"name": "n", "model_profile": "x"}, {"name": "n", "model_profile": "x"}]},
        {"add_agents": [{"name": "n", "model_profile": "x", "depends_on": ["nobody"]}]},
        {"add_agents": [{"name": "n", "modle": "x"}]},
        {"remove_agents": ["d"], "update_model_profiles": {"d": "x"}},
        {"remove_agents": ["d", "d"]},
        {"modify_dependencies": [{"agent": "d", "depends_on": []}, {"agent": "d", "depends_on": ["a"]}]},
        {"modify_dependencies": [{"agent": "b", "depends_on": ["nobody"]}]},
    ],
    ids="-".join,
)
def test_contradictions_and_faults_are_refused(changes: dict[str, Any]) -> None:
    assert refused(FLUSH.text, **changes)


def test_only_models_have_profiles() -> None:
    (problem,) = refused(INDENTED.text, update_model_profiles={"b": "x"})
    assert "script" in problem["message"]


@pytest.mark.parametrize(
    "changes",
    [
        {"remove_agents": ["reeder"]},
        {"modify_dependencies": [{"agent": "reeder", "depends_on": []}]},
        {"update_model_profiles": {"reeder": "x"}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_an_unknown_agent_is_not_found_but_what_is_like_it(changes: dict[str, Any]) -> None:
    with pytest.raises(NotFound, match="reader"):
        change("name: s\nagents:\n- {name: reader, model_profile: x}\n", **changes)


def test_an_agent_of_the_same_change_is_not_changed() -> None:
    with pytest.raises(InvalidArgument, match="add_agents"):
        change(
            FLUSH.text,
            add_agents=[{"name": "n", "model_profile": "x"}],
            modify_dependencies=[{"agent": "n", "depends_on": ["a"]}],
        )


def test_an_ensemble_keeps_an_agent() -> None:
    with pytest.raises(InvalidArgument, match="no agent would be left"):
        change(UNENDED.text, remove_agents=["a", "b"])


def test_an_alias_is_left_to_people() -> None:
    text = (
        "name: s\nagents:\n- {name: a, script: s.py, parameters: &p {x: 1}}\n"
        "- {name: b, script: s.py, parameters: *p}\n"
    )
    with pytest.raises(InvalidArgument, match=r"\*p names nothing"):
        change(text, remove_agents=["a"])
    assert change(text, remove_agents=["b"]) == text.rpartition("- {")[0]


def test_what_is_no_ensemble_is_not_changed() -> None:
    with pytest.raises(InvalidConfig, match=FILE):
        change("name: s\n", remove_agents=["a"])


def test_unknown_keys_are_refused() -> None:
    cases: list[dict[str, Any]] = [
        {"remove": []}, {"modify_dependencies": [{"agent": "a", "depends_on": [], "x": 1}]}
    ]  # fmt: skip
    for changes in cases:
        with pytest.raises(ValidationError):
            Changes.model_validate(changes)


LINES_OF_TEXT = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "d\u2028e\n", "f\r\n", "last"]), max_size=25).map(
    "".join
)


@given(LINES_OF_TEXT, LINES_OF_TEXT)
def test_the_difference_makes_the_new_of_the_old(old: str, new: str) -> None:
    found = difference(old, new, FILE)
    assert bool(found) == (old != new)
    with TemporaryDirectory() as directory:
        file = Path(directory, "file")
        file.write_bytes(old.encode())
        subprocess.run(["patch", "--quiet", "--binary", file], input=found.encode(), check=True, capture_output=True)
        assert (file.read_bytes() if file.exists() else b"") == new.encode()


def test_the_difference_shows_what_has_changed_and_little_else() -> None:
    old = INDENTED.text
    new = change(old, update_model_profiles={"a": "strong"}, add_agents=[{"name": "z", "model_profile": "x"}])
    changed = [line for line in difference(old, new, f"/{FILE}").splitlines() if line[0] in "+-"]
    assert changed == [
        f"--- a/{FILE}",
        f"+++ b/{FILE}",
        "-    model_profile: 'fast'",
        "+    model_profile: 'strong'",
        "+  - name: z",
        "+    model_profile: x",
        "+",
    ]
