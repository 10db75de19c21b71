# SPDX-License-Identifier: LGPL-2.1-or-later
"""Idle workers that have imported the script and wait for a call."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from mcpd.servers.scripts.calls.channel import Broken, NoRoom, begin, exchange, is_open, stem_frames
from mcpd.servers.scripts.calls.job import AT_ONCE
from mcpd.servers.scripts.calls.outcome import outcome

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from mcpd.servers.scripts.calls.channel import Control, Zygote
    from mcpd.servers.scripts.calls.job import Limits
    from mcpd.servers.scripts.calls.outcome import Report

WATCH: Final = 1.0


class Spares:
    """Keeps *count* idle workers. They are forked by the *stem*, a zygote of its own that has imported the script.

    There are none for a script that cannot be imported: each call then reports the error itself.
    """

    def __init__(self, count: int, limits: Limits, log: Callable[[str], None]) -> None:
        self._count = count
        self._limits = limits
        self._log = log
        self._ready: deque[socket.socket] = deque()
        self._stem: Control | None = None
        self.zygote: Zygote | None = None
        """The zygote below which the idle workers were forked."""
        self._task: asyncio.Task[None] | None = None

    def keep(self, zygote: Zygote) -> None:
        """Start a stem if there is none, unless the script cannot be imported."""
        if self._count and (not self._task or self._task.done()):
            self.zygote = zygote
            self._task = asyncio.get_running_loop().create_task(self._run(zygote))

    def take(self) -> socket.socket | None:
        """Return the channel of a worker that has imported the script, or None if there is none now."""
        while self._ready:
            sock = self._ready.popleft()
            if is_open(sock):
                return sock
            sock.close()
        try:
            return self._stem.channel() if self._stem else None
        except Broken:
            return None

    async def close(self) -> None:
        """End all of them."""
        self._count = 0
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._drop()

    def retire(self) -> None:
        """Use this stem for no more workers; it remains as long as its running workers."""
        self._stem = None
        while self._ready:
            self._ready.pop().close()

    def refill(self) -> None:
        """Fork workers for those that were taken; only after a call, which it would slow down."""
        try:
            while self._stem and len(self._ready) < self._count:
                self._ready.append(self._stem.channel())
        except NoRoom:
            pass  # There may be some after the next call; the stem still has running calls.
        except Broken:
            self._drop()

    def _drop(self) -> None:
        if self._stem:
            self._stem.close()
        self.retire()

    async def _run(self, zygote: Zygote) -> None:
        """Import the script in advance, and wait until that process ends."""
        try:
            channel, stem = zygote.stem()
        except Broken:
            return
        with channel, stem.sock:
            output = self._limits.output
            talk = asyncio.create_task(exchange(channel, stem_frames(self._limits), output, self._log, None))
            try:
                await self._import(zygote, channel, stem, talk)
            except (Broken, OSError):
                pass  # It was killed, and the next call starts another one.
            finally:
                self._drop()
                talk.cancel()
                await asyncio.gather(talk, return_exceptions=True)

    async def _import(self, zygote: Zygote, channel: socket.socket, stem: Control, talk: asyncio.Task[Report]) -> None:
        """Wait for the import, fork the workers, and wait until *talk*, with the stem's keeper, is over."""
        loop = asyncio.get_running_loop()
        imported = loop.create_task(loop.sock_recv(stem.sock, 1))
        try:
            over, _ = await asyncio.wait(
                [talk, imported], timeout=self._limits.seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not imported.done() or not imported.result():
                complaint = await self._complaint(talk, late=not over)
                self._count = 0
                self._log(f"not imported ahead: {complaint}")
                return
        finally:
            imported.cancel()
        most = asdict(self._limits) | {"seconds": 0, "processes": self._limits.processes * AT_ONCE}
        await loop.sock_sendall(channel, begin(most, WATCH))
        if zygote.retired:
            return  # The next call starts another one below the zygote that has replaced this one.
        self._stem = stem
        self.refill()
        await asyncio.wait([talk])

    async def _complaint(self, talk: asyncio.Task[Report], *, late: bool) -> str:
        """Return why the script could not be imported; raises :class:`Broken` if the script is not the reason."""
        if late:
            return f"that took more than {self._limits.seconds:g} s"
        report = await talk
        if report.last["stopped"] == "start":
            raise Broken(report.last["tail"])
        return outcome(report, self._limits, shell=False).error
