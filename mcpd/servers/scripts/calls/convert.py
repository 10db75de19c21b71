# SPDX-License-Identifier: LGPL-2.1-or-later
"""Conversion of one JSON value to the type that a script expects."""

from __future__ import annotations

import base64
import binascii
import collections
import collections.abc
import dataclasses
import datetime as dt
import enum
import inspect
import os
import sys
import types
import typing
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable


class BadArgument(Exception):
    """An argument of the wrong type; the message names it."""


_LISTS: Final = (
    list, collections.abc.Sequence, collections.abc.MutableSequence, collections.abc.Iterable,
    collections.abc.Collection, collections.abc.Iterator,
)  # fmt: skip
_SETS: Final = (set, frozenset, collections.abc.Set, collections.abc.MutableSet)
_DICTS: Final = (
    dict, collections.abc.Mapping, collections.abc.MutableMapping, collections.OrderedDict, collections.defaultdict,
    collections.Counter,
)  # fmt: skip
_PLAIN: Final = {str: "text", bool: "true or false", list: "an array", dict: "an object"}
_TRUTHS: Final = {"true", "false"}
_BY_TEXT: Final = {"uuid.UUID", "decimal.Decimal", "fractions.Fraction"}
_WRAPPERS: Final = ("Annotated", "Final", "Required", "NotRequired", "ReadOnly", "ClassVar")


def convert(value: Any, hint: Any, where: str) -> Any:
    """Return *value* converted to *hint*, unchanged if unknown. *where* names it in a :class:`BadArgument`."""
    hint = _unwrapped(hint)
    if isinstance(hint, typing.TypeVar | str) or hint is Any or hint is object:
        return value
    if hint is None or hint is type(None):
        return _expect(value, value is None, "null", where)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    kind = origin or hint
    try:
        rule = _RULES.get(kind)
    except TypeError:  # Unhashable objects are not types.
        return value
    if rule:
        return rule(value, kind, args, where)
    return _class(value, kind, where) if isinstance(kind, type) else value


def hints(target: Any) -> dict[str, Any]:
    """Return the evaluated annotations of a function or a class.

    Those that cannot be evaluated, because only type checkers import them, are omitted.
    """
    with suppress(Exception):
        return typing.get_type_hints(target, include_extras=True)
    found: dict[str, Any] = {}
    for owner in reversed(getattr(target, "__mro__", (target,))):
        names = getattr(owner, "__globals__", None) or vars(sys.modules.get(owner.__module__, typing))
        for name, hint in inspect.get_annotations(owner).items():
            said = hint.__forward_arg__ if isinstance(hint, typing.ForwardRef) else hint
            with suppress(Exception):
                found[name] = eval(said, dict(names)) if isinstance(said, str) else said  # noqa: S307 -- its own code
    return found


def _unwrapped(hint: Any) -> Any:
    """Return the type within *hint*, without aliases and wrappers."""
    while True:
        origin = typing.get_origin(hint)
        if isinstance(hint, dataclasses.InitVar):
            hint = hint.type
        elif hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        elif getattr(origin, "__name__", getattr(origin, "_name", None)) in _WRAPPERS:
            hint = typing.get_args(hint)[0]
        else:
            return hint


def _expect(value: Any, fits: bool, what: str, where: str) -> Any:
    if not fits:
        raise BadArgument(f"The argument {where!r} has to be {what}.")
    return value


def _list(value: Any, where: str) -> list[Any]:
    _expect(value, isinstance(value, list), "an array", where)
    return list(value)


def _items(value: Any, args: tuple[Any, ...], where: str) -> list[Any]:
    """Convert an array whose items are all of one type, the first of *args*."""
    hint = args[0] if args else Any
    return [convert(item, hint, f"{where}[{at}]") for at, item in enumerate(_list(value, where))]


def _as_list(value: Any, _kind: Any, args: tuple[Any, ...], where: str) -> list[Any]:
    return _items(value, args, where)


def _as_set(value: Any, kind: Any, args: tuple[Any, ...], where: str) -> Any:
    return _made(frozenset if kind is frozenset else set, _items(value, args, where), where)


def _as_deque(value: Any, _kind: Any, args: tuple[Any, ...], where: str) -> collections.deque[Any]:
    return collections.deque(_items(value, args, where))


def _made(make: Any, value: Any, where: str) -> Any:
    """Return ``make(value)``; errors become a :class:`BadArgument`."""
    try:
        return make(value)
    except Exception as error:
        raise BadArgument(f"The argument {where!r} is not what it should be: {error}") from error


def _union(value: Any, _kind: Any, args: tuple[Any, ...], where: str) -> Any:
    """Convert to the first matching alternative, preferably the value's own type."""
    if any(type(value) is arg for arg in args):
        return value
    complaints = []
    for arg in args:
        try:
            return convert(value, arg, where)
        except BadArgument as error:
            complaints.append(str(error))
    raise BadArgument(complaints[0] if len(complaints) == 1 else " Or: ".join(dict.fromkeys(complaints)))


def _literal(value: Any, _kind: Any, args: tuple[Any, ...], where: str) -> Any:
    for arg in args:
        plain = arg.value if isinstance(arg, enum.Enum) else arg
        if plain == value and isinstance(plain, bool) == isinstance(value, bool):
            return arg
    raise BadArgument(f"The argument {where!r} has to be one of {', '.join(map(repr, args))}.")


def _tuple(value: Any, _kind: Any, args: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if not args or args[-1] is Ellipsis:
        return tuple(_items(value, args, where))
    items = _list(value, where)
    if args == ((),):
        args = ()
    _expect(value, len(items) == len(args), f"an array of {len(args)}", where)
    return tuple(convert(item, arg, f"{where}[{at}]") for at, (item, arg) in enumerate(zip(items, args, strict=True)))


def _dict(value: Any, kind: Any, args: tuple[Any, ...], where: str) -> Any:
    _expect(value, isinstance(value, dict), "an object", where)
    if kind is collections.Counter:
        args = (args[0] if args else Any, int)
    key_hint, item_hint = args if len(args) == 2 else (Any, Any)
    found = {_key(key, key_hint, where): convert(item, item_hint, f"{where}.{key}") for key, item in value.items()}
    if kind in {collections.OrderedDict, collections.Counter}:
        return kind(found)
    return collections.defaultdict(None, found) if kind is collections.defaultdict else found


def _key(key: str, hint: Any, where: str) -> Any:
    """Convert a member's name to the type of the dict's keys."""
    if hint is bool:
        return _expect(key, key in _TRUTHS, "an object whose members are called true or false", where) == "true"
    if hint in {int, float}:
        return _made(hint, key, f"{where}.{key}")
    return convert(key, hint, f"{where}.{key}")


def _class(value: Any, kind: Any, where: str) -> Any:  # noqa: C901, PLR0911, PLR0912 -- one line for each type there is
    if kind in _PLAIN:
        return _expect(value, type(value) is kind, _PLAIN[kind], where)
    if kind is int:
        whole = type(value) is int or (isinstance(value, float) and value.is_integer())
        return int(_expect(value, whole, "a whole number", where))
    if kind is float:
        return float(_expect(value, type(value) in {int, float}, "a number", where))
    if kind in {bytes, bytearray}:
        return kind(_bytes(value, where))
    if issubclass(kind, enum.Enum):
        return _enum(value, kind, where)
    pydantic = sys.modules.get("pydantic")
    if pydantic and issubclass(kind, pydantic.BaseModel):
        return _made(kind.model_validate, value, where)
    if typing.is_typeddict(kind):
        return _fields(value, hints(kind), kind.__required_keys__, where)
    if dataclasses.is_dataclass(kind):
        return _dataclass(value, kind, where)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _named_tuple(value, kind, where)
    if issubclass(kind, dt.datetime | dt.date | dt.time):
        return _made(
            kind.fromisoformat, _expect(value, isinstance(value, str), "a date or time, as text", where), where
        )
    if kind is dt.timedelta:
        seconds = _expect(value, type(value) in {int, float}, "a number of seconds", where)
        return _made(lambda number: dt.timedelta(seconds=number), seconds, where)
    if issubclass(kind, os.PathLike) and isinstance(value, str):
        return _made(kind, value, where)
    if f"{kind.__module__}.{kind.__qualname__}" in _BY_TEXT or kind.__module__ == "ipaddress":
        return _made(kind, str(value) if isinstance(value, float) else value, where)
    return value


def _bytes(value: Any, where: str) -> bytes:
    try:
        return base64.b64decode(_expect(value, isinstance(value, str), "bytes as base64", where), validate=True)
    except (binascii.Error, ValueError):
        raise BadArgument(f"The argument {where!r} has to be bytes as base64.") from None


def _enum(value: Any, kind: Any, where: str) -> Any:
    """Convert to a member of an enumeration, by its JSON value or by its name."""
    for member in kind:
        if member.value == value and isinstance(member.value, bool) == isinstance(value, bool):
            return member
    if isinstance(value, str) and value in kind.__members__:
        return kind[value]
    if issubclass(kind, enum.Flag) and type(value) is int:
        return _made(kind, value, where)
    known = ", ".join(str(member.value) for member in kind)
    raise BadArgument(f"The argument {where!r} has to be one of: {known}.")


def _fields(value: Any, known: dict[str, Any], required: typing.AbstractSet[str], where: str) -> dict[str, Any]:
    _expect(value, isinstance(value, dict), "an object", where)
    for name in sorted(required):
        _expect(value, name in value, f"an object with {name!r}", where)
    return {name: convert(item, known.get(name, Any), f"{where}.{name}") for name, item in value.items()}


def _dataclass(value: Any, kind: Any, where: str) -> Any:
    if hasattr(kind, "__pydantic_validator__"):
        return _made(lambda fields: kind(**fields), _expect(value, isinstance(value, dict), "an object", where), where)
    taken = {
        name: parameter
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}
    }
    required = {name for name, parameter in taken.items() if parameter.default is parameter.empty}
    known = hints(kind)
    if not kind.__dataclass_params__.init:
        known |= hints(kind.__init__)
    found = _fields(value, known, required, where)
    for name in found:
        _expect(value, name in taken, f"an object without {name!r}", where)
    return _made(lambda fields: kind(**fields), found, where)


def _named_tuple(value: Any, kind: Any, where: str) -> Any:
    """Convert from an object by names, or from an array by positions."""
    fields = dict(zip(kind._fields, value, strict=False)) if isinstance(value, list) else value
    _expect(value, not isinstance(value, list) or len(value) <= len(kind._fields), "a shorter array", where)
    required = set(kind._fields) - set(kind._field_defaults)
    found = _fields(fields, hints(kind), required, where)
    return _made(lambda members: kind(**members), found, where)


_RULES: Final[dict[Any, Callable[[Any, Any, tuple[Any, ...], str], Any]]] = {
    **dict.fromkeys(_LISTS, _as_list),
    **dict.fromkeys(_SETS, _as_set),
    **dict.fromkeys(_DICTS, _dict),
    collections.deque: _as_deque,
    tuple: _tuple,
    typing.Union: _union,
    types.UnionType: _union,
    typing.Literal: _literal,
}
"""Converters by generic type: called with the value, the type, its arguments, and the value's name."""
