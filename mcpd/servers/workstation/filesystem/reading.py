# SPDX-License-Identifier: LGPL-2.1-or-later
"""``filesystem_read``: a file, or a part of it, as text, image, sound or bytes."""

from __future__ import annotations

import base64
import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from urllib.parse import quote

from pydantic import Field

from mcpd.errors import InvalidArgument, TooLarge
from mcpd.servers.workstation.call import in_thread
from mcpd.servers.workstation.filesystem.chunks import read_at
from mcpd.servers.workstation.filesystem.encodings import LONGEST, ReadEncoding, WriteEncoding, encode, form_of
from mcpd.servers.workstation.filesystem.media import (
    SNIFFED,
    UNKNOWN,
    is_audio,
    is_image,
    type_of_bytes,
    type_of_text,
)
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.filesystem.texts import MAX_JSON, NotText, TextFile, too_few
from mcpd.servers.workstation.jail import translated
from mcpd.servers.workstation.tool import Answer, Arguments, Result, Tool

if TYPE_CHECKING:
    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.filesystem.encodings import EditEncoding, Form
    from mcpd.servers.workstation.filesystem.texts import Piece
    from mcpd.servers.workstation.jail import Place

Kind: TypeAlias = Literal["text", "image", "audio", "binary"]

DEFAULT_BYTES: Final = 1024 * 1024
MAX_BYTES: Final = 8 * 1024 * 1024
_MAX_RAW: Final = MAX_JSON // 4 * 3
"""Bytes that base64 makes as long as a text may be."""
_MAX_OFFSET: Final = 2**53 - 1
"""What every JSON parser reads exactly."""
_LOOKED_AT: Final = 8192
"""Bytes from the beginning that tell whether a file is text at all."""
_COUNTED: Final = 32 * 1024 * 1024
"""Bytes of a file up to which its lines are counted to the end."""


class ReadArguments(Arguments):
    """What is read."""

    path: str = Field(description="Absolute, or relative to the first root")
    encoding: ReadEncoding = Field(
        default="auto",
        description="auto: text in UTF-8 or as its byte order mark says, images and sounds as such, other bytes as a"
        " resource; base64: the bytes of anything, as base64 text",
    )
    start_line: int | None = Field(default=None, ge=1, le=_MAX_OFFSET, description="First line, from 1")
    end_line: int | None = Field(default=None, ge=1, le=_MAX_OFFSET, description="Last line, inclusive")
    offset: int | None = Field(default=None, ge=0, le=_MAX_OFFSET, description="First byte, from 0")
    length: int | None = Field(default=None, ge=1, le=_MAX_OFFSET, description="Number of bytes")
    max_bytes: int = Field(
        default=DEFAULT_BYTES,
        ge=LONGEST,
        le=MAX_BYTES,
        description="Most bytes of the file to return; of text no more than 5 MiB of JSON",
    )


class ReadResult(Result):
    """What was read."""

    path: str = Field(description="Absolute")
    size: int = Field(description="Bytes of the whole file")
    mime_type: str = Field(description="Media type of the file")
    kind: Kind = Field(description="What the content is")
    encoding: WriteEncoding | None = Field(
        default=None, description="Of the text in the file; base64: text holds its bytes"
    )
    byte_order_mark: bool | None = Field(
        default=None, description="Whether the file begins with one; it is not part of the text"
    )
    text: str | None = Field(default=None, description="The same as in content")
    offset: int | None = Field(default=None, description="First byte of what was read")
    start_line: int | None = Field(default=None, description="First line of the text, if known")
    end_line: int | None = Field(default=None, description="Last line of the text, if known")
    total_lines: int | None = Field(default=None, description="Lines of the whole file, if known")
    truncated: bool = Field(description="Whether what was asked for is cut off, being too much for one answer")
    next_offset: int | None = Field(default=None, description="The offset to read on from")
    next_line: int | None = Field(default=None, description="The start_line to read on from")
    sha256: str | None = Field(default=None, description="Of the file, if all of it was read")


def _read(call: Call, arguments: ReadArguments) -> Answer:
    by_lines = arguments.start_line is not None or arguments.end_line is not None
    if by_lines and (arguments.offset is not None or arguments.length is not None):
        raise InvalidArgument("give start_line and end_line, or offset and length, not both")
    if arguments.end_line is not None and arguments.end_line < (arguments.start_line or 1):
        raise InvalidArgument(f"end_line {arguments.end_line} is before start_line {arguments.start_line or 1}")
    if by_lines and arguments.encoding == "base64":
        raise InvalidArgument("bytes have no lines: with encoding 'base64' give offset and length")
    place = call.jail.place(arguments.path)
    with call.jail.file(place) as fd, translated(place, "reading"):
        reading = _Reading(call, place, fd, arguments)
        if arguments.encoding == "base64":
            return reading.raw()
        try:
            return reading.lines(arguments.encoding) if by_lines else reading.text(arguments.encoding)
        except NotText:
            if by_lines or arguments.encoding != "auto":
                raise
        return reading.media() if arguments.offset is None and arguments.length is None else reading.blob(UNKNOWN)


@dataclass(frozen=True, slots=True)
class _Bytes:
    """A piece of a file as it is."""

    data: bytes
    offset: int
    truncated: bool
    next_offset: int | None


class _Reading:
    """One file that is being read."""

    def __init__(self, call: Call, place: Place, fd: int, arguments: ReadArguments) -> None:
        self._call = call
        self._place = place
        self._fd = fd
        self._arguments = arguments
        self._size = os.fstat(fd).st_size
        self._head = read_at(call, fd, 0, _LOOKED_AT)

    @property
    def _name(self) -> str:
        return self._place.relative.rpartition("/")[2]

    @property
    def _path(self) -> str:
        return shown_name(self._place.path)

    def text(self, encoding: EditEncoding) -> Answer:
        """The bytes that are asked for, as text. Raises :class:`NotText`."""
        form, file = self._text_file(encoding)
        offset = self._arguments.offset or 0
        length = self._arguments.length or _MAX_OFFSET
        most = min(length, self._arguments.max_bytes)
        piece = file.piece(offset, most, whole_lines=length > most)
        begins = offset <= len(form.mark)
        truncated = (length > most or piece.is_full) and not piece.is_last
        return self._answer(form, file, piece, first_line=1 if begins else None, truncated=truncated)

    def lines(self, encoding: EditEncoding) -> Answer:
        """The lines that are asked for. Raises :class:`NotText`."""
        form, file = self._text_file(encoding)
        first = self._arguments.start_line or 1
        found = file.piece(file.line_start(first), self._arguments.max_bytes, whole_lines=True)
        if not found.text and first > 1:
            raise too_few(self._place.shown, first - 1)
        truncated = not found.is_last
        piece = found
        if self._arguments.end_line is not None:
            wanted = self._arguments.end_line - first + 1
            piece = file.cut(found, wanted)
            truncated = not found.is_last and piece.newlines < wanted
        return self._answer(form, file, piece, first_line=first, truncated=truncated)

    def raw(self) -> Answer:
        """The bytes that are asked for, as base64 in a text block, as ``filesystem_write`` takes them."""
        piece = self._bytes(_MAX_RAW)
        text = base64.b64encode(piece.data).decode()
        return Answer(
            self._binary_result(self._type(), "binary", piece, text=text, encoding="base64"),
            ({"type": "text", "text": text}, *self._cut(piece)),
        )

    def media(self) -> Answer:
        """The whole file, which is no text."""
        kind = type_of_bytes(self._name, self._head[:SNIFFED])
        block: Literal["image", "audio"]
        if is_image(kind):
            block = "image"
        elif is_audio(kind):
            block = "audio"
        else:
            return self.blob(kind)
        piece = self._bytes()
        if piece.truncated:
            raise TooLarge(
                f"{self._place.shown} is {kind} of {self._size} bytes, of which a part cannot be shown;"
                f" max_bytes is {self._arguments.max_bytes} and can be {MAX_BYTES}, 'base64' reads parts of the bytes"
            )
        encoded = base64.b64encode(piece.data).decode()
        return Answer(self._binary_result(kind, block, piece), ({"type": block, "data": encoded, "mimeType": kind},))

    def blob(self, kind: str) -> Answer:
        """The bytes that are asked for, as a resource of the type *kind*."""
        piece = self._bytes()
        resource = {
            "uri": "file://" + quote(os.fsencode(self._place.path)),
            "mimeType": kind,
            "blob": base64.b64encode(piece.data).decode(),
        }
        return Answer(
            self._binary_result(type_of_bytes(self._name, self._head[:SNIFFED]), "binary", piece),
            ({"type": "resource", "resource": resource}, *self._cut(piece)),
        )

    def _text_file(self, encoding: EditEncoding) -> tuple[Form, TextFile]:
        form = form_of(self._head, encoding)
        file = TextFile(self._call, self._fd, form=form, encoding=encoding, shown=self._place.shown)
        if encoding == "auto":
            # What begins as binary is binary in all its parts.
            file.piece(0, _LOOKED_AT, whole_lines=False)
        return form, file

    def _type(self) -> str:
        try:
            self._text_file("auto")
        except NotText:
            return type_of_bytes(self._name, self._head[:SNIFFED])
        return type_of_text(self._name)

    def _bytes(self, at_once: int = MAX_BYTES) -> _Bytes:
        offset = self._arguments.offset or 0
        length = self._arguments.length or _MAX_OFFSET
        most = min(length, self._arguments.max_bytes, at_once)
        data = read_at(self._call, self._fd, offset, most + 1)
        goes_on = len(data) > most
        return _Bytes(
            data[:most],
            offset,
            truncated=goes_on and length > most,
            next_offset=offset + most if goes_on else None,
        )

    def _cut(self, piece: _Bytes) -> tuple[dict[str, str], ...]:
        if not piece.truncated:
            return ()
        return (_note(f"after byte {piece.next_offset} of {self._size}", f"offset={piece.next_offset}"),)

    def _binary_result(
        self,
        mime_type: str,
        kind: Kind,
        piece: _Bytes,
        text: str | None = None,
        encoding: Literal["base64"] | None = None,
    ) -> ReadResult:
        return ReadResult(
            path=self._path,
            size=self._size,
            mime_type=mime_type,
            kind=kind,
            encoding=encoding,
            text=text,
            offset=piece.offset,
            truncated=piece.truncated,
            next_offset=piece.next_offset,
            sha256=hashlib.sha256(piece.data).hexdigest() if not piece.offset and piece.next_offset is None else None,
        )

    def _answer(self, form: Form, file: TextFile, piece: Piece, *, first_line: int | None, truncated: bool) -> Answer:
        last_line = next_line = None
        if first_line is not None:
            last_line = first_line + piece.lines - 1
            next_line = last_line + 1 if piece.ends_line and not piece.is_last else None
        total = self._total(file, piece, first_line)
        is_whole = piece.start == len(form.mark) and piece.is_last
        result = ReadResult(
            path=self._path,
            size=self._size,
            mime_type=type_of_text(self._name),
            kind="text",
            encoding=form.encoding,
            byte_order_mark=True if form.mark else None,
            text=piece.text,
            offset=piece.start,
            start_line=first_line if piece.text else None,
            end_line=last_line if piece.text else None,
            total_lines=total,
            truncated=truncated,
            next_offset=None if piece.is_last else piece.end,
            next_line=next_line,
            sha256=hashlib.sha256(encode(piece.text, form)).hexdigest() if is_whole else None,
        )
        block = {"type": "text", "text": piece.text}
        if not truncated:
            return Answer(result, (block,))
        if next_line is None:
            return Answer(result, (block, _note(f"after byte {piece.end} of {self._size}", f"offset={piece.end}")))
        of = "" if total is None else f" of {total}"
        return Answer(result, (block, _note(f"after line {last_line}{of}", f"start_line={next_line}")))

    def _total(self, file: TextFile, piece: Piece, first_line: int | None) -> int | None:
        if first_line is None:
            return None
        if piece.is_last:
            return first_line + piece.lines - 1
        if self._size > _COUNTED:
            return None
        newlines, ends_line = file.lines_after(piece.end)
        return first_line - 1 + piece.newlines + newlines + (not ends_line)


def _note(where: str, how: str) -> dict[str, str]:
    """What those see who see only the text of a result."""
    return {"type": "text", "text": f"[cut {where}; go on with {how}]"}


READ: Final = Tool(
    name="filesystem_read",
    title="Read a file",
    description="Read a file, or a part of it: lines (start_line, end_line) or bytes (offset, length). A long file is"
    " read on from next_line or next_offset.",
    arguments=ReadArguments,
    result=ReadResult,
    run=in_thread(_read),
    read_only=True,
    idempotent=True,
)
