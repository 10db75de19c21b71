# SPDX-License-Identifier: LGPL-2.1-or-later
"""How text is written as bytes: the encodings that the tools know, byte order marks, and base64 for what is no text."""

from __future__ import annotations

import base64
import binascii
import codecs
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from mcpd.errors import InvalidArgument
from mcpd.model import printable

TextEncoding: TypeAlias = Literal[
    "utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1", "windows-1252", "ascii"
]
ReadEncoding: TypeAlias = Literal["auto", TextEncoding, "base64"]
EditEncoding: TypeAlias = Literal["auto", TextEncoding]
WriteEncoding: TypeAlias = Literal[TextEncoding, "base64"]

LONGEST: Final = 4
"""Bytes of the longest character, and of the longest byte order mark."""

_MARKS: Final[tuple[tuple[TextEncoding, str, bytes], ...]] = (
    # UTF-32 comes before UTF-16, whose little-endian mark begins like its own.
    ("utf-8", "utf-8", codecs.BOM_UTF8),
    ("utf-32", "utf-32-le", codecs.BOM_UTF32_LE),
    ("utf-32", "utf-32-be", codecs.BOM_UTF32_BE),
    ("utf-16", "utf-16-le", codecs.BOM_UTF16_LE),
    ("utf-16", "utf-16-be", codecs.BOM_UTF16_BE),
)
_UNMARKED: Final = {
    "auto": "utf-8",
    "utf-16": "utf-16-le",
    "utf-32": "utf-32-le",
    "windows-1252": "cp1252",
}


@dataclass(frozen=True, slots=True)
class Form:
    """How the text of one file is written."""

    encoding: TextEncoding
    """As the tools call it."""
    codec: str
    """As Python calls it, with its byte order."""
    mark: bytes = b""
    """The byte order mark in front, which is no part of the text."""


def form_of(head: bytes, encoding: EditEncoding) -> Form:
    """How a file that begins with the bytes *head*, at least :data:`LONGEST` if it has them, is written.

    With "auto" a byte order mark tells, and without one it is UTF-8. A named encoding is taken as named; a mark that
    fits it is recognized, and tells the byte order of UTF-16 and UTF-32, which is little-endian without one.
    """
    for name, codec, mark in _MARKS:
        if head.startswith(mark) and encoding in {"auto", name, codec}:
            return Form(name if encoding == "auto" else encoding, codec, mark)
    return Form("utf-8" if encoding == "auto" else encoding, _UNMARKED.get(encoding, encoding))


def written_form(encoding: TextEncoding) -> Form:
    """How a new file is written: little-endian and with a mark where *encoding* leaves the byte order open."""
    marks = {"utf-16": codecs.BOM_UTF16_LE, "utf-32": codecs.BOM_UTF32_LE}
    return Form(encoding, _UNMARKED.get(encoding, encoding), marks.get(encoding, b""))


def decode(data: bytes, encoding: EditEncoding, shown: str) -> tuple[str, Form]:
    """The text of the whole file *data*, which messages call *shown*, without its mark, and how it is written.

    Raises :class:`~mcpd.errors.InvalidArgument` for what is no text in *encoding*; "auto" takes nothing with NULs.
    """
    form = form_of(data[:LONGEST], encoding)
    try:
        text = data[len(form.mark) :].decode(form.codec)
    except UnicodeDecodeError as error:
        raise undecodable(form, encoding, len(form.mark) + error.start, shown) from None
    if encoding == "auto" and "\0" in text:
        raise InvalidArgument(f"{shown} is binary: it holds NUL characters; 'base64' takes the bytes as they are")
    return text, form


def undecodable(form: Form, encoding: EditEncoding, offset: int, shown: str) -> InvalidArgument:
    """The error of a file, called *shown*, that is no text in *form* at the byte *offset*."""
    what = "binary, or text in an encoding that has to be named" if encoding == "auto" else f"not {form.encoding}"
    return InvalidArgument(
        f"{shown} is {what}: byte {offset} is no {form.encoding}; 'latin-1' takes every byte as a character,"
        " 'base64' takes the bytes as they are"
    )


def encode(text: str, form: Form) -> bytes:
    """The bytes of *text* in *form*, with its mark.

    Raises :class:`~mcpd.errors.InvalidArgument` for a character that it cannot write.
    """
    try:
        return form.mark + text.encode(form.codec)
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        character = f"U+{ord(text[error.start]):04X}"
        raise InvalidArgument(
            f"line {line} of the text holds {character}, which {form.encoding} cannot write"
            + ("; it is half of a character" if "\ud800" <= text[error.start] <= "\udfff" else "; use 'utf-8'")
        ) from None


def bytes_of(content: str, encoding: WriteEncoding) -> bytes:
    """What a new file holds whose *content* is text in *encoding*, or base64, in which white space does not count.

    Raises :class:`~mcpd.errors.InvalidArgument`.
    """
    if encoding != "base64":
        return encode(content, written_form(encoding))
    try:
        return base64.b64decode("".join(content.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument(f"the content is no base64: {printable(str(error))}") from None
