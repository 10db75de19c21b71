# SPDX-License-Identifier: LGPL-2.1-or-later
"""JSON Schemas of arguments and results, and what is wrong with values by them."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cached_property, lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, EMPTY_REGISTRY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_FAULTS: Final = 5
"""Faults that one message names."""
_LONGEST: Final = 300
"""Characters of the text of one fault; a value is quoted in it."""
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_DATA: Final = frozenset({"const", "default", "enum", "examples"})
MAX_SCHEMA: Final = 1024 * 1024
"""Bytes of a schema, as JSON."""
MAX_WEIGHT: Final = 64 * 1024
"""Of a value that is checked where it is: its bytes, about."""
MAX_WORK: Final = 2_000_000
"""The product of what a schema and a value count that is checked where they are: some hundredths of a second."""
TOO_DEEP: Final = "$: it is nested too deeply, or its schema refers to itself without end"
_NODE: Final = 16
"""What any part of a value weighs."""
_DEAR: Final = frozenset(
    {"pattern", "patternProperties", "uniqueItems", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$id"}
)
"""A pattern can take for ever, and the others compare everything with everything, or check it again at each level."""
_SAID: Final = frozenset({"default", "description", "examples", "title", "$comment"})
_DEFINITIONS: Final = frozenset({"$defs", "definitions"})
"""They count where they are referred to."""
_TRUTH: Final = {"true": True, "1": True, "false": False, "0": False}


class Checker:
    """Knows what is wrong with values by one *schema*; raises ValueError, with what is wrong, if that is none.

    Nothing is ever fetched: a schema may refer to its own parts only. What a check may cost is in the hands of whoever
    wrote the schema and of whoever sends the value: see :meth:`is_cheap_for`.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema
        self._cost = _check(schema)
        self._validator = Draft202012Validator(schema, registry=EMPTY_REGISTRY)

    @cached_property
    def written(self) -> tuple[bytes, bytes]:
        """The schema as JSON, and the SHA-256 of that: what another process knows it by."""
        text = json.dumps(self.schema).encode()
        return text, hashlib.sha256(text).digest()

    def is_cheap_for(self, value: object) -> bool:
        """Return True if :meth:`fault` takes some milliseconds at most, so that nothing has to wait for it."""
        return self._cost > 0 and _weighs_less(value, min(MAX_WORK // self._cost, MAX_WEIGHT))

    def fault(self, value: object) -> str:
        """What is wrong with *value*, by JSON path (``$.count: 'x' is not of type 'integer'``); empty if nothing is."""
        try:
            return "; ".join(_described(each) for each in islice(self._validator.iter_errors(value), MOST_FAULTS))
        except RecursionError:
            return TOO_DEEP
        except (Unresolvable, re.error) as error:
            return f"$: it cannot be checked, as its schema is not usable: {_clipped(str(error))}"
        except (ArithmeticError, ValueError) as error:
            # "multipleOf" of a number of hundreds of digits, or of one that is not finite.
            return f"$: it cannot be checked: {_clipped(str(error))}"


@lru_cache(maxsize=4096)
def checker(schema: str) -> Checker:
    """The checker of the *schema* in this JSON text, made once; raises ValueError as :class:`Checker` does."""
    return Checker(json.loads(schema))


def _check(schema: Mapping[str, Any]) -> int:
    """See that *schema* is one; how much work it is for each part of a value, 0 if that cannot be told."""
    try:
        if len(json.dumps(schema)) > MAX_SCHEMA:
            raise ValueError(f"it has more than {MAX_SCHEMA} bytes")
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"{error.json_path}: {_clipped(error.message)}") from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    resource = DRAFT202012.create_resource(schema)
    resolver = EMPTY_REGISTRY.with_resource("", resource).crawl().resolver()
    targets: dict[str, Any] = {}
    for reference in _references(schema):
        try:
            targets[reference] = resolver.lookup(reference).contents
        except Unresolvable:
            raise ValueError(
                f"it refers to {_clipped(reference)!r}, which it does not hold; nothing is fetched from elsewhere"
            ) from None
    try:
        return _Cost(targets).of(schema)
    except (RecursionError, _DearError):
        return 0


def _references(schema: object) -> set[str]:
    found: set[str] = set()
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            found |= {part[key] for key in ("$ref", "$dynamicRef") if isinstance(part.get(key), str)}
            pending += [inner for key, inner in part.items() if key not in _DATA]
        elif isinstance(part, list):
            pending += part
    return found


class _DearError(Exception):
    """There is no bound of what a schema costs, or none that is worth having."""


class _Cost:
    """Counts the parts of a schema as often as they may be asked about one part of a value.

    The references stand for what they refer to, so that there is no count of what refers to itself.
    """

    def __init__(self, targets: Mapping[str, Any]) -> None:
        self._targets = targets
        self._known: dict[int, int] = {}
        self._open: set[int] = set()

    def of(self, part: object) -> int:
        """The count for *part*. Raises _DearError, and RecursionError."""
        if not isinstance(part, dict | list):
            return 1
        if id(part) in self._known:
            return self._known[id(part)]
        if id(part) in self._open:
            raise _DearError
        self._open.add(id(part))
        if isinstance(part, list):
            count = 1 + sum(map(self.of, part))
        else:
            count = 1 + sum(self._of_keyword(key, inner) for key, inner in part.items())
        if count > MAX_WORK:
            raise _DearError
        self._open.discard(id(part))
        self._known[id(part)] = count
        return count

    def _of_keyword(self, key: str, inner: object) -> int:
        # Also a property may have such a name: that costs a moment and no more.
        if key in _DEAR:
            raise _DearError
        if key in _SAID:
            return 0
        if key in _DEFINITIONS:
            return 1
        if key == "$ref" and isinstance(inner, str):
            # Names other than paths are looked for in the whole schema, each time.
            if not inner.startswith("#/"):
                raise _DearError
            return self.of(self._targets[inner])
        return self.of(inner)


def _weighs_less(value: object, limit: int) -> bool:
    """Return True if *value* weighs less than *limit*. Nested values weigh more, as messages quote their context."""
    weight = 0
    pending: list[tuple[Any, int]] = [(value, 1)]
    while pending:
        part, depth = pending.pop()
        own = len(part) if isinstance(part, str | dict | list) else 0
        weight += depth * (_NODE + own)
        if weight >= limit:
            return False
        if isinstance(part, dict):
            weight += depth * sum(map(len, part))
            pending += [(inner, depth + 1) for inner in part.values()]
        elif isinstance(part, list):
            pending += [(inner, depth + 1) for inner in part]
    return weight < limit


def _described(error: ValidationError) -> str:
    """One fault; of alternatives the one that came nearest."""
    nearest = best_match([error]) or error
    path = nearest.json_path
    if nearest.validator == "required" and isinstance(nearest.instance, dict):
        # There is an error for each that is missing, which is named in its text alone.
        names: Any = nearest.validator_value
        missing = next((name for name in names if nearest.message.startswith(f"{name!r} is a required")), None)
        if missing is not None:
            return f"{path}{_member(missing)} is required"
    return f"{path}: {_clipped(nearest.message)}"


def _member(name: str) -> str:
    return f".{name}" if _PLAIN.fullmatch(name) else f"[{name!r}]"


def _clipped(text: str) -> str:
    """The value stands at the beginning of a message, what is wrong with it at its end."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 3]} … {text[-_LONGEST // 2 :]}"


def from_texts(schema: object, texts: Sequence[str]) -> Any:
    """The value of type *schema* that *texts* stand for, which were given where only texts can be (a query, a prompt).

    What cannot be converted stays a text, so that the schema tells what is wrong with it.
    """
    kinds = _kinds(schema)
    if "array" in kinds:
        items = schema.get("items") if isinstance(schema, dict) else None
        return [from_texts(items, [text]) for text in texts]
    text = texts[-1]
    if "string" in kinds:
        return text
    if "boolean" in kinds and text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    if kinds & {"integer", "number", "object", "null"}:
        try:
            return json.loads(text, parse_constant=_refused)
        except (ValueError, RecursionError):
            return text
    return text


def _refused(name: str) -> None:
    raise ValueError(name)


def _kinds(schema: object) -> set[str]:
    """The types that *schema* names, also as alternatives."""
    if not isinstance(schema, dict):
        return set()
    said = schema.get("type")
    found = {said} if isinstance(said, str) else set(said) if isinstance(said, list) else set()
    for key in ("anyOf", "oneOf"):
        for inner in schema.get(key, ()):
            found |= _kinds(inner)
    return found
