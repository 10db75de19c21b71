# SPDX-License-Identifier: LGPL-2.1-or-later
"""YAML as a tree of nodes that know where they are in the text.

The events of ruamel.yaml carry positions, and reading them takes no recursion. Scalars mean what the core schema of
YAML 1.2.2 (§10.3) says, which is what the clients' parsers follow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    MappingStartEvent,
    ScalarEvent,
)
from ruamel.yaml.tokens import BlockEntryToken, FlowEntryToken

from mcpd.cli.clients.texts import BLANK, MAX_DEPTH, line_start
from mcpd.model import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mcpd.cli.clients.texts import Text
    from mcpd.model import JsonValue

MAX_VALUES: Final = 1_000_000
"""Values that all entries together may stand for, aliases followed."""
BROKEN: Final = (
    YAMLError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What ruamel.yaml raises for texts that are not YAML."""
MERGE: Final = "<<"
_STR: Final = frozenset({"!", "tag:yaml.org,2002:str"})
_NULL: Final = re.compile(r"~|null|Null|NULL|")
_BOOL: Final = re.compile(r"(true|True|TRUE)|false|False|FALSE")
_INT: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_TAG: Final = re.compile(r"(?<=tag handle) .*")
"""In a message; what somebody forgot to quote may be a secret."""
_SPECIAL: Final = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass(slots=True)
class Node:
    """A value: *children* of a map are its keys and values by turns. *end* of an empty value is where it would be."""

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
        """Whether this is a value that is not there."""
        return self.kind == "scalar" and self.plain and self.tag is None and _NULL.fullmatch(self.value) is not None

    def walk(self) -> Iterator[Node]:
        """This node and all below, in their order, but not what aliases stand for."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack += reversed(node.children)

    def shape(self) -> list[tuple[object, ...]]:
        """What two nodes have in common that are the same but for their place."""
        return [(node.kind, node.value, node.plain, node.tag, node.anchor, len(node.children)) for node in self.walk()]


@dataclass(frozen=True, slots=True)
class Place:
    """A server in the file; *key* is None in a list."""

    number: int
    key: Node | None
    value: Node

    @property
    def start(self) -> int:
        """Where it begins, but for the dash of a list."""
        return (self.key or self.value).start

    @property
    def end(self) -> int:
        """Where its value ends."""
        return max(self.value.end, self.key.end if self.key else 0)


def parse(text: Text) -> Node | None:
    """The root of the one document in *text*, None if there is none; raises :class:`~mcpd.errors.InvalidConfig`."""
    stack: list[Node] = []
    anchors: dict[str, Node] = {}
    root: Node | None = None
    documents = 0
    events = YAML(typ="safe", pure=True).parse(text.body)
    for event in _guarded(text, lambda: next(events, None)):
        if isinstance(event, DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise text.fault(event.start_mark.index, "there is more than one document in the file; keep one")
            if event.version or event.tags:
                raise text.fault(event.start_mark.index, "directives (%YAML, %TAG) are not supported; remove them")
        elif isinstance(event, CollectionEndEvent):
            node = stack.pop()
            node.end = event.end_mark.index if node.flow else node.children[-1].end
        elif isinstance(event, AliasEvent | ScalarEvent | CollectionStartEvent):
            node = _node(text, event, anchors, in_flow=bool(stack) and stack[-1].flow)
            if stack:
                stack[-1].children.append(node)
            root = root or node
            if node.kind in {"map", "list"}:
                stack.append(node)
            if len(stack) > MAX_DEPTH:
                raise text.fault(node.start, f"nested deeper than {MAX_DEPTH} levels")
    return root


def marks(text: Text) -> tuple[list[int], list[int]]:
    """Where the dashes of block lists, and the commas of flow collections, are in *text*, which was parsed before."""
    dashes, commas = [], []
    tokens = YAML(typ="safe", pure=True).scan(text.body)
    for token in _guarded(text, lambda: next(tokens, None)):
        if isinstance(token, BlockEntryToken):
            dashes.append(token.start_mark.index)
        elif isinstance(token, FlowEntryToken):
            commas.append(token.start_mark.index)
    return dashes, commas


def construct(text: Text, nodes: Iterable[Node]) -> list[JsonValue]:
    """The values of *nodes*; raises :class:`~mcpd.errors.InvalidConfig` for what JSON has no like of."""
    constructor = _Constructor(text, MAX_VALUES)
    return [constructor.value(node, 0) for node in nodes]


def name_of(text: Text, key: Node) -> str:
    """The name that *key* is; raises :class:`~mcpd.errors.InvalidConfig` for keys that are none."""
    if key.kind != "scalar":
        raise text.fault(key.start, "a key is not a name")
    return key.value


@dataclass(slots=True)
class _Constructor:
    text: Text
    left: int

    def value(self, node: Node, depth: int) -> JsonValue:
        self.left -= 1
        if self.left < 0 or depth > MAX_DEPTH:
            raise self.text.fault(node.start, "aliases stand for more than is read")
        if node.kind == "alias" and node.target is not None:
            return self.value(node.target, depth + 1)
        if node.kind == "map":
            return {name_of(self.text, key): self.value(value, depth + 1) for key, value in node.pairs}
        if node.kind == "list":
            return [self.value(child, depth + 1) for child in node.children]
        return self.scalar(node)

    def scalar(self, node: Node) -> JsonValue:  # noqa: PLR0911 -- one for each kind of the schema
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
            raise self.text.fault(node.start, "a number of too many digits") from None
        if _FLOAT.fullmatch(value):
            return float(value)
        if found := _SPECIAL.fullmatch(value):
            return float(found[1] + "inf") if found[2] else float("nan")
        return value


def _guarded(text: Text, step: Callable[[], object]) -> Iterator[object]:
    """What *step* returns, until that is None; faults of the text as :class:`~mcpd.errors.InvalidConfig`."""
    while True:
        try:
            found = step()
        except BROKEN as error:
            mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
            problem = error.problem if isinstance(error, MarkedYAMLError) else None
            what = _TAG.sub("", printable(str(problem or "it cannot be parsed").replace("\n", " ")))
            raise text.fault(mark.index if mark is not None else 0, f"not YAML: {what}") from None
        if found is None:
            return
        yield found


def _node(
    text: Text, event: AliasEvent | ScalarEvent | CollectionStartEvent, anchors: dict[str, Node], *, in_flow: bool
) -> Node:
    start, end, anchor = event.start_mark.index, event.end_mark.index, event.anchor
    if isinstance(event, AliasEvent):
        if anchor not in anchors:
            raise text.fault(
                start, "an alias (*) stands for nothing, for no anchor before it has its name; quote it if it is text"
            )
        return Node("alias", start, end, value=str(anchor), target=anchors[anchor])
    tag = None if event.tag is None else str(event.tag)
    if isinstance(event, ScalarEvent):
        plain = event.style is None or not event.style
        if start == end and not in_flow:
            start = end = _behind(text.body, end)
        node = Node("scalar", start, end, value=_joined(event.value), plain=plain, tag=tag, anchor=anchor)
    else:
        kind: Literal["map", "list"] = "map" if isinstance(event, MappingStartEvent) else "list"
        node = Node(kind, start, end, tag=tag, anchor=anchor, flow=bool(event.flow_style))
    if anchor is not None:
        anchors[anchor] = node
    return node


def _joined(value: str) -> str:
    """*value* with the halves of surrogate pairs, as JSON escapes them, put together."""
    if value.isascii():
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _behind(body: str, at: int) -> int:
    """The end of what is before *at*, which the parser takes for the place of an empty value, but for comments."""
    while True:
        while at and body[at - 1] in BLANK:
            at -= 1
        start = line_start(body, at)
        if at == start or not body[start:at].lstrip(" \t").startswith("#"):
            return at
        at = start
