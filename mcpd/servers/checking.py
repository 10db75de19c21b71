# SPDX-License-Identifier: LGPL-2.1-or-later
"""Validation of arguments by the schema of their tool, with bounded cost for arguments of any size.

The first fault ends it, sizes are checked before contents, and messages quote only the beginning of a value.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import ValidationError as JsonSchemaError
from pydantic import BaseModel, ValidationError

from mcpd.errors import InvalidArgument
from mcpd.model import printable
from mcpd.model.base import first_fault

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MANY: Final = 2000
"""Maximum number of values that are processed in the event loop."""
MUCH: Final = 256 * 1024
"""Maximum number of characters, or bytes, that are processed in the event loop."""
_FIRST: Final = ("type", "maxItems", "maxLength", "additionalProperties", "required")
_SHOWN: Final = 200


_Arguments_co = TypeVar("_Arguments_co", bound=BaseModel, covariant=True)


class Tool(Protocol[_Arguments_co]):
    """The attributes of a tool that are used here."""

    @property
    def name(self) -> str:
        """The name."""

    @property
    def arguments(self) -> type[_Arguments_co]:
        """The model of the arguments."""

    @property
    def validator(self) -> Draft202012Validator:
        """The validator of arguments against the schema."""


def checked(tool: Tool[_Arguments_co], arguments: Mapping[str, Any]) -> _Arguments_co:
    """Return the valid *arguments* of *tool*; null counts as missing. Raises :class:`~mcpd.errors.InvalidArgument`."""
    given = {name: value for name, value in arguments.items() if value is not None}
    fault = next(tool.validator.iter_errors(given), None)
    if fault is not None:
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault.path).lstrip(".")
        error = InvalidArgument(f"{tool.name}: {printable(where) + ': ' if where else ''}{_message(fault)}")
        error.data = {"argument": printable(where)}
        raise error
    try:
        return tool.arguments.model_validate(given)
    except ValidationError as error:
        raise InvalidArgument(f"{tool.name}: {first_fault(error)}") from error


def size_of(value: object) -> int:
    """Return the approximate size in memory of *value*, JSON or a model of it, in bytes."""
    return sum(map(sys.getsizeof, _leaves(value)))


def is_large(value: object) -> bool:
    """Return True if *value*, JSON or a model of it, is so large that it should be processed in a thread."""
    size = 0
    for number, each in enumerate(_leaves(value)):
        size += len(each) if isinstance(each, str | bytes) else 0
        if size > MUCH or number > MANY:
            return True
    return False


def _leaves(value: object) -> Iterator[object]:
    """Yield *value* and everything in it, including containers and keys."""
    levels = [iter((value,))]
    while levels:
        for each in levels[-1]:
            yield each
            if isinstance(each, BaseModel):
                levels.append(iter(vars(each).values()))
            elif isinstance(each, dict):
                levels.append(_both(each))
            elif isinstance(each, list | tuple):
                levels.append(iter(each))
            else:
                continue
            break
        else:
            levels.pop()


def _both(mapping: dict[Any, object]) -> Iterator[object]:
    for name, value in mapping.items():
        yield name
        yield value


# ---------------------------------------------------------------------------------------------------- the validator


def validator_of(schema: dict[str, Any]) -> Draft202012Validator:
    """Return a validator for *schema*."""
    made: Draft202012Validator = _Brief(_sizes_first(schema))
    return made


def _sizes_first(part: Any) -> Any:
    """Return the schema with size limits first, as jsonschema evaluates keywords in order."""
    if isinstance(part, list):
        return [_sizes_first(each) for each in part]
    if not isinstance(part, dict):
        return part
    names = [*(name for name in _FIRST if name in part), *(name for name in part if name not in _FIRST)]
    return {name: _sizes_first(part[name]) for name in names}


def _type(validator: Any, wanted: str | list[str], instance: object, _schema: object) -> Iterator[JsonSchemaError]:
    types = [wanted] if isinstance(wanted, str) else wanted
    if not any(validator.is_type(instance, each) for each in types):
        yield JsonSchemaError("another type")


def _at_most(kind: type[list[Any] | str]) -> Any:
    def check(_validator: object, most: int, instance: object, _schema: object) -> Iterator[JsonSchemaError]:
        if isinstance(instance, kind) and len(instance) > most:
            yield JsonSchemaError("too long")

    return check


def _nothing_else(validator: Any, allowed: object, instance: object, schema: Any) -> Iterator[JsonSchemaError]:
    if allowed is not False:
        yield from Draft202012Validator.VALIDATORS["additionalProperties"](validator, allowed, instance, schema)
    elif isinstance(instance, dict) and not instance.keys() <= schema.get("properties", {}).keys():
        yield JsonSchemaError("unknown")


_extend: Final[Any] = validators.extend
_Brief: Final = _extend(
    Draft202012Validator,
    {
        "type": _type,
        "maxItems": _at_most(list),
        "maxLength": _at_most(str),
        "additionalProperties": _nothing_else,
    },
)
"""Validates like its parent, but messages do not contain the whole value."""


# ------------------------------------------------------------------------------------------------------- messages


def _message(fault: JsonSchemaError) -> str:
    """Return the message for *fault*, with only the beginning of the value, which may have megabytes."""
    schema, instance = fault.schema, fault.instance
    rule, wanted = fault.validator, fault.validator_value
    if isinstance(schema, dict) and isinstance(instance, dict):
        known: dict[str, Any] = schema.get("properties", {})
        extra = next((name for name in instance if name not in known), None)
        if rule == "additionalProperties" and extra is not None:
            return f"there is no argument '{printable(extra)}'; there are {', '.join(known)}"
        missing = next((name for name in schema.get("required", ()) if name not in instance), None)
        if rule == "required" and missing is not None:
            return f"the argument {missing!r} is missing"
    shown = printable(_beginning(instance))
    if rule == "enum" and isinstance(wanted, list):
        return f"{shown} is none of {', '.join(map(str, wanted))}"
    return f"{shown} does not fit {printable(json.dumps({str(rule): wanted}))}"


def _beginning(value: object) -> str:
    """Return the beginning of *value* as JSON."""
    if isinstance(value, str):
        return json.dumps(value[:_SHOWN])
    return "".join(islice(json.JSONEncoder().iterencode(value), _SHOWN))
