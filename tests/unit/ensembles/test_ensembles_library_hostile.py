# SPDX-License-Identifier: LGPL-2.1-or-later
"""Projects that were cloned from somebody: symlinks, pipes, sizes and numbers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidConfig, McpdError
from mcpd.servers.ensembles.library import tiers
from tests.unit.ensembles.library_parts import by_name, ensemble, library, of_project, put, put_ensemble

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.servers.ensembles.library.library import Entry

SECRET = "PRIVATE KEY: a secret: {"


def _ensembles(tmp_path: Path) -> Path:
    """The directory of a project that has one that is sound."""
    put_ensemble(of_project(tmp_path, "app"), "sound")
    return of_project(tmp_path, "app") / "ensembles"


def _problem(entry: Entry) -> str:
    assert entry.problem is not None
    return entry.problem


def test_a_symlink_shows_nothing_of_what_it_points_at(tmp_path: Path) -> None:
    directory = _ensembles(tmp_path)
    (directory / "x.yaml").symlink_to(put(tmp_path / "home/.ssh/id_rsa", SECRET))
    (directory / "inside.yaml").symlink_to("sound.yaml")
    made = library(tmp_path, "app")
    entries = by_name(made)
    assert set(entries) == {"sound", "x", "inside"}
    assert entries["sound"].problem is None
    for name in ("x", "inside"):
        assert "are not followed" in _problem(entries[name])
        assert "PRIVATE" not in _problem(entries[name])
        with pytest.raises(InvalidConfig, match="are not followed"):
            made.find(name)


def test_a_directory_that_leads_out_of_the_project_is_left_out(tmp_path: Path) -> None:
    directory = _ensembles(tmp_path)
    put(tmp_path / "home/ensembles/private.yaml", ensemble("private"))
    (directory / "out").symlink_to(tmp_path / "home/ensembles")
    (directory / "up").symlink_to("../../../home/ensembles")
    made = library(tmp_path, "app")
    entries = by_name(made)
    assert set(entries) == {"sound", "out", "up"}
    assert all("leads out" in _problem(entries[name]) for name in ("out", "up"))


@pytest.mark.parametrize("link", [".llm-orc", ".llm-orc/ensembles"])
def test_no_part_of_the_way_leads_out_of_the_project(tmp_path: Path, link: str) -> None:
    put(tmp_path / "home/x/ensembles/private.yaml", ensemble("private"))
    put(tmp_path / "home/x/private.yaml", ensemble("private"))
    put(tmp_path / "home/x/config.yaml", "model_profiles: {fast: {model: m, provider: mock}}")
    at = tmp_path / "app" / link
    at.parent.mkdir(parents=True)
    at.symlink_to(tmp_path / "home/x")
    made = library(tmp_path, "app")
    (entry,) = made.entries()
    assert "leads out" in _problem(entry)
    assert all(each.profile is None for each in made.profiles())


def test_directories_that_go_round_in_a_circle_are_seen_once(tmp_path: Path) -> None:
    directory = _ensembles(tmp_path)
    (directory / "again").symlink_to(".")
    put(directory / "below/more.yaml", ensemble("more"))
    (directory / "below/up").symlink_to("..")
    (directory / "loop").symlink_to("loop")
    assert set(by_name(library(tmp_path, "app"))) == {"sound", "more"}


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    directory = _ensembles(tmp_path)
    os.mkfifo(directory / "pipe.yaml")
    os.mkfifo(of_project(tmp_path, "app") / "config.yaml")
    entries = by_name(library(tmp_path, "app"))
    assert "not a regular file" in _problem(entries["pipe"])
    assert entries["sound"].problem is None
    assert library(tmp_path, "app").find("sound").plexus is None
    assert ["not a regular file" in (each.problem or "") for each in library(tmp_path, "app").profiles()] == [True]


def test_the_users_own_symlinks_are_followed(tmp_path: Path) -> None:
    put(tmp_path / "dotfiles/ensembles/one.yaml", ensemble("one"))
    two = put(tmp_path / "elsewhere/two.yaml", ensemble("two"))
    (tmp_path / "user").symlink_to(tmp_path / "dotfiles")
    (tmp_path / "dotfiles/ensembles/two.yaml").symlink_to(two)
    (tmp_path / "dotfiles/ensembles/gone.yaml").symlink_to("nowhere")
    (tmp_path / "dotfiles/ensembles/more").symlink_to(put(tmp_path / "more/three.yaml", ensemble("three")).parent)
    (tmp_path / "dotfiles/ensembles/loop").symlink_to("loop")
    os.mkfifo(tmp_path / "dotfiles/ensembles/pipe.yaml")
    entries = by_name(library(tmp_path))
    assert {name for name, entry in entries.items() if entry.problem is None} == {"one", "two", "three"}
    assert "symlink to nothing" in _problem(entries["gone"])
    assert "not a regular file" in _problem(entries["pipe"])


def test_files_that_are_too_large_or_no_text_are_problems_of_their_own(tmp_path: Path) -> None:
    directory = _ensembles(tmp_path)
    put(directory / "large.yaml", ensemble("large") + "#" * (1024 * 1024))
    (directory / "latin.yaml").write_bytes("description: naïve\n".encode("latin-1"))
    (directory / "zero.yaml").write_bytes(b"")
    entries = by_name(library(tmp_path, "app"))
    assert "larger than" in _problem(entries["large"])
    assert "not UTF-8" in _problem(entries["latin"])
    assert str(directory / "zero.yaml") in _problem(entries["zero"])
    assert entries["sound"].problem is None


def test_directories_count_to_a_depth(tmp_path: Path) -> None:
    directory = _ensembles(tmp_path)
    deep = directory.joinpath(*(f"d{number}" for number in range(tiers.MAX_DEPTH)))
    put(deep / "deepest.yaml", ensemble("deepest"))
    put(deep / "beyond/lost.yaml", ensemble("lost"))
    entries = by_name(library(tmp_path, "app"))
    assert set(entries) == {"sound", "deepest", "beyond"}
    assert f"{tiers.MAX_DEPTH} deep" in _problem(entries["beyond"])


@pytest.mark.parametrize("limit", ["MOST_FILES", "MOST_NAMES"])
def test_what_is_beyond_the_number_of_files_is_left_out_and_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(tiers, limit, 5)
    base = of_project(tmp_path, "app")
    for number in range(5):
        put_ensemble(base, f"e{number}", file=f"{number % 2}/e{number}.yaml")
    exact = library(tmp_path, "app")
    if limit == "MOST_FILES":
        assert [entry.problem for entry in exact.entries()] == [None] * 5
    put_ensemble(base, "e5", file="1/e5.yaml")
    put_ensemble(base, "e6", file="2/e6.yaml")
    put_ensemble(tmp_path / "user", "mine")
    entries = by_name(library(tmp_path, "app"))
    assert "more than 5 ensembles" in _problem(entries["ensembles"]) or "5 names" in _problem(entries["ensembles"])
    assert entries["mine"].problem is None
    sound = [entry for entry in entries.values() if entry.origin.tier == "project" and entry.problem is None]
    assert len(sound) <= 5


def test_names_of_files_that_are_no_text_are_listed(tmp_path: Path) -> None:
    directory = _ensembles(tmp_path)
    (directory / os.fsdecode(b"\xff.yaml")).write_text(ensemble("odd"))
    made = library(tmp_path, "app")
    assert made.find("odd").ensemble.name == "odd"
    assert set(by_name(library(tmp_path, "app"))) == {"sound", "odd"}


def test_names_of_files_write_nothing_on_a_terminal(tmp_path: Path) -> None:
    directory = _ensembles(tmp_path)
    for name in (b"\x1b[31m\n.yaml", b"\xff.yaml"):
        (directory / os.fsdecode(name)).write_text("name: [")
        os.mkfifo(directory / os.fsdecode(b"pipe" + name))
    made = library(tmp_path, "app")
    entries = [entry for entry in made.entries() if entry.name != "sound"]
    assert len(entries) == 4
    for entry in entries:
        assert entry.name.isprintable()
        assert _problem(entry).isprintable()
        with pytest.raises(InvalidConfig) as refused:
            made.find(entry.qualified)
        assert refused.value.message.isprintable()


@given(content=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode(errors="ignore"))))
def test_no_file_hides_the_others(tmp_path: Path, content: bytes) -> None:
    directory = _ensembles(tmp_path)
    (directory / "any.yaml").write_bytes(content)
    made = library(tmp_path, "app")
    entries = {entry.origin.file.name: entry for entry in made.entries()}
    assert entries["sound.yaml"].problem is None
    any_one = entries["any.yaml"]
    if any_one.problem is not None:
        assert str(directory / "any.yaml") in any_one.problem
        with pytest.raises(McpdError):
            made.find("app/any")
