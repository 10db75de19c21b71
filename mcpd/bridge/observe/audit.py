# SPDX-License-Identifier: LGPL-2.1-or-later
"""The audit trail: a record of every call of a tool, in the journal or a file (docs/bridge.md has both formats).

A record is made into an entry on the path of the call, unless its arguments are large, and entries are written in
batches by a thread. Nothing waits for that: if they come faster than they can be written, they are counted, and the
count is written instead. The thread does no more than it has to: two that want the interpreter at the same time cost
each other more than an entry takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from mcpd import journal
from mcpd.bridge import jsonrpc
from mcpd.bridge.jsonrpc import Raw
from mcpd.errors import InvalidArgument, from_oserror

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcpd.bridge.callers import Caller

log = logging.getLogger(__name__)

DELAY: Final = 0.2
"""Seconds that a record waits for others."""
MOST_WAITING: Final = 65_536
"""Records that wait to be written; further ones are lost."""
SMALL: Final = 4096
"""Bytes of a request up to which its arguments are digested on the path of the call."""
HURRY: Final = 4 << 20
"""Bytes of requests that wait, after which none waits longer: their arguments are digested, and forgotten."""
MOST_HELD: Final = 16 << 20
"""Bytes of requests that wait while the thread is busy; what comes then is digested on the path of its call."""
FLUSH_TIMEOUT: Final = 3.0
"""Seconds in which the last records are written when the bridge ends."""


Record: TypeAlias = "tuple[float, Caller, str, str, str, float, Raw | Digest | Unread, int, str, bytes]"
"""When the call ended (seconds of the monotonic clock), its caller, server, tool, outcome, duration in seconds, its
arguments as they were sent, their digest, or what they are in, bytes of the response (0 if the server gave none), id of
the HTTP request, JSON-RPC id as it was sent. A tuple, as it is made on the path of every call."""
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


class Digest(NamedTuple):
    """A digest of arguments."""

    sha256: str
    """Empty if there were none."""
    size: int
    """In bytes."""


class Unread(NamedTuple):
    """The whole parameters of a call, so large that they are not read on its path."""

    params: Raw


class Params(msgspec.Struct, gc=False):
    """Of the parameters of ``tools/call``, what is recorded."""

    name: str = ""
    arguments: Raw = Raw(b"")


_decode_params = msgspec.json.Decoder(Params).decode


def read_params(raw: Raw) -> Params:
    """The parameters *raw*; where they cannot be told apart, all of them as a server may understand them anyway."""
    try:
        return _decode_params(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        members = jsonrpc.members(raw)
        name = bytes(members.get("name", b"")).decode(errors="replace")
        return Params(name, members.get("arguments", raw))


class Output(Protocol):
    """A target of records. Its file is used by one thread at a time, which it may block for at most a few seconds."""

    def entry(self, record: Record) -> bytes:
        """*record* as it is written. Any thread may ask."""

    def write(self, entries: Sequence[bytes], lost: int) -> int:
        """Write *entries*, and that *lost* others were lost; returns how many of *entries* could not be written.

        Raises :class:`OSError` if none could be.
        """

    def reopen(self) -> None:
        """Use the file that has the name now. Raises :class:`~mcpd.errors.McpdError`."""

    def close(self) -> None:
        """Let go of it."""


class Audit:
    """Takes records down, and has them written to *output*."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.lost = 0
        """Records that were lost so far."""
        self._untold = 0
        self._waiting: list[bytes | Record] = []
        self._held = 0
        self._timer: asyncio.TimerHandle | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="audit")
        self._writing: asyncio.Future[int] | None = None
        self._broken = False

    def take(self, record: Record, size: int) -> None:
        """Take a record down, which keeps *size* bytes of a request in memory."""
        waiting = self._waiting
        if len(waiting) >= MOST_WAITING:
            self._lose(1)
            return
        waiting.append(self.output.entry(record) if size <= SMALL else self._held_record(record, size))
        if self._timer is None and self._writing is None:
            self._timer = asyncio.get_running_loop().call_later(DELAY, self._flush)
        if self._held > HURRY:
            self._flush()

    async def close(self) -> None:
        """Write what waits, for a while, then end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_TIMEOUT):
                while self._writing is not None or self._waiting or self._untold:
                    self._flush()
                    if self._writing is not None:
                        await asyncio.wait([self._writing])
                    if self._broken:
                        break
        if self._timer is not None:
            self._timer.cancel()
        self._executor.submit(self.output.close)
        self._executor.shutdown(wait=False)

    def _held_record(self, record: Record, size: int) -> Record:
        """*record*, which may wait; without the arguments if too many wait for the thread already."""
        if self._held + size > MOST_HELD:
            time, caller, server, tool, outcome, seconds, arguments, response, request, identity = _read(record)
            return time, caller, server, tool, outcome, seconds, digest(arguments), response, request, identity
        self._held += size
        return record

    def _lose(self, count: int) -> None:
        self.lost += count
        self._untold += count

    def _flush(self) -> None:
        if self._writing is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._waiting = self._waiting, []
        self._held = 0
        untold, self._untold = self._untold, 0
        writing = asyncio.get_running_loop().run_in_executor(self._executor, self._write, batch, untold)
        self._writing = writing
        writing.add_done_callback(lambda done: self._written(done, len(batch), untold))

    def _write(self, batch: list[bytes | Record], lost: int) -> int:
        entries = [each if isinstance(each, bytes) else self.output.entry(_read(each)) for each in batch]
        return self.output.write(entries, lost)

    def _written(self, done: asyncio.Future[int], count: int, untold: int) -> None:
        self._writing = None
        error = done.exception()
        if error is None:
            self._broken = False
            self._lose(done.result())
        else:
            self._untold += untold
            self._lose(count)
            if not self._broken:
                log.error("calls are only counted, not recorded: %s", error)
            self._broken = True
        if self._waiting and self._timer is None:
            delay = DELAY if len(self._waiting) < MOST_WAITING // 2 and self._held <= HURRY else 0
            self._timer = asyncio.get_running_loop().call_later(delay, self._flush)


def _read(record: Record) -> Record:
    time, caller, server, tool, outcome, seconds, arguments, response, request, identity = record
    if not isinstance(arguments, Unread):
        return record
    params = read_params(arguments.params)
    return time, caller, server, params.name or tool, outcome, seconds, params.arguments, response, request, identity


def digest(arguments: Raw | Digest | Unread) -> Digest:
    """The digest of *arguments*, of the bytes as they were sent."""
    if isinstance(arguments, Digest):
        return arguments
    if isinstance(arguments, Unread):
        arguments = read_params(arguments.params).arguments
    data = memoryview(arguments)
    return Digest(sha256(data).hexdigest() if data else "", data.nbytes)


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
        """Write *data*. Raises TimeoutError if the reader does not keep up, and OSError for other failures."""
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
