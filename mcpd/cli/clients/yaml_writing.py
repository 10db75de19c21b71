# SPDX-License-Identifier: LGPL-2.1-or-later
"""Values as YAML text that means the same to parsers of YAML 1.1 and 1.2."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mcpd.model import JsonValue

_PLAIN: Final = re.compile(r"(?:[A-Za-z_/]|\.\.?/)[A-Za-z0-9_./@+-]*(?::[A-Za-z0-9_./@+-]+)*", re.ASCII)
_WORDS: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
_UNPRINTABLE: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Layout:
    """How a file is laid out: spaces by which maps in maps, and lists in maps, are indented."""

    map_step: int = 2
    list_step: int = 2


def quoted(value: str) -> str:
    """*value* in double quotes."""
    text = json.dumps(value, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def inline(value: JsonValue) -> str:
    """*value* in flow style, on one line."""
    text = json.dumps(value, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def word(value: str) -> str:
    """*value* as it is if that is a string to every parser, else in quotes."""
    return value if _PLAIN.fullmatch(value) and value.lower() not in _WORDS else quoted(value)


def pair(name: str, value: JsonValue, indent: int, layout: Layout) -> list[str]:
    """The lines of a key and its *value* in a block map that is indented by *indent* spaces."""
    return below(" " * indent + word(name) + ":", value, indent, layout)


def below(head: str, value: JsonValue, indent: int, layout: Layout) -> list[str]:
    """The lines of *head*, which ends with the colon of a key in column *indent*, and its *value*."""
    if isinstance(value, dict | list) and value:
        step = layout.map_step if isinstance(value, dict) else layout.list_step
        return [head, *block(value, indent + step, layout)]
    return [f"{head} {_scalar(value)}"]


def block(value: JsonValue, indent: int, layout: Layout) -> list[str]:
    """The lines of what is in the map or list *value*, indented by *indent* spaces."""
    if isinstance(value, dict):
        return [line for name, each in value.items() for line in pair(name, each, indent, layout)]
    return [line for each in value for line in item(each, indent, layout)] if isinstance(value, list) else []


def item(value: JsonValue, indent: int, layout: Layout) -> list[str]:
    """The lines of a *value* in a block list that is indented by *indent* spaces."""
    dash = " " * indent + "- "
    if not isinstance(value, dict) or not value:
        return [dash + _scalar(value)]
    lines = block(value, indent + 2, layout)
    return [dash + lines[0][indent + 2 :], *lines[1:]]


def _scalar(value: JsonValue) -> str:
    return word(value) if isinstance(value, str) else inline(value)
