# SPDX-License-Identifier: LGPL-2.1-or-later
"""JSON Schema as people read it. A schema comes from a server, so it may have any shape, and no end."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

DEPTH: Final = 8
MOST_FIELDS: Final = 200
"""Of one schema."""
MOST_READ: Final = 20_000
"""Schemas, each as often as others refer to it, that are read of one server."""
_LONGEST_KIND: Final = 200
_LONGEST_TEXT: Final = 1001
_LONGEST_VALUE: Final = 200
_LIMITS: Final = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
    "minLength": "length at least",
    "maxLength": "length at most",
    "minItems": "items at least",
    "maxItems": "items at most",
    "multipleOf": "multiple of",
    "pattern": "matches",
    "format": "format",
    "default": "default",
    "const": "always",
}


@dataclass(slots=True)
class Field:
    """One property of an object, and those within."""

    name: str
    kind: str = ""
    required: bool = False
    description: str = ""
    notes: list[str] = field(default_factory=list)
    inner: list[Field] = field(default_factory=list)


class Effort:
    """The remaining effort for the schemas of one server, as a few bytes can contain endless references."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MOST_READ


def fields_of(schema: object, effort: Effort) -> list[Field]:
    """The properties that *schema*, of an object, describes; what is nested too deeply, or too much, is left out."""
    return _Reader(schema, effort).properties(schema, DEPTH)


def as_json(value: object, most: int, indent: int | None = None) -> str:
    """The JSON of *value*, cut after *most* characters; what comes after them takes no time."""
    text = ""
    for piece in json.JSONEncoder(ensure_ascii=False, indent=indent).iterencode(value):
        text += piece
        if len(text) > most:
            return text[:most] + "\n…" if indent else text[:most]
    return text


class _Reader:
    def __init__(self, root: object, effort: Effort) -> None:
        self._root = root
        self._effort = effort
        self._left = MOST_FIELDS
        self._within: list[str] = []
        """The references that lead to what is read now."""

    def properties(self, schema: object, depth: int) -> list[Field]:
        found: dict[str, Field] = {}
        for part in self._parts(schema, depth):
            required = part.get("required")
            names = required if isinstance(required, list) else []
            properties = part.get("properties")
            for name, each in properties.items() if isinstance(properties, dict) else ():
                if name not in found and self._left > 0:
                    self._left -= 1
                    found[name] = self._field(str(name), each, depth - 1, required=name in names)
            rest = part.get("additionalProperties")
            if isinstance(rest, dict) and rest and self._left > 0:
                self._left -= 1
                found.setdefault("*", self._field("any other name", rest, depth - 1, required=False))
        return list(found.values())

    def _field(self, name: str, schema: object, depth: int, *, required: bool) -> Field:
        found = self._resolved(schema)
        made = Field(name, self._kind(found, depth), required)
        if isinstance(found, dict):
            made.description = _text(found.get("description")) or _text(found.get("title"))
            made.notes = _notes(found)
            self._enter(made, schema, depth)
            if not made.inner:
                self._enter(made, found.get("items"), depth - 1)
        return made

    def _enter(self, into: Field, schema: object, depth: int) -> None:
        """Read what is within *schema*, unless that is being read already."""
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if reference is not None and str(reference) in self._within:
            into.notes.append("as above")
        elif depth > 0:
            self._within.append(str(reference))
            into.inner = self.properties(schema, depth)
            self._within.pop()

    def _parts(self, schema: object, depth: int) -> list[dict[str, Any]]:
        """*schema*, and what it is made of beside properties of its own."""
        schema = self._resolved(schema)
        if not isinstance(schema, dict) or depth <= 0:
            return []
        found = [schema]
        for word in ("allOf", "anyOf", "oneOf"):
            options = schema.get(word)
            for option in options[:10] if isinstance(options, list) else ():
                found += self._parts(option, depth - 2)
        return found

    def _kind(self, schema: object, depth: int) -> str:
        schema = self._resolved(schema)
        if not isinstance(schema, dict) or depth < 0:
            return "anything" if schema is True or depth < 0 else "nothing" if schema is False else ""
        kind = schema.get("type")
        if kind == "array":
            items = self._kind(schema.get("items"), depth - 1)
            return f"array of {items}" if items else "array"
        if isinstance(kind, (str, list)):
            return " or ".join(map(_text, [kind] if isinstance(kind, str) else kind[:10]))[:_LONGEST_KIND]
        for word in ("anyOf", "oneOf"):
            options = schema.get(word)
            if isinstance(options, list):
                kinds = [self._kind(option, depth - 1) for option in options[:10]]
                return " or ".join(dict.fromkeys(filter(None, kinds)))[:_LONGEST_KIND]
        names = schema.get("enum")
        if isinstance(names, list) and all(isinstance(each, str) for each in names):
            return "string"
        return "object" if "properties" in schema else ""

    def _resolved(self, schema: object) -> object:
        """What a reference within the schema points to; nothing when enough was read."""
        if self._effort.left <= 0:
            return None
        self._effort.left -= 1
        for _ in range(DEPTH):
            reference = schema.get("$ref") if isinstance(schema, dict) else None
            if not isinstance(reference, str) or not reference.startswith("#"):
                return schema
            target = self._root
            for step in reference[1:].split("/")[1:][:20]:
                key = step.replace("~1", "/").replace("~0", "~")
                target = target.get(key) if isinstance(target, dict) else None
            schema = target
        return schema


def _notes(schema: dict[str, Any]) -> list[str]:
    found = []
    options = schema.get("enum")
    if isinstance(options, list):
        more = ", …" if len(options) > 20 else ""
        found.append("one of " + ", ".join(map(_value, options[:20])) + more)
    found += [f"{words} {_value(schema[word])}" for word, words in _LIMITS.items() if word in schema]
    if schema.get("deprecated") is True:
        found.append("deprecated")
    return found


def _value(value: object) -> str:
    return value[:_LONGEST_VALUE] if isinstance(value, str) and value else as_json(value, _LONGEST_VALUE)


def _text(value: object) -> str:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else ""
