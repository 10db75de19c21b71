# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which ensembles there are, and which of them a name means."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import InvalidConfig, NotFound
from tests.unit.ensembles.library_parts import age, by_name, ensemble, library, of_project, put, put_ensemble, settings

if TYPE_CHECKING:
    from pathlib import Path


def test_an_entry_says_what_a_listing_shows(tmp_path: Path) -> None:
    path = put(
        of_project(tmp_path, "app") / "ensembles/deep/er/r.yml",
        "name: review\ndescription: two readers\nagents:\n"
        "  - {name: a, model_profile: fast}\n  - {name: b, script: scripts/x.py}\n  - {name: c, model_profile: fast}\n",
    )
    (entry,) = library(tmp_path, "app").entries()
    assert (entry.name, entry.description, entry.agents, entry.kinds) == (
        "review",
        "two readers",
        3,
        ("model", "script"),
    )
    assert (entry.qualified, entry.shadowed, entry.problem) == ("app/review", False, None)
    assert entry.modified == path.stat().st_mtime
    assert (entry.origin.tier, entry.origin.file, entry.origin.base) == ("project", path, of_project(tmp_path, "app"))
    assert entry.origin.project == tmp_path / "app"


def test_nothing_anywhere_is_an_empty_library(tmp_path: Path) -> None:
    assert library(tmp_path, "app").entries() == []


def test_a_project_that_is_not_there_is_an_empty_one(tmp_path: Path) -> None:
    put_ensemble(tmp_path / "user", "review")
    made = library(tmp_path, "app")
    (tmp_path / "app").rmdir()
    assert [entry.qualified for entry in made.entries()] == ["user/review"]


def test_tiers_come_in_their_order_and_the_first_of_a_name_counts(tmp_path: Path) -> None:
    put_ensemble(of_project(tmp_path, "one"), "review", "of one")
    put_ensemble(of_project(tmp_path, "two"), "review", "of two")
    put_ensemble(tmp_path / "user", "review", "the user's")
    put(tmp_path / "shipped/review.yaml", ensemble("review", "the package's"))
    made = library(tmp_path, "one", "two")
    assert [(entry.qualified, entry.shadowed) for entry in made.entries()] == [
        ("one/review", False),
        ("two/review", True),
        ("user/review", True),
        ("shipped/review", True),
    ]
    assert made.find("review").ensemble.description == "of one"
    for entry in made.entries():
        assert made.find(entry.qualified).origin == entry.origin


def test_an_ensemble_means_its_own_neighbours_first_and_never_those_of_another_project(tmp_path: Path) -> None:
    put_ensemble(of_project(tmp_path, "one"), "review", "of one")
    put_ensemble(of_project(tmp_path, "one"), "only-one")
    put_ensemble(of_project(tmp_path, "two"), "review", "of two")
    put_ensemble(tmp_path / "user", "review", "the user's")
    put(tmp_path / "shipped/review.yaml", ensemble("review", "the package's"))
    put(tmp_path / "shipped/more.yaml", ensemble("more"))
    made = library(tmp_path, "one", "two")
    two, user = made.find("two/review").origin, made.find("user/review").origin
    shipped = made.find("shipped/review").origin
    assert made.find("review", two).ensemble.description == "of two"
    assert made.find("review", user).ensemble.description == "the user's"
    assert made.find("review", shipped).ensemble.description == "the package's"
    assert made.find("more", two).origin.tier == "shipped"
    with pytest.raises(NotFound):
        made.find("only-one", two)
    with pytest.raises(NotFound):
        made.find("only-one", user)
    assert made.find("two/review", two).ensemble.description == "of two"
    assert made.find("user/review", two).origin.tier == "user"
    assert made.find("shipped/more", two).origin.tier == "shipped"
    assert made.find("one/only-one", user).origin.project == tmp_path / "one"
    for whose in (two, shipped):
        with pytest.raises(NotFound, match="ensembles of other projects are not run from a project"):
            made.find("one/only-one", whose)
    assert made.find("one/only-one").origin.project == tmp_path / "one"
    with pytest.raises(NotFound, match="there is two, user, shipped"):
        made.find("elsewhere/review", two)


def test_a_name_that_several_projects_have_means_the_caller_its_own(tmp_path: Path) -> None:
    for project in ("work/app", "play/app"):
        put_ensemble(of_project(tmp_path, project), "review", project)
    put_ensemble(of_project(tmp_path, "work/app"), "private")
    made = library(tmp_path, "work/app", "play/app")
    play = made.find("play/app/review").origin
    assert made.find("app/review", play).ensemble.description == "play/app"
    with pytest.raises(NotFound, match="not run from a project"):
        made.find("work/app/review", play)
    with pytest.raises(NotFound, match="among 1"):
        made.find("app/private", play)


def test_names_that_are_hidden_are_suggested_once(tmp_path: Path) -> None:
    for base in (of_project(tmp_path, "app"), tmp_path / "user"):
        put_ensemble(base, "review")
    with pytest.raises(NotFound, match=r"there is review($|;)") as refused:
        library(tmp_path, "app").find("reviews")
    assert refused.value.data == {"near": ["review"], "count": 1}


def test_what_cannot_be_run_is_listed_with_the_line(tmp_path: Path) -> None:
    base = tmp_path / "user"
    text = (
        "name: {}\nagents:\n"
        "  - name: a\n    script: x\n    depends_on: {}\n"
        "  - {{name: b, script: x, depends_on: [a]}}\n"
    )
    circle = put(base / "ensembles/circle.yaml", text.format("circle", "[b]"))
    dangling = put(base / "ensembles/dangling.yaml", text.format("dangling", "[c]"))
    age(circle)
    age(dangling)
    for _ in range(2):
        entries = {entry.name: entry for entry in library(tmp_path).entries()}
        assert {name: entry.agents for name, entry in entries.items()} == {"circle": 2, "dangling": 2}
        assert (entries["circle"].problem or "").startswith(f'{circle}:5: agents[0] "a": agents depend on each other')
        assert (entries["dangling"].problem or "").startswith(f'{dangling}:5: agents[0] "a": depends on "c"')
    assert library(tmp_path).find("circle").ensemble.name == "circle"


def test_projects_whose_directories_are_called_alike_are_told_apart(tmp_path: Path) -> None:
    projects = ("work/app", "play/app", "user", "work/other")
    for project in projects:
        put_ensemble(of_project(tmp_path / "top", project), "review", project)
    put_ensemble(tmp_path / "top/user/config", "review", "the user's")
    made = library(tmp_path / "top", *projects)
    labels = [entry.qualified for entry in made.entries() if entry.origin.tier == "project"]
    assert labels == ["work/app/review", "play/app/review", "top/user/review", "other/review"]
    assert [made.find(label).ensemble.description for label in labels] == list(projects)
    assert made.find("app/review").ensemble.description == "work/app"
    with pytest.raises(NotFound):
        made.find("user/review")


def test_a_broken_file_is_listed_with_its_line_and_hides_nothing(tmp_path: Path) -> None:
    base = of_project(tmp_path, "app")
    broken = put(base / "ensembles/review.yaml", "name: review\nagents:\n  - {name: a, modell: x}\n")
    put_ensemble(base, "review", file="z-the-good-one.yaml")
    put_ensemble(base, "other")
    put(base / "ensembles/torn.yaml", "name: [\n")
    entries = {entry.origin.file.name: entry for entry in library(tmp_path, "app").entries()}
    assert set(entries) == {"review.yaml", "z-the-good-one.yaml", "other.yaml", "torn.yaml"}
    assert entries["review.yaml"].problem is not None
    assert entries["review.yaml"].problem.startswith(f"{broken}:3: ")
    assert entries["review.yaml"].shadowed
    assert entries["review.yaml"].name == "review"
    assert entries["z-the-good-one.yaml"].problem is None
    assert not entries["z-the-good-one.yaml"].shadowed
    assert entries["torn.yaml"].name == "torn"
    made = library(tmp_path, "app")
    assert made.find("review").origin.file.name == "z-the-good-one.yaml"
    with pytest.raises(InvalidConfig) as refused:
        made.find("torn")
    assert refused.value.data is not None
    assert refused.value.data["line"] in (1, 2)


def test_what_is_broken_in_a_project_is_not_silently_taken_from_elsewhere(tmp_path: Path) -> None:
    put(of_project(tmp_path, "app") / "ensembles/review.yaml", "name: review\nagents: nobody\n")
    put_ensemble(tmp_path / "user", "review")
    made = library(tmp_path, "app")
    with pytest.raises(InvalidConfig, match=r"review\.yaml:2"):
        made.find("review")
    assert [(entry.qualified, entry.shadowed) for entry in made.entries()] == [
        ("app/review", False),
        ("user/review", True),
    ]
    assert made.find("user/review").origin.tier == "user"


def test_two_files_of_one_name_in_a_directory_are_a_problem_of_the_second(tmp_path: Path) -> None:
    first = put_ensemble(tmp_path / "user", "review", file="a.yaml")
    put_ensemble(tmp_path / "user", "review", file="b.yaml")
    one, two = library(tmp_path).entries()
    assert (one.problem, one.shadowed) == (None, False)
    assert two.problem is not None
    assert str(first) in two.problem
    assert two.shadowed
    assert library(tmp_path).find("review").origin.file == first


def test_an_unknown_name_is_answered_with_those_like_it_and_their_number(tmp_path: Path) -> None:
    for name in ("review-code", "review-docs", "plan"):
        put_ensemble(tmp_path / "user", name)
    broken = put(tmp_path / "user/ensembles/broken.yaml", "name: reviewer\nagents: 1\n")
    with pytest.raises(NotFound) as refused:
        library(tmp_path).find("review-coed")
    message = refused.value.message
    assert '"review-coed" among 3' in message
    assert "review-code" in message
    assert "plan" not in message
    assert f"{broken}:2" in message
    assert refused.value.data == {"near": ["review-code", "review-docs"], "count": 3}


def test_an_unknown_name_in_an_empty_library_is_answered_with_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as refused:
        library(tmp_path, "app").find("x")
    assert str(of_project(tmp_path, "app") / "ensembles") in refused.value.message


@pytest.mark.parametrize("name", ["", "/", "a/", "/a", "../review", "app/../review", "no/review", "\0", "x" * 5000])
def test_names_that_mean_nothing_are_not_found(tmp_path: Path, name: str) -> None:
    put_ensemble(of_project(tmp_path, "app"), "review")
    with pytest.raises(NotFound):
        library(tmp_path, "app").find(name)


def test_hidden_files_and_others_are_no_ensembles(tmp_path: Path) -> None:
    base = of_project(tmp_path, "app")
    put_ensemble(base, "review")
    for name in (".review.yaml", "review.yaml~", "review.yaml.bak", "notes.md", ".git/x.yaml", "scripts/x.py"):
        put(base / "ensembles" / name, "name: [")
    put(tmp_path / "shipped/config.yaml", "model_profiles: {}\n")
    put(tmp_path / "shipped/scripts/x.yaml", "name: [")
    assert set(by_name(library(tmp_path, "app"))) == {"review"}


def test_a_file_is_read_anew_when_it_has_changed_and_gone_when_it_is(tmp_path: Path) -> None:
    made = library(tmp_path)
    path = put_ensemble(tmp_path / "user", "review", "before")
    assert by_name(made)["review"].description == "before"
    assert made.find("review").ensemble.description == "before"
    put_ensemble(tmp_path / "user", "review", "after!")
    assert by_name(made)["review"].description == "after!"
    assert made.find("review").ensemble.description == "after!"
    path.unlink()
    assert made.entries() == []
    with pytest.raises(NotFound):
        made.find("review")


def test_all_of_a_file_is_there_for_those_who_show_or_edit_it(tmp_path: Path) -> None:
    text = "# kept\n" + ensemble("review", "what")
    put(tmp_path / "user/ensembles/review.yaml", text)
    found, loaded, read = library(tmp_path).loaded("review")
    assert read == text
    assert loaded.document["description"] == "what"
    assert loaded.positions.line(["description"]) == 3
    assert found.ensemble == loaded.ensemble


def test_the_knowledge_graph_is_that_of_the_ensembles_own_tier(tmp_path: Path) -> None:
    put_ensemble(of_project(tmp_path, "app"), "review")
    put_ensemble(tmp_path / "user", "plan")
    config = of_project(tmp_path, "app") / "config.yaml"
    put(config, "plexus: {enabled: true, context_id: mine, server_command: plexus-mcp-server}\n")
    made = library(tmp_path, "app")
    plexus = made.find("review").plexus
    assert plexus is not None
    assert (plexus.enabled, plexus.context_id, plexus.server_command) == (True, "mine", "plexus-mcp-server")
    other = made.find("plan").plexus
    assert other is None or not other.enabled


def test_artifacts_are_the_projects_or_the_users(tmp_path: Path) -> None:
    put_ensemble(of_project(tmp_path, "app"), "review")
    put_ensemble(tmp_path / "user", "plan")
    put(tmp_path / "shipped/extra.yaml", ensemble("extra"))
    made = library(tmp_path, "app")
    of_app, of_user = of_project(tmp_path, "app") / "artifacts", tmp_path / "data/artifacts"
    assert made.artifact_roots() == [of_app, of_user]
    assert made.artifact_root(made.find("review").origin) == of_app
    assert made.artifact_root(made.find("plan").origin) == of_user
    assert made.artifact_root(made.find("extra").origin) == of_user


def test_several_threads_see_the_same(tmp_path: Path) -> None:
    for number in range(40):
        put_ensemble(tmp_path / "user", f"e{number}")
    made = library(tmp_path)
    counts: list[int] = []

    def look() -> None:
        counts.append(len([entry for entry in made.entries() if entry.problem is None]))
        assert made.find("e7").ensemble.name == "e7"
        counts.append(len(made.entries()))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [40] * 8


def test_the_same_project_twice_is_one(tmp_path: Path) -> None:
    put_ensemble(of_project(tmp_path, "app"), "review")
    assert settings(tmp_path, "app", "app").projects == (tmp_path / "app", tmp_path / "app")
    assert set(by_name(library(tmp_path, "app", "app"))) == {"review"}
