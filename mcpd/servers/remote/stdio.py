# SPDX-License-Identifier: LGPL-2.1-or-later
"""The client's side: lines from stdin, lines to stdout, of whatever kind the two are."""

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
    """Stands for a line over :data:`~mcpd.servers.remote.messages.MAX_MESSAGE`, which was skipped."""


class Input:
    """The lines of a descriptor, read by a thread: files and terminals cannot be waited for otherwise."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[bytes | TooLong | None] = asyncio.Queue(4)
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    async def lines(self) -> AsyncIterator[bytes | TooLong]:
        """Each line without its end, until there are no more."""
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
        """Wait until there is room: who sends faster than the remote server takes has to wait, too."""
        with contextlib.suppress(RuntimeError, asyncio.CancelledError):  # of a program that is ending
            asyncio.run_coroutine_threadsafe(self._lines.put(line), self._loop).result()


class Output:
    """Whole lines to a descriptor, in the order of :meth:`write`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._turn = asyncio.Lock()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when nobody reads any more."""

    async def write(self, line: bytes) -> None:
        """Write *line* and a newline; waits for a client that is slow."""
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
