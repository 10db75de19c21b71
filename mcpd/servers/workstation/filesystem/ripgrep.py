# SPDX-License-Identifier: LGPL-2.1-or-later
"""Search with ripgrep: its arguments, its output, and verification of the files that it names.

ripgrep opens files by path. A file could be replaced by a symlink or a hard link meanwhile, so its output is only
accepted if a descriptor opened through the jail has the same text at the same offset.
"""

from __future__ import annotations

import base64
import codecs
import json
import os
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Self

from mcpd.errors import McpdError
from mcpd.servers.workstation.filesystem.scanning import MAX_WHOLE, per_line
from mcpd.servers.workstation.filesystem.texts import read_at
from mcpd.servers.workstation.filesystem.walking import MAX_DEPTH, simple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.filesystem.matches import Matches
    from mcpd.servers.workstation.filesystem.walking import Query
    from mcpd.servers.workstation.jail import Place

_UTF_16: Final = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


class Sources:
    """The files in which ripgrep has found matches, one at a time; a context manager that closes the last."""

    def __init__(self, call: Call, directory: Place) -> None:
        """Open files by paths relative to *directory*."""
        self._call = call
        self._directory = directory
        self._open = ExitStack()
        self._fd = -1
        self._start = 0
        """Offset of the text, after a byte order mark."""
        self._text: bytes | None = None
        """The whole text in UTF-8, of a file in another encoding."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def begin(self, path: str) -> bool:
        """Open the next file, *path*; return False if it may not be read."""
        self._open.close()
        self._fd, self._text = -1, None
        try:
            self._fd = self._open.enter_context(self._call.jail.file(self._directory.child(path)))
            head = os.pread(self._fd, len(codecs.BOM_UTF8), 0)
            self._start = len(head) if head == codecs.BOM_UTF8 else 0
            codec = _UTF_16.get(head[:2])
            if codec is not None:
                self._text = read_at(self._call, self._fd, 2, MAX_WHOLE).decode(codec, "replace").encode()
        except (McpdError, OSError):
            self._open.close()
            self._fd = -1
        return self._fd >= 0

    def has(self, offset: int, data: bytes) -> bool:
        """Return True if the file has *data* at *offset*, counted like ripgrep: in UTF-8, without byte order mark."""
        if self._text is not None:
            return self._text[offset : offset + len(data)] == data
        try:
            return os.pread(self._fd, len(data), self._start + offset) == data
        except OSError:
            return False


MOST_EVENT: Final = 1024 * 1024
"""Maximum size of an event of ripgrep in bytes; of longer lines only the beginning is shown."""
_START: Final = b'{"type":"'
_NUMBER: Final = re.compile(rb'[}],"line_number":(\d+),"absolute_offset":(\d+),')
_OVERLAP: Final = 128
_HEAD: Final = 1 << 16
_TEXT: Final = re.compile(rb'"lines":\{"(text|bytes)":"((?:[^"\\]|\\u[0-9a-f]{4}|\\[^u])*)')


def started(query: Query) -> tuple[tuple[str, ...], bytes]:
    """Return the arguments and the stdin of the command for *query*.

    It may find more than *query* asks for, because of globs, ``hidden`` and hard links: :class:`.matches.Matches`
    filters that.
    """
    argv = [
        "rg",
        "--json",
        "--no-config",
        "--no-messages",
        "--crlf",
        "--no-mmap",
        "--sort=path",
        f"--max-depth={MAX_DEPTH}",
        "--no-require-git",
        "--no-ignore-global",
        "--no-ignore-exclude",
        "--no-ignore-dot",
        "--glob=!.git",
        "--ignore-case" if query.ignore_case else "--case-sensitive",
        f"--context={query.context}",
        f"--max-filesize={query.max_size}",
    ]
    argv += ["--fixed-strings"] * query.literal + ["--hidden"] * query.hidden + ["--no-ignore"] * query.ignored
    if query.multiline:
        argv.append("--multiline")
    elif query.max_per_file is not None:
        argv.append(f"--max-count={query.max_per_file}")
    argv += [f"--glob=!{each}" for glob in query.exclude for each in simple([glob]) or ()]
    included = simple(query.include)
    rules = ""
    if included:
        # As --glob they would include files that .gitignore excludes; an ignore file does not.
        argv.append("--ignore-file=/dev/stdin")
        wanted = "".join(f"!{each}{'**' * each.endswith('/')}\n" for each in included)
        rules = f"*\n!*/\n{wanted}{'' if query.hidden else '.*'}\n"
    argv += [f"--regexp={query.pattern}", "--", f"./{query.only}" if query.only else "."]
    return tuple(argv), rules.encode()


def complaint(stderr: bytes) -> str:
    """Return the last line of ripgrep's error message about a pattern; the lines before it underline the position."""
    lines = stderr.decode(errors="replace").strip().split("\n")
    return lines[-1].removeprefix("error: ")


class Events:
    """Parses the output of ``rg --json``, in which a long line comes in pieces.

    A file whose text differs from that in *sources* was replaced meanwhile, and its further matches are ignored.
    """

    def __init__(self, matches: Matches, sources: Sources, *, multiline: bool) -> None:
        self._matches = matches
        self._sources = sources
        self._multiline = multiline
        self._pieces = b""
        self._long = False

    def take(self, piece: bytes) -> None:
        """Parse a line, or a piece of one."""
        # In a JSON string every quote has a backslash, so this is the beginning of an event.
        if piece.startswith(_START):
            self._pieces, self._long = b"", False
        if self._long:
            self._number(piece)
            return
        self._pieces += piece
        if len(self._pieces) > MOST_EVENT:
            self._long = True
            self._number(b"")
        elif self._pieces.endswith(b"}}") or self._pieces.endswith(b'"}'):
            self._whole()

    def _whole(self) -> None:
        try:
            event: dict[str, Any] = json.loads(self._pieces)
        except ValueError:
            # The text of a line ends like an event; its rest follows.
            return
        self._pieces = b""
        data = event["data"]
        if event["type"] == "begin":
            self._matches.begin(os.fsdecode(_raw(data["path"])).removeprefix("./"))
        elif event["type"] == "end":
            self._matches.end(binary=data["binary_offset"] is not None)
        elif event["type"] not in {"match", "context"} or not self._matches.listens:
            return
        elif not self._sources.has(data["absolute_offset"], raw := _raw(data["lines"])):
            self._matches.leave()
        elif event["type"] == "context":
            text = raw.decode(errors="replace")
            for at, line in enumerate(text.removesuffix("\n").split("\n")):
                self._matches.line(data["line_number"] + at, line.removesuffix("\r"), match=False)
        else:
            self._match(data, raw)

    def _match(self, data: dict[str, Any], raw: bytes) -> None:
        # ripgrep gives no position for an empty match at the end of a file without final newline, such as of "$".
        submatches = data["submatches"] or [{"start": len(raw), "end": len(raw)}]
        if not self._multiline:
            submatches = submatches[:1]
        text = raw.decode(errors="replace")
        for number, column, lines in per_line(text, data["line_number"], _spans(raw, submatches)):
            self._matches.line(number, lines, column=column, match=True)

    def _number(self, piece: bytes) -> None:
        """Find the number of a line that is too long; it follows the text."""
        self._pieces += piece
        found = _NUMBER.search(self._pieces, max(0, len(self._pieces) - len(piece) - _OVERLAP) if piece else 0)
        if found is None:
            self._pieces = self._pieces[:_HEAD] + self._pieces[-_OVERLAP:]
            return
        start = _TEXT.search(self._pieces[:_HEAD])
        if start is not None:
            raw = start[2][: -(len(start[2]) % 4) or None] if start[1] == b"bytes" else start[2]
            value = json.loads(f'"{raw.decode(errors="ignore")}"')
            head = _raw({start[1].decode(): value})
            if self._matches.listens and not self._sources.has(int(found[2]), head):
                self._matches.leave()
            text = head.decode(errors="replace")
            match = self._pieces.startswith(b'{"type":"match"')
            self._matches.line(int(found[1]), text.split("\n", 1)[0], match=match)
            # In multiline mode an event covers consecutive matching lines, of which this is the first.
            if match and self._multiline:
                self._matches.cut()
        self._pieces = b""


def _raw(value: dict[str, str]) -> bytes:
    """Return the bytes of a JSON value of ripgrep, which is text if they are UTF-8, otherwise base64."""
    return value["text"].encode() if "text" in value else base64.b64decode(value["bytes"])


def _spans(raw: bytes, submatches: list[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    """Yield the start and end of *submatches*, given in bytes, in characters."""
    position = characters = 0
    for each in submatches:
        characters += len(raw[position : each["start"]].decode(errors="replace"))
        position = each["start"]
        yield characters, characters + len(raw[position : each["end"]].decode(errors="replace"))
