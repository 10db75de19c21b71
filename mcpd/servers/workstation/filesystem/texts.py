# SPDX-License-Identifier: LGPL-2.1-or-later
"""Text files: encodings, and parts of files of any size, cut at the end of a character or line.

A file may grow and shrink while it is read.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from mcpd.errors import InvalidArgument
from mcpd.model import printable
from mcpd.servers.workstation.filesystem.names import json_size

if TYPE_CHECKING:
    from mcpd.servers.workstation.call import Call

CHUNK: Final = 1024 * 1024
"""Bytes read or written between two checks whether the call is over."""


def read_at(call: Call, fd: int, offset: int, most: int) -> bytes:
    """Return *most* bytes of *fd* from *offset*, or fewer at the end of the file. Raises OSError."""
    parts = []
    while most > 0:
        call.check()
        part = os.pread(fd, min(CHUNK, most), offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        most -= len(part)
    return b"".join(parts)


def digest(call: Call, fd: int) -> str:
    """Return the SHA-256 of the whole file *fd* in hexadecimal digits; report progress. Raises OSError."""
    found, done = hashlib.sha256(), 0
    size = os.fstat(fd).st_size
    while part := read_at(call, fd, done, CHUNK):
        found.update(part)
        done += len(part)
        call.report(done, max(done, size), "reading")
    return found.hexdigest()


TextEncoding: TypeAlias = Literal[
    "utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1", "windows-1252", "ascii"
]
ReadEncoding: TypeAlias = Literal["auto", TextEncoding, "base64"]
EditEncoding: TypeAlias = Literal["auto", TextEncoding]
WriteEncoding: TypeAlias = Literal[TextEncoding, "base64"]

LONGEST: Final = 4
"""Maximum size in bytes of a character, and of a byte order mark."""

_MARKS: Final[tuple[tuple[TextEncoding, str, bytes], ...]] = (
    # UTF-32 must be before UTF-16, whose little-endian mark has the same beginning.
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
    """The encoding of one file."""

    encoding: TextEncoding
    """The name used by the tools."""
    codec: str
    """The name used by Python, with the byte order."""
    mark: bytes = b""
    """The byte order mark, which is not part of the text."""


def form_of(head: bytes, encoding: EditEncoding) -> Form:
    """Return the form of a file that begins with *head*, at least :data:`LONGEST` bytes if it has as many.

    "auto" is determined by the byte order mark; without one it is UTF-8. For a named encoding, a matching mark is
    recognized and determines the byte order of UTF-16 and UTF-32, which is little-endian without one.
    """
    for name, codec, mark in _MARKS:
        if head.startswith(mark) and encoding in {"auto", name, codec}:
            return Form(name if encoding == "auto" else encoding, codec, mark)
    return Form("utf-8" if encoding == "auto" else encoding, _UNMARKED.get(encoding, encoding))


def written_form(encoding: TextEncoding) -> Form:
    """Return the form of a new file: little-endian, with a mark, if *encoding* leaves the byte order open."""
    marks = {"utf-16": codecs.BOM_UTF16_LE, "utf-32": codecs.BOM_UTF32_LE}
    return Form(encoding, _UNMARKED.get(encoding, encoding), marks.get(encoding, b""))


def decode(data: bytes, encoding: EditEncoding, shown: str) -> tuple[str, Form]:
    """Return the text of the whole file *data*, without its mark, and its form; *shown* is its name in messages.

    Raises :class:`~mcpd.errors.InvalidArgument` if it is not text in *encoding*; "auto" accepts no NULs.
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
    """Return the error for a file, named *shown*, that is not text in *form* at the byte *offset*."""
    what = "binary, or text in an encoding that has to be named" if encoding == "auto" else f"not {form.encoding}"
    return InvalidArgument(
        f"{shown} is {what}: byte {offset} is no {form.encoding}; 'latin-1' takes every byte as a character,"
        " 'base64' takes the bytes as they are"
    )


def encode(text: str, form: Form) -> bytes:
    """Return *text* encoded in *form*, with its mark.

    Raises :class:`~mcpd.errors.InvalidArgument` for a character that cannot be encoded.
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
    """Return the bytes of a new file for *content*, text in *encoding*, or base64, in which white space is ignored.

    Raises :class:`~mcpd.errors.InvalidArgument`.
    """
    if encoding != "base64":
        return encode(content, written_form(encoding))
    try:
        return base64.b64decode("".join(content.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument(f"the content is no base64: {printable(str(error))}") from None


MAX_JSON: Final = 5 * 1024 * 1024
"""Maximum size of the text of one result as JSON, in bytes; it is there twice, and messages are limited to 16 MiB."""
_MOST_JSON: Final = 6
"""Maximum size of a character in JSON, in bytes: that of a control character."""
_STEP: Final = 4096
"""Characters measured at once."""


class NotText(InvalidArgument):
    """Error: the file is not text in the encoding that was tried."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the text of a file."""

    text: str
    start: int
    """Offset of its first byte in the file."""
    end: int
    """Offset of the byte after it."""
    is_last: bool
    """True if the file ended there."""
    is_full: bool = False
    """True if it was cut because its JSON would be too long."""

    @property
    def newlines(self) -> int:
        """The number of lines that end in it."""
        return self.text.count("\n")

    @property
    def lines(self) -> int:
        """The number of lines, including an incomplete last one."""
        return self.newlines + (self.text[-1:] not in {"", "\n"})

    @property
    def ends_line(self) -> bool:
        """True if it ends at the end of a line."""
        return self.text.endswith("\n")


class TextFile:
    """An open text file. Methods raise OSError, :class:`NotText`, and the errors of ``call.check``."""

    def __init__(self, call: Call, fd: int, *, form: Form, encoding: EditEncoding, shown: str) -> None:
        """Read *fd* in *form*; *encoding* is the requested one, and with "auto" text must not contain NULs."""
        self._call = call
        self._fd = fd
        self._form = form
        self._encoding = encoding
        self._shown = shown

    def piece(self, offset: int, most: int, *, whole_lines: bool) -> Piece:
        """Return the text from the byte *offset* on, at most *most* bytes, but at least one character.

        If *offset* is within a character, the text begins with the next one. With *whole_lines*, text that ends before
        the end of the file is cut after its last complete line, if there is one; so is text of more than
        :data:`MAX_JSON` bytes in JSON.
        """
        start = self._boundary(offset)
        data = read_at(self._call, self._fd, start, most + LONGEST)
        is_last = len(data) <= most
        text, used = self._decoded(data[:most], start, final=is_last)
        size = most
        while not text and size < len(data):
            size += 1
            is_last = size == len(data) < most + LONGEST
            text, used = self._decoded(data[:size], start, final=is_last)
        fitting = _fitting(text)
        is_full = fitting < len(text)
        if is_full:
            text, is_last = text[:fitting], False
        if (whole_lines or is_full) and not is_last and "\n" in text:
            text = text[: text.rindex("\n") + 1]
        if not is_last:
            used = self._size(text)
        return Piece(text, start, start + used, is_last, is_full)

    def cut(self, piece: Piece, lines: int) -> Piece:
        """Return *piece*, cut to at most *lines* lines."""
        end = _after_newlines(piece.text, lines)
        if end is None or end == len(piece.text):
            return piece
        text = piece.text[:end]
        return Piece(text, piece.start, piece.start + self._size(text), is_last=False, is_full=piece.is_full)

    def line_start(self, number: int) -> int:
        """Return the offset of the line *number*, counted from 1; it may be the end of the file.

        Raises :class:`~mcpd.errors.InvalidArgument` if there are fewer lines.
        """
        position = begin = len(self._form.mark)
        decoder = codecs.getincrementaldecoder(self._form.codec)()
        missing, rest = number - 1, ""
        while missing:
            data = read_at(self._call, self._fd, position, CHUNK)
            text = self._fed(decoder, data, position, final=not data)
            end = _after_newlines(text, missing)
            if end is not None:
                return begin + self._size(text[:end])
            if not data:
                raise too_few(self._shown, number - 1 - missing + (rest not in {"", "\n"}))
            missing -= text.count("\n")
            rest = text[-1:] or rest
            position += len(data)
            self._call.report(position, message=f"looking for line {number}")
            begin = position - len(decoder.getstate()[0])
        return begin

    def lines_after(self, offset: int) -> tuple[int, bool]:
        """Return how many lines end after the byte *offset*, and whether the last line is complete.

        Bytes that cannot be decoded are not line ends.
        """
        decoder = codecs.getincrementaldecoder(self._form.codec)("replace")
        count, last = 0, ""
        while data := read_at(self._call, self._fd, offset, CHUNK):
            text = decoder.decode(data)
            count += text.count("\n")
            last = text[-1:] or last
            offset += len(data)
        return count, last == "\n"

    def _fed(self, decoder: codecs.IncrementalDecoder, data: bytes, position: int, *, final: bool) -> str:
        waiting = len(decoder.getstate()[0])
        try:
            text = decoder.decode(data, final)
        except UnicodeDecodeError as error:
            offset = position - waiting + error.start
            raise NotText(undecodable(self._form, self._encoding, offset, self._shown).message) from None
        if self._encoding == "auto" and "\0" in text:
            raise NotText(f"{self._shown} is binary: it holds NUL characters; 'base64' takes the bytes as they are")
        return text

    def _decoded(self, data: bytes, position: int, *, final: bool) -> tuple[str, int]:
        """Return the complete characters at the beginning of *data*, found at *position*, and their size in bytes."""
        decoder = codecs.getincrementaldecoder(self._form.codec)()
        text = self._fed(decoder, data, position, final=final)
        return text, len(data) - len(decoder.getstate()[0])

    def _boundary(self, offset: int) -> int:
        """Return the offset of the first character that begins at *offset* or later."""
        codec = self._form.codec
        offset = max(offset, len(self._form.mark))
        if codec.startswith("utf-32"):
            return offset + -offset % 4
        if codec.startswith("utf-16"):
            offset += offset % 2
            unit = os.pread(self._fd, 2, offset)
            high = unit[1:] if codec.endswith("le") else unit[:1]
            return offset + 2 if len(unit) == 2 and 0xDC <= high[0] <= 0xDF else offset
        if codec == "utf-8":
            ahead = os.pread(self._fd, LONGEST - 1, offset)
            return offset + len(ahead) - len(ahead.lstrip(bytes(range(0x80, 0xC0))))
        return offset

    def _size(self, text: str) -> int:
        return len(text.encode(self._form.codec))


def too_few(shown: str, lines: int) -> InvalidArgument:
    """Return the error for a line number that the file, named *shown*, does not have."""
    return InvalidArgument(f"{shown} has only {lines} line{'' if lines == 1 else 's'}")


def _fitting(text: str) -> int:
    """Return how many characters of *text* take at most :data:`MAX_JSON` bytes in JSON."""
    if len(text) * _MOST_JSON <= MAX_JSON or json_size(text) <= MAX_JSON:
        return len(text)
    position, room = 0, MAX_JSON
    while (needed := json_size(text[position : position + _STEP])) <= room:
        position, room = position + _STEP, room - needed
    return position


def _after_newlines(text: str, count: int) -> int | None:
    """Return the index after *count* newlines, or None if there are fewer."""
    if text.count("\n") < count:
        return None
    end = 0
    for _ in range(count):
        end = text.index("\n", end) + 1
    return end
