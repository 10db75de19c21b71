# SPDX-License-Identifier: LGPL-2.1-or-later
"""Taking a long list or map of JSON apart, element by element, without making anything of what is in them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

_TEXT: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_STRING: Final = re.compile(_TEXT, re.DOTALL)
_BRACKET: Final = re.compile(rb'[^"\[\]{}]*+(?:' + _TEXT + rb'[^"\[\]{}]*+)*+[\[\]{}]', re.DOTALL)
"""All up to the next bracket that is not in a text, and that."""
_SCALAR: Final = re.compile(rb"[^\s,\]}]++")
_SPACE: Final = re.compile(rb"\s*+")
_COLON: Final = re.compile(rb"\s*+:\s*+")


def elements(data: memoryview) -> Iterator[tuple[str, memoryview]]:
    """The key (empty in a list) and the JSON of each element of *data*: a list or a map, known to be whole.

    Whoever stops early pays for no more: a few bytes of gzip are millions of elements.
    """
    position = 1
    while True:
        start = _after(_SPACE, data, position)
        if data[start] in b"]}":
            return
        key = ""
        if data[0] in b"{":
            end = _after(_STRING, data, start)
            key = _key(data[start:end])
            start = _after(_COLON, data, end)
        end = _end(data, start)
        yield key, data[start:end]
        position = _after(_SPACE, data, end)
        if data[position] in b"]}":
            return
        position += 1


def _end(data: memoryview, start: int) -> int:
    """Where the value that begins at *start* ends."""
    if data[start] not in b"{[":
        return _after(_STRING if data[start] in b'"' else _SCALAR, data, start)
    position, depth = start + 1, 1
    while depth:
        position = _after(_BRACKET, data, position)
        depth += 1 if data[position - 1] in b"{[" else -1
    return position


def _after(pattern: re.Pattern[bytes], data: memoryview, position: int) -> int:
    found = pattern.match(data, position)
    if found is None:
        raise ValueError(f"no JSON at byte {position}")
    return found.end()


def _key(data: memoryview) -> str:
    try:
        return msgspec.json.decode(data, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # It becomes no id, and is named like that.
        return bytes(data[1:-1]).decode("utf-8", "backslashreplace")
