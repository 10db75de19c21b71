# SPDX-License-Identifier: LGPL-2.1-or-later
"""filesystem_write."""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from pydantic import Field

from mcpd.errors import NotAuthorized, NotFound, TooLarge
from mcpd.servers.workstation.call import in_thread
from mcpd.servers.workstation.filesystem import atomic
from mcpd.servers.workstation.filesystem.chunks import CHUNK, digest
from mcpd.servers.workstation.filesystem.encodings import (
    LONGEST,
    Form,
    WriteEncoding,
    bytes_of,
    encode,
    form_of,
)
from mcpd.servers.workstation.filesystem.making import make_directories
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.jail import HERE, Place, translated
from mcpd.servers.workstation.tool import Answer, Arguments, Result, Tool

if TYPE_CHECKING:
    from mcpd.servers.workstation.call import Call

MAX_BYTES: Final = 8 * 1024 * 1024
"""Bytes that one call writes: in base64 they fit in a message on stdio, which may have 16 MiB."""
_DIGESTED: Final = 32 * 1024 * 1024
"""Bytes of a file whose SHA-256 is told although only its end was written."""
_MAX_CONTENT: Final = MAX_BYTES // 3 * 4 + 4
"""Characters: as many as base64 needs."""


class WriteArguments(Arguments):
    """What filesystem_write takes."""

    path: str = Field(description="Absolute, or relative to the first root")
    content: str = Field(max_length=_MAX_CONTENT, description="The text, or the bytes in base64; up to 8 MiB")
    encoding: WriteEncoding = Field(
        default="utf-8",
        description="Of the text, or base64; utf-16 and utf-32 get a byte order mark",
    )
    create_parents: bool = Field(default=False, description="Create missing directories above it")
    overwrite: bool = Field(default=True, description="false: refuse if the file is there")
    append: bool = Field(default=False, description="Add to the end of the file, whatever overwrite says")
    executable: bool | None = Field(default=None, description="Set or clear the permission to execute")
    expected_sha256: str | None = Field(
        default=None,
        pattern=atomic.SHA256,
        description="Refuse unless this is the file's SHA-256",
    )


class WriteResult(Result):
    """What filesystem_write says."""

    path: str = Field(description="Absolute")
    size: int = Field(description="Bytes of the file now")
    created: bool = Field(description="Whether it was not there before")
    sha256: str | None = Field(
        default=None, description="Of the whole file; left out after appending if that is over 32 MiB"
    )


def _write(call: Call, arguments: WriteArguments) -> Answer:
    """Replace a file at once, or append to it in place.

    To append is not to rename: a program that has the file open goes on writing to it, as to a log, and none of what
    it writes is lost. If the disk is full meanwhile, the file is cut back to what it held.
    """
    data = bytes_of(arguments.content, arguments.encoding)
    if len(data) > MAX_BYTES:
        raise TooLarge(
            f"the content has {len(data)} bytes; at most {MAX_BYTES} can be written at once, so append parts"
        )
    place = call.jail.place(arguments.path)
    if arguments.create_parents and place.relative != HERE:
        above = place.relative.rpartition("/")[0]
        make_directories(call, Place(place.root, above or HERE), parents=True)
    with ExitStack() as stack:
        try:
            found = stack.enter_context(atomic.target(call, place))
        except NotFound as error:
            hint = "" if arguments.create_parents else "; create_parents makes missing directories"
            raise NotFound(f"{error.message}{hint}") from None
        if arguments.expected_sha256 is not None:
            atomic.check_digest(call, found, arguments.expected_sha256)
        if arguments.append and found.status is not None:
            return Answer(_append(call, found, arguments))
        overwrite = arguments.overwrite and not arguments.append
        atomic.put(call, found, data, executable=arguments.executable, overwrite=overwrite)
        return Answer(
            WriteResult(
                path=shown_name(place.path),
                size=len(data),
                created=found.status is None,
                sha256=hashlib.sha256(data).hexdigest(),
            )
        )


def _append(call: Call, found: atomic.Target, arguments: WriteArguments) -> WriteResult:
    place = found.place
    atomic.check_writable(found)
    with atomic.opened_at(found, os.O_RDWR | os.O_APPEND) as fd:
        status = os.fstat(fd)
        if arguments.expected_sha256 is not None and atomic.differs(found.present, status):
            raise atomic.changed(place)
        if status.st_nlink > 1:
            raise NotAuthorized(
                f"{place.shown} has {status.st_nlink} names, and others may lie outside the roots; nothing is appended"
            )
        with translated(place, "writing"):
            _write_on(call, fd, _continued(fd, arguments))
            if arguments.executable is not None:
                mode = stat.S_IMODE(status.st_mode) & 0o777
                os.fchmod(fd, atomic.with_execute(mode, arguments.executable))
            size = os.fstat(fd).st_size
            sha256 = digest(call, fd) if size <= _DIGESTED else None
    return WriteResult(path=shown_name(place.path), size=size, created=False, sha256=sha256)


def _continued(fd: int, arguments: WriteArguments) -> bytes:
    """The content as it goes on in a file: in its byte order, with a byte order mark only at the beginning."""
    if arguments.encoding == "base64" or not (head := os.pread(fd, LONGEST, 0)):
        return bytes_of(arguments.content, arguments.encoding)
    form = form_of(head, arguments.encoding)
    return encode(arguments.content, Form(form.encoding, form.codec))


def _write_on(call: Call, fd: int, data: bytes) -> None:
    """Append *data* to *fd*; if that fails, make it as long as it was, unless others have written to it meanwhile."""
    before = os.fstat(fd).st_size
    written = 0
    try:
        while written < len(data):
            call.check()
            written += os.write(fd, memoryview(data)[written : written + CHUNK])
        os.fsync(fd)
    except BaseException:
        if os.fstat(fd).st_size == before + written:
            os.ftruncate(fd, before)
        raise


WRITE: Final = Tool(
    name="filesystem_write",
    title="Write a file",
    description="Create a file, replace all it holds, or append to it. To change parts of a file use filesystem_edit.",
    arguments=WriteArguments,
    result=WriteResult,
    run=in_thread(_write),
    destructive=True,
)
