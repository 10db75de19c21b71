# SPDX-License-Identifier: LGPL-2.1-or-later
"""Client files in YAML, changed in place: in block style by lines, in flow style between the brackets."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from mcpd.cli.clients.containers import Items, Style, add, remove, unit_of
from mcpd.cli.clients.texts import (
    BLANK,
    Splice,
    apply,
    at_path,
    first_on_line,
    indent_at,
    line_start,
    next_line,
    same,
    show,
)
from mcpd.cli.clients.yaml_nodes import MERGE, Node, Place, construct, marks, name_of, parse
from mcpd.cli.clients.yaml_writing import Layout, below, block, inline, item, pair, quoted
from mcpd.model import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcpd.cli.clients.editing import Document, Shape
    from mcpd.cli.clients.texts import Text
    from mcpd.model import JsonValue

_COLON: Final = re.compile(r"[ \t]*:")
_KINDS: Final = {"map": "a map", "list": "a list"}


@dataclass(frozen=True)
class YamlDocument:
    """A parsed file: *around* are the maps from the root down to what holds the servers, as far as there are any.

    *holders* are the keys along the path, each with its value.
    """

    text: Text
    key: tuple[str, ...]
    shape: Shape
    root: Node | None
    around: list[Node]
    holders: list[tuple[Node, Node]]

    @classmethod
    def parse(cls, text: Text, key: Sequence[str], shape: Shape) -> YamlDocument:
        """The document *text*, whose servers are at *key*; raises :class:`~mcpd.errors.InvalidConfig`."""
        document = cls(text, tuple(key), shape, parse(text), [], [])
        document._descend()
        return document

    @property
    def model(self) -> list[dict[str, None]]:
        """The maps in the file, their names alone: values may stand for more than can be read."""
        nodes = self.root.walk() if self.root else ()
        return [{key.value: None for key, _ in node.pairs} for node in nodes if node.kind == "map"]

    @cached_property
    def servers(self) -> dict[str, JsonValue]:
        """The servers by name, in their order."""
        values = construct(self.text, (place.value for place in self.places.values()))
        return dict(zip(self.places, values, strict=True))

    def edited(self, changes: Mapping[str, JsonValue | None]) -> str:
        """The text with *changes*."""
        for node in self.around:
            if node.anchor is not None or node.tag is not None:
                raise self.text.fault(node.start, "the map around the servers has an anchor or a tag; edit it by hand")
        new: dict[str, JsonValue] = {
            name: entry for name, entry in changes.items() if entry is not None and name not in self.places
        }
        if not self._complete:
            return self._made(new)
        for name in changes:
            if name in self.places and any(node.anchor is not None for node in self.places[name].value.walk()):
                raise self.text.fault(
                    self.places[name].start, f"{printable(name)} has an anchor that others may use; edit it by hand"
                )
        if self.around[-1].flow:
            return self._edited_flow(changes, new)
        return self._edited_block(changes, new)

    def differs(self, before: Document, changes: Mapping[str, JsonValue | None]) -> str:
        """What is not as it was in *before* but for *changes*; empty if all is."""
        if not isinstance(before, YamlDocument):
            return "another format"
        names = [name for name in before.places if changes.get(name, True) is not None]
        names += [name for name, entry in changes.items() if entry is not None and name not in before.places]
        if list(self.places) != names:
            return "other servers would change"
        for name, place in self.places.items():
            if name in changes:
                if not same(self.servers[name], changes[name]):
                    return f"{printable(name)} would not be what it should be"
            elif place.value.shape() != before.places[name].value.shape():
                return f"{printable(name)} would change"
        return "" if self.foreign() == before.foreign() else "other settings would change"

    @property
    def _complete(self) -> bool:
        return len(self.around) > len(self.key)

    def _descend(self) -> None:
        """Find the maps along the key."""
        node = self.root
        for depth in range(len(self.key) + 1):
            if node is None or node.is_null:
                return
            kind = "map" if depth < len(self.key) else self.shape
            if node.kind != kind:
                what = show(self.key[:depth]) or "the document"
                raise self.text.fault(node.start, f"{what} is not {_KINDS[kind]}")
            self.around.append(node)
            if depth == len(self.key):
                return
            found = [each for each in node.pairs if name_of(self.text, each[0]) == self.key[depth]]
            if len(found) > 1:
                raise self.text.fault(found[1][0].start, f"{show(self.key[: depth + 1])} is there twice; remove one")
            if any(key.value == MERGE and key.plain for key, _ in node.pairs):
                raise self.text.fault(node.start, "a merge key (<<) is beside or in the way to the servers; resolve it")
            if not found:
                return
            self.holders.append(found[0])
            node = found[0][1]

    @cached_property
    def places(self) -> dict[str, Place]:
        """The servers; raises :class:`~mcpd.errors.InvalidConfig` if two have one name."""
        found: dict[str, Place] = {}
        if not self._complete:
            return found
        for place in self._all_places():
            name = self._given_name(place.value) if place.key is None else name_of(self.text, place.key)
            if name == MERGE and place.key is not None and place.key.plain:
                raise self.text.fault(place.start, "a merge key (<<) is among the servers; resolve it")
            if name is not None and name in found:
                raise self.text.fault(place.start, f"two servers are called {printable(name)}; rename or remove one")
            if name is not None:
                found[name] = place
        return found

    def _given_name(self, value: Node) -> str | None:
        """The name that an item of a list holds."""
        names = [found for key, found in value.pairs if key.value == "name"] if value.kind == "map" else []
        node = (names[-1].target or names[-1]) if names else None
        if node is None or node.kind != "scalar":
            return None
        (name,) = construct(self.text, [node])
        return name if isinstance(name, str) else None

    def foreign(self) -> list[object]:
        """What the file holds beside servers and the path to them."""
        foreign: list[object] = []
        for name, node in zip(self.key, self.around, strict=False):
            foreign += [(key.shape(), value.shape()) for key, value in node.pairs if key.value != name]
        if self._complete and self.shape == "list":
            ours = {place.number for place in self.places.values()}
            foreign += [node.shape() for number, node in enumerate(self.around[-1].children) if number not in ours]
        return foreign

    @cached_property
    def _marks(self) -> tuple[list[int], list[int]]:
        return marks(self.text)

    @cached_property
    def _layout(self) -> Layout:
        """The steps of indentation, from what is nearest to the servers."""
        steps: dict[str, int] = {}
        for top in reversed([self.root, *self.around]):
            for node in top.walk() if top else ():
                for key, value in node.pairs if node.kind == "map" and not node.flow else ():
                    step = self._column(value) - self._column(key)
                    if value.kind in {"map", "list"} and not value.flow and step >= 0:
                        steps.setdefault(value.kind, step)
        return Layout(max(steps.get("map", 2), 1), steps.get("list", 2))

    def _column(self, node: Node) -> int:
        return node.start - line_start(self.text.body, node.start)

    # -- block style

    def _edited_block(self, changes: Mapping[str, JsonValue | None], new: Mapping[str, JsonValue]) -> str:
        body, container, splices = self.text.body, self.around[-1], []
        column = self._column(container)
        for name, entry in changes.items():
            if place := self.places.get(name):
                start, end = self._lines(place)
                lines = self._rendered(place, entry, column) if entry is not None else []
                splices.append(Splice(start, end, "".join(line + self.text.newline for line in lines)))
        last = self._all_places()[-1]
        if new:
            splices.append(self._inserted(self._after(last.end), block(self._held(new), column, self._layout)))
        gone = [name for name, entry in changes.items() if entry is None and name in self.places]
        if len(gone) == len(self._all_places()) and not new and self.holders:
            at = self._colon(self.holders[-1][0])
            splices.append(Splice(at, at, " {}" if self.shape == "map" else " []"))
        return self._ended(apply(body, splices))

    def _all_places(self) -> list[Place]:
        container = self.around[-1]
        if self.shape == "map":
            return [Place(number, key, value) for number, (key, value) in enumerate(container.pairs)]
        return [Place(number, None, value) for number, value in enumerate(container.children)]

    def _held(self, entries: Mapping[str, JsonValue]) -> JsonValue:
        """*entries* as the file holds them."""
        return list(entries.values()) if self.shape == "list" else dict(entries)

    def _rendered(self, place: Place, entry: JsonValue, column: int) -> list[str]:
        if place.key is None:
            return item(entry, column, self._layout)
        head = self.text.body[line_start(self.text.body, place.start) : self._colon(place.key)]
        return below(head, entry, column, self._layout)

    def _lines(self, place: Place) -> tuple[int, int]:
        """Where the lines of a server begin and end; blank lines behind it are not its own."""
        body, start = self.text.body, place.start
        if place.key is None:
            dashes = self._marks[0]
            start = dashes[bisect_left(dashes, start) - 1]
        if not first_on_line(body, start):
            raise self.text.fault(start, "a server does not begin on a line of its own; edit it by hand")
        end = self._after(place.end)
        return line_start(body, start), min(end, next_line(body, start + len(body[start:end].rstrip(BLANK))))

    def _after(self, at: int) -> int:
        """Where the line after the value that ends at *at* begins."""
        return at if self.text.body[at - 1 : at] in {"\n", "\r"} else next_line(self.text.body, at)

    def _ended(self, new: str) -> str:
        """*new* with a line break at its end only if the file has one there."""
        if not self.text.body.endswith(("\n", "\r")) and new.endswith(("\n", "\r")):
            return new[: -2 if new.endswith("\r\n") else -1]
        return new

    def _inserted(self, at: int, lines: list[str]) -> Splice:
        body, newline = self.text.body, self.text.newline
        if at and not body[:at].endswith(("\n", "\r")):
            return Splice(at, at, "".join(newline + line for line in lines))
        return Splice(at, at, "".join(line + newline for line in lines))

    def _colon(self, key: Node) -> int:
        """Where the colon after *key* ends."""
        found = _COLON.match(self.text.body, key.end)
        if found is None:
            raise self.text.fault(key.start, "a key is not followed by a colon on its line; edit it by hand")
        return found.end()

    # -- what is not there yet

    def _made(self, entries: dict[str, JsonValue]) -> str:
        """The text with the path to the servers, and *entries*."""
        value = self._held(entries)
        body, depth = self.text.body, len(self.around)
        if not depth:
            root = self.root
            if root is not None and (root.end > root.start or root.tag or root.anchor):  # null, ~
                raise self.text.fault(root.start, "the document is not a map")
            lines = block(at_path(value, self.key), 0, self._layout)
            if body.strip():
                return apply(body, [self._inserted(len(body), lines)])
            return "".join(line + self.text.newline for line in lines)
        if len(self.holders) == depth:
            return self._filled(self.holders[-1], at_path(value, self.key[depth:]))
        holder, name = self.around[-1], self.key[depth - 1]
        value = at_path(value, self.key[depth:])
        if holder.flow:
            if not holder.children:
                return self._filled(self.holders[-1] if self.holders else (None, holder), {name: value})
            return self.added_flow(holder, [f"{quoted(name)}: {inline(value)}"])
        at = self._after(max(holder.end, holder.children[-2].end))
        return apply(body, [self._inserted(at, pair(name, value, self._column(holder), self._layout))])

    def _filled(self, holder: tuple[Node | None, Node], value: JsonValue) -> str:
        """The text with *value* in place of nothing, ``null``, ``{}`` or ``[]``."""
        key, old = holder
        body = self.text.body
        if old.anchor is not None or old.tag is not None:
            raise self.text.fault(old.start, "the map around the servers has an anchor or a tag; edit it by hand")
        outer = self.around[: self.around.index(old)] if old in self.around else self.around
        if any(node.flow for node in outer):
            return apply(body, [Splice(old.start, old.end, inline(value))])
        if key is None:
            lines = block(value, 0, self._layout)
            new = "".join(line + self.text.newline for line in lines)
            start = line_start(body, old.start)
            return self._ended(apply(body, [Splice(start, next_line(body, old.end), new)]))
        column = self._column(key)
        step = self._layout.map_step if isinstance(value, dict) else self._layout.list_step
        colon = self._colon(key)
        cut = [Splice(colon, old.end)] if old.end > old.start and old.start >= colon else []
        if cut and body[colon : old.start].strip(" \t"):
            raise self.text.fault(colon, "there is something between a key and its value; edit it by hand")
        at = next_line(body, max(old.end, colon))
        return apply(body, [*cut, self._inserted(at, block(value, column + step, self._layout))])

    # -- flow style

    def _edited_flow(self, changes: Mapping[str, JsonValue | None], new: dict[str, JsonValue]) -> str:
        container, body = self.around[-1], self.text.body
        if not container.children:
            return self._filled(self.holders[-1] if self.holders else (None, container), self._held(new))
        splices = []
        for name, entry in changes.items():
            if entry is not None and (place := self.places.get(name)):
                start, end = place.value.start, place.value.end
                if place.key is not None and ":" not in body[place.key.end : start]:
                    start, end = place.key.end, place.key.end
                    splices.append(Splice(start, end, ": "))
                elif body[start - 1] == ":":
                    splices.append(Splice(start, start, " "))
                splices.append(Splice(start, end, inline(entry)))
        document = self._again(apply(body, splices))
        if new:
            texts = [
                inline(entry) if self.shape == "list" else f"{quoted(name)}: {inline(entry)}"
                for name, entry in new.items()
            ]
            document = self._again(document.added_flow(document.around[-1], texts))
        gone = {document.places[name].number for name, entry in changes.items() if entry is None}
        items = document.items(document.around[-1])
        return remove(document.text.body, items, gone) if gone else document.text.body

    def _again(self, body: str) -> YamlDocument:
        return YamlDocument.parse(self.text.with_body(body), self.key, self.shape)

    def items(self, node: Node) -> Items:
        """What is in the flow collection *node*."""
        body = self.text.body
        if node.kind == "map":
            # A comma right behind the colon of an empty value would be taken for a part of a word.
            spans = [
                (key.start, max(key.end, value.end) + (value.start == value.end and body[value.end] == " "))
                for key, value in node.pairs
            ]
        else:
            spans = [(child.start, child.end) for child in node.children]
        places = self._marks[1]
        commas: list[int | None] = []
        for number, (_, end) in enumerate(spans):
            at = bisect_left(places, end)
            limit = spans[number + 1][0] if number + 1 < len(spans) else node.end - 1
            commas.append(places[at] if at < len(places) and places[at] < limit else None)
        return Items(node.start + 1, node.end - 1, spans, commas)

    def added_flow(self, node: Node, texts: list[str]) -> str:
        """The text with *texts* as the last items of *node*."""
        items, body = self.items(node), self.text.body
        unit = unit_of(body, items) or indent_at(body, node.start) + "  "
        return add(body, items, lambda _: texts, Style(self.text.newline, unit, spread=False))
