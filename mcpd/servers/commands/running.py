# SPDX-License-Identifier: LGPL-2.1-or-later
"""Running a command from its start to the end of all that it has started, whoever gives it up meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from mcpd.errors import InvalidArgument, NotSupported, SpawnFailed
from mcpd.servers.commands.keeper import Task
from mcpd.servers.commands.keepers import Keepers, Keeping
from mcpd.servers.commands.output import Output
from mcpd.servers.commands.repositories import SETTING, Protected
from mcpd.servers.commands.waiting import to_its_end
from mcpd.servers.timing import in_one_line

if TYPE_CHECKING:
    import logging
    import socket
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

ENDING: Final = 8.0
"""Seconds for a keeper to end all that a command has started."""
DRAIN: Final = 1.0
"""Seconds for what a pipe still holds once all is ended."""
_UNHELD: Final = {
    "landlock": "the kernel cannot hold it to its directories (%s); that takes Landlock, which the kernel's parameter"
    " lsm= or a container may have left out",
    "seccomp": "the kernel cannot keep it from other programs (%s); that takes seccomp, and x86-64 or arm64",
    "git": "git directories cannot be made read-only for it (%s); that takes user namespaces, which the kernel or a"
    f" container may refuse, and mcpd's sandbox does if mcpd runs as root; {SETTING} lets it write there",
}
"""What a keeper was wanting."""


@dataclass(frozen=True, slots=True)
class Start:
    """How a command is started. Its descriptors need to be open until it is."""

    argv: tuple[str, ...]
    program: str
    """The absolute path of what is executed."""
    env: Mapping[str, str]
    """All its variables."""
    directory: int
    """A descriptor of the directory it is started in."""
    readable: Sequence[int]
    """Descriptors of what it may read, with all below."""
    writable: Sequence[int]
    """Of what it may change, too."""
    offline: bool
    """True if it is kept from the network."""
    unheld: bool
    """True if it runs also where the kernel cannot hold it to the rules."""
    protected: Protected
    """What of that is read-only for it."""
    apart: bool = False
    """True if it is somebody else's, and reaches no processes but its own and those of a network it may have."""


@dataclass(frozen=True, slots=True)
class Streams:
    """What a command is given to read, and what is kept of what it writes."""

    stdin: bytes
    most: int
    """Bytes of stdout that are kept."""
    most_errors: int
    """Bytes of stderr of which the last are kept."""
    keep: Literal["head", "tail"] = "head"
    """Which part of stdout is kept. With "head" a command that has filled it is ended at once."""
    merge: bool = False
    """True if stderr goes where stdout goes, in its order."""
    on_line: Callable[[bytes], None] | None = None
    """Is given each line of stdout without its newline, in the loop's thread, while the command runs."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended."""

    code: int | None
    """Its exit status, 128 + n if signal n ended it; None if its time was over."""
    stdout: bytes = field(repr=False)
    stderr: bytes = field(repr=False)
    """Empty if they were merged."""
    truncated: bool
    """True if there was more on stdout than is kept."""


class Runner:
    """Runs commands, many at once, each with a keeper."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._keepers = Keepers()

    def close(self) -> None:
        """Let go of the keepers; nothing is run any more."""
        self._keepers.close()

    async def run(
        self, name: str, prepare: Callable[[ExitStack], Start], streams: Streams, seconds: float | None = None
    ) -> Ended:
        """Run what *prepare* says, for *seconds* at most; however this ends, nothing of it is left.

        *prepare* is called in a thread; what it leaves on the stack is let go of when the command has started. *name*
        is what messages call the command. Raises what *prepare* does, :class:`~mcpd.errors.InvalidArgument`,
        :class:`~mcpd.errors.SpawnFailed` and, where the kernel cannot hold it, :class:`~mcpd.errors.NotSupported`.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        full = asyncio.Event()
        on_full = full.set if streams.keep == "head" else None
        with ExitStack() as stack:
            stdout = stack.enter_context(
                closing(Output(streams.most, keep=streams.keep, on_line=streams.on_line, on_full=on_full))
            )
            stderr = stdout if streams.merge else stack.enter_context(closing(Output(streams.most_errors, keep="tail")))
            pipes = (stdout.end.fileno(), stderr.end.fileno())
            async with self.started(name, prepare, streams.stdin, *pipes) as keeping:
                stdout.end.close()
                stderr.end.close()
                left = None if deadline is None else deadline - time.monotonic()
                in_time = await _first((keeping.done, full), left)
            await _first((stdout.ended,), DRAIN)
            await _first((stderr.ended,), DRAIN)
        code = self.code(name, keeping.said) if in_time else None
        return Ended(code, bytes(stdout.kept), b"" if streams.merge else bytes(stderr.kept), stdout.truncated)

    @asynccontextmanager
    async def started(
        self, name: str, prepare: Callable[[ExitStack], Start], stdin: bytes | int, stdout: int, stderr: int
    ) -> AsyncIterator[Keeping]:
        """The keeper of what *prepare* says, with these descriptors; all is ended when the context is.

        They are the caller's to close once this is entered. *prepare* and *name* are those of :meth:`run`, which says
        what is raised, too.
        """
        # The first one has to wait for an interpreter.
        control, cancelled = await to_its_end(self._start, name, prepare, stdin, stdout, stderr)
        # However this ends, the end of its keeper is the end of all.
        with closing(Keeping(control)) as keeping:
            try:
                if cancelled is not None:
                    raise cancelled
                yield keeping
            finally:
                if not keeping.done.is_set():
                    keeping.terminate()
                    await _ended(keeping)

    def code(self, name: str, said: Mapping[str, object] | None) -> int:
        """The exit status of the command *name*, whose keeper *said* that. Raises McpdError if it has none."""
        if said is None:
            self._keepers.sweep()
            raise SpawnFailed(f"{name} was lost: what looks after it was killed, perhaps for want of memory")
        if "unheld" in said:
            raise NotSupported(f"{name} is not run: {_UNHELD[str(said['unheld'])] % said['why']}")
        if "error" in said:
            raise SpawnFailed(f"{name} cannot be started: {said['error']}")
        if said["left"]:
            self._log.error("%s: some of what it has started does not end", in_one_line(name))
        status = said["code"]
        code = status if isinstance(status, int) else -signal.SIGKILL
        return code if code >= 0 else 128 - code

    def _start(
        self, name: str, prepare: Callable[[ExitStack], Start], stdin: bytes | int, stdout: int, stderr: int
    ) -> socket.socket:
        """The socket of the keeper that runs it."""
        with ExitStack() as stack:
            start = prepare(stack)
            if any("\0" in text for text in (*start.argv, *start.env.values())):
                raise InvalidArgument(f"{name} cannot be started: an argument holds NUL")
            if isinstance(stdin, bytes):
                stdin = _file(stack, stdin)
            task = Task(
                argv=start.argv,
                program=start.program,
                env=dict(start.env),
                readable=len(start.readable),
                offline=start.offline,
                unheld=start.unheld,
                apart=start.apart,
                read_only=start.protected.read_only,
                fixed=start.protected.fixed,
                required=start.protected.required,
            )
            return self._keepers.ask(task, [stdin, stdout, stderr, start.directory, *start.readable, *start.writable])


def _file(stack: ExitStack, content: bytes) -> int:
    """A descriptor of a file that holds *content*."""
    file = stack.enter_context(os.fdopen(os.memfd_create("stdin"), "w+b", buffering=0))
    view = memoryview(content)
    while view:
        view = view[file.write(view) :]
    file.seek(0)
    return file.fileno()


async def _first(events: tuple[asyncio.Event, ...], seconds: float | None) -> bool:
    """Return True if one of *events* is set within *seconds*."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    timeout = None if seconds is None else max(0.0, seconds)
    try:
        done, _ = await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
    return bool(done)


async def _ended(keeping: Keeping) -> None:
    """Wait until *keeping* is done, or should be, however often this task is cancelled meanwhile."""
    deadline = time.monotonic() + ENDING
    cancelled: asyncio.CancelledError | None = None
    while not keeping.done.is_set() and (left := deadline - time.monotonic()) > 0:
        try:
            await _first((keeping.done,), left)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
