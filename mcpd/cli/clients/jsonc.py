# SPDX-License-Identifier: LGPL-2.1-or-later
"""Client files in JSON, with comments and trailing commas or without, changed in place.

What is not strict JSON is blanked, so that the standard library's parser decides what the file means and where each
value is; positions in the blanked text are those in the file.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from mcpd.cli.clients.containers import Items, Style, add, remove, unit_of
from mcpd.cli.clients.texts import BLANK, Splice, apply, at_path, first_on_line, indent_at, show
from mcpd.model import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mcpd.cli.clients.editing import Shape
    from mcpd.cli.clients.texts import Text
    from mcpd.model import JsonValue

_STRING: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*"'
_COMMENT: Final = re.compile(rf'{_STRING}|//[^\r\n]*+|/\*.*?\*/|/\*|"', re.DOTALL)
_TRAILING: Final = re.compile(
    rf'((?:{_STRING}|[\]}}0-9A-Za-z])[ \t\r\n]*+),(?=[ \t\r\n]*+[\]}}])|{_STRING}|".*', re.DOTALL
)
_GAP: Final = re.compile(r"[ \t\r\n]*+")
_UNIT: Final = "  "
_KINDS: Final = {"map": ("{", "}", "an object"), "list": ("[", "]", "a list")}


@dataclass(frozen=True, slots=True)
class _Member:
    """A member of an object, or an item of a list, whose *name* is empty."""

    name: str
    start: int
    value_start: int
    end: int
    value: JsonValue


@dataclass(frozen=True, slots=True)
class _Container:
    """An object or list: its brackets are at *start* and *end* - 1."""

    start: int
    end: int
    members: list[_Member]
    items: Items


@dataclass(frozen=True)
class JsonDocument:
    """A parsed file.

    *around* are the objects from the whole document down to what holds the servers, as far as there are any;
    *plain* is the text without comments, *strict* also without trailing commas.
    """

    text: Text
    key: tuple[str, ...]
    shape: Shape
    plain: str
    strict: str
    model: JsonValue
    around: list[_Container]

    @classmethod
    def parse(cls, text: Text, key: Sequence[str], shape: Shape) -> JsonDocument:
        """The document *text*, whose servers are at *key*; raises :class:`~mcpd.errors.InvalidConfig`."""
        plain = _without_comments(text)
        if not plain.strip(BLANK):
            return cls(text, tuple(key), shape, plain, plain, {}, [])
        strict = _TRAILING.sub(lambda found: f"{found[1]} " if found[1] else found[0], plain)
        model = _load(text, strict)
        document = cls(text, tuple(key), shape, plain, strict, model, [])
        document._descend()
        return document

    @cached_property
    def servers(self) -> dict[str, JsonValue]:
        """The servers by name, in their order."""
        return {name: member.value for name, member in self._members.items()}

    def edited(self, changes: Mapping[str, JsonValue | None]) -> str:
        """The text with *changes*."""
        if len(self.around) <= len(self.key):
            return self._made({name: entry for name, entry in changes.items() if entry is not None})
        held = self._members
        body = self.text.body
        splices = []
        for name, entry in changes.items():
            if entry is not None and name in held:
                member = held[name]
                splices.append(Splice(member.value_start, member.end, self._replacement(member, entry)))
        body = apply(body, splices)
        new: dict[str, JsonValue] = {
            name: entry for name, entry in changes.items() if entry is not None and name not in held
        }
        if new:
            body = self._again(body).added(new)
        if gone := {name for name, entry in changes.items() if entry is None}:
            body = self._again(body).removed(gone)
        return body

    def _again(self, body: str) -> JsonDocument:
        return JsonDocument.parse(self.text.with_body(body), self.key, self.shape)

    def _descend(self) -> None:
        """Find the containers along the key."""
        at = _GAP.match(self.strict, 0).end()  # type: ignore[union-attr]  # it matches nothing, too
        value = self.model
        for depth in range(len(self.key) + 1):
            shape = "map" if depth < len(self.key) else self.shape
            if value is None and depth:
                return
            if self.strict[at] != _KINDS[shape][0]:
                what = show(self.key[:depth]) or "the document"
                raise self.text.fault(at, f"{what} is not {_KINDS[shape][2]}")
            container = self._container(at, shape)
            self.around.append(container)
            if depth == len(self.key):
                return
            found = [member for member in container.members if member.name == self.key[depth]]
            if len(found) > 1:
                raise self.text.fault(found[1].start, f"{show(self.key[: depth + 1])} is there twice; remove one")
            if not found:
                return
            at, value = found[0].value_start, found[0].value

    def _container(self, start: int, shape: str) -> _Container:
        """The object or list that opens at *start*."""
        strict, decode = self.strict, json.JSONDecoder().raw_decode
        members: list[_Member] = []
        commas: list[int | None] = []
        at = _skip(strict, start + 1)
        while strict[at] != _KINDS[shape][1]:
            first, name = at, ""
            if shape == "map":
                name, at = decode(strict, at)
                at = _skip(strict, _skip(strict, at) + 1)
            value, end = decode(strict, at)
            members.append(_Member(name, first, at, end, value))
            comma = _skip(self.plain, end)
            commas.append(comma if self.plain[comma] == "," else None)
            at = _skip(strict, end)
            if strict[at] == ",":
                at = _skip(strict, at + 1)
        items = Items(start + 1, at, [(member.start, member.end) for member in members], commas)
        return _Container(start, at + 1, members, items)

    @cached_property
    def _members(self) -> dict[str, _Member]:
        """The servers; raises :class:`~mcpd.errors.InvalidConfig` if two have one name."""
        found: dict[str, _Member] = {}
        if len(self.around) <= len(self.key):
            return found
        for member in self.around[-1].members:
            name = member.name
            if self.shape == "list":
                given = member.value.get("name") if isinstance(member.value, dict) else None
                if not isinstance(given, str):
                    continue
                name = given
            if name in found:
                raise self.text.fault(member.start, f"two servers are called {printable(name)}; rename or remove one")
            found[name] = member
        return found

    def foreign(self) -> JsonValue:
        """Return the model with None for a map of servers, and with the items that are no servers of a list of them."""
        rest: JsonValue = None
        if len(self.around) > len(self.key) and self.shape == "list":
            names = {member.start for member in self._members.values()}
            rest = [member.value for member in self.around[-1].members if member.start not in names] or None
        model = self.model
        holders: list[dict[str, JsonValue]] = []
        for name in self.key:
            holders.append(model if isinstance(model, dict) else {})
            model = holders[-1].get(name)
        for name, holder in zip(reversed(self.key), reversed(holders), strict=True):
            rest = {**holder, name: rest}
        return rest

    @property
    def _style(self) -> Style:
        body = self.text.body
        units = [unit for container in reversed(self.around) if (unit := unit_of(body, container.items))]
        spread = not self.around or "\n" in body.strip(BLANK) or "\r" in body.strip(BLANK) or not self.model
        compact = not spread and re.search(r'":[ \t]', self.strict) is None and ":" in self.strict
        return Style(self.text.newline, units[0] if units else _UNIT, spread, compact)

    def _made(self, entries: dict[str, JsonValue]) -> str:
        """The text with the path to the servers, and *entries*."""
        value: JsonValue = list(entries.values()) if self.shape == "list" else entries
        body, style = self.text.body, self._style
        if not self.around:
            new = _dump(at_path(value, self.key), style, "")
            if not body.strip(BLANK):
                return new + style.newline
            ended = body.endswith(("\n", "\r"))
            return body + ("" if ended else style.newline) + new + (style.newline if ended else "")
        depth = len(self.around) - 1
        holder, name = self.around[-1], self.key[depth]
        value = at_path(value, self.key[depth + 1 :])
        for member in holder.members:
            if member.name == name:  # null
                return apply(body, [Splice(member.value_start, member.end, self._replacement(member, value))])
        return add(body, holder.items, _renderer({name: value}, style, "map"), style)

    def _replacement(self, member: _Member, value: JsonValue) -> str:
        """*value* laid out as what it takes the place of."""
        body, style = self.text.body, self._style
        old = body[member.value_start : member.end]
        nested = isinstance(member.value, dict | list) and bool(member.value)
        if "\n" in old or "\r" in old or (style.spread and not nested and first_on_line(body, member.start)):
            return _dump(value, style, indent_at(body, member.start))
        return _dump(value, replace(style, compact=style.compact and ": " not in old), None)

    def added(self, entries: dict[str, JsonValue]) -> str:
        """The text with *entries* behind the servers that it holds."""
        style = self._style
        return add(self.text.body, self.around[-1].items, _renderer(entries, style, self.shape), style)

    def removed(self, names: set[str]) -> str:
        """The text without the servers *names*."""
        container = self.around[-1]
        starts = {member.start for name, member in self._members.items() if name in names}
        gone = [number for number, member in enumerate(container.members) if member.start in starts]
        return remove(self.text.body, container.items, gone)


def _renderer(entries: dict[str, JsonValue], style: Style, shape: str) -> Callable[[str | None], list[str]]:
    def render(indent: str | None) -> list[str]:
        values = {name: _dump(entry, style, indent) for name, entry in entries.items()}
        if shape == "list":
            return list(values.values())
        colon = ":" if style.compact else ": "
        return [json.dumps(name, ensure_ascii=False) + colon + value for name, value in values.items()]

    return render


def _dump(value: JsonValue, style: Style, indent: str | None) -> str:
    """*value* as JSON, on one line if *indent* is None, else with *indent* on all lines but the first."""
    if indent is None:
        separators = (",", ":") if style.compact else (", ", ": ")
        return json.dumps(value, ensure_ascii=False, separators=separators)
    return json.dumps(value, ensure_ascii=False, indent=style.unit).replace("\n", style.newline + indent)


def _skip(text: str, at: int) -> int:
    """Where the white space at *at* ends."""
    found = _GAP.match(text, at)
    return found.end() if found else at


def _without_comments(text: Text) -> str:
    if "/" not in text.body:
        return text.body

    def blank(found: re.Match[str]) -> str:
        whole = found.group()
        if whole in {'"', "/*"}:
            raise text.fault(found.start(), "a comment is not closed" if whole == "/*" else "a string is not closed")
        return re.sub(r"[^\r\n]", " ", whole) if whole.startswith("/") else whole

    return _COMMENT.sub(blank, text.body)


def _load(text: Text, strict: str) -> JsonValue:
    try:
        model: JsonValue = json.loads(strict, parse_constant=_no_constant)
    except RecursionError:
        raise text.fault(0, "nested too deeply to be read") from None
    except json.JSONDecodeError as error:
        raise text.fault(error.pos, f"not JSON: {error.msg} (column {error.colno})") from None
    except ValueError as error:
        raise text.fault(0, f"not JSON: {error}") from None
    return model


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
