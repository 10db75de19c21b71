# SPDX-License-Identifier: LGPL-2.1-or-later
"""How what a server says of a tool differs between two versions of it, for the person who is to approve of it."""

from __future__ import annotations

import json
import re
from difflib import unified_diff
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.output import clean, escaped, paint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CONTEXT: Final = 3
"""Lines that stay as they are, shown around each difference."""
MOST_LINES: Final = 1000
"""Lines of a definition that are compared. The time for that grows faster than they do: 20,000 take seconds."""
_LINE_BREAK: Final = re.compile(r"((?<!\\)(?:\\\\)*\\n)")
"""A line break as JSON writes it within a string."""


def diff_lines(change: Mapping[str, Any]) -> Iterator[str]:
    """The unified difference of *change*, one element of what ``GetPending`` gives, in colour on a terminal.

    Of definitions that are too long to be compared line by line it has all lines between the first and the last that
    differ, the old ones and then the new ones.
    """
    tool = clean(change.get("tool", ""))
    yield paint(f"tool {tool} ({clean(change.get('change', ''))})", "bold")
    before, after = (_lines(str(change.get(key) or "")) for key in ("before", "after"))
    colours = {"+": "green", "-": "red", "@": "cyan"}
    differences = unified_diff(before, after, "before", "after", lineterm="", n=CONTEXT)
    if before and after and max(len(before), len(after)) > MOST_LINES:
        sizes = f"{len(before):,} lines became {len(after):,}"
        yield paint(f"{sizes}, too many to compare: these are all from the first to the last that differs", "bold")
        differences = _one_difference(before, after)
    for at, line in enumerate(differences):
        yield paint(line, "bold" if at < _HEADER else colours.get(line[:1], ""))


_HEADER: Final = 2
"""Lines with which a difference begins."""


def _one_difference(before: list[str], after: list[str]) -> Iterator[str]:
    """The unified difference of *before* and *after* that takes everything between their common ends for changed."""
    start = _alike(before, after)
    end = _alike(before[start:][::-1], after[start:][::-1])
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    above, below = before[max(0, start - CONTEXT) : start], before[len(before) - end :][:CONTEXT]
    first, around = start - len(above) + 1, len(above) + len(below)
    yield from ("--- before", "+++ after", f"@@ -{first},{len(old) + around} +{first},{len(new) + around} @@")
    for mark, lines in ((" ", above), ("-", old), ("+", new), (" ", below)):
        yield from (mark + line for line in lines)


def _alike(one: list[str], other: list[str]) -> int:
    """How many lines *one* and *other* have in common at their beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def _lines(definition: str) -> list[str]:
    """*definition* in lines, one for each member, and for each line of a text in it."""
    if not definition:
        return []
    try:
        text = json.dumps(json.loads(definition), indent=2, ensure_ascii=False, sort_keys=True)
    except (ValueError, RecursionError):
        text = definition
    return [escaped(part) for line in text.split("\n") for part in _LINE_BREAK.sub(r"\1\n", line).split("\n")]
