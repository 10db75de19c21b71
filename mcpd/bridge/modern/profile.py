# SPDX-License-Identifier: LGPL-2.1-or-later
"""Knowledge about the server of a pool that the pool itself does not have."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from mcpd.bridge import jsonrpc
from mcpd.bridge.jsonrpc import Raw
from mcpd.bridge.modern import envelope, headers, results
from mcpd.bridge.upstream.call import Answer

if TYPE_CHECKING:
    from mcpd.bridge.modern.headers import Param
    from mcpd.bridge.modern.request import Request
    from mcpd.bridge.modern.run import Run
    from mcpd.bridge.upstream.pool import Pool

FRESH: Final = 60.0
"""Seconds for which it is remembered which arguments of tools are repeated in headers."""
MOST_PAGES: Final = 100
"""Pages of ``tools/list`` that are read."""
MOST_AWAY: Final = 12
"""Calls that may wait for their clients beside those on the usual number of processes; each keeps one."""
MOST_VIEWS: Final = 16
"""Sets of client capabilities for which the tools of a modern server are remembered."""

_METHOD_NOT_FOUND: Final = -32601
Tools = dict[str, "tuple[Param, ...]"]


class Profile:
    """Knowledge about *pool*'s server; *speaks_handshake* is true if it also serves the handshake era."""

    def __init__(self, pool: Pool, *, speaks_handshake: bool = True) -> None:
        self.pool = pool
        self.is_modern = not pool.key.greeting
        self.speaks_handshake = speaks_handshake
        self.suspended: dict[Run, None] = {}
        """Calls that wait for their client, the oldest first."""
        self.room: asyncio.TimerHandle | None = None
        """What gives up the oldest of them, if they keep others from being served."""
        self._initialized: bytes | None = None
        self._server_info = b""
        self._stamp = b""
        self._discovered = b""
        self._tools: dict[bytes, Tools] = {}
        self._learning = asyncio.Lock()

    @property
    def server_info(self) -> bytes:
        """The ``serverInfo`` of a handshake server as JSON, empty if there is none."""
        self._look()
        return self._server_info

    @property
    def stamp(self) -> bytes:
        """With what results of a handshake server begin, see :func:`.results.stamp`."""
        if self._initialized is not self.pool.result:
            self._look()
        return self._stamp

    @property
    def discovered(self) -> bytes:
        """The result of ``server/discover`` for a handshake server that has answered ``initialize``."""
        self._look()
        if not self._discovered:
            self._discovered = results.discovered(self.pool.result)
        return self._discovered

    def _look(self) -> None:
        if self._initialized is not self.pool.result:
            self._initialized = self.pool.result
            self._server_info = results.server_info_of(self._initialized)
            self._stamp = results.stamp(self._server_info)
            self._discovered = b""

    def suspend(self, run: Run) -> None:
        """*run* waits for its client."""
        self.suspended[run] = None
        self.pool.away = min(len(self.suspended), MOST_AWAY)

    def unsuspend(self, run: Run) -> None:
        """*run* does not wait any more."""
        self.suspended.pop(run, None)
        self.pool.away = min(len(self.suspended), MOST_AWAY)

    # ------------------------------------------------------------------------------------ headers of tools

    def declared(self, request: Request) -> tuple[Param, ...] | None:
        """The arguments of its tool that headers repeat; ``None`` if that has to be asked with :meth:`ask_tools`."""
        kept = self._tools.get(request.said.capabilities if self.is_modern else b"")
        return None if kept is None else kept.get(request.name, ())

    async def ask_tools(self, request: Request) -> None:
        """Learn what the server declares; nothing, if it does not tell (then its calls are checked by itself)."""
        view = request.said.capabilities if self.is_modern else b""
        known = self._tools.get(view)
        async with self._learning:
            # Who waited for another one to learn it need not do so again.
            if self._tools.get(view) is known and (found := await self._read_tools(request)) is not None:
                self._keep(view, found)

    def _keep(self, view: bytes, found: Tools) -> None:
        self._tools.pop(view, None)
        while len(self._tools) >= MOST_VIEWS:
            del self._tools[next(iter(self._tools))]
        self._tools[view] = found
        asyncio.get_running_loop().call_later(FRESH, self._forget, view, found)

    async def _read_tools(self, request: Request) -> Tools | None:
        """What the server declares; ``None`` if it may tell the next time."""
        found: Tools = {}
        cursor = b""
        # Without what a caller says for itself, as what comes is for all who say the same.
        meta = envelope.of_bridge(request.said) if self.is_modern else b""
        for _ in range(MOST_PAGES):
            params = {"_meta": Raw(meta)} if meta else {}
            if cursor:
                params["cursor"] = Raw(cursor)
            answer = Answer()
            message = jsonrpc.request(b"0", "tools/list", jsonrpc.encode(params))
            self.pool.request(None, answer, b"0", "tools/list", message)
            response = await answer.future
            if "error" in response and results.code_of(response["error"]) != _METHOD_NOT_FOUND:
                return None
            page, following = headers.tools_of(response.get("result", Raw(b"{}")))
            found.update(page)
            if not following or (text := jsonrpc.encode(following)) == cursor:
                break
            cursor = text
        return found

    def _forget(self, view: bytes, tools: Tools) -> None:
        if self._tools.get(view) is tools:
            del self._tools[view]
