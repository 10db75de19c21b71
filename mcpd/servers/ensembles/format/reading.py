# SPDX-License-Identifier: LGPL-2.1-or-later
"""YAML 1.2 as plain data with line numbers.

Files come with cloned projects, so size, depth and the repetition by aliases are limited. The types are those of JSON;
dates are text. The keys of mappings are text as written.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    StreamEndEvent,
)
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.reader import ReaderError

from mcpd.errors import InvalidConfig
from mcpd.model.base import check_json, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MAX_SIZE: Final = 256 * 1024
"""Maximum size of a file in characters, and of its text with aliases expanded.

The parser is written in Python: the worst file of this size, with :data:`MAX_NODES`, takes it a second or two.
"""
MAX_DEPTH: Final = 64
MAX_NODES: Final = 20_000
"""Maximum number of values and keys with aliases expanded: a thousand agents with twenty each, more than fit into
:data:`MAX_SIZE` with their usual keys.
"""

_TAGS: Final = "tag:yaml.org,2002:"
_TEXT: Final = frozenset({f"{_TAGS}str", f"{_TAGS}timestamp", f"{_TAGS}value", f"{_TAGS}merge", "!"})
_COLLECTIONS: Final = frozenset({f"{_TAGS}seq", f"{_TAGS}map", "!"})
_EXPLICIT: Final = frozenset({f"{_TAGS}{name}" for name in ("str", "int", "float", "bool", "null")} | {"!"})
_MERGE: Final = "<<"
_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class _Place:
    """The position of a value, with lines and columns from 1; for a mapping's value, that of its key."""

    line: int
    column: int
    parts: Mapping[str | int, _Place] = field(default_factory=dict)


class Positions:
    """The position of each value in its file."""

    def __init__(self, root: _Place) -> None:
        self._root = root

    def line(self, path: Sequence[str | int]) -> int:
        """Return the line, from 1, of the deepest existing part of *path* (keys and indexes)."""
        return self.position(path)[0]

    def position(self, path: Sequence[str | int]) -> tuple[int, int]:
        """Return the line and column, from 1, of the deepest existing part of *path*: of its key if it has one."""
        place = self._root
        for part in path:
            if part not in place.parts:
                break
            place = place.parts[part]
        return place.line, place.column


def read(text: str, file: str) -> tuple[Any, Positions]:
    """Return the only document in *text*, as dict, list, str, int, float, bool and None, and its positions.

    *file* names it in messages. Raises :class:`~mcpd.errors.InvalidConfig` for invalid YAML, exceeded limits, duplicate
    keys, tags without equivalent in JSON, and numbers or characters that JSON cannot represent; its ``data`` has
    ``file``, ``line`` and ``column``.
    """
    if len(text) > MAX_SIZE:
        raise fault(file, 1, 1, f"the file is larger than {MAX_SIZE // 1024} KiB")
    yaml = YAML(typ="safe", pure=True)
    try:
        with closing(yaml.parse(text)) as events:
            built = _Builder(yaml, events, file).document()
    except MarkedYAMLError as error:
        raise _not_yaml(error, file) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        raise fault(file, line, column, f"the character U+{error.character:04X} may not be in a file") from None
    except (YAMLError, ValueError, OverflowError, AssertionError) as error:
        # The library converts numbers in directives and escapes unchecked, or asserts that they are valid.
        raise fault(
            file, yaml.reader.line + 1, 1, f"this is not YAML: {printable(' '.join(str(error).split()))}"
        ) from None
    return built.value, Positions(built.place)


def fault(file: str, line: int, column: int, message: str) -> InvalidConfig:
    """Return the error for a position in *file*."""
    error = InvalidConfig(f"{file}:{line}: {message}")
    error.data = {"file": file, "line": line, "column": column}
    return error


@dataclass(frozen=True, slots=True)
class _Built:
    """A value, and the cost of repeating it."""

    value: Any
    place: _Place
    height: int = 0
    nodes: int = 1
    characters: int = 0


@dataclass(slots=True)
class _Builder:
    """Builds data from events, recursing at most :data:`MAX_DEPTH` levels."""

    yaml: YAML
    events: Iterator[Any]
    file: str
    anchors: dict[str, _Built | None] = field(default_factory=dict)
    """None until the value of the anchor is complete."""
    nodes: int = 0
    characters: int = 0

    def document(self) -> _Built:
        """Return the whole document."""
        next(self.events)
        start = next(self.events)
        if isinstance(start, StreamEndEvent):
            return _Built(None, _Place(1, 1))
        if isinstance(start, DocumentStartEvent) and start.version not in (None, (1, 2)):
            raise self._fault(start, "YAML 1.2 is the version that is read here; leave the %YAML line out")
        built = self._value(next(self.events), 0)
        next(self.events)
        after = next(self.events)
        if not isinstance(after, StreamEndEvent):
            raise self._fault(after, "a second document begins here; there may be one only")
        return built

    def _value(self, event: Any, depth: int) -> _Built:
        if isinstance(event, AliasEvent):
            return self._alias(event, depth)
        if depth > MAX_DEPTH:
            raise self._fault(event, f"nested deeper than {MAX_DEPTH} levels")
        self._count(event, 1, len(event.value) if isinstance(event, ScalarEvent) else 0)
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        nodes, characters = self.nodes, self.characters
        if isinstance(event, ScalarEvent):
            built = _Built(self._scalar(event), _place(event), 0, 1, len(event.value))
        else:
            if event.tag is not None and event.tag not in _COLLECTIONS:
                raise self._unknown_tag(event)
            inner = self._mapping if isinstance(event, MappingStartEvent) else self._sequence
            value, parts, height = inner(depth + 1)
            mark = event.start_mark
            place = _Place(mark.line + 1, mark.column + 1, parts)
            built = _Built(value, place, height + 1, self.nodes - nodes + 1, self.characters - characters)
        if event.anchor is not None:
            self.anchors[event.anchor] = built
        return built

    def _alias(self, event: Any, depth: int) -> _Built:
        name = printable(str(event.anchor))
        if event.anchor not in self.anchors:
            raise self._fault(event, f"*{name} names nothing; &{name} has to come before it, or quotes around it")
        built = self.anchors[event.anchor]
        if built is None:
            raise self._fault(event, f"*{name} is in what it names itself")
        if depth + built.height > MAX_DEPTH:
            raise self._fault(event, f"nested deeper than {MAX_DEPTH} levels")
        self._count(event, built.nodes, built.characters)
        return built

    def _sequence(self, depth: int) -> tuple[list[Any], Mapping[str | int, _Place], int]:
        values: list[Any] = []
        parts: dict[str | int, _Place] = {}
        height = 0
        while not isinstance(event := next(self.events), SequenceEndEvent):
            built = self._value(event, depth)
            parts[len(values)] = built.place
            values.append(built.value)
            height = max(height, built.height)
        return values, parts, height

    def _mapping(self, depth: int) -> tuple[dict[str, Any], Mapping[str | int, _Place], int]:
        values: dict[str, Any] = {}
        parts: dict[str | int, _Place] = {}
        merged: list[_Built] = []
        height = 0
        while not isinstance(event := next(self.events), MappingEndEvent):
            merges = isinstance(event, ScalarEvent) and event.value == _MERGE and event.implicit[0]
            key = self._key(event, depth)
            built = self._value(next(self.events), depth)
            height = max(height, built.height)
            if merges:
                merged.extend(self._merged(event, built))
                continue
            if key in values:
                raise self._fault(
                    event, f'the key "{printable(key)}" is here a second time, after line {parts[key].line}'
                )
            mark = event.start_mark
            values[key] = built.value
            parts[key] = _Place(mark.line + 1, mark.column + 1, built.place.parts)
        for source in merged:
            for key, value in source.value.items():
                if key not in values:
                    values[key] = value
                    parts[key] = source.place.parts[key]
        return values, parts, height

    def _key(self, event: Any, depth: int) -> str:
        if isinstance(event, ScalarEvent):
            self._value(event, depth)
            return str(event.value)
        if isinstance(event, AliasEvent) and isinstance(value := self._alias(event, depth).value, str):
            return value
        raise self._fault(event, "a key has to be text")

    def _merged(self, event: Any, built: _Built) -> list[_Built]:
        """Return the mappings from which ``<<`` takes keys."""
        if isinstance(built.value, dict):
            return [built]
        if isinstance(built.value, list) and all(isinstance(each, dict) for each in built.value):
            return [_Built(each, built.place.parts[number]) for number, each in enumerate(built.value)]
        raise self._fault(event, '"<<" takes the keys of a mapping, or of several in a list')

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        if event.tag is None:
            tag = str(self.yaml.resolver.resolve(ScalarNode, text, event.implicit))
        else:
            tag = event.tag
            if tag not in _EXPLICIT:
                raise self._unknown_tag(event)
        try:
            value = text if tag in _TEXT else self._other(tag, text)
            check_json(value)
        except (ValueError, LookupError) as error:
            if tag in _TEXT:
                raise self._fault(event, str(error)) from None
            kind = tag.removeprefix(_TAGS)
            raise self._fault(event, f'"{printable(text)}" is no {kind} that JSON has; put text in quotes') from None
        return value

    def _other(self, tag: str, text: str) -> Any:
        """Return the value of a scalar. Raises ValueError or LookupError if it is invalid."""
        node = ScalarNode(tag, text)
        constructor = self.yaml.constructor
        if tag == f"{_TAGS}int":
            value = constructor.construct_yaml_int(node)
            if value.bit_length() > _BITS:
                raise ValueError(f"{printable(text)} has more than {_BITS} bits")
            return value
        if tag == f"{_TAGS}float":
            return float(constructor.construct_yaml_float(node))
        if tag == f"{_TAGS}bool":
            return constructor.construct_yaml_bool(node)
        return None

    def _count(self, event: Any, nodes: int, characters: int) -> None:
        self.nodes += nodes
        self.characters += characters
        if self.nodes > MAX_NODES:
            raise self._fault(event, f"there are more than {MAX_NODES} values, counting what aliases repeat")
        if self.characters > MAX_SIZE:
            raise self._fault(event, f"with what aliases repeat, this is larger than {MAX_SIZE // 1024} KiB")

    def _unknown_tag(self, event: Any) -> InvalidConfig:
        return self._fault(
            event, f"the tag {printable(event.tag.replace(_TAGS, '!!'))} is not known here; leave it out"
        )

    def _fault(self, event: Any, message: str) -> InvalidConfig:
        return fault(self.file, event.start_mark.line + 1, event.start_mark.column + 1, message)


def _place(event: Any) -> _Place:
    return _Place(event.start_mark.line + 1, event.start_mark.column + 1, _NO_PARTS)


_NO_PARTS: Final[Mapping[str | int, _Place]] = {}

_WORDS: Final[tuple[tuple[str, str, bool], ...]] = (
    (r"could not find expected ':'", 'this line has no ":" after its key', True),
    (
        r"mapping values are not allowed here",
        'there is a ":" where no key can be; indent the line, or use quotes',
        False,
    ),
    (r"sequence entries are not allowed here", 'there is a "-" where no list can begin; put it on its own line', False),
    (r"found character '\\t'", "there is a tab here; use spaces", False),
    (r"found character (.*) that cannot start", r"text cannot begin with \1; put it in quotes", False),
    (r"found unexpected end of stream|unexpected document separator", "what begins here in quotes has no end", True),
    (
        r"expected ',' or '([\]}])'",
        r'what begins here lacks its "\1", or a ","; text with brackets or braces has to be in quotes',
        True,
    ),
    (
        r"expected <block end>, but found '<scalar>'",
        "text comes after the end of a value; check quotes and indentation",
        False,
    ),
    (r"expected <block end>, but found '([\]},])'", r'there is a "\1" that belongs to nothing', False),
    (r"expected <block end>", "the line does not fit the ones above it; check its indentation", False),
    (r"expected the node content", "a value is missing here", False),
    (r"expected '<document start>'", "text that belongs to nothing stands here", False),
    (r"expected alphabetic or numeric character", "text cannot begin with * or &; put it in quotes", True),
    (r"expected chomping or indentation", "after | or > the text begins on the next line", True),
    (r"found unknown escape character (.*)", r"\1 cannot follow a backslash in double quotes", False),
)
"""Regex for the parser's message, readable message, and True if the fault is where the construct begins."""


def _not_yaml(error: MarkedYAMLError, file: str) -> InvalidConfig:
    problem = " ".join(str(error.problem or error.context or "it cannot be parsed").split())
    mark = error.problem_mark or error.context_mark
    for pattern, words, at_start in _WORDS:
        if found := re.match(pattern, problem):
            problem = found.expand(words)
            mark = (error.context_mark if at_start else None) or mark
            break
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    return fault(file, line, column, printable(problem))
