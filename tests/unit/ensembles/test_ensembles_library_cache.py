# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a process knows of ensembles from earlier ones, and what becomes of it when files or the cache change."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidConfig, NotFound
from mcpd.servers.ensembles.format.loading import load
from mcpd.servers.ensembles.library import summaries
from mcpd.servers.ensembles.library.summaries import FILE, MOST
from mcpd.servers.ensembles.library.tiers import Walk
from tests.unit.ensembles.library_parts import age, by_name, ensemble, library, of_project, put_ensemble

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were parsed."""
    files: list[str] = []

    def counted(text: str, file: str) -> Any:
        files.append(file.rpartition("/")[2])
        return load(text, file)

    monkeypatch.setattr(summaries, "load", counted)
    return files


def _settled(base: Path, *names: str) -> list[Path]:
    paths = [put_ensemble(base, name, f"about {name}") for name in names]
    for path in paths:
        age(path)
    return paths


def test_another_process_parses_only_what_has_changed(tmp_path: Path, parsed: list[str]) -> None:
    _, two = _settled(tmp_path / "user", "one", "two")
    first = library(tmp_path).entries()
    assert sorted(parsed) == ["one.yaml", "two.yaml"]
    parsed.clear()
    assert library(tmp_path).entries() == first
    assert parsed == []
    two.write_text(ensemble("two", "another"))
    age(two)
    assert by_name(library(tmp_path))["two"].description == "another"
    assert parsed == ["two.yaml"]


def test_what_is_wrong_with_a_file_is_known_to_another_process(tmp_path: Path, parsed: list[str]) -> None:
    (path,) = _settled(tmp_path / "user", "one")
    path.write_text("name: one\nagents: []\n")
    age(path)
    first = library(tmp_path).entries()
    assert first[0].problem is not None
    parsed.clear()
    assert library(tmp_path).entries() == first
    assert parsed == []


def test_processes_of_several_projects_do_not_forget_for_each_other(tmp_path: Path, parsed: list[str]) -> None:
    _settled(of_project(tmp_path, "a"), "one")
    _settled(of_project(tmp_path, "b"), "two")
    in_a, in_b = library(tmp_path, "a"), library(tmp_path, "b")
    in_a.entries()
    in_b.entries()
    parsed.clear()
    library(tmp_path, "a").entries()
    library(tmp_path, "b").entries()
    assert parsed == []


def test_a_file_in_the_place_of_another_of_its_size_and_time_is_read(tmp_path: Path) -> None:
    (path,) = _settled(tmp_path / "user", "one")
    before = path.stat()
    assert by_name(library(tmp_path))["one"].description == "about one"
    other = path.with_name("other")
    other.write_text(ensemble("one", "about two"))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert after.st_ino != before.st_ino
    assert by_name(library(tmp_path))["one"].description == "about two"


def test_a_file_that_says_it_is_as_old_as_before_is_read(tmp_path: Path) -> None:
    (path,) = _settled(tmp_path / "user", "one")
    before = path.stat()
    made = library(tmp_path)
    assert by_name(made)["one"].description == "about one"
    path.write_text(ensemble("one", "about two"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert made.find("one").ensemble.description == "about two"
    assert by_name(made)["one"].description == "about two"


def test_what_was_written_this_moment_is_not_taken_for_what_it_will_be(tmp_path: Path, parsed: list[str]) -> None:
    path = put_ensemble(tmp_path / "user", "one")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 3_600_000_000_000))
    made = library(tmp_path)
    for number in range(1, 4):
        made.entries()
        assert len(parsed) == number
    library(tmp_path).entries()
    assert len(parsed) == 4


def _cache(tmp_path: Path) -> Path:
    _settled(tmp_path / "user", "one")
    library(tmp_path).entries()
    path = tmp_path / "cache" / FILE
    assert path.stat().st_mode & 0o777 == 0o600
    return path


def _with_summary(**changed: object) -> Callable[[bytes], bytes]:
    """The cache with other words about its one file."""

    def change(content: bytes) -> bytes:
        document = json.loads(content)
        (record,) = document["files"].values()
        record["summary"].update(changed)
        return json.dumps(document).encode()

    return change


def _unsigned(content: bytes) -> bytes:
    document = json.loads(content)
    (record,) = document["files"].values()
    record["signature"] = [1, 2]
    return json.dumps(document).encode()


def _crowded(content: bytes) -> bytes:
    document = json.loads(content)
    (record,) = document["files"].values()
    document["files"].update({f"/{number}": record for number in range(MOST + 1)})
    return json.dumps(document).encode()


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut": lambda content: content[: len(content) // 2],
    "binary": lambda _: bytes(range(256)),
    "a list": lambda _: b"[]",
    "deep": lambda _: b"[" * 100_000,
    "another version": lambda content: json.dumps({**json.loads(content), "version": "0 0.0.1"}).encode(),
    "a name that is none": _with_summary(name="../x"),
    "a number for a text": _with_summary(description=1),
    "too long a text": _with_summary(problem="x" * 100_000),
    "a signature that is none": _unsigned,
    "too many": _crowded,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_cache_that_is_of_no_use_costs_time_only(tmp_path: Path, parsed: list[str], name: str) -> None:
    cache = _cache(tmp_path)
    cache.write_bytes(BROKEN[name](cache.read_bytes()))
    parsed.clear()
    (entry,) = library(tmp_path).entries()
    assert (entry.description, entry.problem) == ("about one", None)
    assert parsed == ["one.yaml"]
    library(tmp_path).entries()
    assert parsed == ["one.yaml"]


@given(cut=st.integers(0, 400), junk=st.binary(max_size=40))
def test_no_cache_changes_what_is_there(tmp_path: Path, cut: int, junk: bytes) -> None:
    cache = _cache(tmp_path)
    content = cache.read_bytes()
    cache.write_bytes(content[:cut] + junk + content[cut + len(junk) :])
    assert library(tmp_path).find("one").ensemble.description == "about one"


def test_a_cache_that_lies_about_a_name_makes_no_other_ensemble_of_it(tmp_path: Path) -> None:
    cache = _cache(tmp_path)
    cache.write_bytes(cache.read_bytes().replace(b'"name":"one"', b'"name":"two"'))
    made = library(tmp_path)
    with pytest.raises(NotFound):
        made.find("two")


def test_without_a_place_for_a_cache_all_is_the_same(tmp_path: Path, parsed: list[str]) -> None:
    (tmp_path / "cache").write_text("in the way")
    _settled(tmp_path / "user", "one")
    made = library(tmp_path)
    assert set(by_name(made)) == {"one"}
    assert set(by_name(made)) == {"one"}
    assert parsed == ["one.yaml"]
    assert (tmp_path / "cache").read_text() == "in the way"


def test_a_fifo_for_a_cache_stops_nobody(tmp_path: Path) -> None:
    _settled(tmp_path / "user", "one")
    (tmp_path / "cache").mkdir()
    os.mkfifo(tmp_path / "cache" / FILE)
    assert set(by_name(library(tmp_path))) == {"one"}


def test_files_that_are_gone_leave_the_cache(tmp_path: Path) -> None:
    one, _ = _settled(tmp_path / "user", "one", "two")
    library(tmp_path).entries()
    one.unlink()
    _settled(tmp_path / "user", "three")
    library(tmp_path).entries()
    known = json.loads((tmp_path / "cache" / FILE).read_bytes())["files"]
    assert {path.rpartition("/")[2] for path in known} == {"two.yaml", "three.yaml"}


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tiers whose files were looked at."""
    kinds: list[str] = []

    def counted(tier: Any) -> Any:
        kinds.append(tier.kind)
        return Walk(tier)

    monkeypatch.setattr(summaries, "Walk", counted)
    return kinds


def test_what_an_ensemble_runs_again_and_again_is_found_without_looking_at_all_files(
    tmp_path: Path, walked: list[str]
) -> None:
    base = of_project(tmp_path, "app")
    one, two, _ = _settled(base, "one", "two", "three")
    made = library(tmp_path, "app")
    whose = made.find("one").origin
    walked.clear()
    for name in ("two", "three", "app/two") * 10:
        assert made.find(name, whose).ensemble.name == name.rpartition("/")[2]
    assert walked == []
    two.write_text(ensemble("two", "another"))
    assert made.find("two", whose).ensemble.description == "another"
    assert walked
    one.write_text(ensemble("four"))
    two.unlink()
    with pytest.raises(NotFound):
        made.find("two", whose)
    assert made.find("four", whose).origin.file == one


@pytest.mark.parametrize("look", ["find", "entries", "state", "refresh"])
def test_what_a_name_means_to_an_ensemble_is_found_out_anew_by_each_look_at_all_files(
    tmp_path: Path, look: str
) -> None:
    base = of_project(tmp_path, "app")
    first, second, _ = _settled(base, "a", "b", "caller")
    made = library(tmp_path, "app")
    whose = made.find("caller").origin
    assert made.find("b", whose).origin.file == second
    first.write_text(ensemble("b"))
    made.find("caller") if look == "find" else getattr(made, look)()
    assert made.find("b", whose).origin.file == first


def test_a_symlink_in_the_place_of_what_was_found_is_not_followed(tmp_path: Path) -> None:
    base = of_project(tmp_path, "app")
    one, two = _settled(base, "one", "two")
    made = library(tmp_path, "app")
    whose = made.find("one").origin
    two.rename(tmp_path / "private.yaml")
    two.symlink_to(tmp_path / "private.yaml")
    with pytest.raises(InvalidConfig, match="not followed"):
        made.find("two", whose)
    assert made.find("one", whose).origin.file == one
