# SPDX-License-Identifier: LGPL-2.1-or-later
"""Validation of arguments and results by JSON Schema."""

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
"""Maximum number of faults in one message."""
_LONGEST: Final = 300
"""Maximum length of the text of one fault, which quotes a value, in characters."""
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_DATA: Final = frozenset({"const", "default", "enum", "examples"})
MAX_SCHEMA: Final = 1024 * 1024
"""Maximum size of a schema as JSON, in bytes."""
MAX_WEIGHT: Final = 64 * 1024
"""Maximum size of a value that is validated in this process, in bytes, approximately."""
MAX_WORK: Final = 2_000_000
"""Maximum product of the costs of a schema and a value that are validated in this process: some 10 ms."""
TOO_DEEP: Final = "$: it is nested too deeply, or its schema refers to itself without end"
_NODE: Final = 16
"""Size that any part of a value counts for."""
_DEAR: Final = frozenset(
    {"pattern", "patternProperties", "uniqueItems", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$id"}
)
"""Expensive keywords: a pattern may take forever, the others compare all items, or validate again at each level."""
_SAID: Final = frozenset({"default", "description", "examples", "title", "$comment"})
_DEFINITIONS: Final = frozenset({"$defs", "definitions"})
"""Keywords whose content counts only where it is referred to."""
_TRUTH: Final = {"true": True, "1": True, "false": False, "0": False}


class Checker:
    """Validates values by one *schema*; raises ValueError, with the fault, if that is invalid.

    Nothing is ever fetched: a schema can only refer to its own parts. The cost of a validation depends on the authors
    of the schema and of the value: see :meth:`is_cheap_for`.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema
        self._cost = _check(schema)
        self._validator = Draft202012Validator(schema, registry=EMPTY_REGISTRY)

    @cached_property
    def written(self) -> tuple[bytes, bytes]:
        """Return the schema as JSON, and its SHA-256, by which another process identifies it."""
        text = json.dumps(self.schema).encode()
        return text, hashlib.sha256(text).digest()

    def is_cheap_for(self, value: object) -> bool:
        """Return True if :meth:`fault` takes at most some milliseconds, so that it need not run in another process."""
        return self._cost > 0 and _weighs_less(value, min(MAX_WORK // self._cost, MAX_WEIGHT))

    def fault(self, value: object) -> str:
        """Return the faults of *value* by JSON path (``$.count: 'x' is not of type 'integer'``), or an empty string."""
        try:
            return "; ".join(_described(each) for each in islice(self._validator.iter_errors(value), MOST_FAULTS))
        except RecursionError:
            return TOO_DEEP
        except (Unresolvable, re.error) as error:
            return f"$: it cannot be checked, as its schema is not usable: {_clipped(str(error))}"
        except (ArithmeticError, ValueError) as error:
            # "multipleOf" of a number with hundreds of digits, or of one that is not finite.
            return f"$: it cannot be checked: {_clipped(str(error))}"


@lru_cache(maxsize=4096)
def checker(schema: str) -> Checker:
    """Return the cached checker of *schema*, a JSON text; raises ValueError like :class:`Checker`."""
    return Checker(json.loads(schema))


def _check(schema: Mapping[str, Any]) -> int:
    """Check that *schema* is valid, and return the work for each part of a value, 0 if unknown."""
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
    """The cost of a schema has no useful bound."""


class _Cost:
    """Counts the parts of a schema as often as they may be applied to one part of a value.

    References count as their targets, so recursive schemas have no count.
    """

    def __init__(self, targets: Mapping[str, Any]) -> None:
        self._targets = targets
        self._known: dict[int, int] = {}
        self._open: set[int] = set()

    def of(self, part: object) -> int:
        """Return the count for *part*. Raises _DearError, and RecursionError."""
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
        # A property may have such a name, too, which only costs a moment.
        if key in _DEAR:
            raise _DearError
        if key in _SAID:
            return 0
        if key in _DEFINITIONS:
            return 1
        if key == "$ref" and isinstance(inner, str):
            # References other than paths are searched for in the whole schema, each time.
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
    """Return the text of one fault; for alternatives that of the closest one."""
    nearest = best_match([error]) or error
    path = nearest.json_path
    if nearest.validator == "required" and isinstance(nearest.instance, dict):
        # There is an error for each missing property, which only its message names.
        names: Any = nearest.validator_value
        missing = next((name for name in names if nearest.message.startswith(f"{name!r} is a required")), None)
        if missing is not None:
            return f"{path}{_member(missing)} is required"
    return f"{path}: {_clipped(nearest.message)}"


def _member(name: str) -> str:
    return f".{name}" if _PLAIN.fullmatch(name) else f"[{name!r}]"


def _clipped(text: str) -> str:
    """Return *text* shortened in the middle: a message begins with the value and ends with the fault."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 3]} … {text[-_LONGEST // 2 :]}"


def from_texts(schema: object, texts: Sequence[str]) -> Any:
    """Convert *texts*, from a query or a prompt, where only text is possible, into a value for *schema*.

    A text that cannot be converted is kept, so that validation reports the fault.
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
    """Return the types in *schema*, including those of alternatives."""
    if not isinstance(schema, dict):
        return set()
    said = schema.get("type")
    found = {said} if isinstance(said, str) else set(said) if isinstance(said, list) else set()
    for key in ("anyOf", "oneOf"):
        for inner in schema.get(key, ()):
            found |= _kinds(inner)
    return found
