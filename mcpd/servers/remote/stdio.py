# SPDX-License-Identifier: LGPL-2.1-or-later
"""The client's side: lines from stdin and to stdout, which may be files of any type."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from typing import TYPE_CHECKING, Final

from mcpd.servers.remote.messages import MAX_MESSAGE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_CHUNK: Final = 256 * 1024


class TooLong(Exception):
    """Marker for a line over :data:`~mcpd.servers.remote.messages.MAX_MESSAGE` that was skipped."""


class Input:
    """The lines of a descriptor, read by a thread, as files and terminals cannot be polled."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[bytes | TooLong | None] = asyncio.Queue(4)
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    async def lines(self) -> AsyncIterator[bytes | TooLong]:
        """Yield each line without newline, until the end."""
        while (line := await self._lines.get()) is not None:
            yield line

    def _read(self) -> None:
        buffer, skipping = bytearray(), False
        while True:
            try:
                chunk = os.read(self._fd, _CHUNK)
            except OSError:
                chunk = b""
            if not chunk:
                self._hand(None)
                return
            *ended, rest = chunk.split(b"\n")
            for piece in ended:
                buffer += piece
                if skipping or len(buffer) > MAX_MESSAGE:
                    self._hand(TooLong())
                elif line := bytes(buffer).strip():
                    self._hand(line)
                buffer, skipping = bytearray(), False
            if not skipping:
                buffer += rest
                if len(buffer) > MAX_MESSAGE:
                    buffer, skipping = bytearray(), True

    def _hand(self, line: bytes | TooLong | None) -> None:
        """Wait until the queue has room, so that a client is slowed down to the speed of the remote server."""
        with contextlib.suppress(RuntimeError, asyncio.CancelledError):  # when the program ends
            asyncio.run_coroutine_threadsafe(self._lines.put(line), self._loop).result()


class Output:
    """Writes whole lines to a descriptor, in the order of :meth:`write`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._turn = asyncio.Lock()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the reader has gone."""

    async def write(self, line: bytes) -> None:
        """Write *line* and a newline; waits for a slow client."""
        async with self._turn:
            if self.gone.done():
                return
            try:
                await asyncio.to_thread(self._write, line + b"\n")
            except OSError:
                self.gone.set_result(None)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
