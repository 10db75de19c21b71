# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reading the servers in a client's file, and changing some of them without touching the rest.

Comments, order, indentation, line breaks, a byte order mark, a missing line break at the end, other settings and other
servers stay byte for byte. The result is parsed again and compared with the intended one before it is returned.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from mcpd.errors import InvalidConfig
from mcpd.model import check_json, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from mcpd.clients.families import Format, Shape
    from mcpd.model import JsonValue

    Render = Callable[[str | None], list[str]]
    """Renders new items with the given indentation; None: on one line."""

MAX_BYTES: Final[dict[str, int]] = {"json": 8 << 20, "jsonc": 8 << 20, "toml": 512 << 10, "yaml": 512 << 10}
"""The largest file that is read, in bytes: the parsers differ in speed by a factor of a hundred."""
MAX_DEPTH: Final = 200
"""Maximum nesting depth of a file; every parser supports more."""
BLANK: Final = " \t\r\n"
"""White space of JSON, TOML and YAML; other whitespace of Unicode is text to them."""
_BOM: Final = b"\xef\xbb\xbf"
_NEWLINE: Final = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Text:
    """The text of a file, called *where* in messages."""

    body: str
    bom: bool
    where: str

    @classmethod
    def decode(cls, data: bytes, where: str) -> Text:
        """Return the text in *data*, UTF-8 with or without a byte order mark.

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
            raise text.fault(at, "not a text file: it contains a NUL byte")
        return text

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        return (_BOM if self.bom else b"") + self.body.encode()

    def with_body(self, body: str) -> Text:
        """Return the same file with the content *body*."""
        return Text(body, self.bom, self.where)

    def line(self, at: int) -> int:
        """Return the number of the line of character *at*, counted from 1."""
        return sum(1 for _ in _NEWLINE.finditer(self.body, 0, at)) + 1

    def fault(self, at: int, what: str) -> InvalidConfig:
        """Return the error with the message *what* for the line of character *at*."""
        return InvalidConfig(f"{self.where}:{self.line(at)}: {what}")

    @property
    def newline(self) -> str:
        """The line break at the end of the first line."""
        found = _NEWLINE.search(self.body)
        return found.group() if found else "\n"


class Splice(NamedTuple):
    """Replacement of the characters from *start* to *end* with *new*."""

    start: int
    end: int
    new: str = ""


def apply(text: str, splices: Iterable[Splice]) -> str:
    """Return *text* with all *splices* applied; positions refer to the original *text*, and cuts may overlap."""
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
    """Return where the line of character *at* begins."""
    return max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1


def next_line(text: str, at: int) -> int:
    """Return where the line after that of character *at* begins, or where the text ends."""
    found = _NEWLINE.search(text, at)
    return found.end() if found else len(text)


def indent_at(text: str, at: int) -> str:
    """Return the whitespace at the beginning of the line of character *at*."""
    start = end = line_start(text, at)
    while text[end : end + 1] in {" ", "\t"}:
        end += 1
    return text[start:end]


def first_on_line(text: str, at: int) -> bool:
    """Return True if character *at* is the first of its line, but for whitespace."""
    return not text[line_start(text, at) : at].strip(BLANK)


def same(one: object, other: object) -> bool:
    """Return True if two values are the same to every parser: ``1``, ``1.0`` and ``true`` differ; order does not count.

    Nothing here recurses, as the values may be hostile.
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
    """Return *key*, the path to a value, for a message."""
    return printable(".".join(key))


def at_path(value: JsonValue, keys: Sequence[str]) -> JsonValue:
    """Return *value* within an object for each of *keys*, the first outermost."""
    for name in reversed(keys):
        value = {name: value}
    return value


def walk(value: object) -> Iterator[object]:
    """Yield *value* and everything in it. Nothing here recurses, as the values may be hostile."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        yield found
        if isinstance(found, dict):
            waiting.extend(found.values())
        elif isinstance(found, list):
            waiting.extend(found)


_MAX_SAMPLED: Final = 5
"""Maximum number of items whose indentation is examined, because a whole file may be one long line."""


@dataclass(frozen=True, slots=True)
class Style:
    """Layout of a file: *unit* is one step of indentation, *spread* is False if all is on one line."""

    newline: str
    unit: str
    spread: bool
    compact: bool = False
    """True if there is no space after ``,`` and ``:``."""


@dataclass(frozen=True, slots=True)
class Items:
    """Content between the brackets at *start* - 1 and *end*.

    *spans* are the items, *commas* the positions of the comma after each, None if there is none (after the last one).
    """

    start: int
    end: int
    spans: Sequence[tuple[int, int]]
    commas: Sequence[int | None]


def unit_of(text: str, items: Items) -> str | None:
    """Return the whitespace by which *items* are indented; None if none of them begins a line."""
    base = indent_at(text, items.start)
    for start, _ in items.spans[:_MAX_SAMPLED]:
        indent = indent_at(text, start)
        if first_on_line(text, start) and indent.startswith(base) and indent != base:
            return indent[len(base) :]
    return None


def add(text: str, items: Items, render: Render, style: Style) -> str:
    """Return *text* with new items after the last of *items*."""
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
    """Return where the content of the brackets ends, with the whitespace that ends its line, possibly a comment's."""
    at = items.start + len(text[items.start : items.end].rstrip(BLANK))
    behind = at + len(text[at : items.end]) - len(text[at : items.end].lstrip(" \t"))
    return behind if at > items.start and text[behind] in "\r\n" else at


def _fill(text: str, items: Items, render: Render, style: Style, at: int) -> str:
    """Return *text* with new items between brackets that were empty, except for possible comments up to *at*."""
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
    """Return *text* without the items at the indexes *gone*, including their commas and whitespace."""
    kept = [number for number in range(len(items.spans)) if number not in gone]
    last = kept[-1] if kept else -1
    cuts = [cut for number in gone for cut in _cuts(text, items, number, last=number > last)]
    if kept and items.commas[-1] is None and kept[-1] != len(items.spans) - 1:
        comma = items.commas[kept[-1]]
        if comma is not None:
            cuts.append(Splice(comma, comma + 1))
    if not kept:
        inner = apply(text[: items.end], cuts)[items.start :]
        return text[: items.start] + (inner if inner.strip(BLANK) else "") + text[items.end :]
    return apply(text, cuts)


def _cuts(text: str, items: Items, number: int, *, last: bool) -> list[Splice]:
    """Return the cuts that remove an item; *last*: no item stays behind it."""
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

    *around* are the objects from the whole document down to the container of the servers, as far as they exist; *plain*
    is the text without comments, *strict* also without trailing commas.
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
        """Parse *text*, whose servers are at *key*. Raises :class:`~mcpd.errors.InvalidConfig`."""
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
        """Return the servers by name, in order."""
        return {name: member.value for name, member in self._members.items()}

    def edited(self, changes: Mapping[str, JsonValue | None]) -> str:
        """Return the text with *changes*."""
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
                raise self.text.fault(found[1].start, f"{show(self.key[: depth + 1])} occurs twice; remove one")
            if not found:
                return
            at, value = found[0].value_start, found[0].value

    def _container(self, start: int, shape: str) -> _Container:
        """Return the object or list that opens at *start*."""
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
        """Return the servers; raises :class:`~mcpd.errors.InvalidConfig` if two have the same name."""
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
                raise self.text.fault(member.start, f"two servers are named {printable(name)}; rename or remove one")
            found[name] = member
        return found

    def foreign(self) -> JsonValue:
        """Return the model with None for a map of servers, and the items of a list of them that are not servers."""
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
        """Return the text with a new container of *entries*, including any missing objects on the path to it."""
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
        """Return *value* in the layout of what it replaces."""
        body, style = self.text.body, self._style
        old = body[member.value_start : member.end]
        nested = isinstance(member.value, dict | list) and bool(member.value)
        if "\n" in old or "\r" in old or (style.spread and not nested and first_on_line(body, member.start)):
            return _dump(value, style, indent_at(body, member.start))
        return _dump(value, replace(style, compact=style.compact and ": " not in old), None)

    def added(self, entries: dict[str, JsonValue]) -> str:
        """Return the text with *entries* after its servers."""
        style = self._style
        return add(self.text.body, self.around[-1].items, _renderer(entries, style, self.shape), style)

    def removed(self, names: set[str]) -> str:
        """Return the text without the servers *names*."""
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
    """Return *value* as JSON, on one line if *indent* is None, else with *indent* on all lines but the first."""
    if indent is None:
        separators = (",", ":") if style.compact else (", ", ": ")
        return json.dumps(value, ensure_ascii=False, separators=separators)
    return json.dumps(value, ensure_ascii=False, indent=style.unit).replace("\n", style.newline + indent)


def _skip(text: str, at: int) -> int:
    """Return where the whitespace at *at* ends."""
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
        raise text.fault(0, "nested too deeply") from None
    except json.JSONDecodeError as error:
        raise text.fault(error.pos, f"not JSON: {error.msg} (column {error.colno})") from None
    except ValueError as error:
        raise text.fault(0, f"not JSON: {error}") from None
    return model


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


class Document(Protocol):
    """A client's file, parsed, with the positions of its servers."""

    @property
    def model(self) -> object:
        """Return the content of the whole file: nested maps and lists, with the names of all settings."""

    @property
    def servers(self) -> dict[str, JsonValue]:
        """Return the servers by name, in order."""

    def edited(self, changes: Mapping[str, JsonValue | None]) -> str:
        """Return the text with *changes*, each of which changes something."""

    def foreign(self) -> object:
        """Return everything but the servers, for comparison."""


def read(data: bytes, form: Format, key: Sequence[str], shape: Shape, where: str) -> dict[str, JsonValue]:
    """Return the servers in the file *data*, of format *form*, by name and in the order of the file.

    *key* is the path to them. They are a map, or (*shape* ``list``) a list of objects with a ``name`` each. There are
    none if the key or all content is missing. ``json`` may have comments, as clients allow that.

    Raises :class:`~mcpd.errors.InvalidConfig`, which names *where*, mostly with the line, for a file that cannot be
    parsed, is larger than :data:`MAX_BYTES`, or has something other than servers at the key.
    """
    servers = _parse(_text(data, form, where), form, key, shape).servers
    _check(servers, where)
    return servers


def names(data: bytes, form: Format, key: Sequence[str], shape: Shape, where: str) -> set[str]:
    """Return the names of all settings in the file, at any depth. Arguments and errors are those of :func:`read`."""
    document = _parse(_text(data, form, where), form, key, shape)
    return {name for value in walk(document.model) if isinstance(value, dict) for name in value}


def edit(
    data: bytes, form: Format, key: Sequence[str], shape: Shape, changes: Mapping[str, JsonValue | None], where: str
) -> bytes:
    """Return the file *data* with *changes*: entries to put by name, None for those to remove.

    Entries that need no change stay unchanged, replaced ones keep their place, and new ones come last. An entry of a
    list is given its ``name`` if it has none. A missing path to the servers is created. Arguments and errors are those
    of :func:`read`; a file that cannot be edited safely is an error as well.
    """
    text = _text(data, form, where)
    before = _parse(text, form, key, shape)
    wanted = {name: _entry(name, entry, shape, where) for name, entry in changes.items()}
    held = before.servers
    _check(held, where)
    wanted = {
        name: entry
        for name, entry in wanted.items()
        if (name in held if entry is None else name not in held or not same(held[name], entry))
    }
    if not wanted:
        return data
    new = text.with_body(before.edited(wanted))
    if len(result := new.encode()) > MAX_BYTES[form]:
        raise InvalidConfig(f"{where}: would become larger than {MAX_BYTES[form] >> 10} KiB")
    try:
        fault = _difference(before, _parse(new, form, key, shape), wanted)
    except InvalidConfig as error:
        fault = error.message.removeprefix(where).lstrip(":")
    if fault:
        raise InvalidConfig(f"{where}: cannot be changed without other changes ({fault}); edit it by hand")
    return result


def _difference(before: Document, after: Document, changes: Mapping[str, JsonValue | None]) -> str:
    """Return an error message if *after* differs from *before* in more than *changes*; else empty."""
    meant = {name: entry for name, entry in before.servers.items() if name not in changes}
    names = [name for name in after.servers if name not in changes]
    wanted = {name: entry for name, entry in changes.items() if entry is not None}
    if names != list(meant) or not same(after.servers, {**meant, **wanted}):
        return "other servers would change"
    return "" if same(after.foreign(), before.foreign()) else "other settings would change"


def _text(data: bytes, form: Format, where: str) -> Text:
    if len(data) > MAX_BYTES[form]:
        raise InvalidConfig(
            f"{where}: larger than {MAX_BYTES[form] >> 10} KiB, the limit for this format; edit it by hand"
        )
    return Text.decode(data, where)


def _entry(name: str, entry: JsonValue | None, shape: Shape, where: str) -> JsonValue | None:
    """Return *entry* as it is in the file."""
    shown = f"{where}: {printable(name)}"
    _check({name: entry}, where)
    if entry is None or shape == "map":
        return entry
    if not isinstance(entry, dict):
        raise InvalidConfig(f"{shown}: not an object; list entries must be objects")
    if entry.get("name", name) != name:
        raise InvalidConfig(f"{shown}: has a different name, {printable(str(entry['name']))}")
    return entry if "name" in entry else {"name": name, **entry}


def _check(servers: Mapping[str, JsonValue], where: str) -> None:
    """Check that the *servers* contain nothing that cannot be compared, recorded and shown."""
    for name, entry in servers.items():
        try:
            check_json({name: entry})
        except ValueError as error:
            fault = str(error)
            if fault.startswith(("'", '"')):  # it quotes the text, which may be a secret
                fault = "a text in it contains a character that cannot be written (NUL or a lone surrogate)"
            raise InvalidConfig(f"{where}: {printable(name)}: cannot be used: {fault}") from None


def _parse(text: Text, form: Format, key: Sequence[str], shape: Shape) -> Document:
    if form == "toml":
        from mcpd.clients.toml import TomlDocument  # the parsers are slow to import

        return TomlDocument.parse(text, key, shape)
    if form == "yaml":
        from mcpd.clients.yaml import YamlDocument

        return YamlDocument.parse(text, key, shape)
    return JsonDocument.parse(text, key, shape)
