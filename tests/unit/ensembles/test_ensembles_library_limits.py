# SPDX-License-Identifier: LGPL-2.1-or-later
"""Projects whose files take long to read: what that costs a look, and what is kept of it."""

from __future__ import annotations

from itertools import count
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import InvalidConfig, NotFound
from mcpd.servers.ensembles.format.loading import load
from mcpd.servers.ensembles.format.reading import MAX_SIZE
from mcpd.servers.ensembles.library import library as library_module
from mcpd.servers.ensembles.library import summaries
from mcpd.servers.ensembles.library.library import Library
from mcpd.servers.ensembles.library.tiers import Tier, Walk
from tests.unit.ensembles.library_parts import age, ensemble, library, of_project, put, put_ensemble, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LARGE = 15
EACH = 2.0
"""Seconds that reading a file takes here."""
OF_PROJECT = 3
"""Files that are read before five seconds are over."""


class Slow:
    """A clock that goes on by :data:`EACH` while a file is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: list[str] = []
        self.on_read: Callable[[], None] = lambda: None

        def slow(text: str, file: str) -> Any:
            self.on_read()
            self.read.append(file.rpartition("/")[2])
            return load(text, file)

        monkeypatch.setattr(summaries, "load", slow)

    def __call__(self) -> float:
        """Seconds."""
        return len(self.read) * EACH


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    """The clock of the libraries of a test."""
    return Slow(monkeypatch)


def _large(base: Path) -> None:
    """Files which take long, and whose names come first."""
    for number in range(LARGE):
        name = f"a{number}"
        age(put(base / f"ensembles/{name}.yaml", ensemble(name) + "#" * (1000 + number)))


def _left_out(made: Library) -> list[str]:
    return [entry.name for entry in made.entries() if summaries.LEFT_OUT in (entry.problem or "")]


def test_files_that_take_long_hide_neither_smaller_ones_nor_those_elsewhere(tmp_path: Path, slow: Slow) -> None:
    base = of_project(tmp_path, "app")
    _large(base)
    age(put_ensemble(base, "small"))
    age(put_ensemble(tmp_path / "user", "mine"))
    made = Library(settings(tmp_path, "app"), slow)
    assert made.find("small").ensemble.name == "small"
    assert slow.read == ["small.yaml", "a0.yaml", "a1.yaml", "mine.yaml"]
    assert made.find("mine").ensemble.name == "mine"
    entries = {entry.name: entry for entry in made.entries()}
    assert len(entries) == LARGE + 2
    left = [entry for entry in entries.values() if entry.problem is not None]
    assert all(str(entry.problem) == f"{entry.origin.file}: {summaries.LEFT_OUT}" for entry in left)
    assert left


def test_what_was_left_out_is_read_by_later_looks_until_all_is_known(tmp_path: Path, slow: Slow) -> None:
    _large(of_project(tmp_path, "app"))
    made = Library(settings(tmp_path, "app"), slow)
    for looks in range(1, LARGE // OF_PROJECT + 1):
        assert len(_left_out(made)) == LARGE - looks * OF_PROJECT
    assert slow.read == [f"a{number}.yaml" for number in range(LARGE)]
    assert _left_out(Library(settings(tmp_path, "app"), slow)) == []
    assert len(slow.read) == LARGE


def test_the_users_own_have_more_time(tmp_path: Path, slow: Slow) -> None:
    _large(tmp_path / "user")
    assert len(_left_out(Library(settings(tmp_path), slow))) == LARGE - 5


def test_what_has_been_read_is_kept_when_the_look_is_cut_off(tmp_path: Path, slow: Slow) -> None:
    _large(of_project(tmp_path, "app"))

    def cut_off() -> None:
        if len(slow.read) == 2:
            raise KeyboardInterrupt

    slow.on_read = cut_off
    with pytest.raises(KeyboardInterrupt):
        Library(settings(tmp_path, "app"), slow).entries()
    slow.on_read = lambda: None
    Library(settings(tmp_path, "app"), slow).entries()
    assert slow.read == [f"a{number}.yaml" for number in range(2 + OF_PROJECT)]


def test_a_file_that_was_left_out_is_read_when_it_is_asked_for(tmp_path: Path, slow: Slow) -> None:
    base = of_project(tmp_path, "app")
    _large(base)
    age(put(base / "ensembles/other.yaml", ensemble("named-otherwise") + "#" * 5000))
    made = Library(settings(tmp_path, "app"), slow)
    assert made.find("a14").ensemble.name == "a14"
    with pytest.raises(InvalidConfig, match=r'other\.yaml: not looked at: .*; its ensemble is "named-otherwise"'):
        made.find("other")
    with pytest.raises(NotFound, match=r"cannot be read: .*not looked at"):
        made.find("nobody")


def test_a_file_that_cannot_be_loaded_is_parsed_once_however_often_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path / "user/ensembles/broken.yaml", "name: broken\nagents: 1\n")
    age(path)
    made = library(tmp_path)
    with pytest.raises(InvalidConfig) as first:
        made.find("broken")
    monkeypatch.setattr(library_module, "load", lambda *_: pytest.fail("parsed again"))
    with pytest.raises(InvalidConfig) as again:
        made.find("broken")
    assert again.value is not first.value
    assert (again.value.message, again.value.data) == (first.value.message, first.value.data)
    monkeypatch.undo()
    put(path, ensemble("broken"))
    assert made.find("broken").ensemble.name == "broken"


class Numbers:
    """Tells how many looks were asked for or begun."""

    def __init__(self, start: int) -> None:
        self._numbers = count(start)
        self._changed = Condition()
        self._given = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        with self._changed:
            self._given += 1
            self._changed.notify_all()
            return next(self._numbers)

    def wait(self, given: int) -> None:
        """Until *given* numbers were given."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._given >= given, 30)


def test_those_who_wait_for_a_look_share_the_next(tmp_path: Path, slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    age(put_ensemble(tmp_path / "user", "one"))
    numbers = Numbers(1)
    monkeypatch.setattr(summaries, "count", lambda start: numbers)
    walks: list[str] = []

    def counted(tier: Tier) -> Any:
        walks.append(tier.kind)
        return Walk(tier)

    monkeypatch.setattr(summaries, "Walk", counted)
    made = Library(settings(tmp_path), slow)
    seen: list[list[str]] = []

    def ask() -> None:
        seen.append([entry.name for entry in made.entries()])

    others = [Thread(target=ask) for _ in range(4)]

    def in_the_middle() -> None:
        slow.on_read = lambda: None
        age(put_ensemble(tmp_path / "user", "two"))
        for thread in others:
            thread.start()
        numbers.wait(2 + len(others))

    slow.on_read = in_the_middle
    ask()
    for thread in others:
        thread.join(30)
    assert walks.count("user") == 2
    assert seen == [["one"], *[["one", "two"]] * len(others)]


def test_what_is_no_text_or_too_large_is_known_to_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "user/ensembles"
    latin = put(base / "latin.yaml", "")
    latin.write_bytes(b"\xff")
    age(latin)
    age(put(base / "large.yaml", "#" * (MAX_SIZE + 1)))
    first = library(tmp_path).entries()
    assert ["not UTF-8" in (entry.problem or "") for entry in first] == [False, True]
    assert "larger than 256 KiB" in (first[0].problem or "")
    monkeypatch.setattr(Tier, "data", lambda *_: pytest.fail("read again"))
    assert library(tmp_path).entries() == first


def test_profiles_that_are_large_together_are_not_read_but_the_smallest(tmp_path: Path) -> None:
    base = of_project(tmp_path, "app")
    put_ensemble(base, "review")
    text = "name: {}\nprovider: mock\nmodel: m\n#{}\n"
    for number in range(5):
        put(base / f"profiles/a{number}.yaml", text.format(f"a{number}", "x" * (MAX_SIZE // 3 + number)))
    put(base / "profiles/small.yaml", text.format("small", ""))
    made = library(tmp_path, "app")
    whose = made.find("review").origin
    assert {each.name for each in made.profiles() if each.profile is not None} == {"a0", "a1", "small"}
    assert made.profile("small", whose).model == "m"
    with pytest.raises(InvalidConfig, match=r"a2\.yaml: not looked at: .* more than 256 KiB of profiles"):
        made.profile("a3", whose)
