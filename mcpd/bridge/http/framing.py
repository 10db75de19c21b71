# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where a request ends (RFC 9112 §2.2, §5, §6, §7.1), held up to older parsers.

httptools before 0.2 stands on http-parser, which forgives line ends without CR, continued header lines, spaces before
the colon, several Transfer-Encodings and bytes between chunks. Whoever stands before the bridge may read the same bytes
otherwise, and then a part of one client's body is another one's request. Newer versions refuse all that by themselves.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import httptools

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LONGEST_LINE: Final = 65536
"""Bytes of one line."""
SPARE_LINES: Final = 1024
"""Lines between requests, and before the chunks of one; beyond them there has to be data."""
DATA_FOR_LINE: Final = 64
"""Bytes of a body that allow one line more: each takes its time, and a body of tiny chunks would take everybody's."""
_REQUEST: Final = re.compile(rb"[!-~]+ [!-~\x80-\xff]+ HTTP/1\.[01]\r\n")
_HEADER: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*\r\n")
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t -~\x80-\xff]*)?\r\n")
_BLANK: Final = b"\r\n"


def needs_strictness() -> bool:
    """Return True if the parser that is installed is one of those that forgive."""
    major, minor = httptools.__version__.split(".")[:2]
    return (int(major), int(minor)) < (0, 2)


class Misframed(Exception):
    """The request can be read in more than one way."""


class _At(Enum):
    REQUEST = auto()
    HEADERS = auto()
    SIZE = auto()
    """The line before a chunk."""
    CHUNK_END = auto()
    """The line break after one."""
    END = auto()
    """After the last chunk, where trailers could be."""


class Framing:
    """Cuts what comes over a connection at the ends of lines, and refuses those that are not as they must be."""

    def __init__(self) -> None:
        self._at = _At.REQUEST
        self._line = bytearray()
        self._left = 0
        """Bytes of the body, or of its chunk, that are to come."""
        self._spare = SPARE_LINES * DATA_FOR_LINE
        """Bytes of data that lines may still stand for."""

    @property
    def is_between(self) -> bool:
        """True if the last request is complete, and no byte of another one has arrived."""
        return self._at is _At.REQUEST and not self._left and not self._line

    def split(self, data: bytes) -> Iterator[bytes]:
        """The pieces of *data*, each to be parsed before the next one is asked for; raises :class:`Misframed`."""
        position = 0
        while position < len(data):
            if self._left:
                piece = data[position : position + self._left]
                self._left -= len(piece)
            else:
                end = data.find(b"\n", position) + 1
                piece = data[position : end or len(data)]
                self._line += piece
                if len(self._line) > LONGEST_LINE:
                    raise Misframed("a line is too long")
                if end:
                    line = bytes(self._line)
                    self._line.clear()
                    self._check(line)
            position += len(piece)
            yield piece

    def body(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """The parser has seen the end of a head with these *headers*; raises :class:`Misframed`."""
        codings = [value for name, value in headers if name == b"transfer-encoding"]
        lengths = [value for name, value in headers if name == b"content-length"]
        if codings:
            if lengths or len(codings) > 1 or codings[0].lower() != b"chunked":
                raise Misframed("the only way to send a body without its length is one 'Transfer-Encoding: chunked'")
            self._at = _At.SIZE
            return
        if len(lengths) > 1 or not all(length.isdigit() for length in lengths):
            raise Misframed("Content-Length is one number")
        self._at = _At.REQUEST
        self._left = int(lengths[0]) if lengths else 0

    def _check(self, line: bytes) -> None:
        """Go on by one *line*."""
        if self._at is _At.REQUEST:
            # Line breaks between requests are allowed.
            if line == _BLANK:
                self._spend(0)
            else:
                _must_match(_REQUEST, line)
                self._at = _At.HEADERS
                self._spare = SPARE_LINES * DATA_FOR_LINE
        elif self._at is _At.HEADERS:
            if line != _BLANK:
                _must_match(_HEADER, line)
        elif self._at is _At.SIZE:
            self._left = int(_must_match(_SIZE, line).group(1), 16)
            self._spend(self._left)
            self._at = _At.CHUNK_END if self._left else _At.END
        elif line != _BLANK:
            raise Misframed("a chunk is longer than it says, or there are trailers")
        else:
            self._at = _At.SIZE if self._at is _At.CHUNK_END else _At.REQUEST

    def _spend(self, data: int) -> None:
        """One line more, before *data* bytes."""
        self._spare += data - DATA_FOR_LINE
        if self._spare < 0:
            raise Misframed("there are many lines and little data")


def _must_match(pattern: re.Pattern[bytes], line: bytes) -> re.Match[bytes]:
    found = pattern.fullmatch(line)
    if found is None:
        raise Misframed("a line is not as HTTP/1.1 has it")
    return found
