# SPDX-License-Identifier: LGPL-2.1-or-later
"""The headers of revision 2026-07-28 that repeat what the body says, so that others need not read the body."""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from mcpd.bridge import jsonrpc
from mcpd.bridge.jsonrpc import Raw
from mcpd.errors import HeaderMismatch, InvalidArgument, NotSupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from mcpd.bridge.jsonrpc import Message

    HeaderMap = Mapping[bytes, bytes]

NAMED: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""The parameter that ``Mcp-Name`` repeats, by method."""
_ENCODED: Final = re.compile(rb"=\?base64\?(.*)\?=", re.DOTALL)
_PLAIN: Final = re.compile(rb"[\x20-\x7e\t]*")
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_DECIMAL: Final = re.compile(r"-?[0-9]{1,40}(\.0{1,40})?")
_TYPES: Final = frozenset({"string", "integer", "boolean"})
_ANNOTATION: Final = "x-mcp-header"
_PREFIX: Final = b"mcp-param-"
_BLANKS: Final = b" \t"
"""What does not belong to the value of a header."""
_ONE: Final = frozenset({"items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames", "not", "if",
                         "unevaluatedProperties", "then", "else", "contentSchema"})  # fmt: skip
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPS: Final = frozenset({"patternProperties", "dependentSchemas", "$defs", "definitions"})
MOST_POSITIONS: Final = 10_000
"""Schemas within the schemas of one page of tools that are looked at: some milliseconds, and calls wait."""
MOST_DEPTH: Final = 32
"""Schemas around the innermost one that is looked at."""
MOST_PARSED: Final = 1024 * 1024
"""Bytes of the tools of one page that are read: of those with annotations, as others need not be."""


class Param(NamedTuple):
    """A parameter of a tool that a header repeats."""

    path: tuple[str, ...]
    """The names that lead to it in the arguments."""
    header: bytes
    """In lower case."""
    is_integer: bool


UNKNOWN: Final = (Param((), b"", is_integer=False),)
"""Stands for the parameters of a tool that says too much to be read."""


class _TooMuchError(Exception):
    """There is more to look at than is looked at."""


def check_method(headers: HeaderMap, method: str) -> None:
    """Raise :class:`~mcpd.errors.HeaderMismatch` if ``Mcp-Method`` is missing or not *method*."""
    found = headers.get(b"mcp-method")
    if found is None:
        raise HeaderMismatch("there is no Mcp-Method header: send the method of the body in it")
    if found != method.encode() and found.strip(_BLANKS) != method.encode():
        raise HeaderMismatch(f"the Mcp-Method header is {_shown(found)}, the method of the body {method[:200]!r}")


def check_name(headers: HeaderMap, method: str, params: Message) -> None:
    """Raise :class:`~mcpd.errors.HeaderMismatch` if ``Mcp-Name`` is missing or not what the body names."""
    parameter = NAMED.get(method)
    if parameter is None:
        return
    raw = params.get(parameter)
    named = bytes(raw) if raw is not None else b""
    if named[:1] != b'"':
        raise InvalidArgument(f'{method} needs the string "{parameter}" in its params')
    found = headers.get(b"mcp-name")
    if found is None:
        raise HeaderMismatch(f'there is no Mcp-Name header: send the "{parameter}" of the params in it')
    if named[1:-1] == found and b"\\" not in named and found.isascii() and found[:2] != b"=?":
        return
    if decode(found.strip(_BLANKS)) != _string(named):
        raise HeaderMismatch(f'the Mcp-Name header is {_shown(found)}, the "{parameter}" of the params {_shown(named)}')


def check_params(headers: HeaderMap, declared: tuple[Param, ...], arguments: Raw | None) -> None:
    """Raise :class:`~mcpd.errors.HeaderMismatch` if an ``Mcp-Param-`` header and an argument differ.

    For :data:`UNKNOWN` it is :class:`~mcpd.errors.NotSupported`, if there is something that may differ.
    """
    if declared is UNKNOWN:
        if arguments is not None or has_params(headers):
            raise NotSupported(
                "what this tool repeats in headers (x-mcp-header) cannot be checked: the schemas of its page of "
                f"tools/list are larger than {MOST_PARSED >> 20} MiB, have more than {MOST_POSITIONS} parts or are "
                f"nested deeper than {MOST_DEPTH}; make them smaller, or use an earlier revision"
            )
        return
    try:
        given = msgspec.json.decode(arguments) if arguments is not None else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidArgument('"arguments" cannot be read: it is nested too deeply') from None
    for path, header, is_integer in declared:
        found = headers.get(header)
        value = _value_at(given, path)
        rendered = _rendered(value)
        where, name = ".".join(path), header.decode().title()
        if rendered is None and found is not None:
            raise HeaderMismatch(f"there is a header {name}, but no argument {where!r} that it could repeat")
        if rendered is None:
            continue
        if found is None:
            raise HeaderMismatch(f"there is no header {name}: send the argument {where!r} in it")
        decoded = decode(found.strip(_BLANKS))
        if decoded != rendered and not (is_integer and _equal_integers(decoded, value)):
            raise HeaderMismatch(f"the header {name} is {_shown(found)}, the argument {where!r} is another")


def has_params(headers: HeaderMap) -> bool:
    """Return True if there is any ``Mcp-Param-`` header."""
    return any(name.startswith(_PREFIX) for name in headers)


def decode(value: bytes) -> str | None:
    """The text that a header's *value* stands for; ``None`` if it is no text that a client may send so."""
    encoded = _ENCODED.fullmatch(value)
    if encoded is None:
        return value.decode() if _PLAIN.fullmatch(value) else None
    try:
        text = base64.b64decode(encoded.group(1), validate=True)
        # What decodes to the same in several ways could pass a filter that knows one of them.
        return text.decode() if base64.b64encode(text) == encoded.group(1) else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def _string(raw: bytes) -> str | None:
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _shown(value: bytes) -> str:
    return repr(value[:200].decode("utf-8", "replace"))


def _value_at(arguments: object, path: tuple[str, ...]) -> object:
    for name in path:
        if not isinstance(arguments, dict):
            return None
        arguments = arguments.get(name)
    return arguments


def _rendered(value: object) -> str | None:
    """*value* as a header has it; ``None`` for what no header can have."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)):
        try:
            return str(value)
        except ValueError:
            return None
    return None


def _equal_integers(decoded: str | None, value: object) -> bool:
    if decoded is None or isinstance(value, bool) or _DECIMAL.fullmatch(decoded) is None:
        return False
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return is_whole and int(decoded.partition(".")[0]) == value


# ---------------------------------------------------------------------------------------- schemas


class Reading:
    """The remaining limits for one page of tools."""

    def __init__(self) -> None:
        self._parsed = MOST_PARSED
        self._positions = MOST_POSITIONS

    def params_of(self, tool: Raw) -> tuple[Param, ...]:
        """The parameters of *tool* that headers repeat, :data:`UNKNOWN` if there is no room to find them."""
        self._parsed -= len(memoryview(tool))
        if self._parsed < 0:
            return UNKNOWN
        try:
            members = msgspec.json.decode(tool)
            return self._params_of(members.get("inputSchema")) if isinstance(members, dict) else ()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, _TooMuchError):
            return UNKNOWN

    def _params_of(self, schema: object) -> tuple[Param, ...]:
        """None at all if an annotation breaks the rules: clients have to leave such a tool out."""
        found: dict[bytes, Param] = {}
        for path, position in self._within(schema):
            if _ANNOTATION not in position:
                continue
            name, kind = position[_ANNOTATION], position.get("type")
            if not path or not isinstance(name, str) or not _TOKEN.fullmatch(name):
                return ()
            header = _PREFIX + name.lower().encode()
            if not isinstance(kind, str) or kind not in _TYPES or header in found:
                return ()
            found[header] = Param(path, header, kind == "integer")
        return tuple(found.values())

    def _within(self, schema: object) -> Iterator[tuple[tuple[str, ...] | None, dict[str, Any]]]:
        """All schemas in *schema*, each with the names that lead to it if properties alone do."""
        stack: list[tuple[int, tuple[str, ...] | None, object]] = [(0, (), schema)]
        while stack:
            depth, path, position = stack.pop()
            if not isinstance(position, dict):
                continue
            yield path, position
            within = list(_inner(path, position, self._positions))
            self._positions -= len(within)
            depth += 1
            if within and (depth > MOST_DEPTH or self._positions < 0):
                raise _TooMuchError
            stack.extend((depth, *each) for each in within)


def _inner(
    path: tuple[str, ...] | None, position: dict[str, Any], most: int
) -> Iterator[tuple[tuple[str, ...] | None, object]]:
    """The schemas right in *position*, each with the names that lead to it. Raises if there are more than *most*."""
    for keyword, value in position.items():
        if keyword in _ONE:
            yield None, value
            continue
        if isinstance(value, dict) and (keyword == "properties" or keyword in _MAPS):
            named: Iterable[tuple[str | None, object]] = value.items()
        elif isinstance(value, list) and keyword in _LISTS:
            named = ((None, each) for each in value)
        else:
            continue
        if len(value) > most:
            raise _TooMuchError
        known = path if keyword == "properties" else None
        yield from (((*known, name) if known is not None and name is not None else None, each) for name, each in named)


def tools_of(result: Raw) -> tuple[dict[str, tuple[Param, ...]], str]:
    """Return the declarations in one page of ``tools/list`` by tool, and the next cursor, empty after the last page.

    Raises :class:`~mcpd.errors.NotSupported` if it has annotations and cannot be read.
    """
    page = jsonrpc.members(result)
    cursor = jsonrpc.text(page.get("nextCursor"))
    tools = page.get("tools")
    if tools is None or not _may_declare(tools):
        return {}, cursor
    try:
        found = msgspec.json.decode(tools, type=list[Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotSupported("the tools of this server cannot be read, so their headers are unknown") from None
    reading = Reading()
    named = ((jsonrpc.text(jsonrpc.members(tool).get("name")), tool) for tool in found if _may_declare(tool))
    return {name: reading.params_of(tool) for name, tool in named}, cursor


def _may_declare(raw: Raw) -> bool:
    text = bytes(raw)
    return _ANNOTATION.encode() in text or b"\\u" in text
