# SPDX-License-Identifier: LGPL-2.1-or-later
"""The D-Bus wire format of message bodies: conversion of Python values to bytes and back."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

MAX_DEPTH: Final = 64
"""Maximum nesting of containers, variants included; the limit of the D-Bus specification."""

FIXED: Final = {"n": "h", "q": "H", "i": "i", "u": "I", "x": "q", "t": "Q", "d": "d", "h": "I"}
ALIGN: Final = {"y": 1, "b": 4, "n": 2, "q": 2, "i": 4, "u": 4, "x": 8, "t": 8, "d": 8, "h": 4, "s": 4, "o": 4,
                 "g": 1, "a": 4, "(": 8, "{": 8, "v": 1}  # fmt: skip


class WireError(ValueError):
    """A signature or body that does not follow the wire format, or a value that does not fit its signature."""


class Variant(NamedTuple):
    """A value with its own *signature*."""

    signature: str
    value: object


class Raw(bytes):
    """Marshalled elements of an array of dict entries or structs, accepted in place of such an array."""

    __slots__ = ()


class Handle(int):
    """An index into the file descriptors of the message (type ``h``)."""

    __slots__ = ()


@lru_cache(maxsize=512)
def split(signature: str) -> tuple[str, ...]:
    """Return the single complete types in *signature*. Raises :class:`WireError`."""
    if len(signature) > 255:
        raise WireError("a signature has at most 255 characters")
    types = []
    at = 0
    while at < len(signature):
        end = _type_end(signature, at, 0)
        types.append(signature[at:end])
        at = end
    return tuple(types)


def _type_end(signature: str, at: int, depth: int) -> int:
    """Return the end of the single complete type that begins at *at*."""
    if depth > MAX_DEPTH or at >= len(signature):
        raise WireError(f"{signature!r} is not a signature")
    code = signature[at]
    if code == "a":
        if signature[at + 1 : at + 2] != "{":
            return _type_end(signature, at + 1, depth + 1)
        if signature[at + 2 : at + 3] not in tuple("ybnqiuxtdhsog"):
            raise WireError(f"{signature!r} is not a signature")
        end = _type_end(signature, at + 3, depth + 2)
        if signature[end : end + 1] != "}":
            raise WireError(f"{signature!r} is not a signature")
        return end + 1
    if code == "(":
        end = _type_end(signature, at + 1, depth + 1)
        while signature[end : end + 1] != ")":
            end = _type_end(signature, end, depth + 1)
        return end + 1
    if code == "{" or code not in ALIGN:
        raise WireError(f"{signature!r} is not a signature")
    return at + 1


Reader: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
"""Function that takes a message and an offset, and returns the value there and the offset of its end."""

MAX_VARIANT: Final = 64
"""Maximum length of a variant's signature, in characters."""
MAX_VARIANT_DEPTH: Final = 8
"""Maximum nesting of containers in a variant's signature."""
MAX_NEW_SIGNATURES: Final = 4096
"""Maximum total length, in characters, of the signatures in one message that are not cached yet."""


class _SignatureBudget:
    """Remaining characters of signatures that may be compiled for the current message; cached signatures are free."""

    left = 0


_signature_budget: Final = _SignatureBudget()


def reset_signature_budget() -> None:
    """Reset the budget for the next message, before its values are read."""
    _signature_budget.left = MAX_NEW_SIGNATURES


@lru_cache(maxsize=512)
def readers(signature: str, little: bool, depth: int = 0, max_depth: int = MAX_DEPTH) -> tuple[Reader, ...]:
    """Return one reader for each value of *signature*. Raises :class:`WireError` if it is not valid.

    The values are nested in *depth* containers, and may be nested up to *max_depth*.
    """
    return tuple(_compile(single, 0, little, depth, max_depth)[0] for single in split(signature))


@lru_cache(maxsize=512)
def _content_reader(signature: bytes, little: bool, depth: int) -> Reader:
    """Return the reader of a variant's content. The sender may choose a new *signature* for every value."""
    if len(signature) > MAX_VARIANT:
        raise WireError(f"the signature of a variant has at most {MAX_VARIANT} characters")
    _signature_budget.left -= len(signature)
    if _signature_budget.left < 0:
        raise WireError("the variants have too many types")
    held = readers(signature.decode("ascii"), little, depth, min(MAX_DEPTH, depth + MAX_VARIANT_DEPTH))
    if len(held) != 1:
        raise WireError("a variant contains exactly one value")
    return held[0]


def _compile(signature: str, at: int, little: bool, depth: int, max_depth: int) -> tuple[Reader, int]:
    """Return the reader of the type at *at* in a valid *signature*, and where that type ends."""
    if depth > max_depth:
        raise WireError("containers are nested too deeply")
    code = signature[at]
    if code == "a":
        if signature.startswith("{sv}", at + 1):
            return _options_reader(little, depth + 1), at + 5
        read_item, end = _compile(signature, at + 1, little, depth + 1, max_depth)
        return _array_reader(signature[at + 1], read_item, little), end
    if code in "({":
        members = []
        at += 1
        while signature[at] not in ")}":
            member, at = _compile(signature, at, little, depth + 1, max_depth)
            members.append(member)
        return _struct_reader(tuple(members)), at + 1
    return _basic_reader(code, little, depth), at + 1


def _basic_reader(code: str, little: bool, depth: int) -> Reader:
    if code in FIXED:
        return _fixed_reader(code, little)
    if code == "v":
        return _variant_reader(little, depth + 1)
    return {"y": _read_byte, "b": _bool_reader(little), "g": _read_signature}.get(code) or _string_reader(little)


def _fixed_reader(code: str, little: bool) -> Reader:
    layout = struct.Struct(("<" if little else ">") + FIXED[code])
    unpack, size = layout.unpack_from, layout.size

    def read(body: bytes, at: int) -> tuple[Any, int]:
        at += -at % size
        return unpack(body, at)[0], at + size

    def read_handle(body: bytes, at: int) -> tuple[Any, int]:
        value, at = read(body, at)
        return Handle(value), at

    return read_handle if code == "h" else read


def _bool_reader(little: bool) -> Reader:
    read_u32 = _fixed_reader("u", little)

    def read(body: bytes, at: int) -> tuple[Any, int]:
        value, at = read_u32(body, at)
        return bool(value), at

    return read


def _read_byte(body: bytes, at: int) -> tuple[Any, int]:
    return body[at], at + 1


def _read_signature(body: bytes, at: int) -> tuple[Any, int]:
    end = at + 1 + body[at]
    return body[at + 1 : end].decode("ascii"), end + 1


def _string_reader(little: bool) -> Reader:
    unpack = struct.Struct("<I" if little else ">I").unpack_from

    def read(body: bytes, at: int) -> tuple[Any, int]:
        at += 4 + -at % 4
        end = at + unpack(body, at - 4)[0]
        return body[at:end].decode(), end + 1

    return read


def _variant_reader(little: bool, depth: int) -> Reader:
    def read(body: bytes, at: int) -> tuple[Any, int]:
        end = at + 1 + body[at]
        return _content_reader(body[at + 1 : end], little, depth)(body, end + 1)

    return read


def _options_reader(little: bool, depth: int) -> Reader:
    """Return a reader of ``a{sv}`` that is fast for strings, since most bodies consist of strings."""
    unpack = struct.Struct("<I" if little else ">I").unpack_from
    read_variant = _variant_reader(little, depth + 1)

    def read(body: bytes, at: int) -> tuple[Any, int]:
        at += -at % 4
        end = at + 4 + -(at + 4) % 8 + unpack(body, at)[0]
        if end > len(body):
            raise WireError("an array is longer than its message")
        at += 4
        at += -at % 8
        found = {}
        while at < end:
            at += -at % 8 + 4
            stop = at + unpack(body, at - 4)[0]
            key = body[at:stop].decode()
            at = stop + 1
            if body[at : at + 3] == b"\x01s\0":
                at += 7 + -(at + 3) % 4
                stop = at + unpack(body, at - 4)[0]
                found[key] = body[at:stop].decode()
                at = stop + 1
            else:
                found[key], at = read_variant(body, at)
        if at != end:
            raise WireError("an array does not end at its stated length")
        return found, at

    return read


def _array_reader(element: str, read_item: Reader, little: bool) -> Reader:
    """Return a reader of arrays; *element* is the first character of the type of their elements."""
    unpack = struct.Struct("<I" if little else ">I").unpack_from
    align = ALIGN[element]

    def read(body: bytes, at: int) -> tuple[Any, int]:
        at += -at % 4
        length = unpack(body, at)[0]
        at += 4
        at += -at % align
        end = at + length
        if end > len(body):
            raise WireError("an array is longer than its message")
        if element == "y":
            return body[at:end], end
        items = []
        while at < end:
            item, at = read_item(body, at)
            items.append(item)
        if at != end:
            raise WireError("an array does not end at its stated length")
        return (dict(items) if element == "{" else items), at

    return read


def _struct_reader(members: tuple[Reader, ...]) -> Reader:
    def read(body: bytes, at: int) -> tuple[Any, int]:
        at += -at % 8
        values = []
        for read_member in members:
            value, at = read_member(body, at)
            values.append(value)
        return tuple(values), at

    return read


__all__ = ["Handle", "Raw", "Variant", "WireError", "entries", "marshal", "read_at", "split", "unmarshal", "variant"]

Writer: TypeAlias = Callable[[bytearray, Any], None]

_U32: Final = struct.Struct("<I")
_INFERRED_SIGNATURES: Final[dict[type, str]] = {bool: "b", float: "d", str: "s", bytes: "ay", Mapping: "a{sv}"}


def variant(value: object, signature: str = "") -> Variant:
    """Return *value* as a variant of *signature*, by default of a type that suits it.

    A list of strings becomes ``as``, other lists ``av``, a mapping ``a{sv}``, an integer ``x`` (``t`` above 2⁶³-1).
    Raises :class:`WireError` for values that D-Bus has no type for, such as ``None``.
    """
    if isinstance(value, Variant):
        return value
    return Variant(signature or _infer(value), value)


def _infer(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return "t" if value > 0x7FFF_FFFF_FFFF_FFFF else "x"
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return "as" if all(isinstance(item, str) for item in value) else "av"
    for kind, signature in _INFERRED_SIGNATURES.items():
        if isinstance(value, kind):
            return signature
    raise WireError(f"D-Bus has no type for {type(value).__name__}")


def marshal(signature: str, values: Sequence[object]) -> bytes:
    """Return the body with *values* of *signature*. Raises :class:`WireError`."""
    writers = _writers(signature)
    if len(writers) != len(values):
        raise WireError(f"the signature {signature!r} requires {len(writers)} values, not {len(values)}")
    out = bytearray()
    try:
        for write, value in zip(writers, values, strict=True):
            write(out, value)
    except WireError:
        raise
    except (struct.error, TypeError, AttributeError, RecursionError, ValueError) as error:
        raise WireError(f"a value does not fit the signature {signature!r}: {error}") from error
    return bytes(out)


def entries(values: Mapping[str, tuple[str, Any]]) -> Raw:
    """Return *values*, signature and content by key, as the elements of an ``a{sv}`` for any message.

    A listing of the catalog makes many of these with the same keys, so the bytes of the keys are cached.
    """
    out = bytearray()
    try:
        for key, (signature, content) in values.items():
            head = bytes(-len(out) % 8) + _entry_head(key, signature)
            if signature == "s":
                out += head + _length_prefixed(content)
                continue
            out += head
            (write,) = _writers(signature)
            write(out, content)
    except WireError:
        raise
    except (struct.error, TypeError, AttributeError, RecursionError, ValueError) as error:
        raise WireError(f"a value does not fit its signature: {error}") from error
    return Raw(out)


@lru_cache(maxsize=512)
def _entry_head(key: str, signature: str) -> bytes:
    """Return the bytes before the value in an entry of an ``a{sv}``, padded to the value's alignment."""
    out = bytearray()
    _write_string(out, key)
    _write_signature(out, signature)
    return bytes(out) + bytes(-len(out) % ALIGN[signature[0]])


def unmarshal(signature: str, body: bytes, *, little: bool = True) -> list[Any]:
    """Return the values in *body*. Raises :class:`WireError` unless it fits *signature* exactly."""
    values = []
    at = 0
    reset_signature_budget()
    try:
        for read in readers(signature, little):
            value, at = read(body, at)
            values.append(value)
    except (struct.error, IndexError, UnicodeDecodeError, TypeError, RecursionError) as error:
        raise WireError(f"the body is not a valid {signature!r}: {error}") from error
    if at != len(body):
        raise WireError(f"the body is not a valid {signature!r}: {len(body)} bytes instead of {at}")
    return values


def read_at(signature: str, data: bytes, at: int, *, little: bool) -> tuple[Any, int]:
    """Return the single value of *signature* at offset *at* of the message *data*, and the offset of its end.

    Raises :class:`WireError`.
    """
    reset_signature_budget()
    try:
        (read,) = readers(signature, little)
        return read(data, at)
    except (struct.error, IndexError, UnicodeDecodeError, TypeError, RecursionError) as error:
        raise WireError(f"the message contains no valid {signature!r}: {error}") from error


@lru_cache(maxsize=512)
def _writers(signature: str) -> tuple[Writer, ...]:
    return tuple(_writer(single) for single in split(signature))


def _writer(single: str) -> Writer:
    code = single[0]
    if code == "a":
        return _array_writer(single[1:])
    if code in "({":
        return _struct_writer(tuple(_writer(member) for member in split(single[1:-1])))
    return _BASIC_WRITERS[code]


def _fixed_writer(code: str) -> Writer:
    packer = struct.Struct("<" + FIXED[code])
    size = packer.size

    def write(out: bytearray, value: Any) -> None:
        out += bytes(-len(out) % size)
        out += packer.pack(value)

    return write


def _write_byte(out: bytearray, value: Any) -> None:
    out += struct.pack("B", value)


def _write_bool(out: bytearray, value: Any) -> None:
    out += bytes(-len(out) % 4) + _U32.pack(1 if value else 0)


def _write_string(out: bytearray, value: Any) -> None:
    out += bytes(-len(out) % 4) + _length_prefixed(value)


def _length_prefixed(value: Any) -> bytes:
    data: bytes = value.encode()
    if b"\0" in data:
        raise WireError("a D-Bus string cannot contain NUL")
    return _U32.pack(len(data)) + data + b"\0"


def _write_signature(out: bytearray, value: Any) -> None:
    data = value.encode("ascii")
    out.append(len(data))
    out += data
    out.append(0)


def _write_variant(out: bytearray, value: Any) -> None:
    signature, content = value if type(value) is Variant else variant(value)
    _write_signature(out, signature)
    (write,) = _writers(signature)
    write(out, content)


def _array_writer(element: str) -> Writer:
    align = ALIGN[element[0]]
    if element == "y":
        return _write_bytes
    pairs = element[0] == "{"
    write = _writer(element)

    def write_array(out: bytearray, value: Any) -> None:
        out += bytes(-len(out) % 4)
        length = len(out)
        out += b"\0\0\0\0"
        out += bytes(-len(out) % align)
        start = len(out)
        if type(value) is Raw:
            out += value
        else:
            for item in value.items() if pairs else value:
                write(out, item)
        _U32.pack_into(out, length, len(out) - start)

    return write_array


def _write_bytes(out: bytearray, value: Any) -> None:
    out += bytes(-len(out) % 4)
    out += _U32.pack(len(value))
    out += value


def _struct_writer(members: tuple[Writer, ...]) -> Writer:
    def write_struct(out: bytearray, value: Any) -> None:
        out += bytes(-len(out) % 8)
        for write, item in zip(members, value, strict=True):
            write(out, item)

    return write_struct


_BASIC_WRITERS: Final[dict[str, Writer]] = {
    "y": _write_byte,
    "b": _write_bool,
    "s": _write_string,
    "o": _write_string,
    "g": _write_signature,
    "v": _write_variant,
    **{code: _fixed_writer(code) for code in FIXED},
}
