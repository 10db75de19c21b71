# SPDX-License-Identifier: LGPL-2.1-or-later
"""TOML as statements and items of inline tables that know where they are in the text.

Where one ends, and what it defines, is for parsers to say: a statement is the shortest run of lines that is a document
by itself, an item of an inline table the shortest run of what is between commas that is a table by itself. Nothing that
opens a string, an array or a table can end before that is closed, so that the first run that can be parsed is the one.
A whole document is never given to tomlkit, whose time grows with the square of what a document holds, and faster.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Table

from mcpd.cli.clients.containers import Items
from mcpd.cli.clients.texts import BLANK
from mcpd.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tomlkit.items import Item, Key

Path = tuple[str, ...]

_EFFORT: Final = 16 << 20
"""Characters that are given to parsers for one file."""
_EACH: Final = 64
"""Characters that take as long as calling a parser does."""
_CLOSING: Final = ("]", "}", '"""', "'''")
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
            while (model := self._load(body[start:at])) is None:
                end, at = at, _next_line(body, at)
                while not any(mark in body[end:at] for mark in _CLOSING) and at < len(body):
                    end, at = at, _next_line(body, at)
            yield start, at, first, model

    def _key(self, text: str, first: int, end: int) -> tuple[Path, int]:
        """The key that begins at *first*, and where its value begins."""
        equals = text.find("=", first, end)
        while equals >= 0:
            self._spend(equals - first)
            try:
                path = _path(tomlkit.parse(f"{text[first:equals]}=0").body)
            except TOMLKitError:
                equals = text.find("=", equals + 1, end)
                continue
            if not path:
                break
            return path, end - len(text[equals + 1 : end].lstrip(_INDENT))
        raise self._too_hard()

    def _load(self, text: str) -> dict[str, Any] | None:
        """What *text* means; None if it is not a document by itself."""
        self._spend(len(text))
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            return None

    def _spend(self, effort: int) -> None:
        self._left -= effort + _EACH
        if self._left < 0:
            raise self._too_hard()

    def _too_hard(self) -> InvalidConfig:
        return InvalidConfig(f"{self._where}: too hard to take apart; edit it by hand")


def _next_line(body: str, at: int) -> int:
    """Where the line after the one that holds character *at* begins: TOML knows line feeds alone."""
    found = body.find("\n", at)
    return len(body) if found < 0 else found + 1


def _path(body: list[tuple[Key | None, Item]]) -> Path:
    """The key that is all that *body* holds."""
    path: list[str] = []
    while body:
        key, value = body[0]
        if key is None:
            return ()
        path.append(key.key)
        body = value.value.body if isinstance(value, Table) else []
    return tuple(path)


def _walk(nested: object) -> Path:
    """The path in a header, from what a document of that header alone means."""
    path: list[str] = []
    while nested:
        if isinstance(nested, dict):
            path.append(next(iter(nested)))
            nested = nested[path[-1]]
        else:
            nested = nested[0] if isinstance(nested, list) else None
    return tuple(path)
