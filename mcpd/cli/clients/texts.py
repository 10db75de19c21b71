# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the editors of all formats share: the text of a file, its style, and splices into it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from mcpd.errors import InvalidConfig
from mcpd.model import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mcpd.model import JsonValue

MAX_DEPTH: Final = 200
"""Levels of nesting in a file, below what any of the parsers survives."""
BLANK: Final = " \t\r\n"
"""The white space of JSON, TOML and YAML: what Unicode has beside it is text to them."""
_BOM: Final = b"\xef\xbb\xbf"
_NEWLINE: Final = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Text:
    """The text of the file that messages call *where*."""

    body: str
    bom: bool
    where: str

    @classmethod
    def decode(cls, data: bytes, where: str) -> Text:
        """The text in *data*, which is UTF-8, with or without a byte order mark.

        Raises :class:`~mcpd.errors.InvalidConfig` that names *where* and the line.
        """
        bom = data.startswith(_BOM)
        try:
            text = cls(data.removeprefix(_BOM).decode(), bom, where)
        except UnicodeDecodeError as error:
            at = error.start + (len(_BOM) if bom else 0)
            line = data.count(b"\n", 0, at) + 1
            raise InvalidConfig(f"{where}:{line}: not UTF-8 text (byte {at}); save the file as UTF-8") from None
        if (at := text.body.find("\0")) >= 0:
            raise text.fault(at, "not text: there is a NUL byte in it")
        return text

    def encode(self) -> bytes:
        """The bytes of the file."""
        return (_BOM if self.bom else b"") + self.body.encode()

    def with_body(self, body: str) -> Text:
        """The same file with another content."""
        return Text(body, self.bom, self.where)

    def line(self, at: int) -> int:
        """The number of the line that holds character *at*, counted from 1."""
        return sum(1 for _ in _NEWLINE.finditer(self.body, 0, at)) + 1

    def fault(self, at: int, what: str) -> InvalidConfig:
        """The error to raise for *what* is wrong at character *at*."""
        return InvalidConfig(f"{self.where}:{self.line(at)}: {what}")

    @property
    def newline(self) -> str:
        """How the first line ends."""
        found = _NEWLINE.search(self.body)
        return found.group() if found else "\n"


class Splice(NamedTuple):
    """Characters *start* to *end* are to become *new*."""

    start: int
    end: int
    new: str = ""


def apply(text: str, splices: Iterable[Splice]) -> str:
    """*text* with all *splices*, which are places in *text* as it is; cuts may overlap."""
    parts: list[str] = []
    at = 0
    for splice in sorted(splices, key=lambda each: each[:2]):
        parts += (text[at : max(at, splice.start)], splice.new)
        at = max(at, splice.end)
    return "".join([*parts, text[at:]])


def inserted(text: Text, at: int, lines: Iterable[str]) -> Splice:
    """Return the splice that puts *lines* at *at*, where a line begins or the text ends."""
    if at and not text.body[:at].endswith(("\n", "\r")):
        return Splice(at, at, "".join(text.newline + line for line in lines))
    return Splice(at, at, "".join(line + text.newline for line in lines))


def ended(old: str, new: str) -> str:
    """Return *new* with a line break at its end only if *old*, the same file before, has one there, or is empty."""
    if old and not old.endswith(("\n", "\r")) and new.endswith(("\n", "\r")):
        return new[: -2 if new.endswith("\r\n") else -1]
    return new


def line_start(text: str, at: int) -> int:
    """Where the line that holds character *at* begins."""
    return max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1


def line_end(text: str, at: int) -> int:
    """Where the line that holds character *at* ends: at its line break, or where the text ends."""
    found = _NEWLINE.search(text, at)
    return found.start() if found else len(text)


def next_line(text: str, at: int) -> int:
    """Where the line after the one that holds character *at* begins, or where the text ends."""
    found = _NEWLINE.search(text, at)
    return found.end() if found else len(text)


def indent_at(text: str, at: int) -> str:
    """The white space that the line of character *at* begins with."""
    start = line_start(text, at)
    line = text[start : line_end(text, start)]
    return line[: len(line) - len(line.lstrip(" \t"))]


def first_on_line(text: str, at: int) -> bool:
    """Whether character *at* is the first of its line, but for white space."""
    return not text[line_start(text, at) : at].strip(BLANK)


def same(one: object, other: object) -> bool:
    """Whether two values are the same to every parser: ``1``, ``1.0`` and ``true`` are three; order does not count.

    Nothing here recurses, so that the values may be hostile.
    """
    pending = [(one, other)]
    while pending:
        left, right = pending.pop()
        if type(left) is not type(right):
            return False
        if isinstance(left, dict) and isinstance(right, dict):
            if left.keys() != right.keys():
                return False
            pending += [(value, right[key]) for key, value in left.items()]
        elif isinstance(left, list) and isinstance(right, list):
            if len(left) != len(right):
                return False
            pending += zip(left, right, strict=True)
        elif left != right and not (left != left and right != right):  # noqa: PLR0124 -- what is not a number
            return False
    return True


def show(key: Sequence[str]) -> str:
    """*key*, the path to a value, for a message."""
    return printable(".".join(key))


def at_path(value: JsonValue, keys: Sequence[str]) -> JsonValue:
    """*value* within an object for each of *keys*, the first outermost."""
    for name in reversed(keys):
        value = {name: value}
    return value
