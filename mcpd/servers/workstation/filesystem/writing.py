# SPDX-License-Identifier: LGPL-2.1-or-later
"""``filesystem_write``, ``filesystem_edit`` and ``filesystem_mkdir``."""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import ExitStack
from difflib import SequenceMatcher
from itertools import islice
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict, Field

from mcpd.errors import InvalidArgument, LimitExceeded, NotAuthorized, NotFound, TooLarge
from mcpd.model import printable
from mcpd.servers.diffs import Change, compose, unified
from mcpd.servers.workstation.call import in_thread
from mcpd.servers.workstation.filesystem import atomic
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.filesystem.texts import (
    CHUNK,
    LONGEST,
    EditEncoding,
    Form,
    WriteEncoding,
    bytes_of,
    decode,
    digest,
    encode,
    form_of,
    read_at,
)
from mcpd.servers.workstation.jail import HERE, Place, translated
from mcpd.servers.workstation.tool import Answer, Arguments, Result, Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mcpd.servers.workstation.call import Call


class MkdirArguments(Arguments):
    """Arguments of filesystem_mkdir."""

    path: str = Field(description="Absolute, or relative to the first root")
    parents: bool = Field(default=True, description="Also create missing directories above it")


class MkdirResult(Result):
    """Result of filesystem_mkdir."""

    path: str = Field(description="Absolute")
    created: bool = Field(description="False if it already existed")
    directories: list[str] = Field(description="All that were created, topmost first")


def make_directories(call: Call, place: Place, *, parents: bool) -> list[Place]:
    """Create the directory *place*, with *parents* those above it; return those that were missing, topmost first.

    Raises :class:`~mcpd.errors.NotFound` for a missing parent without *parents*, and
    :class:`~mcpd.errors.InvalidArgument` if a part of the path exists but is not a directory.
    """
    made = []
    if place.relative != HERE:
        names = place.relative.split("/")
        for depth in range(1 if parents else len(names), len(names) + 1):
            call.check()
            each = Place(place.root, "/".join(names[:depth]))
            with call.jail.parent(each) as (directory, name), translated(each, "creating"):
                try:
                    os.mkdir(name, dir_fd=directory)
                except FileExistsError:
                    continue
                made.append(each)
    with call.jail.opened(place, os.O_PATH | os.O_DIRECTORY):
        return made


def _mkdir(call: Call, arguments: MkdirArguments) -> Answer:
    place = call.jail.place(arguments.path)
    made = make_directories(call, place, parents=arguments.parents)
    return Answer(
        MkdirResult(
            path=shown_name(place.path),
            created=bool(made) and made[-1] == place,
            directories=[shown_name(each.path) for each in made],
        )
    )


MKDIR: Final = Tool(
    name="filesystem_mkdir",
    title="Create a directory",
    description="Create a directory and its missing parents. Succeeds if it already exists.",
    arguments=MkdirArguments,
    result=MkdirResult,
    run=in_thread(_mkdir),
    idempotent=True,
)


MAX_BYTES: Final = 8 * 1024 * 1024
"""Maximum number of bytes in one call: in base64 they fit in a message on stdio, which is limited to 16 MiB."""
_DIGESTED: Final = 32 * 1024 * 1024
"""Maximum size in bytes of a file whose SHA-256 is reported after only its end was written."""
_MAX_CONTENT: Final = MAX_BYTES // 3 * 4 + 4
"""Maximum length of the content in characters, for base64."""


class WriteArguments(Arguments):
    """Arguments of filesystem_write."""

    path: str = Field(description="Absolute, or relative to the first root")
    content: str = Field(max_length=_MAX_CONTENT, description="The text, or the bytes in base64; up to 8 MiB")
    encoding: WriteEncoding = Field(
        default="utf-8",
        description="Of the text, or base64; utf-16 and utf-32 get a byte order mark",
    )
    create_parents: bool = Field(default=False, description="Create missing directories above it")
    overwrite: bool = Field(default=True, description="false: fail if the file exists")
    append: bool = Field(default=False, description="Append to the file, regardless of overwrite")
    executable: bool | None = Field(default=None, description="Set or clear the permission to execute")
    expected_sha256: str | None = Field(
        default=None,
        pattern=atomic.SHA256,
        description="Fail unless this is the file's SHA-256",
    )


class WriteResult(Result):
    """Result of filesystem_write."""

    path: str = Field(description="Absolute")
    size: int = Field(description="Bytes of the file now")
    created: bool = Field(description="True if it did not exist before")
    sha256: str | None = Field(
        default=None, description="SHA-256 of the whole file; omitted after appending to a file of more than 32 MiB"
    )


def _write(call: Call, arguments: WriteArguments) -> Answer:
    """Replace a file atomically, or append to it in place.

    Appending does not rename: a program that has the file open, such as a log, continues to write to it, and nothing
    that it writes is lost. If the disk is full, the file is truncated to its old size.
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
    """Return the content to append: in the file's byte order, with a byte order mark only if the file is empty."""
    if arguments.encoding == "base64" or not (head := os.pread(fd, LONGEST, 0)):
        return bytes_of(arguments.content, arguments.encoding)
    form = form_of(head, arguments.encoding)
    return encode(arguments.content, Form(form.encoding, form.codec))


def _write_on(call: Call, fd: int, data: bytes) -> None:
    """Append *data* to *fd*; on an error, truncate it to its old size, unless others have written to it meanwhile."""
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
    description="Create a file, replace its content, or append to it. To change parts of a file, use filesystem_edit.",
    arguments=WriteArguments,
    result=WriteResult,
    run=in_thread(_write),
    destructive=True,
)


MAX_TEXT: Final = 8 * 1024 * 1024
"""Maximum size of a file to edit, before and after, in bytes and in characters."""
_MAX_PIECE: Final = 1024 * 1024
_MAX_REPLACEMENTS: Final = 100_000
_COUNTED: Final = 1000
_LINES_NAMED: Final = 5
_CHECKED: Final = 65536
"""Lines between two checks whether the call is over."""
_LINES_COMPARED: Final = 2000
_WIDTH: Final = 120
"""Characters of a line that are compared."""
_SIMILAR: Final = 0.5


class Replacement(BaseModel):
    """One edit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    old_text: str = Field(
        min_length=1, max_length=_MAX_PIECE, description="The exact existing text, including whitespace"
    )
    new_text: str = Field(max_length=_MAX_PIECE, description="Its replacement; may be empty")
    replace_all: bool = Field(default=False, description="Replace every occurrence")


def replace(
    text: str, edit: Replacement, shown: str, *, taken: int = 0, check: Callable[[], None] = lambda: None
) -> tuple[str, list[Change]]:
    r"""Return *text* after *edit*, and the changes; *shown* is its name in messages, *taken* the replacements so far.

    Where *text* has CRLF, ``\n`` in ``old_text`` matches that too, and ``new_text`` gets the line ends of what it
    replaces, or those of most lines. An edit that contains ``\r`` is taken literally.

    Raises :class:`~mcpd.errors.NotFound` if ``old_text`` does not occur, :class:`~mcpd.errors.InvalidArgument` if it
    occurs more often than permitted, :class:`~mcpd.errors.LimitExceeded` for too many replacements and
    :class:`~mcpd.errors.TooLarge` for a result that is too long.
    """
    variants = _variants(text, edit)
    if not edit.replace_all:
        found = list(islice(_matches(text, variants, overlapping=True), _LINES_NAMED + 1))
        if len(found) > 1:
            count = sum(1 for _ in islice(_matches(text, variants, overlapping=False), _COUNTED + 1))
            raise _ambiguous(text, [start for start, _, _ in found], max(count, 2), shown)
    else:
        room = _MAX_REPLACEMENTS - taken
        found = list(islice(_matches(text, variants, overlapping=False), room + 1))
        if len(found) > room:
            raise LimitExceeded(
                f"{shown}: more than {_MAX_REPLACEMENTS} replacements in all; write the file anew instead"
            )
    check()
    if not found:
        raise _missing(text, edit.old_text, shown, check)
    if len(text) + sum(len(new) - len(old) for _, old, new in found) > MAX_TEXT:
        raise TooLarge(f"{shown} would make the text longer than {MAX_TEXT} characters")
    return _made(text, found)


def _variants(text: str, edit: Replacement) -> list[tuple[str, str]]:
    """Return the pairs of old and new text for each kind of line ends in *text*."""
    old, new = edit.old_text, edit.new_text
    windows = text.count("\r\n")
    if not windows or "\r" in old or ("\n" not in old and "\r" in new):
        return [(old, new)]
    unix = text.count("\n") - windows
    crlf = new if "\r" in new else new.replace("\n", "\r\n")
    if "\n" not in old:
        return [(old, crlf if windows >= unix else new)]
    variants = [(old.replace("\n", "\r\n"), crlf)]
    return variants if not unix else [*variants, (old, new)]


def _matches(text: str, variants: list[tuple[str, str]], *, overlapping: bool) -> Iterator[tuple[int, str, str]]:
    """Yield the position of each match in *text*, in order, with its old and new text."""
    places = [_find(text, old, 0) for old, _ in variants]
    while any(place >= 0 for place in places):
        place, number = min((place, number) for number, place in enumerate(places) if place >= 0)
        old, new = variants[number]
        yield place, old, new
        behind = place + 1 if overlapping else place + len(old)
        places = [_find(text, variants[each][0], behind) if 0 <= at < behind else at for each, at in enumerate(places)]


def _find(text: str, piece: str, start: int) -> int:
    """Return the index of *piece*, or -1; one that begins with a newline, but has no CR, does not match within CRLF."""
    place = text.find(piece, start)
    while place > 0 and text[place - 1] == "\r" and piece[0] == "\n" and "\r" not in piece:
        place = text.find(piece, place + 1)
    return place


def _made(text: str, found: list[tuple[int, str, str]]) -> tuple[str, list[Change]]:
    parts: list[str] = []
    changes: list[Change] = []
    behind = shift = 0
    for start, old, new in found:
        parts += (text[behind:start], new)
        behind = start + len(old)
        changes.append(Change(start, behind, start + shift, start + shift + len(new)))
        shift += len(new) - len(old)
    return "".join([*parts, text[behind:]]), changes


def _ambiguous(text: str, starts: list[int], count: int, shown: str) -> InvalidArgument:
    """Return the error for an old_text that occurs *count* times, first at *starts*."""
    lines = ", ".join(str(text.count("\n", 0, start) + 1) for start in starts[:_LINES_NAMED])
    times = f"more than {_COUNTED} times" if count > _COUNTED else f"{count} times"
    return InvalidArgument(
        f"{shown}: old_text occurs {times}, in the lines {lines}{'…' * (len(starts) > _LINES_NAMED)}; add what is"
        " around the one you mean, or set replace_all"
    )


def _missing(text: str, old: str, shown: str, check: Callable[[], None]) -> NotFound:
    """Return the error for an old_text that does not occur, with the line most similar to its first one."""
    wanted = next((line.strip() for line in old.split("\n") if line.strip()), "")[:_WIDTH]
    best = _nearest(text, wanted, check) if wanted else None
    if best is None:
        return NotFound(f"{shown}: old_text does not occur, nor anything like it; read the file again")
    number, line = best
    how = (
        "has its first line, but other white space or other lines behind it" if line.strip() == wanted else "is nearest"
    )
    return NotFound(f"{shown}: old_text does not occur; line {number} {how}: '{printable(line)}'")


def _nearest(text: str, wanted: str, check: Callable[[], None]) -> tuple[int, str] | None:
    """Return the number and the beginning of the line most similar to *wanted*, or None if none is similar."""
    best: tuple[int, str] | None = None
    matcher = SequenceMatcher(None, "", wanted, autojunk=False)
    ratio = _SIMILAR
    for number, line in _candidates(text, wanted, check):
        check()
        stripped = line.strip()
        if stripped == wanted:
            return number, line
        matcher.set_seq1(stripped)
        if matcher.real_quick_ratio() > ratio and matcher.quick_ratio() > ratio and (found := matcher.ratio()) > ratio:
            ratio, best = found, (number, line)
    return best


def _candidates(text: str, wanted: str, check: Callable[[], None]) -> list[tuple[int, str]]:
    """Return the lines that may be similar to *wanted*: those with its longest word, or the first ones."""
    word = max(wanted.split(), key=len)
    near: list[tuple[int, str]] = []
    first: list[tuple[int, str]] = []
    start = number = 0
    while start <= len(text) and len(near) < _LINES_COMPARED:
        number += 1
        if not number % _CHECKED:
            check()
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        line = text[start : min(end, start + _WIDTH)].rstrip("\r")
        if word in line:
            near.append((number, line))
        elif len(first) < _LINES_COMPARED:
            first.append((number, line))
        start = end + 1
    return near or first


_MAX_DIFF: Final = 256 * 1024
"""Maximum length of the diff in characters."""


class EditArguments(Arguments):
    """Arguments of filesystem_edit."""

    path: str = Field(description="A text file of up to 8 MiB; absolute, or relative to the first root")
    edits: list[Replacement] = Field(min_length=1, max_length=200, description="Applied in this order, all or none")
    dry_run: bool = Field(default=False, description="Only show what would change")
    encoding: EditEncoding = Field(
        default="auto", description="Encoding of the file; auto: UTF-8, or as its byte order mark says"
    )
    expected_sha256: str | None = Field(
        default=None,
        pattern=atomic.SHA256,
        description="Fail unless this is the file's SHA-256",
    )


class EditResult(Result):
    """Result of filesystem_edit."""

    path: str = Field(description="Absolute")
    changed: bool = Field(description="True if the file was changed; with dry_run, if it would be")
    diff: str = Field(description="Unified, with the path from the root; empty if nothing changed")
    diff_truncated: bool = Field(description="True if the diff is cut off")
    replacements: int = Field(description="Number of replacements")
    added: int = Field(description="Lines added")
    removed: int = Field(description="Lines removed")
    sha256: str = Field(description="SHA-256 of the file after the edits")


def _edit(call: Call, arguments: EditArguments) -> Answer:
    """Apply all edits or none; replace the file atomically, and only if it was not changed since it was read."""
    place = call.jail.place(arguments.path)
    with atomic.target(call, place) as found:
        data = _read(call, found)
        if arguments.expected_sha256 is not None:
            atomic.compare_digests(place, hashlib.sha256(data).hexdigest(), arguments.expected_sha256)
        old, form = decode(data, arguments.encoding, place.shown)
        new, changes, count = old, list[Change](), 0
        for number, edit in enumerate(arguments.edits, 1):
            new, made = replace(new, edit, f"{place.shown}: edit {number}", taken=count, check=call.check)
            changes = compose(changes, made)
            count += len(made)
        written = encode(new, form)
        if len(written) > MAX_TEXT:
            raise TooLarge(f"{place.shown} would have {len(written)} bytes after the edits; at most {MAX_TEXT} are")
        diff = unified(old, new, changes, place.relative, most=_MAX_DIFF, check=call.check)
        if not arguments.dry_run and written != data:
            atomic.put(call, found, written)
    result = EditResult(
        path=shown_name(place.path),
        changed=written != data,
        diff=diff.text,
        diff_truncated=diff.truncated,
        replacements=count,
        added=diff.added,
        removed=diff.removed,
        sha256=hashlib.sha256(written).hexdigest(),
    )
    text = diff.text + "\n(the diff goes on)\n" * diff.truncated or f"{place.shown}: the edits change nothing\n"
    return Answer(result, ({"type": "text", "text": text},))


def _read(call: Call, found: atomic.Target) -> bytes:
    place = found.place
    with atomic.readable(call, found) as fd, translated(place, "reading"):
        data = read_at(call, fd, 0, MAX_TEXT + 1)
    if len(data) > MAX_TEXT:
        raise TooLarge(f"{place.shown} is larger than {MAX_TEXT} bytes, which is all that can be edited")
    return data


EDIT: Final = Tool(
    name="filesystem_edit",
    title="Edit a file",
    description="Replace exact pieces of a text file, and show the diff. Each old_text must occur exactly once,"
    " unless replace_all is set, so include enough of the surrounding lines. \\n also matches CRLF, which is kept.",
    arguments=EditArguments,
    result=EditResult,
    run=in_thread(_edit),
    destructive=True,
)
