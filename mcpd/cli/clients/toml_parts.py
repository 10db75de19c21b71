# SPDX-License-Identifier: LGPL-2.1-or-later
"""TOML as statements and items of inline tables that know where they are in the text.

Where one ends, and what it defines, is for the standard library's parser to say: a statement is the shortest run of
lines that is a document by itself, an item of an inline table the shortest run of what is between commas that is a
table by itself. What opens a string, an array or a table is not complete before that is closed, so that the first run
that can be parsed is the one. tomlkit is not asked: it takes the comments before a header for the end of the table
above, and 500 tables of one parent take its version 0.13 a quarter of a minute.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.clients.containers import Items
from mcpd.cli.clients.texts import BLANK
from mcpd.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Path = tuple[str, ...]

_EFFORT: Final = 4 << 20
"""Characters that are given to the parser for one file."""
_EACH: Final = 16
"""Characters that take as long as calling it does."""
_QUOTES: Final = ('"""', "'''")
_CLOSING: Final = ("]", "}", *_QUOTES)
_ENDING: Final = re.compile("[,}]")
_INDENT: Final = " \t"


@dataclass(frozen=True, slots=True)
class Statement:
    """A header, or a key with its value: *path* is what it defines, from the top.

    *path* is only as long as it takes to tell whether the statement is about the servers. *start* is where its line
    begins, *first* where it begins itself, *end* where the line after it begins, *header* the path of the header that
    it is below. *value* is where its value begins, or 0 if that cannot hold all of the servers.
    """

    path: Path
    header: Path
    start: int
    first: int
    end: int
    is_header: bool
    value: int = 0


@dataclass(frozen=True, slots=True)
class Pair:
    """A key with its value in an inline table; *value* is where the value begins, *end* where it ends."""

    path: Path
    value: int
    end: int


class Parts:
    """The parts of TOML documents, found with an effort that has a limit: the text may be made to be slow."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._left = _EFFORT

    def statements(self, body: str, key: Path) -> list[Statement]:
        """The statements of the document *body* in their order; *key* is the path to the servers."""
        found: list[Statement] = []
        header: Path = ()
        for start, end, first, model in self._cut(body):
            if body[first] == "[":
                header = _walk(model)
                found.append(Statement(header, header, start, first, end, is_header=True))
                continue
            (name,) = model
            path, value = (*header, name), 0
            if len(header) < len(key) and path == key[: len(path)]:
                parts, value = self._key(body, first, end)
                path = (*header, *parts)
            found.append(Statement(path, header, start, first, end, is_header=False, value=value))
        return found

    def pairs(self, table: str) -> tuple[Items, list[Pair]]:
        """What is in the inline table that *table* begins with."""
        spans: list[tuple[int, int]] = []
        commas: list[int | None] = []
        pairs: list[Pair] = []
        start = 1
        for found in _ENDING.finditer(table, start):
            at = found.start()
            run = table[start:at]
            if self._load(f"_ = {{{run}}}") is None:
                continue
            if run.strip(BLANK):
                first, end = at - len(run.lstrip(BLANK)), start + len(run.rstrip(BLANK))
                spans.append((first, end))
                commas.append(at if found.group() == "," else None)
                pairs.append(Pair(*self._key(table, first, end), end))
            if found.group() == "}":
                return Items(1, at, spans, commas), pairs
            start = at + 1
        raise self._too_hard()

    def _cut(self, body: str) -> Iterator[tuple[int, int, int, dict[str, Any]]]:
        """Where the statements of *body* start, end, and begin behind their indentation; and what they mean."""
        at = 0
        while at < len(body):
            start, end = at, _next_line(body, at)
            line = body[start:end]
            first = end - len(line.lstrip(_INDENT))
            at = end
            if first == len(body) or body[first] in "#\r\n":
                continue
            model = self._load(body[start:at])
            if model is None:
                closing = self._closing(body[start:at])
                while model is None:
                    end, at = at, _next_line(body, at)
                    if at == len(body) or any(mark in body[end:at] for mark in closing):
                        model = self._load(body[start:at])
                    if model is None and at == len(body):
                        raise self._too_hard()
            yield start, at, first, model

    def _closing(self, text: str) -> Sequence[str]:
        """What one of is in the last line of the statement that *text* begins."""
        return next(((mark,) for mark in _QUOTES if self._load(text + mark) is not None), _CLOSING)

    def _key(self, text: str, first: int, end: int) -> tuple[Path, int]:
        """The key that begins at *first*, and where its value begins."""
        equals = text.find("=", first, end)
        while equals >= 0:
            model = self._load(f"{text[first:equals]}=0")
            if model is not None:
                return _walk(model), end - len(text[equals + 1 : end].lstrip(_INDENT))
            equals = text.find("=", equals + 1, end)
        raise self._too_hard()

    def _load(self, text: str) -> dict[str, Any] | None:
        """What *text* means; None if it is not a document by itself."""
        self._spend(len(text) + _EACH)
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            return None

    def _spend(self, effort: int) -> None:
        self._left -= effort
        if self._left < 0:
            raise self._too_hard()

    def _too_hard(self) -> InvalidConfig:
        return InvalidConfig(f"{self._where}: too hard to take apart; edit it by hand")


def _next_line(body: str, at: int) -> int:
    """Where the line after the one that holds character *at* begins: TOML knows line feeds alone."""
    found = body.find("\n", at)
    return len(body) if found < 0 else found + 1


def _walk(nested: object) -> Path:
    """The path in a header or key, from what a document of nothing else means."""
    path: list[str] = []
    while nested:
        if isinstance(nested, dict):
            path.append(next(iter(nested)))
            nested = nested[path[-1]]
        else:
            nested = nested[0] if isinstance(nested, list) else None
    return tuple(path)
