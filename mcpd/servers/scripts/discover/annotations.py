# SPDX-License-Identifier: LGPL-2.1-or-later
"""Conversion of Python annotations to JSON Schema 2020-12, from the syntax tree.

An unknown type is ``{}``, which accepts any value, so that no schema refuses a value only because its type was not
understood. Types that are nested too deeply, or make a schema too large, become ``{}`` as well.
"""

from __future__ import annotations

import ast
import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from mcpd.servers.scripts.discover import constraints, models
from mcpd.servers.scripts.discover.literals import NOTHING, literal
from mcpd.servers.scripts.discover.names import Kind, Names, is_bytes
from mcpd.servers.scripts.discover.syntax import expression
from mcpd.servers.scripts.discover.types import (
    BOOLEAN,
    CONSTRAINED,
    COUNTERS,
    INTEGER,
    KEYS,
    MAPPINGS,
    NULL,
    NUMBER,
    PLAIN,
    SEQUENCES,
    SETS,
    STRING,
    TUPLES,
    WRAPPERS,
    Schema,
    container,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from mcpd.servers.scripts.discover.budget import Budget
    from mcpd.servers.scripts.discover.docstrings import Docstrings

MAX_DEPTH: Final = 32
"""Maximum depth of nested types."""

MAX_CLASSES: Final = 100
"""Maximum number of classes of the file that one tool may use."""

_MAX_EXTRAS: Final = 50  # of one Annotated
_SCHEMA_COST: Final = 32
_VALUE_COST: Final = 4
_REFERENCE: Final = "#/$defs/"


class Converter:
    """Creates the schemas of one tool, with common definitions."""

    def __init__(self, names: Names, docs: Docstrings, budget: Budget) -> None:
        self.names = names
        self.docs = docs
        self.budget = budget
        self.scope: tuple[str, ast.ClassDef] | None = None
        self._definitions: dict[str, Schema] = {}
        self._waiting: list[tuple[str, ast.ClassDef]] = []
        self._open: set[str] = set()
        self._recursive: set[str] = set()
        budget.next_tool()

    def definitions(self) -> dict[str, Schema]:
        """Return the definitions that the schemas refer to, by name. To be called only once, at the end."""
        while self._waiting:
            key, node = self._waiting.pop()
            self.scope = key, node
            self._definitions[key] = models.schema(node, self)
        self.scope = None
        _break_cycles(self._definitions)
        return self._definitions

    def schema(self, node: ast.expr | None, depth: int = 0) -> Schema:  # noqa: PLR0911 -- one for each form
        """Return the schema of the annotation *node*, which is nested *depth* types deep."""
        if node is None or depth > MAX_DEPTH or not self.budget.spend(_SCHEMA_COST):
            return {}
        match node:
            case ast.Constant(None):
                return dict(NULL)
            case ast.Constant(str(text)):
                return self.schema(expression(text), depth + 1) if self.budget.spend(len(text)) else {}
            case ast.BinOp(op=ast.BitOr()):
                return self._union(_alternatives(node), depth)
            case ast.Name() | ast.Attribute():
                return self._named(node, depth)
            case ast.Subscript(value, arguments):
                return self._subscript(value, arguments, depth)
            case ast.Starred(value):
                return self.schema(value, depth + 1)
            case ast.Call():
                return self._constrained(node, depth)
            case _:
                return {}

    def inline(self, node: ast.ClassDef) -> Schema:
        """Return the schema of the class *node* itself, instead of a reference to it."""
        return models.schema(node, self)

    def described(self, schema: Schema, info: constraints.Info) -> Schema:
        """Return *schema* with the keywords, description and default of *info*, as far as the budget permits."""
        schema = constraints.apply(schema, info.keywords)
        for key, value in (("description", info.description or NOTHING), ("default", info.default)):
            if value is not NOTHING and self.budget.spend(size(value)):
                schema = {**schema, key: value}
        return schema

    def _named(self, node: ast.Name | ast.Attribute, depth: int) -> Schema:
        found = self.names.local(node, self.scope)
        if found is not None:
            return self._class(*found, depth)
        if isinstance(node, ast.Name) and (alias := self.names.bindings.aliases.get(node.id)) is not None:
            return self._alias(node.id, alias, depth)
        full = self.names.full(node)
        return dict(PLAIN.get(full) or container(full) or {})

    def _alias(self, name: str, value: ast.expr, depth: int) -> Schema:
        reference = {"$ref": _REFERENCE + quote(name)}
        if name in self._definitions:
            return reference
        if name in self._open:
            self._recursive.add(name)
            return reference
        if not self.names.may_read(value):
            return {}
        self._open.add(name)
        schema = self.schema(value, depth + 1)
        self._open.discard(name)
        if name not in self._recursive:
            return schema
        self._definitions[name] = schema
        return dict(reference)

    def _class(self, key: str, node: ast.ClassDef, depth: int) -> Schema:
        kind = self.names.kind(node)
        if kind is Kind.ENUM:
            return self.values(self.names.members(node).values())
        if kind is Kind.FLAG:
            return dict(INTEGER)
        if kind is Kind.OTHER:
            bases = [PLAIN.get(base) or container(base) for base in self.names.bases(node)]
            return dict(next((schema for schema in bases if schema), {}))
        if key not in self._definitions:
            if len(self._definitions) >= MAX_CLASSES or depth > MAX_DEPTH:
                return {}
            self._definitions[key] = {}
            self._waiting.append((key, node))
        return {"$ref": _REFERENCE + quote(key)}

    def _subscript(self, value: ast.expr, arguments: ast.expr, depth: int) -> Schema:  # noqa: PLR0911
        full = self.names.full(value)
        inner = arguments.elts if isinstance(arguments, ast.Tuple) else [arguments]
        first = inner[0] if inner else None
        if full == "Annotated" and first is not None:
            return self._annotated(first, inner[1:], depth)
        if full == "Optional":
            return self._union([first or arguments, ast.Constant(None)], depth)
        if full == "Union":
            return self._union(inner, depth)
        if full == "Literal":
            return self._literal(inner, depth)
        if full in WRAPPERS:
            return self.schema(first, depth + 1)
        if full in TUPLES:
            return self._tuple(inner, depth)
        schema = container(full)
        if schema is not None:
            return self._container(full, schema, inner, depth)
        if full in PLAIN:
            return dict(PLAIN[full])
        return self._named(value, depth + 1) if isinstance(value, ast.Name | ast.Attribute) and not full else {}

    def _container(self, full: str, schema: Schema, inner: list[ast.expr], depth: int) -> Schema:
        if (full in MAPPINGS and len(inner) == 2) or (full in COUNTERS and len(inner) == 1):
            names = self._keys(inner[0], depth + 1)
            values = self.schema(inner[1], depth + 1) if full in MAPPINGS else {}
            schema = {**schema, "propertyNames": names} if names else schema
            return {**schema, "additionalProperties": values} if values else schema
        if full in SEQUENCES | SETS and inner:
            items = self.schema(inner[0], depth + 1)
            return {**schema, "items": items} if items else schema
        return schema

    def _keys(self, node: ast.expr, depth: int) -> Schema:
        """Return the schema of an object's member names for keys with the annotation *node*; ``{}`` for any."""
        found = self.names.local(node, self.scope)
        if found is not None and self.names.kind(found[1]) is Kind.ENUM:
            members = self.names.members(found[1])
            if not self.budget.read(len(members)):
                return {}
            texts = all(isinstance(value, str) for value in members.values())
            return self.values(members.values() if texts else members.keys())
        keys = self.schema(node, depth)
        kind = keys.get("type")
        if kind == "string":
            return keys if len(keys) > 1 else {}
        return dict(KEYS.get(str(kind), {})) if not keys.keys() & {"const", "enum"} else {}

    def _tuple(self, inner: list[ast.expr], depth: int) -> Schema:
        match inner:
            case [item, ast.Constant(value)] if value is ...:
                return {"type": "array", "items": self.schema(item, depth + 1)}
            case []:
                return {"type": "array", "items": {}, "maxItems": 0}
        if any(isinstance(item, ast.Starred) for item in inner):
            return {"type": "array", "items": {}}
        number = len(inner)
        if not self.budget.spend(_VALUE_COST * number):
            return {"type": "array", "items": {}}
        return {
            "type": "array",
            "prefixItems": [self.schema(item, depth + 1) for item in inner],
            "items": {},
            "minItems": number,
            "maxItems": number,
        }

    def _union(self, parts: list[ast.expr], depth: int) -> Schema:
        found: dict[str, Schema] = {}
        if not self.budget.spend(_VALUE_COST * len(parts)):
            return {}
        for part in parts:
            schema = self.schema(part, depth + 1)
            if not schema:
                return {}
            for branch in schema["anyOf"] if list(schema) == ["anyOf"] else [schema]:
                found.setdefault(json.dumps(branch, sort_keys=True), branch)
        branches = list(found.values())
        return branches[0] if len(branches) == 1 else {"anyOf": branches} if branches else {}

    def _literal(self, parts: list[ast.expr], depth: int) -> Schema:
        values: list[Any] = []
        if not self.budget.spend(_VALUE_COST * len(parts)):
            return {}
        for part in parts:
            value = NOTHING if is_bytes(part) else literal(part, self.names.constant)
            if value is NOTHING:  # an alias of another Literal, or not a JSON value
                schema = self.schema(part, depth + 1)
                inner = schema.get("enum", [schema["const"]] if "const" in schema else None)
                if inner is None:
                    return {}
                values += inner
            else:
                values.append(value)
        return self.values(values)

    def values(self, values: Collection[Any]) -> Schema:
        """Return the schema that accepts exactly *values*."""
        if not self.budget.spend(_VALUE_COST * len(values)):
            return {}
        distinct = {json.dumps(value, sort_keys=True): value for value in values}
        cost = sum(map(len, distinct))
        if not distinct or not self.budget.read(cost) or not self.budget.spend(cost):
            return {}
        kinds = {_KINDS.get(type(value), "") for value in distinct.values()}
        schema: Schema = {"type": kinds.pop()} if len(kinds) == 1 and "" not in kinds else {}
        listed = list(distinct.values())
        return {**schema, "const": listed[0]} if len(listed) == 1 else {**schema, "enum": listed}

    def _annotated(self, node: ast.expr, extras: list[ast.expr], depth: int) -> Schema:
        schema = self.schema(node, depth + 1)
        if not self.budget.spend(_VALUE_COST * len(extras)):
            return schema
        for extra in extras[:_MAX_EXTRAS]:
            schema = self.described(schema, constraints.read(extra, self.names))
        return schema

    def _constrained(self, node: ast.Call, depth: int) -> Schema:
        """Return the schema of a call used as a type: ``conint(ge=1)``, or the value of an alias, ``NewType(…)``."""
        full = self.names.full(node.func)
        limits = constraints.limits(node, self.names)
        if full in CONSTRAINED:
            return constraints.apply(dict(CONSTRAINED[full]), limits)
        schema = container(full)
        if schema is not None:
            items = self.schema(node.args[0], depth + 1) if node.args else {}
            return constraints.apply({**schema, "items": items} if items else schema, limits)
        if full in {"NewType", "TypeAliasType"} and len(node.args) == 2:
            return self.schema(node.args[1], depth + 1)
        if full == "TypeVar":
            bounds = [item.value for item in node.keywords if item.arg == "bound"] or node.args[1:]
            return self._union(bounds, depth) if bounds else {}
        return models.functional(node, full, self, depth)


_KINDS: Final[dict[type, str]] = {
    str: STRING["type"],
    int: INTEGER["type"],
    float: NUMBER["type"],
    bool: BOOLEAN["type"],
    type(None): NULL["type"],
}


def size(value: object) -> int:
    """Return the length of *value* as JSON in characters."""
    return len(json.dumps(value))


def _alternatives(node: ast.expr) -> list[ast.expr]:
    """Return the parts of ``a | b | c``, which may be many thousands."""
    parts: list[ast.expr] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        parts.append(node.right)
        node = node.left
    return [node, *reversed(parts)]


def _break_cycles(definitions: dict[str, Schema]) -> None:
    """Empty the references that form a cycle without a list or an object in between, or a chain that is too long.

    A validator would follow them forever, or too deep.
    """
    heights: dict[str, int] = {}
    for name in definitions:
        _height(name, definitions, heights, 0)


def _height(name: str, definitions: dict[str, Schema], heights: dict[str, int], steps: int) -> int:
    """Return the number of consecutive references from *name*; *heights* has known ones, MAX_DEPTH if unfinished."""
    if name not in heights:
        heights[name] = MAX_DEPTH
        found = 0
        stack = [definitions[name]]
        while stack:
            schema = stack.pop()
            stack += schema.get("anyOf", [])
            target = unquote(str(schema.get("$ref", "")).removeprefix(_REFERENCE))
            if target not in definitions:
                continue
            height = MAX_DEPTH if steps >= MAX_DEPTH else _height(target, definitions, heights, steps + 1)
            if height >= MAX_DEPTH:
                schema.clear()
            else:
                found = max(found, height + 1)
        heights[name] = found
    return heights[name]
