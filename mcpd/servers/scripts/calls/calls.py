# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls of one script, on the server's side."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from mcpd.servers.scripts.calls.channel import Broken, NoRoom, Silent, Zygote, drain, exchange, job_frames
from mcpd.servers.scripts.calls.job import AT_ONCE, PythonJob, ShellJob
from mcpd.servers.scripts.calls.outcome import failed, outcome
from mcpd.servers.scripts.calls.spares import Spares

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from mcpd.servers.scripts.calls.job import Limits, Outcome

GRACE: Final = 10.0
"""Seconds after the time limit during which a call's keeper may be silent."""
ENDING: Final = 20.0
"""Seconds for the rest of a call's processes to end before its slot is released anyway."""
BIG: Final = 1 << 18
"""Size in bytes from which JSON is parsed in a thread."""


class Calls:
    """Runs a script: *kind* is ``python``, ``shell``, or empty without a script, when only jobs with code can run.

    *path* is its name in messages and the base for files beside it, *source* is its text. With *workers*, that many
    processes that have imported it wait for calls; each serves one. *log* is called with lines: output of the script,
    and tracebacks. *limits* apply to calls without limits of their own. *digest* is the SHA-256 in hex of the file at
    *path* as it was read, if known: a shell script is not run if its file has changed since.
    """

    def __init__(
        self,
        path: str,
        kind: str,
        source: str,
        *,
        workers: int = 0,
        limits: Limits,
        log: Callable[[str], None],
        digest: str = "",
    ) -> None:
        self._script = path, kind, source, digest if kind == "shell" else ""
        self._limits = limits
        self._log = log
        self._zygote: Zygote | None = None
        self._starting = asyncio.Lock()
        self._room = asyncio.Semaphore(AT_ONCE)
        self._spares = Spares(workers if kind == "python" else 0, limits, log)
        self._retired: set[Zygote] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._closed = False

    async def call(
        self,
        job: PythonJob | ShellJob,
        limits: Limits | None = None,
        on_progress: Callable[[float, float | None, str], None] | None = None,
    ) -> Outcome:
        """Run *job*; *on_progress* is called with ``current, total, message``. A cancelled call is killed.

        Never raises for what the script does: see :attr:`Outcome.error`.
        """
        bounds = limits or self._limits
        used: tuple[Zygote, socket.socket] | None = None
        await self._room.acquire()
        try:
            used = zygote, sock = await self._channel(job, bounds)
            async with asyncio.timeout(bounds.seconds + GRACE):
                report = await exchange(sock, job_frames(job, bounds), bounds.output, self._log, on_progress)
            if report.last["stopped"] == "start":
                self._retire(zygote)
        except Broken as error:
            if used and isinstance(error, Silent):
                self._retire(used[0])
            return failed(f"The call was ended: {error}.")
        except TimeoutError:
            # Its keeper no longer works properly, so the processes below it can only be killed from here.
            if used:
                await self._abandon(used[0])
            return failed(f"The call ran for more than {bounds.seconds:g} s and was stopped.", timed_out=True)
        finally:
            if used:
                ending = asyncio.get_running_loop().create_task(self._outlast(*used))
                self._endings.add(ending)
                ending.add_done_callback(self._endings.discard)
            else:
                self._room.release()
            self._spares.refill()
        shell = isinstance(job, ShellJob)
        if len(report.result) + len(report.output) > BIG:
            return await asyncio.to_thread(outcome, report, bounds, shell=shell)
        return outcome(report, bounds, shell=shell)

    async def close(self) -> None:
        """End all processes; running calls fail."""
        self._closed = True
        async with self._starting:
            await self._spares.close()
            if self._zygote:
                await self._zygote.end()
        for zygote in tuple(self._retired):
            await zygote.kill()
        if self._endings:
            await asyncio.wait(self._endings)

    async def _channel(self, job: PythonJob | ShellJob, bounds: Limits) -> tuple[Zygote, socket.socket]:
        """Return the channel of a new keeper, and the zygote that forked it.

        If possible its worker has already imported the script.
        """
        usual = isinstance(job, PythonJob) and job.source is None and not job.read_only and bounds == self._limits
        for last in (False, True):
            zygote = await self._running_zygote()
            try:
                self._spares.keep(zygote)
                sock = self._spares.take() if usual else None
                user = zygote if sock is None else self._spares.zygote or zygote
                sock = sock or zygote.channel()
            except NoRoom:
                raise
            except Broken:
                if last:
                    raise
                await zygote.kill()
            else:
                user.calls += 1
                return user, sock
        raise AssertionError

    async def _outlast(self, zygote: Zygote, sock: socket.socket) -> None:
        """Keep the slot of a call until its processes have ended, but not forever."""
        try:
            with sock, suppress(TimeoutError):
                async with asyncio.timeout(ENDING):
                    await drain(sock)
        finally:
            self._room.release()
            zygote.calls -= 1
        if zygote.retired and not zygote.calls:
            await zygote.kill()
            self._retired.discard(zygote)

    def _retire(self, zygote: Zygote) -> None:
        """Use another zygote for further calls; the running calls of this one continue."""
        zygote.retired = True
        self._retired.add(zygote)
        if self._zygote is zygote:
            self._zygote = None
        if self._spares.zygote is zygote:
            self._spares.retire()

    async def _running_zygote(self) -> Zygote:
        async with self._starting:
            if self._closed:
                raise Broken("the server is closing")
            if self._zygote and not self._zygote.alive:
                await self._zygote.kill()
                self._zygote = None
            if not self._zygote:
                self._zygote = await Zygote.start(*self._script)
            return self._zygote

    async def _abandon(self, zygote: Zygote) -> None:
        async with self._starting:
            await zygote.kill()
