# SPDX-License-Identifier: LGPL-2.1-or-later
"""Exact pieces of a text replaced by others, and what to say where that cannot be."""

from __future__ import annotations

from difflib import SequenceMatcher
from itertools import islice
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict, Field

from mcpd.errors import InvalidArgument, LimitExceeded, NotFound, TooLarge
from mcpd.model import printable
from mcpd.servers.diffs import Change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_TEXT: Final = 8 * 1024 * 1024
"""Bytes, and characters, of a file that is edited, before and after."""
_MAX_PIECE: Final = 1024 * 1024
_MAX_REPLACEMENTS: Final = 100_000
_COUNTED: Final = 1000
_LINES_NAMED: Final = 5
_CHECKED: Final = 65536
"""Lines between two questions whether anybody still waits."""
_LINES_COMPARED: Final = 2000
_WIDTH: Final = 120
"""Characters of a line that are compared."""
_SIMILAR: Final = 0.5


class Replacement(BaseModel):
    """One edit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    old_text: str = Field(
        min_length=1, max_length=_MAX_PIECE, description="What is there, to the letter, white space included"
    )
    new_text: str = Field(max_length=_MAX_PIECE, description="What replaces it; may be empty")
    replace_all: bool = Field(default=False, description="Replace every occurrence")


def replace(
    text: str, edit: Replacement, shown: str, *, taken: int = 0, check: Callable[[], None] = lambda: None
) -> tuple[str, list[Change]]:
    r"""*text* after *edit*, which messages call *shown*, and the changes; *taken* replacements were made before.

    Where *text* has CRLF, ``\n`` in ``old_text`` matches that too, and ``new_text`` gets the line ends of what it
    replaces, else those that most lines have. An edit that names a ``\r`` is taken to the letter.

    Raises :class:`~mcpd.errors.NotFound` if ``old_text`` does not occur, :class:`~mcpd.errors.InvalidArgument` if it
    occurs more often than it may, :class:`~mcpd.errors.LimitExceeded` for too many replacements and
    :class:`~mcpd.errors.TooLarge` for too long a result.
    """
    variants = _variants(text, edit)
    if not edit.replace_all:
        found = list(islice(_matches(text, variants, overlapping=True), _LINES_NAMED + 1))
        if len(found) > 1:
            count = sum(1 for _ in islice(_matches(text, variants, overlapping=False), _COUNTED + 1))
            raise _ambiguous(text, [start for start, _, _ in found], max(count, 2), shown)
    else:
        room = _MAX_REPLACEMENTS - taken
        found = list(islice(_matches(text, variants, overlapping=False), room + 1))
        if len(found) > room:
            raise LimitExceeded(
                f"{shown}: more than {_MAX_REPLACEMENTS} replacements in all; write the file anew instead"
            )
    check()
    if not found:
        raise _missing(text, edit.old_text, shown, check)
    if len(text) + sum(len(new) - len(old) for _, old, new in found) > MAX_TEXT:
        raise TooLarge(f"{shown} would make the text longer than {MAX_TEXT} characters")
    return _made(text, found)


def _variants(text: str, edit: Replacement) -> list[tuple[str, str]]:
    """What to look for and what to put there, for each kind of line ends that *text* has."""
    old, new = edit.old_text, edit.new_text
    windows = text.count("\r\n")
    if not windows or "\r" in old or ("\n" not in old and "\r" in new):
        return [(old, new)]
    unix = text.count("\n") - windows
    crlf = new if "\r" in new else new.replace("\n", "\r\n")
    if "\n" not in old:
        return [(old, crlf if windows >= unix else new)]
    variants = [(old.replace("\n", "\r\n"), crlf)]
    return variants if not unix else [*variants, (old, new)]


def _matches(text: str, variants: list[tuple[str, str]], *, overlapping: bool) -> Iterator[tuple[int, str, str]]:
    """Where one of *variants* is in *text*, from its beginning on, what is there and what replaces it."""
    places = [_find(text, old, 0) for old, _ in variants]
    while any(place >= 0 for place in places):
        place, number = min((place, number) for number, place in enumerate(places) if place >= 0)
        old, new = variants[number]
        yield place, old, new
        behind = place + 1 if overlapping else place + len(old)
        places = [_find(text, variants[each][0], behind) if 0 <= at < behind else at for each, at in enumerate(places)]


def _find(text: str, piece: str, start: int) -> int:
    """Where *piece* is; one that begins with a line's end, but names no CR, does not begin in the middle of CRLF."""
    place = text.find(piece, start)
    while place > 0 and text[place - 1] == "\r" and piece[0] == "\n" and "\r" not in piece:
        place = text.find(piece, place + 1)
    return place


def _made(text: str, found: list[tuple[int, str, str]]) -> tuple[str, list[Change]]:
    parts: list[str] = []
    changes: list[Change] = []
    behind = shift = 0
    for start, old, new in found:
        parts += (text[behind:start], new)
        behind = start + len(old)
        changes.append(Change(start, behind, start + shift, start + shift + len(new)))
        shift += len(new) - len(old)
    return "".join([*parts, text[behind:]]), changes


def _ambiguous(text: str, starts: list[int], count: int, shown: str) -> InvalidArgument:
    """The error of an old_text that occurs *count* times, first at *starts*."""
    lines = ", ".join(str(text.count("\n", 0, start) + 1) for start in starts[:_LINES_NAMED])
    times = f"more than {_COUNTED} times" if count > _COUNTED else f"{count} times"
    return InvalidArgument(
        f"{shown}: old_text occurs {times}, in the lines {lines}{'…' * (len(starts) > _LINES_NAMED)}; add what is"
        " around the one you mean, or set replace_all"
    )


def _missing(text: str, old: str, shown: str, check: Callable[[], None]) -> NotFound:
    """The error of an old_text that does not occur, with the line that is most like its first one."""
    wanted = next((line.strip() for line in old.split("\n") if line.strip()), "")[:_WIDTH]
    best = _nearest(text, wanted, check) if wanted else None
    if best is None:
        return NotFound(f"{shown}: old_text does not occur, nor anything like it; read the file again")
    number, line = best
    how = (
        "has its first line, but other white space or other lines behind it" if line.strip() == wanted else "is nearest"
    )
    return NotFound(f"{shown}: old_text does not occur; line {number} {how}: '{printable(line)}'")


def _nearest(text: str, wanted: str, check: Callable[[], None]) -> tuple[int, str] | None:
    """The number and the beginning of the line that is most like *wanted*, if one is."""
    best: tuple[int, str] | None = None
    matcher = SequenceMatcher(None, "", wanted, autojunk=False)
    ratio = _SIMILAR
    for number, line in _candidates(text, wanted, check):
        check()
        stripped = line.strip()
        if stripped == wanted:
            return number, line
        matcher.set_seq1(stripped)
        if matcher.real_quick_ratio() > ratio and matcher.quick_ratio() > ratio and (found := matcher.ratio()) > ratio:
            ratio, best = found, (number, line)
    return best


def _candidates(text: str, wanted: str, check: Callable[[], None]) -> list[tuple[int, str]]:
    """Lines that may be like *wanted*: those with its longest word, or the first ones."""
    word = max(wanted.split(), key=len)
    near: list[tuple[int, str]] = []
    first: list[tuple[int, str]] = []
    start = number = 0
    while start <= len(text) and len(near) < _LINES_COMPARED:
        number += 1
        if not number % _CHECKED:
            check()
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        line = text[start : min(end, start + _WIDTH)].rstrip("\r")
        if word in line:
            near.append((number, line))
        elif len(first) < _LINES_COMPARED:
            first.append((number, line))
        start = end + 1
    return near or first
