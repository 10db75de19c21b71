# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands of the tools: started without a shell, held to the roots by the kernel, and ended with all they started."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import threading
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from mcpd.errors import McpdError, NotFound, NotSupported, SpawnFailed
from mcpd.model import printable
from mcpd.servers import landlock
from mcpd.servers.workstation.output import Output
from mcpd.servers.workstation.strays import Strays

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.environment import Environment
    from mcpd.servers.workstation.jail import Place

MAX_OUTPUT: Final = 4 * 1024 * 1024
MARK: Final = "MCP_WORKSTATION_CALL"
"""The variable that tells whose a process is that its parent has left."""
GRACE: Final = 0.5
"""Seconds between SIGTERM and SIGKILL: git takes its locks away, for one."""
DRAIN: Final = 2.0
"""Seconds for what the pipes still hold once all is ended."""
_TAIL: Final = 16 * 1024


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


@dataclass(frozen=True, slots=True)
class _Started:
    process: subprocess.Popen[bytes]
    pidfd: int


class Processes:
    """Runs commands, many at once."""

    def __init__(self, environment: Environment, *, adopts: bool = False) -> None:
        """*adopts* is whether this process is a subreaper: then also those end that have left their parents."""
        self._environment = environment
        self._strays = Strays(adopts=adopts)

    def which(self, program: str) -> str | None:
        """The absolute path of *program* as commands find it: in the toolchains, then the system's directories."""
        return self._environment.which(program)

    async def run(self, command: Command, call: Call) -> Completed:
        """What :meth:`.call.Call.run` says."""
        full = asyncio.Event()
        with ExitStack() as stack:
            stdout = stack.enter_context(
                closing(
                    Output(
                        command.most,
                        keep=command.keep,
                        on_line=command.on_line,
                        on_full=full.set if command.keep == "head" else None,
                    )
                )
            )
            stderr = stdout if command.merge else stack.enter_context(closing(Output(command.most, keep="tail")))
            outputs = (stdout, stderr)
            started = await self._started(command, call, outputs)
            over = asyncio.Event()
            asyncio.get_running_loop().add_reader(started.pidfd, over.set)
            try:
                in_time = await _first((over, full), call.left)
            finally:
                await _to_the_end(self._end(started, over, outputs))
        if not in_time:
            fault = call.timed_out()
            fault.data = {"output": bytes((stdout.kept or stderr.kept)[-_TAIL:]).decode(errors="replace")}
            raise fault
        code = started.process.returncode
        return Completed(
            code if code >= 0 else 128 - code,
            bytes(stdout.kept),
            b"" if command.merge else bytes(stderr.kept),
            stdout.truncated,
        )

    async def _started(self, command: Command, call: Call, outputs: tuple[Output, Output]) -> _Started:
        out, err = (output.end.fileno() for output in outputs)
        starting = asyncio.ensure_future(_in_new_thread(lambda: self._start(command, call, out, err)))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            with suppress(McpdError):
                started = await starting
                _close_ends(outputs)
                await _to_the_end(self._end(started, asyncio.Event(), outputs))
            raise
        finally:
            _close_ends(outputs)

    def _start(self, command: Command, call: Call, out: int, err: int) -> _Started:
        """Start it under rules of its own, which hold for this thread, too, for good."""
        program = self.which(command.argv[0])
        if program is None:
            gone = [printable(each) for each in self._environment.missing]
            missing = f"; of these {', '.join(gone)} is not there" if gone else ""
            raise NotFound(
                f"{command.argv[0]} is not installed; install it, or add the directory it is in to toolchains{missing}"
            )
        mark = secrets.token_hex(16)
        with ExitStack() as stack, call.jail.opened(command.place, os.O_PATH | os.O_DIRECTORY) as directory:
            stdin = stack.enter_context(os.fdopen(os.memfd_create("stdin"), "w+b", buffering=0))
            stdin.write(command.stdin)
            stdin.seek(0)
            self._hold(command, call, stack)
            try:
                process = self._strays.start(
                    lambda: subprocess.Popen(
                        command.argv,
                        executable=program,
                        # It is looked up by the child, which still has this descriptor then.
                        cwd=f"/proc/self/fd/{directory}",
                        env={**self._environment.variables, **command.env, MARK: mark},
                        stdin=stdin,
                        stdout=out,
                        stderr=err,
                        start_new_session=True,
                    ),
                    mark,
                )
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else str(error)
                raise SpawnFailed(f"{command.argv[0]} cannot be started: {reason}") from error
        try:
            return _Started(process, os.pidfd_open(process.pid))
        except OSError as error:
            self._strays.end(process.pid)
            process.wait()
            raise SpawnFailed(f"{command.argv[0]} was ended at once: {error.strerror}") from error

    def _hold(self, command: Command, call: Call, stack: ExitStack) -> None:
        environment = self._environment
        roots = tuple(root.fd for root in call.jail.roots)
        rules = landlock.Rules(
            readable=(*_descriptors(stack, (*environment.readable, *command.readable)), *roots),
            writable=(*_descriptors(stack, environment.writable), *(roots if command.writes else ())),
            files=True,
            tcp=environment.forbids_tcp,
            signals=True,
            sockets=True,
        )
        try:
            landlock.restrict(rules)
        except OSError as error:
            # Where a container's host forbids Landlock, the sandbox around this process shows nothing but the roots.
            if environment.confined and call.jail.whole:
                return
            raise NotSupported(
                f"{command.argv[0]} is not run: the kernel cannot hold it to the roots ({error.strerror or error});"
                " that takes Landlock, which the kernel's parameter lsm= or a container may have left out"
            ) from error

    async def _end(self, started: _Started, over: asyncio.Event, outputs: tuple[Output, Output]) -> None:
        """End what is left of it, and take the last of what it said."""
        pid = started.process.pid
        loop = asyncio.get_running_loop()
        try:
            if not over.is_set():
                loop.add_reader(started.pidfd, over.set)
                # What has ended is not reaped yet, so the number is still its own.
                with suppress(OSError):
                    os.killpg(pid, signal.SIGTERM)
                await _first((over,), GRACE)
        finally:
            loop.remove_reader(started.pidfd)
            os.close(started.pidfd)
        await asyncio.to_thread(self._strays.end, pid)
        await asyncio.to_thread(started.process.wait)
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN):
                for output in outputs:
                    await output.ended.wait()


def _close_ends(outputs: tuple[Output, Output]) -> None:
    """The command has them."""
    for output in outputs:
        output.end.close()


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


async def _to_the_end(work: Coroutine[None, None, None]) -> None:
    """Await *work* even while this task is being cancelled: whoever cancels wants nothing left."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


async def _in_new_thread(function: Callable[[], _Started]) -> _Started:
    """What *function* says in a thread that nobody uses again."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Started] = loop.create_future()

    def work() -> None:
        try:
            found = function()
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            loop.call_soon_threadsafe(future.set_exception, error)
        else:
            loop.call_soon_threadsafe(future.set_result, found)

    threading.Thread(target=work, name="start", daemon=True).start()
    return await future
