# SPDX-License-Identifier: LGPL-2.1-or-later
"""Search without ripgrep: names of all types, and contents where ripgrep is not installed.

This is a separate program that reads a :class:`Query` as JSON and prints what it finds as lines of JSON. A pattern that
takes forever blocks only this process, which the kernel confines to the roots. Standard library only.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import resource
import stat
import sys
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Literal

from .walking import Query, Walk, opened

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_WHOLE: Final = 64 * 1024 * 1024
"""Maximum size of a file that is read at once, in bytes: for multiline patterns, and in UTF-16."""
MAX_SIZE: Final = 128 * 1024 * 1024
"""Maximum size of other files, in bytes: ripgrep takes more than twice as much memory for one that is a single line."""
MAX_TEXT: Final = 500
"""Maximum number of characters shown of a line."""
_BLOCK: Final = 1024 * 1024
_MAX_LINE: Final = 4 * _BLOCK
_MEMORY: Final = 2 * 1024 * 1024 * 1024
_BEFORE: Final = 100
_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def per_line(text: str, number: int, spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, str]]:
    """Yield line number, column and lines of each of *spans* in *text*, one per line; the first line is *number*."""
    position, seen = 0, 0
    for start, end in spans:
        number += text.count("\n", position, start)
        position = start
        if number == seen:
            continue
        seen = number
        first = text.rfind("\n", 0, start) + 1
        last = text.find("\n", max(start, end - 1))
        lines = text[first : last if last >= 0 else len(text)]
        yield number, start - first + 1, lines.removesuffix("\r")


def cut(text: str, column: int) -> str:
    """Return *text*, cut to :data:`MAX_TEXT` characters around the character number *column*."""
    if len(text) <= MAX_TEXT:
        return text
    start = 0 if column <= MAX_TEXT - _BEFORE else column - 1 - _BEFORE
    room = MAX_TEXT - 1 - (start > 0)
    more = len(text) > start + room
    return "…" * (start > 0) + text[start : start + room] + "…" * more


def say(kind: str, **data: str | int | bool | None) -> None:
    """Print a line of JSON of the given *kind*."""
    sys.stdout.write(json.dumps({"kind": kind, **data}) + "\n")


def compiled(query: Query) -> re.Pattern[str]:
    """Return the compiled pattern of *query*. Raises re.error."""
    flags = re.MULTILINE | (re.IGNORECASE if query.ignore_case else 0)
    return re.compile(re.escape(query.pattern) if query.literal else query.pattern, flags)


class _Contents:
    """Searches the contents of files."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._pattern = compiled(query)

    def search(self, directory: int, name: str, path: str) -> None:
        """Print the matches in the file *name*, and finally whether it is binary, which makes them invalid."""
        try:
            fd = opened(directory, name)
        except OSError:
            return
        begun = binary = False
        with os.fdopen(fd, "rb", buffering=0):
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size > self._query.max_size:
                return
            if status.st_nlink > 1 and not self._query.hard_links:
                return
            try:
                for line in self._whole(fd) if self._query.multiline else self._lines(_blocks(fd)):
                    if not begun:
                        say("begin", path=path)
                        begun = True
                    say(line.kind, line=line.number, column=line.column, text=cut(line.text, line.column))
            except (_Binary, OSError):
                binary = True
        if begun:
            say("end", binary=binary)

    def _lines(self, blocks: Iterable[str]) -> Iterator[_Line]:
        context = self._query.context
        before: deque[_Line] = deque(maxlen=context + 1 if context else 0)
        number, last, after, left = 0, 0, 0, self._query.max_per_file
        goes_on = False
        for block in blocks:
            lines = [line.removesuffix("\r") for line in block.removesuffix("\n").split("\n")]
            # A literal that is not in the block is in none of its lines. For other patterns that is wrong, or takes too
            # long: a pattern that is fast in a line may be slow in a million characters.
            if self._query.literal and not after and not self._pattern.search(block):
                number += len(lines)
                first = max(goes_on, len(lines) - context)
                before.extend(_Line("context", number - len(lines) + 1 + i, lines[i]) for i in range(first, len(lines)))
                lines = []
            for line in lines:
                number += 1
                found = None if left == 0 or number == last else self._pattern.search(line)
                if found is not None:
                    yield from (each for each in before if each.number != number)
                    before.clear()
                    yield _Line("match", number, line, found.start() + 1)
                    last, after = number, context
                    left = left - 1 if left is not None else None
                elif goes_on:
                    pass
                elif after:
                    yield _Line("context", number, line)
                    after -= 1
                elif left == 0:
                    return
                else:
                    before.append(_Line("context", number, line))
                goes_on = False
            # True if its last line continues in the next block.
            goes_on = not block.endswith("\n")
            number -= goes_on

    def _whole(self, fd: int) -> Iterator[_Line]:
        text = "".join(_blocks(fd))
        context = self._query.context
        lines = text.removesuffix("\n").split("\n") if context else []
        said, left = 0, self._query.max_per_file
        ends = text.endswith("\n")
        spans = (
            found.span() for found in self._pattern.finditer(text) if text and found.start() < len(text) + (not ends)
        )
        for number, column, shown in per_line(text, 1, spans):
            if left == 0:
                break
            after = range(said + 1, min(said + context, number - 1) + 1) if said else range(0)
            before = range(max(after.stop, said + 1, number - context), number)
            for each in (*after, *before):
                yield _Line("context", each, lines[each - 1].removesuffix("\r"))
            yield _Line("match", number, shown, column)
            said = max(said, number + shown.count("\n"))
            left = left - 1 if left is not None else None
        for each in range(said + 1, min(said + context, len(lines)) + 1) if said else ():
            yield _Line("context", each, lines[each - 1].removesuffix("\r"))


@dataclass(frozen=True, slots=True)
class _Line:
    kind: Literal["match", "context"]
    number: int
    text: str
    column: int = 1


class _Binary(Exception):
    pass


def _blocks(fd: int) -> Iterator[str]:
    """Yield the text of a file in blocks that end at the end of a line, unless that line alone is too long."""
    rest = b""
    first = True
    while data := os.read(fd, _BLOCK):
        if first and data.startswith(_UTF_16):
            yield _utf_16(fd, data)
            return
        if first:
            data = data.removeprefix(codecs.BOM_UTF8)
        first = False
        if b"\0" in data:
            raise _Binary
        end = data.rfind(b"\n") + 1
        if end:
            yield (rest + data[:end]).decode("utf-8", "replace")
            rest = data[end:]
        else:
            rest += data
            if len(rest) > _MAX_LINE:
                yield rest.decode("utf-8", "replace")
                rest = b""
    if rest:
        yield rest.decode("utf-8", "replace")


def _utf_16(fd: int, data: bytes) -> str:
    whole = bytearray(data)
    while len(whole) <= MAX_WHOLE and (data := os.read(fd, _BLOCK)):
        whole += data
    return whole.decode("utf-16", "replace")


def _tell(seen: int) -> None:
    say("walked", entries=seen)
    sys.stdout.flush()


def run(query: Query) -> None:
    """Run *query* in the working directory and print what it finds."""
    if query.only:
        top = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        _Contents(query).search(top, query.only, query.only)
        return
    walk = Walk(query, _tell)
    if not query.names:
        contents = _Contents(query)
        for entry in walk.entries():
            if entry.type == "file":
                contents.search(entry.directory, entry.name, entry.path)
        return
    pattern = compiled(query)
    whole = "/" in query.pattern
    for entry in walk.entries():
        if pattern.search(entry.path if whole else entry.name):
            say("name", path=entry.path, type=entry.type)


def main() -> None:
    """Run the query on stdin."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY if hard == resource.RLIM_INFINITY else min(hard, _MEMORY), hard))
    query = Query(**json.load(sys.stdin))
    try:
        run(query)
    except (re.error, FutureWarning, OverflowError, RecursionError) as error:
        # Python warns of nested sets such as [[:alpha:]], which other engines support and would match differently.
        say("fault", message=str(error))
    except MemoryError:
        say("fault", message="it takes too much memory")


def started(query: Query) -> tuple[tuple[str, ...], tuple[str, ...], bytes]:
    """Return the arguments, the paths to read besides the system's, and the stdin of the program for *query*."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    # There these files are a package of their own, so that nothing else of mcpd is imported.
    begin = (
        "import sys, types; package = types.ModuleType('search'); package.__path__ = [sys.argv[1]]; "
        "sys.modules['search'] = package; from search.scanning import main; main()"
    )
    program = os.path.realpath(sys.executable)
    argv = (program, "-I", "-S", "-B", "-W", "error::FutureWarning", "-c", begin, here)
    return argv, (sys.base_prefix, sys.base_exec_prefix, program, here), json.dumps(asdict(query)).encode()
