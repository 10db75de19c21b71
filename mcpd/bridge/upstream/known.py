# SPDX-License-Identifier: LGPL-2.1-or-later
"""A cache of mcpd's answers about servers."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from mcpd.errors import McpdError, ServiceUnavailable, TimedOut

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcpd.bridge.upstream.source import ServerInfo

log = logging.getLogger(__name__)

FRESH: Final = 5.0
"""Seconds after which mcpd is asked again, beside requests: it hears of files that were edited when it is asked."""
MOST_KNOWN: Final = 1000


class Known:
    """The last descriptions of servers, from *ask*. Listeners are called when one of them may hold no longer."""

    def __init__(self, ask: Callable[[str], Awaitable[ServerInfo]]) -> None:
        self._ask = ask
        self._infos: dict[str, tuple[ServerInfo, float]] = {}
        self._listeners: list[Callable[[], None]] = []
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._epoch = 0

    def listen(self, listener: Callable[[], None]) -> None:
        """Call *listener* whenever what was known may hold no longer."""
        self._listeners.append(listener)

    def get(self, server: str) -> ServerInfo | None:
        """Return what is known about *server*."""
        found = self._infos.get(server)
        if found is None:
            return None
        info, until = found
        if asyncio.get_running_loop().time() > until and server not in self._asking:
            self._asking[server] = asyncio.ensure_future(self._again(server))
        return info

    async def ask(self, server: str) -> ServerInfo:
        """Ask for *server*, and know it then. Raises what asking raises."""
        epoch = self._epoch
        try:
            info = await self._ask(server)
        except (ServiceUnavailable, TimedOut):
            raise
        except McpdError:
            self._learn(server, None)
            raise
        # What has changed meanwhile may have changed since it was read.
        if epoch == self._epoch:
            self._learn(server, info)
        return info

    def changed(self) -> None:
        """Nothing is certain any more."""
        self._epoch += 1
        self._infos.clear()
        for listener in self._listeners:
            listener()

    async def close(self) -> None:
        """Ask nothing any more."""
        for task in self._asking.values():
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    def _learn(self, server: str, info: ServerInfo | None) -> None:
        before = self._infos.pop(server, None)
        if before is not None and (info is None or not before[0].is_same(info)):
            self.changed()
        if info is not None:
            while len(self._infos) >= MOST_KNOWN:
                del self._infos[next(iter(self._infos))]
            self._infos[server] = info, asyncio.get_running_loop().time() + FRESH

    async def _again(self, server: str) -> None:
        try:
            await self.ask(server)
        except McpdError as fault:
            log.debug("server %s: %s", server, fault.message)
        finally:
            del self._asking[server]
