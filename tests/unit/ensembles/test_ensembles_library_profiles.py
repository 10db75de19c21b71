# SPDX-License-Identifier: LGPL-2.1-or-later
"""Profiles of models: where they are from, and what one that is wrong means for others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mcpd.errors import InvalidConfig, NotFound
from mcpd.servers.ensembles.library import profiles
from tests.unit.ensembles.library_parts import ensemble, library, of_project, put, put_ensemble

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.servers.ensembles.engine.types import Origin
    from mcpd.servers.ensembles.library.library import Library


def _config(base: Path, **models: str) -> Path:
    """``config.yaml`` with profiles, of which each has its model."""
    lines = [f"  {name}: {{provider: mock, model: {model}}}\n" for name, model in models.items()]
    return put(base / "config.yaml", "model_profiles:\n" + "".join(lines))


def _all(tmp_path: Path) -> tuple[Library, dict[str, Origin]]:
    put_ensemble(of_project(tmp_path, "one"), "of-one")
    put_ensemble(of_project(tmp_path, "two"), "of-two")
    put_ensemble(tmp_path / "user", "mine")
    put(tmp_path / "shipped/extra.yaml", ensemble("extra"))
    made = library(tmp_path, "one", "two")
    return made, {name: made.find(name).origin for name in ("of-one", "of-two", "mine", "extra")}


def test_a_profile_is_the_projects_then_the_users_then_the_packages(tmp_path: Path) -> None:
    _config(of_project(tmp_path, "one"), fast="of-one", only="one")
    _config(tmp_path / "user", fast="the-users", slow="the-users")
    _config(tmp_path / "shipped", fast="the-packages", slow="the-packages", spare="the-packages")
    made, origins = _all(tmp_path)
    means = {
        (whose, name): (found[0].model, found[1])
        for whose in origins
        for name in ("fast", "slow", "spare")
        for found in (made.profile_of(name, origins[whose]),)
    }
    assert means == {
        ("of-one", "fast"): ("of-one", "project"),
        ("of-one", "slow"): ("the-users", "user"),
        ("of-one", "spare"): ("the-packages", "shipped"),
        ("of-two", "fast"): ("the-users", "user"),
        ("of-two", "slow"): ("the-users", "user"),
        ("of-two", "spare"): ("the-packages", "shipped"),
        ("mine", "fast"): ("the-users", "user"),
        ("mine", "slow"): ("the-users", "user"),
        ("mine", "spare"): ("the-packages", "shipped"),
        ("extra", "fast"): ("the-users", "user"),
        ("extra", "slow"): ("the-users", "user"),
        ("extra", "spare"): ("the-packages", "shipped"),
    }
    with pytest.raises(NotFound):
        made.profile("only", origins["of-two"])


def test_all_profiles_are_listed_and_those_that_do_not_count_are_marked(tmp_path: Path) -> None:
    _config(of_project(tmp_path, "one"), fast="of-one")
    path = put(of_project(tmp_path, "one") / "profiles/big.yaml", "name: large\nprovider: mock\nmodel: m\n")
    put(of_project(tmp_path, "one") / "profiles/again.yml", "name: fast\nprovider: mock\nmodel: other\n")
    _config(tmp_path / "user", fast="the-users")
    listed = library(tmp_path, "one").profiles()
    assert [(each.name, each.origin.tier, each.shadowed) for each in listed] == [
        ("fast", "project", False),
        ("fast", "project", True),
        ("large", "project", False),
        ("fast", "user", True),
    ]
    assert all(each.problem is None and each.profile is not None for each in listed)
    assert listed[2].origin.file == path


def test_an_unknown_profile_is_answered_with_those_like_it(tmp_path: Path) -> None:
    _config(tmp_path / "user", fast="m", slow="m")
    made, origins = _all(tmp_path)
    with pytest.raises(NotFound) as refused:
        made.profile("fsat", origins["of-one"])
    assert "fast" in refused.value.message
    assert "slow" not in refused.value.message
    assert str(tmp_path / "user") in refused.value.message


def test_a_profile_that_is_wrong_takes_no_other_with_it(tmp_path: Path) -> None:
    path = put(
        tmp_path / "user/config.yaml",
        "model_profiles:\n  fast: {provider: mock, model: m}\n  odd:\n    provider: nobody\n    model: m\n"
        "  slow:\n    provider: mock\n    model: m\nplexus: {enabled: true}\n",
    )
    made, origins = _all(tmp_path)
    assert made.profile("fast", origins["mine"]).model == "m"
    assert made.profile("slow", origins["mine"]).model == "m"
    with pytest.raises(InvalidConfig, match=rf"{path}:4"):
        made.profile("odd", origins["mine"])
    odd = next(each for each in made.profiles() if each.name == "odd")
    assert odd.profile is None
    assert odd.problem is not None
    assert odd.problem.startswith(f"{path}:4: ")
    assert [each.problem for each in made.profiles() if each.name in {"fast", "slow"}] == [None, None]
    plexus = made.find("mine").plexus
    assert plexus is not None
    assert plexus.enabled


def test_each_profile_that_is_wrong_says_what_is_wrong_with_itself(tmp_path: Path) -> None:
    path = put(
        tmp_path / "user/config.yaml",
        "model_profiles:\n  one:\n    provider: mock\n  two:\n    provider: mock\n    model: m\n    colour: red\n",
    )
    one, two = library(tmp_path).profiles()
    assert one.problem is not None
    assert two.problem is not None
    assert "model" in one.problem
    assert "colour" not in one.problem
    assert two.problem.startswith(f"{path}:7: ")
    assert "colour" in two.problem


def test_settings_of_the_knowledge_graph_that_are_wrong_take_no_profile_with_them(tmp_path: Path) -> None:
    put(
        tmp_path / "user/config.yaml",
        "plexus: {enabled: perhaps}\nmodel_profiles:\n  fast: {provider: mock, model: m}\n",
    )
    made, origins = _all(tmp_path)
    assert made.profile("fast", origins["mine"]).model == "m"
    assert made.find("mine").plexus is None
    (problem,) = [each.problem for each in made.profiles() if each.name == "config.yaml"]
    assert problem is not None
    assert "config.yaml:1" in problem


@pytest.mark.parametrize(
    "text", ["model_profiles: [", "- a\n", "model_profiles: [fast]\n", "{}\n---\n{}\n", "a: 1\na: 2\n"]
)
def test_a_configuration_that_cannot_be_read_is_not_silently_replaced(tmp_path: Path, text: str) -> None:
    path = put(of_project(tmp_path, "one") / "config.yaml", text)
    put(of_project(tmp_path, "one") / "profiles/own.yaml", "{name: own, provider: mock, model: m}\n")
    _config(tmp_path / "user", fast="the-users")
    made, origins = _all(tmp_path)
    assert made.profile("own", origins["of-one"]).model == "m"
    with pytest.raises(InvalidConfig, match=str(path)):
        made.profile("fast", origins["of-one"])
    assert made.profile("fast", origins["of-two"]).model == "the-users"
    assert made.find("of-one").plexus is None
    (wrong,) = [each for each in made.profiles() if each.problem]
    assert (wrong.name, wrong.origin.file) == ("config.yaml", path)


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "{}\n", "other: {a: 1}\n", "model_profiles:\n"])
def test_a_configuration_may_say_nothing(tmp_path: Path, text: str) -> None:
    put(tmp_path / "user/config.yaml", text)
    assert library(tmp_path).profiles() == []


def test_a_file_of_a_profile_that_is_wrong_is_a_problem_of_its_name(tmp_path: Path) -> None:
    path = put(of_project(tmp_path, "one") / "profiles/fast.yaml", "name: fast\nprovider: mock\n")
    _config(of_project(tmp_path, "one"), slow="m")
    made, origins = _all(tmp_path)
    with pytest.raises(InvalidConfig, match=str(path)):
        made.profile("fast", origins["of-one"])
    assert made.profile("slow", origins["of-one"]).model == "m"
    assert [(each.name, each.profile) for each in made.profiles() if each.problem] == [("fast", None)]


def test_profiles_of_a_project_stay_in_it(tmp_path: Path) -> None:
    secret = put(tmp_path / "home/secret.yaml", "name: [SECRET")
    base = of_project(tmp_path, "one")
    (base / "profiles").mkdir(parents=True)
    (base / "profiles/x.yaml").symlink_to(secret)
    (base / "config.yaml").symlink_to(secret)
    listed = library(tmp_path, "one").profiles()
    assert sorted(each.name for each in listed) == ["config.yaml", "x"]
    assert all("SECRET" not in (each.problem or "") for each in listed)
    (base / "profiles/x.yaml").unlink()
    (base / "profiles").rmdir()
    put(tmp_path / "home/profiles/y.yaml", "{name: y, provider: mock, model: m}")
    (base / "profiles").symlink_to(tmp_path / "home/profiles")
    listed = library(tmp_path, "one").profiles()
    assert [(each.name, each.profile) for each in listed] == [("config.yaml", None), ("profiles", None)]
    assert "leads out of the project" in (listed[1].problem or "")


@pytest.mark.parametrize("limit", ["MOST_FILES", "MOST_NAMES"])
def test_profiles_beyond_the_limit_are_said_to_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(profiles, limit, 3)
    _config(tmp_path / "user", fast="the-users")
    for number in range(3):
        put(of_project(tmp_path, "one") / f"profiles/p{number}.yaml", f"{{name: p{number}, provider: mock, model: m}}")
    made, origins = _all(tmp_path)
    assert made.profile("fast", origins["of-one"]).model == "the-users"
    put(of_project(tmp_path, "one") / "profiles/p3.yaml", "{name: p3, provider: mock, model: m}")
    (problem,) = [each.problem for each in made.profiles() if each.problem]
    assert "more than" in problem
    with pytest.raises(InvalidConfig, match="more than"):
        made.profile("fast", origins["of-one"])


def test_a_configuration_of_a_project_is_no_symlink_wherever_that_leads(tmp_path: Path) -> None:
    base = of_project(tmp_path, "one")
    put(base / "other.yaml", "model_profiles: {fast: {provider: mock, model: m}}\n")
    (base / "config.yaml").symlink_to("other.yaml")
    assert [each.profile for each in library(tmp_path, "one").profiles()] == [None]


def test_a_profile_changes_when_its_file_does(tmp_path: Path) -> None:
    made, origins = _all(tmp_path)
    for number in range(20):
        _config(tmp_path / "user", fast=f"m{number}")
        assert made.profile("fast", origins["mine"]).model == f"m{number}"
    (tmp_path / "user/config.yaml").unlink()
    with pytest.raises(NotFound):
        made.profile("fast", origins["mine"])


def test_names_that_several_tiers_have_are_suggested_once_and_counted_once(tmp_path: Path) -> None:
    for base in (of_project(tmp_path, "one"), tmp_path / "user", tmp_path / "shipped"):
        _config(base, fake="m")
    made, origins = _all(tmp_path)
    with pytest.raises(NotFound, match=r'^there is no profile "fak" among 1; there is fake; profiles are in'):
        made.profile("fak", origins["of-one"])
