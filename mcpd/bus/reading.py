# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reading values from the D-Bus wire format: one function per type, put together once per signature."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeAlias

from mcpd.bus.signature import ALIGN, FIXED, MAX_DEPTH, Handle, WireError, split

Reader: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
"""From a message and an offset to the value there and where it ends."""

MAX_VARIANT: Final = 64
"""Characters of a variant's signature."""
MAX_VARIANT_DEPTH: Final = 8
"""Containers within containers that a variant's signature may name."""
MAX_NEW_SIGNATURES: Final = 4096
"""Characters of signatures that one message may bring which were not met lately."""


class _Allowance:
    """How many characters of signatures one message may still have compiled; what is cached costs nothing."""

    left = 0


_allowance: Final = _Allowance()


def begin_message() -> None:
    """Forget what the message before cost. To be called before the values of another are read."""
    _allowance.left = MAX_NEW_SIGNATURES


@lru_cache(maxsize=512)
def readers(signature: str, little: bool, depth: int = 0, deepest: int = MAX_DEPTH) -> tuple[Reader, ...]:
    """What reads the values of *signature*. Raises :class:`~mcpd.bus.signature.WireError` for no signature.

    It stands within *depth* containers, and its own may go down to *deepest*.
    """
    return tuple(_compile(single, 0, little, depth, deepest)[0] for single in split(signature))


@lru_cache(maxsize=512)
def _variant_content(signature: bytes, little: bool, depth: int) -> Reader:
    """What reads a variant of *signature*, which the sender chose and may choose anew for every value."""
    if len(signature) > MAX_VARIANT:
        raise WireError(f"the signature of a variant has at most {MAX_VARIANT} characters")
    _allowance.left -= len(signature)
    if _allowance.left < 0:
        raise WireError("the variants are of too many types")
    held = readers(signature.decode("ascii"), little, depth, min(MAX_DEPTH, depth + MAX_VARIANT_DEPTH))
    if len(held) != 1:
        raise WireError("a variant holds one value")
    return held[0]


def _compile(signature: str, at: int, little: bool, depth: int, deepest: int) -> tuple[Reader, int]:
    """The reader of the type that begins at *at* of a valid *signature*, and where that type ends."""
    if depth > deepest:
        raise WireError("containers are nested too deeply")
    code = signature[at]
    if code == "a":
        if signature.startswith("{sv}", at + 1):
            return _options_reader(little, depth + 1), at + 5
        read_item, end = _compile(signature, at + 1, little, depth + 1, deepest)
        return _array_reader(signature[at + 1], read_item, little), end
    if code in "({":
        members = []
        at += 1
        while signature[at] not in ")}":
            member, at = _compile(signature, at, little, depth + 1, deepest)
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
        return _variant_content(body[at + 1 : end], little, depth)(body, end + 1)

    return read


def _options_reader(little: bool, depth: int) -> Reader:
    """``a{sv}``, which most bodies consist of, without a call for every string in it."""
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
            raise WireError("an array does not end where it says")
        return found, at

    return read


def _array_reader(element: str, read_item: Reader, little: bool) -> Reader:
    """An array of elements whose type begins with the character *element*."""
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
            raise WireError("an array does not end where it says")
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
