# SPDX-License-Identifier: LGPL-2.1-or-later
"""Python literals as JSON values, for defaults, enumerations and constraints."""

from __future__ import annotations

import ast
import base64
import math
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_DEPTH: Final = 20
"""Maximum depth of a literal."""

MAX_TEXT: Final = 4096
"""Maximum length of a string, in characters, and of a list; a longer one does not count as a literal."""

_MAX_INTEGER: Final = 2**64


class Nothing(Enum):
    """Type of the marker for "not a literal", as None is one."""

    NOTHING = "nothing"


NOTHING: Final = Nothing.NOTHING


def text(value: str, limit: int) -> str:
    """Return *value* cut to at most *limit* characters, and encodable as UTF-8."""
    short = value if len(value) <= limit else value[: limit - 1] + "…"
    return short.encode("utf-8", "replace").decode("utf-8")


def literal(node: ast.expr, lookup: Callable[[ast.expr], Any] | None = None, depth: int = 0) -> Any:  # noqa: PLR0911
    """Return the JSON value of *node*, or :data:`NOTHING`.

    Bytes become base64, tuples and sets lists. *lookup* returns the value of a name like ``LIMIT`` or ``Color.RED``.
    """
    if depth > MAX_DEPTH:
        return NOTHING
    match node:
        case ast.Constant(value):
            return _constant(value)
        case ast.UnaryOp(ast.USub() | ast.UAdd() as sign, ast.Constant(int() | float() as number)):
            value = _constant(number)
            return value if value is NOTHING or isinstance(sign, ast.UAdd) else -value
        case ast.List(elements) | ast.Tuple(elements) | ast.Set(elements):
            return _list([literal(element, lookup, depth + 1) for element in elements[: MAX_TEXT + 1]])
        case ast.Dict(keys, values):
            names = [NOTHING if key is None else literal(key, lookup, depth + 1) for key in keys[: MAX_TEXT + 1]]
            items = _list([literal(value, lookup, depth + 1) for value in values[: MAX_TEXT + 1]])
            if items is NOTHING or not all(isinstance(name, str) for name in names):
                return NOTHING
            return dict(zip(names, items, strict=True))
        case ast.Name() | ast.Attribute() if lookup is not None:
            return lookup(node)
        case _:
            return NOTHING


def _constant(value: object) -> Any:
    match value:
        case None | bool():
            return value
        case int():
            return value if value < _MAX_INTEGER else NOTHING
        case float():
            return value if math.isfinite(value) else NOTHING
        case str():
            return value if len(value) <= MAX_TEXT and text(value, MAX_TEXT) == value else NOTHING
        case bytes():
            return base64.b64encode(value).decode("ascii") if len(value) <= MAX_TEXT else NOTHING
        case _:
            return NOTHING


def _list(values: list[Any]) -> Any:
    return NOTHING if len(values) > MAX_TEXT or NOTHING in values else values
