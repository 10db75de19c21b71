# SPDX-License-Identifier: LGPL-2.1-or-later
"""The audit trail: a record of every call of a tool.

A record is made into an entry on the path of the call, unless its arguments are large, and entries are written in
batches by a thread. Nothing waits for that: if they come faster than they can be written, they are counted, and the
count is written instead. The thread does no more than it has to: two that want the interpreter at the same time cost
each other more than an entry takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from mcpd.bridge import jsonrpc
from mcpd.bridge.jsonrpc import Raw

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """Where records go. Its file is used by one thread at a time, which it may hold up for a few seconds at most."""

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
