# SPDX-License-Identifier: LGPL-2.1-or-later
"""Adding to and removing from ``{…}`` and ``[…]`` in a text, whatever its format, around what stays as it is.

A place between items may hold white space and comments; comments stay, whatever is removed around them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mcpd.cli.clients.texts import BLANK, Splice, apply, first_on_line, indent_at

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    Render = Callable[[str | None], list[str]]
    """New items for lines with that indentation; None: without a line break."""


_LOOKED_AT: Final = 5
"""Items whose indentation is looked at: all of a file may be one long line."""


@dataclass(frozen=True, slots=True)
class Style:
    """How a file is laid out: *unit* is one step of indentation, *spread* False where all is on one line."""

    newline: str
    unit: str
    spread: bool
    compact: bool = False
    """No space after ``,`` and ``:``."""


@dataclass(frozen=True, slots=True)
class Items:
    """What is between the brackets at *start* - 1 and *end*.

    *spans* are the items, *commas* where the comma after each is, None where there is none (after the last one).
    """

    start: int
    end: int
    spans: Sequence[tuple[int, int]]
    commas: Sequence[int | None]


def unit_of(text: str, items: Items) -> str | None:
    """By how much *items* are indented, if that shows."""
    base = indent_at(text, items.start)
    for start, _ in items.spans[:_LOOKED_AT]:
        indent = indent_at(text, start)
        if first_on_line(text, start) and indent.startswith(base) and indent != base:
            return indent[len(base) :]
    return None


def add(text: str, items: Items, render: Render, style: Style) -> str:
    """*text* with new items after the last of *items*."""
    at = _last_end(text, items)
    base = indent_at(text, items.start)
    if not items.spans:
        return _fill(text, items, render, style, at)
    start, end = items.spans[-1]
    comma = items.commas[-1]
    own_line = first_on_line(text, start) and re.search(r"[\r\n]", text[items.start : start]) is not None
    commented = bool(text[(end if comma is None else comma + 1) : at].strip(BLANK))
    if own_line or commented:
        indent = indent_at(text, start) if own_line else base + style.unit
        glue = style.newline + indent
        new = glue + ("," + glue).join(render(indent))
    else:
        glue = "" if style.compact else " "
        new = glue + ("," + glue).join(render(None))
    if comma is None:
        return apply(text, [Splice(end, end, ","), Splice(at, at, new)]) if at > end else _insert(text, end, "," + new)
    return _insert(text, at, new + ",")


def _last_end(text: str, items: Items) -> int:
    """Where what is between the brackets ends, with the white space that ends its line: that may be a comment's."""
    at = items.start + len(text[items.start : items.end].rstrip(BLANK))
    behind = at + len(text[at : items.end]) - len(text[at : items.end].lstrip(" \t"))
    return behind if at > items.start and text[behind] in "\r\n" else at


def _fill(text: str, items: Items, render: Render, style: Style, at: int) -> str:
    """*text* with items where there is none but, perhaps, comments up to *at*."""
    commented = at > items.start
    if not style.spread and not commented:
        return apply(text, [Splice(items.start, items.end, ("," if style.compact else ", ").join(render(None)))])
    base = indent_at(text, items.start)
    indent = base + style.unit
    new = style.newline + indent + ("," + style.newline + indent).join(render(indent))
    tail = text[at : items.end]
    if not commented or not re.search(r"[\r\n]", tail):
        return apply(text, [Splice(at, items.end, new + style.newline + base)])
    return _insert(text, at, new)


def _insert(text: str, at: int, new: str) -> str:
    return text[:at] + new + text[at:]


def remove(text: str, items: Items, gone: Collection[int]) -> str:
    """*text* without the items whose numbers are *gone*, and the commas and white space that were theirs."""
    kept = [number for number in range(len(items.spans)) if number not in gone]
    last = kept[-1] if kept else -1
    cuts = [cut for number in gone for cut in _cuts(text, items, number, last=number > last)]
    if kept and items.commas[-1] is None and kept[-1] != len(items.spans) - 1:
        comma = items.commas[kept[-1]]
        if comma is not None:
            cuts.append(Splice(comma, comma + 1))
    if not kept:
        inner = apply(text[items.start : items.end], [_shift(cut, -items.start) for cut in cuts])
        return text[: items.start] + (inner if inner.strip(BLANK) else "") + text[items.end :]
    return apply(text, cuts)


def _shift(cut: Splice, by: int) -> Splice:
    return Splice(cut.start + by, cut.end + by)


def _cuts(text: str, items: Items, number: int, *, last: bool) -> list[Splice]:
    """The cuts that remove an item; *last*: no item stays behind it."""
    start, end = items.spans[number]
    comma = items.commas[number]
    cuts = []
    if comma is not None:
        if text[end:comma].strip(BLANK):
            cuts.append(Splice(comma, comma + 1))
        else:
            end = comma + 1
    behind = end
    while behind < items.end and text[behind] in " \t":
        behind += 1
    ends_line = text[behind] in "\r\n"
    if first_on_line(text, start) and ends_line:
        start -= len(indent_at(text, start))
        if text[:start].endswith("\r\n"):
            start -= 2
        elif start > items.start:
            start -= 1
        end = behind
    elif first_on_line(text, start) or not (ends_line or last):
        end = behind
    else:
        while start > items.start and text[start - 1] in " \t":
            start -= 1
    return [*cuts, Splice(start, end)]
