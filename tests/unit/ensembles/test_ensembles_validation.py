# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is wrong with an ensemble among profiles, scripts, servers and other ensembles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mcpd.errors import InvalidConfig, NotFound
from mcpd.servers.ensembles.engine.types import Found, Origin
from mcpd.servers.ensembles.format.loading import Loaded, load
from mcpd.servers.ensembles.format.models import Profile
from mcpd.servers.ensembles.format.validation import MAX_ENSEMBLES, MAX_FINDINGS, Finding, validate

if TYPE_CHECKING:
    from collections.abc import Collection

    from mcpd.servers.ensembles.engine.types import Tier

BASE = Path("/ensembles")


class Shelf:
    """Ensembles, each of a file, profiles and scripts."""

    def __init__(self, **files: str) -> None:
        """The agents of ensembles, by name."""
        self.texts = {name: f"name: {name}\nagents:\n{agents}" for name, agents in files.items()}
        self.found: dict[str, Found] = {}
        self.profiles = {"fast"}
        self.scripts = {"scripts/there.py"}

    def loaded(self, name: str) -> Loaded:
        """The file of *name*."""
        return load(self.texts[name], f"{BASE}/{name}.yaml")

    def find(self, name: str, whose: Origin | None = None) -> Found:
        """As a library does."""
        assert whose is None or whose.tier == "user"
        if name not in self.texts:
            raise NotFound(f'there is no ensemble "{name}"')
        if name not in self.found:
            self.found[name] = Found(self.loaded(name).ensemble, Origin("user", BASE / f"{name}.yaml", BASE, None))
        return self.found[name]

    def profile(self, name: str, whose: Origin) -> Profile:
        """As a library does."""
        if name == "broken":
            raise InvalidConfig("profiles/broken.yaml:3: wrong")
        if name not in self.profiles:
            raise NotFound(f'there is no profile "{name}" for {whose.tier}')
        return Profile(model="m", provider="mock")

    def profile_of(self, name: str, whose: Origin) -> tuple[Profile, Tier]:
        """As a library does."""
        return self.profile(name, whose), whose.tier

    def script(self, origin: Origin, script: str) -> Path:
        """As a library does; not asked for here."""
        raise NotImplementedError

    def script_fault(self, origin: Origin, script: str) -> str | None:
        """What is wrong with *script*."""
        return None if script in self.scripts else f"{origin.base / script} is not there"

    def findings(self, name: str = "root", servers: Collection[str] | None = None) -> list[Finding]:
        """Of the ensemble *name*."""
        return validate(self.find(name), self, self.loaded(name), script_exists=self.script_fault, servers=servers)


def said(findings: list[Finding]) -> list[tuple[str | None, int | None, str]]:
    """What matters of *findings*, which are errors."""
    assert {finding.severity for finding in findings} <= {"error"}
    return [(finding.agent, finding.line, finding.message) for finding in findings]


def runs(*names: str) -> str:
    """Agents that run the ensembles *names*."""
    return "".join(f"- {{name: a{number}, ensemble: {name}}}\n" for number, name in enumerate(names)) or LEAF


LEAF = "- {name: leaf, script: scripts/there.py}\n"


def test_nothing_is_wrong_with_a_sound_ensemble() -> None:
    shelf = Shelf(
        root=LEAF
        + "- {name: m, model_profile: fast, depends_on: leaf}\n"
        + "- {name: e, ensemble: other}\n"
        + '- {name: l, loop: {body: other, until: "${ok}", max_iterations: 2}}\n'
        + '- {name: d, dispatch: "${leaf.target}", depends_on: leaf}\n'
        + "- {name: t, mcp: {server: files, tool: read}, depends_on: leaf}\n",
        other=LEAF,
    )
    assert shelf.findings(servers=["files"]) == []
    assert shelf.findings(servers=None) == []


def test_all_that_is_named_and_not_there_is_found_by_line() -> None:
    shelf = Shelf(
        root="- name: a\n  script: scripts/gone.py\n"
        "- name: b\n  model_profile: gone\n  fallback_model_profile: broken\n"
        "- name: c\n  depends_on: [ghost]\n  ensemble: gone\n"
        '- name: d\n  loop:\n    body: lost\n    until: "${ok}"\n    max_iterations: 1\n'
        "- name: e\n  dispatch: missing\n"
        "- name: f\n  mcp: {server: filez, tool: x}\n"
    )
    findings = shelf.findings(servers=["files", "git"])
    assert said(findings) == [
        ("a", 4, "/ensembles/scripts/gone.py is not there"),
        ("b", 6, 'there is no profile "gone" for user'),
        ("b", 7, "profiles/broken.yaml:3: wrong"),
        ("c", 9, 'depends on "ghost", which is not there'),
        ("c", 10, 'there is no ensemble "gone"'),
        ("d", 13, 'there is no ensemble "lost"'),
        ("e", 17, 'there is no ensemble "missing"'),
        ("f", 19, 'the server "filez" is not installed; did you mean "files"?'),
    ]
    assert {finding.file for finding in findings} == {"/ensembles/root.yaml"}


def test_conditions_that_cannot_be_read_are_found() -> None:
    shelf = Shelf(root=LEAF + "- name: b\n  script: scripts/there.py\n  when: ${leaf.ok}\n")
    assert said(shelf.findings()) == [("b", 6, 'when refers to "leaf", which it does not depend on')]


def test_dispatch_by_a_broken_reference_is_one_finding() -> None:
    assert len(said(Shelf(root='- {name: d, dispatch: "${a..b}"}\n').findings())) == 1


def test_servers_that_are_not_known_are_not_missed() -> None:
    text = "- {name: f, mcp: {server: files, tool: x}}\n"
    assert Shelf(root=text).findings(servers=None) == []
    assert "not installed" in Shelf(root=text).findings(servers=[])[0].message


def test_what_is_possible_and_hardly_meant_is_a_warning() -> None:
    shelf = Shelf(
        root="- {name: a, model_profile: fast, fallback_model_profile: fast}\n"
        "- {name: b, model_profile: fast, input_scope: dependencies}\n"
        "- {name: c, model_profile: fast, input_scope: dependencies, depends_on: a}\n"
    )
    findings = shelf.findings()
    assert [(finding.severity, finding.agent, finding.line) for finding in findings] == [
        ("warning", "a", 3),
        ("warning", "b", 4),
    ]


def test_an_ensemble_that_runs_itself_is_refused() -> None:
    assert said(Shelf(root=runs("root")).findings()) == [("a0", 3, "ensembles run each other in a circle: root → root")]


def test_circles_of_ensembles_are_named_in_the_order_in_which_they_run() -> None:
    shelf = Shelf(root=runs("leaf", "one"), one=runs("two"), two=runs("root"), leaf=LEAF)
    ((agent, line, message),) = said(shelf.findings())
    assert (agent, line) == ("a1", 4)
    names = message.removeprefix("ensembles run each other in a circle: ").split(" → ")
    assert names[0] == names[-1]
    start = names.index("root")
    assert [*names[start:-1], *names[:start]] == ["root", "one", "two"]


def test_a_circle_among_others_is_found_where_it_is_entered() -> None:
    shelf = Shelf(root=runs("leaf", "one"), one=runs("two"), two=runs("one"), leaf=LEAF)
    ((agent, _, message),) = said(shelf.findings())
    assert agent == "a1"
    assert "circle" in message


def test_faults_of_what_an_ensemble_runs_are_found() -> None:
    shelf = Shelf(root=runs("one", "one"), one=runs("two"), two=runs("gone", "gone"))
    assert said(shelf.findings()) == [("a0", 3, 'runs "two", where there is no ensemble "gone"')]


def test_ensembles_run_each_other_five_levels_deep() -> None:
    chain = {f"n{number}": runs(f"n{number + 1}") for number in range(1, 6)}
    assert (
        Shelf(root=runs("n1"), n5=LEAF, **{name: text for name, text in chain.items() if name != "n5"}).findings() == []
    )
    shelf = Shelf(root=runs("leaf", "n1"), n6=LEAF, leaf=LEAF, **chain)
    assert said(shelf.findings()) == [
        ("a1", 4, "ensembles run each other deeper than 5 levels: root → n1 → n2 → n3 → n4 → n5 → n6")
    ]


def test_ensembles_that_run_many_others_are_looked_at_once_each() -> None:
    names = [f"n{number}" for number in range(60)]
    layers = {name: runs(*[f"m{number}" for number in range(60)]) for name in names}
    shelf = Shelf(root=runs(*names), **layers, **{f"m{number}": LEAF for number in range(60)})
    assert shelf.findings() == []


def test_not_more_ensembles_are_looked_at_than_the_limit() -> None:
    names = [f"n{number}" for number in range(500)]
    others = {name: runs(f"{name}x", f"{name}y") for name in names}
    leaves = {f"{name}{end}": LEAF for name in names for end in "xy"}
    (finding,) = Shelf(root=runs(*names), **others, **leaves).findings()
    assert finding.severity == "warning"
    assert str(MAX_ENSEMBLES) in finding.message


def test_ensembles_are_looked_at_for_a_limited_time() -> None:
    shelf = Shelf(root=runs(*(f"n{number}" for number in range(50))), **{f"n{number}": LEAF for number in range(50)})
    found = shelf.find("root")

    def clock() -> float:
        return 3.0 * len(shelf.found)

    (finding,) = validate(
        found, shelf, shelf.loaded("root"), script_exists=shelf.script_fault, servers=None, clock=clock
    )
    assert finding.severity == "warning"
    assert "take too long to read" in finding.message
    assert len(shelf.found) == 1 + 4


def test_a_file_full_of_faults_has_a_limited_number_of_findings() -> None:
    ghosts = ", ".join(f"ghost{number}" for number in range(MAX_FINDINGS + 7))
    findings = Shelf(root=f"- {{name: a, script: scripts/there.py, depends_on: [{ghosts}]}}\n").findings()
    assert len(findings) == MAX_FINDINGS + 1
    assert findings[-1].message == "and 7 more"


def test_models_that_would_not_be_asked_are_warned_of() -> None:
    shelf = Shelf(
        root="""  - {name: a, model_profile: fast}
  - {name: b, provider: openai, model: m}
  - {name: c, model_profile: nope}
"""
    )
    findings = validate(
        shelf.find("root"), shelf, shelf.loaded("root"), script_exists=shelf.script_fault, servers=None,
        model_fault=lambda profile, trusted: f"no key for {profile.provider}, {trusted}",
    )  # fmt: skip
    warned = [(each.agent, each.message) for each in findings if each.severity == "warning"]
    assert warned == [("a", 'with the profile "fast", no key for mock, True'), ("b", "no key for openai, False")]


def test_tools_that_a_server_does_not_list_are_warned_of() -> None:
    shelf = Shelf(
        root="""  - {name: a, mcp: {server: workstation, tool: git/status, arguments: {}}}
  - {name: b, mcp: {server: workstation, tool: git_statu, arguments: {}}}
  - {name: c, mcp: {server: other, tool: anything, arguments: {}}}
"""
    )
    findings = validate(
        shelf.find("root"), shelf, shelf.loaded("root"), script_exists=shelf.script_fault, servers=None,
        tools={"workstation": ["git_status", "git_log"]},
    )  # fmt: skip
    assert [(each.agent, each.severity, each.message) for each in findings] == [
        ("b", "warning", 'the server "workstation" lists no tool "git_statu"; did you mean "git_status"?')
    ]
