# SPDX-License-Identifier: LGPL-2.1-or-later
"""Client files in YAML: in block style, the lines of single servers are replaced, added and removed.

ruamel.yaml's events locate each server, and it writes the new lines. It does not write the file as a whole: it attaches
comments to what is above them, and changes the layout of lists and nulls everywhere. Scalars mean what the core schema
of YAML 1.2.2 (§10.3) says, as in the clients' parsers.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from functools import cached_property
from io import StringIO
from typing import TYPE_CHECKING, Any, Final, Literal

from ruamel.yaml import YAML, events
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from mcpd.clients.editing import (
    BLANK,
    MAX_DEPTH,
    Splice,
    apply,
    at_path,
    ended,
    inserted,
    line_start,
    next_line,
    show,
)
from mcpd.model import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mcpd.clients.editing import Text
    from mcpd.clients.families import Shape
    from mcpd.model import JsonValue

MAX_VALUES: Final = 1_000_000
"""Maximum number of values to which all entries together may expand, with aliases resolved."""
_BROKEN: Final = (
    YAMLError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors of ruamel.yaml for texts that are not YAML."""
_MERGE: Final = "<<"
_STR: Final = frozenset({"!", "tag:yaml.org,2002:str"})
_NULL: Final = re.compile(r"~|null|Null|NULL|")
_BOOL: Final = re.compile(r"(true|True|TRUE)|false|False|FALSE")
_INT: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL: Final = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_TAG: Final = re.compile(r"(?<=tag handle) .*")
"""Placeholder in a message for text that may be a secret that somebody forgot to quote."""
_COLON: Final = re.compile(r"[ \t]*:")
_HEADS: Final = {"map": re.compile(" *"), "list": re.compile(" *- +")}
"""Characters before a server on its first line."""
_KINDS: Final = {"map": "a map", "list": "a list"}
_PLAIN: Final = re.compile(r"(?:[A-Za-z_/]|\.\.?/)[A-Za-z0-9_./@+-]*(?::[A-Za-z0-9_./@+-]+)*", re.ASCII)
_WORDS: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
"""Words that a YAML 1.1 or 1.2 parser may not read as strings unless they are quoted."""


@dataclass(slots=True)
class Node:
    """A value: *children* of a map are alternately keys and values. *end* of an empty value is where it would be."""

    kind: Literal["scalar", "map", "list", "alias"]
    start: int
    end: int
    value: str = ""
    plain: bool = False
    tag: str | None = None
    anchor: str | None = None
    flow: bool = False
    children: list[Node] = field(default_factory=list)
    target: Node | None = None

    @property
    def pairs(self) -> list[tuple[Node, Node]]:
        """The keys and values of a map."""
        return list(zip(self.children[::2], self.children[1::2], strict=True))

    @property
    def is_null(self) -> bool:
        """True if this is an absent value."""
        return self.kind == "scalar" and self.plain and self.tag is None and _NULL.fullmatch(self.value) is not None

    @property
    def is_empty(self) -> bool:
        """True if this is null, an empty map or an empty list."""
        return self.is_null or (self.kind in _KINDS and not self.children)

    def walk(self) -> Iterator[Node]:
        """Yield this node and all below, in order, without following aliases."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack += reversed(node.children)

    def shape(self) -> list[tuple[object, ...]]:
        """Return a key for comparison: equal for nodes that differ only in their position."""
        return [(node.kind, node.value, node.plain, node.tag, node.anchor, len(node.children)) for node in self.walk()]


def load(text: Text) -> JsonValue:
    """Return the value of *text*; raises :class:`~mcpd.errors.InvalidConfig`."""
    root = _parse(text)
    return None if root is None else _construct(text, [root])[0]


@dataclass(frozen=True)
class YamlDocument:
    """A parsed file: *around* are the maps from the root down to the container of the servers, as far as they exist.

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
        """Return the document *text*, whose servers are at *key*; raises :class:`~mcpd.errors.InvalidConfig`."""
        document = cls(text, tuple(key), shape, _parse(text), [], [])
        document._descend()
        return document

    @property
    def model(self) -> list[dict[str, None]]:
        """Return the maps in the file with their names only: values may expand to more than can be read."""
        nodes = self.root.walk() if self.root else ()
        return [{key.value: None for key, _ in node.pairs} for node in nodes if node.kind == "map"]

    @cached_property
    def servers(self) -> dict[str, JsonValue]:
        """Return the servers by name, in order."""
        values = _construct(self.text, (value for _, value in self.places.values()))
        return dict(zip(self.places, values, strict=True))

    def edited(self, changes: Mapping[str, JsonValue | None]) -> str:
        """Return the text with *changes*."""
        self._check_editable(changes)
        body, at = self.text.body, len(self.text.body)
        new = {name: entry for name, entry in changes.items() if entry is not None and name not in self.places}
        added = at_path(self._held(new), self.key[len(self.holders) :])
        if self.holders and self.holders[-1][1].is_empty:
            return self._filled(*self.holders[-1], added)
        splices = []
        for name, entry in changes.items():
            if name in self.places:
                lines = [] if entry is None else self._written(self._held({name: entry}), self._column(self.around[-1]))
                splices.append(Splice(*self._lines(name), "".join(line + self.text.newline for line in lines)))
        column = 0
        if self.around:
            column, at = self._column(self.around[-1]), self._after(self.around[-1].end)
        if new:
            splices.append(inserted(self.text, at, self._written(added, column)))
        elif self.holders and not [name for name, entry in changes.items() if entry is not None]:
            container = self.around[-1]
            if len(changes) == len(container.children) // (2 if self.shape == "map" else 1):
                colon = self._colon(self.holders[-1][0])
                splices.append(Splice(colon, colon, " {}" if self.shape == "map" else " []"))
        return ended(body, apply(body, splices))

    @cached_property
    def places(self) -> dict[str, tuple[Node | None, Node]]:
        """Return the servers, each with its key in a map; raises :class:`~mcpd.errors.InvalidConfig` for duplicates."""
        found: dict[str, tuple[Node | None, Node]] = {}
        if len(self.around) <= len(self.key):
            return found
        container = self.around[-1]
        pairs: Iterable[tuple[Node | None, Node]] = (
            container.pairs if self.shape == "map" else ((None, value) for value in container.children)
        )
        for key, value in pairs:
            name = self._given_name(value) if key is None else _name_of(self.text, key)
            if name is None:
                continue
            if key is not None and key.plain and name == _MERGE:
                raise self.text.fault(key.start, "a merge key (<<) is among the servers; expand it")
            if name in found:
                raise self.text.fault(
                    (key or value).start, f"two servers are named {printable(name)}; rename or remove one"
                )
            found[name] = (key, value)
        return found

    def foreign(self) -> list[object]:
        """Return everything but servers and the path to them."""
        foreign: list[object] = []
        for name, node in zip(self.key, self.around, strict=False):
            foreign += [(key.shape(), value.shape()) for key, value in node.pairs if key.value != name]
        if len(self.around) > len(self.key) and self.shape == "list":
            ours = {id(value) for _, value in self.places.values()}
            foreign += [node.shape() for node in self.around[-1].children if id(node) not in ours]
        return foreign

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
            found = [each for each in node.pairs if _name_of(self.text, each[0]) == self.key[depth]]
            if len(found) > 1:
                raise self.text.fault(found[1][0].start, f"{show(self.key[: depth + 1])} occurs twice; remove one")
            if any(key.value == _MERGE and key.plain for key, _ in node.pairs):
                raise self.text.fault(node.start, "a map around the servers contains a merge key (<<); expand it")
            if not found:
                return
            self.holders.append(found[0])
            node = found[0][1]

    def _given_name(self, value: Node) -> str | None:
        """Return the name of an item of a list."""
        names = [found for key, found in value.pairs if key.value == "name"] if value.kind == "map" else []
        node = (names[-1].target or names[-1]) if names else None
        if node is None or node.kind != "scalar":
            return None
        (name,) = _construct(self.text, [node])
        return name if isinstance(name, str) else None

    def _check_editable(self, changes: Mapping[str, JsonValue | None]) -> None:
        """Raise :class:`~mcpd.errors.InvalidConfig` for anchors, tags and flow style in and around the changes."""
        for node in [*self.around, *(value for _, value in self.holders)]:
            if node.anchor is not None or node.tag is not None:
                raise self.text.fault(node.start, "the map around the servers has an anchor or a tag; edit it by hand")
            if node.flow and not (self.holders and node is self.holders[-1][1] and node.is_empty):
                raise self.text.fault(
                    node.start,
                    "the servers are in flow style, in brackets; write them in block style, one line per key",
                )
        if not self.around and self.root is not None and self.root.end > self.root.start:  # null, ~
            raise self.text.fault(self.root.start, "the document is not a map")
        for name, entry in changes.items():
            if name in self.places:
                self._check_entry(name, *self.places[name], is_replaced=entry is not None)

    def _check_entry(self, name: str, key: Node | None, value: Node, *, is_replaced: bool) -> None:
        """Raise :class:`~mcpd.errors.InvalidConfig` for what others may use, or what would be written as another value.

        *key* and *value* are the server *name*.
        """
        nodes = [*([key] if key else []), *value.walk()]
        if any(node.anchor is not None for node in nodes):
            raise self.text.fault(
                nodes[0].start, f"{printable(name)} has an anchor that others may use; edit it by hand"
            )
        for node in nodes if is_replaced else ():
            if node.tag is not None and node.tag not in _STR:
                raise self.text.fault(node.start, f"a tag (!) is in {printable(name)}; edit it by hand")
            if node.kind == "map" and any(inner.plain and inner.value == _MERGE for inner, _ in node.pairs):
                raise self.text.fault(node.start, f"a merge key (<<) is in {printable(name)}; expand it")

    def _held(self, entries: Mapping[str, JsonValue]) -> JsonValue:
        """Return *entries* as the container of servers in the file: a list or a map."""
        return list(entries.values()) if self.shape == "list" else dict(entries)

    @cached_property
    def _steps(self) -> dict[str, int]:
        """The steps by which maps and lists are indented; those nearest to the servers take precedence."""
        steps = {"map": 2, "list": 2}
        for top in [self.root, *self.around]:
            for node in reversed(list(top.walk())) if top else ():
                for key, below in node.pairs if node.kind == "map" and not node.flow else ():
                    step = self._column(below) - self._column(key)
                    if below.kind in _KINDS and not below.flow and step >= 0:
                        steps[below.kind] = step
        return steps

    def _written(self, value: JsonValue, column: int) -> list[str]:
        """Return the lines of what is in the map or list *value*, in the layout of the file, indented to *column*."""
        yaml, steps, stream = YAML(), self._steps, StringIO()
        yaml.width = sys.maxsize
        yaml.indent(mapping=steps["map"], sequence=steps["list"] + 2, offset=steps["list"])
        yaml.dump(_styled(value), stream)
        lines = stream.getvalue().removesuffix("\n").split("\n")
        indent = len(lines[0]) - len(lines[0].lstrip(" "))
        return [" " * column + line[indent:] for line in lines]

    def _filled(self, key: Node, old: Node, value: JsonValue) -> str:
        """Return the text with *value* in place of *old*: nothing, ``null``, ``{}`` or ``[]``."""
        body, colon = self.text.body, self._colon(key)
        cut = [Splice(colon, old.end)] if old.end > old.start >= colon else []
        if cut and body[colon : old.start].strip(" \t"):
            raise self.text.fault(colon, "unexpected text between a key and its value; edit it by hand")
        lines = self._written({"": value}, self._column(key))[1:]
        return apply(body, [*cut, inserted(self.text, next_line(body, max(old.end, colon)), lines)])

    def _lines(self, name: str) -> tuple[int, int]:
        """Return where the lines of the server *name* begin and end, without blank lines after it."""
        body, (key, value) = self.text.body, self.places[name]
        first = (key or value).start
        start, end = line_start(body, first), self._after(max(value.end, key.end if key else 0))
        if not _HEADS[self.shape].fullmatch(body[start:first]):
            raise self.text.fault(first, "a server does not begin on its own line; edit it by hand")
        return start, min(end, next_line(body, first + len(body[first:end].rstrip(BLANK))))

    def _after(self, at: int) -> int:
        """Return where the line after the value that ends at *at* begins."""
        return at if self.text.body[at - 1 : at] in {"\n", "\r"} else next_line(self.text.body, at)

    def _column(self, node: Node) -> int:
        return node.start - line_start(self.text.body, node.start)

    def _colon(self, key: Node) -> int:
        """Return where the colon after *key* ends."""
        found = _COLON.match(self.text.body, key.end)
        if found is None:
            raise self.text.fault(key.start, "a key is not followed by a colon on the same line; edit it by hand")
        return found.end()


def _styled(value: JsonValue) -> Any:
    """Return *value* with double quotes around strings that a parser might take for something else."""
    if isinstance(value, dict):
        return {_styled(name): _styled(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_styled(each) for each in value]
    if isinstance(value, str) and not (_PLAIN.fullmatch(value) and value.lower() not in _WORDS):
        return DoubleQuotedScalarString(value)
    return value


def _parse(text: Text) -> Node | None:  # noqa: C901 -- a case for each event
    """Return the root of the one document in *text*, None if there is none.

    Raises :class:`~mcpd.errors.InvalidConfig`, including for deep nesting: reading events takes no recursion.
    """
    stack: list[Node] = []
    anchors: dict[str, Node] = {}
    root: Node | None = None
    documents = 0
    try:
        for event in YAML(typ="safe", pure=True).parse(text.body):
            if isinstance(event, events.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise text.fault(event.start_mark.index, "the file contains more than one document; keep one")
                if event.version or event.tags:
                    raise text.fault(event.start_mark.index, "directives (%YAML, %TAG) are not supported; remove them")
            elif isinstance(event, events.CollectionEndEvent):
                node = stack.pop()
                node.end = event.end_mark.index if node.flow else node.children[-1].end
            elif isinstance(event, events.AliasEvent | events.ScalarEvent | events.CollectionStartEvent):
                node = _node(text, event, anchors, in_flow=bool(stack) and stack[-1].flow)
                if stack:
                    stack[-1].children.append(node)
                root = root or node
                if node.kind in _KINDS:
                    stack.append(node)
                if len(stack) > MAX_DEPTH:
                    raise text.fault(node.start, f"nested deeper than {MAX_DEPTH} levels")
    except _BROKEN as error:
        mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
        problem = error.problem if isinstance(error, MarkedYAMLError) else None
        what = _TAG.sub("", printable(str(problem or "it cannot be parsed").replace("\n", " ")))
        raise text.fault(mark.index if mark is not None else 0, f"not YAML: {what}") from None
    return root


def _node(text: Text, event: Any, anchors: dict[str, Node], *, in_flow: bool) -> Node:
    start, end, anchor = event.start_mark.index, event.end_mark.index, event.anchor
    if isinstance(event, events.AliasEvent):
        if anchor not in anchors:
            raise text.fault(start, "an alias (*) has no anchor before it; quote it if it is text")
        return Node("alias", start, end, value=str(anchor), target=anchors[anchor])
    tag = None if event.tag is None else str(event.tag)
    if isinstance(event, events.ScalarEvent):
        plain = event.style is None or not event.style
        if start == end and not in_flow:
            start = end = _behind(text.body, end)
        node = Node("scalar", start, end, value=_joined(event.value), plain=plain, tag=tag, anchor=anchor)
    else:
        kind: Literal["map", "list"] = "map" if isinstance(event, events.MappingStartEvent) else "list"
        node = Node(kind, start, end, tag=tag, anchor=anchor, flow=bool(event.flow_style))
    if anchor is not None:
        anchors[anchor] = node
    return node


def _joined(value: str) -> str:
    """Return *value* with surrogate pairs, as JSON escapes them, joined."""
    if value.isascii():
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _behind(body: str, at: int) -> int:
    """Return the end of what precedes *at*, where the parser puts an empty value, without comments."""
    while True:
        while at and body[at - 1] in BLANK:
            at -= 1
        start = line_start(body, at)
        if at == start or not body[start:at].lstrip(" \t").startswith("#"):
            return at
        at = start


def _construct(text: Text, nodes: Iterable[Node]) -> list[JsonValue]:
    """Return the values of *nodes*; raises :class:`~mcpd.errors.InvalidConfig` for those that JSON cannot express."""
    left = MAX_VALUES

    def construct(node: Node, depth: int) -> JsonValue:
        nonlocal left
        left -= 1
        if left < 0 or depth > MAX_DEPTH:
            raise text.fault(node.start, "aliases expand to too many values")
        if node.kind == "alias" and node.target is not None:
            return construct(node.target, depth + 1)
        if node.kind == "map":
            return {_name_of(text, key): construct(value, depth + 1) for key, value in node.pairs}
        if node.kind == "list":
            return [construct(child, depth + 1) for child in node.children]
        return _scalar(text, node)

    return [construct(node, 0) for node in nodes]


def _name_of(text: Text, key: Node) -> str:
    """Return the text of the map key *key*; raises :class:`~mcpd.errors.InvalidConfig` for an invalid key."""
    if key.kind != "scalar":
        raise text.fault(key.start, "a key is not a string")
    return key.value


def _scalar(text: Text, node: Node) -> JsonValue:  # noqa: PLR0911 -- one for each kind of the schema
    value = node.value
    if not node.plain or node.tag in _STR:
        return value
    if _NULL.fullmatch(value):
        return None
    if found := _BOOL.fullmatch(value):
        return found[1] is not None
    try:
        if _INT.fullmatch(value):
            return int(value, 0) if value[1:2] in {"o", "x"} else int(value)
    except ValueError:
        raise text.fault(node.start, "a number has too many digits") from None
    if _FLOAT.fullmatch(value):
        return float(value)
    if found := _SPECIAL.fullmatch(value):
        return float(found[1] + "inf") if found[2] else float("nan")
    return value
