# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where the parts of a YAML text are, so that some can be replaced and all others stay as they are, byte for byte."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.tokens import BlockEntryToken, FlowEntryToken

_KEEPS: Final = re.compile(r"[^\n]*?[|>][0-9]*\+")
"""The head of a block scalar whose last empty lines belong to it."""
_REST: Final = re.compile(r"[ \t]*(#[^\n]*|\r)?")
"""What may follow on a line without being content."""


class UnclearLayoutError(Exception):
    """The text has its parts in a way that this cannot change, such as aliases."""


@dataclass(frozen=True, slots=True)
class Splice:
    """*text* instead of what is from *start* up to *end*."""

    start: int
    end: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Item:
    """An element of a list."""

    node: Node
    start: int
    """Of what belongs to it: in a block list the first line of comments above it, else its first character."""
    end: int
    """Behind its last line with comments below it that are indented further than it; or its last character."""


class Layout:
    """A text, which has been read before, so that it is no riddle."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.root: Any = YAML(typ="safe", pure=True).compose(text)
        tokens = list(YAML(typ="safe", pure=True).scan(text))
        self._dashes = [each.start_mark.index for each in tokens if isinstance(each, BlockEntryToken)]
        self._commas = [each.start_mark.index for each in tokens if isinstance(each, FlowEntryToken)]

    def pairs(self, mapping: Node) -> dict[str, tuple[Node, Node]]:
        """The keys and values of *mapping*, by key. Raises :class:`UnclearLayoutError` if some lie elsewhere."""
        if not isinstance(mapping, MappingNode):
            raise UnclearLayoutError
        at = mapping.start_mark.index
        for key, value in mapping.value:
            if not at <= key.start_mark.index <= value.start_mark.index:
                raise UnclearLayoutError
            at = value.start_mark.index
        return {str(key.value): (key, value) for key, value in mapping.value}

    def items(self, sequence: Node) -> list[Item]:
        """The elements of *sequence*. Raises :class:`UnclearLayoutError` if some lie elsewhere."""
        if not isinstance(sequence, SequenceNode):
            raise UnclearLayoutError
        nodes: list[Node] = list(sequence.value)
        begin, end = sequence.start_mark.index, sequence.end_mark.index
        places = [begin, *(each.start_mark.index for each in nodes), end]
        if any(first > second for first, second in pairwise(places)):
            raise UnclearLayoutError
        if is_flow(sequence):
            return [Item(each, each.start_mark.index, each.end_mark.index) for each in nodes]
        found: list[Item] = []
        above = 0
        for node in nodes:
            dash = self.dash(node)
            column = self.column(dash)
            end = self._comments_below(self.line_end(self.ending(node)), column)
            found.append(Item(node, self._comments_above(self.line_start(dash), above, column), end))
            above = end
        return found

    def dash(self, node: Node) -> int:
        """Where the dash of *node*, an element of a block list, is. Raises :class:`UnclearLayoutError`."""
        at = bisect_left(self._dashes, node.start_mark.index)
        if not at or self.text[self.line_start(self._dashes[at - 1]) : self._dashes[at - 1]].strip(" "):
            raise UnclearLayoutError
        return self._dashes[at - 1]

    def comma(self, at: int, before: int) -> int | None:
        """Where the first comma behind *at* is, if it comes before *before*."""
        number = bisect_left(self._commas, at)
        return self._commas[number] if number < len(self._commas) and self._commas[number] < before else None

    def ending(self, node: Node) -> int:
        """Where the last character of *node* is past, without the comments and lines that the parser counts in."""
        if isinstance(node, ScalarNode):
            return self._scalar_ending(node)
        if is_flow(node) or not node.value:
            return int(node.end_mark.index)
        if isinstance(node, MappingNode):
            return self.pair_ending(*node.value[-1])
        return max(self.dash(node.value[-1]) + 1, self.ending(node.value[-1]))

    def pair_ending(self, key: Node, value: Node) -> int:
        """Where *value* ends; an empty one with the colon behind its *key*."""
        if value.start_mark.index == value.end_mark.index:
            colon = self.text.find(":", key.end_mark.index)
            if colon < 0:
                raise UnclearLayoutError
            return colon + 1
        if value.start_mark.index < key.start_mark.index:
            raise UnclearLayoutError
        return self.ending(value)

    def _scalar_ending(self, node: ScalarNode) -> int:
        start, end = int(node.start_mark.index), int(node.end_mark.index)
        if node.style not in {"|", ">"}:
            return end
        # The parser has read up to the next line that is not empty.
        if not _KEEPS.match(self.text, start, end):
            end = start + len(self.text[start:end].rstrip(" \r\n"))
        elif end and self.text[end - 1] == "\n":
            end -= 1
        return end

    def line_start(self, at: int) -> int:
        """Where the line that *at* is on begins."""
        return self.text.rfind("\n", 0, at) + 1

    def line_end(self, at: int) -> int:
        """Where the line after the one that *at* is on begins."""
        found = self.text.find("\n", at)
        return len(self.text) if found < 0 else found + 1

    def column(self, at: int) -> int:
        """How far *at* is from the beginning of its line."""
        return at - self.line_start(at)

    def begins_line(self, at: int) -> bool:
        """Whether nothing but blanks is before *at* on its line."""
        return not self.text[self.line_start(at) : at].strip(" \t")

    def ends_line(self, at: int) -> bool:
        """Whether nothing but blanks and a comment is behind *at* on its line."""
        found = _REST.match(self.text, at)
        return found is not None and self.text[found.end() : found.end() + 1] in {"", "\n"}

    def _comments_above(self, start: int, limit: int, column: int) -> int:
        """The first of the lines of comments right above *start* that begin at *column*."""
        while start > limit:
            above = self.line_start(start - 1)
            if above < limit or not self.text[above:start].startswith(" " * column + "#"):
                break
            start = above
        return start

    def _comments_below(self, end: int, column: int) -> int:
        """The end of the lines of comments below *end* that begin behind *column*."""
        at = end
        while at < len(self.text):
            following = self.line_end(at)
            line = self.text[at:following].strip()
            if line.startswith("#") and len(self.text[at:following]) - len(self.text[at:following].lstrip()) > column:
                end = following
            elif line:
                break
            at = following
        return end


def is_flow(node: Node) -> bool:
    """Whether *node* is a list or mapping in brackets."""
    return bool(getattr(node, "flow_style", False))


def spliced(text: str, splices: list[Splice]) -> str:
    """*text* with *splices*, of which only those that take something away may overlap."""
    parts: list[str] = []
    at = 0
    for splice in sorted(splices, key=lambda splice: (splice.start, splice.end)):
        if splice.start < at and splice.text:
            raise UnclearLayoutError
        parts += [text[at : max(at, splice.start)], splice.text]
        at = max(at, splice.end)
    return "".join([*parts, text[at:]])
