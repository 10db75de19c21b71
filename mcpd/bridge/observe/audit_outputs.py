# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where the audit trail goes: the journal as fields, or a file as JSON lines (docs/bridge.md has both)."""

from __future__ import annotations

import os
import select
import stat
import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from mcpd import journal
from mcpd.bridge.observe.audit import digest
from mcpd.errors import InvalidArgument, from_oserror

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcpd.bridge.observe.audit import Output, Record

STDOUT: Final = "-"
JOURNAL: Final = "journal"
OFF: Final = "off"
PATIENCE: Final = 1.0
"""Seconds that a reader of the lines may take for a piece."""
_PIECE: Final = select.PIPE_BUF
"""Bytes for which a pipe that is ready has room, and that arrive in one piece."""
_FILE_PIECE: Final = 65536
"""Bytes that a file takes at once."""
LONGEST_NAME: Final = 128
"""Characters of a name that are recorded."""
LONGEST_ID: Final = 64
"""Bytes of a JSON-RPC id that are recorded."""
_INFO: Final = 6
_WARNING: Final = 4

_encode = msgspec.json.Encoder().encode


class Lines:
    """JSON lines in the file *path*, or on standard output. Raises :class:`~mcpd.errors.McpdError`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = 1 if path == STDOUT else _open(path)
        self._is_file = stat.S_ISREG(os.fstat(self._fd).st_mode)
        self._is_torn = False
        """The last line is not whole."""

    def entry(self, record: Record) -> bytes:
        """See :class:`~mcpd.bridge.observe.audit.Output`."""
        return _encode(_line(record)) + b"\n"

    def write(self, entries: Sequence[bytes], lost: int) -> int:
        """See :class:`~mcpd.bridge.observe.audit.Output`."""
        if lost:
            self._put(_encode({"time": _stamp(time.time()), "lost": lost}) + b"\n")
        written = 0
        for piece in _pieces(entries, _FILE_PIECE if self._is_file else _PIECE):
            try:
                self._put(b"".join(piece))
            except TimeoutError:
                break
            except OSError:
                if not written and not lost:
                    raise
                break
            written += len(piece)
        return len(entries) - written

    def reopen(self) -> None:
        """See :class:`~mcpd.bridge.observe.audit.Output`."""
        if self._path != STDOUT:
            # The number stays, so a thread in the middle of a line is not disturbed.
            fd = _open(self._path)
            os.dup2(fd, self._fd, inheritable=False)
            os.close(fd)
            self._is_file = stat.S_ISREG(os.fstat(self._fd).st_mode)
            self._is_torn = False

    def close(self) -> None:
        """See :class:`~mcpd.bridge.observe.audit.Output`."""
        if self._path != STDOUT:
            os.close(self._fd)

    def _put(self, data: bytes) -> None:
        """Write *data*. Raises TimeoutError if nobody reads, another OSError if nothing can be written."""
        if self._is_torn:
            data = b"\n" + data
        left = data
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        try:
            while left:
                if not self._is_file and not poll.poll(PATIENCE * 1000):
                    raise TimeoutError(f"{self._path} is not read")
                left = left[os.write(self._fd, left if self._is_file else left[:_PIECE]) :]
        except OSError:
            # What was torn before stays so if nothing could be written behind it.
            self._is_torn |= len(left) < len(data)
            raise
        self._is_torn = False


def _open(path: str) -> int:
    try:
        return os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600
        )
    except OSError as error:
        raise from_oserror(error, f"opening {path} for the audit trail") from error


def _pieces(lines: Sequence[bytes], largest: int) -> Iterator[list[bytes]]:
    """*lines* in pieces of up to *largest* bytes, which are taken as a whole."""
    piece: list[bytes] = []
    size = 0
    for line in lines:
        if piece and size + len(line) > largest:
            yield piece
            piece, size = [], 0
        piece.append(line)
        size += len(line)
    if piece:
        yield piece


def _date(ended: float) -> float:
    """The date, in seconds since 1970, of a moment of the monotonic clock that is not long ago."""
    return time.time() - time.monotonic() + ended


def _stamp(seconds: float) -> str:
    whole = int(seconds)
    return f"{_second(whole)}.{int((seconds - whole) * 1e6):06d}Z"


@lru_cache(maxsize=8)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class _Line(msgspec.Struct, gc=False, omit_defaults=True):
    """The members of a line."""

    time: str
    uid: int
    server: str
    tool: str
    outcome: str
    seconds: float
    arguments_sha256: str
    arguments_size: int
    response_size: int
    request: str
    id: str
    via: str = ""


def _line(record: Record) -> _Line:
    ended, caller, server, tool, outcome, seconds, arguments, size, request, identity = record
    sha256, length = digest(arguments)
    return _Line(
        _stamp(_date(ended)), caller.uid, server[:LONGEST_NAME], tool[:LONGEST_NAME], outcome, round(seconds, 6),
        sha256, length, size, request, identity[:LONGEST_ID].decode(errors="replace"), caller.server,
    )  # fmt: skip


class Journal:
    """Entries with fields in systemd's journal."""

    def __init__(self, identifier: str, address: str = journal.SOCKET) -> None:
        self._entries = journal.EntrySender(identifier, address)

    def entry(self, record: Record) -> bytes:
        """See :class:`~mcpd.bridge.observe.audit.Output`."""
        return _fields(record)

    def write(self, entries: Sequence[bytes], lost: int) -> int:
        """See :class:`~mcpd.bridge.observe.audit.Output`."""
        if lost:
            self._entries.send(_gap(lost))
        for number, entry in enumerate(entries):
            try:
                self._entries.send(entry)
            except TimeoutError:
                return len(entries) - number
        return 0

    def reopen(self) -> None:
        """There is no file."""

    def close(self) -> None:
        """See :class:`~mcpd.bridge.observe.audit.Output`."""
        self._entries.close()


def _gap(lost: int) -> bytes:
    text = f"{lost} calls of tools were not recorded, because records came faster than they were written"
    return (
        f"MESSAGE={text}\nMESSAGE_ID={journal.CALLS_NOT_RECORDED}\nPRIORITY={_WARNING}\nMCP_AUDIT_LOST={lost}\n"
    ).encode()


def _fields(record: Record) -> bytes:
    """The entry of *record*; what others chose in it has no line of its own, or is in the form with a length."""
    ended, caller, server, tool, outcome, seconds, arguments, size, request, identity = record
    sha256, length = digest(arguments)
    server, tool = server[:LONGEST_NAME], tool[:LONGEST_NAME]
    whom = f"uid {caller.uid} by server {caller.server}" if caller.server else f"uid {caller.uid}"
    shown = [name if name.isprintable() else ascii(name) for name in (tool, server)]
    known = (
        f"MESSAGE={whom} called {shown[0]} of server {shown[1]}: {outcome} after {seconds:.4f} s\n"
        f"MESSAGE_ID={journal.TOOL_CALLED}\nPRIORITY={_INFO}\nCALLER_UID={caller.uid}\n"
        f"MCP_CALL_OUTCOME={outcome}\nMCP_CALL_ENDED_USEC={_date(ended) * 1e6:.0f}\n"
        f"MCP_CALL_DURATION_USEC={seconds * 1e6:.0f}\nMCP_CALL_ARGUMENTS_SHA256={sha256}\n"
        f"MCP_CALL_ARGUMENTS_SIZE={length}\nMCP_CALL_RESPONSE_SIZE={size}\nMCP_REQUEST_ID={request}\n"
    ).encode(errors="backslashreplace")
    others = journal.field("MCP_CALL_SERVER", server) + journal.field("MCP_CALL_TOOL", tool)
    others += journal.field("MCP_CALL_ID", identity[:LONGEST_ID])
    return known + others + (journal.field("CALLER_SERVER", caller.server) if caller.server else b"")


def output_for(target: str) -> Output | None:
    """Return the output for the setting ``bridge.audit`` or the option ``--audit``, ``None`` for ``off``.

    The journal is replaced by lines on standard output where there is none. Raises
    :class:`~mcpd.errors.InvalidArgument` for what is no target, and the error of a file that cannot be opened.
    """
    if target == OFF:
        return None
    if target == JOURNAL:
        return Journal("mcpd-bridge") if os.path.exists(journal.SOCKET) else Lines(STDOUT)  # noqa: PTH110
    if target != STDOUT and not target.startswith("/"):
        raise InvalidArgument(
            f"{target!r} is not a target for the audit trail: use journal, off, - or an absolute path"
        )
    return Lines(target)
