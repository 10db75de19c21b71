# SPDX-License-Identifier: LGPL-2.1-or-later
"""``filesystem_read`` and ``filesystem_stat``: a file or a part of it, and its metadata."""

from __future__ import annotations

import base64
import ctypes
import grp
import hashlib
import mimetypes
import os
import posixpath
import pwd
import stat
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from urllib.parse import quote

from pydantic import Field

from mcpd.errors import InvalidArgument, TooLarge
from mcpd.servers.workstation.call import in_thread
from mcpd.servers.workstation.filesystem.entries import EntryType, timestamp, type_of
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.filesystem.texts import (
    LONGEST,
    MAX_JSON,
    NotText,
    ReadEncoding,
    TextFile,
    WriteEncoding,
    digest,
    encode,
    form_of,
    read_at,
    too_few,
)
from mcpd.servers.workstation.jail import kind, translated
from mcpd.servers.workstation.tool import Answer, Arguments, Result, Tool

if TYPE_CHECKING:
    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.filesystem.texts import EditEncoding, Form, Piece
    from mcpd.servers.workstation.jail import Place

SNIFFED: Final = 512
"""Bytes from the beginning of a file that determine its type."""
UNKNOWN: Final = "application/octet-stream"
TEXT: Final = "text/plain"

_NAMES: Final = {
    # Python's own table instead of the system's, so that results are the same everywhere.
    **mimetypes.MimeTypes().types_map[True],
    ".bz2": "application/x-bzip2",
    ".flac": "audio/flac",
    ".gz": "application/gzip",
    ".js": "text/javascript",
    ".jsonl": "application/jsonl",
    ".md": "text/markdown",
    ".mjs": "text/javascript",
    ".ogg": "audio/ogg",
    ".toml": "application/toml",
    ".wav": "audio/wav",
    ".webp": "image/webp",
    ".xz": "application/x-xz",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".zst": "application/zstd",
}
_MAGIC: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"fLaC", "audio/flac"),
)
_RIFF: Final = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_OGG_AUDIO: Final = (b"\x01vorbis", b"OpusHead", b"\x7fFLAC", b"Speex   ")
_SHOWN: Final = frozenset({*(kind for _, kind in _MAGIC), *_RIFF.values(), "audio/mpeg", "audio/ogg"})
_TEXTUAL: Final = frozenset(
    {
        "application/json",
        "application/jsonl",
        "application/n-quads",
        "application/n-triples",
        "application/toml",
        "application/trig",
        "application/x-sh",
        "application/xml",
        "application/yaml",
    }
)


def type_of_name(name: str) -> str:
    """Return the media type for a file called *name*, or :data:`UNKNOWN`."""
    return _NAMES.get(posixpath.splitext(name.lower())[1], UNKNOWN)


def type_of_text(name: str) -> str:
    """Return the media type of a text file called *name*."""
    guessed = type_of_name(name)
    is_textual = guessed.startswith("text/") or guessed in _TEXTUAL or guessed.endswith(("+xml", "+json"))
    return guessed if is_textual else TEXT


def type_of_bytes(name: str, head: bytes) -> str:
    """Return the media type of a binary file called *name* that begins with *head*, its first :data:`SNIFFED` bytes.

    Types of images and audio that clients show are determined by *head* alone, whatever the name is.
    """
    for magic, media_type in _MAGIC:
        if head.startswith(magic):
            return media_type
    if head.startswith(b"RIFF") and head[8:12] in _RIFF:
        return _RIFF[head[8:12]]
    if head.startswith(b"OggS"):
        return "audio/ogg" if any(each in head for each in _OGG_AUDIO) else "application/ogg"
    if _is_mp3(head):
        return "audio/mpeg"
    guessed = type_of_name(name)
    if guessed in _SHOWN or type_of_text(name) == guessed:
        return UNKNOWN
    return guessed


def is_image(kind: str) -> bool:
    """Return True if *kind*, from :func:`type_of_bytes`, is a type of image that clients show."""
    return kind in _SHOWN and kind.startswith("image/")


def is_audio(kind: str) -> bool:
    """Return True if *kind*, from :func:`type_of_bytes`, is a type of audio that clients play."""
    return kind in _SHOWN and kind.startswith("audio/")


def _is_mp3(head: bytes) -> bool:
    """Return True for an ID3 tag, or a frame header of MPEG audio, layer III (ISO 11172-3, 2.4.1.3)."""
    if head[:3] == b"ID3" and head[3:4] in {b"\x02", b"\x03", b"\x04"}:
        return True
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:
        return False
    version, bitrate, rate = (head[1] >> 3) & 3, head[2] >> 4, (head[2] >> 2) & 3
    return version != 1 and bitrate not in {0, 15} and rate != 3


Kind: TypeAlias = Literal["text", "image", "audio", "binary"]

DEFAULT_BYTES: Final = 1024 * 1024
MAX_BYTES: Final = 8 * 1024 * 1024
_MAX_RAW: Final = MAX_JSON // 4 * 3
"""Maximum number of bytes whose base64 is not longer than a text may be."""
_MAX_OFFSET: Final = 2**53 - 1
"""Largest integer that every JSON parser reads exactly."""
_LOOKED_AT: Final = 8192
"""Bytes from the beginning that determine whether a file is text."""
_COUNTED: Final = 32 * 1024 * 1024
"""Maximum size in bytes of a file whose lines are all counted."""


class ReadArguments(Arguments):
    """Arguments of filesystem_read."""

    path: str = Field(description="Absolute, or relative to the first root")
    encoding: ReadEncoding = Field(
        default="auto",
        description="auto: text in UTF-8 or as its byte order mark says, images and audio as such, other bytes as"
        " a resource; base64: any bytes, as base64 text",
    )
    start_line: int | None = Field(default=None, ge=1, le=_MAX_OFFSET, description="First line, from 1")
    end_line: int | None = Field(default=None, ge=1, le=_MAX_OFFSET, description="Last line, inclusive")
    offset: int | None = Field(default=None, ge=0, le=_MAX_OFFSET, description="First byte, from 0")
    length: int | None = Field(default=None, ge=1, le=_MAX_OFFSET, description="Number of bytes")
    max_bytes: int = Field(
        default=DEFAULT_BYTES,
        ge=LONGEST,
        le=MAX_BYTES,
        description="Maximum number of bytes to return; text is limited to 5 MiB of JSON",
    )


class ReadResult(Result):
    """Result of filesystem_read."""

    path: str = Field(description="Absolute")
    size: int = Field(description="Size of the whole file in bytes")
    mime_type: str = Field(description="Media type of the file")
    kind: Kind = Field(description="What the content is")
    encoding: WriteEncoding | None = Field(
        default=None, description="Encoding of the text in the file; base64: text contains its bytes"
    )
    byte_order_mark: bool | None = Field(
        default=None, description="True if the file begins with one; it is not part of the text"
    )
    text: str | None = Field(default=None, description="The same as in content")
    offset: int | None = Field(default=None, description="First byte of what was read")
    start_line: int | None = Field(default=None, description="First line of the text, if known")
    end_line: int | None = Field(default=None, description="Last line of the text, if known")
    total_lines: int | None = Field(default=None, description="Lines of the whole file, if known")
    truncated: bool = Field(description="True if the result was truncated because it was too large")
    next_offset: int | None = Field(default=None, description="The offset at which to continue")
    next_line: int | None = Field(default=None, description="The start_line at which to continue")
    sha256: str | None = Field(default=None, description="SHA-256 of the file, if all of it was read")


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
    """A part of a file as bytes."""

    data: bytes
    offset: int
    truncated: bool
    next_offset: int | None


class _Reading:
    """Reads one file."""

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
        """Return the requested bytes as text. Raises :class:`NotText`."""
        form, file = self._text_file(encoding)
        offset = self._arguments.offset or 0
        length = self._arguments.length or _MAX_OFFSET
        most = min(length, self._arguments.max_bytes)
        piece = file.piece(offset, most, whole_lines=length > most)
        begins = offset <= len(form.mark)
        truncated = (length > most or piece.is_full) and not piece.is_last
        return self._answer(form, file, piece, first_line=1 if begins else None, truncated=truncated)

    def lines(self, encoding: EditEncoding) -> Answer:
        """Return the requested lines. Raises :class:`NotText`."""
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
        """Return the requested bytes as base64 in a text block, in the form that ``filesystem_write`` accepts."""
        piece = self._bytes(_MAX_RAW)
        text = base64.b64encode(piece.data).decode()
        return Answer(
            self._binary_result(self._type(), "binary", piece, text=text, encoding="base64"),
            ({"type": "text", "text": text}, *self._cut(piece)),
        )

    def media(self) -> Answer:
        """Return the whole binary file as an image, as audio, or as a resource."""
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
        """Return the requested bytes as a resource of the type *kind*."""
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
            # A file that begins as binary is treated as binary throughout.
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
    """Return a note for clients that show only the text of a result."""
    return {"type": "text", "text": f"[cut {where}; go on with {how}]"}


READ: Final = Tool(
    name="filesystem_read",
    title="Read a file",
    description="Read a file, or a part of it: lines (start_line, end_line) or bytes (offset, length). To continue"
    " in a long file, pass next_line or next_offset.",
    arguments=ReadArguments,
    result=ReadResult,
    run=in_thread(_read),
    read_only=True,
    idempotent=True,
)


_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_EMPTY_PATH: Final = 0x1000
_BTIME: Final = 0x800
_STATX_SIZE: Final = 256
_STATX_BTIME_AT: Final = 80


class StatArguments(Arguments):
    """Arguments of filesystem_stat."""

    path: str = Field(description="Absolute, or relative to the first root")
    follow: bool = Field(default=False, description="Follow a symlink")
    digest: bool = Field(default=False, description="Also the SHA-256 of a file")


class StatResult(Result):
    """Result of filesystem_stat."""

    path: str = Field(description="Absolute")
    type: EntryType = Field(description="What it is")
    size: int = Field(description="Bytes")
    mode: str = Field(description="In octal: 0644")
    permissions: str = Field(description="In letters: rw-r--r--")
    uid: int = Field(description="Of the owner")
    gid: int = Field(description="Of the group")
    owner: str | None = Field(default=None, description="Name, if known")
    group: str | None = Field(default=None, description="Name, if known")
    modified: str = Field(description="When the content changed: RFC 3339, UTC")
    accessed: str = Field(description="When it was last read, as far as recorded")
    changed: str = Field(description="When content or metadata changed")
    created: str | None = Field(default=None, description="When it was created, if known")
    hard_links: int = Field(description="Number of its names")
    inode: int = Field(description="Its number in the file system")
    device: str = Field(description="The file system, as major:minor")
    target: str | None = Field(default=None, description="Where a symlink points")
    mime_type: str | None = Field(default=None, description="Of a file, by its name")
    sha256: str | None = Field(default=None, description="If asked for with digest")


def _stat(call: Call, arguments: StatArguments) -> Answer:
    place = call.jail.place(arguments.path)
    flags = os.O_PATH if arguments.follow else os.O_PATH | os.O_NOFOLLOW
    with call.jail.opened(place, flags) as fd, translated(place, "looking at"):
        status = os.fstat(fd)
        if not arguments.digest:
            return Answer(_result(place, fd, status))
        if stat.S_ISLNK(status.st_mode):
            raise InvalidArgument(f"{place.shown} is {kind(status.st_mode)}, which has no digest; set follow as well")
    # Use the status of the file that was read, which may have replaced the one examined before.
    with call.jail.file(place) as fd, translated(place, "reading"):
        sha256 = digest(call, fd)
        return Answer(_result(place, fd, os.fstat(fd), sha256))


def _result(place: Place, fd: int, status: os.stat_result, sha256: str | None = None) -> StatResult:
    """Return the metadata of *fd*. Raises OSError."""
    found = type_of(status.st_mode)
    mime_type = type_of_name(place.relative.rpartition("/")[2]) if found == "file" else UNKNOWN
    return StatResult(
        path=shown_name(place.path),
        type=found,
        size=status.st_size,
        mode=f"{stat.S_IMODE(status.st_mode):04o}",
        permissions=stat.filemode(status.st_mode)[1:],
        uid=status.st_uid,
        gid=status.st_gid,
        owner=_owner(status.st_uid),
        group=_group(status.st_gid),
        modified=timestamp(status.st_mtime_ns),
        accessed=timestamp(status.st_atime_ns),
        changed=timestamp(status.st_ctime_ns),
        created=_created(fd),
        hard_links=status.st_nlink,
        inode=status.st_ino,
        device=f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}",
        target=shown_name(os.readlink("", dir_fd=fd)) if found == "symlink" else None,
        mime_type=None if mime_type == UNKNOWN else mime_type,
        sha256=sha256,
    )


def _owner(number: int) -> str | None:
    try:
        return shown_name(pwd.getpwuid(number).pw_name)
    except KeyError:
        return None


def _group(number: int) -> str | None:
    try:
        return shown_name(grp.getgrgid(number).gr_name)
    except KeyError:
        return None


def _created(fd: int) -> str | None:
    """Return the creation time of *fd*, by statx(2), which Python lacks; None if unknown."""
    answer = ctypes.create_string_buffer(_STATX_SIZE)
    if _LIBC.statx(fd, b"", _EMPTY_PATH, _BTIME, answer) != 0:
        return None
    known = struct.unpack_from("=I", answer, 0)[0]
    if not known & _BTIME:
        return None
    seconds, nanoseconds = struct.unpack_from("=qI", answer, _STATX_BTIME_AT)
    return timestamp(seconds * 1_000_000_000 + nanoseconds)


STAT: Final = Tool(
    name="filesystem_stat",
    title="Look at a file",
    description="Show the metadata of a path: type, size, permissions, owner, times, the target of a symlink, and"
    " with digest the SHA-256 of a file.",
    arguments=StatArguments,
    result=StatResult,
    run=in_thread(_stat),
    read_only=True,
    idempotent=True,
)
