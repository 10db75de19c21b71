# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is between two texts of a file, found in a time that no file can make long."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from mcpd.servers.diffs import Change, unified

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")
_MOST: Final = 8 * 1024 * 1024
"""Characters; two files of ensembles make less."""


def difference(old: str, new: str, file: str) -> str:
    """What is between two texts of *file*, as ``diff -u`` shows it; empty if nothing is."""
    return unified(old, new, _changes(old, new), file.lstrip("/"), most=_MOST).text


def _changes(old: str, new: str) -> Iterator[Change]:
    """What lies between the lines that are in both texts exactly once, as far as these are in the same order.

    This is patience diff; :mod:`difflib` alone takes minutes for texts that repeat many lines.
    """
    lines, new_lines = _LINE.findall(old), _LINE.findall(new)
    at, new_at = _offsets(lines), _offsets(new_lines)
    start = new_start = 0
    for line, new_line in [*_anchors(lines, new_lines), (len(lines), len(new_lines))]:
        if at[line] > start or new_at[new_line] > new_start:
            yield Change(start, at[line], new_start, new_at[new_line])
        if line < len(lines):
            start, new_start = at[line + 1], new_at[new_line + 1]


def _anchors(lines: Sequence[str], new_lines: Sequence[str]) -> list[tuple[int, int]]:
    """The numbers of such lines in both: a longest sequence that rises in both."""
    often, new_often = Counter(lines), Counter(new_lines)
    place = {line: number for number, line in enumerate(new_lines)}
    lasts: list[int] = []
    """The smallest number that a rising sequence of each length can end with."""
    ends: list[tuple[int, int]] = []
    before: dict[tuple[int, int], tuple[int, int] | None] = {}
    for number, line in enumerate(lines):
        if often[line] != 1 or new_often[line] != 1:
            continue
        pair = (number, place[line])
        length = bisect_left(lasts, pair[1])
        if length == len(lasts):
            lasts.append(pair[1])
            ends.append(pair)
        else:
            lasts[length], ends[length] = pair[1], pair
        before[pair] = ends[length - 1] if length else None
    found: list[tuple[int, int]] = []
    step = ends[-1] if ends else None
    while step is not None:
        found.append(step)
        step = before[step]
    return found[::-1]


def _offsets(lines: Sequence[str]) -> list[int]:
    return list(accumulate(map(len, lines), initial=0))
