# SPDX-License-Identifier: LGPL-2.1-or-later
"""Positions of the parts of a YAML text, and YAML for new parts, so that the rest is kept byte for byte."""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString
from ruamel.yaml.tokens import BlockEntryToken, FlowEntryToken

from mcpd.errors import InvalidArgument, InvalidConfig
from mcpd.servers.ensembles.format.reading import read

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from ruamel.yaml.nodes import Node

_KEEPS: Final = re.compile(r"[^\n]*?[|>][0-9]*\+")
"""Matches the header of a block scalar that keeps its trailing empty lines."""
_REST: Final = re.compile(r"[ \t]*(#[^\n]*|\r)?")
"""Matches the rest of a line without content."""


class UnclearLayoutError(Exception):
    """The text has a layout that cannot be edited, such as aliases."""


@dataclass(frozen=True, slots=True)
class Splice:
    """A replacement: *text* instead of the characters from *start* up to *end*."""

    start: int
    end: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Item:
    """An element of a list."""

    node: Node
    start: int
    """In a block list the first line of comments above it, else its first character."""
    end: int
    """End of its last line, including comments below it that are indented further; else the end of its text."""


class Layout:
    """A text that has been parsed successfully before."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.root: Any = YAML(typ="safe", pure=True).compose(text)
        tokens = list(YAML(typ="safe", pure=True).scan(text))
        self._dashes = [each.start_mark.index for each in tokens if isinstance(each, BlockEntryToken)]
        self._commas = [each.start_mark.index for each in tokens if isinstance(each, FlowEntryToken)]

    def pairs(self, mapping: Node) -> dict[str, tuple[Node, Node]]:
        """Return the key and value nodes of *mapping*, by key. Raises :class:`UnclearLayoutError` for aliases."""
        if not isinstance(mapping, MappingNode):
            raise UnclearLayoutError
        at = mapping.start_mark.index
        for key, value in mapping.value:
            if not at <= key.start_mark.index <= value.start_mark.index:
                raise UnclearLayoutError
            at = value.start_mark.index
        return {str(key.value): (key, value) for key, value in mapping.value}

    def items(self, sequence: Node) -> list[Item]:
        """Return the elements of *sequence*. Raises :class:`UnclearLayoutError` for aliases."""
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
        """Return the position of the dash of *node*, an element of a block list. Raises :class:`UnclearLayoutError`."""
        at = bisect_left(self._dashes, node.start_mark.index)
        if not at or self.text[self.line_start(self._dashes[at - 1]) : self._dashes[at - 1]].strip(" "):
            raise UnclearLayoutError
        return self._dashes[at - 1]

    def comma(self, at: int, before: int) -> int | None:
        """Return the position of the first comma from *at* on, or None if there is none before *before*."""
        number = bisect_left(self._commas, at)
        return self._commas[number] if number < len(self._commas) and self._commas[number] < before else None

    def ending(self, node: Node) -> int:
        """Return the end of *node*, without the comments and empty lines that the parser includes."""
        if isinstance(node, ScalarNode):
            return self._scalar_ending(node)
        if is_flow(node) or not node.value:
            return int(node.end_mark.index)
        if isinstance(node, MappingNode):
            return self.pair_ending(*node.value[-1])
        return max(self.dash(node.value[-1]) + 1, self.ending(node.value[-1]))

    def pair_ending(self, key: Node, value: Node) -> int:
        """Return the end of *value*; for an empty one that of the colon after its *key*."""
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
        """Return the start of the line that contains *at*."""
        return self.text.rfind("\n", 0, at) + 1

    def line_end(self, at: int) -> int:
        """Return the start of the line after the one that contains *at*."""
        found = self.text.find("\n", at)
        return len(self.text) if found < 0 else found + 1

    def column(self, at: int) -> int:
        """Return the distance of *at* from the start of its line."""
        return at - self.line_start(at)

    def begins_line(self, at: int) -> bool:
        """Return True if only blanks precede *at* on its line."""
        return not self.text[self.line_start(at) : at].strip(" \t")

    def ends_line(self, at: int) -> bool:
        """Return True if only blanks and a comment follow *at* on its line."""
        found = _REST.match(self.text, at)
        return found is not None and self.text[found.end() : found.end() + 1] in {"", "\n"}

    def _comments_above(self, start: int, limit: int, column: int) -> int:
        """Return the start of the comment lines directly above *start* that begin at *column*."""
        while start > limit:
            above = self.line_start(start - 1)
            if above < limit or not self.text[above:start].startswith(" " * column + "#"):
                break
            start = above
        return start

    def _comments_below(self, end: int, column: int) -> int:
        """Return the end of the comment lines below *end* that begin after *column*."""
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
    """Return True if *node* is a list or mapping in brackets."""
    return bool(getattr(node, "flow_style", False))


def spliced(text: str, splices: list[Splice]) -> str:
    """Return *text* with *splices* applied; only those that just remove text may overlap."""
    parts: list[str] = []
    at = 0
    for splice in sorted(splices, key=lambda splice: (splice.start, splice.end)):
        if splice.start < at and splice.text:
            raise UnclearLayoutError
        parts += [text[at : max(at, splice.start)], splice.text]
        at = max(at, splice.end)
    return "".join([*parts, text[at:]])


@dataclass(frozen=True, slots=True)
class Style:
    """The indentation of a file."""

    mapping: int = 2
    offset: int = 2
    """Indentation of the dashes of a list, relative to its key."""
    block_lists: bool = False
    """True if lists of names have a line for each name."""

    def block(self, value: Any, column: int) -> str:
        """Return *value* as YAML, with all lines but the first indented to *column*.

        Raises :class:`~mcpd.errors.InvalidArgument` if YAML cannot represent it.
        """
        for write in (_literal, _plain, _quoted):
            text = self._dumped(self._styled(value, write))
            if reads_as(text, value):
                first, *rest = text.removesuffix("\n").split("\n")
                return "\n".join([first, *(" " * column + line if line else line for line in rest)])
        raise _unwritable()

    def flow(self, value: Any) -> str:
        """Return *value* as YAML on one line. Raises :class:`~mcpd.errors.InvalidArgument` if that is impossible."""
        for write in (_plain, _quoted):
            # A scalar on its own is written differently than one in a list.
            text = self._dumped(_flow([value], write)).removesuffix("\n").removeprefix("[").removesuffix("]")
            if "\n" not in text and reads_as(f"[{text}]", [value]):
                return text
        raise _unwritable()

    def _dumped(self, value: Any) -> str:
        yaml = YAML(pure=True)
        yaml.width = sys.maxsize
        yaml.indent(mapping=self.mapping, sequence=self.offset + 2, offset=self.offset)
        stream = StringIO()
        try:
            yaml.dump(value, stream)
        except (YAMLError, RecursionError, ValueError, TypeError):
            raise _unwritable() from None
        return stream.getvalue().removesuffix("...\n")

    def _styled(self, value: Any, write: Callable[[str], str]) -> Any:
        if isinstance(value, dict):
            return CommentedMap({_key(key, write): self._styled(each, write) for key, each in value.items()})
        if isinstance(value, list | tuple):
            if not self.block_lists and not any(isinstance(each, dict | list) or _long(each) for each in value):
                return _flow(value, write)
            return CommentedSeq([self._styled(each, write) for each in value])
        return write(value) if isinstance(value, str) else value


def _flow(value: Any, write: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        mapping = CommentedMap({_key(key, write): _flow(each, write) for key, each in value.items()})
        mapping.fa.set_flow_style()
        return mapping
    if isinstance(value, list | tuple):
        sequence = CommentedSeq([_flow(each, write) for each in value])
        sequence.fa.set_flow_style()
        return sequence
    return write(value) if isinstance(value, str) else value


def _key(key: str, write: Callable[[str], str]) -> str:
    return key if write is _literal else write(key)


def _literal(text: str) -> str:
    written: str = LiteralScalarString(text) if _long(text) else text
    return written


def _plain(text: str) -> str:
    return text


def _quoted(text: str) -> str:
    written: str = DoubleQuotedScalarString(text)
    return written


def _long(value: Any) -> bool:
    return isinstance(value, str) and "\n" in value


def reads_as(text: str, value: Any) -> bool:
    """Return True if *text* is YAML for *value*."""
    try:
        return bool(read(text, "agent")[0] == value)
    except InvalidConfig:
        return False


def _unwritable() -> InvalidArgument:
    return InvalidArgument("what is to be added holds something that YAML cannot: characters that are no text, or NaN")


def list_changed(
    layout: Layout, style: Style, sequence: Node, removed: Collection[int], added: Sequence[Any]
) -> Iterator[Splice]:
    """Yield the splices that remove the elements numbered *removed* from *sequence* and append the values *added*."""
    if not removed and not added:
        return
    items = layout.items(sequence)
    if not is_flow(sequence):
        yield from _block(layout, style, items, removed, added)
    elif all(layout.begins_line(each.start) and _ends_line(layout, each, sequence) for each in items):
        yield from _lines(layout, style, sequence, items, removed, added)
    else:
        parts = [layout.text[each.start : each.end] for index, each in enumerate(items) if index not in removed]
        parts += [style.flow(value) for value in added]
        yield Splice(items[0].start, items[-1].end, ", ".join(parts))


def _block(
    layout: Layout, style: Style, items: Sequence[Item], removed: Collection[int], added: Sequence[Any]
) -> Iterator[Splice]:
    staying = [index for index in range(len(items)) if index not in removed]
    last = max(staying, default=-1)
    for index in removed:
        # Also remove the empty lines after the element; at the end of the list, those before it.
        start, end = items[index].start, items[index].end
        if index < last:
            end = items[index + 1].start
        elif index:
            start = items[index - 1].end
        yield Splice(start, end)
    if added:
        end = items[-1].end
        dash = layout.dash(items[-1].node)
        start = int(items[-1].node.start_mark.index)
        same_line = layout.line_start(start) == layout.line_start(dash)
        column = layout.column(dash)
        inner = layout.column(start) if same_line else column + 2
        between = layout.newline if len(items) > 1 and items[-1].start > items[-2].end else ""
        for number, value in enumerate(added):
            text = style.block(value, inner).replace("\n", layout.newline)
            apart = between if number or staying else ""
            yield Splice(end, end, f"{apart}{' ' * column}-{' ' * (inner - column - 1)}{text}{layout.newline}")


def _lines(
    layout: Layout,
    style: Style,
    sequence: Node,
    items: Sequence[Item],
    removed: Collection[int],
    added: Sequence[Any],
) -> Iterator[Splice]:
    """Yield the splices for a list in brackets that has one or more lines for each element."""
    for index in removed:
        yield Splice(layout.line_start(items[index].start), layout.line_end(items[index].end))
    if added:
        final = items[-1]
        end = layout.line_end(final.end)
        if len(items) - 1 not in removed and layout.comma(final.end, sequence.end_mark.index) is None:
            yield Splice(final.end, final.end, ",")
        indent = " " * layout.column(final.start)
        text = f",{layout.newline}".join(indent + style.flow(value) for value in added)
        yield Splice(end, end, text + layout.newline)


def _ends_line(layout: Layout, item: Item, sequence: Node) -> bool:
    """Return True if only a comma and a comment follow *item* on its line."""
    comma = layout.comma(item.end, sequence.end_mark.index)
    if comma is not None and not layout.text[item.end : comma].strip(" \t"):
        return layout.ends_line(comma + 1)
    return layout.ends_line(item.end)
