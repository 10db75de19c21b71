# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls of one script, as the server makes them."""

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
"""Seconds after its time that a call's keeper may still be silent."""
ENDING: Final = 20.0
"""Seconds that what is left of a call may take to end before its place is given to another."""
BIG: Final = 1 << 18
"""Bytes of JSON that are read in a thread."""


class Calls:
    """Runs a script: *kind* is ``python``, ``shell``, or empty for none, where only jobs that bring code can run.

    *path* names it in messages and is where it looks for what lies beside it, *source* is what runs. With *workers*, so
    many processes that have imported it wait for calls; each serves one. *log* is given lines: what the script prints,
    and tracebacks. Every call has *limits* unless it brings its own. *digest* is the SHA-256 in hex of the file at
    *path* as it was read, if it is known: then a shell script does not run once its file is another one.
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
        """Run *job*; *on_progress* hears of ``current, total, message``. A call that is cancelled is killed.

        Never raises for what the script does: that is :attr:`Outcome.error`.
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
            # Its keeper does not run any more as it should, so what is below it can only be ended from above.
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
        """End all processes; calls that still run fail."""
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
        """The channel of a new keeper, and the zygote that it comes from.

        It has a worker that has imported the script already if there is one.
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
        """Hold the place of a call until its processes have ended, but not for ever."""
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
        """Have another zygote for the calls to come; those of this one go on."""
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
