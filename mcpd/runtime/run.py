# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run one command to its end through a launcher: the steps of an installation."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mcpd.errors import LimitExceeded, TimedOut
from mcpd.runtime.launch import memory_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.runtime.launch import Launcher, LaunchSpec, Leash

_CHUNK: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that has ended."""

    code: int
    """Exit status, 128 + n if signal n ended it."""
    stdout: bytes = field(repr=False)
    stderr_tail: str
    """The last 64 KiB of its stderr."""


async def run(
    launcher: Launcher,
    spec: LaunchSpec,
    *,
    stdin: bytes = b"",
    timeout: float,  # noqa: ASYNC109 - the message names the command, which only this function knows
    on_line: Callable[[str], None] | None = None,
    limit: int = 16 * 1024 * 1024,
) -> Completed:
    """Start *spec*, give it *stdin*, collect its stdout and await its end.

    *timeout* is in seconds, *limit* in bytes of stdout; *on_line* gets each line of stdout as it comes. However this
    ends, cancellation included, nothing of the command is left.

    Raises :class:`~mcpd.errors.TimedOut`, :class:`~mcpd.errors.LimitExceeded` and what
    :meth:`~mcpd.runtime.launch.Launcher.launch` raises; a command that fails raises nothing.
    """
    read, write = os.pipe()
    given = -1
    try:
        given = memory_file("stdin", stdin)
        leash = await launcher.launch(spec, {0: given, 1: write})
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
        if given >= 0:
            os.close(given)
    try:
        async with asyncio.timeout(timeout):
            stdout = await _collect(read, spec.id, on_line, limit)
            ended = await leash.wait()
    except TimeoutError:
        raise TimedOut(f"{spec.id}: {spec.argv[0]} did not end within {timeout:g} s and was stopped") from None
    finally:
        await _end(leash)
    return Completed(ended.code, stdout, ended.stderr_tail)


async def _end(leash: Leash) -> None:
    """Stop the tree even while this task is being cancelled: whoever cancels wants nothing left."""
    stopping = asyncio.ensure_future(leash.stop())
    try:
        await asyncio.shield(stopping)
    except asyncio.CancelledError:
        await stopping
        raise


async def _collect(fd: int, spec_id: str, on_line: Callable[[str], None] | None, limit: int) -> bytes:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", buffering=0)
    )
    collected, partial = bytearray(), b""
    try:
        while chunk := await reader.read(_CHUNK):
            collected += chunk
            if len(collected) > limit:
                raise LimitExceeded(f"{spec_id}: the command wrote more than {limit} bytes to its stdout")
            if on_line is not None:
                *lines, partial = (partial + chunk).split(b"\n")
                for line in lines:
                    on_line(line.decode(errors="replace"))
        if on_line is not None and partial:
            on_line(partial.decode(errors="replace"))
    finally:
        transport.close()
    return bytes(collected)
