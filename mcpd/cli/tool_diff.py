# SPDX-License-Identifier: LGPL-2.1-or-later
"""Differences of tools between two versions of a server, shown before an update is approved."""

from __future__ import annotations

import json
import re
from difflib import unified_diff
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.output import clean, escaped, paint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CONTEXT: Final = 3
"""Unchanged lines shown around each difference."""
MOST_LINES: Final = 1000
"""The most lines of a definition that are compared; comparing 20,000 lines would take seconds."""
_LINE_BREAK: Final = re.compile(r"((?<!\\)(?:\\\\)*\\n)")
"""An escaped line break in a JSON string."""


def diff_lines(change: Mapping[str, Any]) -> Iterator[str]:
    """Yield the unified diff of *change*, one of the changes from ``GetPending``, in colour on a terminal.

    Definitions with more than :data:`MOST_LINES` lines get one hunk, from the first to the last line that differs.
    """
    tool = clean(change.get("tool", ""))
    yield paint(f"tool {tool} ({clean(change.get('change', ''))})", "bold")
    before, after = (_lines(str(change.get(key) or "")) for key in ("before", "after"))
    colours = {"+": "green", "-": "red", "@": "cyan"}
    differences = unified_diff(before, after, "before", "after", lineterm="", n=CONTEXT)
    if before and after and max(len(before), len(after)) > MOST_LINES:
        sizes = f"{len(before):,} lines became {len(after):,}"
        yield paint(f"{sizes}, too many to compare: showing all from the first to the last that differs", "bold")
        differences = _one_difference(before, after)
    for at, line in enumerate(differences):
        yield paint(line, "bold" if at < _HEADER else colours.get(line[:1], ""))


_HEADER: Final = 2
"""Lines of the header of a unified diff."""


def _one_difference(before: list[str], after: list[str]) -> Iterator[str]:
    """Yield a unified diff with one hunk: everything between the common start and end of *before* and *after*."""
    start = _alike(before, after)
    end = _alike(before[start:][::-1], after[start:][::-1])
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    above, below = before[max(0, start - CONTEXT) : start], before[len(before) - end :][:CONTEXT]
    first, around = start - len(above) + 1, len(above) + len(below)
    yield from ("--- before", "+++ after", f"@@ -{first},{len(old) + around} +{first},{len(new) + around} @@")
    for mark, lines in ((" ", above), ("-", old), ("+", new), (" ", below)):
        yield from (mark + line for line in lines)


def _alike(one: list[str], other: list[str]) -> int:
    """Return the number of equal lines at the start of *one* and *other*."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def _lines(definition: str) -> list[str]:
    """Split *definition* into lines: one for each member, and for each line of a string in it."""
    if not definition:
        return []
    try:
        text = json.dumps(json.loads(definition), indent=2, ensure_ascii=False, sort_keys=True)
    except (ValueError, RecursionError):
        text = definition
    return [escaped(part) for line in text.split("\n") for part in _LINE_BREAK.sub(r"\1\n", line).split("\n")]
