# SPDX-License-Identifier: LGPL-2.1-or-later
"""Constraints on a value: ``Field(ge=1)`` of pydantic, ``Gt(0)`` of annotated-types, as keywords of JSON Schema."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from mcpd.servers.scripts.discover.docstrings import MAX_LINE, one_line
from mcpd.servers.scripts.discover.literals import NOTHING, literal, text
from mcpd.servers.scripts.discover.types import Schema, words

if TYPE_CHECKING:
    from mcpd.servers.scripts.discover.names import Names

FIELDS: Final = words("pydantic.Field pydantic.StringConstraints")

_MAX_KEYWORDS: Final = 50  # more are not meant for people

_NUMBERS: Final = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
_POSITIONAL: Final = {  # the classes of annotated-types, and the names of their arguments
    "annotated_types.Ge": ("ge",),
    "annotated_types.Gt": ("gt",),
    "annotated_types.Le": ("le",),
    "annotated_types.Lt": ("lt",),
    "annotated_types.MultipleOf": ("multiple_of",),
    "annotated_types.MinLen": ("min_length",),
    "annotated_types.MaxLen": ("max_length",),
    "annotated_types.Len": ("min_length", "max_length"),
    "annotated_types.Interval": (),
}
_SIZES: Final = {
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}


@dataclass(slots=True)
class Info:
    """Information about a value besides its type; *required* is None if unknown."""

    keywords: dict[str, Any] = field(default_factory=dict)
    description: str = ""
    alias: str = ""
    default: Any = NOTHING
    required: bool | None = None


def read(node: ast.expr, names: Names) -> Info:
    """Return the information in *node*: an argument of ``Annotated``, or the default of a field or a parameter."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return Info(description=text(node.value.strip(), MAX_LINE))
    if not isinstance(node, ast.Call) or len(node.keywords) > _MAX_KEYWORDS:
        return Info()
    called = names.full(node.func)
    if called in FIELDS:
        return _field(node, names)
    if called in _POSITIONAL:
        values = dict(zip(_POSITIONAL[called], node.args, strict=False))
        values |= by_name(node.keywords)
        return Info(keywords=_literals(values, names))
    if called.rpartition(".")[2] in {"Doc", "Description"} and len(node.args) == 1:
        return read(node.args[0], names) if isinstance(node.args[0], ast.Constant) else Info()
    return Info()


def limits(node: ast.Call, names: Names) -> dict[str, Any]:
    """Return the literal keyword arguments of *node*, as in ``conint(ge=1)``."""
    if len(node.keywords) > _MAX_KEYWORDS:
        return {}
    return _literals(by_name(node.keywords), names)


def by_name(keywords: list[ast.keyword]) -> dict[str, ast.expr]:
    """Return the values of the *keywords* of a call, without ``**``."""
    return {item.arg: item.value for item in keywords if item.arg}


def _literals(values: dict[str, ast.expr], names: Names) -> dict[str, Any]:
    return {name: value for name, node in values.items() if (value := literal(node, names.constant)) is not NOTHING}


def _field(node: ast.Call, names: Names) -> Info:
    given = by_name(node.keywords)
    if node.args:
        given.setdefault("default", node.args[0])
    keywords = _literals(given, names)
    info = Info(keywords=keywords)
    if "default" in given:
        ellipsis = isinstance(given["default"], ast.Constant) and given["default"].value is ...
        info.required = ellipsis
        info.default = NOTHING if ellipsis else keywords.get("default", NOTHING)
    elif "default_factory" in given:
        info.required = False
        info.default = factory(given["default_factory"], names)
    if isinstance(description := keywords.get("description"), str):
        info.description = one_line(description)
    for name in ("alias", "validation_alias"):
        if isinstance(alias := keywords.get(name), str):
            info.alias = alias
    return info


def factory(node: ast.expr, names: Names) -> Any:
    """Return the result of the factory *node*, if that is an empty list or dictionary."""
    called = names.full(node)
    return [] if called in {"list", "set", "tuple"} else {} if called == "dict" else NOTHING


def apply(schema: Schema, keywords: dict[str, Any]) -> Schema:
    """Return *schema* with the constraints in *keywords* that apply to its type."""
    if not keywords:
        return schema
    if isinstance(branches := schema.get("anyOf"), list):
        return {**schema, "anyOf": [apply(branch, keywords) for branch in branches]}
    kind = schema.get("type")
    if kind in {"integer", "number"}:
        return {**schema, **_numeric(keywords)}
    if not isinstance(kind, str) or kind not in _SIZES or "contentEncoding" in schema:
        return schema  # limits of bytes do not apply to their base64
    return {**schema, **_sizes(kind, keywords)}


def _numeric(keywords: dict[str, Any]) -> Schema:
    return {
        keyword: value
        for name, keyword in _NUMBERS.items()
        if _is_number(value := keywords.get(name)) and not (name == "multiple_of" and value <= 0)
    }


def _sizes(kind: str, keywords: dict[str, Any]) -> Schema:
    added: Schema = {}
    for names, keyword in zip((("min_length", "min_items"), ("max_length", "max_items")), _SIZES[kind], strict=True):
        for value in (keywords.get(name) for name in names):
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                added[keyword] = value
    pattern = keywords.get("pattern", keywords.get("regex"))
    if kind == "string" and isinstance(pattern, str) and _is_pattern(pattern):
        added["pattern"] = pattern
    return added


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_pattern(pattern: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except (re.error, RecursionError, OverflowError, MemoryError):
        return False
    return True
