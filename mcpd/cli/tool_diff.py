# SPDX-License-Identifier: LGPL-2.1-or-later
"""How what a server says of a tool differs between two versions of it, for the person who is to approve of it."""

from __future__ import annotations

import json
import re
from difflib import unified_diff
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.output import clean, paint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CONTEXT: Final = 3
"""Lines that stay as they are, shown around each difference."""
_LINE_BREAK: Final = re.compile(r"((?<!\\)(?:\\\\)*\\n)")
"""A line break as JSON writes it within a string."""


def diff_lines(change: Mapping[str, Any]) -> Iterator[str]:
    """The unified difference of *change*, one element of what ``GetPending`` gives, in colour on a terminal."""
    tool = clean(change.get("tool", ""))
    yield paint(f"tool {tool} ({clean(change.get('change', ''))})", "bold")
    before, after = (_lines(str(change.get(key) or "")) for key in ("before", "after"))
    colours = {"+": "green", "-": "red", "@": "cyan"}
    for at, line in enumerate(unified_diff(before, after, "before", "after", lineterm="", n=CONTEXT)):
        yield paint(line, "bold" if at < _HEADER else colours.get(line[:1], ""))


_HEADER: Final = 2
"""Lines with which a difference begins."""


def _lines(definition: str) -> list[str]:
    """*definition* in lines, one for each member, and for each line of a text in it."""
    if not definition:
        return []
    try:
        text = json.dumps(json.loads(definition), indent=2, ensure_ascii=False, sort_keys=True)
    except (ValueError, RecursionError):
        text = definition
    return [_visible(part) for line in text.split("\n") for part in _LINE_BREAK.sub(r"\1\n", line).split("\n")]


def _visible(line: str) -> str:
    """*line* with every character that is not seen, or steers a terminal, as JSON would escape it."""
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in line)
