# SPDX-License-Identifier: LGPL-2.1-or-later
"""Workers that have imported the script and wait for a call."""

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
    """Keeps *count* workers in store. They come from the *stem*, a zygote of its own that has imported the script.

    A script that cannot be imported has none: each call reports why by itself.
    """

    def __init__(self, count: int, limits: Limits, log: Callable[[str], None]) -> None:
        self._count = count
        self._limits = limits
        self._log = log
        self._ready: deque[socket.socket] = deque()
        self._stem: Control | None = None
        self.zygote: Zygote | None = None
        """The zygote that the workers in store come from."""
        self._task: asyncio.Task[None] | None = None

    def keep(self, zygote: Zygote) -> None:
        """See to it that there is a stem, unless the script cannot be imported."""
        if self._count and (not self._task or self._task.done()):
            self.zygote = zygote
            self._task = asyncio.get_running_loop().create_task(self._run(zygote))

    def take(self) -> socket.socket | None:
        """The channel of a worker that has imported the script; None if there can be none now."""
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
        """Let all of them end."""
        self._count = 0
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._drop()

    def retire(self) -> None:
        """Give no more workers of this stem; those that run stay as they are, and so long it stays too."""
        self._stem = None
        while self._ready:
            self._ready.pop().close()

    def refill(self) -> None:
        """Have workers forked for those that were taken; not before a call is over, which it would slow down."""
        try:
            while self._stem and len(self._ready) < self._count:
                self._ready.append(self._stem.channel())
        except NoRoom:
            pass  # There may be some after the next call; the stem has calls that go on.
        except Broken:
            self._drop()

    def _drop(self) -> None:
        if self._stem:
            self._stem.close()
        self.retire()

    async def _run(self, zygote: Zygote) -> None:
        """Import the script ahead, and stay as long as that process lives."""
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
        """Wait for the import, have the workers forked, and stay until *talk*, with the stem's keeper, is over."""
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
            return  # The next call starts another one below the zygote that has taken its place.
        self._stem = stem
        self.refill()
        await asyncio.wait([talk])

    async def _complaint(self, talk: asyncio.Task[Report], *, late: bool) -> str:
        """Why the script could not be imported; raises :class:`Broken` if that was not its fault."""
        if late:
            return f"that took more than {self._limits.seconds:g} s"
        report = await talk
        if report.last["stopped"] == "start":
            raise Broken(report.last["tail"])
        return outcome(report, self._limits, shell=False).error
