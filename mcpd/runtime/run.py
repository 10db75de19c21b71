# SPDX-License-Identifier: LGPL-2.1-or-later
"""Running one command to its end through a launcher, for the steps of an installation."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mcpd.errors import LimitExceeded, TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.runtime.launch import Exit, Launcher, LaunchSpec, Leash

_CHUNK: Final = 64 * 1024
DRAIN: Final = 2.0
"""Seconds to read the rest of the pipe once the tree has ended, in case its other end is still open elsewhere."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that has ended."""

    code: int
    """Exit status, 128 + n if it was ended by signal n."""
    stdout: bytes = field(repr=False)
    stderr_tail: str
    """The last 64 KiB of the command's stderr."""


async def run(
    launcher: Launcher,
    spec: LaunchSpec,
    *,
    timeout: float,  # noqa: ASYNC109 - the message names the command, which only this function knows
    on_line: Callable[[str], None] | None = None,
    limit: int = 16 * 1024 * 1024,
) -> Completed:
    """Start *spec* with ``/dev/null`` as its stdin, collect its stdout, and wait for its end.

    *timeout* is in seconds, *limit* in bytes of stdout; *on_line* is called with each line of stdout. The command has
    ended when this returns or raises, even after a cancellation.

    Raises :class:`~mcpd.errors.TimedOut`, :class:`~mcpd.errors.LimitExceeded` and the errors of
    :meth:`~mcpd.runtime.launch.Launcher.launch`; a failing command is not an error.
    """
    read, write = os.pipe()
    try:
        leash = await launcher.launch(spec, {1: write})
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    output = _Output(spec.id, on_line, limit)
    try:
        async with asyncio.timeout(timeout):
            ended = await _until_the_end(leash, read, output)
    except TimeoutError:
        raise TimedOut(f"{spec.id}: {spec.argv[0]} did not finish within {timeout:g} s and was stopped") from None
    finally:
        await _end(leash)
    return Completed(ended.code, bytes(output.collected), ended.stderr_tail)


async def _until_the_end(leash: Leash, read: int, output: _Output) -> Exit:
    """Collect *output* from the pipe *read* until the tree ends, and close the pipe; return how the tree ended."""
    collecting = asyncio.create_task(output.collect(read))
    ending = asyncio.create_task(leash.wait())
    try:
        await asyncio.wait([collecting, ending], return_when=asyncio.FIRST_COMPLETED)
        if collecting.done():
            collecting.result()
        ended = await ending
        await asyncio.wait([collecting], timeout=DRAIN)
        if collecting.done():
            collecting.result()
    finally:
        for task in (collecting, ending):
            task.cancel()
        await asyncio.wait([collecting, ending])
    output.finish()
    return ended


async def _end(leash: Leash) -> None:
    """Stop the tree, even while this task is being cancelled."""
    stopping = asyncio.ensure_future(leash.stop())
    try:
        await asyncio.shield(stopping)
    except asyncio.CancelledError:
        await stopping
        raise


class _Output:
    """The stdout of a command."""

    def __init__(self, spec_id: str, on_line: Callable[[str], None] | None, limit: int) -> None:
        self.collected = bytearray()
        self._partial = b""
        self._spec_id, self._on_line, self._limit = spec_id, on_line, limit

    async def collect(self, fd: int) -> None:
        """Read *fd* to its end and close it."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", buffering=0)
        )
        try:
            while chunk := await reader.read(_CHUNK):
                self._take(chunk)
        finally:
            transport.close()

    def _take(self, chunk: bytes) -> None:
        self.collected += chunk
        if len(self.collected) > self._limit:
            raise LimitExceeded(f"{self._spec_id}: the command wrote more than {self._limit} bytes to its stdout")
        if self._on_line is not None:
            *lines, self._partial = (self._partial + chunk).split(b"\n")
            for line in lines:
                self._on_line(line.decode(errors="replace"))

    def finish(self) -> None:
        """Pass on the last line if it has no newline."""
        if self._on_line is not None and self._partial:
            self._on_line(self._partial.decode(errors="replace"))
