# SPDX-License-Identifier: LGPL-2.1-or-later
"""Client files in TOML, changed in place, whether their servers are tables, dotted keys or inline tables."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.clients.containers import Style, add, remove
from mcpd.cli.clients.texts import BLANK, MAX_DEPTH, Splice, apply, at_path, same, show
from mcpd.cli.clients.toml_parts import Parts
from mcpd.cli.clients.toml_writing import inline, line, table
from mcpd.errors import InvalidConfig
from mcpd.model import printable
from mcpd.toml import parse_toml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcpd.cli.clients.editing import Document, Shape
    from mcpd.cli.clients.texts import Text
    from mcpd.cli.clients.toml_parts import Path, Statement
    from mcpd.model import JsonValue

_LINE: Final = re.compile(r"\(at line (\d+), column (\d+)\)")
_ONE_LINE: Final = Style("\n", "  ", spread=False)


@dataclass(frozen=True, slots=True)
class _Inline:
    """The inline table from *start* to *end* that holds the servers at *rest*, what is left of the key inside of it."""

    start: int
    end: int
    rest: Path


@dataclass(frozen=True)
class TomlDocument:
    """A parsed file; *held* is the table of servers."""

    text: Text
    key: tuple[str, ...]
    model: dict[str, Any]
    held: dict[str, Any]

    @classmethod
    def parse(cls, text: Text, key: Sequence[str], shape: Shape) -> TomlDocument:
        """The document *text*, whose servers are at *key*; raises :class:`~mcpd.errors.InvalidConfig`."""
        if shape != "map":
            raise InvalidConfig(f"{text.where}: servers in a list are not supported in TOML")
        model = held = _load(text)
        for depth, name in enumerate(key):
            held = held.get(name, {})
            if not isinstance(held, dict):
                raise InvalidConfig(f"{text.where}: {show(key[: depth + 1])} is not a table")
        return cls(text, tuple(key), model, held)

    @property
    def servers(self) -> dict[str, JsonValue]:
        """The servers by name, in their order; dates and times are strings."""
        return {name: _jsonable(entry) for name, entry in self.held.items()}

    def edited(self, changes: Mapping[str, JsonValue | None]) -> str:
        """The text with *changes*."""
        for name, entry in changes.items():
            if entry is not None:
                self._check(name, entry)
        if inner := self._inline():
            return self._edited_inline(inner, changes)
        splices = []
        for name, entry in changes.items():
            if name in self.held:
                splices += self._changed(name, entry)
        new: dict[str, JsonValue] = {
            name: entry for name, entry in changes.items() if entry is not None and name not in self.held
        }
        if new:
            splices.append(self._inserted(new))
        return self._ended(apply(self.text.body, splices))

    def differs(self, before: Document, changes: Mapping[str, JsonValue | None]) -> str:
        """What is not as it was in *before* but for *changes*; empty if all is."""
        if not isinstance(before, TomlDocument):
            return "another format"
        meant = {name: entry for name, entry in {**before.held, **changes}.items() if entry is not None}
        if not same(self.held, meant):
            return "other servers would change"
        return "" if same(self.foreign(), before.foreign()) else "other settings would change"

    def foreign(self) -> dict[str, Any]:
        """The model without servers, and without the tables around them that hold nothing else."""
        holders = [self.model]
        for name in self.key[:-1]:
            holders.append(holders[-1].get(name, {}))
        rest: dict[str, Any] = {}
        for name, holder in zip(reversed(self.key), reversed(holders), strict=True):
            others = {each: value for each, value in holder.items() if each != name}
            rest = {**others, name: rest} if rest else others
        return rest

    def _check(self, name: str, entry: JsonValue) -> None:
        where = f"{self.text.where}: {printable(name)}"
        if not isinstance(entry, dict):
            raise InvalidConfig(f"{where}: not a table")
        pending: list[JsonValue] = [entry]
        while pending:
            value = pending.pop()
            if value is None:
                raise InvalidConfig(f"{where}: holds a null, which TOML has no way to write; leave the field out")
            pending += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()

    @cached_property
    def _parts(self) -> Parts:
        return Parts(self.text.where)

    @cached_property
    def _statements(self) -> list[Statement]:
        return self._parts.statements(self.text.body, self.key)

    def _owned(self) -> list[Statement]:
        """The statements that define servers."""
        depth = len(self.key)
        return [each for each in self._statements if len(each.path) > depth and each.path[:depth] == self.key]

    # -- tables and dotted keys

    def _changed(self, name: str, entry: JsonValue | None) -> list[Splice]:
        """Statements of the server *name* are replaced where the first of them is."""
        body, newline = self.text.body, self.text.newline
        own = (*self.key, name)
        splices: list[Splice] = []
        run: list[Statement] = []
        for each in [*self._statements, None]:
            if each is not None and each.path[: len(own)] == own:
                run.append(each)
                continue
            if run:
                first, end = run[0], run[-1].end
                new = ""
                if entry is not None and not splices:
                    lines = table(own, entry) if first.is_header else [self._line(first, own, entry)]
                    indent = body[first.start : first.first]
                    new = "".join(indent * bool(new_line) + new_line + newline for new_line in lines)
                start, end = (first.start, end) if new or not first.is_header else self._with_blank(first.start, end)
                splices.append(Splice(start, end, new))
            run = []
        return splices

    def _with_blank(self, start: int, end: int) -> tuple[int, int]:
        """*start* and *end* of a table with the blank lines before it, or those behind it if it is the first thing."""
        body = self.text.body
        before = len(body[:start].rstrip(BLANK))
        if before:
            return body.find("\n", before) + 1, end
        behind = len(body) - len(body[end:].lstrip(BLANK))
        return start, behind if before == 0 else end

    def _inserted(self, entries: dict[str, JsonValue]) -> Splice:
        """New servers behind the last one, or at the end of the file."""
        body, depth = self.text.body, len(self.key)
        owned = self._owned()
        tables = [each for each in owned if each.is_header or len(each.header) > depth]
        heads = [each for each in self._statements if each.is_header and each.path == self.key]
        if owned and not tables:
            last = owned[-1]
            indent = body[last.start : last.first]
            lines = [indent + self._line(last, (*self.key, name), entry) for name, entry in entries.items()]
            return self._at(last.end, lines)
        at = tables[-1].end if tables else heads[-1].end if heads else len(body)
        spaced = at == len(body) or not body[at : at + 2].strip(BLANK) or body[at] in "\r\n"
        lines = []
        for name, entry in entries.items():
            if spaced and (lines or (body[:at].strip(BLANK) and not body[:at].endswith(("\n\n", "\n\r\n")))):
                lines.append("")
            lines += table((*self.key, name), entry)
        return self._at(at, lines)

    def _at(self, at: int, lines: list[str]) -> Splice:
        body, newline = self.text.body, self.text.newline
        if at and not body[:at].endswith("\n"):
            return Splice(at, at, "".join(newline + each for each in lines))
        return Splice(at, at, "".join(each + newline for each in lines))

    def _ended(self, new: str) -> str:
        """*new* with a line break at its end only if the file has one there, or is new, and none added at its top."""
        body = self.text.body
        if not body.startswith(("\r", "\n")):
            new = new.lstrip("\r\n")
        if body and not body.endswith("\n") and new.endswith("\n"):
            return new.removesuffix("\n").removesuffix("\r")
        return new

    def _line(self, beside: Statement, path: Path, entry: JsonValue) -> str:
        """The line that defines *path* below the header of the statement *beside*."""
        return line(path[len(beside.header) :], entry)

    # -- inline tables

    def _inline(self) -> _Inline | None:
        """The inline table on the way to the servers, or that holds them."""
        for each in self._statements:
            depth = len(each.path)
            if not each.is_header and depth <= len(self.key) and each.path == self.key[:depth]:
                return self._inner(each.value, self.key[depth:])
        return None

    def _inner(self, start: int, rest: Path) -> _Inline:
        items, pairs = self._parts.pairs(self.text.body[start:])
        for pair in pairs:
            if rest and pair.path == rest[: len(pair.path)]:
                return self._inner(start + pair.value, rest[len(pair.path) :])
        return _Inline(start, start + items.end + 1, rest)

    def _edited_inline(self, inner: _Inline, changes: Mapping[str, JsonValue | None]) -> str:
        body = self.text.body
        edited = self._edited_table(body[inner.start : inner.end], inner.rest, changes)
        return apply(body, [Splice(inner.start, inner.end, edited)])

    def _edited_table(self, text: str, rest: Path, changes: Mapping[str, JsonValue | None]) -> str:
        """The inline table *text* with *changes*."""
        items, pairs = self._parts.pairs(text)
        new: dict[str, JsonValue] = {
            name: entry for name, entry in changes.items() if entry is not None and name not in self.held
        }
        if rest:
            if any(pair.path[0] == rest[0] for pair in pairs):
                raise InvalidConfig(f"{self.text.where}: {show(self.key)} is in dotted keys inline; edit it by hand")
            return add(text, items, lambda _: [line(rest[:1], at_path(new, rest[1:]))], _ONE_LINE)
        splices = []
        gone = []
        for name, entry in changes.items():
            numbers = [number for number, pair in enumerate(pairs) if pair.path[0] == name]
            if numbers and entry is not None:
                first = pairs[numbers[0]]
                if len(first.path) == 1:
                    splices.append(Splice(first.value, first.end, inline(entry)))
                else:
                    splices.append(Splice(items.spans[numbers[0]][0], first.end, line((name,), entry)))
                gone += numbers[1:]
            else:
                gone += numbers
        # The numbers of items stay what they are when items are replaced, and when others come behind them.
        text = apply(text, splices)
        if new:
            lines = [line((name,), entry) for name, entry in new.items()]
            text = add(text, self._parts.pairs(text)[0], lambda _: lines, _ONE_LINE)
        return remove(text, self._parts.pairs(text)[0], gone) if gone else text


def _load(text: Text) -> dict[str, Any]:
    try:
        model = parse_toml(text.body)
    except ValueError as error:
        place = _LINE.search(str(error))
        line = f":{place[1]}" if place else ""
        what = printable(_LINE.sub("", str(error)).strip())
        column = f" (column {place[2]})" if place else ""
        raise InvalidConfig(f"{text.where}{line}: not TOML: {what}{column}") from None
    level: list[object] = [model]
    for _ in range(MAX_DEPTH):
        level = [
            below
            for value in level
            for below in (value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
        ]
        if not level:
            return model
    raise text.fault(0, f"nested deeper than {MAX_DEPTH} levels")


def _jsonable(value: Any) -> JsonValue:
    if isinstance(value, dict):
        return {name: _jsonable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_jsonable(each) for each in value]
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    found: JsonValue = value
    return found
