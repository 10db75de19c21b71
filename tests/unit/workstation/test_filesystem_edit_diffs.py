# SPDX-License-Identifier: LGPL-2.1-or-later
"""The diffs of filesystem_edit: git and patch make the new file of the old one with them."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mcpd.servers.diffs import Change, Diff, compose, unified

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

LINES = st.text(st.sampled_from("ab\n\n\n\r"), max_size=60)
SPLICES = st.lists(st.tuples(st.integers(0, 80), st.integers(0, 20), LINES), min_size=1, max_size=5)


def spliced(text: str, splices: list[tuple[int, int, str]]) -> tuple[str, list[Change]]:
    """*text* after all of *splices*, and the changes."""
    changes: list[Change] = []
    for start, length, new in splices:
        start = min(start, len(text))  # noqa: PLW2901
        end = min(start + length, len(text))
        text = text[:start] + new + text[end:]
        changes = compose(changes, [Change(start, end, start, start + len(new))])
    return text, changes


def diff_of(old: str, new: str, changes: list[Change], path: str = "file") -> Diff:
    return unified(old, new, changes, path, most=1 << 30)


def applied(directory: Path, command: list[str], old: str, diff: str, name: str = "file") -> str:
    path = directory / name
    path.write_bytes(old.encode())
    subprocess.run(command, cwd=directory, input=diff.encode(), check=True, capture_output=True)
    return path.read_bytes().decode()


GIT = ["git", "apply", "--whitespace=nowarn", "-"]
PATCH = ["patch", "--binary", "--fuzz=0", "-p1"]


@given(old=LINES, splices=SPLICES)
def test_changes_that_follow_each_other_are_composed(old: str, splices: list[tuple[int, int, str]]) -> None:
    new, changes = spliced(old, splices)
    parts, behind = [], 0
    for change in changes:
        assert behind <= change.start <= change.end
        parts += [old[behind : change.start], new[change.new_start : change.new_end]]
        behind = change.end
    assert "".join([*parts, old[behind:]]) == new


@pytest.mark.parametrize("command", [GIT, PATCH], ids=["git", "patch"])
@given(old=LINES.filter(bool), splices=SPLICES)
def test_the_diff_makes_the_new_file(
    tmp_path: Path, command: list[str], old: str, splices: list[tuple[int, int, str]]
) -> None:
    new, changes = spliced(old, splices)
    diff = diff_of(old, new, changes)
    assert bool(diff.text) == (old != new)
    if diff.text:
        assert applied(tmp_path, command, old, diff.text) == new
        lines = diff.text.split("\n")[2:]
        assert sum(line.startswith("+") for line in lines) == diff.added
        assert sum(line.startswith("-") for line in lines) == diff.removed


@given(
    edits=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 30), st.integers(0, 12)), min_size=1, max_size=8),
    text=st.sampled_from(["line {}\n", "same\n", "{}, without an end "]),
)
def test_changes_far_from_each_other(tmp_path: Path, edits: list[tuple[int, int, int]], text: str) -> None:
    old = "".join(text.format(number) for number in range(100))
    new, changes = spliced(old, [(3 * start, length, "new\n" * count) for start, length, count in edits])
    assume(new != old)
    diff = diff_of(old, new, changes)
    assert applied(tmp_path, GIT, old, diff.text) == new


def test_hunks_have_three_lines_around_and_are_merged_where_they_meet() -> None:
    old = "".join(f"{number}\n" for number in range(1, 41))
    new, changes = spliced(old, [(old.index(f"{number}\n"), 2, f"x{number}") for number in (30, 17, 10)])
    assert diff_of(old, new, changes).text == (
        "--- a/file\n+++ b/file\n"
        "@@ -7,14 +7,14 @@\n 7\n 8\n 9\n-10\n+x10\n 11\n 12\n 13\n 14\n 15\n 16\n-17\n+x17\n 18\n 19\n 20\n"
        "@@ -27,7 +27,7 @@\n 27\n 28\n 29\n-30\n+x30\n 31\n 32\n 33\n"
    )


def test_what_stayed_within_a_replaced_piece_is_no_change() -> None:
    old = "".join(f"{number}\n" for number in range(1, 31))
    new = old.replace("5\n", "five\n", 1).replace("\n9\n", "\nnine\n", 1)
    text = diff_of(old, new, [Change(0, len(old), 0, len(new))]).text
    assert text.split("\n")[6:12] == ["-5", "+five", " 6", " 7", " 8", "-9"]


@pytest.mark.parametrize("name", ["a b", "ü.txt", 'quo"te', "back\\slash", "new\nline", "tab\t", "sub/dir/x y", "-x"])
def test_names_that_must_be_quoted(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    diff = diff_of("a\n", "b\n", [Change(0, 1, 0, 1)], name)
    for command in (GIT, PATCH):
        assert applied(tmp_path, command, "a\n", diff.text, name) == "b\n"


def test_a_diff_is_cut_behind_a_line_and_counted_whole() -> None:
    old, new = "a\n" * 1000, "b\n" * 1000
    diff = unified(old, new, [Change(0, len(old), 0, len(new))], "file", most=100)
    assert diff.truncated
    assert len(diff.text) <= 100
    assert diff.text.endswith("\n-a\n")
    assert (diff.added, diff.removed) == (1000, 1000)


@pytest.mark.parametrize("line", ["x", "x\n", "xy" * 50 + "\n"])
def test_many_changes_take_no_longer_than_reading(line: str) -> None:
    count = 1_000_000 // len(line)
    step = max(1, count // 50_000)
    old = line * count
    changes = [
        Change(at * len(line), at * len(line) + 1, at * len(line), at * len(line) + 1) for at in range(0, count, step)
    ]
    new = "".join(("y" if at % step == 0 else line[0]) + line[1:] for at in range(count))
    diff = unified(old, new, changes, "file", most=1000)
    assert diff.added == diff.removed == (len(changes) if "\n" in line else 1)
