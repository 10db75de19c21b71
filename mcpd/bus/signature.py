# SPDX-License-Identifier: LGPL-2.1-or-later
"""Signatures of the D-Bus wire format, and the values that Python has no type of its own for."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

MAX_DEPTH: Final = 64
"""Containers within containers, variants included; the specification's limit."""

FIXED: Final = {"n": "h", "q": "H", "i": "i", "u": "I", "x": "q", "t": "Q", "d": "d", "h": "I"}
ALIGN: Final = {"y": 1, "b": 4, "n": 2, "q": 2, "i": 4, "u": 4, "x": 8, "t": 8, "d": 8, "h": 4, "s": 4, "o": 4,
                 "g": 1, "a": 4, "(": 8, "{": 8, "v": 1}  # fmt: skip


class WireError(ValueError):
    """A signature or body that does not follow the wire format, or a value that does not fit its signature."""


class Variant(NamedTuple):
    """A value that travels with its own *signature*."""

    signature: str
    value: object


class Raw(bytes):
    """The elements of an array of dict entries or structs, written before; they fit wherever such an array goes."""

    __slots__ = ()


class Handle(int):
    """An index into the file descriptors of the message (type ``h``)."""

    __slots__ = ()


@lru_cache(maxsize=512)
def split(signature: str) -> tuple[str, ...]:
    """The single complete types that *signature* consists of. Raises :class:`WireError`."""
    if len(signature) > 255:
        raise WireError("a signature has at most 255 characters")
    types = []
    at = 0
    while at < len(signature):
        end = _end(signature, at, 0)
        types.append(signature[at:end])
        at = end
    return tuple(types)


def _end(signature: str, at: int, depth: int) -> int:
    """Where the single complete type that begins at *at* ends."""
    if depth > MAX_DEPTH or at >= len(signature):
        raise WireError(f"{signature!r} is not a signature")
    code = signature[at]
    if code == "a":
        if signature[at + 1 : at + 2] != "{":
            return _end(signature, at + 1, depth + 1)
        if signature[at + 2 : at + 3] not in tuple("ybnqiuxtdhsog"):
            raise WireError(f"{signature!r} is not a signature")
        end = _end(signature, at + 3, depth + 2)
        if signature[end : end + 1] != "}":
            raise WireError(f"{signature!r} is not a signature")
        return end + 1
    if code == "(":
        end = _end(signature, at + 1, depth + 1)
        while signature[end : end + 1] != ")":
            end = _end(signature, end, depth + 1)
        return end + 1
    if code == "{" or code not in ALIGN:
        raise WireError(f"{signature!r} is not a signature")
    return at + 1
