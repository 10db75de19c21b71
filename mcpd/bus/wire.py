# SPDX-License-Identifier: LGPL-2.1-or-later
"""Message bodies of the D-Bus wire format: plain Python values to bytes and back.

The codec of dbus-next checks and copies every value several times in pure Python, which makes a listing of a
thousand servers ten times slower than it may be, keeps every signature it ever met, and lets one body that it
cannot read end the connection. This one compiles a signature once (the cache is bounded, since callers
choose the signatures of their variants) and accepts :class:`Raw`, an array that was written before.

Variants are unwrapped on the way in. On the way out a plain value becomes the variant that :func:`variant`
makes of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

from mcpd.bus.reading import begin_message, readers
from mcpd.bus.signature import ALIGN, FIXED, Handle, Raw, Variant, WireError, split

__all__ = ["Handle", "Raw", "Variant", "WireError", "entries", "marshal", "read_at", "split", "unmarshal", "variant"]

Writer: TypeAlias = Callable[[bytearray, Any], None]

_U32: Final = struct.Struct("<I")
_SUITABLE: Final[dict[type, str]] = {bool: "b", float: "d", str: "s", bytes: "ay", Mapping: "a{sv}"}


def variant(value: object, signature: str = "") -> Variant:
    """*value* as a variant of *signature*, or of the type that suits it.

    A list of strings becomes ``as``, other lists ``av``, a mapping ``a{sv}``, an integer ``x`` (``t`` above
    2⁶³-1). Raises :class:`WireError` for what D-Bus cannot carry, such as ``None``.
    """
    if isinstance(value, Variant):
        return value
    return Variant(signature or _infer(value), value)


def _infer(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return "t" if value > 0x7FFF_FFFF_FFFF_FFFF else "x"
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return "as" if all(isinstance(item, str) for item in value) else "av"
    for kind, signature in _SUITABLE.items():
        if isinstance(value, kind):
            return signature
    raise WireError(f"a value of type {type(value).__name__} cannot travel over D-Bus")


def marshal(signature: str, values: Sequence[object]) -> bytes:
    """The body that carries *values* under *signature*. Raises :class:`WireError`."""
    writers = _writers(signature)
    if len(writers) != len(values):
        raise WireError(f"the signature {signature!r} asks for {len(writers)} values, not {len(values)}")
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
    """*values*, by key signature and content, as the elements of an ``a{sv}``, to be put into any message.

    A listing of the catalogue makes many of these out of the same keys, so what is the same in all is made once.
    """
    out = bytearray()
    try:
        for key, (signature, content) in values.items():
            head = bytes(-len(out) % 8) + _head(key, signature)
            if signature == "s":
                out += head + _counted(content)
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
def _head(key: str, signature: str) -> bytes:
    """What precedes the value in an element of an ``a{sv}``, as far as its own alignment, which counts from there."""
    out = bytearray()
    _write_string(out, key)
    _write_signature(out, signature)
    return bytes(out) + bytes(-len(out) % ALIGN[signature[0]])


def unmarshal(signature: str, body: bytes, *, little: bool = True) -> list[Any]:
    """The values in *body*. Raises :class:`WireError` unless it is exactly what *signature* says."""
    values = []
    at = 0
    begin_message()
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
    """The one value of *signature* at offset *at* of the message *data*, and where it ends.

    Raises :class:`WireError`.
    """
    begin_message()
    try:
        (read,) = readers(signature, little)
        return read(data, at)
    except (struct.error, IndexError, UnicodeDecodeError, TypeError, RecursionError) as error:
        raise WireError(f"the message holds no valid {signature!r}: {error}") from error


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
    out += bytes(-len(out) % 4) + _counted(value)


def _counted(value: Any) -> bytes:
    data: bytes = value.encode()
    if b"\0" in data:
        raise WireError("a D-Bus string cannot hold NUL")
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
