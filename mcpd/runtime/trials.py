# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers whose fresh version is on trial, so that nobody but mcpd may start them for now."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mcpd.errors import Busy, SpawnFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

TRIAL_TIMEOUT: Final = 20.0
"""Seconds that a start waits for the trial of a fresh version: less than callers on the bus wait for an answer."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A client that wants a server which is on trial."""

    client: str
    is_gone: bool = False


class Trials:
    """Which servers are on trial; of one there is one at a time."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Event] = {}
        """By server id, each with what is set at its end."""
        self._waiting: list[_Waiting] = []

    @contextmanager
    def of(self, server_id: str) -> Iterator[None]:
        """A trial of *server_id*."""
        ended = self._running[server_id] = asyncio.Event()
        try:
            yield
        finally:
            del self._running[server_id]
            ended.set()

    async def over(self, server_id: str, client: str) -> None:
        """Return when *server_id* is not on trial (any more), so that *client* may start it.

        Raises :class:`~mcpd.errors.Busy` if that takes long, and :class:`~mcpd.errors.SpawnFailed` if the client
        leaves meanwhile.
        """
        waiting = _Waiting(client)
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(TRIAL_TIMEOUT):
                while trial := self._running.get(server_id):
                    await trial.wait()
        except TimeoutError:
            raise Busy(f"{server_id} is just being installed or updated; try again when that is done") from None
        finally:
            self._waiting.remove(waiting)
        if waiting.is_gone:
            raise SpawnFailed(f"{server_id}: the client that asked for it is gone")

    def leave(self, client: str) -> None:
        """The *client* has vanished: nothing is started for it."""
        for waiting in self._waiting:
            if waiting.client == client:
                waiting.is_gone = True
