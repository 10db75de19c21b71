# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands of the tools: started without a shell, held to the roots by the kernel, and ended with all they started."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from mcpd.errors import InvalidArgument, McpdError, NotFound, NotSupported, SpawnFailed
from mcpd.model import printable
from mcpd.servers.commands.keeper import Task
from mcpd.servers.commands.keepers import Keepers, Keeping
from mcpd.servers.commands.output import Output
from mcpd.servers.timing import in_one_line

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Mapping

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.environment import Environment
    from mcpd.servers.workstation.jail import Place

MAX_OUTPUT: Final = 4 * 1024 * 1024
ENDING: Final = 8.0
"""Seconds for a keeper to end all that a command has started."""
DRAIN: Final = 1.0
"""Seconds for what a pipe still holds once all is ended."""
_TAIL: Final = 16 * 1024

log = logging.getLogger("mcp-workstation")


@dataclass(frozen=True, slots=True)
class Command:
    """One command."""

    argv: tuple[str, ...]
    """The program, looked up as :meth:`Processes.which` does, and its arguments."""
    place: Place
    """The directory it is started in."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables besides those of :mod:`.environment`."""
    writes: bool = False
    """Whether it may write in the roots; reading them it may in any case. In HOME and TMPDIR it always may write."""
    readable: tuple[str, ...] = ()
    """Absolute paths besides the system's and the toolchains' that it may read, if they exist."""
    stdin: bytes = b""
    most: int = MAX_OUTPUT
    """Bytes of stdout, and of stderr, that are kept."""
    keep: Literal["head", "tail"] = "head"
    """Which part is kept if there is more. With "head" a command that has filled its stdout is ended at once."""
    merge: bool = False
    """Whether stderr goes where stdout goes, in its order."""
    on_line: Callable[[bytes], None] | None = None
    """Is given each line of stdout without its newline, in the loop's thread, while the command runs."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that has ended."""

    code: int
    """Its exit status; 128 + n if signal n ended it."""
    stdout: bytes = field(repr=False)
    stderr: bytes = field(repr=False)
    truncated: bool
    """Whether there was more on stdout than is kept."""


class Processes:
    """Runs commands, many at once, each with a keeper."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._keepers = Keepers()

    def close(self) -> None:
        """Let go of the keepers; there are no calls any more."""
        self._keepers.close()

    def which(self, program: str) -> str | None:
        """The absolute path of *program* as commands find it: in the toolchains, then the system's directories.

        An absolute path is its own, if it can be executed.
        """
        return self._environment.which(program)

    async def run(self, command: Command, call: Call) -> Completed:
        """What :meth:`.call.Call.run` says."""
        full = asyncio.Event()
        on_full = full.set if command.keep == "head" else None
        with ExitStack() as stack:
            stdout = stack.enter_context(
                closing(Output(command.most, keep=command.keep, on_line=command.on_line, on_full=on_full))
            )
            stderr = stdout if command.merge else stack.enter_context(closing(Output(command.most, keep="tail")))
            control = await self._started(command, call, stdout, stderr)
            # However this ends, the end of its keeper is the end of all.
            keeping = stack.enter_context(closing(Keeping(control)))
            try:
                in_time = await _first((keeping.done, full), call.left)
            finally:
                if not keeping.done.is_set():
                    keeping.terminate()
                    await _first((keeping.done,), ENDING)
            await _first((stdout.ended,), DRAIN)
            await _first((stderr.ended,), DRAIN)
        if not in_time:
            fault = call.timed_out()
            fault.data = {"output": bytes((stdout.kept or stderr.kept)[-_TAIL:]).decode(errors="replace")}
            raise fault
        code = self._code(command, keeping.said)
        return Completed(code, bytes(stdout.kept), b"" if command.merge else bytes(stderr.kept), stdout.truncated)

    async def _started(self, command: Command, call: Call, stdout: Output, stderr: Output) -> socket.socket:
        """The socket of the keeper that runs *command*."""
        out, err = stdout.end.fileno(), stderr.end.fileno()
        # A thread, as the first one has to wait for an interpreter.
        starting = asyncio.ensure_future(asyncio.to_thread(self._start, command, call, out, err))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            with suppress(McpdError):
                (await starting).close()
            raise
        finally:
            stdout.end.close()
            stderr.end.close()

    def _start(self, command: Command, call: Call, out: int, err: int) -> socket.socket:
        name, environment = command.argv[0], self._environment
        program = self.which(name)
        if program is None:
            gone = [printable(each) for each in environment.missing]
            missing = f"; of these {', '.join(gone)} is not there" if gone else ""
            raise NotFound(f"{name} is not installed; install it, or add the directory it is in to toolchains{missing}")
        if any("\0" in text for text in (*command.argv, *command.env.values())):
            raise InvalidArgument(f"{name} cannot be started: an argument holds NUL")
        with ExitStack() as stack, call.jail.opened(command.place, os.O_PATH | os.O_DIRECTORY) as directory:
            stdin = stack.enter_context(os.fdopen(os.memfd_create("stdin"), "w+b", buffering=0))
            stdin.write(command.stdin)
            stdin.seek(0)
            roots = [root.fd for root in call.jail.roots]
            readable = [*_descriptors(stack, (*environment.readable, *command.readable)), *roots]
            writable = [*_descriptors(stack, environment.writable), *(roots if command.writes else ())]
            task = Task(
                argv=command.argv,
                program=program,
                env={**environment.variables, **command.env},
                readable=len(readable),
                offline=environment.is_offline,
                # The sandbox around this process shows nothing but the roots.
                unheld=environment.confined and call.jail.whole,
            )
            return self._keepers.ask(task, [stdin.fileno(), out, err, directory, *readable, *writable])

    def _code(self, command: Command, said: Mapping[str, Any] | None) -> int:
        """The exit status. Raises McpdError for a command that has none."""
        name = command.argv[0]
        if said is None:
            self._keepers.sweep()
            raise SpawnFailed(f"{name} was lost: what looks after it was killed, perhaps for want of memory")
        if "unheld" in said:
            raise NotSupported(
                f"{name} is not run: the kernel cannot hold it to the roots ({said['unheld']}); that takes Landlock,"
                " which the kernel's parameter lsm= or a container may have left out"
            )
        if "error" in said:
            raise SpawnFailed(f"{name} cannot be started: {said['error']}")
        if said["left"]:
            log.error("%s: some of what it has started does not end", in_one_line(name))
        code = int(said["code"] if said["code"] is not None else -signal.SIGKILL)
        return code if code >= 0 else 128 - code


def _descriptors(stack: ExitStack, paths: Iterable[str]) -> list[int]:
    """Descriptors of those of *paths* that exist, for rules."""
    found = []
    for path in paths:
        with suppress(OSError):
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            found.append(fd)
    return found


async def _first(events: tuple[asyncio.Event, ...], seconds: float) -> bool:
    """Whether one of *events* is set within *seconds*."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(waiting, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
    return bool(done)
