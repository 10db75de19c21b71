# SPDX-License-Identifier: LGPL-2.1-or-later
"""filesystem_edit."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from pydantic import Field

from mcpd.errors import TooLarge
from mcpd.servers.diffs import Change, compose, unified
from mcpd.servers.workstation.call import in_thread
from mcpd.servers.workstation.filesystem import atomic
from mcpd.servers.workstation.filesystem.chunks import read_at
from mcpd.servers.workstation.filesystem.encodings import (
    EditEncoding,
    decode,
    encode,
)
from mcpd.servers.workstation.filesystem.names import shown_name
from mcpd.servers.workstation.filesystem.replacing import (
    MAX_TEXT,
    Replacement,
    replace,
)
from mcpd.servers.workstation.jail import translated
from mcpd.servers.workstation.tool import Answer, Arguments, Result, Tool

if TYPE_CHECKING:
    from mcpd.servers.workstation.call import Call

_MAX_DIFF: Final = 256 * 1024
"""Characters."""


class EditArguments(Arguments):
    """What filesystem_edit takes."""

    path: str = Field(description="A text of up to 8 MiB; absolute, or relative to the first root")
    edits: list[Replacement] = Field(min_length=1, max_length=200, description="Made one after the other; all or none")
    dry_run: bool = Field(default=False, description="Only say what would change")
    encoding: EditEncoding = Field(
        default="auto", description="Of the file; auto: UTF-8, or as its byte order mark says"
    )
    expected_sha256: str | None = Field(
        default=None,
        pattern=atomic.SHA256,
        description="Refuse unless this is the file's SHA-256",
    )


class EditResult(Result):
    """What filesystem_edit says."""

    path: str = Field(description="Absolute")
    changed: bool = Field(description="Whether the file was written, or with dry_run would be")
    diff: str = Field(description="Unified, with the path from the root; empty if nothing changed")
    diff_truncated: bool = Field(description="Whether the diff is cut off")
    replacements: int = Field(description="How many replacements were made")
    added: int = Field(description="Lines added")
    removed: int = Field(description="Lines removed")
    sha256: str = Field(description="Of the file after the edits")


def _edit(call: Call, arguments: EditArguments) -> Answer:
    """All edits or none. The file is replaced at once, and only if nobody has changed it since it was read."""
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
    description="Replace exact pieces of a text file, and show the diff. Each old_text has to be in the file exactly"
    " once, unless replace_all is set, so give enough of the lines around it. \\n also matches CRLF, which stays.",
    arguments=EditArguments,
    result=EditResult,
    run=in_thread(_edit),
    destructive=True,
)
