# SPDX-License-Identifier: LGPL-2.1-or-later
"""References to responses, such as ``${reader.items.0.title}``, and conditions on them.

A reference is ``${NAME}``, or ``${NAME.PART…}`` where a part is a key of an object (letters, digits, ``_``, ``-``) or
the index of an element, ``.0`` or ``[0]``. A condition is a reference alone, which holds unless its value is false,
null, 0, empty or the word "no"; or ``REFERENCE == LITERAL``, or with ``!=``, where the literal is JSON, a word, or text
in quotes. A text in which a path continues is parsed as JSON.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from mcpd.errors import InvalidArgument, InvalidManifest, LimitExceeded
from mcpd.model.base import check_json, load_json, printable

MAX_TEXT: Final = 4 * 1024 * 1024
"""Maximum size of a text parsed as JSON, and of all values in one substitution, in bytes."""
MAX_CONDITION: Final = 1000
"""Maximum length in characters."""

_PATH: Final = r"([A-Za-z0-9_-]+)((?:\.[A-Za-z0-9_-]+|\[[0-9]{1,9}\])*)"
_REFERENCE: Final = re.compile(r"\$\{" + _PATH + r"\}")
_PART: Final = re.compile(r"[A-Za-z0-9_-]+")
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_COMPARISON: Final = re.compile(r"\s*(==|!=)\s*(\S.*?)\s*", re.DOTALL)
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_CONSTANTS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None}
_FALSE_WORDS: Final = frozenset({"", "false", "no", "0", "null", "[]", "{}"})
_MISSING: Final = object()
_STRUCTURED: Final = frozenset("[{")


class Scope(Protocol):
    """Values for references, by name: text or JSON values. Any mapping is a scope."""

    def __contains__(self, name: object, /) -> bool:
        """Return True if there is a value for *name*."""

    def __getitem__(self, name: str, /) -> Any:
        """Return the value for *name*."""


@dataclass(frozen=True, slots=True)
class _Path:
    """A parsed reference."""

    text: str
    name: str
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Condition:
    """A parsed condition."""

    path: _Path
    operator: Literal["", "==", "!="]
    literal: Any = None


def resolve(reference: str, values: Scope) -> Any:
    """Return the value of *reference*, a single ``${…}``, in *values*.

    Raises :class:`~mcpd.errors.InvalidArgument` if it is not a reference, or has no value.
    """
    return _Reader(values).required(_path(reference))


def holds(condition: str, values: Scope) -> bool:
    """Return True if *condition* holds; a missing value counts as null.

    Raises :class:`~mcpd.errors.InvalidArgument` if it is not a condition.
    """
    parsed = _condition(condition)
    value = _Reader(values).read(parsed.path)
    if value is _MISSING:
        value = None
    if not parsed.operator:
        return _truthy(value)
    return _equals(value, parsed.literal) == (parsed.operator == "==")


def substitute(value: Any, values: Scope) -> Any:
    """Return *value* with the references in its strings replaced, at any depth; keys are not changed.

    A string that is a single reference becomes its value, parsed if that is the text of a list or an object; within
    other text, texts are inserted unchanged, and other values as JSON. Text that is not a valid reference is kept.
    Raises :class:`~mcpd.errors.InvalidArgument` for a reference without value, :class:`~mcpd.errors.LimitExceeded` if
    the result would exceed :data:`MAX_TEXT`.
    """
    return _Substitution(_Reader(values)).apply(value)


def check(text: str) -> tuple[str, ...]:
    """Return the names that :func:`substitute` would read for *text*, unique and in order.

    Raises :class:`~mcpd.errors.InvalidArgument` if *text* as a whole has the form ``${…}``, but is not a reference.
    """
    if text.startswith("${") and text.find("}") == len(text) - 1:
        _path(text)
    return tuple(dict.fromkeys(found[1] for found in _REFERENCE.finditer(text)))


def check_condition(text: str) -> tuple[str, ...]:
    """Return the names in the condition *text*. Raises :class:`~mcpd.errors.InvalidArgument` if it is invalid."""
    return (_condition(text).path.name,)


@dataclass(slots=True)
class _Reader:
    """Reads values, and parses each text as JSON at most once."""

    values: Scope
    _parsed: dict[str, Any] = field(default_factory=dict)

    def read(self, path: _Path) -> Any:
        """Return the value at *path*, or :data:`_MISSING`."""
        if path.name not in self.values:
            return _MISSING
        if not path.parts:
            return self.values[path.name]
        if path.name not in self._parsed:
            self._parsed[path.name] = _opened(self.values[path.name])
        value = self._parsed[path.name]
        for part in path.parts:
            value = _member(_opened(value), part)
        return value

    def required(self, path: _Path) -> Any:
        """Return the value at *path*. Raises :class:`~mcpd.errors.InvalidArgument` if it is missing."""
        value = self.read(path)
        if value is _MISSING:
            raise InvalidArgument(f"{printable(path.text)}: {self._lack(path)}")
        return value

    def _lack(self, path: _Path) -> str:
        if path.name not in self.values:
            return f'there is no "{printable(path.name)}"'
        reached, value = path.name, _opened(self.values[path.name])
        for part in path.parts:
            inner = _opened(_member(value, part))
            if inner is _MISSING:
                break
            reached, value = f"{reached}.{part}", inner
        if isinstance(value, dict):
            held = ", ".join(map(printable, list(value)[:10])) or "nothing"
            return f'"{printable(reached)}" has no "{printable(part)}"; it has {held}'
        if isinstance(value, list):
            return f'"{printable(reached)}" is a list of {len(value)} and has no "{printable(part)}"'
        return f'"{printable(reached)}" is neither an object nor a list, so that it has no "{printable(part)}"'


@dataclass(slots=True)
class _Substitution:
    """Inserts values, up to a total size."""

    reader: _Reader
    left: int = MAX_TEXT

    def apply(self, value: Any) -> Any:
        """Return *value* with references replaced."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return [self.apply(each) for each in value]
        if isinstance(value, dict):
            return {key: self.apply(each) for key, each in value.items()}
        return value

    def _text(self, text: str) -> Any:
        whole = _REFERENCE.fullmatch(text)
        if whole:
            value = self.reader.required(_taken_apart(whole))
            self._count(_as_text(value))
            # An object as text would be useless where an object is expected.
            return _opened(value) if isinstance(value, str) and value.lstrip()[:1] in _STRUCTURED else value
        return _REFERENCE.sub(self._put, text)

    def _put(self, found: re.Match[str]) -> str:
        text = _as_text(self.reader.required(_taken_apart(found)))
        self._count(text)
        return text

    def _count(self, text: str) -> None:
        try:
            self.left -= len(text.encode())
        except UnicodeEncodeError:
            raise InvalidArgument("what a reference stands for holds half a surrogate pair, which is no text") from None
        if self.left < 0:
            raise LimitExceeded(f"what the references stand for is larger than {MAX_TEXT // 2**20} MiB; refer to parts")


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise InvalidArgument("what a reference stands for is nested too deeply") from None


def _taken_apart(found: re.Match[str]) -> _Path:
    return _Path(found[0], found[1], tuple(_PART.findall(found[2])))


def _path(text: str) -> _Path:
    found = _REFERENCE.fullmatch(text.strip())
    if not found:
        raise InvalidArgument(f'"{printable(text)}" is not a reference; write ${{agent}} or ${{agent.key}}')
    return _taken_apart(found)


def _condition(text: str) -> _Condition:
    if len(text) > MAX_CONDITION:
        raise InvalidArgument(f'"{printable(text)}…" is longer than a condition may be, {MAX_CONDITION} characters')
    stripped = text.strip()
    found = _REFERENCE.match(stripped)
    rest = stripped[found.end() :] if found else ""
    comparison = _COMPARISON.fullmatch(rest)
    if not found or (rest and not comparison):
        raise InvalidArgument(
            f'"{printable(text)}" is not a condition; write ${{agent.key}}, ${{agent.key}} == "value" or '
            f'${{agent.key}} != "value"'
        )
    path = _taken_apart(found)
    if not comparison:
        return _Condition(path, "")
    return _Condition(path, "==" if comparison[1] == "==" else "!=", _literal(comparison[2]))


def _literal(text: str) -> Any:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text.casefold() in _CONSTANTS:
        raise InvalidArgument(f'"{text}" is ambiguous in a condition; write {text.casefold()}, or "{text}" as text')
    if _WORD.fullmatch(text):
        return text
    if len(text) > 1 and text[0] == text[-1] == "'" and "'" not in text[1:-1]:
        return text[1:-1]
    try:
        value = load_json(text, "a condition")
        check_json(value)
    except (InvalidManifest, ValueError):
        raise InvalidArgument(
            f"{printable(text)} is neither JSON nor one word; put text in a condition between quotes"
        ) from None
    return value


def _opened(value: Any) -> Any:
    """Return *value*, parsed if it is JSON text."""
    if not isinstance(value, str):
        return value
    if len(value) > MAX_TEXT:
        raise LimitExceeded(f"a response larger than {MAX_TEXT // 2**20} MiB is not read as JSON")
    try:
        return load_json(value, "a response")
    except InvalidManifest:
        return value


def _member(value: Any, part: str) -> Any:
    if isinstance(value, dict):
        return value.get(part, _MISSING)
    if isinstance(value, list) and _NUMBER.fullmatch(part) and int(part) < len(value):
        return value[int(part)]
    return _MISSING


def _truthy(value: Any) -> bool:
    if not isinstance(value, str):
        return bool(value)
    return len(value) > MAX_CONDITION or "".join(value.split()).casefold() not in _FALSE_WORDS


def _equals(value: Any, literal: Any) -> bool:
    if isinstance(value, str):
        if isinstance(literal, str):
            return literal in (value, value.strip())
        value = _opened(value)
    return _same(value, literal)


def _same(one: Any, other: Any) -> bool:
    """Return True if two values are equal in JSON, where true is not 1. The depth of *other* limits the recursion."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other)
