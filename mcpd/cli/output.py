# SPDX-License-Identifier: LGPL-2.1-or-later
"""Output of mcpctl: human-readable tables and text, or JSON.

Names and summaries come from registries and servers and are not trusted: control characters in them are replaced,
because they could control the terminal.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from operator import add
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TextIO

COLOURS: Final = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "bold": 1}
_STATES: Final = {
    "broken": "red", "failed": "red", "fail": "red", "refused": "red",
    "updatable": "yellow", "disabled": "yellow", "warn": "yellow", "stopping": "yellow", "partly": "yellow",
    "installed": "green", "running": "green", "ok": "green", "completed": "green", "success": "green",
    "completed_with_errors": "yellow", "cancelled": "yellow", "interrupted": "yellow", "skipped": "yellow",
}  # fmt: skip
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that move the cursor, reorder text or cannot be encoded."""
_GAP: Final = "  "
"""Spaces between the columns of a table."""


def write(line: str = "") -> None:
    """Print *line* on standard output."""
    sys.stdout.write(line + "\n")


def note(line: str) -> None:
    """Print *line* on standard error; used for everything but the result of a command."""
    sys.stdout.flush()
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def warn(text: object) -> None:
    """Print a warning on standard error."""
    note(f"{paint('warning:', 'yellow', sys.stderr)} {clean(text)}")


def write_json(value: object) -> None:
    """Print *value* as JSON; on a terminal, invisible characters are :func:`escaped`."""
    import json

    text = json.dumps(value, indent=2, ensure_ascii=not encodes_unicode())
    write(escaped(text) if sys.stdout.isatty() else text)


def write_document(data: bytes) -> None:
    """Print the JSON document *data* unchanged, or like :func:`write_json` on a terminal."""
    if sys.stdout.isatty():
        import json

        write_json(json.loads(data))
    else:
        sys.stdout.buffer.write(data)


def escaped(text: str) -> str:
    """Return *text* with invisible and control characters escaped as in JSON; line breaks are kept."""
    import json

    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)


def clean(text: object, *, lines: bool = False) -> str:
    """Return *text* without characters that control a terminal; line breaks become spaces unless *lines*."""
    text = str(text)
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char
        if unicodedata.category(char) not in _INVISIBLE or (lines and char in "\n\t")
        else (" " if char in "\n\t\r" else "\ufffd")
        for char in text
    )


def write_text(text: str) -> None:
    """Print *text* of a server or a file, without the line break that may end it; on a terminal, cleaned."""
    shown = text.removesuffix("\n")
    write(clean(shown, lines=True) if sys.stdout.isatty() else shown)


def first_line(text: object) -> str:
    """Return the first line of *text* that is not empty."""
    return str(text).strip().partition("\n")[0]


def shortened(text: str, width: int) -> str:
    """Return *text*, cut to *width* characters."""
    return text if len(text) <= width else text[: width - 1] + "…"


def local_time(seconds: float | None) -> str:
    """Format a Unix time in the local time zone; empty if it is unknown."""
    if seconds is None:
        return ""
    from datetime import datetime  # few commands show times

    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print *rows* in columns below *headings*. On a terminal the last column is cut to the width."""
    cells = [[clean(cell) for cell in row] for row in rows]
    widths = [max(map(_columns, column)) for column in zip(headings, *cells, strict=True)]
    if sys.stdout.isatty():
        _cut_last(cells, sum(widths[:-1]) + len(_GAP) * len(widths[:-1]))
    state = next((at for at, heading in enumerate(headings) if heading in {"STATE", "RESULT"}), None)
    for row in (headings, *cells):
        padding = [" " * (width - _columns(cell)) for cell, width in zip(row, widths, strict=True)]
        shown = [coloured(cell) if at == state else cell for at, cell in enumerate(row)]
        write(_GAP.join(map(add, shown, padding)).rstrip())


def details(pairs: Iterable[tuple[str, object]]) -> None:
    """Print ``name: value`` lines with the values in one column; empty values are left out."""
    shown = [(clean(name), clean(value)) for name, value in pairs if value not in ("", None, [], {})]
    width = max((len(name) for name, _ in shown), default=0) + 2
    for name, value in shown:
        write(f"{paint((name + ':').ljust(width), 'bold')}{value}")


def paint(text: str, colour: str, stream: TextIO | None = None) -> str:
    """Return *text* in *colour* if *stream* (default: standard output) is a terminal that shows colours."""
    stream = stream or sys.stdout
    if not colour or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return text
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m"


def coloured(state: str, width: int = 0) -> str:
    """Return *state*, padded to *width*, in its colour."""
    return paint(state.ljust(width), _STATES.get(state.partition(",")[0], ""))


def counted(number: int, noun: str) -> str:
    """Return *number* and *noun*, in the plural unless *number* is 1."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _columns(text: str) -> int:
    """Return the number of columns of *text* on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.category(char) in {"Mn", "Me"} else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def _cut_last(rows: list[list[str]], taken: int) -> None:
    """Truncate the last cell of each row to the columns left after *taken* on the terminal, at least ten."""
    import shutil  # slow to import

    limit = max(shutil.get_terminal_size().columns - taken - 1, 10)
    for row in rows:
        if _columns(row[-1]) > limit:
            cut = row[-1][: limit - 1]
            while _columns(cut) >= limit:
                cut = cut[:-1]
            row[-1] = f"{cut}…"


def encodes_unicode() -> bool:
    """Return whether standard output can encode every character."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
