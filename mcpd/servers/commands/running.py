# SPDX-License-Identifier: LGPL-2.1-or-later
"""Running a command until all processes that it has started have ended, even on cancellation."""

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
"""Seconds for a keeper to end all processes of a command."""
DRAIN: Final = 1.0
"""Seconds to read the rest of a pipe after all processes have ended."""
_UNHELD: Final = {
    "landlock": "the kernel cannot hold it to its directories (%s); that takes Landlock, which the kernel's parameter"
    " lsm= or a container may have left out",
    "seccomp": "the kernel cannot keep it from other programs (%s); that takes seccomp, and x86-64 or arm64",
    "git": "git directories cannot be made read-only for it (%s); that takes user namespaces, which the kernel or a"
    f" container may refuse, and mcpd's sandbox does if mcpd runs as root; {SETTING} lets it write there",
}
"""Messages for the kernel features that a keeper lacked."""


@dataclass(frozen=True, slots=True)
class Start:
    """How to start a command. Its descriptors must stay open until it is started."""

    argv: tuple[str, ...]
    program: str
    """The absolute path of the file to execute."""
    env: Mapping[str, str]
    """All its variables."""
    directory: int
    """A descriptor of its working directory."""
    readable: Sequence[int]
    """Descriptors of directories, with everything below, and files that it may read."""
    writable: Sequence[int]
    """Descriptors of those that it may change, too."""
    offline: bool
    """True to isolate it from the network."""
    unheld: bool
    """True to run it even if the kernel cannot confine it."""
    protected: Protected
    """Paths in the writable directories that are read-only for it."""
    apart: bool = False
    """True to isolate an untrusted command from other processes, except over the network if permitted."""


@dataclass(frozen=True, slots=True)
class Streams:
    """The stdin of a command, and the parts of its output to keep."""

    stdin: bytes
    most: int
    """Bytes of stdout to keep."""
    most_errors: int
    """Bytes of stderr to keep, from the end."""
    keep: Literal["head", "tail"] = "head"
    """The part of stdout to keep. With "head", a command that has filled it is ended at once."""
    merge: bool = False
    """True to send stderr to stdout, in order."""
    on_line: Callable[[bytes], None] | None = None
    """Called with each line of stdout, without newline, in the loop's thread, while the command runs."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of a command."""

    code: int | None
    """Its exit status, 128 + n if signal n ended it; None if its time limit was exceeded."""
    stdout: bytes = field(repr=False)
    stderr: bytes = field(repr=False)
    """Empty if stderr was merged."""
    truncated: bool
    """True if stdout was longer than the part that is kept."""


class Runner:
    """Runs commands, each with a keeper, concurrently."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._keepers = Keepers()

    def close(self) -> None:
        """Release the keepers; nothing is run any more."""
        self._keepers.close()

    async def run(
        self, name: str, prepare: Callable[[ExitStack], Start], streams: Streams, seconds: float | None = None
    ) -> Ended:
        """Run the command of *prepare* for at most *seconds*; all its processes have ended when this returns or raises.

        *prepare* is called in a thread; its stack is closed when the command has started. *name* is the command's name
        in messages. Raises the errors of *prepare*, :class:`~mcpd.errors.InvalidArgument`,
        :class:`~mcpd.errors.SpawnFailed` and, if the kernel cannot confine it, :class:`~mcpd.errors.NotSupported`.
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
        """Yield the keeper of the command of *prepare*, started with these descriptors; finally end all processes.

        The caller may close the descriptors when the context is entered. *prepare* and *name* are those of :meth:`run`,
        which also lists the errors.
        """
        # The first call has to wait for an interpreter.
        control, cancelled = await to_its_end(self._start, name, prepare, stdin, stdout, stderr)
        # The end of its keeper ends all processes in any case.
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
        """Return the exit status of the command *name* from the answer of its keeper. Raises McpdError without one."""
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
        """Start a keeper and return its socket."""
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
    """Return a descriptor of a file with *content*."""
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
    """Wait until *keeping* is done, for a limited time, even if this task is cancelled repeatedly."""
    deadline = time.monotonic() + ENDING
    cancelled: asyncio.CancelledError | None = None
    while not keeping.done.is_set() and (left := deadline - time.monotonic()) > 0:
        try:
            await _first((keeping.done,), left)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
